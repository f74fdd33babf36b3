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
from sidebayes.diagnostics.scores import score_labels, violated_links
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics.cluster import contingency_matrix

import sidebayes as sb

FEATURES = {"wdbc": 14, "ionosphere": 10, "vehicle": 16, "segment": 10}
"""Principal components that the thesis keeps of each set."""
SHARES = (0.0, 0.01, 0.05, 0.15)
REFERENCE = {"wdbc": ((0.68, 0.00), (0.69, 0.01), (0.92, 0.65), (0.966, 0.796))}
"""F-score and NMI at each of SHARES in the independent run."""


def f_score(truth, labels):
    """Share-weighted best harmonic mean of precision and recall of each class (eq. 5.34)."""
    table = contingency_matrix(truth, labels)
    harmonic = 2 * table / (table.sum(axis=1, keepdims=True) + table.sum(axis=0))
    return float(harmonic.max(axis=1) @ table.sum(axis=1) / table.sum())


def load(name, folder):
    """Principal components of standardised features, and classes."""
    data = sb.load_dataset(str(folder / f"{name}.csv"))
    x = data.x[:, np.ptp(data.x, axis=0) > 0]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return PCA(FEATURES[name]).fit_transform(x), data.labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="wdbc", help=", ".join(FEATURES))
    parser.add_argument("--seeds", type=int, default=2, help="draws of the pairs")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--strength", default="50", help="nats, or 'chosen' by links held out")
    options = parser.parse_args()
    folder = Path(os.environ["SIDEBAYES_DATA"])
    engine = sb.Continuation(num_restarts=options.starts, tol=1e-6)
    for name in options.sets.split(","):
        x, labels = load(name, folder)
        num_clusters = len(np.unique(labels))
        shared = {"num_clusters": num_clusters, "prior": "flat", "progress": False}
        trained = LinearDiscriminantAnalysis().fit(x, labels).predict(x)
        print(
            f"{name}: {len(x)} points; trained on all labels F {f_score(labels, trained):.3f} "
            f"NMI {score_labels(labels, trained)['nmi']:.3f}"
        )
        for column, share in enumerate(SHARES):
            found = []
            began = time.perf_counter()
            for seed in range(options.seeds):
                links = sb.simulate_links(labels, round(share * len(x)), seed=seed)
                price = options.strength
                if price == "chosen" and len(links):
                    price = sb.choose_strength(
                        x, links, num_clusters=num_clusters, engine=engine, prior="flat", seed=seed
                    ).strength
                priced = links.with_strength(50.0 if price == "chosen" else float(price))
                fit = sb.fit("constraint_fit", x, priced, engine=engine, seed=seed, **shared)
                z = fit.labels()
                broken = violated_links(z, links.pairs, links.weights)
                found.append((f_score(labels, z), score_labels(labels, z)["nmi"], broken))
            mean = np.mean(found, axis=0)
            beside = REFERENCE.get(name)
            note = (
                ""
                if beside is None
                else "   independent F {:.3f} NMI {:.3f}".format(*beside[column])
            )
            print(
                f"  {share:4.0%} {round(share * len(x)):4d} pairs  F {mean[0]:.3f} NMI {mean[1]:.3f}  "
                f"broken {mean[2]:.1f}{note}   {time.perf_counter() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
