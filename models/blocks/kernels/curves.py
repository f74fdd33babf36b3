"""Curves of clusters: Gaussian processes by white weights at anchors, and their conjugate update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jax.core import Tracer
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, Transform

from ..block import Block, Evidence
from ..collapsed import Collapsed
from .curve_starts import Setting
from .stationary import as_columns, check_kernel, features

__all__ = ["CurveDensity", "Curves", "Scale"]


class CurveDensity(dist.Distribution):
    r"""Densities of rows along the curve of each cluster.

    .. math:: y_{nd} \mid w, z_n = k \sim N(m_d + a_k\, \phi_k(x_n)^\top w_{kd},\;
              \sigma_k^2 + a_k^2 (1 - |\phi_k(x_n)|^2))

    with the features :math:`\phi` of `features`. At the anchors this is the Gaussian process itself, at
    any other single input its conditional given the anchors. Between rows what the anchors leave
    unexplained is taken as independent, as in the fully independent training conditional (FITC).

    Parameters
    ----------
    kernel : str
        See `KERNELS`.
    inputs : array_like, shape (num_rows,) or (num_rows, num_inputs)
    anchors : array_like, shape (num_anchors,) or (num_anchors, num_inputs)
    weights : Array, shape (num_clusters, num_anchors) or (num_clusters, num_outputs, num_anchors)
        White weights w; without an axis of outputs a row is a number.
    length_scale : array_like, shape () or (num_inputs,), or with an axis of clusters in front
    amplitude, noise : array_like, shape () or (num_clusters,)
        Standard deviations of the curves and about them.
    mean : array_like, shape () or (num_outputs,)
        Of the curves a priori.
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
        batch, event = (len(self.inputs), len(weights)), jnp.shape(weights)[1:-1]
        super().__init__(batch, event, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Real numbers, one per output."""
        return constraints.independent(constraints.real, self.event_dim)

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

    def variances(self, unexplained: Array) -> Array:
        """Variance of a row about the weighted features, shape (num_rows, num_clusters)."""
        own = unexplained.T if self.has_own_features else unexplained[:, None]
        found = self.noise**2 + self.amplitude**2 * own
        return jnp.broadcast_to(found, self.batch_shape)

    def values(self, found: Array, weights: Array) -> Array:
        """Values at the inputs of curves of some weights, shape (num_rows, num_clusters, ...)."""
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
        """Variance of the curves that the anchors leave unexplained, of the shape of `mean`."""
        return self.variance - jnp.reshape(self.noise, (-1,) + (1,) * self.event_dim) ** 2

    @property
    def variance(self) -> Array:
        """Variance about the curves, of the shape of `mean`."""
        spread = self.variances(self.features()[1])
        return jnp.broadcast_to(
            spread.reshape(spread.shape + (1,) * self.event_dim),
            self.batch_shape + self.event_shape,
        )

    def _normal(self) -> dist.Distribution:
        found, unexplained = self.features()
        spread = jnp.sqrt(self.variances(unexplained))
        scale = spread.reshape(spread.shape + (1,) * self.event_dim)
        return dist.Normal(self.values(found, self.weights), scale).to_event(self.event_dim)

    def log_prob(self, value: Array) -> Array:
        """Log densities, shape (num_rows, num_clusters), of values (num_rows, 1, ...)."""
        return self._normal().log_prob(value)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw a row along every curve."""
        return self._normal().sample(key, sample_shape)

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
        )


class Scale(Block):
    """A positive parameter of curves that is learned: where it starts, and in which unit it moves.

    Parameters
    ----------
    name : str
        Of the site.
    prior : Distribution
    typical : array_like
        Of the shape of a draw.
    num_clusters : int or None
        None for one of all clusters.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("curve_scale",)

    def __init__(
        self, name: str, prior: dist.Distribution, typical: ArrayLike, num_clusters: int | None
    ) -> None:
        self.name = name
        self.prior, self.typical, self.num_clusters = prior, typical, num_clusters

    @property
    def has_update(self) -> bool:
        """Numeric steps only."""
        return False

    def sample(self) -> Array:
        """Sample it."""
        names = ["inputs"] * self.prior.event_dim
        with numpyro.plate("clusters", self.num_clusters) if self.num_clusters else nullcontext():
            return self.declare("curve_scale", self.name, self.prior, names)

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in typical units."""
        return ComposeTransform(
            [bijector, AffineTransform(0.0, self.typical, constraints.positive)]
        )

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """The typical value."""
        if isinstance(self.typical, Tracer):
            return {}
        shape = num_starts, *shapes["curve_scale"]
        return {"curve_scale": np.broadcast_to(np.asarray(self.typical), shape)}


class _Found(NamedTuple):
    """Normal posterior of the weights: means, and Cholesky factors of the precisions of clusters."""

    mean: Array
    root: Array


