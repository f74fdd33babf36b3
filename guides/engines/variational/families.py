"""Families of approximating distributions, those of NumPyro's guides, as functions of parameters.

Each starts close to a standard normal. NumPyro's own guides are built around a model, which they
run outside of compiled code; these families depend only on the number of coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions.flows import InverseAutoregressiveTransform
from numpyro.distributions.transforms import PermuteTransform
from numpyro.nn.auto_reg_nn import AutoregressiveNN

__all__ = ["FAMILIES", "Family"]

_NUM_FLOWS = 3


@dataclass(frozen=True)
class Family:
    """A parametric family of distributions of a vector.

    Attributes
    ----------
    start : callable
        ``start(key, size)`` returns starting values of the parameters.
    distribution : callable
        ``distribution(params)`` returns the member of the family.
    invertible : bool
        Whether the density is cheap for any vector, and not only for one just drawn.
    """

    start: Callable[[Array, int], dict[str, Any]]
    distribution: Callable[[dict[str, Any]], dist.Distribution]
    invertible: bool = True

    def draw(self, params: Any, key: Array, count: int, *, path: bool) -> tuple[Array, Array]:
        """Draw vectors, differentiable in the parameters, with their log densities.

        Parameters
        ----------
        params : pytree
        key : Array
        count : int
        path : bool
            Leave out the gradient of the density in its parameters, whose expectation is zero (Roeder
            et al. 2017), where the family is invertible.

        Returns
        -------
        draws : Array, shape (count, size)
        log_density : Array, shape (count,)
        """
        member = self.distribution(params)
        draws, passed = member.sample_with_intermediates(key, (count,))
        if path and self.invertible:
            member = self.distribution(jax.lax.stop_gradient(params))
        density = member.log_prob(draws) if self.invertible else member.log_prob(draws, passed)
        return draws, density


def _start_mean_field(key: Array, size: int) -> dict[str, Array]:
    return {"loc": jnp.zeros(size), "log_scale": jnp.zeros(size)}


def _mean_field(params: dict[str, Array]) -> dist.Distribution:
    return dist.Normal(params["loc"], jnp.exp(params["log_scale"])).to_event(1)


def _start_full_rank(key: Array, size: int) -> dict[str, Array]:
    return _start_mean_field(key, size) | {"lower": jnp.zeros((size, size))}


def _full_rank(params: dict[str, Array]) -> dist.Distribution:
    size = len(params["loc"])
    # Adam moves all entries equally: with this division, a row of many moves no farther than one entry
    unit = jnp.eye(size) + jnp.tril(params["lower"], -1) / jnp.sqrt(size)
    scale_tril = jnp.exp(params["log_scale"])[:, None] * unit
    return dist.MultivariateNormal(params["loc"], scale_tril=scale_tril)


def _start_low_rank(key: Array, size: int) -> dict[str, Array]:
    factor = 0.1 * jax.random.normal(key, (size, round(size**0.5)))
    return _start_mean_field(key, size) | {"factor": factor}


def _low_rank(params: dict[str, Array]) -> dist.Distribution:
    scale = jnp.exp(params["log_scale"])
    return dist.LowRankMultivariateNormal(
        params["loc"], scale[:, None] * params["factor"], scale**2
    )


def _network(size: int) -> tuple[Callable, Callable]:
    return AutoregressiveNN(size, [size, size], permutation=jnp.arange(size))


def _start_flow(key: Array, size: int) -> dict[str, Any]:
    if size < 2:
        raise ValueError("guide='flow' needs two coordinates or more; use guide='full_rank'")
    keys = jax.random.split(key, _NUM_FLOWS)
    networks = [_network(size)[0](one, (size,))[1] for one in keys]
    return _start_mean_field(key, size) | {"networks": networks}


def _flow(params: dict[str, Any]) -> dist.Distribution:
    size = len(params["loc"])
    _, apply = _network(size)
    reverse = PermuteTransform(jnp.arange(size)[::-1])
    steps = []
    for network in params["networks"]:
        steps += [InverseAutoregressiveTransform(partial(apply, network)), reverse]
    return dist.TransformedDistribution(_mean_field(params), steps[:-1])


FAMILIES: dict[str, Family] = {
    "mean_field": Family(_start_mean_field, _mean_field),
    "full_rank": Family(_start_full_rank, _full_rank),
    "low_rank": Family(_start_low_rank, _low_rank),
    "flow": Family(_start_flow, _flow, invertible=False),
}
"""Every family by name."""
