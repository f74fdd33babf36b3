"""Missing landmarks, predicted from those that are seen and from how shapes vary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..preshape import horizontal_basis, log
from ..procrustes import procrustes
from ..shape_chart import beyond_noise
from .similarity import moves

__all__ = ["completed"]

_CYCLES = 500
"""Maximum number of pairs of rounds; fewer than a hundred suffice where a third is missing."""

_SETTLED = 1e-6
"""Movement of predicted landmarks, in sizes of the shapes, at which rounds end."""

_NEARLY = 1e-4
"""The same, at which a further direction is taken."""

_LONGEST = 30.0
"""Maximum length of an extrapolated step, in rounds."""

_TINY = np.finfo(np.float64).tiny

_SMALL = 1e-9
"""Variance of the noise, relative to that of the shapes, and of the prior of place, size and rotation
relative to the rows, below which systems are singular."""

_logs = jax.jit(log)


def completed(
    shapes: NDArray[np.float64], present: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], float]:
    r"""Shapes with missing landmarks predicted by the principal directions of all shapes.

    Each round aligns the completed shapes with their mean. It then finds the scores of each
    incomplete individual, together with its place, size and rotation, by least squares at the
    landmarks that are seen, where the variance of the scores shrinks them:

    .. math:: y_i = \bar y + B w_i + C m_i + e_i, \quad w_{ik} \sim N(0, \lambda_k - \sigma^2),
              \quad e_i \sim N(0, \sigma^2 I)

    in the tangent space at the mean, where C are the moves. This is regularised iterative principal
    component analysis (Josse and Husson 2012), for shapes. Predictions count as observed in the
    next round, so that variances come out somewhat small. Directions are those whose singular value
    exceeds what noise alone would give (Gavish and Donoho 2014); if there are none, missing
    landmarks are those of the mean. Every second round is extrapolated by a squared step (Varadhan
    and Roland 2008).

    Parameters
    ----------
    shapes : ndarray, shape (num_subjects, num_landmarks, num_axes)
        Preshapes that are aligned with their mean; missing landmarks have rough values.
    present : ndarray of bool, shape (num_subjects, num_landmarks)

    Returns
    -------
    completed : ndarray, like `shapes`
        The same up to place, size and rotation of each individual where nothing is missing.
    moved : float
        Distance by which predicted landmarks still moved in the last round, in sizes of the shapes.
    """
    some = ~present.all(axis=1)
    if not some.any():
        return shapes, 0.0
    seen, number, moved = present[some][..., None], 0, np.inf
    for _ in range(_CYCLES):
        shapes, first, wanted = _round(shapes, some, seen, number)
        moved = float(np.abs(first).max())
        if moved < (_SETTLED if wanted <= number else _NEARLY):
            if wanted <= number:
                break
            number += 1
            continue
        shapes, second, _ = _round(shapes, some, seen, number)
        bend = np.linalg.norm(second - first)
        length = np.clip(np.linalg.norm(first) / max(bend, _TINY), 1.0, _LONGEST)
        shapes[some] += 2 * (length - 1) * first + (length**2 - 1) * (second - first)
    return shapes, moved


def _round(
    shapes: NDArray[np.float64], some: NDArray, seen: NDArray, number: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Shapes with predictions from `number` directions, their steps, and the directions beyond noise."""
    with jax.enable_x64(True):
        found = procrustes(jnp.asarray(shapes))
        tangents = np.asarray(_logs(found.mean, found.shapes))
        basis = horizontal_basis(found.mean)
        barred = np.asarray(moves(found.mean))
    shapes, mean = np.array(found.shapes), np.asarray(found.mean)
    predicted, wanted = _predicted(tangents, some, seen, basis, barred, number)
    # in the frame in which the individual lies now
    angle = np.linalg.norm(tangents[some], axis=(1, 2), keepdims=True)
    there = np.cos(angle) * mean + np.sinc(angle / np.pi) * predicted
    step = np.where(seen, 0.0, there - shapes[some])
    shapes[some] += step
    return shapes, step, wanted


def _predicted(
    tangents: NDArray, some: NDArray, seen: NDArray, basis: NDArray, barred: NDArray, number: int
) -> tuple[NDArray[np.float64], int]:
    """Tangent vectors of incomplete individuals, and the number of directions beyond noise."""
    middle = tangents.mean(axis=0)
    table = (tangents - middle).reshape(len(tangents), -1) @ basis
    _, values, directions = np.linalg.svd(table, full_matrices=False)
    wanted = beyond_noise(values, *table.shape)
    rest = max(table.shape[1] - number, 1) * len(table)
    noise = ((values[number:] ** 2).sum() + _SMALL * (values**2).sum()) / rest
    variance = np.maximum(values[:number] ** 2 / len(table) - noise, 0.0)
    size = tangents[0].shape
    loadings = (basis @ (directions[:number].T * np.sqrt(variance))).reshape(*size, number)
    design = np.concatenate([loadings, barred], axis=2)
    own = np.where(seen, tangents[some] - middle, 0.0)
    at = seen[..., None] * design
    inner = np.einsum("ntaf,ntag->nfg", at, at)
    flat = inner[:, range(number, len(inner[0])), range(number, len(inner[0]))]
    inner[:, range(number), range(number)] += noise
    inner[:, range(number, len(inner[0])), range(number, len(inner[0]))] += _SMALL * flat.max()
    scores = np.linalg.solve(inner, np.einsum("ntaf,nta->nf", at, own)[..., None])[..., 0]
    return middle + np.einsum("taf,nf->nta", design, scores), wanted
