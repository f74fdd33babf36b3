"""Tables on disk that are read one block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.padding import Sizes
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from sidebayes.common.magnitudes import refuse_huge

from ..base import Problem
from ..machine.background import NoThreadsError, Workers
from ..plumbing.progress import progress_bar
from ..problem.units import given_data
from ..steps.updates import Plan, plan_updates
from .batch_data import closed_plan, linked_source, moments

__all__ = [
    "NOTHING_BESIDE",
    "RowBlocks",
    "StreamedData",
    "StreamedTable",
    "look_over",
    "streamed",
    "unlinked",
    "with_rows",
]


_POOL = 2**25
"""Maximum size, in numbers, of rows that are mixed: 256 MiB; larger blocks are mixed by themselves."""


NOTHING_BESIDE = (
    "a table that is read in blocks can have neither links nor other data beside it; pass an array where "
    "they are needed"
)
"""Error message on data beside a table on disk."""


class RowBlocks(Protocol):
    """A table on disk that is read in blocks of neighbouring rows."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the columns."""

    @property
    def sizes(self) -> Sequence[int]:
        """Number of rows of each block."""

    def place(self, row: int) -> str:
        """Return the number of a row as text, with its file where there are several."""

    def read(self, number: int) -> NDArray[np.floating]:
        """Return the rows of a block, shape (rows, features)."""


@dataclass(frozen=True, eq=False)
class StreamedTable:
    """A table on disk, and what one pass over it found.

    Attributes
    ----------
    blocks : RowBlocks
    rows : ndarray of int, shape (num_sampled,)
        Numbers of the rows of the sample, in increasing order.
    sample : ndarray, shape (num_sampled, num_features)
        Rows drawn at random without replacement; all rows where there are few.
    centre, covariance : ndarray
        Mean and covariance of all rows.
    extreme_rows : ndarray of int, shape (2 * num_features,)
        Numbers of the rows with the smallest value of each feature, and of those with the largest.
    extremes : ndarray, shape (2 * num_features, num_features)
        These rows.
    """

    blocks: RowBlocks
    rows: NDArray[np.int64]
    sample: NDArray[np.floating]
    centre: NDArray[np.float64]
    covariance: NDArray[np.float64]
    extreme_rows: NDArray[np.int64]
    extremes: NDArray[np.floating]

    @property
    def num_rows(self) -> int:
        """Number of rows in the table."""
        return sum(self.blocks.sizes)


def look_over(
    blocks: RowBlocks, num_sampled: int, seed: int, *, progress: bool = True
) -> StreamedTable:
    """Read a table once: check that no value is missing, and take moments and a sample of rows.

    Raises
    ------
    ValueError
        If a value is missing, infinite or too large to be squared; the message names the row and
        its file.
    """
    ends = np.cumsum([0, *blocks.sizes])
    size = min(num_sampled, int(ends[-1]))
    rows = np.sort(np.random.default_rng(seed).choice(ends[-1], size, replace=False))
    sample, extremes = [], []
    reader = _Reader(blocks.read)
    reader.follow(range(len(blocks.sizes)))
    with progress_bar("reading", len(blocks.sizes), shown=progress) as advance:

        def chunks() -> Iterator[NDArray]:
            for number, begin in enumerate(ends[:-1]):
                table = reader.rows(number)
                inside = rows[slice(*np.searchsorted(rows, [begin, begin + len(table)]))]
                sample.append(np.ascontiguousarray(table[inside - begin]))
                ends_here = np.concatenate([table.argmin(axis=0), table.argmax(axis=0)])
                extremes.append((begin + ends_here, table[ends_here]))
                if np.isfinite(table[ends_here]).all():  # others are named by `moments`
                    numbers = begin + ends_here
                    refuse_huge("the table", table[ends_here], numbers=numbers, place=blocks.place)
                yield table
                advance(1, "mean and covariance")

        centre, covariance = moments(
            chunks(),
            lambda row, column: f"row {blocks.place(row)}, column {blocks.names[column]!r}",
        )
    numbers, far = map(np.concatenate, zip(*extremes, strict=True))
    chosen = np.concatenate([far.argmin(axis=0), far.argmax(axis=0)])
    told = numbers[chosen], far[chosen]
    return StreamedTable(blocks, rows, np.concatenate(sample), centre, covariance, *told)


def streamed(problem: Problem, name: str, table: StreamedTable) -> Problem:
    """Return a problem in which the table on disk replaces the table of this name, a sample."""
    _, data = given_data(problem)
    args = list(problem.args)
    args[list(data).index(name)] = table
    return replace(problem, args=tuple(args))


