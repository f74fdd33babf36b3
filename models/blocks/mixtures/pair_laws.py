"""Laws of the labels of linked pairs, as options of `LinkedCategorical`."""

from __future__ import annotations

from typing import Any

from ..label_inference.approximate import Inference
from ..label_inference.label_graph import LabelGraph
from ..label_inference.partition import check_inference

__all__ = ["PAIR_LAWS", "pair_law_options"]

PAIR_LAWS: dict[str, dict[str, Any]] = {
    "shared": {"reading": "field", "weight_per": "chunklet"},
    "conditional": {"reading": "field", "weight_per": "point"},
    "joint": {"reading": "relation", "weight_per": "point"},
}
"""Each law of the labels of a linked pair, as options of `LinkedCategorical`."""


def pair_law_options(
    pair_law: str, graph: LabelGraph, num_clusters: int, inference: str | Inference
) -> dict[str, Any]:
    """Return an entry of `PAIR_LAWS`, after a check that its sums over labels are feasible.

    Raises
    ------
    ValueError
        If there is no such law, or if it needs an exact normaliser that would be approximated.
    """
    if pair_law not in PAIR_LAWS:
        raise ValueError(f"pair_law = {pair_law!r}; expected one of {tuple(PAIR_LAWS)}")
    approximation = check_inference(graph, num_clusters, inference)
    if approximation is not None and pair_law != "joint":
        raise ValueError(
            f"pair_law = {pair_law!r} needs the normaliser of the links exactly, and {approximation} "
            "is not exact; use pair_law='joint', or separate_pairs(links, num_points)"
        )
    return PAIR_LAWS[pair_law]
