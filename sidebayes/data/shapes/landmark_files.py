"""Files of landmarks, by what they hold: TPS, NTS, Morphologika, tables, meshes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.models.blocks.side_information.groups import Groups

from ...common.fields import Range, check_number
from ...common.files import TABLES, as_path
from ...common.magnitudes import shown
from ...common.warnings import warn_user
from ..frames import need_columns, read_frame, with_names
from .landmark_checks import landmark_codes
from .landmarks import Landmarks
from .text_formats import Specimen, looks_like, parse

__all__ = ["read_landmarks"]

_MESHES = (".ply", ".obj", ".stl", ".off")
_AXES = ("x", "y", "z")
_PLACE = r"([xyz])[_.]?(\d+)"
"""Name of a column of a wide table."""


class _Reading(NamedTuple):
    """How files are to be read; see `read_landmarks`."""

    corresponding: bool | None
    scale: bool
    missing: float | None
    individual: str | None
    units: str | None


def read_landmarks(
    path: Any,
    *,
    corresponding: bool | None = None,
    scale: bool = True,
    missing: float | None = None,
    individual: str | None = None,
    units: str | None = None,
) -> Landmarks:
    """Read landmarks of individuals from one file or several.

    The format is recognised by the content of a file; for tables and meshes, by the ending of its
    name:

    - TPS, with ``LM=`` or ``LM3=``, ``ID=``, ``IMAGE=`` and ``SCALE=``. Curves and outlines are left out,
      with a warning;
    - NTS, with one row per individual, or one per landmark of a single individual;
    - Morphologika, whose labels and groups become covariates;
    - long tables (CSV, Parquet, Feather) with columns ``individual``, ``landmark``, ``x``, ``y`` and
      perhaps ``z``; other columns are covariates, the same in all rows of an individual;
    - wide tables with a row per individual and columns ``x1``, ``y1``, ``x2``, ...; other columns are
      covariates;
    - meshes and point clouds (PLY, OBJ, STL, OFF), one individual per file, named by it: their
      vertices. They are read by trimesh (``pip install 'sidebayes[meshes]'``).

    Names and covariates that are whole numbers become numbers, unless one has leading zeros, such
    as 007: they then stay text.

    Parameters
    ----------
    path : path or sequence of paths
        If names repeat across files, individuals are named "file: name".
    corresponding : bool, optional
        Whether the n-th point is the same landmark in all individuals. By default true, except for
        meshes and for long tables without a column ``landmark``.
    scale : bool
        Whether coordinates of TPS files are multiplied by their ``SCALE=``.
    missing : float, optional
        Number that stands for a missing coordinate, such as -1 or 9999. A landmark without one of its
        coordinates is missing; so are those written as NA, NaN, "?", or as empty cells.
    individual : str, optional
        Column of a table with the names of individuals, by default ``individual``, if there is one.
    units : str, optional
        Units of the coordinates as they are returned.

    Raises
    ------
    TypeError, ValueError
        If there is no such file; if it is malformed (the message names the line); or if individuals
        have different numbers of corresponding landmarks.
    ImportError
        If a mesh is read without trimesh.
    """
    for name, flag in (("corresponding", corresponding), ("scale", scale)):
        if not isinstance(flag, bool) and not (flag is None and name == "corresponding"):
            raise TypeError(f"{name} = {shown(flag)}; expected True or False")
    for name, text in (("individual", individual), ("units", units)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} = {shown(text)}; expected text")
    if missing is not None:
        missing = check_number("missing", missing, Range())
    reading = _Reading(corresponding, scale, missing, individual, units)
    many = isinstance(path, Sequence) and not isinstance(path, str)
    paths = [as_path(one) for one in (path if many else [path])]
    if not paths:
        raise ValueError("path names no file; give one or more")
    for one in paths:
        if not one.is_file():
            raise ValueError(f"there is no file {one}; give the path of a file of landmarks")
    if len(paths) == 1 and paths[0].name.endswith(TABLES):
        return _from_table(paths[0], reading)
    found: list[tuple[Path, Specimen]] = []
    for one in paths:
        found += [(one, specimen) for specimen in _specimens(one)]
    if corresponding is None:
        meshes = any(one.name.lower().endswith(_MESHES) for one in paths)
        reading = reading._replace(corresponding=not meshes)
    return _assembled(found, reading)


def _specimens(path: Path) -> list[Specimen]:
    if path.name.lower().endswith(_MESHES):
        return [Specimen(path.stem, _vertices(path), 1)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = path.read_text(encoding="latin-1")
    kind = looks_like(text)
    if kind is None:
        raise ValueError(
            f"{path.name} is no file of landmarks that is known: TPS begins with LM=, NTS with a header such "
            f"as '1 20 24 0 dim=2', Morphologika with a section such as [individuals]; tables end in one of "
            f"{list(TABLES)} and are read one at a time, meshes in one of {list(_MESHES)}"
        )
    return parse(text, path.name, kind)


def _vertices(path: Path) -> NDArray[np.float64]:
    try:
        import trimesh
    except ImportError as error:
        raise ImportError(
            f"{path.name} needs trimesh, which is not installed: pip install 'sidebayes[meshes]'"
        ) from error
    try:
        found: Any = trimesh.load(path, process=False, maintain_order=True)
        vertices: NDArray[np.float64] = np.asarray(found.vertices, np.float64)
    except Exception as error:  # trimesh has errors of many kinds
        raise ValueError(
            f"{path.name} could not be read as a mesh or point cloud ({str(error)[:100]}); give a whole file"
        ) from error
    if not len(vertices):
        raise ValueError(f"{path.name} has no vertices; give a file with points")
    return vertices


def _assembled(found: list[tuple[Path, Specimen]], reading: _Reading) -> Landmarks:
    specimens = [specimen for _, specimen in found]
    first = specimens[0]
    for path, one in found:
        if not len(one.places):
            raise ValueError(
                f"{path.name}, line {one.line}: this individual has no landmarks; give some, since curves "
                "and outlines are not read, or leave it out"
            )
        if one.places.shape[1] != first.places.shape[1]:
            raise ValueError(
                f"{path.name}, line {one.line}: this individual has {one.places.shape[1]} coordinates, the "
                f"first {first.places.shape[1]}; give all in the same number of dimensions"
            )
        if reading.corresponding and len(one.places) != len(first.places):
            raise ValueError(
                f"{path.name}, line {one.line}: this individual has {len(one.places)} landmarks, the first "
                f"{len(first.places)}; write missing ones as NA, or pass corresponding=False if points do "
                "not correspond"
            )
    _warn_of_left_out(found)
    scales = _scales(found) if reading.scale else np.ones(len(found))
    places = [
        _without(one.places, reading.missing) * factor
        for one, factor in zip(specimens, scales, strict=True)
    ]
    names = _names(found)
    covariates = pd.DataFrame([one.covariates for one in specimens])
    columns = _typed(covariates) if covariates.shape[1] else None
    if reading.corresponding:
        return Landmarks.from_array(
            np.stack(places), subjects=names, covariates=columns, units=reading.units
        )
    return _points(places, names, columns, reading.units)


def _points(
    places: Sequence[NDArray], names: NDArray, covariates: pd.DataFrame | None, units: str | None
) -> Landmarks:
    """Unordered points: individuals in the order of their names."""
    rows = np.repeat(names, [len(one) for one in places])
    x = np.concatenate(places)
    known = np.isfinite(x).all(axis=1)
    if covariates is not None:
        covariates = covariates.set_axis(pd.Index(names), axis=0)
    return Landmarks(x[known], Groups(rows[known]), None, None, covariates, units)


def _without(places: NDArray[np.float64], missing: float | None) -> NDArray[np.float64]:
    """Coordinates, all NaN where one of them is missing."""
    lost = np.isnan(places) if missing is None else np.isnan(places) | (places == missing)
    return np.where(lost.any(axis=-1, keepdims=True), np.nan, places)


def _scales(found: list[tuple[Path, Specimen]]) -> NDArray[np.float64]:
    without = [(path, one) for path, one in found if one.scale is None]
    if without and len(without) < len(found):
        path, one = without[0]
        raise ValueError(
            f"{path.name}, line {one.line}: this individual has no SCALE=, and others do; give one to "
            "each, or pass scale=False to leave all as they are"
        )
    return np.array([1.0 if one.scale is None else one.scale for _, one in found])


def _names(found: list[tuple[Path, Specimen]]) -> NDArray:
    """Names of individuals: numbers, if all are written as such; with their file, if they repeat."""
    given = [one.name for _, one in found]
    if not any(given):
        alone = len({path for path, _ in found}) == len(found) > 1
        return np.array([path.stem for path, _ in found]) if alone else np.arange(len(found))
    if len(set(given)) < len(given):
        given = [f"{path.stem}: {one.name}" for path, one in found]
    seen: dict[str, int] = {}
    for name, (path, one) in zip(given, found, strict=True):
        if name in seen:
            raise ValueError(
                f"{path.name}, line {one.line}: the name {one.name!r} occurs again, first in line "
                f"{seen[name]}; give each individual a name of its own"
            )
        seen[name] = one.line
    is_whole = all(re.fullmatch(r"0|[1-9]\d{0,8}", name) for name in given)  # 007 is no number
    return np.array([int(name) for name in given] if is_whole else given)


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Columns of text as numbers where all are, and none has zeros before it, as codes do."""

    def typed(column: pd.Series) -> pd.Series:
        numbers = pd.to_numeric(column, errors="coerce")
        is_code = column.str.match(r"[+-]?0\d").any()
        return column if is_code or numbers.isna().any() else numbers

    return table.apply(typed)


