"""Starts of component-wise EM: at known classes, in some of many rows; and how the best two compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from .engines.base import Problem
from .engines.modes import starts_that_reached
from .engines.problem.declared import observed_table
from .engines.problem.posterior import derive, latent_shapes
from .feature_saliency_steps import Sites

__all__ = [
    "at_known_rows",
    "next_best",
    "num_known",
    "num_starts",
    "some_rows",
    "with_all_features",
]

_FEWEST, _MOST = 3, 20
"""Minimum and maximum default number of starts."""

_WORK = 4_000_000
"""Product of rows, features and clusters, summed over starts, up to which there are more than the minimum."""

_ROWS_PER_CLUSTER = 300
"""Number of rows per cluster of the start that are enough to begin the search."""

_MANY = 4
"""Minimum ratio of all rows to those for a search in some of them to be worth its compilation."""


def num_starts(problem: Problem, names: Sites) -> int:
    """Return many starts, as many messages have nearly the same length, but few for large tables."""
    data = observed_table(problem, names.observed)
    clusters = latent_shapes(problem)[names.weights][-1]
    work = clusters * (0 if data is None else data.size)
    return int(np.clip(_WORK // max(work, 1), _FEWEST, _MOST))


def at_known_rows(problem: Problem, names: Sites, starts: dict[str, NDArray]) -> dict[str, NDArray]:
    """Starts whose clusters have the means of normal features of rows that partial labels give them."""
    data = observed_table(problem, names.observed)
    known = next((arg for arg in problem.args if isinstance(arg, PartialLabels)), None)
    if known is None or data is None or not names.normal:
        return starts
    data = data[:, np.array(names.normal)]
    location = starts[names.location].copy()
    classes = np.asarray(known.classes)
    for cluster in np.unique(classes[classes >= 0]):
        own = data[classes == cluster]
        told = ~np.isnan(own)
        mean = np.where(told, own, 0.0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
        location[:, cluster] = np.where(told.any(axis=0), mean, location[:, cluster])
    return starts | {names.location: location}


def num_known(problem: Problem) -> int:
    """Number of clusters that partial labels name."""
    known = [np.asarray(arg.classes) for arg in problem.args if isinstance(arg, PartialLabels)]
    return len(np.unique([one for classes in known for one in classes[classes >= 0]]))


def with_all_features(names: Sites, starts: dict[str, NDArray]) -> dict[str, NDArray]:
    """Return starts, and the first again with all saliencies at one, where they stay or fall to zero."""
    more = {name: np.concatenate([values, values[:1]]) for name, values in starts.items()}
    more[names.saliency][-1] = 1.0
    return more


def _is_blank(arg: Any) -> bool:
    """Return whether an argument is empty, as `fit` passes a graph where there are no links."""
    return arg is None or (isinstance(arg, LabelGraph) and not arg.num_links)


def some_rows(
    problem: Problem, names: Sites, starts: dict[str, NDArray], seed: int
) -> Problem | None:
    """Return the problem for a random sample of rows; None if rows are few, or data more than a table."""
    tables = [n for n, arg in enumerate(problem.args) if not _is_blank(arg)]
    data = observed_table(problem, names.observed)
    size = _ROWS_PER_CLUSTER * starts[names.weights].shape[-1]
    if data is None or len(tables) != 1 or len(data) < _MANY * size:
        return None
    table = np.asarray(problem.args[tables[0]])
    if table.shape != data.shape:
        return None
    rows = np.sort(np.random.default_rng(seed).choice(len(table), size, replace=False))
    args = tuple(table[rows] if n == tables[0] else None for n in range(len(problem.args)))
    return Problem(problem.model, args, problem.kwargs)


def next_best(
    problem: Problem, value: NDArray, best: int, ends: Mapping[str, NDArray]
) -> str | None:
    """Return a remark on the start that came next to the best; None where several led there, or one was made.

    Parameters
    ----------
    problem : Problem
    value : ndarray, shape (num_starts,)
        Log joint density, not finite where a start broke down.
    best : int
    ends : mapping of str to ndarray, shape (num_starts, ...)
    """
    from sklearn.metrics import adjusted_rand_score

    others = np.where(np.arange(len(value)) == best, -np.inf, value)
    other = int(np.argmax(others))
    gap = value[best] - others[other]
    if not np.isfinite(gap) or gap < 0 or starts_that_reached(value[:, None], value[best]) > 1:
        return None
    labels = []
    for start in (best, other):
        prob = derive(problem, {n: v[start][None] for n, v in ends.items()}).responsibilities
        if prob is None:
            return None
        labels.append(prob[0].argmax(axis=-1))
    return (
        f"The next of {len(value)} starts has a message {gap:.3g} nats longer, and its labels agree with "
        f"these to an adjusted Rand index of {adjusted_rand_score(*labels):.2f}"
    )