class Curves(Block):
    r"""White weights of the curves of clusters, a priori standard normal.

    Given responsibilities :math:`q_{nk}` and variances :math:`s_{nk}^2` their posterior is normal with the
    precision :math:`P_k = I + a_k^2 \Phi^\top S_k \Phi`, :math:`S_k = \text{diag}(q_{nk} / s_{nk}^2)`,
    which all outputs share, and means :math:`P_k^{-1} a_k \Phi^\top S_k (y_d - m_d)`. No Gram matrix of the
    rows is formed. Ross and Dy (2013, eqs. 18-21) have the same factor of the values :math:`a \Phi w`; as
    printed, its mean lacks the output.

    Parameters
    ----------
    num_clusters, num_anchors : int
    num_outputs : int or None
        None for rows that are numbers.
    setting : Setting, optional
        From which starts are found; without it curves start near their prior mean.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("curves",)
    follows_points: ClassVar[bool] = True

    def __init__(
        self,
        num_clusters: int,
        num_anchors: int,
        num_outputs: int | None,
        setting: Setting | None = None,
    ) -> None:
        self.num_clusters, self.num_anchors, self.setting = num_clusters, num_anchors, setting
        self.outputs = () if num_outputs is None else (num_outputs,)

    def sample(self, name: str = "curves") -> Array:
        """Sample the weights, shape (num_clusters, [num_outputs,] num_anchors)."""
        shape = (*self.outputs, self.num_anchors)
        names = ["outputs", "anchor"][-len(shape) :]
        with numpyro.plate("clusters", self.num_clusters):
            prior = dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape))
            return self.declare("curves", name, prior, names)

    def statistics(self, evidence: Evidence) -> tuple[Array, Array]:
        """Precisions and shifts that the rows add, shapes (K, M, M) and (K, ..., M)."""
        density = _density(evidence)
        found, unexplained = density.features()
        weight = density.amplitude * evidence.expected["unary"] / density.variances(unexplained)
        apart = evidence.value - density.offset

        def one(each: tuple[Array, ...]) -> tuple[Array, Array]:
            own, size, *features = each
            phi = features[0] if features else found
            weighted = own[:, None] * phi
            return size * weighted.T @ phi, jnp.tensordot(apart, weighted, (0, 0))

        sizes = jnp.broadcast_to(density.amplitude, (self.num_clusters,))
        own = (found,) if density.has_own_features else ()
        return lax.map(one, (weight.T, sizes, *own))

    def update(self, statistics: tuple[Array, Array], sources: Sequence[Collapsed]) -> _Found:
        """Add the precision and mean of the prior."""
        precision, shift = statistics
        root = jnp.linalg.cholesky(precision + jnp.eye(self.num_anchors))
        flat = shift.reshape(self.num_clusters, -1, self.num_anchors)
        mean = jax.vmap(lambda r, s: cho_solve((r, True), s.T).T)(root, flat)
        return _Found(mean.reshape(shift.shape), root)

    def mode(self, found: _Found, values: Mapping[str, Array]) -> dict[str, Array]:
        """Means."""
        return {"curves": found.mean}

    def draw(self, rng_key: Array, found: _Found) -> dict[str, Array]:
        """Draw weights."""
        flat = found.mean.reshape(self.num_clusters, -1, self.num_anchors)
        white = jax.random.normal(rng_key, flat.shape, flat.dtype)
        moved = jax.vmap(lambda r, z: solve_triangular(r, z.T, lower=True, trans=1).T)(
            found.root, white
        )
        return {"curves": (flat + moved).reshape(found.mean.shape)}

    def log_density(self, found: _Found, values: Mapping[str, Array]) -> Array:
        """Log density of weights."""
        apart = (values["curves"] - found.mean).reshape(self.num_clusters, -1, self.num_anchors)
        white = jnp.einsum("kij,kdi->kdj", found.root, apart)
        number = apart.shape[1]
        return (
            number * _log_diagonal(found.root)
            - 0.5 * jnp.sum(white**2)
            - 0.5 * apart.size * jnp.log(2 * jnp.pi)
        )

    def expected_factors(self, found: _Found, evidence: Evidence) -> dict[str, Array]:
        """Expected log densities of the rows (Ross and Dy 2013, eq. 25, whose first y lacks its square)."""
        density = _density(evidence)
        phi, unexplained = density.features()
        spread = density.variances(unexplained)
        middle = density.values(phi, found.mean)
        value = jnp.expand_dims(evidence.value, 1)
        axes = tuple(range(2, middle.ndim))
        square = jnp.sum((value - middle) ** 2, axis=axes)
        doubt = density.amplitude**2 * self._doubt(found, phi, own=density.has_own_features)
        number = int(np.prod(self.outputs))
        expected = square + number * doubt
        return {"unary": -0.5 * (number * jnp.log(2 * jnp.pi * spread) + expected / spread)}

    def _doubt(self, found: _Found, phi: Array, *, own: bool) -> Array:
        """Posterior variance of curves of unit amplitude at rows, shape (num_rows, num_clusters)."""

        def one(each: tuple[Array, ...]) -> Array:
            root, features = each if own else (each[0], phi)
            inverse = solve_triangular(root, jnp.eye(self.num_anchors), lower=True)
            return jnp.sum((features @ inverse.T) ** 2, axis=1)

        return lax.map(one, (found.root, phi) if own else (found.root,)).T

    def divergence(self, found: _Found) -> Array:
        """Divergence from the prior, in nats."""
        number = int(np.prod(self.outputs))
        eye = jnp.eye(self.num_anchors)
        inverse = jax.vmap(lambda root: solve_triangular(root, eye, lower=True))(found.root)
        trace = jnp.sum(inverse**2)
        size = self.num_clusters * self.num_anchors
        spread = number * (0.5 * (trace - size) + _log_diagonal(found.root))
        return spread + 0.5 * jnp.sum(found.mean**2)

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Curves around the one of all rows, by random responsibilities."""
        if self.setting is None or not self.setting.is_known:
            return {}
        found = self.setting.random_curves(value, self.num_clusters, seed, num_starts)
        return {"curves": found.reshape(num_starts, *shapes["curves"])}


def _density(evidence: Evidence) -> CurveDensity:
    """Components of the observed mixture, which know inputs and parameters of the kernel."""
    fn: Any = evidence.fn
    return fn.components


def _log_diagonal(root: Array) -> Array:
    """Sum of the logarithms of the diagonals of Cholesky factors."""
    return jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)))
