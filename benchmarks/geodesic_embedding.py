"""Maps with uncertainty beside Isomap and metric MDS: neighbourhoods kept, coverage, dimensions, seconds.

Run: python -m benchmarks.geodesic_embedding [--only quality|coverage|dimensions|scale]
"""

import argparse
import time
import warnings

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.manifold import MDS, Isomap

import sidebayes as sb
from tests.reference.swiss_roll import swiss_roll

SHARE = 0.9


def sheet(number, seed):
    """Places on the sheet that `swiss_roll` rolls up: arc length, and height."""
    along, across = np.random.default_rng(seed).random((2, number))
    turn = 1.5 * np.pi * (1 + 2 * along)
    return np.column_stack([(turn * np.sqrt(1 + turn**2) + np.arcsinh(turn)) / 2, 21 * across])


def digits(number, seed):
    """Some digits, 64 features each."""
    return load_digits().data[np.random.default_rng(seed).permutation(1797)[:number]]


def fitted(x, num_neighbors, engine, **options):
    return sb.fit(
        "geodesic_embedding",
        x,
        num_neighbors=num_neighbors,
        engine=engine,
        progress=False,
        **options,
    )


def maps(x, num_neighbors):
    """Coordinates by each method, and its seconds; geodesics are the same for all."""
    began = time.perf_counter()
    isomap = Isomap(n_neighbors=num_neighbors).fit(x)
    yield "Isomap (scikit-learn)", isomap.embedding_, time.perf_counter() - began
    began = time.perf_counter()
    metric = {"dissimilarity": "precomputed", "random_state": 0, "n_init": 1, "max_iter": 1000}
    start = MDS(**metric, normalized_stress=False)
    found = start.fit_transform(isomap.dist_matrix_, init=isomap.embedding_)
    yield "metric MDS (scikit-learn)", found, time.perf_counter() - began
    for law in ("log_normal", "log_t", "normal"):
        began = time.perf_counter()
        fit = fitted(x, num_neighbors, sb.MAP(num_restarts=1, max_steps=5000), noise=law)
        yield f"geodesic_embedding, {law}", fit.params["positions"], time.perf_counter() - began


def show_quality():
    """Print the shares of neighbourhoods along the graph that maps keep."""
    print("\n| data | map | Q(10) | Q(50) | stress | s |\n| --- | --- | --- | --- | --- | --- |")
    for name, x, num_neighbors in (
        ("Swiss roll, 500 rows", swiss_roll(500, 0), 6),
        ("digits, 500 rows", digits(500, 0), 10),
    ):
        table = Isomap(n_neighbors=num_neighbors).fit(x).dist_matrix_
        for method, where, took in maps(x, num_neighbors):
            between = cdist(where, where)
            kept = sb.co_ranking_quality(table, between)
            stress = np.sqrt(np.sum((table - between) ** 2) / np.sum(table**2))
            print(
                f"| {name} | {method} | {kept[9]:.3f} | {kept[49]:.3f} | {stress:.3f} | {took:.1f} |",
                flush=True,
            )


def covered(draws, truth, scaled):
    """Share of true coordinates within 90 % intervals, once turned (and scaled), and the error there."""
    mean = draws.mean(axis=0) - draws.mean(axis=(0, 1))
    true = truth - truth.mean(axis=0)
    left, values, right = np.linalg.svd(mean.T @ true)
    size = values.sum() / np.sum(mean**2) if scaled else 1.0
    turned = size * (draws - draws.mean(axis=1, keepdims=True)) @ (left @ right)
    low, high = np.quantile(turned, [(1 - SHARE) / 2, (1 + SHARE) / 2], axis=0)
    error = np.sqrt(np.mean((turned.mean(axis=0) - true) ** 2))
    return np.mean((low < true) & (true < high)), error, turned.std(axis=0).mean(), size


def show_coverage(number=400, repeats=5):
    """Print the coverage of 90 % intervals of true places on the sheet, by the power of the likelihood."""
    print(
        f"\nSwiss roll, {number} rows, six neighbours, {repeats} rolls, Laplace, {SHARE:.0%} intervals"
    )
    print("| distances | power | covered | covered, scale free | error | deviation | scale |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    engine = sb.Laplace(num_draws=400, num_restarts=1, max_steps=5000)
    for kind in ("along the graph", "true, 5 % independent noise"):
        powers = (1.0, None, 0.1 * 2 * 3 * number / number**2) if kind[0] == "a" else (1.0,)
        for power in powers:
            rows = []
            for seed in range(repeats):
                truth = sheet(number, seed)
                if kind[0] == "a":
                    fit = fitted(swiss_roll(number, seed), 6, engine, power=power)
                else:
                    noise = np.triu(np.random.default_rng(seed).normal(size=(number, number)), 1)
                    table = cdist(truth, truth) * np.exp(0.05 * (noise + noise.T))
                    fit = sb.fit(
                        "geodesic_embedding", distances=table, engine=engine, progress=False
                    )
                draws = fit.aligned[0]["posterior"]["positions"].to_numpy()[0]
                scaled = covered(draws, truth, True)
                rows.append((covered(draws, truth, False)[0], *scaled))
            shown = " | ".join(f"{value:.2f}" for value in np.mean(rows, axis=0))
            said = "default" if power is None else f"{power:.4f}"
            print(f"| {kind} | {said} | {shown} |", flush=True)


def show_scale():
    """Print seconds and memory of a mode with many points, by landmarks."""
    import resource

    for number in (2_000, 10_000, 50_000):
        began = time.perf_counter()
        fit = fitted(swiss_roll(number, 0), 8, sb.MAP(num_restarts=1, max_steps=200))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        took = time.perf_counter() - began
        print(
            f"{number} rows, {fit.run.data['distances'].shape[1]} landmarks: {took:.0f} s, the process has "
            f"{memory:.2f} GiB at most",
            flush=True,
        )


SHOWN = {"quality": show_quality, "coverage": show_coverage, "scale": show_scale}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SHOWN, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore", sb.SideBayesWarning)
    warnings.simplefilter("ignore", FutureWarning)
    for name, show in SHOWN.items():
        if options.only in (None, name):
            show()


if __name__ == "__main__":
    main()
