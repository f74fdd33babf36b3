"""Kernel principal geodesics beside kernel principal components: neighbourhoods kept, and seconds.

Run: python -m benchmarks.kernel_pga [--only sphere|speed]
"""

import argparse
import time
import tracemalloc

import numpy as np
from sklearn.decomposition import KernelPCA

import sidebayes as sb
from tests.reference.spheres import subsphere_points


def show_sphere(draws=20):
    """Print eigenvalues and the quality of embeddings of a sphere in many dimensions (Yu 2016, Fig. 2.11)."""
    rows = {name: [] for name in ("KernelPCA", "KernelPGA, flat distances", "KernelPGA, angles")}
    values = {"KernelPCA": [], "KernelPGA": []}
    for seed in range(draws):
        x = subsphere_points(seed)
        before = np.arccos(np.clip(x @ x.T, -1, 1))
        flat = KernelPCA(3).fit(x)
        values["KernelPCA"].append(flat.eigenvalues_ / len(x))
        analysis = sb.KernelPGA(2, kernel="linear").fit(x)
        values["KernelPGA"].append(analysis.eigenvalues_)
        embedded = analysis.transform(x)
        ends = analysis.sphere_coordinates(embedded)
        for name, after in zip(
            rows,
            (
                distances(flat.transform(x)[:, :2]),
                distances(embedded),
                np.arccos(np.clip(ends @ ends.T, -1, 1)),
            ),
            strict=True,
        ):
            quality = sb.co_ranking_quality(before, after)
            rows[name].append((quality.mean(), quality.min()))
    print("| mean of 20 draws | eigenvalues |\n| --- | --- |")
    for name, found in values.items():
        print(f"| {name} | {', '.join(f'{v:.4f}' for v in np.mean(found, axis=0))} |")
    print("\n| two coordinates | mean quality | least |\n| --- | --- | --- |")
    for name, found in rows.items():
        mean, least = np.mean(found, axis=0)
        print(f"| {name} | {mean:.3f} | {least:.3f} |")


def distances(x):
    """Euclidean distances of all pairs of rows."""
    return np.linalg.norm(x[:, None] - x, axis=-1)


def seconds(run, repeats):
    """Least wall-clock seconds of several runs."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def show_speed(repeats=5):
    """Print seconds of fit and transform, and their ratio."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 20))
    gamma = 1 / (4 * x.var(axis=0).sum())
    print(
        "| rows | coordinates | KernelPCA s | KernelPGA s | ratio |\n| --- | --- | --- | --- | --- |"
    )
    for number in (2, 50, None):
        flat = KernelPCA(number, kernel="rbf", gamma=gamma)
        analysis = sb.KernelPGA(number, gamma=gamma)
        peer = seconds(lambda: flat.fit_transform(x), repeats)  # noqa: B023
        ours = seconds(lambda: analysis.fit_transform(x), repeats)  # noqa: B023
        print(
            f"| 2,000 | {number or 'all'} | {peer:.2f} | {ours:.2f} | {ours / peer:.2f} |",
            flush=True,
        )
    x = rng.normal(size=(50_000, 5))
    analysis = sb.KernelPGA(2, rank=300)
    tracemalloc.start()
    took = seconds(lambda: analysis.fit_transform(x), 1)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    print(f"| 50,000 | 2, rank 300 |  | {took:.1f} |  |")
    print(
        f"\nrank 300 loses {analysis.residual_:.1e} of the squared norms and takes {peak:.0f} MiB"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["sphere", "speed"])
    chosen = parser.parse_args()
    if chosen.only in (None, "sphere"):
        show_sphere()
    if chosen.only in (None, "speed"):
        show_speed()
