"""Densities of rows along the curves of clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from .stationary import as_columns, check_kernel, features

__all__ = ["CurveDensity"]


class CurveDensity(dist.Distribution):
    r"""Densities of rows along the curve of each cluster.

    .. math:: y_{nd} \mid w, z_n = k \sim N(m_d + a_k\, \phi_k(x_n)^\top w_{kd},\;
              \sigma_{kd}^2 + a_k^2 (1 - |\phi_k(x_n)|^2))

    with the features :math:`\phi` of `features`. At the anchors this is the Gaussian process
    itself; at any other single input it is its conditional given the anchors. The part that the
    anchors leave unexplained is treated as independent between rows, as in the fully independent
    training conditional (FITC).

    Parameters
    ----------
    kernel : str
        See `KERNELS`.
    inputs : array_like, shape (num_rows,) or (num_rows, num_inputs)
    anchors : array_like, shape (num_anchors,) or (num_anchors, num_inputs)
    weights : Array, shape (num_clusters, num_anchors) or (num_clusters, num_outputs, num_anchors)
        White weights w; without an axis of outputs a row is a number.
    length_scale : array_like, shape () or (num_inputs,), or with an axis of clusters in front
    amplitude : array_like, shape () or (num_clusters,)
        Standard deviation of the curves.
    noise : array_like, shape (), (num_clusters,), or (num_clusters or 1, num_outputs)
        Standard deviation about the curves.
    mean : array_like, shape () or (num_outputs,)
        Prior mean of the curves.
    observed : array_like, shape (num_rows,) or (num_rows, num_outputs), optional
        One if an output of a row was measured; zero if it has no density.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = (
        "inputs",
        "anchors",
        "weights",
        "length_scale",
        "amplitude",
        "noise",
        "offset",
        "observed",
    )
    pytree_aux_fields = ("kernel",)

    def __init__(
        self,
        kernel: str,
        inputs: ArrayLike,
        anchors: ArrayLike,
        weights: Array,
        *,
        length_scale: ArrayLike,
        amplitude: ArrayLike,
        noise: ArrayLike,
        mean: ArrayLike = 0.0,
        observed: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        check_kernel(kernel)
        self.kernel, self.weights = kernel, weights
        self.inputs, self.anchors = (
            as_columns(jnp.asarray(inputs)),
            as_columns(jnp.asarray(anchors)),
        )
        self.length_scale, self.offset = jnp.asarray(length_scale), jnp.asarray(mean)
        self.amplitude, self.noise = jnp.asarray(amplitude), jnp.asarray(noise)
        self.observed = observed
        batch, event = (len(self.inputs), len(weights)), jnp.shape(weights)[1:-1]
        super().__init__(batch, event, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Real numbers, one per output."""
        return constraints.independent(constraints.real, self.event_dim)

    def beside_value(self) -> dict[str, Callable[[], Array]]:
        """Outputs that were not measured and are not scored; see `ScoresMore`."""
        return {} if self.observed is None else {"what was measured": lambda: self.observed <= 0}

    @property
    def has_own_features(self) -> bool:
        """Whether length-scales differ between clusters."""
        return self.length_scale.ndim > 1

    def features(self) -> tuple[Array, Array]:
        """Features and unexplained shares of the variance; with an axis of clusters if they differ."""
        if self.has_own_features:
            return jax.vmap(lambda own: features(self.kernel, self.inputs, self.anchors, own))(
                self.length_scale
            )
        return features(self.kernel, self.inputs, self.anchors, self.length_scale)

    @property
    def by_output(self) -> Array:
        """Noise, shape (num_clusters or 1, num_outputs or 1)."""
        return self.noise if self.noise.ndim == 2 else self.noise.reshape(-1, 1)

    def variances(self, unexplained: Array) -> Array:
        """Variance of a row about the weighted features, shape (num_rows, num_clusters, outputs).

        The last axis has length one if outputs share their noise.
        """
        own = unexplained.T if self.has_own_features else unexplained[:, None]
        found = self.by_output**2 + (self.amplitude**2 * own)[..., None]
        return jnp.broadcast_to(found, (*self.batch_shape, found.shape[-1]))

    def table(self, value: Array) -> Array:
        """Rows minus the prior mean, zero where not observed, shape (num_rows, num_outputs)."""
        apart = value - self.offset
        apart = apart if self.observed is None else jnp.where(self.observed > 0, apart, 0.0)
        return apart.reshape(len(apart), -1)

    def counted(self, found: Array) -> Array:
        """Terms of rows, clusters and outputs, set to zero for unobserved outputs."""
        if self.observed is None:
            return found
        return jnp.where(self.observed.reshape(len(found), 1, -1) > 0, found, 0.0)

    def values(self, found: Array, weights: Array) -> Array:
        """Values at the inputs of curves with given weights, shape (num_rows, num_clusters, ...)."""
        own = "knm" if self.has_own_features else "nm"
        curves = jnp.einsum(f"{own},k...m->nk...", found, weights)
        size = self.amplitude.reshape(self.amplitude.shape + (1,) * self.event_dim)
        return self.offset + size * curves

    @property
    def mean(self) -> Array:
        """Curves at the inputs, shape (num_rows, num_clusters, ...)."""
        return self.values(self.features()[0], self.weights)

    @property
    def doubt(self) -> Array:
        """Variance of the curves that the anchors leave unexplained, with the shape of `mean`."""
        return self.variance - (self.by_output if self.event_dim else self.by_output[:, 0]) ** 2

    @property
    def variance(self) -> Array:
        """Variance about the curves, with the shape of `mean`."""
        spread = self.variances(self.features()[1])
        spread = spread if self.event_dim else spread[..., 0]
        return jnp.broadcast_to(spread, self.batch_shape + self.event_shape)

    def _normal(self) -> dist.Distribution:
        found, unexplained = self.features()
        scale = jnp.sqrt(self.variances(unexplained))
        middle = self.values(found, self.weights)
        return dist.Normal(middle, scale if self.event_dim else scale[..., 0])

    def log_prob(self, value: Array) -> Array:
        """Log densities, shape (num_rows, num_clusters), of values (num_rows, 1, ...)."""
        known = value
        if self.observed is not None:  # their placeholders have no gradient either
            known = jnp.where(self.observed[:, None] > 0, value, 0.0)
        found = self._normal().log_prob(known)
        return self.counted(found.reshape(*self.batch_shape, -1)).sum(axis=-1)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw a row, with all its outputs, along every curve."""
        return self._normal().to_event(self.event_dim).sample(key, sample_shape)

    def take(self, rows: ArrayLike) -> CurveDensity:
        """Densities of some of the rows."""
        return CurveDensity(
            self.kernel,
            self.inputs[rows],
            self.anchors,
            self.weights,
            length_scale=self.length_scale,
            amplitude=self.amplitude,
            noise=self.noise,
            mean=self.offset,
            observed=None if self.observed is None else jnp.asarray(self.observed)[rows],
        )
