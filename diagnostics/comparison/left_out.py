"""Leave-one-out scores of a comparison, and which of them can be compared."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..fitted import AskedFit
from ..names import between, in_a_row, listed, quoted
from ..sites import point_sites
from .scored import Scored, why_apart

__all__ = ["leave_one_out"]


def leave_one_out(
    fits: Mapping[str, AskedFit],
) -> tuple[dict[str, dict[str, float]], list[str], dict[str, NDArray[np.float64]]]:
    """Columns ``elpd_loo`` and ``bad_k`` of every fit.

    A score with a unit of high Pareto k is not to be used, and is NaN.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    dict of dict
        By fit.
    list of str
        Sentences: which scores are not to be used, and which cannot be compared.
    dict of str
        Scores by unit of the fits whose scores can be used, where all of these can be compared; else
        none.
    """
    rows: dict[str, dict[str, float]] = {}
    notes, unusable, failed, raised = [], [], [], []
    scored: dict[Scored, dict[str, NDArray[np.float64]]] = {}
    for name, fit in fits.items():
        rows[name] = {"elpd_loo": np.nan, "bad_k": np.nan}
        try:
            with warnings.catch_warnings():  # large Pareto k are counted instead
                warnings.simplefilter("ignore")
                found = fit.loo()
        except ValueError:
            continue
        wide = int((~(found.pareto_k <= found.good_k)).sum())  # NaN where weights have no tail
        rows[name]["bad_k"] = wide / found.n_data_points
        if wide:
            unusable.append(f"{quoted(name)} ({wide} of {found.n_data_points} units)")
            continue
        rows[name]["elpd_loo"] = float(found.elpd)
        if fit.verdict[0] == "bad":
            failed.append(quoted(name))
        if points := point_sites(fit.tree):
            raised.append(f"{quoted(name)} (by about {sum(points.values())}, for {listed(points)})")
        scored.setdefault(Scored.of(fit), {})[name] = np.asarray(found.elpd_i)
    if unusable:
        notes.append(
            f"Do not use the LOO elpd of {in_a_row(unusable)}, where Pareto k is too high; "
            ".loo(refit=True) fits again without each of these units, and .kfold() without a tenth of all "
            "at a time, unless parameters belong to single units."
        )
    if failed:
        notes.append(
            f"The LOO elpd of {in_a_row(failed)} is of a run that failed, and does not count whatever its "
            "Pareto k is."
        )
    if raised:
        notes.append(
            f"The LOO elpd of {in_a_row(raised)} is too high, by about one for each number that is held at a "
            "point fitted to all units; .kfold() leaves units out of these too."
        )
    if len(scored) > 1:
        groups = [
            f"{between([names])} ({len(next(iter(names.values())))} units)"
            for names in scored.values()
        ]
        why, remedy = why_apart(scored)
        notes.append(
            f"LOO elpd cannot be compared between {' and '.join(groups)}: they score other {why}; {remedy}."
        )
    return rows, notes, next(iter(scored.values())) if len(scored) == 1 else {}
