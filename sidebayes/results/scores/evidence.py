"""The log evidence of a fit by draws whose engine gives none."""

from __future__ import annotations

import json
from dataclasses import replace

from sidebayes.diagnostics.tree import evidence_attributes
from sidebayes.guides.engines.base import Evidence
from sidebayes.guides.engines.bridge import bridge_evidence
from sidebayes.guides.engines.modes import PART_MISSING

from ...common.fields import check_seed
from ...common.warnings import warn_user
from ..base.fit_base import FitBase
from .validation import refuse_sample

__all__ = ["with_evidence"]

_SURE = 2.0
"""Standard errors below an estimate that a lower bound lies."""


def with_evidence[F: FitBase](fit: F, *, seed: int = 0) -> F:
    r"""Estimate the log evidence, by bridge sampling between the draws and a normal density.

    Each half of the draws gives the mean and covariance of the normal density with which the other
    half is compared, in unconstrained coordinates. Clusters are brought to one numbering, and all
    K! numberings are counted; signs are treated in the same way. Regions that the draws never
    visited are not counted: if the chains stay in one mode, the result is the evidence of this
    mode. If the search for a start found a mode that no draw came near, the result is a lower
    bound, two standard errors below the estimate.

    Parameters
    ----------
    seed : int
        Seed of the draws of the normal density.

    Returns
    -------
    Fit
        This fit with `log_evidence`, an estimate with a standard error or a lower bound, which
        `compare` and `save` use as well.

    Raises
    ------
    ValueError
        If the fit has no draws of the posterior; if they are not to be trusted (see
        `Fit.from_draws` for draws made elsewhere); if the evidence does not exist (under an
        improper prior, a composite likelihood, or densities that `handlers.scale` raises to a
        power); or if the posterior has copies that cannot be counted.
    FitError
        If there are too few draws, or their distribution is too far from normal, to estimate the
        error.

    References
    ----------
    Meng and Wong (1996), Stat. Sin. 6, 831-860. Frühwirth-Schnatter (2004), Econom. J. 7, 143-167,
    doi:10.1111/j.1368-423X.2004.00125.x, for mixtures.

    Examples
    --------
    >>> import sidebayes
    >>> iris = sidebayes.load_dataset("iris")
    >>> fit = sidebayes.fit("gmm", iris.x, num_clusters=2, engine="gibbs")
    >>> fit.log_evidence is None
    True
    >>> evidence = fit.with_evidence().log_evidence
    >>> evidence.standard_error < 0.1
    True
    """
    check_seed(seed)
    refuse_sample(fit, "the evidence")
    config, sizes = fit.config, fit.tree["posterior"].sizes
    if config.gives_point or config.independent_draws or sizes["draw"] < 2:
        raise ValueError(
            f"{fit.engine} has no draws of the posterior itself, which a bridge needs; fit with 'nuts' or "
            "'gibbs', or use fit.log_evidence of 'laplace' or 'smc', if the method has them"
        )
    level, why = fit.verdict
    if level == "bad":
        raise ValueError(
            f"the draws are not to be trusted, and neither would be their evidence: {why}"
        )
    problem = fit.run.problem
    draws = {str(name): v.to_numpy() for name, v in fit.tree["posterior"].data_vars.items()}
    with fit.run.precision:
        found = bridge_evidence(problem, draws, seed)
    if level == "caution":
        warn_user(f"the evidence is of draws that call for caution: {why}")
    remarks = json.loads(fit.tree["fit_info"].attrs["remarks"])
    if any(remark.startswith(PART_MISSING) for remark in remarks):
        assert found.standard_error is not None  # it is sampled
        found = Evidence(found.value - _SURE * found.standard_error, "bound")
    tree = fit.tree.copy()
    tree["fit_info"].attrs = {
        **fit.tree["fit_info"].attrs,
        **evidence_attributes(found),
        "bridged": 1,
    }
    return replace(fit, tree=tree)
