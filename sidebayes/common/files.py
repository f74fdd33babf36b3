"""Files that are written whole or not at all, and tables read from files."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import pandas as pd

from .columns import refuse_odd_names
from .magnitudes import shown

__all__ = [
    "FIT",
    "LANDMARKS",
    "MAP",
    "PAGE",
    "TABLES",
    "Kind",
    "as_path",
    "check_replaceable",
    "check_writable",
    "is_damaged",
    "is_sealed",
    "is_swollen",
    "no_folder",
    "read_table",
    "sealed",
    "stale_parts",
    "write_table",
    "write_whole",
]

TABLES = (".csv", ".csv.gz", ".parquet", ".feather", ".arrow")
"""Endings of tables that can be read."""

_SEAL = b"\nsidebayes sha256 "
_SEALED = len(_SEAL) + 64
_PART = 2**20
_MOST_SWOLLEN = 20
_SMALL = 2**26
_ARROW = (".parquet", ".feather", ".arrow")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip"}


class Kind(NamedTuple):
    """Kind of file that the library writes.

    Attributes
    ----------
    what : str
        What it holds, for messages.
    begin : bytes
        How it begins; empty where this differs.
    endings : tuple of str
        Of names.
    """

    what: str
    begin: bytes
    endings: tuple[str, ...]


FIT = Kind("a fit, as NetCDF", b"\x89HDF", (".nc", ".nc4", ".netcdf", ".h5", ".hdf5"))
PAGE = Kind("a page of HTML", b"<!doctype html>", (".html", ".htm"))
MAP = Kind("a map, as arrays of NumPy", b"PK", (".npz",))
LANDMARKS = Kind("landmarks, as TPS", b"LM", (".tps",))
_TABLE = Kind("a table", b"", (".csv", *_ARROW, *_PACKED))
_KINDS = (FIT, PAGE, MAP, LANDMARKS, _TABLE)
_FORMATS = (".pdf", ".png", ".svg", ".jpg", ".json", ".xlsx", ".xls", ".pkl", ".npy")
"""Endings that say what a file holds, and no kind has."""


def as_path(path: Any, name: str = "path") -> Path:
    """Path of a file or folder, given as text or as a path; `name` is that of the argument, for messages.

    Raises
    ------
    TypeError
        If it is neither.
    ValueError
        If it is empty or no system takes it.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(
            f"{name} = {shown(path)} is no path; give text, such as 'fit.nc', or a Path"
        )
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise ValueError(
            f"{name} = {shown(os.fspath(path))} names no file; give one, such as 'fit.nc'"
        )
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # such as a name that is too long
        raise ValueError(
            f"{name} = {shown(os.fspath(path))} names no file that can be read or written "
            f"({error.strerror}); give another"
        ) from None
    return Path(path)


def no_folder(path: Path) -> ValueError:
    """Refusal of a folder that is missing, or where a file stands in its place."""
    if file := next((one for one in (path, *path.parents) if one.is_file()), None):
        return ValueError(f"{file} is a file; name a folder in its place")
    return ValueError(f"there is no folder {path}; create it first")


def check_writable(path: Any, kind: Kind | None = None) -> Path:
    """Refuse a path to which nothing can be written, before the work that it should hold.

    Parameters
    ----------
    path : path
    kind : Kind, optional
        Kind of the file. Those that begin alike may be replaced, and so may empty files. Pipes, devices
        and names whose ending says nothing, such as ``fit-0.1``, may hold any kind.

    Raises
    ------
    TypeError, ValueError
        If it is no path, its folder is missing, it is a folder itself, a file of another kind, or its name
        ends like those of another kind.
    PermissionError
        If the user may not write there.
    """
    given = as_path(path)
    if given.is_dir():
        raise ValueError(f"{given} is a folder; name a file in it")
    if not given.parent.is_dir():
        raise no_folder(given.parent)
    where = given if given.exists() else given.parent
    if not os.access(where, os.W_OK):
        raise PermissionError(
            f"{where} may not be written to by this user; change its mode, or name another path"
        )
    if kind is None or (given.exists() and not given.is_file()):
        return given
    if kind.begin and given.is_file():
        with given.open("rb") as file:
            if file.read(len(kind.begin)) not in (b"", kind.begin):
                raise _other_kind(given)
    others = {*_FORMATS, *(end for other in _KINDS for end in other.endings)} - {*kind.endings}
    if given.suffix.lower() in others:
        raise ValueError(
            f"{given} ends in {given.suffix!r}, and is to hold {kind.what}; give a name that ends in "
            f"{' or '.join(kind.endings)}"
        )
    return given


