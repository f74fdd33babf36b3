"""Tables on disk that are read in blocks of rows: Parquet, Arrow, and arrays of NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.files import as_path
from ..common.magnitudes import shown

__all__ = ["Scan", "scan"]

_FEW = 2**20
"""Numbers in a block, up to which small row groups that follow one another are read together."""
_MOST = 2**27
"""Numbers in a row group that is read at once: a gibibyte."""


class _Part(NamedTuple):
    """Rows of a file that are read together: row groups, record batches or rows from `begin` to `end`."""

    path: str
    begin: int
    end: int
    num_rows: int


class _Found(NamedTuple):
    """What a file holds: columns that are numbers, all others, the type they have together, and its parts."""

    names: tuple[str, ...]
    others: tuple[str, ...]
    dtype: np.dtype
    parts: list[_Part]

    @property
    def every(self) -> list[str]:
        """All columns."""
        return [*self.names, *self.others]


@dataclass(frozen=True, repr=False)
class Scan:
    """A table on disk that is read one block of rows at a time; see `scan`.

    Attributes
    ----------
    paths : tuple of str
    names : tuple of str
        Columns that are read.
    parts : tuple
        Blocks in the order of the files.
    dtype : dtype
        "float32" if no column is wider, else "float64".
    has_names : bool
        Whether the files name their columns.
    stamps : tuple
        Size of each file and when it was last written, at the time of the scan.
    """

    paths: tuple[str, ...]
    names: tuple[str, ...]
    parts: tuple[_Part, ...]
    dtype: np.dtype
    has_names: bool
    stamps: tuple[tuple[int, int], ...] = field(compare=False)

    @property
    def sizes(self) -> list[int]:
        """Number of rows of each block."""
        return [part.num_rows for part in self.parts]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return sum(self.sizes), len(self.names)

    def __len__(self) -> int:
        """Number of rows."""
        return self.shape[0]

    def place(self, row: int) -> str:
        """Number of a row, as text; among several files with the file, and its number there.

        Parameters
        ----------
        row : int
        """
        if len(self.paths) == 1:
            return str(row)
        block = int(np.searchsorted(np.cumsum(self.sizes), row, side="right"))
        path = self.parts[block].path
        before = takewhile(lambda part: part.path != path, self.parts)
        return f"{row} (row {row - sum(part.num_rows for part in before)} of {path})"

    def read(self, number: int) -> NDArray[np.floating]:
        """Rows of a block, NaN where a value is missing.

        Parameters
        ----------
        number : int

        Returns
        -------
        ndarray, shape (rows, columns)

        Raises
        ------
        ValueError
            If the file is gone, or has been written since it was scanned.
        """
        part = self.parts[number]
        if _stamp(part.path) != self.stamps[self.paths.index(part.path)]:
            raise ValueError(
                f"{part.path} changed since it was scanned, or is gone; open it again by sidebayes.scan"
            )
        return _FORMATS[_suffix(part.path)].read(part, self.names, self.dtype)

    def to_numpy(self) -> NDArray[np.floating]:
        """All rows, in memory."""
        return np.concatenate([self.read(number) for number in range(len(self.parts))])

    def __repr__(self) -> str:
        """Files and shape."""
        files = self.paths[0] if len(self.paths) == 1 else f"{len(self.paths)} files"
        return f"Scan({files}, {self.shape[0]} rows, {self.shape[1]} columns)"


def scan(path: str | Path | Sequence[str | Path], columns: Sequence[str] | None = None) -> Scan:
    """Open a table on disk for `sidebayes.fit`, and for predictions, without reading it.

    Parameters
    ----------
    path : path or sequence of paths
        Parquet (``.parquet``), Arrow or Feather (``.arrow``, ``.feather``), or a two-dimensional
        NumPy array (``.npy``), which is memory-mapped. Several files form one table, such as the
        parts in a folder of Spark or Dask, ``sorted(Path("folder").glob("*.parquet"))``.
    columns : sequence of str, optional
        Columns to read, by name and in this order; for an array, their numbers as text, "0", "1",
        .... By default all columns in the order of the first file; every file must have them.

    Returns
    -------
    Scan
        Row groups of Parquet and record batches of Arrow are read whole, small ones together.

    Raises
    ------
    ImportError
        If pyarrow, which Parquet and Arrow need, is not installed.
    TypeError, ValueError
        If there is no such file or column, a file is given twice, a column holds no numbers, files
        differ in their columns, or a row group is larger than a gibibyte.

    Examples
    --------
    >>> import numpy as np, sidebayes
    >>> np.save("points.npy", np.random.default_rng(0).normal(size=(500, 2)))
    >>> points = sidebayes.scan("points.npy")
    >>> points.shape
    (500, 2)
    >>> result = sidebayes.fit("gmm", points, num_clusters=2, engine="stochastic_em")
    >>> result.predict(points).shape
    (500,)
    """
    several = not isinstance(path, str | os.PathLike) and isinstance(path, Sequence)
    given = [as_path(one) for one in path] if several else [as_path(path)]  # type: ignore[union-attr]
    if not given:
        raise ValueError("path is empty; give a file, or several")
    found = [_looked_at(one) for one in given]
    paths = tuple(str(one.resolve()) for one in given)
    for number, (one, file) in enumerate(zip(found, given, strict=True)):
        if paths[number] in paths[:number]:
            raise ValueError(f"{file} is given twice, and its rows would count twice; give it once")
        if columns is None and {*one.every} != {*found[0].every}:
            raise ValueError(
                f"{file} has the columns {one.every}, and {given[0]} has {found[0].every}; give files with "
                "the same columns, or choose some that all have by columns="
            )
    names = _chosen(columns, found[0], given[0])
    for one, file in zip(found[1:], given[1:], strict=True):
        _chosen(names, one, file)
    dtype = np.result_type(*(one.dtype for one in found))
    parts = [part for one in found for part in _joined(one.parts, len(names))]
    for part in parts:
        if part.num_rows * len(names) > _MOST:
            raise ValueError(
                f"{part.path} has a row group of {part.num_rows} rows, more than are read at once; write it "
                f"with row groups of {_FEW // len(names)} rows (pyarrow: row_group_size=)"
            )
    if not sum(part.num_rows for part in parts):
        raise ValueError(f"{given[0]} has no rows; check how it was filtered")
    has_names = all(_suffix(one) != ".npy" for one in given)
    stamps = tuple(map(_stamp, paths))
    return Scan(paths, names, tuple(parts), dtype, has_names, stamps)


def _stamp(path: str) -> tuple[int, int]:
    """Size of a file and when it was last written; zeros if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _looked_at(path: Path) -> _Found:
    _refuse_several(path)
    kind = _FORMATS.get(_suffix(path))
    if kind is None:
        raise ValueError(
            f"{path} is none of {', '.join(_FORMATS)}; write the table as one of these"
        )
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give one that exists")
    return kind.look(path.resolve())


