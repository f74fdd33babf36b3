"""Starting values of classes, from subjects whose effects are close to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ..components.partition_starts import partition_labels
from ..side_information.groups import Groups
from .densities.basis import lower_basis

__all__ = ["class_starts"]


def class_starts(
    y: NDArray,
    fixed: NDArray,
    random: NDArray,
    subjects: Groups,
    outputs: NDArray | None,
    units: Any,
    *,
    num_clusters: int,
    own: NDArray[np.int64],
    admissible: NDArray[np.bool_] | None,
    seed: int,
    num_starts: int,
) -> NDArray[np.float64]:
    """Fixed effects of classes, fitted by least squares to the members of partitions of the subjects.

    Effects of the subjects are predicted by a linear mixed model without classes, in which noise
    and effects each account for half of the variance about a least-squares fit. The partitions are
    those of `partitions`. Known classes determine the numbers of the parts, and take precedence
    over the partition.

    Parameters
    ----------
    y : ndarray, shape (num_rows,)
    fixed : ndarray, shape (num_rows, num_terms)
    random : ndarray, shape (num_rows, num_effects)
    subjects : Groups
    outputs : ndarray, shape (num_rows, num_outputs), or None
    units : DataScales
    num_clusters : int
    own : ndarray of int
        Columns of `fixed` that have a coefficient for each class.
    admissible : ndarray of bool, shape (num_groups, num_clusters), or None
        Classes that each subject may have.
    seed, num_starts : int

    Returns
    -------
    ndarray, shape (num_starts, num_clusters, len(own))
    """
    codes, number = np.asarray(subjects.codes), subjects.num_groups
    weight = units.noise[0] ** -2.0 if outputs is None else outputs @ units.noise**-2.0
    residual = (y - fixed @ units.start) * weight
    effects = _predicted(random, residual, weight, units.factor, codes, number)
    # all rows with the weight of one subject keep the fit to a small class regular
    basis = lower_basis(np, fixed[:, own])
    columns = fixed[:, own] @ basis
    gram = _by_group(_products(columns, weight), codes, number)
    slope = _by_group(columns * residual[:, None], codes, number)
    prior = gram.mean(axis=0)
    labels = partition_labels(effects, num_clusters, seed, num_starts)
    found = np.empty((num_starts, num_clusters, len(own)))
    for start, label in enumerate(labels):
        part = label if admissible is None else _agreeing(label, admissible)
        for cluster in range(num_clusters):
            member = part == cluster
            total = (prior + gram[member].sum(axis=0)).reshape(len(own), len(own))
            found[start, cluster] = np.linalg.solve(total, slope[member].sum(axis=0))
    return units.start[own] + found @ basis.T


def _products(columns: NDArray, weight: Any) -> NDArray[np.float64]:
    """Weighted products of columns, by row."""
    weighted = columns * np.reshape(weight, (-1, 1))
    return (weighted[:, :, None] * columns[:, None, :]).reshape(len(columns), -1)


def _by_group(terms: NDArray, codes: NDArray, number: int) -> NDArray[np.float64]:
    """Sums of each column by group."""
    return np.stack([np.bincount(codes, column, number) for column in terms.T], axis=1)


def _predicted(
    random: NDArray, residual: NDArray, weight: Any, factor: NDArray, codes: NDArray, number: int
) -> NDArray[np.float64]:
    """Predicted effects of the subjects, in units in which they are independent a priori."""
    white = random @ factor
    size = white.shape[1]
    gram = _by_group(_products(white, weight), codes, number).reshape(number, size, size)
    shift = _by_group(white * residual[:, None], codes, number)
    return np.linalg.solve(gram + np.eye(size), shift[:, :, None])[:, :, 0]


def _agreeing(label: NDArray, admissible: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A partition renumbered to agree with known classes, which then overwrite it."""
    share = admissible / admissible.sum(axis=1, keepdims=True)
    table = np.stack([share[label == k].sum(axis=0) for k in range(admissible.shape[1])])
    part = linear_sum_assignment(-table)[1][label]
    allowed = admissible[np.arange(len(part)), part]
    return np.where(allowed, part, admissible.argmax(axis=1))