@dataclass(frozen=True, eq=False)
class StreamedData:
    """A table on disk in batches of its rows; the interface of `BatchData`.

    Blocks from all over the table form a pool, which is read at once, and the rows of a pool are mixed. The
    order of the rows does not matter where one pool holds the table, and matters little where a pool has
    many blocks.

    Attributes
    ----------
    problem : Problem
        Problem with a sample of the rows as its data.
    plan : Plan
    table : StreamedTable
    pools : list of list of int
        Blocks whose rows are mixed.
    batches : list of (int, int, int)
        Pool, first row in it, and the row after the last.
    room : int
        Number of rows of the largest batch, to which all are padded.
    centre, covariance : ndarray
    linked : tuple
        Data passed to the M-step: two blank rows.
    """

    problem: Problem
    plan: Plan
    table: StreamedTable
    pools: list[list[int]]
    batches: list[tuple[int, int, int]]
    room: int
    centre: NDArray
    covariance: NDArray
    linked: tuple
    approximate: None = None

    @classmethod
    def prepare(cls, problem: Problem, batch_size: int, *, closed: bool = True) -> StreamedData:
        """Cut pools of blocks into batches of about equal size, and check that sites have updates.

        Parameters
        ----------
        problem : Problem
            Problem with a `StreamedTable` among its data.
        batch_size : int
        closed : bool
            Whether every site needs an update in closed form.

        Raises
        ------
        ValueError
            If a site that needs one has no closed-form M-step, the model observes no linked mixture, or there
            are links or other data beside the table.
        """
        (place,) = (n for n, arg in enumerate(problem.args) if isinstance(arg, StreamedTable))
        table = problem.args[place]
        others = [a for n, a in enumerate(problem.args) if n != place]
        if any(not isinstance(a, LabelGraph) or a.num_links for a in others):
            raise ValueError(NOTHING_BESIDE)
        blank = with_rows(problem, np.zeros((2, table.sample.shape[1])), unlinked(2, 2))
        if closed:
            plan, fn, _ = closed_plan(blank, "a table on disk")
        else:
            plan, fn = plan_updates(blank), _source(blank)
        if fn.groups is not None:
            raise ValueError("rows of groups cannot be read in blocks; pass an array")
        pools, batches = _pools(table), []
        for number, pool in enumerate(pools):
            size = sum(table.blocks.sizes[block] for block in pool)
            cuts = np.linspace(0, size, max(round(size / batch_size), 1) + 1).astype(int).tolist()
            batches += [(number, *ends) for ends in pairwise(cuts)]
        real = jnp.result_type(float)
        return cls(
            problem=with_rows(problem, table.sample, unlinked(*[len(table.sample)] * 2)),
            plan=plan,
            table=table,
            pools=pools,
            batches=batches,
            room=max(end - begin for _, begin, end in batches),
            centre=table.centre.astype(real),
            covariance=table.covariance.astype(real),
            linked=blank.args,
        )

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    @property
    def is_mixed(self) -> bool:
        """Whether all rows are mixed, so that their order in the table does not matter."""
        return len(self.pools) == 1

    def first(self) -> Problem:
        """Return the problem with the sample of rows as its data, in which a start is sought."""
        return self.problem

    def share(self, number: int) -> float:
        """Share of a batch in all rows."""
        _, begin, end = self.batches[number]
        return (end - begin) / self.table.num_rows

    def order(self, seed: int, epoch: int | None) -> NDArray[np.int64]:
        """Return batches in the order of an epoch, with pools at random; without an epoch, in turn."""
        pool = np.array([one for one, _, _ in self.batches])
        turn = np.arange(len(self.pools))
        if epoch is not None:
            turn = np.random.default_rng([seed, epoch]).permutation(turn)
        self._reader.follow(turn.tolist())
        return np.argsort(np.argsort(turn)[pool], kind="stable")

    def load(self, number: int) -> tuple[tuple, LabelGraph]:
        """Return the data of a batch, including spare rows, and the graph that holds which are spare."""
        filled, graph = self.padded(number)
        return with_rows(self.problem, filled, graph).args, graph

    def padded(self, number: int) -> tuple[NDArray[np.floating], LabelGraph]:
        """Return the rows of a batch, including spare ones, and the graph that holds which are spare."""
        pool, begin, end = self.batches[number]
        rows = self._reader.rows(pool)[begin:end]
        filled = np.empty((self.room, rows.shape[1]), self.centre.dtype)
        filled[: len(rows)], filled[len(rows) :] = rows, self.centre
        graph = self._graphs.get(len(rows))
        if graph is None:
            graph = self._graphs[len(rows)] = unlinked(len(rows), self.room)
        return filled, graph

    def drawn(self, size: int, seed: Sequence[int]) -> NDArray[np.floating]:
        """Draw rows at random from the whole table without replacement, in random order.

        Blocks contribute in proportion to their sizes, so that all rows are equally likely.
        """
        rng = np.random.default_rng(list(seed))
        ends = np.cumsum([0, *self.table.blocks.sizes])
        shares = np.diff(np.floor(ends * (size / ends[-1]) + rng.random()).astype(int))
        found = np.empty((size, self.table.sample.shape[1]), self.centre.dtype)
        giving = np.flatnonzero(shares).tolist()
        reader = _Reader(self.table.blocks.read)
        reader.follow(giving)
        filled = 0
        for block in giving:
            rows = reader.rows(block)
            chosen = rows[rng.choice(len(rows), shares[block], replace=False)]
            found[filled : filled + len(chosen)] = chosen
            filled += len(chosen)
        rng.shuffle(found)
        return found

    @cached_property
    def _reader(self) -> _Reader:
        return _Reader(partial(_mixed, self.table, self.pools))

    @cached_property
    def _graphs(self) -> dict[int, LabelGraph]:
        return {}


