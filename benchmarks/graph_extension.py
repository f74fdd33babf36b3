"""Features of held-out points by `GraphKernel.features(x_new)`, for several least divisors.

A third of each data set is held out. The graph is built of the others, and their kernel with the held-out
points, by the extension, is compared with the kernel of a graph of all points. Columns: the least divisor
(0 divides by 1 - mu whatever it is), median and largest squared norm of held-out features, largest of the
points of the graph, and the relative error of the kernel between held-out points and those of the graph.

    python benchmarks/graph_extension.py
"""

from __future__ import annotations

import numpy as np
from sidebayes.models.blocks.kernels import graph_kernels
from sidebayes.models.blocks.kernels.graph_kernels import GraphKernel

import sidebayes

DIVISORS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
KERNELS = {
    "diffusion 1": {"kind": "diffusion", "parameter": 1.0},
    "diffusion 30": {"kind": "diffusion", "parameter": 30.0},
    "random walk 0.1": {"kind": "random_walk", "parameter": 0.1},
    "random walk 0.1, all pairs": {"kind": "random_walk", "parameter": 0.1, "num_neighbors": None},
}


def main() -> None:
    sets = {
        "iris": sidebayes.load_dataset("iris").x,
        "wine": sidebayes.load_dataset("wine").x,
        "two_spirals": sidebayes.load_dataset("two_spirals", num_points=300).x,
        "digits": sidebayes.load_dataset("digits").x[:600],
    }
    print("| data | kernel | divisor | median | largest | of the graph | error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, x in sets.items():
        rng = np.random.default_rng(0)
        spread = x.std(axis=0)
        x = x[:, spread > 0] / spread[spread > 0]
        held = rng.permutation(len(x)) < len(x) // 3
        for title, options in KERNELS.items():
            kernel = GraphKernel.build(x[~held], **options)
            whole = GraphKernel.build(x, bandwidth=kernel.bandwidth, **options).features()
            right = whole[held] @ whole[~held].T
            own = kernel.features()
            for divisor in DIVISORS:
                graph_kernels._DAMPED = divisor
                new = kernel.features(x[held])
                size = (new**2).sum(axis=1)
                error = np.linalg.norm(new @ own.T - right) / np.linalg.norm(right)
                print(
                    f"| {name} | {title} | {divisor} | {np.median(size):.2f} | {size.max():.3g} | "
                    f"{(own**2).sum(axis=1).max():.2f} | {error:.3f} |"
                )


if __name__ == "__main__":
    main()
