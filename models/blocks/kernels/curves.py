"""Curves of clusters: Gaussian processes with white weights at anchors, and conjugate updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

from ..block import Block, FollowsPoints, Observation
from ..collapsed import Collapsed
from .curve_checks import refuse_equal, refuse_equal_inputs, warn_of_distance
from .curve_density import CurveDensity
from .curve_starts import Setting

__all__ = ["Curves", "Scale"]

_VANISHING = 0.05
"""Noise at a mode, relative to its typical value, below which curves pass through the data."""


class Scale(Block):
    """A learned positive parameter of curves, with its starting values and its unit.

    Parameters
    ----------
    name : str
        Name of the site.
    prior : Distribution
    typical : array_like
        Typical value, with the shape of a draw.
    num_clusters : int or None
        None for a value common to all clusters.
    dim : str
        Name of the axis of a draw, if it is a vector.
    setting : Setting, optional
        Source of the starts of a length-scale; without it all starts are at the typical value.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("curve_scale",)

    def __init__(
        self,
        name: str,
        prior: dist.Distribution,
        typical: ArrayLike,
        num_clusters: int | None,
        dim: str,
        setting: Setting | None = None,
    ) -> None:
        self.name, self.dim, self.setting = name, dim, setting
        self.prior, self.typical, self.num_clusters = prior, typical, num_clusters

    def sample(self) -> Array:
        """Sample the parameter."""
        names = [self.dim] * self.prior.event_dim
        with numpyro.plate("clusters", self.num_clusters) if self.num_clusters else nullcontext():
            return self.declare("curve_scale", self.name, self.prior, names)

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in typical units."""
        return ComposeTransform(
            [bijector, AffineTransform(0.0, self.typical, constraints.positive)]
        )

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that noise vanishes at a mode; see `Remarking`."""
        noise = np.asarray(values["curve_scale"])
        if self.name != "noise" or noise.shape[:2] != (1, 1) or isinstance(self.typical, Tracer):
            return None
        ratio = noise[0, 0] / np.asarray(self.typical)
        if not (ratio < _VANISHING).any():
            return None
        return (
            f"noise is {noise.min():.2g}, {ratio.min():.1g} times its typical value: at a mode of curves and "
            "noise together, curves pass through the data and the noise vanishes; give noise=, or take "
            "engine='cavi', which integrates over the curves"
        )

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """The typical value first, then other length-scales."""
        if isinstance(self.typical, Tracer):
            return {}
        shape = num_starts, *shapes["curve_scale"]
        if self.setting is None or not self.setting.is_known:
            return {"curve_scale": np.broadcast_to(np.asarray(self.typical), shape)}
        found = self.setting.length_scales(value, seed, num_starts)
        if self.num_clusters is not None:
            found = found[:, None]
        return {"curve_scale": np.broadcast_to(found, shape)}


class _NormalPosterior(NamedTuple):
    """Normal posterior of the weights: means, and Cholesky factors of the precisions.

    Factors have axes of clusters and outputs; the latter has length one if outputs share a
    precision.
    """

    mean: Array
    root: Array