def _refuse_several(path: Path) -> None:
    """Refuse a folder, or a pattern of names, with the list of files to give in its place."""
    if path.is_dir():
        inside = {_suffix(one) for one in path.iterdir()}
        kinds = [kind for kind in _FORMATS if kind in inside]
        if not kinds:
            raise ValueError(
                f"{path} is a folder without files of {', '.join(_FORMATS)}; give a file, or a list of files"
            )
        raise ValueError(
            f"{path} is a folder; give the list of its files, sorted(Path({str(path)!r}).glob('*{kinds[0]}'))"
        )
    wild = [not {*"*?"}.isdisjoint(part) for part in path.parts]
    if any(wild) and not path.exists():
        first = wild.index(True)
        folder, pattern = (str(Path(*part)) for part in (path.parts[:first], path.parts[first:]))
        raise ValueError(
            f"{path} is a pattern; give the list of its files, sorted(Path({folder!r}).glob({pattern!r}))"
        )


@contextmanager
def _opened(path: Path) -> Iterator[None]:
    """Say of what cannot be opened that it is no whole file."""
    try:
        yield
    except Exception as error:  # pyarrow has errors of many kinds
        raise ValueError(f"{path} cannot be read ({error}); give a whole file") from error


def _chosen(columns: Any, found: _Found, path: Path) -> tuple[str, ...]:
    """Columns to read, all of them numbers."""
    if isinstance(columns, str) or not (columns is None or np.iterable(columns)):
        raise TypeError(
            f"columns = {shown(columns)}; give a list of names, such as [{shown(columns)}]"
        )
    if isinstance(columns, set | frozenset):
        raise TypeError("columns is a set, which has no order; give a list of names")
    every = found.every
    asked = tuple(every) if columns is None else tuple(map(str, columns))
    missing = [name for name in asked if name not in every]
    if missing:
        raise ValueError(f"{path} has no columns {missing}; it has {every}, give some of these")
    double = sorted({name for name in asked if every.count(name) > 1})
    if double:
        raise ValueError(
            f"{path} has several columns of the names {double}; write it with a name of its own for each"
        )
    text = [name for name in asked if name in found.others]
    if text:
        remedy = (
            f"choose others by columns={list(found.names)}" if found.names else "it has no others"
        )
        raise TypeError(f"{path} has columns {text} that are not numbers; {remedy}")
    if not asked or len(set(asked)) < len(asked):
        raise ValueError(f"columns = {list(asked)}; name one at least, and each once")
    return asked


def _joined(parts: Sequence[_Part], width: int) -> list[_Part]:
    """Parts that follow one another, together as long as they are small."""
    joined: list[_Part] = []
    for part in parts:
        if joined and (joined[-1].num_rows + part.num_rows) * width <= _FEW:
            before = joined.pop()
            part = before._replace(end=part.end, num_rows=before.num_rows + part.num_rows)
        joined.append(part)
    return [part for part in joined if part.num_rows]


def _suffix(path: str | Path) -> str:
    return Path(path).suffix.lower()


