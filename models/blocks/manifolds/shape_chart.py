"""Chart of the space of shapes at a reference: shapes as vectors, and rows of landmarks as shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.arrays import real_array, refuse_gaps
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import counted, shown

from ..side_information.groups import Groups
from . import preshape
from .alignment import align_landmarks, refuse_degenerate, warn_of_odd, warn_of_units
from .covariates import warn_of_nothing_left

__all__ = [
    "ShapeChart",
    "beyond_noise",
    "chart_of_shapes",
    "check_outline",
    "check_shapes",
    "choose_chart",
    "configurations",
    "directions_beyond_noise",
    "shape_chart",
    "shape_coordinates",
    "spacing",
    "whole_chart",
    "whole_coordinates",
]

_SHARE = 0.95
"""Share of the variance that the directions of a chart explain by default."""

_NOTHING = 1e-6
"""Singular value, relative to the first, below which there is neither variation nor noise."""

_SAME = 1e-9
"""Spread of shapes, in radians, below which they count as constant."""

_INDIVIDUALS_EACH = 3
"""Minimum number of individuals per direction of a chart, by default."""


class ShapeChart(NamedTuple):
    r"""Coordinates w of shapes near a reference, :math:`u = \text{Exp}_{M}(B w)`.

    Attributes
    ----------
    reference : Array, shape (num_landmarks, num_axes)
        M: centred, of norm one.
    directions : Array, shape (num_landmarks * num_axes, num_directions)
        B: orthonormal and horizontal at the reference, so that shapes are aligned with it.
    """

    reference: Array
    directions: Array

    @classmethod
    def of(cls, table: ArrayLike) -> ShapeChart:
        """A chart from the table of `shape_chart`."""
        table = jnp.asarray(table)
        reference = table[..., 0]
        return cls(reference, table[..., 1:].reshape(reference.size, -1))

    @property
    def num_landmarks(self) -> int:
        """Number of landmarks."""
        return self.reference.shape[0]

    @property
    def num_directions(self) -> int:
        """Number of coordinates."""
        return self.directions.shape[1]

    @property
    def is_full(self) -> bool:
        """Whether there is a direction for every dimension of the space of shapes."""
        return self.num_directions >= preshape.num_dimensions(*self.reference.shape)

    @jax.jit
    def shapes(self, coordinates: Array) -> Array:
        """Preshapes, aligned with the reference, shape (..., num_landmarks, num_axes)."""
        tangent = coordinates @ self.directions.T
        return preshape.exp(
            self.reference, tangent.reshape(*tangent.shape[:-1], *self.reference.shape)
        )

    @jax.jit
    def coordinates(self, landmarks: Array) -> Array:
        """Coordinates of configurations of landmarks with any place, size and rotation.

        Variation of shapes beyond the directions of the chart is left out.
        """
        tangent = preshape.log(self.reference, preshape.to_preshape(landmarks).shape)
        return tangent.reshape(*tangent.shape[:-2], -1) @ self.directions


def spacing(points: Array) -> Array:
    """Mean distance between a point and its nearest neighbour, shape ()."""
    square = jnp.square(points[:, None] - points).sum(axis=-1)
    apart = jnp.where(jnp.eye(len(points)) > 0, jnp.inf, square)
    return jnp.sqrt(apart.min(axis=1)).mean()


def configurations(
    x: ArrayLike, subjects: Groups, landmarks: ArrayLike, num_landmarks: int
) -> Array:
    """Configurations of individuals from rows, shape (num_subjects, num_landmarks, num_axes).

    Parameters
    ----------
    x : array_like, shape (num_rows, num_axes)
    subjects : Groups
        Individual of each row.
    landmarks : array_like of int, shape (num_rows,)
        Number of the landmark of each row, from 0.
    num_landmarks : int

    Raises
    ------
    ValueError
        If an individual lacks a landmark or has it twice, or a number is out of range, as far as
        the numbers are known.
    """
    if not any(isinstance(one, Tracer) for one in (landmarks, subjects.codes)):
        _check_complete(subjects, np.asarray(landmarks), num_landmarks)
    size = subjects.num_groups, num_landmarks
    return _by_individual(jnp.asarray(x), jnp.asarray(subjects.codes), jnp.asarray(landmarks), size)


@partial(jax.jit, static_argnums=3)
def _by_individual(rows: Array, codes: Array, landmarks: Array, size: tuple[int, int]) -> Array:
    blank = jnp.zeros((*size, rows.shape[1]), rows.dtype)
    return blank.at[codes, landmarks.astype(int)].set(rows)


def _check_complete(subjects: Groups, landmarks: NDArray, num_landmarks: int) -> None:
    wrong = (landmarks < 0) | (landmarks >= num_landmarks) | (landmarks % 1 != 0)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"landmarks[{row}] = {landmarks[row]:g}; expected a whole number from 0 to {num_landmarks - 1}, "
            f"as there are {num_landmarks} landmarks"
        )
    if len(landmarks) and landmarks.min() > 0:
        raise ValueError(
            f"landmarks has numbers from {landmarks.min():g} to {landmarks.max():g}, and no row of landmark "
            "0; number landmarks from 0"
        )
    cell = np.asarray(subjects.codes) * num_landmarks + landmarks.astype(int)
    count = np.bincount(cell, minlength=subjects.num_groups * num_landmarks)
    if (count != 1).any():
        worst = int((count != 1).argmax())
        who, which = divmod(worst, num_landmarks)
        name = who if subjects.names is None else subjects.names[who]
        raise ValueError(
            f"individual {name} has {count[worst]} rows of landmark {which}; every individual needs "
            "each landmark once: leave incomplete individuals out, or register all by "
            "sidebayes.register_points and take latent_shape, where they may lack some"
        )


def shape_coordinates(
    x: ArrayLike | None,
    subjects: Groups,
    landmarks: ArrayLike,
    chart: ShapeChart,
    *,
    size: bool = False,
) -> Array | None:
    """Coordinates of the individuals in a chart, shape (num_subjects, num_directions); None without `x`.

    With `size`, the logarithm of the centroid size, in units of `x`, is an additional column.
    """
    if size not in (True, False):
        raise ValueError(f"size = {shown(size)}; expected True or False")
    if x is None:
        return None
    whole = configurations(x, subjects, landmarks, chart.num_landmarks)
    found = chart.coordinates(whole)
    if not size:
        return found
    return jnp.concatenate([found, jnp.log(preshape.to_preshape(whole).size)[:, None]], axis=1)


def shape_chart(shapes: ArrayLike, num_modes: int | None = None) -> NDArray[np.float64]:
    """Table of the chart at the mean of some shapes, along their principal directions.

    Parameters
    ----------
    shapes : array_like, shape (num_subjects, num_landmarks, num_axes)
        Configurations of landmarks, of any place, size and rotation.
    num_modes : int, optional
        Number of directions, at most the dimension of the space of shapes. By default as many as
        explain 95 % of the variance, but no more than one per three individuals.

    Returns
    -------
    ndarray, shape (num_landmarks, num_axes, 1 + num_modes)
        The reference, centred and of norm one, comes first, then the directions, by falling
        variance. If more are requested, directions in which these shapes do not vary complete them.

    Raises
    ------
    ValueError
        If there are fewer than two shapes, they are degenerate, or `num_modes` is out of range.

    Warns
    -----
    SideBayesWarning
        If individuals look reflected, have landmarks in another order or far off, or are the same.
    """
    whole = real_array("shapes", shapes)
    if whole.ndim != 3 or len(whole) < 2:
        raise ValueError(
            f"shapes have shape {whole.shape}; expected (individuals, landmarks, axes), two individuals at "
            "least"
        )
    refuse_gaps("shapes", whole, "drop such individuals, or estimate their landmarks")
    return chart_of_shapes(whole, np.arange(len(whole)), num_modes)


def chart_of_shapes(
    whole: NDArray, names: NDArray, num_modes: int | None, *, warn: bool = True
) -> NDArray[np.float64]:
    """See `shape_chart`; `names` of the individuals are for messages, which those that were told need not."""
    mean = align_landmarks(whole, names, warn=warn).mean
    basis, coordinates = _everywhere(mean, whole)
    _, deviations, directions = np.linalg.svd(coordinates - coordinates.mean(axis=0))
    if len(whole) < 2 or deviations[0] < _SAME:
        raise ValueError(
            f"there is one shape, of {counted(len(whole), 'individual')}, and a chart needs shapes that "
            "vary; give others, or the chart of others, chart=sidebayes.shape_chart(shapes)"
        )
    if num_modes is None:
        held = np.cumsum(deviations**2) / (deviations**2).sum()
        number = int(np.searchsorted(held, _SHARE)) + 1
        number = max(min(number, len(whole) // _INDIVIDUALS_EACH, basis.shape[1]), 1)
    else:
        number = check_integer("num_modes", num_modes, 1, basis.shape[1] + 1)
    return _table(mean, basis @ directions[:number].T)


def directions_beyond_noise(shapes: NDArray[np.float64]) -> int:
    """Number of principal directions in which shapes vary by more than noise; see `beyond_noise`."""
    mean = align_landmarks(shapes, np.arange(len(shapes)), warn=False).mean
    _, coordinates = _everywhere(mean, shapes)
    centred = coordinates - coordinates.mean(axis=0)
    return beyond_noise(np.linalg.svd(centred, compute_uv=False), *centred.shape)


def beyond_noise(values: NDArray[np.float64], num_subjects: int, num_directions: int) -> int:
    """Number of singular values above those of noise of unknown variance (Gavish and Donoho 2014)."""
    values = values[: min(num_subjects - 1, num_directions)]  # about the mean
    ratio = min(num_subjects, num_directions) / max(num_subjects, num_directions)
    threshold = 0.56 * ratio**3 - 0.95 * ratio**2 + 1.82 * ratio + 1.43
    return int((values > max(threshold * np.median(values), _NOTHING * values[0])).sum())


def whole_chart(reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Table of the chart at a preshape along all directions of the space of shapes."""
    with jax.enable_x64(True):
        basis = np.asarray(preshape.horizontal_basis(jnp.asarray(reference)))
    return _table(reference, basis)


