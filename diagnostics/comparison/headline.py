"""One sentence over a comparison: which run to use, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..fitted import Fitted
from ..names import in_a_row, listed, quoted
from ..trust.facts import BADGES
from ..trust.modes import height, same_data, same_question
from .reference import is_untested, starts_at_prior
from .ties import SURE, not_told_by_bic, tied_in_bic

__all__ = ["headline"]

_SAID = {
    "agrees": ("agrees with it", "agree with it"),
    "differs": ("differs from it", "differ from it"),
    "lower mode": ("holds a lower mode", "hold a lower mode"),
}
"""What fits do that are measured against a reference, one of them or several."""

_SMALL_GAP = 4.0
"""Differences of elpd that are small, or below `SURE` standard errors, tell nothing: Sivula, Magnusson,
Matamoros and Vehtari (2020), arXiv:2008.10296."""


def headline(
    fits: Mapping[str, Fitted],
    frame: pd.DataFrame,
    scores: Mapping[str, NDArray[np.float64]],
    bics: Mapping[str, float],
) -> str:
    """Which run to use, and why, in one sentence; of several models or data sets, a part for each.

    A run whose own verdict is a caution is not recommended without it.

    Parameters
    ----------
    fits : mapping of str to Fit
    frame : DataFrame
        Rows of the fits, with a column ``trust``.
    scores : mapping of str to ndarray
        Leave-one-out scores by unit of the fits that can be compared by them.
    bics : mapping of str to float
        Bayesian information criteria of the modes that can be compared by them.
    """
    questions: dict[tuple, list[str]] = {}
    for name, fit in fits.items():
        questions.setdefault(same_question(fit), []).append(name)
    asked = questions.values()
    parts = [_advice({n: fits[n] for n in names}, frame) for names in asked if len(names) > 1]
    if len(questions) > 1 and len(scores) > 1:
        parts.append(_prediction(scores, fits))
    if len(bics) > 1 and len({same_question(fits[name]) for name in bics}) > 1:
        parts.append(_criterion(bics, fits))
    if alone := {names[0]: fits[names[0]] for names in asked if len(names) == 1}:
        parts.append(_alone(alone))
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _alone(fits: Mapping[str, Fitted]) -> str:
    """Part of the sentence about fits that are the only ones of their posteriors."""
    by_badge: dict[str, list[str]] = {}
    for name, fit in fits.items():
        by_badge.setdefault(BADGES[fit.verdict[0]], []).append(name)
    kept = _as_sample(fits)
    if len(fits) == 1:
        return (
            f"no other fit of the same model and data confirms {listed(fits)}"
            f"{kept and f', {kept}'}; its own verdict: {next(iter(by_badge))}"
        )
    said = ", ".join(f"{badge} ({listed(names)})" for badge, names in by_badge.items())
    num_data = len({same_data(fit) for fit in fits.values()})
    of = "data" if num_data == len(fits) else "models, options or links"
    of = of if num_data in (1, len(fits)) else f"data, {of}"
    why = kept or f"whose posteriors are of different {of}, and are not compared"
    return f"no fit confirms another among {listed(fits)}, {why}; their own verdicts: {said}"


def _as_sample(fits: Mapping[str, Fitted]) -> str:
    """Which fits keep some rows of a table on disk, so that no fit of all rows is known to be of the same."""
    names = [name for name, fit in fits.items() if fit.tree.attrs.get("sidebayes_sample_of")]
    is_one = "is" if len(names) == 1 else "are"
    return f"as {listed(names)} {is_one} described by a sample of the rows" if names else ""


def _advice(fits: Mapping[str, Fitted], frame: pd.DataFrame) -> str:
    """Part of the sentence about fits of one posterior."""
    by_trust: dict[str, list[str]] = {}
    for name in fits:
        by_trust.setdefault(str(frame.loc[name, "trust"]), []).append(name)
    for name in by_trust.get("reference", ()):
        found, fit = fits[name].convergence, fits[name]
        why = (
            f"use {quoted(name)}, whose {fit.tree['posterior'].sizes['chain']} chains agree (R-hat "
            f"{found['rhat']:.3f}, {found['ess']:.0f} effective draws)"
        )
        why += " and started at the prior" if starts_at_prior(fit) else ""
        rest = [_do(by_trust[key], *text) for key, text in _SAID.items() if key in by_trust]
        return "; ".join([why, *rest, *_doubt(name, fit)])
    sampled = [*by_trust.get("differs", ()), *by_trust.get("no reference", ())]
    if sampled or "no" in by_trust:
        able = [name for name in by_trust.get("", ()) if fits[name].verdict[0] == "good"]
        drawn = [name for name in fits if name not in by_trust.get("", ())]
        point = f"; for a point estimate use {quoted(able[0])}" if able else ""
        return (
            f"trust no draws of {listed(drawn)} yet, since none deserves to be the reference{point}"
        )
    good = [name for name in by_trust.get("", ()) if fits[name].verdict[0] == "good"]
    low = by_trust.get("lower mode")
    lower = f", and {_do(low, *_SAID['lower mode'])}" if low else ""
    if len(good) > 1 and any(height(fits[name]) is None for name in good):
        return f"nothing here ranks {listed(good)}, whose likelihoods were not computed{lower}"
    if good:
        return f"use {quoted(good[0])}, a mode whose search shows no fault{lower}"
    return (
        f"trust none of {listed(fits)} yet: {BADGES[next(iter(fits.values())).verdict[0]]}{lower}"
    )


def _doubt(name: str, fit: Fitted) -> list[str]:
    """The verdict on a fit where it is in doubt."""
    level, said = fit.verdict  # of a reference, which is not bad
    doubts = [] if level == "good" else [f"itself calls for caution: {said.rstrip('.')}"]
    doubts += ["was not tested against the model"] * is_untested(fit)
    return [f"but {quoted(name)} {' and '.join(doubts)}"] if doubts else []


def _do(names: list[str], one: str, several: str) -> str:
    """Names with what they do."""
    return f"{listed(names)} {several if len(names) > 1 else one}"


def _prediction(scores: Mapping[str, NDArray[np.float64]], fits: Mapping[str, Fitted]) -> str:
    """What leaving data out says of fits that are compared by it, and of a best one in doubt."""
    best = max(scores, key=lambda name: scores[name].sum())
    lags = {name: scores[best] - scores[name] for name in scores if name != best}
    lag = {name: (d.sum(), np.sqrt(len(d)) * d.std()) for name, d in lags.items()}
    tied = [n for n, (gap, error) in lag.items() if gap < max(_SMALL_GAP, SURE * error)]
    below = [name for name in lag if name not in tied]

    def above(names: Sequence[str]) -> str:
        return in_a_row(
            f"{lag[n][0]:.1f} ± {lag[n][1]:.1f} above that of {quoted(n)}" for n in names
        )

    if not tied:
        level = fits[best].verdict[0]
        doubt = "" if level == "good" else f", though its own verdict is “{BADGES[level]}”"
        return f"LOO prefers {quoted(best)}, whose elpd is {above(below)}{doubt}"
    rest = f", and {above(below)}" if below else ""
    said = f"LOO does not tell {listed([best, *tied])} apart"
    return f"{said}: the elpd of {quoted(best)} is {above(tied)}{rest}"


def _criterion(bics: Mapping[str, float], fits: Mapping[str, Fitted]) -> str:
    """What BIC says of modes of several models, and of a best one in doubt."""
    best = min(bics, key=bics.__getitem__)
    gaps = {
        n: bics[n] - bics[best] for n in bics if same_question(fits[n]) != same_question(fits[best])
    }
    if tied := tied_in_bic(gaps):
        return not_told_by_bic(best, tied)
    nearest = min(gaps, key=gaps.__getitem__)
    level = fits[best].verdict[0]
    doubt = "" if level == "good" else f", though its own verdict is “{BADGES[level]}”"
    return f"BIC prefers {quoted(best)}, by {gaps[nearest]:.1f} over {quoted(nearest)}{doubt}"
