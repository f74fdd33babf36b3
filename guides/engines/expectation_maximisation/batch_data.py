"""Data that stochastic EM reads one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.block import WholeData
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.label_inference.partition import check_inference
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from ..base import Problem
from ..problem.declared import collapsed_sites
from ..problem.density import abstract_trace
from ..problem.units import dimensions, given_data
from ..steps.batches import Batches, deal_batches, of_points
from ..steps.updates import Plan, block_of, listed, plan_updates

__all__ = ["BatchData", "chunk_moments", "closed_plan", "linked_source", "moments"]

_ENOUGH = 10_000
"""Number of points of a batch that are enough to find where to start."""

_CHUNK = 65_536
"""Number of rows that are read from disk at a time."""


@dataclass(frozen=True)
class BatchData:
    """Data in batches, with summaries of the whole.

    Attributes
    ----------
    problem : Problem
        All data, on the host or on disk.
    plan : Plan
    graph : LabelGraph
    groups : Groups or None
    batches : Batches
    centre, covariance : ndarray
        Mean and covariance of the observed table.
    linked : tuple
        Data passed to the M-step: blank rows for the points with links.
    approximate : str or None
        Approximation made in any batch.
    """

    problem: Problem
    plan: Plan
    graph: LabelGraph
    groups: Groups | None
    batches: Batches
    centre: NDArray
    covariance: NDArray
    linked: tuple
    approximate: str | None
    is_mixed: ClassVar[bool] = True

    @classmethod
    def prepare(cls, problem: Problem, batch_size: int, seed: int) -> BatchData:
        """Read the data once, deal the batches, and check that every site has an update.

        Raises
        ------
        ValueError
            If a site has no closed-form M-step, the data hold missing values or several groupings, or
            loops are too wide and no approximation is named.
        """
        problem = replace(problem, args=tuple(map(_on_host, problem.args)))
        groups = _groups(problem.args)
        signature, data = given_data(problem)
        assert signature.unit is not None  # there is at least a table
        graph = next((a for a in problem.args if isinstance(a, LabelGraph)), None)
        graph = as_label_graph(graph, dimensions(signature, data)[signature.unit])
        # points without links do not enter the partition function of normalised weights
        few = np.arange(min(2, graph.num_real))  # a default prior needs more rows than one
        tied = np.unique(graph.links.pairs) if graph.num_links else few
        linked = _cut(problem, of_points(graph, tied, groups), blank=True)
        plan, fn, value = closed_plan(linked, "StochasticEM")
        if (fn.groups is None) != (groups is None):
            raise ValueError(
                "StochasticEM keeps the rows of a group together, and the mixture that the model "
                "observes knows of no groups; pass them to LinkedMixture, or use 'em'"
            )
        inference, num_clusters = fn.labels.inference, fn.num_clusters
        graph = graph.suited(inference, num_clusters)
        batches = deal_batches(graph, -(-graph.num_points // batch_size), seed, groups)
        each = (batches.at(number).graph for number in range(len(batches)))
        made = [check_inference(own, num_clusters, inference) for own in each]
        tables = [
            (old, new)
            for old, new in zip(problem.args, linked.args, strict=True)
            if isinstance(old, np.ndarray)
        ]
        observed = next((old for old, new in tables if new is value), tables[0][0])
        centre, covariance = chunk_moments(observed.reshape(len(observed), -1))
        real = jnp.result_type(float)
        return cls(
            problem=problem,
            plan=plan,
            graph=graph,
            groups=groups,
            batches=batches,
            centre=centre.astype(real),
            covariance=covariance.astype(real),
            linked=tuple(
                a.suited(inference, num_clusters) if isinstance(a, LabelGraph) else a
                for a in linked.args
            ),
            approximate=next(filter(None, made), None),
        )

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    def share(self, number: int) -> float:
        """Share of a batch in all points; batches have equal shares."""
        return 1 / len(self)

    def order(self, seed: int, epoch: int | None) -> NDArray[np.int64]:
        """Return batches in the random order of an epoch; without an epoch, in turn."""
        if epoch is None:
            return np.arange(len(self))
        return np.random.default_rng([seed, epoch]).permutation(len(self))

    def load(self, number: int) -> tuple[tuple, LabelGraph]:
        """Return the data of a batch, including spare rows, and the links among its rows."""
        batch = self.batches.at(number)
        return _cut(self.problem, batch).args, batch.graph

    def first(self) -> Problem:
        """Return the problem with points of the first batch as its data, in which a start is sought."""
        batch = self.batches.at(0)
        points = batch.points[: min(batch.num_real, _ENOUGH)]
        return _cut(self.problem, of_points(self.graph, points, self.groups))


def _groups(args: tuple) -> Groups | None:
    found = [a for a in args if isinstance(a, Groups)]
    if len(found) > 1:
        raise ValueError(
            f"StochasticEM keeps the rows of a group together, and the data have {len(found)} "
            "groupings; pass one, or use 'em'"
        )
    return found[0] if found else None


def _on_host(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, jax.Array) else value


def _cut(problem: Problem, batch: Batches, *, blank: bool = False) -> Problem:
    """Return the problem with some of its rows; `blank` ones are not read."""
    signature, data = given_data(problem)
    roles = {role.name: role for role in signature.data}
    chosen = {signature.unit: batch.points}
    if batch.groups is not None:
        grouping = next(role for role in signature.data if isinstance(data.get(role.name), Groups))
        chosen = {grouping.name: batch.points, grouping.dims[0]: batch.rows}

    def one(name: str, value: Any) -> Any:
        if name not in roles:
            return value
        if isinstance(value, LabelGraph):
            return batch.graph
        if isinstance(value, Groups):
            return batch.groups
        is_labels = isinstance(value, PartialLabels)
        table = np.asarray(value.values) if is_labels else value
        for axis, dim in enumerate(roles[name].dims[: np.ndim(table)]):
            if dim in chosen:
                table = _taken(table, axis, chosen[dim], blank and not is_labels)
        if is_labels:
            return PartialLabels(table)
        real = np.issubdtype(table.dtype, np.floating)
        return jnp.asarray(table, jnp.result_type(float) if real else None)

    args = [one(name, value) for name, value in data.items()]
    return replace(problem, args=(*args, *problem.args[len(args) :]))


def _taken(table: NDArray, axis: int, numbers: NDArray, blank: bool) -> NDArray:
    if blank:
        shape = (*table.shape[:axis], len(numbers), *table.shape[axis + 1 :])
        return np.zeros(shape, table.dtype)
    return table[(slice(None),) * axis + (numbers,)]


def closed_plan(problem: Problem, asked: str) -> tuple[Plan, FiniteMixture, Any]:
    """Return the plan of a model of linked points in which every site has an update, its mixture and data.

    Raises
    ------
    ValueError
        If the model is not of this kind; `asked` names what requires it.
    """
    plan = plan_updates(problem)
    trace = abstract_trace(problem)
    found = linked_source(problem)
    whole = [part for part in plan.parts if isinstance(block_of(trace, part), WholeData)]
    if found is not None and not plan.rest and not whole:
        return plan, *found
    needing = [f"the update of {listed(part.sites.values())} needs all data" for part in whole]
    why = (
        "; ".join([*plan.lacking, *needing])
        or "it observes no LinkedMixture, or other sites beside it"
    )
    raise ValueError(
        f"{asked} needs closed-form M-steps for every site of one LinkedMixture, and the model "
        f"has none for some ({why}); use 'em' or 'map'"
    )


def linked_source(problem: Problem) -> tuple[FiniteMixture, Any] | None:
    """Return the one mixture of linked points that a model observes, and its data; None if there is none."""
    sources = list(collapsed_sites(abstract_trace(problem)).values())
    if len(sources) == 1:
        fn, value = sources[0]
        if isinstance(fn, FiniteMixture) and fn.links() is not None:
            return fn, value
    return None


def chunk_moments(x: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the mean and covariance of data that are read in chunks.

    Parameters
    ----------
    x : ndarray or memmap, shape (num_points, num_features)

    Returns
    -------
    mean : ndarray, shape (num_features,)
    covariance : ndarray, shape (num_features, num_features)

    Raises
    ------
    ValueError
        If an entry is missing or infinite.

    References
    ----------
    Chan, Golub and LeVeque (1983), Am. Stat. 37, 242-247, for merging.
    """
    return moments(x[start : start + _CHUNK] for start in range(0, len(x), _CHUNK))


def moments(
    blocks: Iterable[NDArray], place: Callable[[int, int], str] = "row {}, column {}".format
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the mean and covariance of rows in blocks; see `chunk_moments`.

    Parameters
    ----------
    blocks : iterable of ndarray
    place : callable
        How to call a row and a column, by their numbers, where a value is missing.
    """
    count, mean, scatter = 0, np.zeros(()), np.zeros(())
    for rows in _chunks(blocks):
        if not np.isfinite(rows).all():
            row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
            raise ValueError(
                f"the data have a missing or infinite value in {place(count + row, column)}; drop or "
                "impute it"
            )
        own = rows.mean(axis=0)
        apart, total = own - mean, count + len(rows)
        rows -= own
        scatter = scatter + rows.T @ rows
        scatter = scatter + np.outer(apart, apart) * count * len(rows) / total
        mean = mean + apart * len(rows) / total
        count = total
    return mean, scatter / max(count - 1, 1)


def _chunks(blocks: Iterable[NDArray]) -> Iterator[NDArray[np.float64]]:
    for block in blocks:
        for start in range(0, len(block), _CHUNK):
            yield np.array(block[start : start + _CHUNK], float, order="C")
