r"""Log evidence from draws of a posterior, by bridge sampling (Meng and Wong 1996).

A normal density q with the mean and the covariance of one half of the draws is set against the other half.
With :math:`p(x, \theta) = Z p(\theta \mid x)` and the bridge
:math:`h = 1 / (s_1 p(x, \theta) / Z + s_2 q)`,

.. math:: Z = \frac{E_q[h\, p(x, \theta)]}{E_{\theta \mid x}[h\, q(\theta)]},

which is iterated to its fixed point. Both means are of bounded terms, whatever the tails are like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import expit, logsumexp

from .base import Evidence, FitError, Problem
from .parts import FROM_PRIOR, Part
from .problem.density import abstract_trace, latent_sites, refuse_unset
from .problem.importance import no_evidence

__all__ = ["bridge_evidence"]

_MOST_DRAWS = 8000
"""Maximum number of draws that are used."""
_STEPS = 1000
"""Maximum number of iterations towards the fixed point."""
_EFFECTIVE = 50.0
"""Minimum effective number of terms of either mean for its error to be known."""
_SHORTEST = 8
"""Minimum number of draws of a chain for either half of it to show their autocorrelation."""


def bridge_evidence(problem: Problem, draws: Mapping[str, NDArray], seed: int = 0) -> Evidence:
    """Estimate the log evidence of the modes that draws of the posterior visited.

    Where clusters may be renumbered, or signs may change, the draws are brought to one of these equivalent
    choices, and the estimate allows for the number of choices.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (chain, draw, ...)
        Values of the latent sites; other sites are ignored.
    seed : int
        Seed of the draws of the normal distribution.

    Raises
    ------
    ValueError
        If there is no evidence, as under an improper prior, the draws lack latent sites, or the posterior has
        equivalent copies that cannot be mapped to a single one.
    FitError
        If the error cannot be known, because draws or chains are too few or too short, or the draws are too
        far from a normal distribution.

    References
    ----------
    Meng and Wong (1996), Stat. Sin. 6, 831-860. Frühwirth-Schnatter (2004), Econom. J. 7, 143-167,
    doi:10.1111/j.1368-423X.2004.00125.x, for mixtures and the error. Overstall and Forster (2010), Comput.
    Stat. Data Anal. 54, 3269-3288, doi:10.1016/j.csda.2010.03.008, for using no draw twice.
    """
    if why := no_evidence(problem):
        raise ValueError(f"there is no evidence, as {why}; fit without it")
    trace = abstract_trace(problem)
    refuse_unset(trace, draws)
    names = list(latent_sites(trace))
    chains, number = draws[names[0]].shape[:2]
    if number < _SHORTEST:
        raise FitError(
            f"the draws are in chains of {number} each, too short to know how many of them are effective; a "
            f"bridge needs chains of {_SHORTEST} draws at least: run longer chains"
        )
    step = min(-(-chains * number // _MOST_DRAWS), number // _SHORTEST)
    part = Part.of(problem, {name: np.asarray(draws[name])[:, ::step] for name in names}, seed)
    half = part.places.shape[1] // 2
    ends = part.places[:, :half], part.places[:, half : 2 * half]
    rng = np.random.default_rng([seed, 11])
    (first, own), (second, others) = (_bridged(part, *pair, rng) for pair in (ends, ends[::-1]))
    # of either half, as if they had all of it in common, which autocorrelations of the draws may bring about
    error = math.sqrt(max((own + others) / 2, (first - second) ** 2 / 4))
    return Evidence((first + second) / 2 + part.log_copies, "estimate", error)


def _bridged(
    part: Part, fitted: NDArray, kept: NDArray, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the log evidence from the draws `kept`, and the variance of its error; see the module's text."""
    from arviz_stats.base import array_stats

    width = fitted.shape[-1]
    centre, root = _normal(fitted.reshape(-1, width))
    kept_rows = kept.reshape(-1, width)
    number = len(kept_rows)
    white = rng.normal(size=(number, width))

    def log_normal(white: NDArray) -> NDArray:
        size = np.log(np.diag(root)).sum() + width / 2 * math.log(2 * math.pi)
        return -np.square(white).sum(axis=1) / 2 - size

    own = solve_triangular(root, (kept_rows - centre).T, lower=True).T
    at_draws = part.density(kept_rows) - log_normal(own)
    at_normal = part.density(centre + white @ root.T) - log_normal(white)
    level = float(np.median(at_draws))
    for _ in range(_STEPS):  # there are equally many of both, so that s_1 = s_2
        before = level
        above = logsumexp(-np.logaddexp(0.0, level - at_normal))
        level = float(level + above - logsumexp(-np.logaddexp(0.0, at_draws - level)))
        if not abs(level - before) > 1e-10 * (1 + abs(level)):
            break
    ours = expit(level - at_draws).reshape(kept.shape[:2])  # h q, without a constant
    theirs = expit(at_normal - level)  # h p
    effective = float(array_stats.ess(ours, chain_axis=0, draw_axis=1))
    spread = [float(np.var(terms) / np.mean(terms) ** 2) for terms in (ours, theirs)]
    sizes = effective / (1 + spread[0]), number / (1 + spread[1])
    if not min(sizes) >= _EFFECTIVE:
        raise FitError(
            "the draws are too few, or their distribution too far from a normal one, for a bridge: its means "
            f"have {sizes[0]:.0f} and {sizes[1]:.0f} effective terms of {_EFFECTIVE:.0f} that are needed; "
            f"draw more, or {FROM_PRIOR}"
        )
    return level, spread[0] / effective + spread[1] / number


def _normal(rows: NDArray) -> tuple[NDArray, NDArray]:
    """Return the mean and the Cholesky factor of the covariance, which is shrunk where rows are few."""
    number, width = rows.shape
    scale = rows.std(axis=0)
    if not scale.all():
        raise FitError(
            "the draws do not vary in a coordinate, so that no normal density covers them; draw more"
        )
    share = width / (width + number)
    correlation = (1 - share) * np.corrcoef(rows / scale, rowvar=False).reshape(width, width)
    np.fill_diagonal(correlation, 1.0)
    return rows.mean(axis=0), scale[:, None] * np.linalg.cholesky(correlation)
