"""Alignment of individuals with their mean shape, and checks of their configurations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree

from sidebayes.common.magnitudes import counted
from sidebayes.common.warnings import warn_user

from ..side_information.cells import cell
from . import preshape
from .astray import distances_from, few, warn_of_astray
from .procrustes import procrustes

__all__ = [
    "Alignment",
    "align_landmarks",
    "refuse_degenerate",
    "warn_of_odd",
    "warn_of_reflected",
    "warn_of_units",
]

_logs = jax.jit(preshape.log)
_FEWEST = 3
"""Minimum number of landmarks of an individual; fewer lie on a line."""
_FLAT = 1e-9
"""Relative singular value below which landmarks lie on a line."""
_SAME = 1e-9
"""Distance of preshapes below which two individuals have one shape."""
_UNITS = 8.0
"""Ratio of two successive sizes from which on the units of the individuals seem to differ."""
_UNLIKE = 0.5
"""Distance from a reference, in radians, from which on other orders of landmarks are tried."""
_MOST_MATCHED, _MOST_LANDMARKS, _MOST_STARTS = 20, 300, 8
"""Maximum numbers of individuals, landmarks and initial rotations in the trial of other orders."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Shapes of individuals, rotated to their mean.

    Attributes
    ----------
    names : ndarray, shape (num_individuals,)
    shapes : ndarray, shape (num_individuals, num_landmarks, num_coordinates)
        Centred, with norm one; NaN where a landmark is missing.
    completed : ndarray, like `shapes`
        The same, with missing landmarks taken from the mean.
    mean : ndarray, shape (num_landmarks, num_coordinates)
        Mean shape, centred, with norm one.
    mean_size : float
    sizes : ndarray, shape (num_individuals,)
        Centroid sizes: norms of the centred configurations, in the units of the data.
    distances : ndarray, shape (num_individuals,)
        Riemannian distances to the mean shape, from 0 to pi / 2.
    """

    names: NDArray
    shapes: NDArray[np.float64]
    completed: NDArray[np.float64]
    mean: NDArray[np.float64]
    mean_size: float
    sizes: NDArray[np.float64]
    distances: NDArray[np.float64]

    @property
    def coordinates(self) -> NDArray[np.float64]:
        """Coordinates in the tangent space at the mean, shape (num_individuals, num_dimensions).

        Their norms are the distances to the mean. The basis is that of
        `sidebayes.models.blocks.manifolds.preshape.horizontal_basis`.
        """
        with jax.enable_x64(True):
            tangents = np.asarray(_logs(jnp.asarray(self.mean), jnp.asarray(self.completed)))
            basis = preshape.horizontal_basis(jnp.asarray(self.mean))
        return np.asarray(tangents.reshape(len(tangents), -1) @ basis)

    def to_frame(self) -> pd.DataFrame:
        """Centroid size and distance to the mean of each individual."""
        columns = {"centroid size": self.sizes, "distance to the mean": self.distances}
        return pd.DataFrame(columns, pd.Index(self.names, name="individual"))

    def __repr__(self) -> str:
        """Numbers of individuals and landmarks, and distances of the shapes from their mean."""
        count, landmarks, axes = self.shapes.shape
        spread = np.sqrt(np.mean(np.sin(self.distances) ** 2))
        return (
            f"Alignment({count} individuals, {landmarks} landmarks in {axes}-D, root mean square full "
            f"Procrustes distance to the mean {spread:.4g})"
        )

    def _repr_html_(self) -> str:
        return cell(repr(self), self.to_frame())


def align_landmarks(
    x: NDArray[np.float64],
    names: NDArray,
    landmark_names: tuple[str, ...] | None = None,
    *,
    scale: bool = True,
    warn: bool = True,
) -> Alignment:
    """Align individuals with their mean; see `Landmarks.aligned`, also for errors and warnings.

    Parameters
    ----------
    x : ndarray, shape (num_individuals, num_landmarks, num_coordinates)
        NaN where a landmark is missing.
    names : ndarray, shape (num_individuals,)
    landmark_names : tuple of str, optional
    scale : bool
    warn : bool
        Whether to warn.
    """
    names = names.astype(object)  # as Python objects
    present = np.isfinite(x).all(axis=2)
    refuse_degenerate(x, present, names)
    named = _warn_of_coincident(x, names, landmark_names) if warn else []
    with jax.enable_x64(True):
        found = procrustes(jnp.asarray(x), scale=scale)
    distances = distances_from(np.asarray(found.shapes), np.asarray(found.mean)).copy()
    completed = np.array(found.shapes)
    if not float(found.change) < 1e-6:
        raise ValueError(
            f"the mean shape still moves by {float(found.change):.2g} after {int(found.steps)} steps; look "
            "for individuals with few landmarks, or unlike all others"
        )
    if np.pi / 2 - distances.max() < 1e-6:
        raise ValueError(
            f"the shape of individual {names[distances.argmax()]!r} is at distance pi / 2 from the mean, the "
            "greatest there is, where no rotation is best; look whether its landmarks are right, or drop it"
        )
    if warn:
        _warn_of_flat(completed)
        _warn_of_same(completed, names)
        _warn_of_odd(completed, present, distances, names, landmark_names, named)
        if not scale:
            warn_of_units(np.asarray(found.sizes), names)
    return Alignment(
        names,
        np.where(present[..., None], completed, np.nan),
        completed,
        np.array(found.mean),
        float(found.mean_size),
        np.array(found.sizes),
        distances,
    )


def refuse_degenerate(
    x: NDArray, present: NDArray[np.bool_], names: NDArray, *, has_reference: bool = False
) -> None:
    """Refuse configurations that have no shape, or cannot be aligned.

    They are aligned with one another, or each with a reference that has every landmark.
    """
    _, landmarks, axes = x.shape
    if axes not in (2, 3):
        raise ValueError(f"x has {axes} columns; expected 2 or 3, the coordinates of landmarks")
    if landmarks == axes == 3:
        raise ValueError(
            "there are 3 landmarks in 3 dimensions, and shapes are compared here where there are more "
            "landmarks than dimensions; give at least 4, or two coordinates of each landmark in the plane of "
            "its own triangle, with the landmarks of all triangles in the same sense of rotation"
        )
    if landmarks <= axes:
        raise ValueError(
            f"there are {landmarks} landmarks in {axes} dimensions, which have no shape; give at least "
            f"{axes + 1}"
        )
    count = present.sum(axis=1)
    if (least := count.min()) < _FEWEST:
        are = "is" if least == 1 else "are"
        raise ValueError(
            f"only {least} of {landmarks} landmarks of individual {names[count.argmin()]!r} {are} present; "
            f"at least {_FEWEST} are needed: drop it, or measure more"
        )
    first = int(count.argmax())
    common = (present & present[first]).sum(axis=1)
    if not has_reference and common.min() < axes:
        raise ValueError(
            f"individual {names[common.argmin()]!r} has {counted(common.min(), 'landmark')} in common with "
            f"{names[first]!r}, which has the most; at least {axes} are needed: drop it, or measure more"
        )
    centred = np.where(present[..., None], x - np.nanmean(x, axis=1, keepdims=True), 0.0)
    values = np.linalg.svd(centred, compute_uv=False)
    size = np.abs(np.where(present[..., None], x, 0.0)).max(axis=(1, 2))
    point = values[:, 0] <= 1e-12 * size
    if point.any():
        raise ValueError(
            f"all landmarks of individual {names[point.argmax()]!r} lie in one point, which has no shape; "
            "drop it, or correct its coordinates"
        )
    line = values[:, 1] <= _FLAT * values[:, 0]
    if line.any():
        raise ValueError(
            f"all landmarks of individual {names[line.argmax()]!r} lie on a line; drop it, or correct its "
            "coordinates (is one column the same as another?)"
        )
    if not has_reference and not present.any(axis=0).all():
        raise ValueError(
            f"no individual has landmark {int(np.argmin(present.any(axis=0)))}; leave it out"
        )


def _warn_of_coincident(
    x: NDArray, names: NDArray, landmark_names: tuple[str, ...] | None
) -> list[int]:
    """Warn about individuals with two landmarks in one place; return them."""
    one, which = np.nonzero(np.isfinite(x).all(axis=2))
    table = pd.DataFrame(x[one, which]).assign(individual=one)
    same = np.flatnonzero(table.duplicated(keep=False))
    if len(same):
        rows = same[one[same] == one[same[0]]]
        pair = [landmark_names[n] if landmark_names else str(n) for n in which[rows]]
        count = len(np.unique(one[same]))
        _warn(
            f"{count} individuals have landmarks in the same place: "
            f"{few(names[np.unique(one[same])])}; the first {', '.join(pair)}. Look whether one was copied"
        )
    return np.unique(one[same]).tolist()


def _warn_of_flat(shapes: NDArray) -> None:
    values = np.linalg.svd(shapes, compute_uv=False)
    if shapes.shape[2] == 3 and (values[:, 2] <= _FLAT * values[:, 0]).all():
        _warn(
            "landmarks of every individual lie in a plane, and in space a flat shape is the same as its "
            "mirror image; give two coordinates, x[:, :2] if the third is constant"
        )


def _warn_of_same(shapes: NDArray, names: NDArray) -> None:
    flat = shapes.reshape(len(shapes), -1)
    pairs = sorted(cKDTree(flat).query_pairs(_SAME))
    if pairs:
        shown = "; ".join(f"{names[i]!r} and {names[j]!r}" for i, j in pairs[:5])
        _warn(
            f"individuals have the same shape: {shown}{'; ...' * (len(pairs) > 5)}. If they are copies, drop "
            "them: they count as independent"
        )


def warn_of_units(sizes: NDArray, names: NDArray) -> None:
    """Warn about a gap in the sizes of individuals, which indicates different units or scales."""
    order = np.argsort(sizes)
    ratio = sizes[order][1:] / sizes[order][:-1]
    if len(ratio) and ratio.max() >= _UNITS:
        cut = int(ratio.argmax()) + 1
        some = order[:cut] if 2 * cut <= len(order) else order[cut:]
        _warn(
            f"individuals differ in size from all others by a factor of {ratio.max():.3g} or more: "
            f"{few(names[np.sort(some)])}. Look whether they are in another unit"
        )


def _warn_of_odd(
    shapes: NDArray,
    present: NDArray[np.bool_],
    distances: NDArray,
    names: NDArray,
    marks: tuple[str, ...] | None,
    named: list[int],
) -> None:
    """Warn about individuals that look reflected, have landmarks in another order, or far off.

    They are compared with the individual nearest to the mean, which is a measured configuration
    even if many are reflected.
    """
    reference = shapes[int(distances.argmin())]
    own = distances_from(shapes, reference)
    mirrored = warn_of_reflected(shapes, reference, names)
    usual = 3 * np.quantile(own, 0.25)
    far = ~mirrored & (own > max(usual, _SAME))
    odd = _warn_of_reordered(shapes, reference, names, np.where(far, own, 0.0), usual)
    far[odd + named] = False
    middle = float(np.median(own))
    warn_of_astray(shapes, present, reference, names, np.where(far, own, 0.0), middle, marks)


def warn_of_odd(shapes: NDArray, reference: NDArray, names: NDArray) -> None:
    """Warn about preshapes that look reflected, or whose landmark order differs from a reference."""
    mirrored = warn_of_reflected(shapes, reference, names)
    own = distances_from(shapes, reference)
    _warn_of_reordered(
        shapes, reference, names, np.where(mirrored | (own < _UNLIKE), 0.0, own), np.inf
    )


def _warn_of_reordered(
    shapes: NDArray, reference: NDArray, names: NDArray, far: NDArray, near: float
) -> list[int]:
    """Warn about distant individuals that are near in another order of their landmarks; return them."""
    number = _MOST_MATCHED if shapes.shape[1] <= _MOST_LANDMARKS else 0
    worst = np.sort([one for one in np.argsort(-far)[:number] if far[one] > 0])
    odd = [one for one in worst if _is_reordered(shapes[one], reference, min(near, far[one] / 2))]
    if odd:
        _warn(
            f"individuals seem to have their landmarks in another order: {few(names[odd])}. In the order "
            "that fits best they are less than half as far from the others; number them alike"
        )
    return odd


def warn_of_reflected(shapes: NDArray, reference: NDArray, names: NDArray) -> NDArray[np.bool_]:
    """Warn about preshapes whose mirror images are far nearer to a reference; return their mask."""
    flipped = shapes * np.r_[-1.0, np.ones(shapes.shape[2] - 1)]
    mirrored = distances_from(flipped, reference) < distances_from(shapes, reference) / 2
    if mirrored.any():
        _warn(
            f"individuals look reflected: {few(names[mirrored])}. Their mirror images are less than half "
            "as far from the others; flip the sign of one of their coordinates"
        )
    return mirrored


def _is_reordered(shape: NDArray, reference: NDArray, distance: float) -> bool:
    """Whether a shape is nearer than a distance in some order of its landmarks.

    Principal axes are aligned with those of the reference in all possible ways. From the few with
    the least distance to the nearest landmarks, matching of landmarks and rotation of the shape
    alternate.
    """
    axes = shape.shape[1]
    own, others = (np.linalg.svd(one, full_matrices=False)[2] for one in (shape, reference))
    starts = [
        shape @ own.T @ (np.eye(axes)[list(order)] * signs) @ others
        for order in permutations(range(axes))
        for signs in product((1.0, -1.0), repeat=axes)
    ]
    tree = cKDTree(reference)
    ways = [np.square(tree.query(one)[0]).sum() for one in starts]
    for start in np.argsort(ways)[:_MOST_STARTS]:
        turned = starts[start]
        for _ in range(3):
            order = linear_sum_assignment(-reference @ turned.T)[1]
            left, _, right = np.linalg.svd(turned[order].T @ reference)
            turned = turned @ left @ right
        cosine = (turned[order] * reference).sum()
        if np.arccos(np.clip(cosine, -1, 1)) < distance:
            return True
    return False


def _warn(message: str) -> None:
    warn_user(message)
