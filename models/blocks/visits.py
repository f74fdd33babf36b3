"""Number of rows that a loop over pieces of the data visits at a time."""

from __future__ import annotations

import jax

__all__ = ["at_a_time"]

_TIMES = 64
"""Number of a processor's pieces that an accelerator takes at once: it does not benefit from a small
cache, and loses some microseconds with every step of a loop."""


def at_a_time(in_cache: int) -> int:
    """Number of rows per piece, given how many rows fit the cache of a processor.

    Parameters
    ----------
    in_cache : int

    Returns
    -------
    int
        The same number on a processor, 64 times as many on an accelerator.
    """
    return in_cache if jax.default_backend() == "cpu" else _TIMES * in_cache
