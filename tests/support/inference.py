"""Label inference as one program, for tests that hold it against enumeration."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.padding import Sizes

ROOM = Sizes(links=21, contracted=True)
"""Rows for as many links as seven points can have, so that graphs share their programs."""

LOOPY = ROOM._replace(nodes=7, edges=21, places=7, rows=39, left_out=True, buckets=7, chunks=400)
"""The same for any loops among them."""


class Inferred(NamedTuple):
    """All that is asked of linked labels."""

    log_partition: Any
    by_connected_set: Any
    responsibilities: Any
    pair_marginals: Any
    mode: Any


@jax.jit
def _inferred(unary, graph):
    return [getattr(partition, name)(unary, graph) for name in Inferred._fields]


def inferred(unary, graph):
    """Sums, marginals and mode, as arrays of NumPy."""
    return Inferred(*jax.device_get(_inferred(unary, graph)))
