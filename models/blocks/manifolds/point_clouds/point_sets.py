"""Points and landmarks of individuals about their latent shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, Transform

from sidebayes.common.fields import Range, check_number
from sidebayes.common.magnitudes import shown

from ...block import Block, Observation
from ...collapsed import Collapsed, Fitted, NamedArray
from ...side_information.groups import Groups
from ..kernel_distance import kernel_distance
from ..preshape import num_dimensions
from ..shape_chart import ShapeChart, spacing
from .point_mixture import log_point_mixture
from .similarity import laid_on, moves

__all__ = [
    "AboutShapes",
    "KernelPotential",
    "LandmarkErrors",
    "PointMixture",
    "PointNoise",
    "rows_about",
]


OBSERVATIONS = ("density", "kernel")

_KERNEL_WIDTH = 2.0
"""Default width of the kernel, in distances between neighbouring points."""


_NOISE = 0.03
"""Scale of the prior of the noise, in the same unit; small, because its upper tail is heavy."""


class AboutShapes(Collapsed):
    """Rows of individuals about their shapes, without latent variables to report.

    Parameters
    ----------
    shapes : Array, shape (num_subjects, num_landmarks, num_axes)
    scale : Array, shape ()
        Standard deviation of rows, in units of the shapes.
    subjects : Groups
        Individual of each row.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("shapes", "scale", "groups")
    support = constraints.real_matrix
    groups: Groups

    def __init__(
        self, shapes: Array, scale: Array, subjects: Groups, *, validate_args: bool | None = None
    ) -> None:
        self.shapes, self.scale, self.groups = shapes, scale, subjects
        self.num_units = subjects.num_groups
        size = len(subjects), shapes.shape[-1]
        super().__init__(event_shape=size, validate_args=validate_args)

    @property
    def num_free(self) -> Array:
        """Number of free coordinates of each individual's rows about its shape, shape (num_subjects,)."""
        codes = jnp.asarray(self.groups.codes)
        return self.event_shape[1] * jax.ops.segment_sum(
            jnp.ones(len(codes)), codes, self.num_units
        )

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log densities ``points`` of the individuals, shape (num_subjects,)."""
        return {"points": self.by_unit(value)}

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """Log density of all rows, shape ()."""
        return factors["points"].sum()

    def posterior(self, value: Array) -> dict[str, NamedArray]:
        """Return nothing: correspondences are many, and of no interest by themselves."""
        return {}

    def draw(self, rng_key: Array, value: Array) -> None:
        """Return None: there are no latent variables to draw."""

    def statistic(self, latent: None) -> dict[str, Array]:
        """Return one for each individual."""
        return {"points": jnp.ones(self.num_units)}

    def mode(self, value: Array) -> None:
        """Return None: there are no latent variables."""

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw rows of the same individuals."""
        return self.sample(rng_key)

    def _about(self, key: Array, sample_shape: tuple[int, ...], centres: Array) -> Array:
        return centres + self.scale * jax.random.normal(key, (*sample_shape, *self.event_shape))


