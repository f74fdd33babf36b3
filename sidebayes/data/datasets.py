"""Data sets: scikit-learn's own, crabs, a folder of CSV files, OpenML, and simulated ones."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..common.class_names import class_codes, named_classes, warn_of_marks
from ..common.fields import check_integer
from ..common.folders import cache_folder, is_private
from ..common.magnitudes import shown
from .frames import need_columns, read_features, read_frame, with_names

__all__ = ["ENDINGS", "Dataset", "file_of", "load_dataset", "load_frame", "names"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Points, and their classes where they are known.

    It can be passed wherever a table can, as a data frame whose columns are the features. A fit to
    a data set has the names of its features; a fit to its array ``x`` does not.

    Attributes
    ----------
    name : str
    x : ndarray, shape (num_points, num_features)
    labels : ndarray of int, shape (num_points,), or None
        Classes numbered from 0, -1 where one is unknown; None where all are.
    feature_names : list of str
    """

    name: str
    x: NDArray[np.float64]
    labels: NDArray[np.int64] | None
    feature_names: list[str]

    @property
    def num_classes(self) -> int | None:
        """Number of classes, None where they are unknown."""
        return None if self.labels is None else len(np.unique(self.labels[self.labels >= 0]))

    @property
    def columns(self) -> list[str]:
        """Names of the features."""
        return self.feature_names

    @property
    def shape(self) -> tuple[int, int]:
        """Number of points, and of features."""
        return len(self.x), len(self.feature_names)

    def __iter__(self) -> Iterator[str]:
        """Names of the features."""
        return iter(self.feature_names)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """One feature of all points."""
        return self.x[:, self.feature_names.index(name)]

    def __len__(self) -> int:
        """Number of points."""
        return len(self.x)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        """The points as an array."""
        return np.array(self.x, dtype=dtype, copy=copy)

    def standardized(self) -> Dataset:
        """Every feature at mean zero and unit variance; constant features become zero."""
        spread = self.x.std(axis=0)
        x = (self.x - self.x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        return Dataset(self.name, x, self.labels, self.feature_names)

    def __repr__(self) -> str:
        """Name and size."""
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return f"Dataset({self.name!r}, {self.x.shape[0]} points x {self.x.shape[1]} features{classes})"


def _art1(rng: np.random.Generator, label: NDArray) -> NDArray:
    side = rng.choice([-1, 1], len(label))
    return np.stack(
        [
            4 * side + 0.8 * rng.normal(size=len(label)),
            np.where(label == 0, 1.2, -1.2) + 0.45 * rng.normal(size=len(label)),
        ],
        axis=1,
    )


def _art2(rng: np.random.Generator, label: NDArray) -> NDArray:
    t = rng.uniform(0, np.pi, len(label))
    upper = np.stack([2 * np.cos(t), 1.6 * np.sin(t)], axis=1)
    lower = np.stack([1.5 + 2 * np.cos(t), 0.6 - 1.6 * np.sin(t)], axis=1)
    return np.where(label[:, None] == 0, upper, lower) + 0.35 * rng.normal(size=(len(label), 2))


def _art3(rng: np.random.Generator, label: NDArray) -> NDArray:
    side = rng.choice([-1, 1], len(label))
    centre = np.stack([2 * side, np.where(label == 0, 2, -2) * side], axis=1)
    return centre + 0.6 * rng.normal(size=(len(label), 2))


def _four_gaussians(rng: np.random.Generator, label: NDArray) -> NDArray:
    centre = np.stack([np.where(label == 0, -2, 2), rng.choice([-2, 2], len(label))], axis=1)
    return centre + 0.6 * rng.normal(size=(len(label), 2))


def _noisy_xor(rng: np.random.Generator, label: NDArray) -> NDArray:
    side = rng.choice([-1, 1], len(label))
    centre = np.stack([2 * side, np.where(label == 0, -2, 2) * side], axis=1)
    return centre + 0.9 * rng.normal(size=(len(label), 2))


def _doughnut(rng: np.random.Generator, label: NDArray) -> NDArray:
    disc = np.sqrt(rng.uniform(0, 1, len(label)))
    radius = np.where(label == 0, disc, 3 + 0.3 * rng.normal(size=len(label)))
    t = rng.uniform(0, 2 * np.pi, len(label))
    points: NDArray = radius[:, None] * np.stack([np.cos(t), np.sin(t)], axis=1)
    return points


def _two_spirals(rng: np.random.Generator, label: NDArray) -> NDArray:
    t = rng.uniform(0, 3 * np.pi, len(label))
    turned = t + np.where(label == 0, 0.0, np.pi)
    arm = (0.4 + 0.28 * t)[:, None] * np.stack([np.cos(turned), np.sin(turned)], axis=1)
    points: NDArray = arm + 0.12 * rng.normal(size=(len(label), 2))
    return points


_SIMULATED: dict[str, Callable[[np.random.Generator, NDArray], NDArray]] = {
    "art1": _art1,
    "art2": _art2,
    "art3": _art3,
    "doughnut": _doughnut,
    "four_gaussians": _four_gaussians,
    "noisy_xor": _noisy_xor,
    "two_spirals": _two_spirals,
}
_BUILT_IN = ("breast_cancer", "digits", "iris", "wine")
_MEASURED = {"crabs": ("species", "sex")}
"""Tables of this package, with their columns of classes, the default first."""
ENDINGS = (".csv", ".csv.gz", ".parquet", ".feather", ".arrow")
_FOLDER = "SIDEBAYES_DATA"
_LANDMARKS = (".tps", ".nts", ".ply", ".obj", ".stl", ".off")
"""Endings of files that `read_landmarks` reads."""


def names() -> list[str]:
    """Names that `load_dataset` finds without the network: built in, simulated, in the folder."""
    return sorted({*_BUILT_IN, *_MEASURED, *_SIMULATED, *_tables()})


def load_dataset(
    name: str,
    *,
    num_points: int | None = None,
    seed: int = 0,
    label: str | None = None,
    drop: Sequence[str] = (),
) -> Dataset:
    """Load or simulate a data set by name, or read a table.

    The name is looked up in this order: a path to a table, scikit-learn's built-in sets, ``"crabs"``
    (see Notes), the simulated sets of Lu (2008, sections 2.7 and 4.3; the generators are our own, the
    thesis gives pictures only), the folder that the environment variable ``SIDEBAYES_DATA`` names,
    OpenML (kept in the cache folder). Tables are CSV, Parquet or Feather, with names of columns. A
    first column without a name that counts the rows is left out; other columns that look like row
    numbers are features, and a warning points them out.

    Parameters
    ----------
    name : str
    num_points : int, default 400
        For simulated sets.
    seed : int
        For simulated sets.
    label : str, optional
        Column of a table that holds the classes; by default one called ``label``, if there is one.
        A class that is missing, blank or -1 is not known. For the crabs it is ``"species"``, the
        default, or ``"sex"``.
    drop : sequence of str
        Columns of a table to leave out.

    Raises
    ------
    TypeError, ValueError
        If nothing of that name is found, or the table has other columns than numbers and classes.
    ImportError
        If a Parquet or Feather table is read without pyarrow.

    Notes
    -----
    The crabs are 200 rock crabs of the genus Leptograpsus, 50 of each sex of two species, with five
    measurements in millimetres each, from Campbell and Mahon (1974), Australian Journal of Zoology 22,
    417-425. The table is ``crabs`` of the R package MASS (Venables and Ripley 2002, Modern Applied
    Statistics with S), less its column ``index``. The measurements grow with the size of the animal,
    which hides both species and sex.

    Examples
    --------
    >>> load_dataset("iris")
    Dataset('iris', 150 points x 4 features, 3 classes)
    >>> load_dataset("crabs", label="sex")
    Dataset('crabs', 200 points x 5 features, 2 classes)
    """
    if not isinstance(name, str):
        raise TypeError(
            f"name is a {type(name).__name__}; pass a name, one of {names()}, or a path"
        )
    if num_points is not None and name not in _SIMULATED:
        raise ValueError(
            f"num_points is for simulated sets, one of {sorted(_SIMULATED)}; leave it out for {name!r}"
        )
    if not isinstance(drop, str | Sequence) or not all(isinstance(one, str) for one in drop):
        raise TypeError(f"drop = {shown(drop)}; pass the names of columns, drop=['id']")
    if label is not None and not isinstance(label, str):
        raise TypeError(f"label = {shown(label)}; pass the name of a column")
    drop = [drop] if isinstance(drop, str) else list(drop)
    path = file_of(name)
    if path is not None:
        return _read(path, label, drop)
    if name in _MEASURED:
        label = label or _MEASURED[name][0]
        others = [column for column in _MEASURED[name] if column != label]
        table = Path(__file__).with_name(f"{name}.csv")
        return _read(table, label, [*drop, *others])
    if label is not None or drop:
        raise ValueError(f"label and drop are for tables, and {name!r} is none; leave them out")
    if name in _BUILT_IN:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        return Dataset(name, bunch.data.astype(float), bunch.target, list(bunch.feature_names))
    if name in _SIMULATED:
        size = 400 if num_points is None else num_points
        classes = np.arange(check_integer("num_points", size, 2)) % 2
        rng = np.random.default_rng(check_integer("seed", seed, 0, 2**63))
        return Dataset(name, _SIMULATED[name](rng, classes), classes, ["x1", "x2"])
    if os.path.exists(name) and not os.path.isdir(name):
        said = f"{name} is there, but no table that is read; name one of {ENDINGS}"
        if name.lower().endswith(_LANDMARKS):
            said += (
                f", such as that of sidebayes.read_landmarks({name!r}).to_frame().to_csv('landmarks.csv', "
                "index=False)"
            )
        raise ValueError(said)
    if os.sep in name:
        raise ValueError(f"there is no file {name}; give the path of a table, one of {ENDINGS}")
    close = difflib.get_close_matches(name, names(), n=1)
    if close:
        raise ValueError(
            f"there is no data set {name!r}; did you mean {close[0]!r}? Known here: {names()}"
        )
    return _openml(name)


def load_frame(
    name: str, label: str | None = None, units: Sequence[str] = (), classes: Sequence[str] = ()
) -> pd.DataFrame:
    """Every column of a data set: of a table as they are; of others the features and the classes.

    Parameters
    ----------
    name, label : str
        See `load_dataset`. The classes of a data set that is no table are in the column ``label``, or in
        that of the name given, if the set has such classes.
    units, classes : sequence of str
        Columns with names; see `with_names`.
    """
    path = file_of(name)
    if path is not None:
        return with_names(read_frame(path), path, units, [*classes, label or "label"])
    label = label if name in _MEASURED else None  # no other has several kinds of classes
    found = load_dataset(name, label=label)
    frame = pd.DataFrame(found.x, columns=found.feature_names)
    return frame if found.labels is None else frame.assign(**{label or "label": found.labels})


def file_of(name: str) -> Path | None:
    """File of a table, None for other data sets."""
    if name.endswith(ENDINGS):
        return Path(name)
    return None if name in {*_BUILT_IN, *_MEASURED, *_SIMULATED} else _tables().get(name)


def _tables() -> dict[str, Path]:
    """Tables in the folder of data, by name; empty where no folder is named."""
    folder = os.environ.get(_FOLDER)
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise ValueError(f"{_FOLDER} names {folder}, which is no folder; correct it or unset it")
    found = sorted(p for p in Path(folder).iterdir() if p.name.endswith(ENDINGS))
    return {path.name.partition(".")[0]: path for path in found}


def _read(path: Path, label: str | None, drop: Sequence[str]) -> Dataset:
    table = read_frame(path)
    need_columns(table, [*drop, *([label] if label is not None else ())], path.name)
    if label in drop:
        raise ValueError(f"column {label!r} is both label and dropped; choose one")
    if label is None and "label" in table and "label" not in drop:
        label = "label"
    used = [*drop, *([label] if label is not None else ())]
    table = with_names(table, path, classes=used[len(drop) :])
    features = read_features(table, path.name, used, path)
    codes = None
    if label is not None:
        column = f"column {label!r} of {path.name}"
        codes, found = named_classes(table[label], column)
        warn_of_marks(column, codes, found)
    x = features.to_numpy(float, na_value=np.nan)
    return Dataset(path.name.partition(".")[0], x, codes, list(features.columns))


def _openml(name: str) -> Dataset:
    from sklearn.datasets import fetch_openml

    folder = cache_folder()
    home = str(folder / "openml") if folder is not None and is_private(folder) else None
    try:
        bunch = fetch_openml(
            name, as_frame=False, parser="liac-arff", cache=home is not None, data_home=home
        )
    except Exception as error:
        raise ValueError(
            f"data set {name!r} was not found here nor on OpenML ({type(error).__name__}); known "
            f"names are {names()}; {_FOLDER} may name a folder of CSV files with more"
        ) from error
    try:
        x = np.asarray(bunch.data, float)
    except (TypeError, ValueError):
        raise ValueError(
            f"data set {name!r} of OpenML has features that are not numbers; save it as a table, and "
            "name its columns by label= and drop="
        ) from None
    codes = None if bunch.target is None else class_codes(bunch.target, f"the classes of {name!r}")
    return Dataset(name, x, codes, list(bunch.feature_names))
