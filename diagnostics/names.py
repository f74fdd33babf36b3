"""Names of fits in sentences."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["between", "in_a_row", "listed", "quoted"]


def quoted(name: str) -> str:
    """Return a name for use in a sentence, in quotation marks where it is no single word."""
    return f"“{name}”" if any(mark in name for mark in " ,;") else name


def in_a_row(parts: Iterable[str]) -> str:
    """Join parts of a sentence by commas, the last by "and"."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def listed(names: Iterable[str]) -> str:
    """Join names by commas, the last by "and"."""
    return in_a_row(map(quoted, names))


def between(groups: Iterable[Iterable[str]]) -> str:
    """Join groups of names; a group of several names is in brackets."""
    rows = [list(group) for group in groups]
    return in_a_row(f"({listed(row)})" if len(row) > 1 else listed(row) for row in rows)
