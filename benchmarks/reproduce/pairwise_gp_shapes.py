"""Reproduce Lu (2008), section 4.7.1: classes that no Gaussian describes, learned from correct pairs.

Random disjoint pairs among 200 points; complete graph, each kind of kernel chosen by expected alignment;
variance 10. A mixture of two Gaussians (`ppc`) and COP-KMeans get the same pairs, which have a weight
of 30 in place of hard ones, so that all draws share one compiled program. The thesis draws curves and
prints no numbers; shapes go by its names, their measures are ours.

Run: python benchmarks/reproduce/pairwise_gp_shapes.py [--shapes spirals] [--pairs 10,20,40] [--seeds 10]
"""

import argparse
import time

import numpy as np
import pandas as pd
from pairwise_gp import classes
from sidebayes.diagnostics.trust.scores import accuracy

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

NUM_POINTS = 200
KINDS = {"heat": "diffusion", "walk": "random_walk", "step": "step"}


def at(radius, angle):
    """Points by polar coordinates."""
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def four_gaussians(rng):
    """Two groupings fit alike, left and right as well as above and below; pairs decide."""
    sign = rng.choice([-1, 1], (NUM_POINTS, 2))
    return 2 * sign + 0.6 * rng.normal(size=sign.shape), sign[:, 0]


def noisy_xor(rng):
    """Opposite quadrants are one class."""
    sign = rng.choice([-1, 1], (NUM_POINTS, 2))
    return 2 * sign + 0.9 * rng.normal(size=sign.shape), sign.prod(axis=1)


def doughnut(rng):
    """A disc within a ring."""
    outer, angle = rng.integers(2, size=NUM_POINTS), rng.uniform(0, 2 * np.pi, NUM_POINTS)
    inside, ring = np.sqrt(rng.uniform(size=NUM_POINTS)), 3 + 0.3 * rng.normal(size=NUM_POINTS)
    return at(np.where(outer, ring, inside), angle), outer


def spirals(rng):
    """Two arms wound into each other."""
    arm, turn = rng.integers(2, size=NUM_POINTS), rng.uniform(0, 3 * np.pi, NUM_POINTS)
    x = at(0.4 + 0.28 * turn, turn + np.pi * arm)
    return x + 0.12 * rng.normal(size=x.shape), arm


SHAPES = {f.__name__: f for f in (four_gaussians, noisy_xor, doughnut, spirals)}


def run(shape, num_pairs, seed):
    """Accuracy on all points by each method."""
    x, labels = SHAPES[shape](np.random.default_rng(seed))
    labels = np.unique(labels, return_inverse=True)[1]
    links = sb.simulate_links(labels, num_pairs, weight=30.0, disjoint=True, seed=seed)
    found = {}
    for title, kind in KINDS.items():
        kernel = sb.choose_graph_kernel(
            x, links, kinds=(kind,), num_neighbors=None, num_eigenpairs=NUM_POINTS
        )
        found[title] = accuracy(labels, classes(kernel, links, seed)[0])
    shared = {"num_clusters": 2, "seed": seed, "progress": False}
    found["ppc"] = accuracy(labels, sb.fit("ppc", x, links, **shared).labels())
    hard = links.hardened()
    found["COP-KMeans"] = accuracy(labels, sb.fit("constrained_kmeans", x, hard, **shared).labels())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--pairs", default="10,20,40")
    parser.add_argument("--seeds", type=int, default=10, help="draws of points and pairs")
    options = parser.parse_args()
    use_compilation_cache()
    for shape in options.shapes.split(","):
        for num_pairs in map(int, options.pairs.split(",")):
            began = time.perf_counter()
            table = pd.DataFrame([run(shape, num_pairs, seed) for seed in range(options.seeds)])
            print(
                f"{shape:<15}{num_pairs:4d} pairs   "
                + "  ".join(f"{name} {mean:.3f}" for name, mean in table.mean().items())
                + f"   {time.perf_counter() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
