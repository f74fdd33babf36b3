"""Information criteria of a comparison, and which of them can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from ..fitted import AskedFit
from .left_out import what_is_scored
from .reference import is_untested

__all__ = ["information"]


def information(
    fits: Mapping[str, AskedFit],
) -> tuple[dict[str, float], list[str], dict[str, float]]:
    """Column ``bic`` of every fit, NaN where it has none.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    dict of str
        By fit.
    list of str
        A sentence where they cannot be compared, since they are of different data.
    dict of str
        Of fits that can be compared; none where data differ.
    """
    column = dict.fromkeys(fits, np.nan)
    by_data: dict[tuple, dict[str, float]] = {}
    for name, fit in fits.items():
        if fit.tree["posterior"].sizes["draw"] > 1 or is_untested(fit):
            continue
        with suppress(ValueError):  # there is no likelihood, or no model
            column[name] = fit.bic
            by_data.setdefault(what_is_scored(fit), {})[name] = column[name]
    if len(by_data) < 2:
        return column, [], next(iter(by_data.values()), {})
    groups = " and ".join(", ".join(names) for names in by_data.values())
    return (
        column,
        [f"BIC cannot be compared between {groups}: they are of other data or units."],
        {},
    )
