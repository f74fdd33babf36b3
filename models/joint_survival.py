"""A measure over time and a censored time to an event that share random effects of subjects."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.effects.densities.conditional import sample_effects
from .blocks.effects.densities.marginal import by_row
from .blocks.effects.densities.timed import TimedEffects
from .blocks.effects.parameters import mixed_parameters
from .blocks.effects.priors import EffectsPrior
from .blocks.event_times import HazardPrior, PiecewiseHazard, check_times
from .blocks.hazard_parameters import HazardParameters, warn_of_late_rows
from .blocks.roles import Checked, Held
from .blocks.side_information.groups import Groups, as_groups

__all__ = ["joint_survival"]

_FORMS = ("marginal", "non_centred")


def joint_survival(
    y: Annotated[ArrayLike | None, "rows"],
    fixed: Annotated[ArrayLike, "rows terms"],
    random: Annotated[ArrayLike, "rows effects"],
    subjects: Annotated[Groups, "rows"],
    time: Annotated[ArrayLike | None, "subjects", Checked(warn_of_late_rows, with_columns=True)],
    event: Annotated[ArrayLike | None, "subjects"] = None,
    covariates: Annotated[ArrayLike | None, "subjects covariates"] = None,
    outputs: Annotated[ArrayLike | None, "rows outputs"] = None,
    *,
    prior: Annotated[EffectsPrior, Held()],
    hazard: Annotated[HazardPrior, Held()],
    form: str = "marginal",
    covariance: str | tuple[int, ...] = "full",
) -> None:
    r"""Joint model of repeated measures and survival (Wulfsohn and Tsiatis 1997; Lu 2008, chapter 11).

    .. math:: y_r = x_r^\top \beta + z_r^\top b_{s(r)} + \epsilon_r, \quad b_s \sim N(0, D), \quad
              \epsilon_r \sim N(0, \sigma_{o(r)}^2), \qquad
              h_s(t) = \lambda_{j(t)} \exp((w_s - w_0)^\top \gamma + b_s^\top \alpha)

    The first part is `mixed_effects`. In the second, the hazard h of the event depends on the random
    effects of the same subject, such as the level and the slope at which its measure differs from
    what the fixed effects predict. Lu names right-censored times to a diagnosis as future work.

    Parameters
    ----------
    y : array_like, shape (num_rows,), or None
        None simulates.
    fixed : array_like, shape (num_rows, num_terms)
    random : array_like, shape (num_rows, num_effects)
    subjects : Groups
    time : array_like, shape (num_subjects,), or None
        Time to the event or to the end of observation, positive, from an origin that all subjects
        share, in the order of the subjects' names, ``sidebayes.Groups(subjects).names``. Subjects enter
        at the origin: there is no correction for delayed entry. None simulates.
    event : array_like, shape (num_subjects,), optional
        1 where the event was seen, 0 where the time is censored. By default all events were seen.
    covariates : array_like, shape (num_subjects, num_covariates), optional
        Columns w without an intercept, which the baseline hazard has. Its sites, ``level`` and
        ``log_hazards``, are those at the covariates :math:`w_0` of ``hazard.origin``.
    outputs : array_like, shape (num_rows, num_outputs), optional
        Indicators of the output that each row measures, as for `mixed_effects`.
    prior : EffectsPrior
    hazard : HazardPrior
    form : {"marginal", "non_centred"}
        The random effects are integrated out, see `TimedEffects`, or they are sites, divided by the
        factor of D.
    covariance : {"full", "diagonal"} or tuple of int
        As for `mixed_effects`.

    References
    ----------
    Wulfsohn and Tsiatis (1997), Biometrics 53, 330-339, doi:10.2307/2533118. Lu (2008), section 11.2.
    """
    if form not in _FORMS:
        raise ValueError(f"form = {form!r}; expected one of {_FORMS}")
    check_times(time, event)
    fixed, random, subjects = jnp.asarray(fixed), jnp.asarray(random), as_groups(subjects)
    outputs = None if outputs is None else jnp.asarray(outputs)
    parameters = mixed_parameters(
        y, fixed, random, outputs, covariance=covariance, prior=prior, subjects=subjects
    )
    coefficients = parameters.coefficients()
    scale_tril, noise = parameters.scale_tril(), parameters.noise()
    hazards = HazardParameters(hazard, covariates, parameters.random_map)
    log_hazards, association = hazards.log_hazards(), hazards.association()
    log_ratio = hazards.log_ratio(subjects.num_groups)

    if form == "marginal":
        at_zero = PiecewiseHazard(log_hazards, hazard.cuts, log_ratio, event)
        fn = TimedEffects(
            fixed,
            coefficients,
            random,
            subjects,
            scale_tril=scale_tril,
            noise=noise,
            outputs=outputs,
            hazard=at_zero,
            association=association,
            time=time,
        )
        times = fn.times(numpyro.sample("y", fn, obs=y))
    else:
        effects = sample_effects(subjects.num_groups, scale_tril, centred=False)
        mean = fixed @ coefficients + (random * effects[jnp.asarray(subjects.codes)]).sum(axis=1)
        with numpyro.plate("rows", len(fixed)):
            numpyro.sample("y", dist.Normal(mean, by_row(noise, outputs)), obs=y)
        times = PiecewiseHazard(log_hazards, hazard.cuts, log_ratio + effects @ association, event)
    with numpyro.plate("subjects", subjects.num_groups):
        numpyro.sample("time", times, obs=time)
