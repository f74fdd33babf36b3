"""Sizes of arrays, rounded up so that few distinct shapes occur and compiled code is shared."""

from __future__ import annotations

__all__ = ["FEW_NODES", "link_rows", "padded"]

FEW_NODES = 4096
"""Nodes up to which arrays are padded to what the numbers of points and links alone admit."""


def padded(count: int, sizes: int = 4) -> int:
    """Round up to one of two or four sizes an octave, so that few distinct shapes occur."""
    unit = 1 << max((count - 1).bit_length() - sizes.bit_length(), 0)
    return -(-count // unit) * unit


def link_rows(num_links: int) -> int:
    """Rows for links, spare ones included: 64, 128, 256, ..., so that a few links more change nothing."""
    if not num_links or num_links > FEW_NODES:
        return num_links
    return max(64, 1 << (num_links - 1).bit_length())
