"""How the time of a step grows with points, features, clusters, links and subjects.

Run: python benchmarks/growth.py
Each line has the least processor time of one step at four sizes, and the exponent of its growth between the
largest two and over all of them. An exponent is to be at most 1.05; for features of full covariances at most
2.05, since these have the products of every two features.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import numpy as np
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.surrogate import expectation
from sidebayes.guides.engines.steps.updates import closed_forms, maximised, plan_updates
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.gmm import gmm
from sidebayes.models.mixed_effects import mixed_effects
from sidebayes.models.ppc import ppc

POINTS, FEATURES, CLUSTERS, LINKS = 100_000, 8, 5, 30_000
LIMIT, SQUARE = 1.05, 2.05


def seconds(function: Callable, *args) -> float:
    """Least processor time of a compiled call."""
    compiled = jax.jit(function).lower(*args).compile()
    args = jax.device_put(args)
    jax.block_until_ready(compiled(*args))
    taken = []
    for _ in range(7):
        start = time.process_time()
        jax.block_until_ready(compiled(*args))
        taken.append(time.process_time() - start)
    return min(taken)


def mixture(
    points: int = POINTS,
    features: int = FEATURES,
    clusters: int = CLUSTERS,
    links: int = 0,
    covariance: str = "full",
) -> tuple[Problem, dict]:
    """A mixture of Gaussians, and values of its parameters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(points, features))
    params = {"weights": np.full(clusters, 1 / clusters), "mean": x[:clusters]}
    if covariance == "full":
        params["covariance"] = np.stack([np.eye(features)] * clusters)
    else:
        params["variance"] = np.ones((clusters, features))
    options = {"num_clusters": clusters, "covariance": covariance}
    if not links:
        return Problem(gmm, (x,), options), params
    pairs = rng.integers(0, points, (links, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    graph = LabelGraph.build(Links(pairs, rng.normal(size=len(pairs)), points), points, clusters)
    return Problem(ppc, (x, graph), options | {"reading": "relation"}), params


def em_step(**sizes) -> float:
    """E-step and M-step."""
    problem, params = mixture(**sizes)
    plan = plan_updates(problem)

    def step(params, args):
        value, posterior = expectation(problem, params, args, plan.one_pass)
        return value, closed_forms(problem, plan, params, args, posterior, maximised)

    return seconds(step, params, problem.args)


def gradient(problem: Problem, params: dict) -> float:
    """Log joint density and its slope."""
    slope = jax.value_and_grad(lambda params, args: log_joint(problem, params, args))
    return seconds(slope, params, problem.args)


def gradient_of_mixture(**sizes) -> float:
    """Of a mixture without links."""
    return gradient(*mixture(**sizes))


def gradient_of_effects(subjects: int) -> float:
    """Growth curves of eight rows for each subject, random effects integrated out."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(subjects), 8)
    x = np.column_stack([np.ones(len(owner)), rng.uniform(0, 8, len(owner))])
    y = x @ [10.0, 0.5] + rng.normal(size=len(x))
    problem = Problem(mixed_effects, (y, x, x, Groups(owner)), {"form": "marginal"})
    start = initial_values(problem, 0, 1)
    return gradient(problem, {name: value[0] for name, value in start.items()})


def em_step_with_links(points: int) -> float:
    """Three links for ten points."""
    return em_step(points=points, links=3 * points // 10)


def em_step_of_many(links: int) -> float:
    """More links, and as many points."""
    return em_step(points=400_000, links=links)


MANY = (50_000, 100_000, 200_000, 400_000)
ROWS: dict[str, tuple[Callable[..., float], str, tuple[int, ...], float]] = {
    "EM, points": (em_step, "points", MANY, LIMIT),
    "EM, features": (em_step, "features", (4, 8, 16, 24), SQUARE),
    "EM, clusters": (em_step, "clusters", (4, 8, 16, 32), LIMIT),
    "EM, points with .3 links each": (em_step_with_links, "points", MANY, LIMIT),
    "EM of 400,000 points, links": (
        em_step_of_many,
        "links",
        (15_000, 30_000, 60_000, 120_000),
        LIMIT,
    ),
    "gradient, points": (gradient_of_mixture, "points", MANY, LIMIT),
    "gradient, clusters": (gradient_of_mixture, "clusters", (4, 8, 16, 32), LIMIT),
    "gradient, subjects": (
        gradient_of_effects,
        "subjects",
        (5_000, 10_000, 20_000, 40_000),
        LIMIT,
    ),
}


def report(
    name: str, sizes: tuple[int, ...], taken: list[float], limit: float
) -> dict[str, float | list[float]]:
    """Print times, and the exponents of their growth; returns them."""
    log_size, log_time = np.log(sizes), np.log(taken)
    last = (log_time[-1] - log_time[-2]) / (log_size[-1] - log_size[-2])
    overall = np.polyfit(log_size, log_time, 1)[0]
    times = ", ".join(f"{1000 * one:.1f}" for one in taken)
    print(
        f"{name} {sizes}: {times} ms; exponent {overall:.2f}, at last {last:.2f} (aim {limit})",
        flush=True,
    )
    return {"exponent": overall, "at last": last, "sizes": list(sizes), "seconds": taken}


def measured(name: str) -> dict[str, float | list[float]]:
    """Figures of one row."""
    function, axis, sizes, limit = ROWS[name]
    with jax.enable_x64(True):
        return report(name, sizes, [function(**{axis: size}) for size in sizes], limit)


if __name__ == "__main__":
    for name in ROWS:
        measured(name)
