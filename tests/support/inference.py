"""Label inference as one program, for tests that hold it against enumeration."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from sidebayes.models.blocks.label_inference import partition


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
