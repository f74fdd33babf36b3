"""Mixtures on the sphere of a kernel beside mixtures in the flat space, and their seconds.

Run: python -m benchmarks.sphere_mixture [--only clusters|speed|density|peer] [--sets iris,wine]
     [--dimensions 1,2,3,4] [--repeats 20]

Clusters (Yu 2016, section 2.9.2.1, Figs. 2.13-2.20): of each class 70 % of the rows at random, a Gaussian
kernel whose squared width is the mean squared distance of all pairs, as many clusters as classes, and the
share of rows in the wrong cluster after the best matching. SIDEBAYES_DATA names the folder of tables but for
iris and wine. Features of all sets but iris are standardised.

Density: the mean log density of rows left out, under mixtures of each family on the same sphere.

Speed: whole fits of ten starts each, once the program is compiled, beside scikit-learn's GaussianMixture of
tangent coordinates.

Peer: geomstats, by the interpreter that SIDEBAYES_GEOMSTATS names, see `sphere_peer`.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment
from sidebayes.models.blocks.manifolds import sphere
from sklearn.cluster import SpectralClustering
from sklearn.decomposition import KernelPCA
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.mixture import GaussianMixture

import sidebayes as sb
from tests.support.spheres import clusters

METHODS = ("spectral", "KernelPCA + GaussianMixture", "KernelPGA + sphere_mixture")


def error(labels, found):
    """Share of rows outside the cluster that is matched to their class."""
    table = np.zeros((labels.max() + 1, found.max() + 1))
    np.add.at(table, (labels, found), 1)
    rows, columns = linear_sum_assignment(-table)
    return 1 - table[rows, columns].sum() / len(labels)


def data_of(name):
    """Features and classes from 0 on; standardised but for iris."""
    data = sb.load_dataset(name)
    x, labels = np.asarray(data.x, float), np.unique(data.labels, return_inverse=True)[1]
    return (x if name == "iris" else (x - x.mean(axis=0)) / x.std(axis=0)), labels


def subsample(labels, rng):
    """Of each class 70 % of the rows."""
    parts = [np.flatnonzero(labels == c) for c in range(labels.max() + 1)]
    return np.concatenate([rng.permutation(rows)[: round(0.7 * len(rows))] for rows in parts])


def errors(x, labels, dimension, seed):
    """Errors of the three methods on one set of rows."""
    num_clusters = labels.max() + 1
    gamma = 1 / (2 * (euclidean_distances(x) ** 2).mean())
    spectral = SpectralClustering(num_clusters, gamma=gamma, random_state=seed)
    flat = KernelPCA(dimension, kernel="rbf", gamma=gamma).fit_transform(x)
    mixture = GaussianMixture(num_clusters, n_init=10, random_state=seed)
    analysis = sb.KernelPGA(dimension, gamma=gamma)
    points = analysis.sphere_coordinates(analysis.fit_transform(x))
    fit = sb.fit("sphere_mixture", points, num_clusters=num_clusters, seed=seed, progress=False)
    found = spectral.fit_predict(x), mixture.fit_predict(flat), fit.labels()
    return [error(labels, one) for one in found]


def show_clusters(sets, dimensions, repeats):
    """Print mean errors and their standard deviations."""
    print(f"| data | Q | {' | '.join(METHODS)} |\n| --- | --- | --- | --- | --- |")
    for name in sets:
        x, labels = data_of(name)
        for dimension in dimensions:
            found = []
            for seed in range(repeats):
                rows = subsample(labels, np.random.default_rng(seed))
                found.append(errors(x[rows], labels[rows], dimension, seed))
            cells = zip(np.mean(found, axis=0), np.std(found, axis=0), strict=True)
            shown = " | ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in cells)
            print(f"| {name} | {dimension} | {shown} |", flush=True)


FAMILIES = {
    "full": {"covariance": "full"},
    "spherical": {"covariance": "spherical"},
    "low_rank": {"covariance": "low_rank"},
    "von Mises-Fisher": {"family": "von_mises_fisher"},
}


def show_density(sets, repeats):
    """Print mean log densities of the rows left out, three coordinates and as many clusters as classes."""
    print(f"| data | {' | '.join(FAMILIES)} |\n| --- | --- | --- | --- | --- |")
    for name in sets:
        x, labels = data_of(name)
        found = []
        for seed in range(repeats):
            rows = subsample(labels, np.random.default_rng(seed))
            kept = np.isin(np.arange(len(x)), rows)
            analysis = sb.KernelPGA(3).fit(x[kept])
            inside, outside = (
                analysis.sphere_coordinates(analysis.transform(part))
                for part in (x[kept], x[~kept])
            )
            number = labels.max() + 1
            fits = [
                sb.fit("sphere_mixture", inside, num_clusters=number, progress=False, **given)
                for given in FAMILIES.values()
            ]
            found.append([fit.log_prob(outside).mean() for fit in fits])
        cells = " | ".join(f"{value:.2f}" for value in np.mean(found, axis=0))
        print(f"| {name} | {cells} |", flush=True)


def seconds(run, repeats=3):
    """Least seconds of several runs."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def show_speed():
    """Print seconds of whole fits, and their ratio."""
    print(
        "| rows | Q | clusters | family | GaussianMixture s | first fit s | sphere_mixture s | ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for rows, dimension, number in ((2_000, 2, 3), (2_000, 9, 5), (20_000, 9, 5)):
        x = clusters(np.random.default_rng(0), dimension + 1, number, 0.25, rows)
        tangent = sb.KernelPGA(dimension, kernel="linear", rank=dimension + 1).fit_transform(x)
        peer = GaussianMixture(number, n_init=10, random_state=0, tol=1e-5, max_iter=500)
        theirs = seconds(lambda: peer.fit(tangent))  # noqa: B023
        for name in ("full", "von Mises-Fisher"):

            def ours():
                sb.fit("sphere_mixture", x, num_clusters=number, progress=False, **FAMILIES[name])  # noqa: B023

            first = seconds(ours, 1)
            again = seconds(ours)
            print(
                f"| {rows:,} | {dimension} | {number} | {name} | {theirs:.2f} | {first:.2f} | {again:.2f} | "
                f"{again / theirs:.2f} |",
                flush=True,
            )


def geomstats(x, number):
    """Seconds and findings of geomstats by name, None where its interpreter is not named."""
    python = os.environ.get("SIDEBAYES_GEOMSTATS")
    if python is None:
        return None
    script = Path(__file__).with_name("sphere_peer.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "points.npy"
        np.save(file, x)
        said = subprocess.run(
            [python, script, file, str(number)], check=True, capture_output=True, text=True
        )
    return json.loads(said.stdout.splitlines()[-1])


def show_peer():
    """Print errors and seconds beside geomstats, and how far its mean is from ours."""
    print("| rows | Q | clusters | method | error | seconds | seconds by one start of ours |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for dimension, number, deviation in ((2, 3, 0.25), (2, 3, 0.6), (9, 5, 0.25)):
        x = clusters(np.random.default_rng(0), dimension + 1, number, deviation, 2_000)
        labels = np.repeat(np.arange(number), 2_000 // number)
        x = x[: len(labels)]
        theirs = geomstats(x, number)
        if theirs is None:
            print("SIDEBAYES_GEOMSTATS names no Python that has geomstats")
            return

        def ours(starts):
            engine = sb.EM(num_restarts=starts)
            given = {"covariance": "spherical", "engine": engine, "progress": False}
            return sb.fit("sphere_mixture", x, num_clusters=number, **given).labels()  # noqa: B023

        ours(1)
        once = seconds(lambda: ours(1))
        rows = {"sphere_mixture, 10 starts": (seconds(lambda: ours(10)), ours(10))}
        rows["sphere_mixture, 1 start"] = once, ours(1)
        rows |= {f"geomstats, {name}": theirs[name] for name in ("EM", "k-means")}
        for name, (used, found) in rows.items():
            shown = f"{used} | |"
            if found is not None:
                shown = f"{error(labels, np.asarray(found)):.3f} | {used:.3f} | {used / once:.2f} |"
            print(f"| {len(x):,} | {dimension} | {number} | {name} | {shown}", flush=True)
        with jax.enable_x64(True):
            mean = jax.jit(sphere.karcher_mean)
            points, weights = jnp.asarray(x), jnp.ones(len(x))
            found = mean(points, weights).mean
            own = seconds(lambda: jax.block_until_ready(mean(points, weights)))  # noqa: B023
        used, other = theirs["mean"]
        apart = np.abs(np.asarray(found) - other).max()
        print(
            f"| | | | Karcher mean, {apart:.0e} apart | | {own:.4f}, theirs {used:.4f} | |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("clusters", "speed", "density", "peer"), default=None)
    parser.add_argument("--sets", default="iris,wine")
    parser.add_argument("--dimensions", default="1,2,3,4")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sets = options.sets.split(",")
    if options.only in (None, "clusters"):
        show_clusters(sets, [int(q) for q in options.dimensions.split(",")], options.repeats)
    if options.only in (None, "density"):
        show_density(sets, options.repeats)
    if options.only in (None, "speed"):
        show_speed()
    if options.only in (None, "peer"):
        show_peer()


if __name__ == "__main__":
    main()
