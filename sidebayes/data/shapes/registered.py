"""Points of individuals in one frame, as `latent_shape` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.models.blocks.manifolds.alignment import refuse_degenerate, warn_of_reflected
from sidebayes.models.blocks.manifolds.kernel_distance import kernel_distance
from sidebayes.models.blocks.manifolds.point_clouds.completion import completed
from sidebayes.models.blocks.manifolds.point_clouds.registration import register
from sidebayes.models.blocks.manifolds.preshape import nearest_rotation
from sidebayes.models.blocks.manifolds.shape_chart import (
    chart_of_shapes,
    directions_beyond_noise,
    whole_chart,
)
from sidebayes.models.blocks.side_information.groups import Groups

from ...common.arrays import real_array, refuse_gaps
from ...common.fields import check_integer
from ...common.warnings import warn_user
from .landmark_checks import check_subjects
from .landmarks import Landmarks

__all__ = ["RegisteredPoints", "register_points"]

_POINTS = 64
"""Points of a reference that is not told how many."""

_CANDIDATES = 16
"""Individuals among which the most typical is looked for."""

_MOST_POINTS = 256
"""Points of an individual that are looked at for this."""

_MOVING = 1e-4
"""Movement of predicted landmarks per round, in sizes of the shapes, that is warned of."""

_LEAST_MODES = 2
"""Directions of a chart of landmarks that is not told how many: one leading, one that is not."""

_WIDTH = 0.2
"""Width of the kernel for this, in sizes of the individuals."""

_STRAY = 20.0
"""Distance of a point from the middle of its individual, in medians, from which on it is reported."""

_FLAT = 1e-14
"""Ratio of variances along two axes below which points lie on a line."""


@dataclass(frozen=True, eq=False)
class RegisteredPoints:
    """Points or landmarks of individuals in the frame of a chart.

    Attributes
    ----------
    x : ndarray, shape (num_rows, num_axes)
        Rows of all individuals that are not missing, centred, rotated to the reference, and scaled
        to the spread of the reference; for incomplete landmarks, to that of the same landmarks of
        the reference.
    subjects : Groups
        Individual of each row.
    landmarks : ndarray of int, shape (num_rows,), or None
        Landmark of each row; None for points without numbers.
    chart : ndarray, shape (num_points, num_axes, 1 + num_directions)
        The reference and the directions; see `shape_chart`.
    landmark_names : tuple of str, or None
    """

    x: NDArray[np.float64]
    subjects: Groups
    landmarks: NDArray[np.int64] | None
    chart: NDArray[np.float64]
    landmark_names: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """Say how many individuals, rows, points and directions there are."""
        points, axes, more = self.chart.shape
        return (
            f"RegisteredPoints({self.subjects.num_groups} individuals, {len(self.x)} rows, reference of "
            f"{points} points in {axes} dimensions, {more - 1} directions)"
        )

    def by_role(self) -> dict[str, Any]:
        """Data by name of the argument, as `latent_shape` takes them; see `sidebayes.fit`."""
        found = {
            "x": self.x,
            "subjects": self.subjects,
            "landmarks": self.landmarks,
            "chart": self.chart,
        }
        return {name: value for name, value in found.items() if value is not None}

    def register(self, x: Any, subjects: Any = None) -> Self:
        """Register further individuals in the same frame; see `register_points`.

        Landmarks must have the same names as those of the frame, in any order.
        """
        points = _points(x, subjects)
        if (points.num_landmarks is None) != (self.landmarks is None):
            raise ValueError(
                "x has landmarks and the frame is of points without numbers, or the reverse; give data of "
                "the same kind"
            )
        points, names = _named_as(points, self.landmark_names), self.landmark_names
        return type(self)(*_in_frame(points, self.chart[..., 0]), self.chart, names)


def register_points(
    x: Landmarks | ArrayLike,
    subjects: Any = None,
    *,
    num_points: int | None = None,
    num_modes: int | None = None,
    reference: ArrayLike | None = None,
) -> RegisteredPoints:
    """Register clouds of points to a common reference, for `latent_shape`.

    The reference has `num_points` points, spread evenly over the most typical individual.
    Individuals are centred, scaled, and rotated to it, by probabilistic correspondences that become
    narrower. This is a local search: individuals that lie more than about 45 degrees apart have to
    be rotated by other means first. Landmarks are aligned with their Procrustes mean, and may be
    missing: the chart is that of individuals whose missing landmarks are predicted from those that
    are seen, by the principal directions of all individuals.

    Parameters
    ----------
    x : Landmarks or array_like, shape (num_rows, 2) or (num_rows, 3)
        Points in any unit, in any order and number per individual; or landmarks.
    subjects : Groups or array_like, shape (num_rows,)
        Individual of each row; not with `Landmarks`, which have their own.
    num_points : int, optional
        Number of points of the reference, 64 by default; landmarks, or a `reference`, have their
        own number.
    num_modes : int, optional
        Number of directions of the chart for landmarks, see `shape_chart`; by default also all in
        which shapes vary by more than noise (Gavish and Donoho 2014), and at least two, as
        `latent_shape` needs. Charts of points have all directions of the space of shapes.
    reference : array_like, shape (num_points, num_axes), optional
        Points of a fixed reference, in any unit, in the orientation that the result should have.

    Returns
    -------
    RegisteredPoints

    Raises
    ------
    ValueError
        If an individual has no more points than axes, or all its points lie on a line; or if the
        reference has the wrong shape, or its points lie on a line or coincide.

    Warns
    -----
    SideBayesWarning
        As for `Landmarks.aligned`; also if landmarks look reflected beside a given reference, if a
        point lies far from all others of its individual, or if the prediction of missing landmarks
        has not converged.
    """
    points = _points(x, subjects)
    if num_points is not None:
        num_points = check_integer("num_points", num_points, 3)
    if points.num_landmarks is not None:
        _agree(num_points, points.num_landmarks)
        return _of_landmarks(points, num_modes, reference)
    if num_modes is not None:
        raise ValueError("num_modes is of landmarks; charts of points have all directions")
    rows, codes, number = _centred(points)
    if reference is None:
        size = _POINTS if num_points is None else num_points
        found = _normed(_spread(_typical(rows, codes, number), size))
    else:
        found = _checked(reference, rows.shape[1])
        _agree(num_points, len(found))
    unit = np.sqrt(len(found))
    with jax.enable_x64(True):
        given = jnp.asarray(rows / unit), jnp.asarray(codes), jnp.asarray(found)
        laid = np.asarray(register(*given, number))
    return RegisteredPoints(laid, points.subjects, None, whole_chart(found))


def _agree(num_points: int | None, own: int) -> None:
    """Refuse a number of points that is not that of landmarks or of a reference."""
    if num_points not in (None, own):
        raise ValueError(
            f"num_points = {num_points}, and the landmarks or the reference have {own}; leave it out"
        )


def _points(x: Any, subjects: Any) -> Landmarks:
    """Data of either form as landmarks, which may have no numbers."""
    if isinstance(x, Landmarks):
        if subjects is not None:
            raise ValueError("subjects are part of Landmarks; leave them out")
        return x
    if subjects is None:
        raise ValueError(
            "subjects is None; give the individual of each row of x, or Landmarks as x, which whole "
            "shapes become by sidebayes.Landmarks.from_array(x)"
        )
    rows = real_array("x", x)
    return Landmarks(rows, check_subjects(subjects, len(rows)))


def _centred(points: Landmarks) -> tuple[NDArray, NDArray, int]:
    """Rows about the middle of their individual, with mean square one; the individuals; their number."""
    rows = np.asarray(points.x, float)
    codes, number = points.subjects.codes, points.subjects.num_groups
    count = np.bincount(codes, minlength=number)

    def mean(table: NDArray) -> NDArray:
        return (
            np.stack([np.bincount(codes, column, number) for column in table.T], axis=1)
            / (count[:, None])
        )

    _warn_of_stray(rows, points.subjects)
    apart = rows - mean(rows)[codes]
    size = np.sqrt(mean(apart**2).sum(axis=1))
    worst = int(np.argmin(np.where(count > rows.shape[1], size, 0.0)))
    if count[worst] <= rows.shape[1] or size[worst] <= 1e-9 * np.abs(rows).max():
        raise ValueError(
            f"individual {points.subjects.names[worst]} has {count[worst]} points, {size[worst]:.2g} apart; "
            f"expected more than {rows.shape[1]}, at distinct places: drop it"
        )
    spread = mean((apart[:, :, None] * apart[:, None]).reshape(len(rows), -1))
    values = np.linalg.eigvalsh(spread.reshape(number, rows.shape[1], -1))
    line = values[:, -2] <= _FLAT * values[:, -1]
    if line.any():
        raise ValueError(
            f"all points of individual {points.subjects.names[line.argmax()]} lie on a line; drop it, or "
            "correct its coordinates (is one column constant?)"
        )
    return apart / size[codes][:, None], codes, number


def _warn_of_stray(rows: NDArray, subjects: Groups) -> None:
    """Warn of individuals with a point far from their others, which would become small beside it."""
    codes = subjects.codes
    middle = pd.DataFrame(rows).groupby(codes).transform("median").to_numpy()
    away = pd.Series(np.linalg.norm(rows - middle, axis=1)).groupby(codes)
    reach = (away.max() / away.median()).fillna(1.0).to_numpy()
    usual = float(np.quantile(reach, 0.5, method="lower"))
    stray = np.flatnonzero((reach > _STRAY) & (reach > _STRAY / 2 * usual))
    if len(stray):
        worst, names = away.idxmax().to_numpy(), subjects.names.tolist()
        few = ", ".join(f"row {worst[k]} of individual {names[k]!r}" for k in stray[:5])
        warn_user(
            f"points lie more than {_STRAY:g} times as far from the middle of their individual as half of "
            f"its points do: {few}{', ...' * (len(stray) > 5)}. They decide the scale of their individual; "
            "look whether they are right, or drop them"
        )


def _in_frame(
    points: Landmarks, reference: NDArray
) -> tuple[NDArray[np.float64], Groups, NDArray[np.int64] | None]:
    """Rows of individuals in the frame of a reference that stays, their individuals and landmarks."""
    if points.num_landmarks is not None:
        _warn_beside(points, reference)
        return _rows_of(points, _laid_on(points.to_array(), reference))
    rows, codes, number = _centred(points)
    with jax.enable_x64(True):
        unit = np.sqrt(len(reference))
        given = jnp.asarray(rows / unit), jnp.asarray(codes), jnp.asarray(reference)
        return np.asarray(register(*given, number)), points.subjects, None


def _checked(reference: ArrayLike, axes: int, size: int | None = None) -> NDArray[np.float64]:
    """A reference that is given, centred and of norm one."""
    points = real_array("reference", reference)
    wanted = points.ndim == 2 and points.shape[1] == axes and len(points) >= 3
    if not wanted or (size is not None and len(points) != size):
        raise ValueError(
            f"reference has shape {points.shape}; expected ({size or 'three points at least'}, {axes})"
        )
    refuse_gaps("reference", points, "drop such points")
    found = points - points.mean(axis=0)
    if np.linalg.matrix_rank(found, tol=1e-9 * np.abs(points).max()) < 2:
        raise ValueError(
            "points of the reference lie on a line, or coincide; give a reference that has a shape"
        )
    return _normed(found)


def _normed(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points about their middle, of norm one."""
    found = points - points.mean(axis=0)
    normed: NDArray[np.float64] = found / np.linalg.norm(found)
    return normed


