"""Side information that flags name or simulate: links, and classes known for some units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sidebayes

from ..common.warnings import warn_user

__all__ = ["check_link_flags", "read_links", "reveal"]


def check_link_flags(
    links: Path | None, num_links: int | None, flip_rate: float | None, weight: float | None
) -> None:
    """Refuse flags that would do nothing."""
    if links is not None and num_links is not None:
        raise ValueError("both --links and --num-links are given; choose one")
    for flag, value in (("--flip-rate", flip_rate), ("--weight", weight)):
        if value is not None and num_links is None:
            raise ValueError(
                f"{flag} {value} is of simulated links; give --num-links too, or leave it out (a "
                "file of links has weights of its own)"
            )
    if links is not None and not links.is_file():
        raise ValueError(f"there is no file {links}; check --links")


def read_links(
    links: Path | None,
    num_links: int | None,
    flip_rate: float | None,
    weight: float | None,
    *,
    kind: str,
    classes: NDArray | None,
    num_units: int,
    seed: int,
) -> Any:
    """Links of a file, or simulated from classes; hard ones for a card that takes no others."""
    if links is not None:
        read = sidebayes.Links.read(links, num_units)
        if not len(read):
            warn_user(f"--links {links} holds no links, so that the fit has none")
        return read
    if classes is None or num_links is None:
        raise ValueError(
            "there are no known classes to simulate links from; name their column by --label, or pass "
            "--links FILE"
        )
    flip_rate = flip_rate or 0.0
    matching = abs(float(sidebayes.flip_rate_weight(flip_rate))) if flip_rate else np.inf
    found = sidebayes.simulate_links(
        classes,
        num_links,
        flip_rate=flip_rate,
        weight=matching if weight is None else weight,
        seed=seed,
    )
    return found.hardened() if kind == "hard" and weight is None else found


def reveal(classes: NDArray | None, number: int, seed: int) -> NDArray[np.int64]:
    """Classes of so many units, drawn at random; -1 for all others."""
    if classes is None:
        raise ValueError(
            f"--num-known {number}: there are no classes to reveal; name their column by --label, or "
            "a column of classes known for some rows by --known"
        )
    rows = np.flatnonzero(classes >= 0)
    if not 1 <= number <= len(rows):
        raise ValueError(
            f"--num-known {number}: {len(rows)} classes are known; give 1 to {len(rows)}"
        )
    chosen = np.random.default_rng(seed).choice(rows, number, replace=False)
    found = np.full(len(classes), -1)
    found[chosen] = classes[chosen]
    return found
