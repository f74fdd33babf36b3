"""The library's own warning."""

from __future__ import annotations

__all__ = ["SideBayesWarning"]


class SideBayesWarning(UserWarning):
    """Something a user should know about data or a result."""
