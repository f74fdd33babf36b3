"""The population of the group means, given or learned."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from sidebayes.common.magnitudes import shown

from ..components.gaussian_prior import GaussianPrior, resolve_prior

__all__ = ["POPULATIONS", "population_prior"]

POPULATIONS = ("fixed", "learned")


def population_prior(
    prior: str | GaussianPrior, coordinates: Array | None, num_clusters: int, population: str
) -> str | GaussianPrior:
    r"""Prior of the groups, as given or with sampled mean and shrinkage.

    .. math:: m \sim N(m_0, \Lambda), \quad \kappa \sim \text{Gamma}(1, 1), \quad
              m_g \mid C_g \sim N(m, C_g / \kappa)

    The sites are ``population_mean``, about the mean of the prior, with the diagonal covariance
    :math:`\Lambda` of the coordinates, or of the prior's scale without data; and
    ``population_shrinkage``, the variance within groups over that between them.

    Raises
    ------
    ValueError
        For another `population`, one that is learned from a single group, or under a flat prior.
    """
    if not isinstance(population, str) or population not in POPULATIONS:
        raise ValueError(f"population = {shown(population)}; expected one of {POPULATIONS}")
    if population == "fixed":
        return prior
    if num_clusters < 2:
        raise ValueError("population='learned' needs several groups; one has no variance between")
    resolved = resolve_prior(prior, coordinates, num_clusters)
    if resolved is None:
        raise ValueError(
            "population='learned' is a prior of the group means, and prior='flat' has none"
        )
    spread = jnp.sqrt(jnp.diagonal(jnp.asarray(resolved.scale)))
    if coordinates is not None:
        spread = coordinates.std(axis=0)
    normal = dist.Normal(jnp.asarray(resolved.mean), spread).to_event(1)
    mean = numpyro.sample("population_mean", normal, infer={"event_dims": ["features"]})
    shrinkage = numpyro.sample("population_shrinkage", dist.Gamma(1.0, 1.0))
    return replace(resolved, mean=mean, shrinkage=shrinkage)
