"""Discriminants of one rule of assignment for all points, as a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from numpyro.distributions.transforms import LowerCholeskyAffine, Transform

from ..block import Block
from ..components.gaussian_block import GaussianComponents
from ..mixtures.data_units import data_units, fitted_statistic
from .partitioned_mixture import PartitionedMixture
from .rule import Rule, matched_discriminants

__all__ = ["Discriminants"]

_RIDGE = 1e-9
"""Ridge of the monomials' second moments, which may be singular, as a share of the mean diagonal."""


class Discriminants(Block):
    r"""Coefficients :math:`\phi_k` of the discriminants :math:`\psi_k(x)` of all components.

    They describe the restricted posterior :math:`q(k | x) = \text{softmax}_k \psi_k(x)` of a
    `PartitionedMixture` and nothing else; EM updates them by `tighten` before each of its steps.

    Parameters
    ----------
    num_components : int
    covariance : {"full", "tied", "diagonal", "spherical"}
        The discriminants have the form of those of Gaussians with such covariances.
    gaussians : GaussianComponents
        Block of the components, whose starts determine those of the discriminants.
    plate : str
        Axis of the components.
    weights : array_like, shape (num_components,), optional
        Weights of the components where runs start; by default all are equal.
    """

    factor: ClassVar[str] = "scores"
    roles: ClassVar[tuple[str, ...]] = ("discriminants",)

    def __init__(
        self,
        num_components: int,
        covariance: str,
        gaussians: GaussianComponents,
        plate: str = "components",
        weights: ArrayLike | None = None,
    ) -> None:
        self.num_components, self.covariance = num_components, covariance
        self.gaussians, self.plate = gaussians, plate
        equal = np.full(num_components, 1.0 / num_components)
        self.weights = equal if weights is None else weights

    def sample(self, x: ArrayLike, name: str) -> Rule:
        """Sample coefficients; return the rule that they define.

        Features are in the units of the fitted data, which are sites as well, so that the same
        coefficients are valid for other points.
        """
        centre, unit = data_units(x, jnp.shape(x)[1])
        with numpyro.plate("features", len(centre)):
            centre = fitted_statistic("centre", centre)
            unit = fitted_statistic("unit", unit)
        self._basis = partial(Rule(None, centre, unit, self.covariance).basis, x)
        size = Rule.num_monomials(jnp.shape(x)[1], self.covariance)
        flat = dist.ImproperUniform(dist.constraints.real_vector, (), (size,))
        with numpyro.plate(self.plate, self.num_components):
            coefficients = self.declare("discriminants", name, flat, ("monomials",))
        return Rule(coefficients, centre, unit, self.covariance)

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in which the monomials of the fitted points are uncorrelated with unit size."""
        root = _root_of_moments(self._basis())
        inverse = solve_triangular(root, jnp.eye(len(root)), lower=True)
        return LowerCholeskyAffine(jnp.zeros(len(root)), jnp.linalg.cholesky(inverse.T @ inverse))

    def code_length(self, role: str) -> float:
        """Zero: the coefficients are part of the approximate posterior, not of the model."""
        return 0.0

    def tighten(
        self,
        fn: PartitionedMixture,
        value: Array,
        values: Mapping[str, Array],
        minimise: Callable[[Callable[[Array], Array], Array], Array],
    ) -> dict[str, Array]:
        """Increase the bound of an observed site with respect to the coefficients.

        The optimisation uses coordinates in which the monomials of the points are uncorrelated with
        unit size.

        Parameters
        ----------
        fn : PartitionedMixture
        value : Array
            Its data.
        values : mapping of str to Array
        minimise : callable
            ``minimise(loss, start)`` never raises the loss.
        """
        assert fn.rule is not None  # a site with scores
        factors, basis = fn.log_factors(value), fn.rule.basis(value)
        root = _root_of_moments(basis)
        basis = solve_triangular(root, basis.T, lower=True).T
        shape = values["discriminants"].shape

        def loss(flat: Array) -> Array:
            return -fn.bound(factors, fn.log_rule(basis @ flat.reshape(shape).T))

        found = minimise(loss, (values["discriminants"] @ root).ravel()).reshape(shape)
        return {"discriminants": solve_triangular(root, found.T, lower=True, trans=1).T}

    def matched(
        self, log_weights: ArrayLike, mean: ArrayLike, spread: ArrayLike, centre: Any, unit: Any
    ) -> Array:
        """`matched_discriminants` of Gaussians of the data, in the units of the data."""
        return _matched(log_weights, mean, spread, centre, unit, self.covariance)

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Coefficients that give each start the posterior of its mixture."""
        data = np.asarray(value, float).reshape(len(value), -1)
        size = (self.num_components, data.shape[1])
        given = self.gaussians.starts(value, {"location": size}, seed, num_starts)
        if not given:
            return {}
        tail = self.gaussians.spread_shape
        spread = np.broadcast_to(np.asarray(given["spread"]), (num_starts, *tail))
        mean = np.asarray(given["location"])
        return {"discriminants": _matched_starts(data, self.weights, mean, spread, self.covariance)}


def _root_of_moments(basis: Array) -> Array:
    """Cholesky factor of the second moments of monomials."""
    moments = basis.T @ basis / len(basis)
    ridge = _RIDGE * jnp.diagonal(moments).mean() * jnp.eye(len(moments))
    return jnp.linalg.cholesky(moments + ridge)


def _matched(
    log_weights: ArrayLike,
    mean: ArrayLike,
    spread: ArrayLike,
    centre: Any,
    unit: Any,
    covariance: str,
) -> Array:
    if covariance in ("full", "tied"):
        spread = jnp.asarray(spread) / unit[:, None] / unit
    elif covariance == "diagonal":
        spread = jnp.asarray(spread) / unit**2
    else:  # spheres of the data are not spheres in other units
        spread = jnp.asarray(spread)[..., None] / unit**2
    mean = (jnp.asarray(mean) - centre) / unit
    return matched_discriminants(log_weights, mean, spread, covariance)


@partial(jax.jit, static_argnames="covariance")
def _matched_starts(
    data: Array, weights: Array, mean: Array, spread: Array, covariance: str
) -> Array:
    """Discriminants of several mixtures, computed by one program."""
    units = data_units(data, data.shape[1])
    one = partial(_matched, covariance=covariance)
    match = jax.vmap(one, in_axes=(None, 0, 0, None, None))
    return match(jnp.log(weights), mean, spread, *units)