def check_replaceable(path: Any, columns: Collection[str]) -> Path:
    """Refuse a path where another kind of table would be replaced, before the work that it should hold.

    Parameters
    ----------
    path : path
    columns : collection of str
        Columns that a table has which may be replaced.

    Raises
    ------
    TypeError, ValueError, PermissionError
        See `check_writable`.
    """
    given = check_writable(path, _TABLE)
    if given.is_file() and given.stat().st_size:
        found: Collection[str] = ()
        with suppress(ValueError):
            found = read_table(given).columns
        if not set(columns) <= set(found):
            raise _other_kind(given)
    return given


def _other_kind(path: Path) -> ValueError:
    return ValueError(
        f"{path} is a file of another kind, which would be replaced; name another path, or delete it first"
    )


def write_whole(path: Any, content: Any, *, aside: Path | None = None) -> Path:
    """Write a file whole or not at all: what stood there is replaced only by all of the new.

    The bytes go to a file of another name in the same folder, are flushed to the disk, and only then
    take the name. Pipes and devices are written to directly.

    Parameters
    ----------
    path : path
    content : bytes-like
    aside : Path, optional
        Name that the old file gets.

    Returns
    -------
    Path
        As given.

    Raises
    ------
    TypeError, ValueError
        See `check_writable`.
    OSError
        If the disk is full or fails; its number says why. The old file is then as it was.
    """
    given = check_writable(path)
    goal = Path(os.path.realpath(given))  # of a link: the file that it points to
    part = goal.with_name(f".{goal.name}.{secrets.token_hex(4)}.writing")
    try:
        if goal.exists() and not goal.is_file():
            goal.write_bytes(content)
            return given
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if goal.exists():
            shutil.copymode(goal, part)
            if aside is not None:
                os.replace(goal, aside)
        os.replace(part, goal)
    except OSError as error:
        kept = "what was there is as before" if goal.is_file() else "nothing was left there"
        why = error.strerror or str(error)
        raise OSError(
            error.errno,
            f"{given} could not be written ({why}), and {kept}; make room, or name another path",
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    _flush_folder(goal.parent)
    return given


def sealed(content: Any) -> bytes:
    """Bytes with their checksum at the end, where readers of HDF5 pay no attention to it.

    Parameters
    ----------
    content : bytes-like
    """
    return b"".join([content, _SEAL, hashlib.sha256(content).hexdigest().encode()])


def is_sealed(path: Path) -> bool:
    """Whether a file ends in a checksum, as `sealed` appends it."""
    return _end_of(path).startswith(_SEAL)


def _end_of(path: Path) -> bytes:
    """As many bytes as the checksum takes."""
    with path.open("rb") as file:
        file.seek(-min(_SEALED, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read()


def is_damaged(path: Path) -> bool:
    """Whether a file ends in a checksum, as `sealed` appends it, of something else than it holds."""
    end = _end_of(path)
    if not end.startswith(_SEAL):
        return False
    with path.open("rb") as file:
        digest = hashlib.sha256()
        left = path.stat().st_size - _SEALED
        while left > 0:
            part = file.read(min(left, _PART))
            digest.update(part)
            left -= len(part)
    return digest.hexdigest().encode() != end[len(_SEAL) :]


def is_swollen(path: Path) -> bool:
    """Whether arrays in a file of HDF5 would take far more memory than the file has bytes.

    HDF5 lets a file declare arrays that it does not hold, and readers make room for them first.

    Raises
    ------
    OSError
        If it is no file of HDF5.
    """
    declared = 0

    def add(_: str, item: Any) -> None:
        nonlocal declared
        if isinstance(item, h5py.Dataset):
            declared += item.size * item.dtype.itemsize if item.size else 0

    with h5py.File(path) as file:
        file.visititems(add)
    return declared > max(_MOST_SWOLLEN * path.stat().st_size, _SMALL)


def write_table(path: Any, table: pd.DataFrame, index_label: str | None = None) -> None:
    """Write a table as CSV, Parquet or Feather, by the ending of the name; see `write_whole`.

    Parameters
    ----------
    path : path
    table : DataFrame
    index_label : str, optional
        Heading of a first column that holds the index; without one the index is left out.
    """
    path = check_writable(path, _TABLE)
    if index_label is not None:
        table = table.rename_axis(index_label).reset_index()
    kind = path.suffix.lower()
    buffer = io.BytesIO()
    if kind not in _ARROW:
        packed: Any = _PACKED.get(kind)
        table.to_csv(buffer, index=False, compression=packed)
    else:
        _need_arrow(path)
        (table.to_parquet if kind == ".parquet" else table.to_feather)(buffer)
    write_whole(path, buffer.getbuffer())


def stale_parts(path: Path) -> list[Path]:
    """What processes that were killed while they wrote a file, or one beside it, left behind."""
    begin = f".{path.name}."
    return [p for p in path.parent.glob(".*.writing") if p.name.startswith(begin)]


def _flush_folder(folder: Path) -> None:
    """Have the new name on the disk too, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _need_arrow(path: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{path.name} needs pyarrow, which is not installed: pip install 'sidebayes[tables]', or "
            "use a table of CSV"
        ) from error


def read_table(path: Any) -> pd.DataFrame:
    """Read a table of CSV, Parquet or Arrow's Feather; the ending of the name decides which.

    Columns of CSV with whole numbers that have zeros before them, such as 007, are text in all rows, as
    written: they are codes, and 007 is another one than 7.

    Parameters
    ----------
    path : path

    Raises
    ------
    TypeError, ValueError
        If there is no such file, or it holds no table.
    ImportError
        If what the file needs is not installed, with the command that installs it.
    """
    path = as_path(path)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder; name a table in it, a file that ends in one of {TABLES}"
        )
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of a table, one of {TABLES}")
    kind = path.suffix.lower()
    if kind in _ARROW:
        _need_arrow(path)
    arrow = pd.read_parquet if kind == ".parquet" else pd.read_feather
    try:
        if kind in _ARROW:
            return arrow(path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            table = pd.read_csv(path, index_col=False)
            header = pd.read_csv(path, index_col=False, header=None, nrows=1, dtype=str)
    except Exception as error:  # pandas and pyarrow have errors of many kinds
        raise ValueError(f"{path} could not be read as a table ({_unreadable(error)}") from error
    longer = any(issubclass(one.category, pd.errors.ParserWarning) for one in caught)
    _refuse_misread(path, list(map(str, table.columns)), longer)
    written = header.iloc[0].dropna().str.strip()
    named = written[pd.to_numeric(written, errors="coerce").isna()]  # numbers are no names at all
    refuse_odd_names(
        named.tolist(), f"the columns of {path.name}"
    )  # pandas renames those that repeat
    return _with_codes(path, table)


def _unreadable(error: Exception) -> str:
    """Why a file is no table, the rest of a bracket, and what to do about it."""
    reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
    if isinstance(error, UnicodeError):
        return "it is not in UTF-8); save it as CSV in UTF-8"
    if longer := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", reason):
        expected, line, seen = longer.groups()
        return (
            f"line {line} has {seen} entries, and the lines before it {expected}); correct that line, with "
            "quotes around text that holds a comma"
        )
    return f"{reason}); give a whole file, with names of columns in its first line if it is CSV"


def _with_codes(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """A table of CSV whose columns of codes, such as 007, are as the file has them."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        if not re.search(rb'(^|,)\s*"?\s*0[0-9]+\s*"?\s*(,|$)', file.read(), re.MULTILINE):
            return table
    numbers = [n for n, kind in enumerate(table.dtypes) if pd.api.types.is_numeric_dtype(kind)]
    text = pd.read_csv(path, index_col=False, usecols=numbers, dtype=str, keep_default_na=False)
    for column, number in zip(text, numbers, strict=True):
        known = table.iloc[:, number].notna().to_numpy()
        written = text[column].str.strip().where(known)
        cells = written[known]
        if cells.str.fullmatch("[0-9]+").all() and cells.str.fullmatch("0[0-9]+").any():
            table = table.assign(**{table.columns[number]: written})
    return table


def _refuse_misread(path: Path, names: list[str], longer: bool) -> None:
    """Refuse CSV whose lines are cut at other signs than commas, or hold more than the first one names."""
    for sign, written in _SEPARATORS.items():
        if len(names) == 1 and sign in names[0]:
            raise ValueError(
                f"{path} has {written} between its columns; write it with commas there, and with points in "
                f"numbers, for instance by pandas.read_csv(path, sep={sign!r}, decimal=...).to_csv(path, "
                "index=False)"
            )
    if longer and names[0].startswith("#"):
        raise ValueError(
            f"the first line of {path} is a comment, {names[0]}; delete it, so that the names of the columns "
            "come first"
        )
    if longer:
        columns = "1 column" if len(names) == 1 else f"{len(names)} columns"
        raise ValueError(
            f"the first line of {path} names {columns}, {', '.join(names[:5])}, and others hold "
            "more; name every column, also that of row names, and write decimal points, not commas"
        )
