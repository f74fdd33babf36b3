"""Doubts about fits beside their own verdict, and the run to trust instead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..fitted import AskedFit, Fitted
from ..names import quoted
from ..sites import link_kind
from ..symmetry.invariants import same_cluster
from .findings import agreement, wrong_links
from .modes import same_data, same_question

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


def doubts(fits: Mapping[str, AskedFit]) -> dict[str, str]:
    """What speaks against a fit although, or because of how, its run ended.

    For every sampler run that has not converged: what keeps the chains apart, as the draws show it, and
    the run of the same model, data and links to trust instead; of those that converged, the one of
    largest ESS. For every fit with hard links: how many of these are probably wrong, and which fit without
    hard links agrees better with the known classes.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    dict of str
        Empty where nothing speaks against any of them.
    """
    said = [_unconverged(fits), _forced(fits)]
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


def _unconverged(fits: Mapping[str, Fitted]) -> dict[str, str]:
    """Return a sentence for every sampler run that has not converged."""
    sampled = {name: fit for name, fit in fits.items() if is_sampler(fit)}
    said = {}
    for name, fit in sampled.items():
        if converged(fit):
            continue
        question = same_question(fit)
        sound = [
            other
            for other, its in sampled.items()
            if converged(its) and same_question(its) == question
        ]
        best = max(sound, key=lambda other: fits[other].convergence["ess"], default=None)
        rhat, ess = (fit.convergence[key] for key in ("rhat", "ess"))
        advice = (
            f"trust {best} instead (R-hat {fits[best].convergence['rhat']:.3f}, "
            f"ESS {fits[best].convergence['ess']:.0f})"
            if best
            else "no other run of this model converged, so trust none before a longer one has"
        )
        why = _why(fit, fits[best] if best else None)
        said[name] = f"It has not converged (R-hat {rhat:.3f}, ESS {ess:.0f}): {why}; {advice}."
    return said


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