def _of_landmarks(
    points: Landmarks, num_modes: int | None, reference: ArrayLike | None
) -> RegisteredPoints:
    """Landmarks, some of which may be missing, on their mean or a reference that is given."""
    found = points.aligned()
    whole, moved = completed(found.completed, points.present)
    if moved > _MOVING:
        gone = 1 - points.present.mean()
        warn_user(
            f"missing landmarks, {gone:.0%} of all, are not told well by those that are seen: their "
            f"predicted places still move by {moved:.1g} of the size of a shape per round. Drop individuals "
            "and landmarks of which much is missing"
        )
    if reference is not None:
        given = _checked(reference, found.mean.shape[1], len(found.mean))
        _warn_beside(points, given)
        whole = _laid_on(whole, given)
    names = np.asarray(points.names)
    chart = chart_of_shapes(whole, names, num_modes, warn=False)
    if num_modes is None:
        least = max(_LEAST_MODES, directions_beyond_noise(whole))
        if chart.shape[2] <= least:
            chart = chart_of_shapes(whole, names, least, warn=False)
    laid = _rows_of(points, _laid_on(points.to_array(), chart[..., 0]))
    return RegisteredPoints(*laid, chart, points.landmark_names)


def _named_as(points: Landmarks, names: tuple[str, ...] | None) -> Landmarks:
    """Landmarks in the order of others."""
    own = points.landmark_names
    if own == names or own is None or names is None:
        return points
    if set(own) != set(names):
        raise ValueError(
            f"x has the {len(own)} landmarks {', '.join(own):.60}, and the frame the {len(names)} landmarks "
            f"{', '.join(names):.60}; give x the landmark_names of the frame, and NaN or no row for what is "
            "missing"
        )
    return Landmarks(points.x, points.subjects, np.asarray(own, object)[points.landmarks], names)


