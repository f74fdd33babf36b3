"""Coordinates of latent shapes, and rough estimates of them from rows near a reference."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions import Distribution

from ...block import Block
from ...side_information.groups import Groups
from ..preshape import num_dimensions
from ..shape_chart import ShapeChart, spacing, whole_chart

__all__ = ["LatentCoordinates", "chart_of_means", "check_registered", "nearby", "rough_shapes"]

_REACH = 2.0
"""Width, in distances between neighbours on the reference, of rough correspondences."""

_SCHEDULE = (*(6.5,) * 6, *(4.0,) * 6, *(2.7,) * 6, *(2.0,) * 6)
"""Widths of the kernel in the first steps of an optimisation, in the same unit."""

_NARROW, _WIDE = 0.02, 10.0
"""Widths, in that unit, below which rows without numbers miss the points between which they lie, and
above which they do not discriminate between points."""

_FAR = 0.5
"""Tolerance for place, size and rotation of individuals, as a share of the reference's size."""


def rough_shapes(
    x: Array, subjects: Array, num_subjects: int, reference: Array, share: Array
) -> Array:
    """Shapes with points moved from the reference by the mean of their rows.

    Parameters
    ----------
    x : Array, shape (num_rows, num_axes)
        In the frame of the reference.
    subjects : Array of int, shape (num_rows,)
    num_subjects : int
    reference : Array, shape (num_landmarks, num_axes)
    share : Array, shape (num_rows, num_landmarks)
        Probability that a row belongs to a point; see `nearby`.

    Returns
    -------
    Array, shape (num_subjects, num_landmarks, num_axes)
    """
    weight = jax.ops.segment_sum(share, subjects, num_subjects)
    moved = share[:, :, None] * (x[:, None] - reference)
    shift = jax.ops.segment_sum(moved, subjects, num_subjects)
    # a point of the reference without rows nearby stays
    return reference + shift / (weight[..., None] + 1e-3 * weight.mean())


def nearby(x: Array, reference: Array, width: ArrayLike) -> Array:
    """Probability that a row belongs to each point of a reference, from normal densities of a width."""
    square = jnp.square(x[:, None] - reference).sum(axis=-1)
    return jax.nn.softmax(-square / (2 * jnp.square(width)), axis=1)


