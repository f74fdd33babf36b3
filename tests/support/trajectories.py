"""The card `trajectories` on rows of their own, as tests of its bounds set it up."""

from __future__ import annotations

import jax.numpy as jnp
from sidebayes.guides.engines.base import Problem
from sidebayes.models.blocks.kernels.curve_setting import curve_anchors
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.trajectories import trajectories


def curves_problem(y, inputs, links, **options):
    """The card on rows of their own, with its anchors."""
    options = {"num_clusters": 20} | options
    anchors = curve_anchors({"inputs": inputs}, options)
    graph = LabelGraph.build(links, len(y)).suited("exact", options["num_clusters"])
    args = jnp.asarray(y), jnp.asarray(inputs), graph, jnp.asarray(anchors)

    def model(y, inputs, graph, anchors, **options):
        trajectories(y, inputs, None, graph, anchors, **options)

    return Problem(model, args, options)
