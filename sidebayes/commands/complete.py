"""Completion of words in a shell; nothing here imports JAX."""

from __future__ import annotations

from glob import glob
from typing import Any

from sidebayes.data.datasets import ENDINGS, names
from sidebayes.runs.cards import CARDS
from sidebayes.runs.zoo import ENGINES

__all__ = ["data_sets", "engines", "methods"]


def methods(incomplete: str) -> list[str]:
    """Names of cards."""
    return [name for name in CARDS if name.startswith(incomplete)]


def engines(ctx: Any, incomplete: str) -> list[str]:
    """Names of engines that suit the card, if one is named."""
    card = CARDS.get(ctx.params.get("method") or "")
    known = sorted(ENGINES) if card is None else card.engines
    return [name for name in known if name.startswith(incomplete)]


def data_sets(incomplete: str) -> list[str]:
    """Names of data sets, and tables and folders here."""
    try:
        known = [name for name in names() if name.startswith(incomplete)]
    except ValueError:  # the folder of data sets is missing
        known = []
    files = [path for ending in ENDINGS for path in glob(f"{incomplete}*{ending}")]
    return known + files + glob(f"{incomplete}*/")
