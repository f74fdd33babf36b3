"""Fits and predictions of tables on disk, a block of rows at a time."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.guides.engines.base import Engine
from sidebayes.guides.engines.expectation_maximisation.streamed_data import (
    NOTHING_BESIDE,
    StreamedTable,
    look_over,
)
from sidebayes.guides.engines.plumbing.progress import progress_bar
from sidebayes.models.blocks.roles import signature_of
from sidebayes.models.blocks.side_information.links import Links

from .common.fields import check_seed
from .common.files import check_writable
from .common.magnitudes import shown
from .common.warnings import SideBayesWarning, warn_user
from .data.scan import Scan
from .runs.arguments import find_method
from .runs.zoo import make_engine

__all__ = ["by_block", "keeps_all", "refuse_target", "scan_among", "with_samples"]

_SAMPLE = 10_000
"""Rows that a fit of a table on disk keeps and describes."""
_READING = ("stochastic_em", "cavi", "svi")
"""Engines that read tables on disk, the default first."""
_ROWS, _FEWER = 65_536, 4096
"""Rows for which predictions are made at once, by a point and at least by many draws."""


def scan_among(data: tuple, named: Mapping[str, Any]) -> Scan | None:
    """The table on disk among data, None if there is none.

    Raises
    ------
    ValueError
        If there are several.
    """
    found = [one for one in (*data, *named.values()) if isinstance(one, Scan)]
    if len(found) > 1:
        raise ValueError(f"{len(found)} data are tables on disk; pass one of them as an array")
    return found[0] if found else None


def keeps_all(table: Scan) -> bool:
    """Whether a fit keeps all rows of a table on disk."""
    return len(table) <= _SAMPLE


class Asked(NamedTuple):
    """What a fit is asked for.

    Attributes
    ----------
    data, named
        In which a sample of its rows stands for a table on disk.
    engine
        Stochastic EM where there is such a table and none was named.
    stream : StreamedTable or None
    """

    data: tuple
    named: dict[str, Any]
    engine: str | Engine | None
    stream: StreamedTable | None


def with_samples(
    method: Any,
    data: tuple,
    named: Mapping[str, Any],
    engine: str | Engine | None,
    *,
    seed: int,
    progress: bool,
) -> Asked:
    """Have a sample of its rows stand for a table on disk, which is read once for it.

    Raises
    ------
    ValueError
        If there are other data beside the table, the method or the engine takes no tables on disk, or a
        value is missing.
    """
    table = scan_among(data, named)
    if table is None:
        return Asked(data, dict(named), engine, None)
    card, model, name = find_method(method)
    roles = {role.name for role in signature_of(model).data}
    others = (*data, *(value for key, value in named.items() if key in roles))
    if any(_says(one) for one in others if one is not table):
        raise ValueError(NOTHING_BESIDE)
    able = [one for one in _READING if card is None or one in card.engines]
    if engine is None and _READING[0] in able:
        engine = _READING[0]
    if not make_engine(engine, card).streams:
        raise ValueError(_refusal(name, able))
    streamed = look_over(table, _SAMPLE, check_seed(seed), progress=progress)
    return Asked(*_with_rows(table, streamed.sample, data, named), engine, streamed)


def _refusal(name: str, able: Sequence[str]) -> str:
    """Why a method by an engine takes no table on disk, given which of its engines read some."""
    needs = f"{name} needs all rows in memory, scan.to_numpy()"
    listed = " or ".join(map(repr, able))
    if not able:
        return f"{needs}: none of its engines reads tables on disk"
    if _READING[0] not in able:
        return f"{needs}; engine={listed} reads tables on disk, under priors that do not depend on the rows"
    return (
        f"a table on disk is fitted by engine={listed}; {name} by another engine needs all rows in "
        "memory, scan.to_numpy()"
    )


def _says(value: Any) -> bool:
    """Whether data are there; no links are none."""
    return value is not None and not (isinstance(value, Links) and not len(value))


def _with_rows(
    table: Scan, rows: NDArray, data: tuple, named: Mapping[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Data in which some of its rows stand for a table on disk."""
    given: Any = rows
    if table.has_names:
        given = pd.DataFrame(rows, columns=list(table.names), copy=False)
    stands = lambda one: given if one is table else one  # noqa: E731
    return tuple(map(stands, data)), {n: stands(v) for n, v in named.items()}