def _look_at_array(path: Path) -> _Found:
    with _opened(path):
        try:
            table = np.load(path, mmap_mode="r")
        except ValueError as error:
            if "pickled" in str(error):  # what NumPy makes of any text
                raise ValueError("it does not begin as those of numpy.save") from None
            if "objects" not in str(error):
                raise
            table = np.empty((0, 0), object)  # NumPy maps none
    if table.dtype.kind not in "fiub":
        parts = "put its imaginary part into columns of their own, and " * (table.dtype.kind == "c")
        raise TypeError(
            f"{path} holds an array of {table.dtype}, not a table of real numbers; {parts}write it as float64"
        )
    if table.ndim != 2:
        whole = "x[:, None]" if table.ndim == 1 else "x.reshape(len(x), -1)"
        raise ValueError(
            f"{path} holds an array of shape {table.shape}, not a table of rows and columns; write {whole}"
        )
    step = max(_FEW // max(table.shape[1], 1), 1)
    starts = range(0, len(table), step)
    parts = [
        _Part(str(path), s, min(s + step, len(table)), min(step, len(table) - s)) for s in starts
    ]
    return _Found(tuple(map(str, range(table.shape[1]))), (), _float(table.dtype), parts)


def _read_array(part: _Part, names: Sequence[str], dtype: np.dtype) -> NDArray:
    table = np.load(part.path, mmap_mode="r")
    rows = table[part.begin : part.end]
    chosen = list(map(int, names))
    rows = rows if chosen == list(range(table.shape[1])) else rows[:, chosen]
    return np.array(rows, dtype)


def _look_at_parquet(path: Path) -> _Found:
    parquet = _pyarrow(path).parquet
    with _opened(path), parquet.ParquetFile(path) as file:
        groups = range(file.num_row_groups)
        sizes = [file.metadata.row_group(number).num_rows for number in groups]
        return _by_schema(path, file.schema_arrow, sizes)


def _read_parquet(part: _Part, names: Sequence[str], dtype: np.dtype) -> NDArray:
    parquet = _pyarrow(part.path).parquet
    with parquet.ParquetFile(part.path, memory_map=True) as file:
        groups = list(range(part.begin, part.end))
        return _as_array(file.read_row_groups(groups, columns=list(names)), names, dtype)


def _look_at_arrow(path: Path) -> _Found:
    arrow = _pyarrow(path)
    first = arrow.ipc.IpcReadOptions(included_fields=[0])  # all columns have as many rows
    with _opened(path), arrow.memory_map(str(path)) as source:
        schema = arrow.ipc.open_file(source).schema
        file = arrow.ipc.open_file(source, options=first)
        sizes = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
    return _by_schema(path, schema, sizes)


def _read_arrow(part: _Part, names: Sequence[str], dtype: np.dtype) -> NDArray:
    arrow = _pyarrow(part.path)
    with arrow.memory_map(part.path) as source:
        chosen = sorted(arrow.ipc.open_file(source).schema.names.index(name) for name in names)
        options = arrow.ipc.IpcReadOptions(included_fields=chosen)
        file = arrow.ipc.open_file(source, options=options)
        batches = [file.get_batch(number) for number in range(part.begin, part.end)]
        return _as_array(arrow.Table.from_batches(batches), names, dtype)


def _by_schema(path: Path, schema: Any, sizes: Sequence[int]) -> _Found:
    types = _pyarrow(path).types
    known = types.is_floating, types.is_integer, types.is_boolean
    fields = [field for field in schema if not field.name.startswith("__index_level_")]  # of pandas
    numbers = [field for field in fields if any(is_one(field.type) for is_one in known)]
    names = tuple(field.name for field in numbers)
    others = tuple(field.name for field in fields if field.name not in names)
    floats = [_float(np.dtype(field.type.to_pandas_dtype())) for field in numbers]
    parts = [_Part(str(path), number, number + 1, size) for number, size in enumerate(sizes)]
    return _Found(names, others, np.result_type(np.float32, *floats), parts)


def _as_array(table: Any, names: Sequence[str], dtype: np.dtype) -> NDArray:
    # a column is one piece, as it is in the file
    values = np.empty((len(names), table.num_rows), dtype)
    for row, name in zip(values, names, strict=True):
        begin = 0
        for chunk in table.column(name).chunks:
            row[begin : begin + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
            begin += len(chunk)
    return values.T


def _float(dtype: np.dtype) -> np.dtype:
    """The type in which numbers of another are computed with."""
    return np.dtype(np.float32 if dtype in (np.float16, np.float32) else np.float64)


def _pyarrow(path: str | Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            f"{Path(path).name} needs pyarrow, which is not installed: pip install 'sidebayes[tables]'; or "
            "write the table as .npy"
        ) from None
    return pyarrow


class _Format(NamedTuple):
    look: Callable[[Path], _Found]
    read: Callable[[_Part, Sequence[str], np.dtype], NDArray]


_ARROW = _Format(_look_at_arrow, _read_arrow)
_FORMATS = {
    ".parquet": _Format(_look_at_parquet, _read_parquet),
    ".feather": _ARROW,
    ".arrow": _ARROW,
    ".npy": _Format(_look_at_array, _read_array),
}