class Curves(Block, FollowsPoints):
    r"""White weights of the curves of clusters, a priori standard normal.

    Given responsibilities :math:`q_{nk}` and variances :math:`s_{nk}^2` their posterior is normal
    with the precision :math:`P_k = I + a_k^2 \Phi^\top S_k \Phi`, :math:`S_k = \text{diag}(q_{nk} /
    s_{nk}^2)`, which all outputs share, and means :math:`P_k^{-1} a_k \Phi^\top S_k (y_d - m_d)`.
    Outputs with separate noise, or with unobserved rows, have their own :math:`P_{kd}` and
    :math:`S_{kd}`. No Gram matrix of the rows is formed. Ross and Dy (2013, eqs. 18-21) have the
    same factor of the values :math:`a \Phi w`; as printed, its mean lacks the output.

    Parameters
    ----------
    num_clusters, num_anchors : int
    num_outputs : int or None
        None for rows that are numbers.
    setting : Setting, optional
        Source of the starts; without it curves start near their prior mean.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("curves",)

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

    def check(self, name: str, value: Any) -> None:
        """Refuse rows that are all equal; warn of those many amplitudes from the prior mean of the curves."""
        if self.setting is not None and self.setting.is_known:
            setting = self.setting
            refuse_equal(name, value, setting.observed)
            if setting.prior == "default":
                refuse_equal_inputs(setting.inputs)
            warn_of_distance(name, value, setting.observed, setting.mean, setting.amplitude)

    def statistics(self, observation: Observation) -> tuple[Array, Array]:
        """Contributions of the rows to precisions and shifts.

        Their shapes are (num_clusters, 1 or num_outputs, num_anchors, num_anchors) and
        (num_clusters, num_outputs, num_anchors).
        """
        density = _density(observation)
        found, unexplained = density.features()
        share = (density.amplitude * observation.expected["unary"])[..., None]
        weight = density.counted(share / density.variances(unexplained))
        apart = density.table(observation.value)

        def one(each: tuple[Array, ...]) -> tuple[Array, Array]:
            own, size, *features = each
            phi = features[0] if features else found
            precision = jax.vmap(lambda column: (column[:, None] * phi).T @ phi, 1)(own)
            return size * precision, (own * apart).T @ phi

        sizes = jnp.broadcast_to(density.amplitude, (self.num_clusters,))
        own = (found,) if density.has_own_features else ()
        return lax.map(one, (jnp.moveaxis(weight, 1, 0), sizes, *own))

    def update(
        self, statistics: tuple[Array, Array], sources: Sequence[Collapsed]
    ) -> _NormalPosterior:
        """Add the precision and mean of the prior."""
        precision, shift = statistics
        root = jnp.linalg.cholesky(precision + jnp.eye(self.num_anchors))
        mean = _each(lambda r, s: cho_solve((r, True), s.T).T, root, shift)
        return _NormalPosterior(mean.reshape(self._shape), root)

    def mode(self, found: _NormalPosterior, values: Mapping[str, Array]) -> dict[str, Array]:
        """Means of the weights."""
        return {"curves": found.mean}

    def draw(self, rng_key: Array, found: _NormalPosterior) -> dict[str, Array]:
        """Draw weights."""
        white = jax.random.normal(rng_key, found.mean.shape, found.mean.dtype)
        moved = _each(
            lambda r, z: solve_triangular(r, z.T, lower=True, trans=1).T, found.root, white
        )
        return {"curves": found.mean + moved.reshape(self._shape)}

    def log_density(self, found: _NormalPosterior, values: Mapping[str, Array]) -> Array:
        """Log density of weights."""
        apart = values["curves"] - found.mean
        white = _each(lambda r, z: z @ r, found.root, apart)
        return (
            self._num_sharing(found) * _log_diagonal(found.root)
            - 0.5 * jnp.sum(white**2)
            - 0.5 * apart.size * jnp.log(2 * jnp.pi)
        )

    def means(self, found: _NormalPosterior) -> dict[str, Array]:
        """Means of the weights; curves are linear in the weights."""
        return {"curves": found.mean}

    def expected_factors(
        self, found: _NormalPosterior, observation: Observation
    ) -> dict[str, Array]:
        """Expected log densities of the rows (Ross and Dy 2013, eq. 25, whose first y lacks its square)."""
        density = _density(observation)
        phi, unexplained = density.features()
        spread = density.variances(unexplained)
        middle = density.values(phi, found.mean) - density.offset
        table = density.table(observation.value)
        square = (table[:, None] - middle.reshape(*spread.shape[:2], -1)) ** 2
        size = density.amplitude.reshape(-1, 1) ** 2
        doubt = size * self._doubt(found, phi, own=density.has_own_features)
        terms = jnp.log(2 * jnp.pi * spread) + (square + doubt) / spread
        return {"unary": -0.5 * jnp.sum(density.counted(terms), axis=-1)}

    def _doubt(self, found: _NormalPosterior, phi: Array, *, own: bool) -> Array:
        """Posterior variance of curves of unit amplitude, shape (num_rows, num_clusters, outputs)."""

        def one(each: tuple[Array, ...]) -> Array:
            roots, features = each if own else (each[0], phi)
            inverse = self._inverse(roots)
            return jnp.sum((features @ jnp.swapaxes(inverse, 1, 2)) ** 2, axis=2)

        by_cluster = lax.map(one, (found.root, phi) if own else (found.root,))
        return jnp.moveaxis(by_cluster, 2, 0)

    def divergence(self, found: _NormalPosterior) -> Array:
        """Divergence from the prior, in nats."""
        trace = jnp.sum(self._inverse(found.root) ** 2)
        size = found.root[..., 0].size
        spread = 0.5 * (trace - size) + _log_diagonal(found.root)
        return self._num_sharing(found) * spread + 0.5 * jnp.sum(found.mean**2)

    def _inverse(self, roots: Array) -> Array:
        """Inverses of Cholesky factors."""
        eye = jnp.broadcast_to(jnp.eye(self.num_anchors), roots.shape)
        return solve_triangular(roots, eye, lower=True)

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the weights."""
        return (self.num_clusters, *self.outputs, self.num_anchors)

    def _num_sharing(self, found: _NormalPosterior) -> int:
        """Number of outputs that share a precision."""
        return int(np.prod(self.outputs)) // found.root.shape[1]

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Curves around the common curve of all rows, from random responsibilities."""
        if self.setting is None or not self.setting.is_known:
            return {}
        found = self.setting.random_curves(value, self.num_clusters, seed, num_starts)
        return {"curves": found.reshape(num_starts, *shapes["curves"])}


def _density(observation: Observation) -> CurveDensity:
    """Components of the observed mixture, which hold the inputs and parameters of the kernel."""
    fn: Any = observation.fn
    return fn.components


def _each(function: Callable[[Array, Array], Array], roots: Array, rows: Array) -> Array:
    """Apply a function of a Cholesky factor and its rows, shape (outputs that share it, num_anchors)."""
    grouped = rows.reshape(*roots.shape[:2], -1, roots.shape[-1])
    return jax.vmap(jax.vmap(function))(roots, grouped)


def _log_diagonal(root: Array) -> Array:
    """Sum of the logarithms of the diagonals of Cholesky factors."""
    return jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)))