def _table(reference: NDArray, directions: NDArray) -> NDArray[np.float64]:
    table = np.concatenate([np.reshape(reference, (-1, 1)), directions], axis=1)
    return table.reshape(*reference.shape, -1)


def _everywhere(mean: NDArray, whole: NDArray) -> tuple[NDArray, NDArray]:
    """All horizontal directions at a reference, and coordinates along them."""
    with jax.enable_x64(True):
        basis = preshape.horizontal_basis(jnp.asarray(mean))
        chart = ShapeChart(jnp.asarray(mean), jnp.asarray(basis))
        return basis, np.asarray(chart.coordinates(jnp.asarray(whole)))


def whole_coordinates(data: Mapping[str, Any], reference: Array) -> NDArray[np.float64]:
    """Coordinates of individuals along all directions at a reference, without loss of variation.

    Parameters
    ----------
    data : mapping
        As in `choose_chart`.
    reference : Array, shape (num_landmarks, num_axes)

    Returns
    -------
    ndarray, shape (num_subjects, num_dimensions)
    """
    with jax.enable_x64(True):
        whole = configurations(data["x"], data["subjects"], data["landmarks"], len(reference))
    return _everywhere(np.asarray(reference), np.asarray(whole))[1]


def choose_chart(data: Mapping[str, Any], options: Mapping[str, Any]) -> NDArray[np.float64]:
    """Chart of the present individuals, if none is given; see `shape_chart`.

    Parameters
    ----------
    data : mapping
        Data of `hierarchical_shape` by name: ``x``, ``subjects`` and ``landmarks``.
    options : mapping
        Options of `hierarchical_shape` by name.

    Warns
    -----
    SideBayesWarning
        As `shape_chart`; if groups and covariates leave no residual variation of the individuals;
        and, if sizes count, about individuals whose sizes are far from all others.
    """
    x, landmarks, subjects = data.get("x"), data["landmarks"], data["subjects"]
    if x is None:
        raise ValueError(
            "without x there is no mean shape to take coordinates at; pass "
            "chart=sidebayes.shape_chart(shapes)"
        )
    number = int(np.max(landmarks, initial=0)) + 1
    with jax.enable_x64(True):
        whole = np.asarray(configurations(x, subjects, landmarks, number))
    warn_of_nothing_left(data)
    if options.get("size") is True:
        apart = whole - whole.mean(axis=1, keepdims=True)
        warn_of_units(np.linalg.norm(apart, axis=(1, 2)), np.asarray(subjects.names, dtype=object))
    return chart_of_shapes(whole, np.asarray(subjects.names), options.get("num_modes"))


def check_shapes(data: Mapping[str, Any]) -> None:
    """Refuse individuals without coordinates in a given chart; warn about those that look reflected.

    Parameters
    ----------
    data : mapping
        As in `choose_chart`, with the ``chart``.

    Raises
    ------
    ValueError
        If an individual lacks a landmark or has no shape.

    Warns
    -----
    SideBayesWarning
        About individuals whose mirror images, or landmarks in another order, are less than half as
        far from the reference.
    """
    if data.get("x") is None:
        return
    subjects = data["subjects"]
    with jax.enable_x64(True):
        chart = ShapeChart.of(data["chart"])
        whole = configurations(data["x"], subjects, data["landmarks"], chart.num_landmarks)
        names = np.asarray(subjects.names, dtype=object)
        refuse_degenerate(np.asarray(whole), np.ones(whole.shape[:2], bool), names)
        warn_of_odd(
            np.asarray(preshape.to_preshape(whole).shape), np.asarray(chart.reference), names
        )


def check_outline(outline: str | None) -> str | None:
    """Check how landmarks in order are joined: None, "open" or "closed"."""
    if outline is not None and outline not in ("open", "closed"):
        raise ValueError(f"outline = {shown(outline)}; expected None, 'open' or 'closed'")
    return outline