def by_block(
    function: Callable[..., NDArray],
    data: tuple,
    named: Mapping[str, Any],
    to: str | Path | None,
    column: str,
    *,
    num_draws: int,
    progress: bool = True,
) -> NDArray | Path:
    """Apply a function of rows to a table on disk, and write what it gives, block by block.

    Parameters
    ----------
    function : callable
        Of the rows, in place of the table among `data` and `named`.
    data, named
        With a table on disk among them.
    to : path or None
        A file ``.parquet``, or a folder ``.zarr``, which is written anew; None returns an array.
    column : str
        Name of the column, or the beginning of the names of several.
    num_draws : int
        Over which the function averages, each of which it computes for rows at once.

    Returns
    -------
    ndarray or Path
    """
    table = scan_among(data, named)
    assert table is not None  # the caller asked
    if len([one for one in (*data, *named.values()) if one is not None]) > 1:
        raise ValueError("a table on disk can have no other data beside it; pass an array")

    size = min(_ROWS, max(_ROWS // num_draws, _FEWER), max(table.sizes))

    def found() -> Iterator[NDArray]:
        done = 0
        with progress_bar("rows", len(table), shown=progress) as advance:
            for number in range(len(table.parts)):
                block = table.read(number)
                for begin in range(0, len(block), size):
                    rows = block[begin : begin + size]
                    advance(len(rows), column)
                    with _counted_from(done, table):
                        values = _of_rows(function, table, rows, size, data, named)
                    yield values
                    done += len(rows)

    if to is None:
        return np.concatenate(list(found()))
    path = _check_target(to, table)
    with _WRITERS[path.suffix](path, len(table), column) as write:
        for values in found():
            write(values)
    return path


@contextmanager
def _counted_from(first: int, table: Scan) -> Iterator[None]:
    """Have messages about a block say at which row of the table it begins, as they count rows from there."""

    def said(text: object) -> str:
        return (
            f"with row {table.place(first)} of the table as row 0, {text}" if first else f"{text}"
        )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SideBayesWarning)
        try:
            yield
        except ValueError as error:
            raise ValueError(said(error)) from error
    for one in caught:
        if issubclass(one.category, SideBayesWarning):
            warn_user(said(one.message))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _of_rows(
    function: Callable[..., NDArray],
    table: Scan,
    rows: NDArray,
    size: int,
    data: tuple,
    named: Mapping,
) -> NDArray:
    """Values at some rows; spare ones make their number `size`, so that one program is enough."""
    spare = np.broadcast_to(rows[-1], (size - len(rows), rows.shape[1]))
    given, by_name = _with_rows(table, np.concatenate([rows, spare]), data, named)
    return function(*given, **by_name)[: len(rows)]


def refuse_target(to: Any) -> None:
    """Refuse a path for predictions of rows in memory."""
    if to is not None:
        raise ValueError(
            "to is for tables on disk, sidebayes.scan(...); what is predicted of an array is returned"
        )


def _check_target(to: Any, table: Scan) -> Path:
    """Refuse a path that predictions cannot be written to, or where the table itself is read."""
    path = Path(to) if str(to).endswith(".zarr") else check_writable(to)
    if path.suffix not in _WRITERS:
        raise ValueError(f"to = {shown(str(to))}; give a name that ends in .parquet or .zarr")
    if path.suffix == ".zarr" and path.exists() and not (path / "zarr.json").is_file():
        raise ValueError(f"to = {shown(str(to))} is there, and no Zarr store; give another name")
    goal = path.resolve()
    if any(goal in (source, *source.parents) for source in map(Path, table.paths)):
        raise ValueError(
            f"to = {shown(str(to))} holds the table that is read, which predictions would replace; give "
            "another name"
        )
    return path


def _named(values: NDArray, column: str) -> dict[str, NDArray]:
    if values.ndim == 1:
        return {column: values}
    return {f"{column}_{number}": one for number, one in enumerate(values.T)}


def _refuse_other(path: Path, columns: Iterable[str], column: str) -> None:
    """Refuse to replace a table that holds something else than such predictions."""
    other = [name for name in columns if name != column and not name.startswith(f"{column}_")]
    if other:
        raise ValueError(
            f"to = {shown(str(path))} holds something else than {column!r}, {other[0]}, which would be "
            "replaced; give another name, or delete it first"
        )


@contextmanager
def _parquet(path: Path, num_rows: int, column: str) -> Iterator[Callable[[NDArray], None]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            f"{path.name} needs pyarrow, which is not installed: pip install 'sidebayes[tables]'"
        ) from None
    if path.is_file() and path.stat().st_size:
        try:
            columns = pyarrow.parquet.read_schema(path).names
        except pyarrow.ArrowInvalid:
            columns = ["no table of Parquet"]
        _refuse_other(path, columns, column)
    part = path.with_name(f".{path.name}.writing")
    writer: Any = None

    def write(values: NDArray) -> None:
        nonlocal writer
        table = pyarrow.table(_named(values, column))
        if writer is None:
            writer = pyarrow.parquet.ParquetWriter(part, table.schema)
        writer.write_table(table)

    try:
        yield write
        writer.close()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _zarr(path: Path, num_rows: int, column: str) -> Iterator[Callable[[NDArray], None]]:
    try:
        import zarr
    except ImportError:
        raise ImportError(
            f"{path.name} needs zarr, which is not installed: pip install 'sidebayes[tables]'"
        ) from None
    if path.exists():
        there = zarr.open(path, mode="r")
        columns = there.array_keys() if isinstance(there, zarr.Group) else ["an array alone"]
        _refuse_other(path, columns, column)
    part = path.with_name(f".{path.name}.writing")
    shutil.rmtree(part, ignore_errors=True)
    group: Any = zarr.open_group(part, mode="w")
    begin = 0

    def write(values: NDArray) -> None:
        nonlocal begin
        if not begin:
            shape, chunks = (num_rows, *values.shape[1:]), (_ROWS, *values.shape[1:])
            group.create_array(column, shape=shape, chunks=chunks, dtype=values.dtype)
        group[column][begin : begin + len(values)] = values
        begin += len(values)

    try:
        yield write
        if path.is_dir():
            shutil.rmtree(path)
        part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


_WRITERS = {".parquet": _parquet, ".zarr": _zarr}
