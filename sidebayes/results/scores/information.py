"""The information criterion of a mode."""

from __future__ import annotations

import numpy as np

from sidebayes.guides.code_length import code_length
from sidebayes.guides.engines.problem.declared import individual_sites
from sidebayes.guides.engines.problem.units import refuse_powers

from ...runs.run import Run
from ..base.fit_base import FitBase
from .unit_names import num_observations
from .validation import refuse_sample, unit_terms

__all__ = ["bic", "refuse_no_likelihood"]


def bic(fit: FitBase) -> float:
    """See `Fit.bic`."""
    refuse_sample(fit, "BIC")
    terms = unit_terms(fit)
    if np.prod(terms.shape[:2]) > 1:
        raise ValueError(
            f"{fit.engine} gave draws, and BIC is of a mode; use fit.loo(), fit.log_evidence, or fit "
            "with 'em' or 'map'"
        )
    if fit.config.hard_labels:
        raise ValueError("K-means has no likelihood, so that it has no BIC; fit with 'em' or 'map'")
    latent = {name: value[0, 0] for name, value in fit.tree["posterior"].data_vars.items()}
    with fit.run.precision:
        refuse_no_likelihood(fit.run)
        values = {str(name): value.to_numpy() for name, value in latent.items()}
        number = max(num_observations(fit), 1)
        cost = code_length(fit.run.problem, values, number, fit.config.corners)
    return 2 * (cost - float(terms.sum()))


def refuse_no_likelihood(run: Run) -> None:
    """Refuse BIC of a model whose density, given its sites, is no likelihood; call it under `precision`."""
    refuse_powers(run.problem, "BIC")
    if sites := individual_sites(run.problem):
        raise ValueError(
            f"BIC is of a likelihood, and {run.method} integrates no likelihood over the {sites[0]} of "
            "individuals; use the log densities of groups that fit.group_log_likelihood integrates"
        )