class _Reader:
    """Reads parts of a table by number; another thread reads the next one while the last one is processed."""

    def __init__(self, read: Callable[[int], NDArray]) -> None:
        self._read = read
        self._order: list[int] = []
        self._now: tuple[int, NDArray] | None = None
        self._next: tuple[int, Future] | None = None
        self._workers = Workers(1)

    def __del__(self) -> None:
        self._workers.close()

    def follow(self, order: Sequence[int]) -> None:
        """Set the order in which parts will be requested."""
        self._order = list(order)

    def rows(self, part: int) -> NDArray:
        """Return the rows of a part."""
        if self._now is None or self._now[0] != part:
            self._now = None  # frees memory
            if self._next is not None and self._next[0] == part:
                found = self._next[1].result()
            else:
                found = self._read(part)
            self._now, self._next = (part, found), None
            after = dict(pairwise(self._order)).get(part)
            if after is not None:
                with suppress(NoThreadsError):
                    self._next = after, self._workers.submit(partial(self._read, after))
        return self._now[1]


def _pools(table: StreamedTable) -> list[list[int]]:
    """Divide the blocks of a table into pools from all over it, no larger than `_POOL` or a block."""
    numbers = np.asarray(table.blocks.sizes) * table.sample.shape[1]
    most = max(_POOL, numbers.max())
    every = np.arange(len(numbers))
    count = next(n for n in every + 1 if np.bincount(every % n, numbers).max() <= most)
    return [every[first::count].tolist() for first in range(count)]


def _mixed(table: StreamedTable, pools: list[list[int]], pool: int) -> NDArray[np.floating]:
    """Return the rows of the blocks of a pool, in random order."""
    sizes = [table.blocks.sizes[block] for block in pools[pool]]
    places = np.random.default_rng(pool).permutation(sum(sizes))
    found = np.empty((len(places), table.sample.shape[1]), table.sample.dtype)
    for block, here in zip(pools[pool], np.split(places, np.cumsum(sizes)[:-1]), strict=True):
        found[here] = table.blocks.read(block)
    return found


def _source(problem: Problem) -> FiniteMixture:
    found = linked_source(problem)
    if found is None:
        raise ValueError(
            "a table on disk is read in blocks for models that observe one LinkedMixture, as the rows of "
            "others have no density by themselves; pass an array"
        )
    return found[0]


def unlinked(num_points: int, room: int) -> LabelGraph:
    """Make a graph of points without links, padded by spare ones to `room` points."""
    return LabelGraph.build(None, num_points, room=Sizes(points=room))


def with_rows(problem: Problem, rows: NDArray | jax.Array, graph: LabelGraph) -> Problem:
    """Return a problem of a table, and perhaps a graph, with other rows and their graph as its data."""

    def one(arg: Any) -> Any:
        if isinstance(arg, LabelGraph):
            return graph
        return jnp.asarray(rows, jnp.result_type(float))

    known = (LabelGraph, StreamedTable, jax.Array)
    return replace(problem, args=tuple(one(a) if isinstance(a, known) else a for a in problem.args))
