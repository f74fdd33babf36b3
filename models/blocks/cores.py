"""Loopy components compiled: stages of buckets to be eliminated, and colours to approximate by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from .colouring import Colouring, colour
from .elimination import ComponentPlan, StagePlan

__all__ = ["Core", "Stage", "Top", "compile_core", "padded"]

ROUND_COST = 2048
"""Fixed cost of one block of buckets, in cells of their tables."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stage:
    """Blocks of buckets of one width, to be eliminated in order.

    Arrays have shape (blocks, buckets a block); `bag_edge` and `axis` one more axis of length
    `width`. `node` is a place in `LabelGraph.order`, `parent` the bucket of the same stage that a
    message goes to; its number of buckets for one that goes elsewhere. `inflow` holds for each
    earlier stage the buckets there whose messages come here, and the tables that they go to.
    """

    node: Any
    parent: Any
    bag_edge: Any
    axis: Any
    inflow: tuple[tuple[Any, Any], ...]
    width: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Top:
    """Last nodes of each component, which share a table: see `ComponentPlan`, and `Stage.inflow`."""

    node: Any
    edge: Any
    inflow: tuple[tuple[Any, Any], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Core:
    """Loopy components of equal width: stages of buckets, then the tops; see `ComponentPlan`.

    `num_buckets` counts nodes, those of the tops too, some spare. `colouring` may be missing where
    sums are exact; see `LabelGraph.suited`.
    """

    stages: tuple[Stage, ...]
    top: Any
    colouring: Colouring | None
    width: int | None = field(metadata={"static": True})
    num_buckets: int = field(metadata={"static": True})


def compile_core(plan: ComponentPlan, place: NDArray, num_edges: int, num_clusters: int) -> Core:
    """Number nodes by their places, cut stages into blocks, gather what leaves a stage."""
    colouring = colour(plan.edges, place[plan.node])
    size = len(plan.node)
    if plan.width is None:
        return Core((), None, colouring, None, size)
    slots = [_slots(stage.level, num_clusters ** (stage.width + 1)) for stage in plan.stages]
    top_node, top_edge = plan.top_node, plan.top_edge
    if plan.few:
        slots = [_spare(_slots(plan.stages[0].level, 0, least=8))]
        top_node, top_edge = _spare(top_node), _spare(top_edge)
        size = slots[0].size + top_node.size
    # where each bucket of a stage has come to lie; the tops lie as they are numbered
    lies = [_inverse(slot) for slot in slots] + [np.arange(len(plan.top_node))]
    inflow = [
        tuple(
            (lies[source][leaves].astype(np.int32), lies[to][stage.parent[leaves]].astype(np.int32))
            for source, stage in enumerate(plan.stages[:to])
            for leaves in [np.flatnonzero(stage.home == to)]
        )
        for to in range(len(plan.stages) + 1)
    ]
    if plan.few:  # what is spare goes behind the last table
        [(bucket, table)] = inflow[-1]
        spare = 0, slots[0].size - len(bucket)
        table = np.pad(table, spare, constant_values=len(top_node))
        inflow[-1] = ((np.pad(bucket, spare), table),)
    top = Top(
        node=place[top_node].astype(np.int32),
        edge=np.where(top_edge < 0, num_edges, top_edge).astype(np.int32),
        inflow=inflow[-1],
    )
    stages = tuple(
        _stage(stage, number, slots[number], lies[number], inflow[number], place, num_edges)
        for number, stage in enumerate(plan.stages)
    )
    return Core(stages, top, colouring, plan.width, size)


def _spare(rows: NDArray) -> NDArray:
    """Append rows of -1, so that few distinct numbers of rows occur."""
    more = padded(max(len(rows), 4), 2) - len(rows)
    return np.pad(rows, [(0, more)] + [(0, 0)] * (rows.ndim - 1), constant_values=-1)


def _slots(level: NDArray, cells: int, least: int = 1) -> NDArray:
    """Buckets level by level, in blocks of the size that costs least; -1 pads."""
    sizes = np.bincount(level)
    blocks = least * 2 ** np.arange(15)
    rounds = (-(-sizes[:, None] // blocks)).sum(axis=0)
    block = int(blocks[np.argmin(rounds * (float(cells) * blocks + ROUND_COST))])
    parts = np.split(np.argsort(level, kind="stable"), np.cumsum(sizes)[:-1])
    filled = [np.pad(part, (0, -len(part) % block), constant_values=-1) for part in parts]
    return np.concatenate(filled).reshape(-1, block)


def _inverse(slot: NDArray) -> NDArray:
    flat = slot.ravel()
    lies = np.empty(np.count_nonzero(flat >= 0), np.int64)
    lies[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
    return lies


def _stage(
    plan: StagePlan,
    number: int,
    slot: NDArray,
    lies: NDArray,
    inflow: tuple,
    place: NDArray,
    num_edges: int,
) -> Stage:
    def pick(values: NDArray, padding: int) -> NDArray:
        spare = np.full((1, *values.shape[1:]), padding)
        chosen = np.concatenate([values, spare])[slot]  # slot -1 is the last
        return np.where(chosen < 0, padding, chosen).astype(np.int32)

    stays = plan.home == number
    parent = np.full(len(stays), slot.size)
    parent[stays] = lies[plan.parent[stays]]
    return Stage(
        node=pick(place[plan.node], int(place[-1])),
        parent=pick(parent, slot.size),
        bag_edge=pick(plan.bag_edge, num_edges),
        axis=pick(plan.axis, -1),
        inflow=inflow,
        width=plan.width,
    )


def padded(count: int, sizes: int = 4) -> int:
    """Round up to one of two or four sizes an octave, so that few distinct shapes occur."""
    unit = 1 << max((count - 1).bit_length() - sizes.bit_length(), 0)
    return -(-count // unit) * unit