class LatentCoordinates(Block):
    """Coordinates of latent shapes, which the rows roughly determine.

    Parameters
    ----------
    x : array_like, shape (num_rows, num_axes), or None
    subjects : Groups
    landmarks : array_like of int, shape (num_rows,), or None
    chart : ShapeChart
    annealed : bool
        Whether the width of rows is large in the first steps.
    """

    factor: ClassVar[str] = "points"
    roles: ClassVar[tuple[str, ...]] = ("coordinates",)

    def __init__(
        self,
        x: ArrayLike | None,
        subjects: Groups,
        landmarks: ArrayLike | None,
        chart: ShapeChart,
        *,
        annealed: bool = False,
    ) -> None:
        self.x, self.subjects, self.landmarks, self.chart = x, subjects, landmarks, chart
        self.annealed = annealed

    def sample(self, individuals: Distribution) -> Array:
        """Sample the coordinates of all individuals, shape (num_subjects, num_directions)."""
        dims = ("subjects", "features")
        return self.declare("coordinates", "coordinates", individuals, dims, chart="chart")

    def guess(self) -> Array:
        """Coordinates of shapes whose points are the means of the rows near them."""
        number, reference = self.subjects.num_groups, self.chart.reference
        if self.x is None:
            return jnp.zeros((number, self.chart.num_directions))
        x = jnp.asarray(self.x)
        if self.landmarks is None:
            share = nearby(x, reference, _REACH * spacing(self.chart.reference))
        else:
            share = jax.nn.one_hot(jnp.asarray(self.landmarks).astype(int), len(reference))
        codes = jnp.asarray(self.subjects.codes)
        return self.chart.coordinates(rough_shapes(x, codes, number, reference, share))

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that bands leave out the directions beyond the chart, in which missing landmarks may lie."""
        reference, number = self.chart.reference, self.chart.num_directions
        is_whole = len(self.subjects) >= self.subjects.num_groups * len(reference)
        if self.landmarks is None or is_whole or self.chart.is_full:
            return None
        most = num_dimensions(*reference.shape)
        return (
            f"Some landmarks are missing, and the chart has {number} of {most} directions, as if these were "
            "known and all: bands of individuals are too narrow, above all at missing landmarks; for bands, "
            f"give register_points(num_modes={most}), and width=, the error of measurement in units of the "
            "chart"
        )

    def schedule(self) -> tuple[str, Array] | None:
        """Widths that decrease from the size of displacements to the distance of neighbouring points."""
        if not self.annealed:
            return None
        return "width", jnp.asarray(_SCHEDULE) * spacing(self.chart.reference)


def chart_of_means(data: Mapping[str, Any], options: Mapping[str, Any]) -> NDArray[np.float64]:
    """Chart at the mean of each landmark, for rows that are already in one frame.

    Raises
    ------
    ValueError
        If rows have no numbers of landmarks, no row has one of these numbers, or rows are not in one
        frame.
    """
    x, landmarks = data.get("x"), data.get("landmarks")
    if x is None or landmarks is None:
        raise ValueError(
            "points without numbers need the chart in whose frame they are; take both from "
            "sidebayes.register_points(x, subjects)"
        )
    rows, numbers = np.asarray(x, float), np.asarray(landmarks).astype(int)
    size = int(numbers.max(initial=0)) + 1
    _check_numbers(landmarks, size)
    count = np.bincount(numbers, minlength=size)
    if not count.all():
        raise ValueError(
            f"landmarks go up to {size - 1}, and no row has landmark {int(count.argmin())}; number them from "
            "0 without gaps, or pass the chart that has them all"
        )
    sums = [np.bincount(numbers, column, size) for column in rows.T]
    mean = np.stack(sums, axis=1) / count[:, None]
    mean -= mean.mean(axis=0)
    mean /= np.linalg.norm(mean)
    chart = whole_chart(mean)
    check_registered({**data, "chart": chart})
    return chart


def check_registered(data: Mapping[str, Any]) -> None:
    """Refuse individuals that do not lie in the frame of their chart.

    Parameters
    ----------
    data : mapping
        Data of `latent_shape` by name.

    Raises
    ------
    ValueError
        If place or size of an individual, or the rotation of its landmarks, is not that of the
        reference, or if landmarks or the width are out of range. Its shape is arbitrary.
    """
    x, landmarks = data.get("x"), data.get("landmarks")
    if x is None:
        return
    reference = np.asarray(data["chart"], float)[..., 0]
    _check_width(data.get("width"), reference, are_numbered=landmarks is not None)
    if landmarks is not None:
        _check_numbers(landmarks, len(reference))
        expected = reference[np.asarray(landmarks).astype(int)]
    else:
        expected = np.zeros((len(np.asarray(x)), reference.shape[1]))
    subjects = data["subjects"]
    codes, count = subjects.codes, np.bincount(subjects.codes, minlength=subjects.num_groups)
    size = np.sqrt((reference**2).sum(axis=1).mean())

    def mean(rows: np.ndarray) -> np.ndarray:
        return np.bincount(codes, rows, subjects.num_groups) / count

    rows = np.asarray(x, float)
    apart = rows - expected
    shift = np.linalg.norm([mean(column) for column in apart.T], axis=0) / size
    if landmarks is None:
        off = np.abs(np.log(np.sqrt(mean((apart**2).sum(axis=1))) / size))
    else:
        off = _off_in_size_and_rotation(rows, expected, codes, count) / size
    if max(shift.max(), off.max()) > _FAR:
        worst = int(np.maximum(shift, off).argmax())
        raise ValueError(
            f"rows of individual {subjects.names[worst]} do not lie on the reference of the chart: their "
            f"mean is {shift[worst]:.2g} of its size away, and their size or rotation is off by "
            f"{off[worst]:.2g}; lay all individuals there by sidebayes.register_points, and give the fit "
            "what it returns"
        )


def _off_in_size_and_rotation(
    rows: NDArray, expected: NDArray, codes: NDArray, count: NDArray
) -> NDArray[np.float64]:
    """RMS distance of landmarks that an individual's optimal size and rotation would remove."""

    def summed(table: NDArray) -> NDArray:
        found = np.zeros((len(count), *table.shape[1:]))
        np.add.at(found, codes, table)
        return found

    def centred(table: NDArray) -> NDArray:
        return table - (summed(table) / count[:, None])[codes]

    own, target = centred(rows), centred(expected)
    lengths = [np.sqrt(summed((table**2).sum(axis=1))) for table in (own, target)]
    cross = summed(own[:, :, None] * target[:, None])
    values = np.linalg.svd(cross, compute_uv=False)
    values[:, -1] *= np.sign(np.linalg.det(cross))  # no reflections
    turned = np.maximum(values.sum(axis=1) - np.trace(cross, axis1=1, axis2=2), 0.0)
    saved: NDArray[np.float64] = np.sqrt(((lengths[0] - lengths[1]) ** 2 + 2 * turned) / count)
    return saved


def _check_numbers(landmarks: ArrayLike, size: int) -> None:
    """Refuse anything but the numbers of `size` landmarks."""
    numbers = np.asarray(landmarks)
    wrong = (numbers < 0) | (numbers >= size) | (numbers % 1 != 0)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"landmarks[{row}] = {numbers[row]:g}; expected a whole number from 0 to {size - 1}, as the "
            f"chart has {size} points"
        )


def _check_width(width: Any, reference: NDArray, *, are_numbered: bool) -> None:
    """Refuse a width that is not in the unit of the chart."""
    if not isinstance(width, Real) or float(width) <= 0:
        return  # learned, or refused by the model
    given, near = float(width), float(spacing(jnp.asarray(reference)))
    least, most = 0.0 if are_numbered else _NARROW * near, _WIDE * near
    if not least < given < most:
        raise ValueError(
            f"width = {given:g}; expected a number between {least:.2g} and {most:.2g}: it is in the unit of "
            f"the chart, whose points are {near:.2g} apart, not in that of the data"
        )
