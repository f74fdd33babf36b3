"""Reproduce Law (2006), section 5.6.2, on public sets: scores by number of constraints.

Random correct pairs, as a share of the number of points; principal components of standardised
features; one covariance for all clusters; maximum likelihood. The tables of the thesis cannot be read
in the copy at hand; beside our figures stand those of an independent run on wdbc (best of five starts,
two draws of pairs) and the thesis' own reference, a Gaussian classifier trained on all labels.

Run: SIDEBAYES_DATA=folder python benchmarks/reproduce/constraint_fit.py [--sets wdbc] [--seeds 2]
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.scores import f_score, score_labels, violated_links
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import sidebayes as sb

FEATURES = {"wdbc": 14, "ionosphere": 10, "vehicle": 16, "segment": 10}
"""Principal components that the thesis keeps of each set."""
INDEPENDENT = {
    ("wdbc", 0.0): (0.68, 0.00),
    ("wdbc", 0.01): (0.69, 0.01),
    ("wdbc", 0.05): (0.92, 0.65),
    ("wdbc", 0.15): (0.966, 0.796),
}
"""F-score and NMI of the independent run, by set and share of pairs."""


def load(name, folder):
    """Principal components of standardised features, and classes."""
    data = sb.load_dataset(str(folder / f"{name}.csv"))
    x = data.x[:, np.ptp(data.x, axis=0) > 0]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return PCA(FEATURES[name]).fit_transform(x), data.labels


def run(x, labels, share, price, engine, seed):
    """F-score, NMI, broken links and seconds with one draw of pairs."""
    shared = {"num_clusters": len(np.unique(labels)), "engine": engine, "prior": "flat"}
    links = sb.simulate_links(labels, round(share * len(x)), seed=seed)
    if price == "chosen" and len(links):
        links = sb.choose_strength(x, links, seed=seed, **shared).links
    elif len(links):
        links = links.with_strength(float(price))
    fit = sb.fit("constraint_fit", x, links, seed=seed, progress=False, **shared)
    z = fit.labels()
    broken = violated_links(z, links.pairs, links.weights)
    return f_score(labels, z), score_labels(labels, z)["nmi"], broken, fit.seconds["run"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="wdbc", help=", ".join(FEATURES))
    parser.add_argument("--shares", default="0,0.01,0.05,0.15", help="pairs a point")
    parser.add_argument("--seeds", type=int, default=2, help="draws of the pairs")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--price", default="50", help="nats, or 'chosen' by links held out")
    parser.add_argument("--method", default="lbfgs", help="or newton")
    options = parser.parse_args()
    folder = Path(os.environ["SIDEBAYES_DATA"])
    engine = sb.Continuation(method=options.method, num_restarts=options.starts, tol=1e-6)
    for name in options.sets.split(","):
        x, labels = load(name, folder)
        trained = LinearDiscriminantAnalysis().fit(x, labels).predict(x)
        print(
            f"{name}: {len(x)} points; trained on all labels F {f_score(labels, trained):.3f} "
            f"NMI {score_labels(labels, trained)['nmi']:.3f}"
        )
        for share in map(float, options.shares.split(",")):
            began = time.perf_counter()
            found = [
                run(x, labels, share, options.price, engine, seed) for seed in range(options.seeds)
            ]
            score, nmi, broken, seconds = np.mean(found, axis=0)
            line = (
                f"  {share:4.0%} {round(share * len(x)):4d} pairs  F {score:.3f} NMI {nmi:.3f}  "
                f"broken {broken:.1f}  run {seconds:.1f} s, all {time.perf_counter() - began:.0f} s"
            )
            if (name, share) in INDEPENDENT:
                line += "   independent F {:.3f} NMI {:.3f}".format(*INDEPENDENT[name, share])
            print(line, flush=True)


if __name__ == "__main__":
    main()
