"""The fit that others of the same posterior are measured against, if one deserves it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from sidebayes.guides.engines.modes import MISSED_MODE, REMEMBERED
from sidebayes.guides.engines.optimisers.elsewhere import log_volume

from sidebayes.common.warnings import SideBayesWarning

from ..fitted import Fitted
from ..names import quoted

__all__ = [
    "Reference",
    "choose_reference",
    "is_long_run",
    "is_untested",
    "log_mass",
    "may_lead",
    "starts_at_prior",
]

_ESS, _ESS_PER_CHAIN = 400, 100
"""Effective draws that a reference needs: in all, or of each of a few chains."""
_APART, _ERRORS = 10.0, 3.0
"""Nats by which a mode or an evidence must fall short, and standard errors that it must exceed."""
_DRAWS_PER_NUMBER = 10
"""Draws for each number of the parameters from which on their covariance is known."""
_OWN_DOUBTS = {
    MISSED_MODE: "no draw came near a mode that the search for a start found, whose share of the posterior "
    "is missing",
    REMEMBERED: "its particles remember where they began, and may all lack the same part of the posterior",
}
"""Beginnings of remarks of runs whose draws may lack a part of the posterior, and what these say."""


class Reference(NamedTuple):
    """The fit that others are measured against, and why samplers that ended well are not.

    Attributes
    ----------
    best : str or None
        None where no fit deserves it.
    few : dict of str
        A sentence for each sampler that is short of draws.
    misplaced : dict of str
        A sentence for each sampler whose draws or evidence hold less mass than another fit found.
    """

    best: str | None
    few: dict[str, str]
    misplaced: dict[str, str]


def choose_reference(fits: Mapping[str, Fitted]) -> Reference:
    """Fit that others are measured against, and why samplers that ended well are not.

    A reference is a sampler of several chains that moved, and whose run shows no fault. It has 400
    effective draws, or 100 per chain of a few chains; no lower bound of another fit exceeds its log
    evidence; it does not say itself that its draws may lack a part of the posterior; and they do not hold
    far less mass than those of another (`log_mass`). Of those that are left, a run of `sidebayes.reference`
    comes first, then fits before draws from elsewhere that were not tested against a density, then one whose
    verdict is good, then one that started at draws of the prior, then the one of lowest R-hat.

    Parameters
    ----------
    fits : mapping of str to Fit
        Of one posterior.
    """
    able = {n: fit for n, fit in fits.items() if may_lead(fit) and fit.verdict[0] != "bad"}
    misplaced = {n: text for n, fit in able.items() if (text := _misplaced(n, fit, fits))}
    rest = {n: fit for n, fit in able.items() if n not in misplaced}
    few = {n: text for n, fit in rest.items() if (text := _few_draws(n, fit))}
    left = [name for name in rest if name not in few]
    return Reference(min(left, key=lambda name: _rank(able[name]), default=None), few, misplaced)


def may_lead(fit: Fitted) -> bool:
    """Whether others can be measured against a fit: several chains that all moved."""
    return fit.tree["posterior"].sizes["draw"] > 1 and bool(np.isfinite(fit.convergence["rhat"]))


def starts_at_prior(fit: Fitted) -> bool:
    """Whether chains started at draws of the prior.

    Those whose own evidence has a standard error do, and runs of such an engine where the density has no
    evidence at all. A mere bound of the evidence says that particles may have lost where they started.
    """
    info = fit.tree["fit_info"].attrs
    own = "bridged" not in info and not np.isnan(info.get("log_evidence_error", np.nan))
    without = "log_evidence" not in info and fit.config.starts_at_prior
    return fit.tree["posterior"].sizes["chain"] > 1 and (own or without)


def is_long_run(fit: Fitted) -> bool:
    """Whether `sidebayes.reference` made a fit, and so found that starts at the prior agree with it."""
    return "reference" in fit.tree["fit_info"].attrs


def is_untested(fit: Fitted) -> bool:
    """Whether these are draws from elsewhere without their model."""
    return fit.run is None


def _rank(fit: Fitted) -> tuple[bool, bool, bool, bool, float]:
    first = not is_long_run(fit), is_untested(fit), fit.verdict[0] != "good"
    return *first, not starts_at_prior(fit), fit.convergence["rhat"]


def _few_draws(name: str, fit: Fitted) -> str:
    """How many effective draws a sampler has of those needed; empty where these are enough."""
    need = min(_ESS, _ESS_PER_CHAIN * fit.tree["posterior"].sizes["chain"])
    ess = fit.convergence["ess"]
    if ess >= need:
        return ""
    return f"{quoted(name)} is no reference: it has {ess:.0f} effective draws of the {need} needed."


def _misplaced(name: str, fit: Fitted, fits: Mapping[str, Fitted]) -> str:
    """How its own run or another fit shows that a sampler missed mass; empty where neither does."""
    remarks = json.loads(fit.tree["fit_info"].attrs.get("remarks", "[]"))
    for begins, said in _OWN_DOUBTS.items():
        if any(remark.startswith(begins) for remark in remarks):
            return f"{quoted(name)} is no reference: its own verdict is that {said}."
    others = {
        other: its
        for other, its in fits.items()
        if other != name and its.approximate == fit.approximate
    }
    value, error, kind = _evidence(fit)
    for other, its in others.items():
        bound, scatter, its_kind = _evidence(its)
        margin = 1 + _ERRORS * np.hypot(error, scatter)
        if kind == "estimate" and its_kind == "bound" and bound > value + margin:
            return (
                f"{quoted(name)} is no reference: its log evidence {value:.1f} is below {bound:.1f}, a lower "
                f"bound that {quoted(other)} found."
            )
    own, size = log_mass(fit)
    sound = {other: its for other, its in others.items() if its.verdict[0] != "bad"}
    found = {other: log_mass(its)[0] for other, its in sound.items()}
    best = max(
        (n for n, mass in found.items() if np.isfinite(mass)), key=found.__getitem__, default=None
    )
    if best is not None and found[best] - own > _APART + size / _DRAWS_PER_NUMBER:
        return (
            f"{quoted(name)} is no reference: it sits in a mode whose log mass is about "
            f"{found[best] - own:.0f} below that of the mode that {quoted(best)} found."
        )
    return ""


def _evidence(fit: Fitted) -> tuple[float, float, str]:
    """Log evidence, its standard error (zero where it has none), and what it is."""
    info = fit.tree["fit_info"].attrs
    error = float(info.get("log_evidence_error", np.nan))
    value = float(info.get("log_evidence", np.nan))
    return value, 0.0 if np.isnan(error) else error, str(info.get("log_evidence_kind", ""))


def log_mass(fit: Fitted) -> tuple[float, int]:
    r"""Log posterior mass, not normalised, of the region that draws of a fit cover.

    Where the draws :math:`\theta_s` are those of the posterior restricted to a region R,

    .. math:: \log \int_R p(x, \theta)\, d\theta = \mathrm{E} \log p(x, \theta) + \mathrm{H}(\theta)
              \le \mathrm{E} \log p(x, \theta) + \tfrac12 \log \det (2 \pi e\, \mathrm{Cov}\, \theta),

    with equality for a normal posterior. The right-hand side tells modes apart whose masses differ by many
    nats; a difference of log joint densities would not, since a narrow spike is high and holds little.
    Draws are cut off at their outermost hundredths.

    Parameters
    ----------
    fit : Fit

    Returns
    -------
    float
        NaN without draws, densities, or enough draws for the covariance.
    int
        Number of the parameters.
    """
    if "log_prior" not in fit.tree or "log_likelihood" not in fit.tree:
        return np.nan, 0
    with warnings.catch_warnings():  # the fit itself says that clusters do not match
        warnings.simplefilter("ignore", SideBayesWarning)
        tree = fit.relabelled[0]
    prior = tree["log_prior"].data_vars
    density = np.sum([site.to_numpy() for site in prior.values()], axis=0)
    for terms in tree["log_likelihood"].data_vars.values():
        density = density + terms.to_numpy().sum(axis=-1)
    keep = np.searchsorted(
        tree["posterior"]["draw"].to_numpy(), tree["log_likelihood"]["draw"].to_numpy()
    )
    latent = [tree["posterior"][str(name)].to_numpy()[:, keep] for name in prior]
    flat = np.concatenate([site.reshape(density.size, -1) for site in latent], axis=1)
    if density.size < _DRAWS_PER_NUMBER * flat.shape[1]:
        return np.nan, 0
    return float(np.mean(density)) + log_volume(flat), flat.shape[1]
