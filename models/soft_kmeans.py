"""Soft-constrained K-means (pairwise penalties) as the small-variance limit of a linked mixture."""

from __future__ import annotations

from typing import Annotated

from jax.typing import ArrayLike

from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph
from .blocks.side_information.links import Links
from .constrained_kmeans import constrained_kmeans

__all__ = ["soft_kmeans"]


def soft_kmeans(
    x: Annotated[ArrayLike, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    scale: float = 1.0,
    inference: str | Inference = "exact",
) -> None:
    """The model of `constrained_kmeans` with finite link weights (Basu et al. 2004; Lu, eq. 3.8).

    A violated link of weight w costs ``w * scale ** 2`` in units of half the squared distance.
    """
    constrained_kmeans(x, links, num_clusters=num_clusters, scale=scale, inference=inference)