def _warn_beside(points: Landmarks, reference: NDArray) -> None:
    """Refuse individuals without a shape; warn of complete ones that look reflected beside a reference."""
    whole, names = points.to_array(), np.asarray(points.names, object)
    present = np.isfinite(whole).all(axis=2)
    refuse_degenerate(whole, present, names, has_reference=True)
    complete = present.all(axis=1)
    if complete.any():
        shapes = np.stack([_normed(one) for one in whole[complete]])
        warn_of_reflected(shapes, reference, names[complete])


def _rows_of(
    points: Landmarks, laid: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Groups, NDArray[np.int64] | None]:
    """Rows, as they come, of individuals that were laid somewhere."""
    landmarks = points.landmarks
    assert landmarks is not None  # they correspond
    return laid[points.subjects.codes, landmarks], points.subjects, landmarks


def _laid_on(x: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Individuals moved, turned and scaled to a reference by the landmarks that they have.

    They become as large as the reference is at these landmarks. Shapes of the chart have norm one, as the
    reference has, so that a complete individual has norm one, and an incomplete one has it together with
    what it lacks, put where the reference has it. The scale of least squares would be the cosine of the
    distance to the reference, and the size that it takes away would be noise to the model.
    """
    present = np.isfinite(x).all(axis=2)[..., None]
    count = present.sum(axis=1, keepdims=True)

    def centred(table: NDArray) -> tuple[NDArray, NDArray]:
        middle = np.where(present, table, 0.0).sum(axis=1, keepdims=True) / count
        return np.where(present, table - middle, 0.0), middle

    rows, _ = centred(x)
    target, middle = centred(np.broadcast_to(reference, x.shape))
    cross = rows.swapaxes(1, 2) @ target
    with jax.enable_x64(True):
        rotation = np.asarray(nearest_rotation(jnp.asarray(cross)))
    scale = np.linalg.norm(target, axis=(1, 2)) / np.linalg.norm(rows, axis=(1, 2))
    laid = scale[:, None, None] * rows @ rotation + middle
    return np.where(present, laid, np.nan)


def _typical(rows: NDArray, codes: NDArray, number: int) -> NDArray[np.float64]:
    """Rows of the individual that is nearest to others by the kernel distance."""
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permutation(number)[:_CANDIDATES])
    few = []
    for individual in chosen:  # sixteen at most
        own = np.flatnonzero(codes == individual)
        few.append(rows[rng.permutation(own)[:_MOST_POINTS]])
    size = min(map(len, few))
    shapes = jnp.asarray(np.stack([cloud[:size] for cloud in few]))
    every = jnp.concatenate(list(shapes))
    with jax.enable_x64(True):
        owners = jnp.repeat(jnp.arange(len(few)), size)
        apart = jax.vmap(
            lambda one: kernel_distance(
                every, owners, jnp.broadcast_to(one, shapes.shape), _WIDTH
            ).sum()
        )(shapes)
    found: NDArray[np.float64] = rows[codes == chosen[int(np.argmin(apart))]]
    return found


def _spread(rows: NDArray, num_points: int) -> NDArray[np.float64]:
    """Points that are spread evenly over a cloud."""
    distinct = np.unique(rows, axis=0)
    if len(distinct) <= num_points:
        if len(distinct) < num_points:
            raise ValueError(
                f"num_points = {num_points}, and the most typical individual has {len(distinct)} distinct "
                "points; ask for fewer, or give a reference"
            )
        return np.asarray(distinct)
    from sklearn.cluster import KMeans  # fits ask for the class in this file, and need no clusters

    centres: NDArray[np.float64] = (
        KMeans(num_points, n_init=1, random_state=0).fit(distinct).cluster_centers_
    )
    return centres
