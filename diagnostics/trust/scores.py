"""Scores of a clustering: by known classes, and by links."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sidebayes.models.blocks.classes.anchors import Anchors
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from sidebayes.common.class_names import class_codes

from ..fitted import AskedFit

__all__ = [
    "accuracy",
    "calibration_error",
    "f_score",
    "learned_classes",
    "purity",
    "purity_f_score",
    "score_labels",
    "scores_of",
    "violated",
    "violated_links",
]


def _known(truth: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return classes and labels of the points whose class is known."""
    classes, labels = class_codes(truth, "truth"), np.asarray(labels)
    if classes.shape != labels.shape:
        raise ValueError(f"truth is of {len(classes)} points, labels of shape {labels.shape}")
    return classes[classes >= 0], labels[classes >= 0]


def _table(truth: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Return numbers of points of each class (rows) in each cluster, where the class is known."""
    from sklearn.metrics.cluster import contingency_matrix

    return contingency_matrix(*_known(truth, labels))


def accuracy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of points right under the best one-to-one matching of clusters to classes.

    Parameters
    ----------
    truth, labels : array_like, shape (num_points,)
        Points whose class is not known (-1, NaN, None, blank) do not count.

    Raises
    ------
    ValueError
        If the lengths differ, or no class is known.
    """
    from scipy.optimize import linear_sum_assignment

    table = _table(truth, labels)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / table.sum())


