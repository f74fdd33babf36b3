"""Information criteria and evidence of a comparison, and which of them can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from ..fitted import AskedFit
from ..names import between
from .reference import is_untested
from .scored import Scored, why_apart

__all__ = ["evidence_apart", "information"]


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
    by_data: dict[Scored, dict[str, float]] = {}
    for name, fit in fits.items():
        if fit.tree["posterior"].sizes["draw"] > 1 or is_untested(fit):
            continue
        with suppress(ValueError):  # there is no likelihood, or no model
            column[name] = fit.bic
            by_data.setdefault(Scored.of(fit), {})[name] = column[name]
    said = _apart("BIC", by_data, "data or units", drawn=False)
    return column, said, {} if said else next(iter(by_data.values()), {})


def evidence_apart(fits: Mapping[str, AskedFit]) -> list[str]:
    """A sentence where log evidence cannot be compared, since it is of different data.

    Parameters
    ----------
    fits : mapping of str to Fit
    """
    by_data: dict[Scored, list[str]] = {}
    for name, fit in fits.items():
        value = fit.tree["fit_info"].attrs.get("log_evidence", np.nan)
        if np.isfinite(value) and not is_untested(fit):
            of = Scored.of(fit)._replace(units=())  # into which it is not divided
            if not any(kind.startswith("links") for kind, _ in of.beside):
                of = of._replace(links=())  # on which a density is conditional
            by_data.setdefault(of, []).append(name)
    return _apart("Log evidence", by_data, "data")


def _apart(
    score: str, fits: Mapping[Scored, Iterable[str]], otherwise: str, *, drawn: bool = True
) -> list[str]:
    """A sentence where a score is of different data, by what it is of; `drawn` as in `why_apart`."""
    if len(fits) < 2:
        return []
    why, remedy = why_apart(fits, drawn=drawn)
    if why == "units":
        why = "units, which links tie together"
    of = otherwise if why == "data" else f"{why}; {remedy}"
    return [f"{score} cannot be compared between {between(fits.values())}: they are of other {of}."]
