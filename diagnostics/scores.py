"""Scores of a clustering: against the truth, and against the links."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

__all__ = ["accuracy", "calibration_error", "score_labels", "violated_links"]


def accuracy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of points right under the best one-to-one matching of clusters to classes."""
    table = contingency_matrix(truth, labels)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / table.sum())


def violated_links(labels: ArrayLike, pairs: ArrayLike, weights: ArrayLike) -> int:
    """Number of links whose sign the labels contradict."""
    labels, pairs = np.asarray(labels), np.asarray(pairs).reshape(-1, 2)
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    return int(np.sum(same != (np.asarray(weights) > 0)))


def score_labels(truth: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Adjusted Rand index, normalised mutual information and matched accuracy."""
    return {
        "ari": float(adjusted_rand_score(truth, labels)),
        "nmi": float(normalized_mutual_info_score(truth, labels)),
        "accuracy": accuracy(truth, labels),
    }


def calibration_error(prob: ArrayLike, outcome: ArrayLike, num_bins: int = 10) -> float:
    """Expected calibration error of probabilities of a yes-no outcome, in equal-width bins.

    Parameters
    ----------
    prob : array_like in [0, 1], shape (n,)
    outcome : array_like of bool, shape (n,)
    num_bins : int
    """
    prob, outcome = np.asarray(prob, float), np.asarray(outcome, float)
    bins = np.minimum((prob * num_bins).astype(int), num_bins - 1)
    size = np.bincount(bins, minlength=num_bins)
    gap = np.abs(
        np.bincount(bins, prob, minlength=num_bins) - np.bincount(bins, outcome, minlength=num_bins)
    )
    return float(gap[size > 0].sum() / len(prob))