def _warn_of_left_out(found: list[tuple[Path, Specimen]]) -> None:
    kinds = sorted({kind for _, one in found for kind in one.left_out})
    if kinds:
        count = sum(bool(one.left_out) for _, one in found)
        warn_user(
            f"{found[0][0].name}: {' and '.join(kinds)} of {count} individuals are left out; landmarks alone "
            "are read"
        )


def _from_table(path: Path, reading: _Reading) -> Landmarks:
    table = read_frame(path)
    if reading.individual is not None:
        need_columns(table, [reading.individual], path.name)
    lower = {str(column).lower(): column for column in table.columns}
    axes = [lower[axis] for axis in _AXES if axis in lower]
    key = reading.individual or lower.get("individual")
    units = [name for name in (key, lower.get("landmark")) if name is not None]
    table = with_names(table, path, units, _covariates_with_names(table, axes))
    if len(axes) >= 2:
        if key is None:
            raise ValueError(
                f"{path.name} has no column 'individual'; name that of the individuals by individual=, "
                f"one of {list(table.columns)}"
            )
        mark = lower.get("landmark")
        return _from_long(path.name, table, str(key), axes, mark, reading)
    return _from_wide(path.name, table, key, reading)


def _covariates_with_names(table: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Columns that are no coordinates, and hold text, or whole numbers, which may be codes such as 007."""
    return [
        name
        for name in map(str, table)
        if name not in axes
        and not re.fullmatch(_PLACE, name, re.IGNORECASE)
        and not pd.api.types.is_float_dtype(table[name])
        and not pd.api.types.is_bool_dtype(table[name])
    ]


def _from_long(
    file: str,
    table: pd.DataFrame,
    key: str,
    axes: list[str],
    landmark: str | None,
    reading: _Reading,
) -> Landmarks:
    for column in (key, *([landmark] if landmark is not None else [])):
        empty = table[column].isna().to_numpy()
        if empty.any():
            raise ValueError(
                f"{file}, line {int(empty.argmax()) + 2}: column {column!r} is empty; fill it, or drop "
                "the row"
            )
    x = _without(_coordinates(file, table, axes), reading.missing)
    corresponding = landmark is not None if reading.corresponding is None else reading.corresponding
    if corresponding and landmark is None:
        raise ValueError(f"{file} has no column 'landmark'; add it, or pass corresponding=False")
    others = table.drop(columns=[key, *axes, *([landmark] if landmark is not None else [])])
    covariates = _constant(file, others, table[key])
    known = np.isfinite(x).all(axis=1)
    lost = set(table[key]) - set(table[key][known])
    if lost:
        raise ValueError(
            f"{file}: individual {sorted(map(str, lost))[0]!r} has no landmark at all; drop it"
        )
    codes, names = (None, None)
    if corresponding:
        numbers, marks = landmark_codes(table[landmark])
        codes, names = numbers[known], tuple(map(str, marks))
    return Landmarks(
        x[known], Groups(table[key].to_numpy()[known]), codes, names, covariates, reading.units
    )


def _constant(file: str, others: pd.DataFrame, key: pd.Series) -> pd.DataFrame | None:
    """Covariates: one row per individual."""
    if not others.shape[1]:
        return None
    by = others.groupby(key.to_numpy(), sort=True)
    for column in map(str, others):
        first = by[column].transform("first")
        differ = ((others[column] != first) & ~(others[column].isna() & first.isna())).to_numpy()
        if differ.any():
            row = int(differ.argmax())
            raise ValueError(
                f"{file}, line {row + 2}: {column!r} differs from other rows of individual "
                f"{key.tolist()[row]!r}; covariates are the same in all rows of an individual"
            )
    return by.first()


def _from_wide(file: str, table: pd.DataFrame, key: str | None, reading: _Reading) -> Landmarks:
    marks = {}
    for column in table.columns:
        found = re.fullmatch(_PLACE, str(column), re.IGNORECASE)
        if found:
            marks[int(found[2]), found[1].lower()] = column
    axes = [axis for axis in _AXES if any(one[1] == axis for one in marks)]
    numbers = sorted({number for number, _ in marks})
    if len(axes) < 2 or axes[:2] != ["x", "y"]:
        raise ValueError(
            f"{file} has columns {list(table.columns)[:8]}; expected individual, landmark, x, y (and z), or "
            "x1, y1, x2, y2, ..."
        )
    for number in numbers:
        for axis in axes:
            if (number, axis) not in marks:
                raise ValueError(
                    f"{file} lacks column {f'{axis}{number}'!r}; landmark {number} has others"
                )
    columns = [marks[number, axis] for number in numbers for axis in axes]
    x = _coordinates(file, table, columns).reshape(len(table), len(numbers), len(axes))
    x = _without(x, reading.missing)
    others = table.drop(columns=[*columns, *([key] if key is not None else [])])
    names = None if key is None else table[key].to_numpy()
    covariates = others if others.shape[1] else None
    if reading.corresponding is False:
        return _points(
            list(x), np.arange(len(x)) if names is None else names, covariates, reading.units
        )
    labels = [str(number) for number in numbers]
    return Landmarks.from_array(
        x, subjects=names, landmark_names=labels, covariates=covariates, units=reading.units
    )


def _coordinates(file: str, table: pd.DataFrame, columns: list[str]) -> NDArray[np.float64]:
    """Columns as numbers."""
    found = np.empty((len(table), len(columns)))
    for place, column in enumerate(columns):
        values = pd.to_numeric(table[column], errors="coerce")
        odd = (values.isna() & table[column].notna()).to_numpy()
        if odd.any():
            row = int(odd.argmax())
            raise ValueError(
                f"{file}, line {row + 2}: {column} = {shown(table[column].iloc[row])} is no number; correct "
                "it, or leave the cell empty where it is missing"
            )
        found[:, place] = values
    return found
