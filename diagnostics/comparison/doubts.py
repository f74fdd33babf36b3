"""Doubts about fits beside their own verdict, and the run to trust instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..fitted import AskedFit, Fitted
from ..names import quoted
from ..sites import link_kind
from ..symmetry.invariants import same_cluster
from ..trust.findings import agreement, wrong_links
from ..trust.modes import same_data, same_question
from .measure import measure

if TYPE_CHECKING:
    from .compare import Comparison

__all__ = ["converged", "doubts", "is_sampler"]

_RHAT, _ESS = 1.01, 400
_APART = 0.02
"""Mean difference in the probability that two points share a cluster above which chains that disagree
are said to be in different modes."""
_PAIRS = 2000
_LOWER = 0.01
"""Difference of adjusted Rand indices above which agreement with the known classes is lower."""


def converged(fit: Fitted) -> bool:
    """Whether R-hat is below 1.01 and ESS above 400 on label-invariant functionals.

    Parameters
    ----------
    fit : Fit
    """
    found = fit.convergence
    return fit.verdict[0] != "bad" and found["rhat"] < _RHAT and found["ess"] > _ESS


def doubts(fits: Mapping[str, AskedFit], comparison: Comparison | None = None) -> dict[str, str]:
    """What speaks against a fit although, or because of how, its run ended.

    For every sampler run that has not converged: what keeps the chains apart, as the draws show it, and
    the run of the same model, data and links to trust instead: the reference of a comparison, or else of
    those that converged the one of largest ESS. For every fit with hard links: how many of these are
    probably wrong, and which fit without hard links agrees better with the known classes.

    Parameters
    ----------
    fits : mapping of str to Fit
    comparison : Comparison, optional
        Of these fits, if there is one, which need then not be measured again.

    Returns
    -------
    dict of str
        Empty where nothing speaks against any of them.
    """
    said = [_unconverged(fits, comparison), _forced(fits)]
    return {
        name: " ".join(one[name] for one in said if name in one)
        for name in fits
        if any(name in one for one in said)
    }


def _forced(fits: Mapping[str, AskedFit]) -> dict[str, str]:
    """Return a sentence or two for every fit with hard links that all other information contradicts."""
    said = {}
    for name, fit in fits.items():
        if not fit.has_labels or "hard" not in link_kind(fit.tree):
            continue
        parts = []
        wrong = wrong_links(fit)
        hard = 0 if wrong is None else int(np.isinf(wrong["weight"]).sum())
        if hard:
            parts.append(
                f"{hard} of its hard links {'is' if hard == 1 else 'are'} probably wrong, and kept "
                "all the same: give links a weight, or learn how reliable they are."
            )
        better = _better(fits, name)
        if better is not None:
            parts.append(
                f"It agrees less with the known classes ({agreement(fit):.3f}) than {quoted(better)} "
                f"({agreement(fits[better]):.3f}), which has no hard links."
            )
        if parts:
            said[name] = " ".join(parts)
    return said


def _better(fits: Mapping[str, AskedFit], name: str) -> str | None:
    """Fit to the same data without hard links that agrees best with the known classes, if it is better."""
    own, data = agreement(fits[name]), same_data(fits[name])
    if own is None:
        return None
    rivals = {
        other: score
        for other, fit in fits.items()
        if "hard" not in link_kind(fit.tree)
        and same_data(fit) == data
        and (score := agreement(fit)) is not None
    }
    best = max(rivals, key=rivals.__getitem__, default=None)
    return best if best is not None and rivals[best] > own + _LOWER else None


def _unconverged(fits: Mapping[str, Fitted], comparison: Comparison | None) -> dict[str, str]:
    """Return a sentence for every sampler run that has not converged."""
    stuck = {name: fit for name, fit in fits.items() if is_sampler(fit) and not converged(fit)}
    leaders = _leaders(fits, comparison) if stuck else set()
    said = {}
    for name, fit in stuck.items():
        question = same_question(fit)
        others = {n: its for n, its in fits.items() if n != name and same_question(its) == question}
        leads = name in leaders
        best = None if leads else _best(others, leaders)
        rhat, ess = (fit.convergence[key] for key in ("rhat", "ess"))
        why = _why(fit, fits[best] if best else None)
        advice = _advice(others, best, leads=leads)
        short = (
            "is the best reference here, but short of convergence" if leads else "has not converged"
        )
        said[name] = f"It {short} (R-hat {rhat:.3f}, ESS {ess:.0f}): {why}; {advice}."
    return said


def _leaders(fits: Mapping[str, Fitted], comparison: Comparison | None) -> set[str]:
    """Names of the fits that a comparison takes as references."""
    if comparison is None:
        return {name for name, row in measure(fits)[0].items() if row["trust"] == "reference"}
    frame = comparison.frame
    return set(frame.index[frame["trust"] == "reference"]) if "trust" in frame else set()


def _best(others: Mapping[str, Fitted], leaders: Collection[str]) -> str | None:
    """The other run that a comparison takes as the reference, or the converged one of largest ESS."""
    lead = [name for name in others if name in leaders]
    sound = lead or [name for name, its in others.items() if is_sampler(its) and converged(its)]
    return max(sound, key=lambda name: others[name].convergence["ess"], default=None)


def _advice(others: Mapping[str, Fitted], best: str | None, *, leads: bool) -> str:
    """What to do about a run that has not converged, by the other runs of its model."""
    if best:
        found = others[best].convergence
        return f"trust {best} instead (R-hat {found['rhat']:.3f}, ESS {found['ess']:.0f})"
    if any(is_sampler(its) and converged(its) for its in others.values()):
        return "let it run longer"
    no_other = "no other sampler with several chains converged on this model"
    if leads or any(its.verdict[0] == "good" for its in others.values() if not is_sampler(its)):
        return f"{no_other}, so let one run longer"
    return f"{no_other}, so trust none before a longer one has"


def is_sampler(fit: Fitted) -> bool:
    """Return whether a fit has several chains that can be judged; variational draws are independent."""
    posterior = fit.tree["posterior"]
    return posterior.sizes["draw"] > 1 and posterior.sizes["chain"] > 1


def _why(fit: Fitted, trusted: Fitted | None) -> str:
    """Say what keeps chains apart: modes of the posterior, or slow moves in one mode."""
    if not fit.has_labels:
        return "its chains move slowly or stay apart, and made too few draws"
    number = fit.tree["responsibilities"].sizes["points"]
    pairs = np.random.default_rng(0).integers(number, size=(_PAIRS, 2))
    centres = same_cluster(fit.tree, pairs).mean(axis=1)
    far = np.abs(centres[:, None] - centres).mean(axis=2)
    if far.max() < _APART:
        return "its chains find the same clusters, but move slowly and made too few draws"
    one, two = np.unravel_index(far.argmax(), far.shape)
    density = fit.tree["sample_stats"]["lp"].to_numpy().mean(axis=1)
    text = (
        "the posterior has several modes, and a chain stays long in one; two chains differ by "
        f"{far.max():.0%} in which points share a cluster, at mean log joint densities of "
        f"{density[[one, two]].max():.1f} and {density[[one, two]].min():.1f}"
    )
    if trusted is None:
        return text
    order = [one, two] if density[one] >= density[two] else [two, one]
    share = _share(same_cluster(trusted.tree, pairs), centres[order])
    return (
        f"{text}; of the trusted draws {share:.0%} are like those of the first chain named and "
        f"{1 - share:.0%} like those of the second"
    )


def _share(draws: NDArray, centres: NDArray) -> float:
    """Return the share of draws (chain, draw, pair) that are closer to the first of two centres."""
    first, second = (np.abs(draws - centre).mean(axis=2) for centre in centres)
    return float((first < second).mean())
