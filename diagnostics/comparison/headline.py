"""One sentence over a comparison: which run to use, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ..fitted import Fitted
from ..trust.facts import BADGES
from ..trust.modes import same_question
from .reference import starts_at_prior

__all__ = ["headline"]

_SAID = {
    "agrees": ("agrees with it", "agree with it"),
    "differs": ("differs from it", "differ from it"),
    "lower mode": ("holds a lower mode", "hold a lower mode"),
}
"""What fits do that are measured against a reference, one of them or several."""


def headline(fits: Mapping[str, Fitted], frame: pd.DataFrame, scored: Sequence[str] = ()) -> str:
    """Which run to use, and why, in one sentence; of several models or data sets, a part for each.

    Parameters
    ----------
    fits : mapping of str to Fit
    frame : DataFrame
        Rows of the fits, with a column ``trust``.
    scored : sequence of str
        Fits whose leave-one-out scores can be compared.
    """
    questions: dict[tuple, list[str]] = {}
    for name, fit in fits.items():
        questions.setdefault(same_question(fit), []).append(name)
    parts = [_advice({name: fits[name] for name in names}, frame) for names in questions.values()]
    if len(parts) > 1 and len(scored) > 1:
        parts.append(_prediction(frame.loc[list(scored), "elpd_loo"]))
    text = "; ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}."


def _advice(fits: Mapping[str, Fitted], frame: pd.DataFrame) -> str:
    """Part of the sentence about fits of one posterior."""
    if len(fits) == 1:
        (name,) = fits
        return f"nothing here can be measured against {name}, by itself: {_badge(fits[name])}"
    by_trust: dict[str, list[str]] = {}
    for name in fits:
        by_trust.setdefault(str(frame.loc[name, "trust"]), []).append(name)
    for name in by_trust.get("reference", ()):
        found, fit = fits[name].convergence, fits[name]
        why = (
            f"use {name}, whose {fit.tree['posterior'].sizes['chain']} chains agree (R-hat "
            f"{found['rhat']:.3f}, {found['ess']:.0f} effective draws)"
        )
        why += " and started at the prior" if starts_at_prior(fit) else ""
        rest = [_do(by_trust[key], *text) for key, text in _SAID.items() if key in by_trust]
        return "; ".join([why, *rest])
    sampled = [*by_trust.get("differs", ()), *by_trust.get("no reference", ())]
    if sampled or "no" in by_trust:
        able = [name for name in by_trust.get("", ()) if fits[name].verdict[0] == "good"]
        drawn = [name for name in fits if name not in by_trust.get("", ())]
        point = f"; for a point estimate use {able[0]}" if able else ""
        return (
            f"trust no draws of {_list(drawn)} yet, since none deserves to be the reference{point}"
        )
    good = [name for name in by_trust.get("", ()) if fits[name].verdict[0] == "good"]
    low = by_trust.get("lower mode")
    lower = f", and {_do(low, *_SAID['lower mode'])}" if low else ""
    if good:
        return f"use {good[0]}, a mode whose search shows no fault{lower}"
    return f"trust none of {_list(fits)} yet: {_badge(next(iter(fits.values())))}{lower}"


def _do(names: list[str], one: str, several: str) -> str:
    """Names with what they do."""
    return f"{_list(names)} {several if len(names) > 1 else one}"


def _badge(fit: Fitted) -> str:
    return BADGES[fit.verdict[0]]


def _prediction(scores: pd.Series) -> str:
    """What leaving data out says of fits that are compared by it."""
    order = scores.sort_values(ascending=False)
    return (
        f"{order.index[0]} predicts best of {_list(list(scores.index))} (LOO elpd {order.iloc[0]:.1f}, "
        f"{order.iloc[0] - order.iloc[1]:.1f} above the next)"
    )


def _list(names: Sequence[str] | Mapping[str, Fitted]) -> str:
    """Names in a row, the last after "and"."""
    own = list(names)
    return own[0] if len(own) == 1 else f"{', '.join(own[:-1])} and {own[-1]}"
