"""How often EM finds the best mode that 500 random starts find: from its own starts, and from k-means.

Run: SIDEBAYES_DATA=folder python benchmarks/starts.py [--seeds 10] [--random 500]
Gaussian mixtures with full covariances under the empirical prior, given as one that was not read off the data
(so that EM seeks the highest density), `ppc` where there are links. A random start
has the covariance of the data about as many random rows as clusters; starts by k-means have diagonal
covariances. Prints how often each kind of ten starts comes within 0.01 nats of the best of the random starts,
how far above it the median ends, and processor seconds.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sidebayes.models.blocks.components.kmeans_starts import kmeans_centres
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import sidebayes as sb

NEAR = 0.01
"""Nats below the best log joint known that count as the same mode."""


def table(name, *columns):
    """Up to 1,000 rows of a set in SIDEBAYES_DATA, some columns or all."""
    path = Path(os.environ["SIDEBAYES_DATA"]) / f"{name}.csv"
    data = pd.read_csv(path, nrows=1000).drop(columns="label").to_numpy(float)
    return data[:, slice(*columns)] if columns else data


def settings():
    """Name, data, links and number of clusters; what was not looked at before the table is marked."""
    iris, crabs = sb.load_dataset("iris"), sb.load_dataset("crabs")
    few = sb.simulate_links(iris.labels, 20, weight=2.0)
    wrong = sb.simulate_links(crabs.labels, 60, flip_rate=0.1, weight=2.0)
    return [
        ("iris", iris.x, None, 3),
        ("iris, 20 links of weight 2", iris.x, few, 3),
        ("crabs, 60 links, a tenth of them wrong", crabs.x, wrong, 4),
        ("wine", load_wine().data, None, 3),
        ("breast cancer, 10 features", load_breast_cancer().data[:, :10], None, 4),
        ("ecoli, 5 features", np.delete(table("ecoli"), [2, 3], axis=1), None, 5),
        ("new thyroid", table("new_thyroid"), None, 3),
        ("diabetes, without sex", np.delete(load_diabetes().data, 1, axis=1), None, 3),
        ("haberman", table("haberman"), None, 3),
        ("liver", table("liver_bupa"), None, 4),
        ("pima *", table("pima"), None, 4),
        ("satimage, central pixel *", table("satimage", 16, 20), None, 6),
        ("vehicle *", table("vehicle"), None, 4),
        ("waveform, 21 features *", table("waveform40", 21), None, 3),
    ]


def starts_at(means, spread):
    """EM's starts with equal weights, means as given and one covariance."""
    count, num_clusters = means.shape[:2]
    weights = np.full((count, num_clusters), 1 / num_clusters)
    covariance = np.broadcast_to(spread, (count, num_clusters, *spread.shape))
    return [
        {"weights": w, "mean": m, "covariance": c}
        for w, m, c in zip(weights, means, covariance, strict=True)
    ]


def by_kmeans(x, num_clusters, seed, number):
    """Centres of k-means partitions, with the variances of the data shrunk to the cell of a cluster."""
    centres = kmeans_centres(x, num_clusters, seed, number)[0]
    return starts_at(centres, np.diag(x.var(axis=0) / num_clusters ** (2 / x.shape[1])))


def at_random(x, num_clusters, number):
    rng = np.random.default_rng(12345)
    rows = np.stack([rng.choice(len(x), num_clusters, replace=False) for _ in range(number)])
    return starts_at(x[rows], np.cov(x.T) + 1e-6 * np.diag(x.var(axis=0)))


def climbed(run, starts=lambda: None, seed=0):
    """Log joint that EM ends at, and the processor seconds that it takes, starts included."""
    began = time.process_time()
    with run.precision:
        found = sb.EM().run(run.problem, seed=seed, init=starts(), progress=False)
    return found.sample_stats["lp"].item(), time.process_time() - began


def compare(name, x, links, num_clusters, seeds, number):
    """Print one row of the table; returns how often each kind of starts finds the best mode."""
    method, given = ("gmm", (x,)) if links is None else ("ppc", (x, links))
    prior = sb.GaussianPrior.empirical(x, num_clusters)
    asked = {"num_clusters": num_clusters, "prior": prior}
    run = sb.fit(method, *given, **asked, progress=False).run  # compiles
    best, _ = climbed(run, partial(at_random, x, num_clusters, number))
    kinds = {
        "k-means": [climbed(run, partial(by_kmeans, x, num_clusters, s, 10)) for s in range(seeds)],
        "default": [climbed(run, seed=s) for s in range(seeds)],
    }
    value = {kind: np.array([height for height, _ in found]) for kind, found in kinds.items()}
    spent = {kind: sum(seconds for _, seconds in found) / seeds for kind, found in kinds.items()}
    share = {kind: int((heights >= best - NEAR).sum()) for kind, heights in value.items()}
    cells = [f"{share[k]} | {np.median(value[k]) - best:+.2f} | {spent[k]:.2f}" for k in kinds]
    print(f"| {name} | {len(x)} | {num_clusters} | {best:.2f} | {' | '.join(cells)} |", flush=True)
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--random", type=int, default=500)
    parser.add_argument("--only", default="", help="names that begin so")
    options = parser.parse_args()
    columns = "k-means | median | s | default | median | s"
    print(f"| data | rows | clusters | best of random starts | {columns} |")
    print(f"| {' | '.join(['---'] * 10)} |")
    total = {"k-means": 0, "default": 0}
    for one in settings():
        if one[0].startswith(options.only):
            for kind, count in compare(*one, options.seeds, options.random).items():
                total[kind] += count
    print(f"| all | | | | {total['k-means']} | | | {total['default']} | | |")


if __name__ == "__main__":
    main()
