"""How far each fit lies from the reference of its posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sidebayes.common.magnitudes import listed

from ..fitted import Fitted, suits
from ..names import quoted
from ..sites import numbered_sites
from ..symmetry.distance import farthest
from ..symmetry.invariants import same_cluster
from ..trust.modes import same_question
from .reference import choose_reference, is_long_run, may_lead, starts_at_prior

__all__ = ["measure"]

_SHIFT, _ERRORS = 0.1, 3.0
"""Shift that matters, in posterior standard deviations, and Monte Carlo errors that it must exceed."""
_CLEAR = 0.25
"""Largest multiple of the Monte Carlo error at which a fit that does not differ is said to agree."""
_FEW = 20
"""Numbers of the parameters up to which particles from the prior are quick."""


def measure(fits: Mapping[str, Fitted]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Columns ``trust``, ``distance``, ``shift`` and ``shift_of`` of every fit, and notes.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    dict of dict
        By fit; see `sidebayes.diagnostics.comparison.compare.Comparison`.
    list of str
        Why samplers are no reference.
    """
    rows: dict[str, dict[str, Any]] = {
        name: {"trust": "no" if fit.verdict[0] == "bad" else ""} for name, fit in fits.items()
    }
    by_question: dict[tuple, dict[str, Fitted]] = {}
    for name, fit in fits.items():
        by_question.setdefault(same_question(fit), {})[name] = fit
    notes = _not_compared(fits)
    for peers in by_question.values():
        if len(peers) > 1 and any(map(may_lead, peers.values())):
            notes += _measure_peers(peers, rows, alone=len(by_question) == 1)
    return rows, notes


def _not_compared(fits: Mapping[str, Fitted]) -> list[str]:
    """A sentence about sites whose draws mean another thing in each fit."""
    names = dict.fromkeys(name for fit in fits.values() for name in numbered_sites(fit.tree))
    if len(fits) < 2 or not names:
        return []
    return [
        "Not compared, since they depend on the numbers of the clusters, which differ from fit to fit: "
        f"{listed([*names])}."
    ]


def _measure_peers(
    peers: Mapping[str, Fitted], rows: dict[str, dict[str, Any]], *, alone: bool
) -> list[str]:
    """Fill in the rows of fits of one posterior; what there is to say about its reference.

    Where these are not `alone`, beside fits of other posteriors, they are named.
    """
    best, few, misplaced = choose_reference(peers)
    notes = [*few.values(), *misplaced.values()]
    if best is None:
        for name, fit in peers.items():
            rows[name]["trust"] = rows[name]["trust"] or ("no reference" if _draws(fit) else "")
        return notes
    leader = peers[best]
    rows[best]["trust"] = "reference"
    for name, fit in peers.items():
        if name != best:
            _against(rows[name], fit, leader)
    others = [name for name in peers if name != best and name not in misplaced]
    rivals = [name for name in others if starts_at_prior(peers[name])]
    if starts_at_prior(leader) or is_long_run(leader):
        return notes
    if not rivals and _num_numbers(leader) <= _FEW:
        which = "here" if alone else f"of {' or '.join(map(quoted, peers))}"
        smc = "one by SMC, or where the prior is improper " * suits(leader.run, "smc")
        notes.append(
            f"No fit {which} started at draws of the prior, so that none shows whether all missed a mode: "
            f"add {smc}a second run from other values (init)."
        )
    unlike = [name for name in rivals if rows[name]["trust"] == "differs"]
    if unlike:
        rows[best]["trust"] = "differs"
        notes.append(
            f"{quoted(best)} started at a mode, {quoted(unlike[0])} at the prior, and they differ in "
            f"{rows[unlike[0]]['shift_of']}: one of them may have missed a mode; give {quoted(unlike[0])} "
            "more particles or live points."
        )
    return notes


def _num_numbers(fit: Fitted) -> int:
    """How many numbers a draw holds."""
    return sum(site[0, 0].size for site in fit.tree["posterior"].data_vars.values())


def _draws(fit: Fitted) -> bool:
    return fit.tree["posterior"].sizes["draw"] > 1


def _against(row: dict[str, Any], fit: Fitted, leader: Fitted) -> None:
    """Fill in the row of a fit that is measured against another."""
    labelled = fit.has_labels and leader.has_labels
    row["distance"] = _distance(fit, leader) if labelled else np.nan
    if not _draws(fit):
        return
    row["shift"], row["shift_of"] = farthest(fit.tree, leader.tree)
    if row["trust"] or np.isnan(row["shift"]):
        return
    noise = _ERRORS * np.sqrt(sum(1 / one.convergence["ess"] for one in (fit, leader)))
    if row["shift"] > max(_SHIFT, noise):
        row["trust"] = "differs"
    else:
        told = row["shift"] <= _SHIFT or noise <= _CLEAR
        row["trust"] = "agrees" if told else "too noisy to say"


def _distance(fit: Fitted, leader: Fitted) -> float:
    """Mean difference in the probability that two points share a cluster."""
    num_points = fit.tree["responsibilities"].sizes["points"]
    pairs = np.random.default_rng(0).integers(num_points, size=(2000, 2))
    gap = np.subtract(*(same_cluster(one.tree, pairs).mean(axis=(0, 1)) for one in (fit, leader)))
    return float(np.abs(gap).mean())
