"""The card `trajectories` with given scales, on subjects along two curves, or on rows of their own."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
from sidebayes.guides.engines.base import Problem
from sidebayes.models.blocks.kernels.curve_setting import curve_anchors
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.trajectories import trajectories

import sidebayes as sb

SCALES = {"length_scale": 3.0, "amplitude": 1.0, "noise": 0.2}
TIGHT = sb.CoordinateAscent(num_restarts=2, tol=1e-13, max_steps=400, num_draws=20)


def simulate(num_subjects=8, num_rows=5, seed=1):
    """Subjects on one of two curves, with links between some of them."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(num_subjects), num_rows)
    label = np.arange(num_subjects) % 2
    t = rng.uniform(0, 10, len(subject))
    y = np.where(label[subject] == 0, np.sin(t / 2), 1 - t / 5) + 0.2 * rng.normal(size=len(t))
    pairs = [(0, 2), (1, 3), (4, 5)]
    links = sb.Links.from_pairs(pairs, [True, True, False], 2.0, num_subjects)
    return y, t, subject, links, label


Y, T, SUBJECT, LINKS, LABEL = simulate()


def fit(*given, engine=TIGHT, num_clusters=3, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        return sb.fit(
            "trajectories", *given, num_clusters=num_clusters, engine=engine, progress=False,
            **(SCALES | options),
        )  # fmt: skip


def curves_problem(y, inputs, links, **options):
    """The card on rows of their own, with its anchors."""
    options = {"num_clusters": 20} | options
    anchors = curve_anchors({"inputs": inputs}, options)
    graph = LabelGraph.build(links, len(y)).suited("exact", options["num_clusters"])
    args = jnp.asarray(y), jnp.asarray(inputs), graph, jnp.asarray(anchors)

    def model(y, inputs, graph, anchors, **options):
        trajectories(y, inputs, None, graph, anchors, **options)

    return Problem(model, args, options)