class PointMixture(AboutShapes):
    r"""Points without correspondence: each lies about one of the points of the shape, equally probable.

    .. math:: p(x_n) = \frac1T \sum_t N(x_n; u_{i(n), t}, s^2 I)

    An individual may have any number of points. This is the normalised counterpart of `KernelPotential`,
    whose normaliser depends on the shape.
    """

    def by_unit(self, value: Array) -> Array:
        """Log density of the points of each individual."""
        return log_point_mixture(
            value, jnp.asarray(self.groups.codes), self.shapes, jnp.asarray(self.scale)
        )

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw correspondences, then points."""
        key_point, key_noise = jax.random.split(key)
        rows = (*sample_shape, len(self.groups))
        own = jax.random.randint(key_point, rows, 0, self.shapes.shape[1])
        return self._about(key_noise, sample_shape, self.shapes[self.groups.codes, own])


class LandmarkErrors(AboutShapes):
    r"""Landmarks with noise, except in their place, size and rotation; an individual may lack some.

    .. math:: p(x_i) = (2 \pi s^2)^{-(m_i d - f) / 2} \exp(-\|x_i - u_i\|^2 / 2 s^2)

    with the :math:`m_i` landmarks of an individual in d dimensions. Registration removes its place,
    size and rotation, :math:`f = d + 1 + d (d - 1) / 2` numbers, together with the noise in these
    directions. The noise therefore counts only in the other directions: to first order in the
    noise, this is the density of the remaining coordinates. Where an individual lacks landmarks, its
    place, size and rotation depend on where these would be. The shape :math:`u_i` is therefore moved,
    scaled and rotated to the landmarks that are seen.

    Parameters
    ----------
    shapes, scale, subjects
        See `PointMixture`.
    landmarks : Array of int, shape (num_rows,)
        Landmark t of each row, from 0.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("landmarks",)

    def __init__(
        self,
        shapes: Array,
        scale: Array,
        subjects: Groups,
        landmarks: Array,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.landmarks = landmarks
        super().__init__(shapes, scale, subjects, validate_args=validate_args)

    @property
    def _cells(self) -> tuple[Array, Array]:
        """Individual and landmark of each row."""
        return jnp.asarray(self.groups.codes), jnp.asarray(self.landmarks).astype(int)

    def by_unit(self, value: Array) -> Array:
        """Log density of the rows of each individual."""
        cells = self._cells
        # spare rows have the code -1, that of the last individual
        weight = jnp.zeros(self.shapes.shape[:2]).at[cells].add(cells[0] >= 0)
        total = jnp.zeros_like(self.shapes).at[cells].add(value * (cells[0] >= 0)[:, None])
        places = total / jnp.maximum(weight, 1.0)[..., None]
        number = (weight > 0).sum(axis=1)
        lacks = (number < weight.shape[1]) & (number > 1)
        shapes = jnp.where(
            lacks[:, None, None], laid_on(self.shapes, places, weight, lacks), self.shapes
        )
        square = jnp.square((value - shapes[cells]) / self.scale).sum(axis=1)
        square = jax.ops.segment_sum(square, cells[0], self.num_units)
        return -square / 2 - self.num_free * (jnp.log(self.scale) + math.log(2 * math.pi) / 2)

    @property
    def num_free(self) -> Array:
        """Number of coordinates without place, size and rotation."""
        _, landmarks, axes = self.shapes.shape
        moves = landmarks * axes - num_dimensions(landmarks, axes)
        return jnp.maximum(super().num_free - moves, 0)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw rows with the place, size and rotation of their shapes."""
        centres, codes = self.shapes[self._cells], self._cells[0]
        moved = moves(centres)
        inner = jax.ops.segment_sum(moved.mT @ moved, codes, self.num_units)

        def of_shape(noise: Array) -> Array:
            along = jnp.einsum("naf,na->nf", moved, noise)
            along = jax.ops.segment_sum(along, codes, self.num_units)
            shift = jnp.einsum("sfg,sg->sf", jnp.linalg.pinv(inner, hermitian=True), along)
            return noise - jnp.einsum("naf,nf->na", moved, shift[codes])

        noise = jax.random.normal(key, (*sample_shape, *self.event_shape))
        for _ in sample_shape:
            of_shape = jax.vmap(of_shape)
        return centres + self.scale * of_shape(noise)


class KernelPotential(AboutShapes):
    r"""Points without correspondence: the potential :math:`-\beta d^2` of their kernel distance.

    See `kernel_distance` (Yu 2016, eqs. 3.3-3.4). It is not a density of the points: its normaliser
    depends on the shape, is unknown, and is left out. Differences between models with different
    widths or numbers of landmarks are meaningless.

    Parameters
    ----------
    shapes, scale, subjects
        See `PointMixture`; the scale is the width of the kernel.
    temperature : float
        :math:`1 / \beta`.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("temperature",)

    def __init__(
        self,
        shapes: Array,
        scale: Array,
        subjects: Groups,
        temperature: Any,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        super().__init__(shapes, scale, subjects, validate_args=validate_args)

    def by_unit(self, value: Array) -> Array:
        """Potential of each individual."""
        codes = jnp.asarray(self.groups.codes)
        return -kernel_distance(value, codes, self.shapes, self.scale) / self.temperature

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Refuse: there is no density to sample from."""
        raise NotImplementedError(
            "the kernel potential is no density of points, and cannot simulate them; use "
            "observation='density'"
        )


class Spread(NamedTuple):
    """Squared distances of rows from their centres, and the number of their coordinates."""

    square: Array
    num_coordinates: Array


class PointNoise(Block):
    r"""Variance of rows about the points of the shapes.

    .. math:: s^2 \sim \text{InvGamma}(1, e^2)

    Parameters
    ----------
    unit : Array, shape ()
        e, small relative to the distance between neighbouring points of a shape.
    is_told : bool
        Whether data distinguish it from the variance of shapes. They do not if landmarks have
        errors only in the directions of the chart.
    """

    factor: ClassVar[str] = "points"
    roles: ClassVar[tuple[str, ...]] = ("spread",)

    def __init__(self, unit: Array, *, is_told: bool = True) -> None:
        self.unit, self.is_told = unit, is_told

    def sample(self) -> Array:
        """Sample the variance; return the standard deviation."""
        prior = dist.InverseGamma(1.0, self.unit**2)
        return jnp.sqrt(self.declare("spread", "noise_variance", prior))

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the shapes."""
        units = AffineTransform(0.0, self.unit**2, constraints.positive)
        return ComposeTransform([bijector, units])

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that only priors separate the errors of landmarks from the variance of shapes."""
        if self.is_told:
            return None
        return (
            "The chart has all directions, so that the noise of landmarks is hardly told from the variance "
            "of shapes, and priors decide how wide bands of individuals are; give width=, the error of "
            "measurement in units of the chart, or register_points(num_modes=) fewer directions"
        )

    def statistics(self, observation: Observation) -> Spread:
        """Expected squared distances, from the gradient of the log density in the scale."""
        fn: Any = observation.fn
        count = observation.expected["points"] @ fn.num_free

        def log_density(scale: Array) -> Array:
            moved = copy(fn)
            moved.scale = scale
            return observation.expected["points"] @ moved.by_unit(observation.value)

        # d log N / d log s = (x - u)^2 / s^2 - 1 in each coordinate
        slope = jax.grad(log_density)(fn.scale) * fn.scale
        return Spread((slope + count) * fn.scale**2, count)

    def update(self, statistics: Spread, sources: Sequence[Collapsed]) -> Spread:
        """Return the statistics unchanged: `mode` increases the density given them."""
        return statistics

    def mode(self, found: Spread, values: Mapping[str, Array]) -> dict[str, Array]:
        """Optimal variance given the expected correspondences."""
        return {"spread": (self.unit**2 + found.square / 2) / (2.0 + found.num_coordinates / 2)}


def rows_about(
    shapes: Array,
    chart: ShapeChart,
    subjects: Groups,
    landmarks: ArrayLike | None,
    observation: str,
    width: ArrayLike | None,
    temperature: float | None,
) -> AboutShapes:
    """Distribution of rows about latent shapes; samples the variance of the noise unless it is given.

    Parameters
    ----------
    shapes : Array, shape (num_subjects, num_landmarks, num_axes)
    chart : ShapeChart
        Chart of the shapes; the distance between neighbouring points of its reference is the unit
        of noise and kernel.
    subjects, landmarks, observation, width, temperature
        See `latent_shape`.

    Raises
    ------
    ValueError
        For another `observation`, a width or temperature that is not positive, landmarks under the kernel
        potential, or a temperature without it.
    """
    if observation not in OBSERVATIONS:
        raise ValueError(f"observation = {shown(observation)}; expected one of {OBSERVATIONS}")
    for name, value in (("width", width), ("temperature", temperature)):
        if value is not None and not isinstance(value, Array):  # those of a schedule are traced
            check_number(name, value, Range(above=0))
    unit = spacing(chart.reference)
    if observation == "kernel":
        if landmarks is not None:
            raise ValueError(
                "observation='kernel' is of points without numbers; leave landmarks out, or the observation"
            )
        heat = shapes.shape[1] ** -2 if temperature is None else temperature
        scale = _KERNEL_WIDTH * unit if width is None else jnp.asarray(width)
        return KernelPotential(shapes, scale, subjects, heat)
    if temperature is not None:
        raise ValueError(
            f"temperature = {temperature:g} is of observation='kernel' only; leave it out"
        )
    if width is None:
        scale = PointNoise(_NOISE * unit, is_told=landmarks is None or not chart.is_full).sample()
    else:
        scale = jnp.asarray(width)
    if landmarks is None:
        return PointMixture(shapes, scale, subjects)
    return LandmarkErrors(shapes, scale, subjects, jnp.asarray(landmarks))
