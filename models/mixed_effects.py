"""Linear mixed effects: regression whose coefficients differ between subjects."""

from __future__ import annotations

from typing import Annotated, Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.effects.densities.conditional import sample_effects
from .blocks.effects.densities.marginal import MixedEffects, by_row
from .blocks.effects.densities.restricted import RestrictedEffects
from .blocks.effects.parameters import mixed_parameters
from .blocks.effects.priors import EffectsPrior
from .blocks.roles import Held
from .blocks.side_information.groups import Groups, as_groups

__all__ = ["mixed_effects"]

_FORMS = ("restricted", "marginal", "non_centred", "centred")


def mixed_effects(
    y: Annotated[ArrayLike | None, "rows"],
    fixed: Annotated[ArrayLike, "rows terms"],
    random: Annotated[ArrayLike, "rows effects"],
    subjects: Annotated[Groups, "rows"],
    outputs: Annotated[ArrayLike | None, "rows outputs"] = None,
    *,
    form: str = "restricted",
    covariance: str | tuple[int, ...] = "full",
    prior: Annotated[str | EffectsPrior, Held()] = "flat",
) -> None:
    r"""Linear mixed effects (Laird and Ware 1982; Lu 2008, chapter 7).

    .. math:: y_r = x_r^\top \beta + z_r^\top b_{s(r)} + \epsilon_r, \quad b_s \sim N(0, D), \quad
              D = T T^\top, \quad \epsilon_r \sim N(0, \sigma_{o(r)}^2)

    for row r of subject s(r), which measures output o(r). Subjects may have any number of rows, at
    times of their own. `sidebayes.design` makes the data from a table and a formula.

    Parameters
    ----------
    y : array_like, shape (num_rows,), or None
        None simulates; `prior` must then be an EffectsPrior.
    fixed : array_like, shape (num_rows, num_terms)
        Columns x of the fixed effects.
    random : array_like, shape (num_rows, num_effects)
        Columns z of the random effects.
    subjects : Groups
    outputs : array_like, shape (num_rows, num_outputs), optional
        Indicators of the output that each row measures, each with a noise of its own. Columns of
        fixed and random effects that are zero outside an output belong to it alone.
    form : {"restricted", "marginal", "non_centred", "centred"}
        What is integrated out in closed form: fixed and random effects, random effects only, or
        nothing. With a flat prior the mode of the first is REML, that of the second is ML; in the
        others the effects are sites, themselves or divided by T.
    covariance : {"full", "diagonal"} or tuple of int
        All random effects are correlated, none are, or those in blocks of these sizes.
    prior : {"flat"} or EffectsPrior

    References
    ----------
    Laird and Ware (1982), Biometrics 38, 963-974, doi:10.2307/2529876. Lu (2008), eqs. 7.1-7.3.
    """
    if not isinstance(form, str) or form not in _FORMS:
        raise ValueError(f"form = {form!r}; expected one of {_FORMS}")
    fixed, random, subjects = jnp.asarray(fixed), jnp.asarray(random), as_groups(subjects)
    outputs = None if outputs is None else jnp.asarray(outputs)
    parameters = mixed_parameters(
        y, fixed, random, outputs, covariance=covariance, prior=prior, subjects=subjects
    )
    scale_tril, noise = parameters.scale_tril(), parameters.noise()
    given: dict[str, Any] = {"scale_tril": scale_tril, "noise": noise, "outputs": outputs}
    if form == "restricted":
        fn = RestrictedEffects(fixed, random, subjects, prior=parameters.normal, **given)
        numpyro.sample("y", fn, obs=y)
        return
    coefficients = parameters.coefficients()
    if form == "marginal":
        numpyro.sample("y", MixedEffects(fixed, coefficients, random, subjects, **given), obs=y)
        return
    effects = sample_effects(subjects.num_groups, scale_tril, centred=form == "centred")
    mean = fixed @ coefficients + (random * effects[jnp.asarray(subjects.codes)]).sum(axis=1)
    with numpyro.plate("rows", len(fixed)):
        numpyro.sample("y", dist.Normal(mean, by_row(noise, outputs)), obs=y)