def purity(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of points right when each cluster stands for its most frequent class (Yu 2016, 4.5.1).

    At least the share of the largest class, whatever the clusters; equal to `accuracy` where no two
    clusters stand for one class.

    Parameters
    ----------
    truth, labels : array_like, shape (num_points,)
        Points whose class is not known (-1, NaN, None, blank) do not count.

    Raises
    ------
    ValueError
        If the lengths differ, or no class is known.
    """
    table = _table(truth, labels)
    return float(table.max(axis=0).sum() / table.sum())


def purity_f_score(truth: ArrayLike, labels: ArrayLike) -> float:
    """Harmonic mean of `purity` and inverse purity, the share of points in the main cluster of their class.

    One cluster of all points has :math:`2p / (1 + p)`, p the share of the largest class.

    Parameters
    ----------
    truth, labels : array_like, shape (num_points,)
        Points whose class is not known (-1, NaN, None, blank) do not count.

    Raises
    ------
    ValueError
        If the lengths differ, or no class is known.

    References
    ----------
    Raghuram (2014), eqs. 3.18-3.19, who calls inverse purity accuracy; clusters are not matched one
    to one there, as they are by `accuracy`.
    """
    table = _table(truth, labels)
    forward, backward = table.max(axis=0).sum(), table.max(axis=1).sum()
    return float(2 * forward * backward / (forward + backward) / table.sum())


def f_score(truth: ArrayLike, labels: ArrayLike) -> float:
    """Mean over classes, by their sizes, of the best F-measure that a cluster has for the class.

    Parameters
    ----------
    truth, labels : array_like, shape (num_points,)
        Points whose class is not known (-1, NaN, None, blank) do not count.

    Raises
    ------
    ValueError
        If the lengths differ, or no class is known.

    References
    ----------
    Law (2006), eq. 5.34.
    """
    table = _table(truth, labels)
    classes, clusters = table.sum(axis=1), table.sum(axis=0)
    measure = 2 * table / (classes[:, None] + clusters)
    return float(classes @ measure.max(axis=1) / table.sum())


def violated(labels: ArrayLike, pairs: ArrayLike, weights: ArrayLike) -> np.ndarray:
    """Whether the labels contradict the sign of each link; weight zero states nothing.

    Parameters
    ----------
    labels : array_like, shape (num_points,)
    pairs : array_like of int, shape (num_links, 2)
    weights : array_like, shape (num_links,)

    Returns
    -------
    ndarray of bool, shape (num_links,)
    """
    labels, weights = np.asarray(labels), np.asarray(weights, float)
    pairs = np.asarray(pairs, int).reshape(-1, 2)
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    return (weights != 0) & (same != (weights > 0))


def violated_links(labels: ArrayLike, pairs: ArrayLike, weights: ArrayLike) -> int:
    """Number of links whose sign the labels contradict; see `violated`."""
    return int(violated(labels, pairs, weights).sum())


def score_labels(truth: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Adjusted Rand index, normalised mutual information and matched accuracy.

    Parameters
    ----------
    truth, labels : array_like, shape (num_points,)
        Points whose class is not known (-1, NaN, None, blank) do not count.

    Returns
    -------
    dict
        ``ari``, ``nmi`` (arithmetic mean of the entropies) and ``accuracy``.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    truth, labels = _known(truth, labels)
    return {
        "ari": float(adjusted_rand_score(truth, labels)),
        "nmi": float(normalized_mutual_info_score(truth, labels)),
        "accuracy": accuracy(truth, labels),
    }


def scores_of(fit: AskedFit) -> dict[str, float]:
    """Scores of a fit against the known classes; empty where it has no labels, or none are left to score.

    A method that learns classes is scored by its classes, and its accuracy is the share of rows whose
    class is right. Other methods are scored by their clusters; see `score_labels`. Where the truth names no
    class that was learned, or rows of given class contradict it, classes are matched as clusters are. Rows
    whose class was given to the fit do not count.

    Parameters
    ----------
    fit : Fit
    """
    if not fit.has_labels or "truth" not in fit.tree["observed_data"]:
        return {}
    truth = fit.tree["observed_data"]["truth"].to_numpy()
    given = _given(fit, len(truth))
    told = (truth >= 0) & (given >= 0)
    otherwise = told.any() and (truth == given)[told].mean() < 0.5
    truth = np.where(given < 0, truth, -1)
    if (truth < 0).all():
        return {}
    prob = learned_classes(fit)
    if prob is None:
        return score_labels(truth, fit.tree["responsibilities"]["labels"].to_numpy())
    found = score_labels(truth, prob.argmax(axis=1))
    of_learned = (truth >= 0) & (truth < prob.shape[1])
    if of_learned.any() and not otherwise:
        found["accuracy"] = float((prob.argmax(axis=1) == truth)[truth >= 0].mean())
    return found


def learned_classes(fit: AskedFit) -> NDArray[np.float64] | None:
    """Return the class probabilities of all points; None where there are none, or they cannot be computed."""
    try:
        return fit.class_probabilities() if fit.has_classes else None
    except ValueError:  # the model was not saved, or no class explains a row
        return None


def _given(fit: AskedFit, number: int) -> NDArray[np.int64]:
    """Return the class of each row that was given to a fit; -1 where none was given."""
    found = np.full(number, -1)
    for value in fit.run.data.values():
        if isinstance(value, PartialLabels) and len(value.classes) == number:
            found = np.where(value.classes < 0, found, value.classes)
    placed = np.asarray(fit.run.data.get("assigned", np.full(number, -1))) >= 0
    for value in fit.run.options.values():  # anchors are the rows with a component
        if isinstance(value, Anchors) and placed.sum() == len(np.asarray(value.classes)):
            found[placed] = value.classes
    return found


def calibration_error(prob: ArrayLike, outcome: ArrayLike, num_bins: int = 10) -> float:
    """Expected calibration error of probabilities of a yes-no outcome, in equal-width bins.

    The mean over pairs, bin by bin, of the distance between mean probability and observed
    frequency; for "same cluster" pass ``fit.same_cluster(pairs)`` of pairs that no link names.

    Parameters
    ----------
    prob : array_like in [0, 1], shape (n,)
    outcome : array_like of bool, shape (n,)
    num_bins : int

    Raises
    ------
    ValueError
        If the shapes differ, nothing is given, or a probability is outside [0, 1].
    """
    prob, outcome = np.asarray(prob, float), np.asarray(outcome, float)
    if prob.shape != outcome.shape or prob.ndim != 1 or not prob.size:
        raise ValueError(
            f"prob has shape {prob.shape}, outcome {outcome.shape}; expected two vectors of one, "
            "positive length"
        )
    tiny = 1e-6
    if not ((prob >= -tiny) & (prob <= 1 + tiny)).all():
        raise ValueError("prob has entries outside [0, 1]; pass probabilities, not log-odds")
    bins = np.clip((prob * num_bins).astype(int), 0, num_bins - 1)
    gap = np.bincount(bins, prob - outcome, minlength=num_bins)
    return float(np.abs(gap).sum() / len(prob))
