"""Where component-wise EM starts: at classes that are known, and of many rows at what some of them say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array, lax
from numpy.typing import NDArray
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from .engines.base import Problem
from .engines.plumbing.clock import Clock
from .engines.plumbing.programs import compiled
from .engines.plumbing.side_by_side import one_member, run_each
from .engines.problem.declared import observed_table
from .engines.problem.density import trace_model
from .feature_saliency_steps import Sites, Weighed

__all__ = ["at_known_rows", "from_some_rows", "with_all_features"]

_ROWS_PER_CLUSTER = 300
"""Rows for each cluster of the start, of which some are enough to start from."""

_MANY = 4
"""How many times as many rows there must be for a start from some of them to be worth its compilation."""

_STEPS = 30
"""Steps of EM on some of the rows."""


def at_known_rows(problem: Problem, names: Sites, starts: dict[str, NDArray]) -> dict[str, NDArray]:
    """Starts whose clusters have the means of normal features of the rows that partial labels give them."""
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


def with_all_features(names: Sites, starts: dict[str, NDArray]) -> dict[str, NDArray]:
    """Starts, and the first of them again with all saliencies at one, where they stay or fall to zero."""
    more = {name: np.concatenate([values, values[:1]]) for name, values in starts.items()}
    more[names.saliency][-1] = 1.0
    return more


def from_some_rows(
    problem: Problem, names: Sites, starts: dict[str, NDArray], seed: int, clock: Clock
) -> dict[str, NDArray]:
    """Starts after a few steps of EM on rows drawn at random, where there are many and no side information.

    Nothing is taken out, so that this costs no cluster or feature that matters to the other rows.
    """
    smaller = _some_rows(problem, names, starts, seed)
    if smaller is None:
        return starts
    first = one_member(starts, 0)

    def build(problem: Problem) -> Callable:
        def run(params: dict[str, Array], args: tuple) -> dict[str, Array]:
            def step(_: Any, params: dict[str, Array]) -> dict[str, Array]:
                at = Weighed.of(trace_model(problem, params, args), names)
                return params | at.moved_by_shares()

            return lax.fori_loop(0, _STEPS, step, params)

        return run

    made = compiled("componentwise_em start", smaller, None, build, first, smaller.args)
    program = clock.counted(made)
    with clock.running():
        return run_each(program, starts, smaller.args)


def _some_rows(
    problem: Problem, names: Sites, starts: dict[str, NDArray], seed: int
) -> Problem | None:
    """The problem for some of its rows; None where there are few, or where it is more than a table."""
    tables = [n for n, arg in enumerate(problem.args) if arg is not None]
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
