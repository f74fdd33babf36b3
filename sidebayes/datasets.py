"""Data sets: scikit-learn's own, a folder of CSV files, OpenML, and simulated ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["Dataset", "load_dataset", "names"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Data with known classes.

    Attributes
    ----------
    name : str
    x : ndarray, shape (num_points, num_features)
    labels : ndarray of int, shape (num_points,)
    feature_names : list of str
    """

    name: str
    x: NDArray[np.float64]
    labels: NDArray[np.int64]
    feature_names: list[str]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(np.unique(self.labels))

    def standardized(self) -> Dataset:
        """Every feature at mean zero and unit variance; constant features become zero."""
        spread = self.x.std(axis=0)
        x = (self.x - self.x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        return Dataset(self.name, x, self.labels, self.feature_names)


def _art1(rng: np.random.Generator, label: NDArray) -> NDArray:
    side = rng.choice([-1, 1], len(label))
    return np.stack(
        [4 * side + 0.8 * rng.normal(size=len(label)),
         np.where(label == 0, 1.2, -1.2) + 0.45 * rng.normal(size=len(label))], axis=1,
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
    centre = np.stack(
        [np.where(label == 0, -2, 2), rng.choice([-2, 2], len(label))], axis=1
    )
    return centre + 0.6 * rng.normal(size=(len(label), 2))


_SIMULATED: dict[str, Callable[[np.random.Generator, NDArray], NDArray]] = {
    "art1": _art1,
    "art2": _art2,
    "art3": _art3,
    "four_gaussians": _four_gaussians,
}
_BUILT_IN = ("iris", "wine", "breast_cancer", "digits")


def names() -> list[str]:
    """Names that `load_dataset` finds without the network: built in, simulated, in the folder."""
    folder = os.environ.get("SIDEBAYES_DATA")
    files = [p.name.split(".")[0] for p in Path(folder).glob("*.csv*")] if folder else []
    return sorted({*_BUILT_IN, *_SIMULATED, *files})


def load_dataset(name: str, *, num_points: int = 400, seed: int = 0) -> Dataset:
    """Load or simulate a data set by name, or read a CSV file.

    Looked for in this order: a path to a CSV file (its last column ``label`` holds the class, if
    there is one), scikit-learn's built-in sets, the simulated sets of Lu (2008, figures 2.5 and
    4.4; the generators are our own, the thesis gives pictures only), the folder that
    ``SIDEBAYES_DATA`` names, OpenML.

    Parameters
    ----------
    name : str
    num_points : int
        For simulated sets.
    seed : int
        For simulated sets.

    Raises
    ------
    ValueError
        If nothing of that name is found.
    """
    if name.endswith((".csv", ".csv.gz")):
        return _read(Path(name))
    if name in _BUILT_IN:
        from sklearn import datasets as built_in

        bunch = getattr(built_in, f"load_{name}")()
        return Dataset(name, bunch.data.astype(float), bunch.target, list(bunch.feature_names))
    if name in _SIMULATED:
        rng = np.random.default_rng(seed)
        label = np.arange(num_points) % 2
        return Dataset(name, _SIMULATED[name](rng, label), label, ["x1", "x2"])
    folder = os.environ.get("SIDEBAYES_DATA")
    for path in sorted(Path(folder).glob(f"{name}.csv*")) if folder else []:
        return _read(path)
    return _openml(name)


def _read(path: Path) -> Dataset:
    if not path.exists():
        raise ValueError(f"{path} does not exist; known data sets are {names()}")
    table = pd.read_csv(path)
    has_label = table.columns[-1] == "label"
    features = table.iloc[:, :-1] if has_label else table
    text = [c for c in features if not pd.api.types.is_numeric_dtype(features[c])]
    if text:
        raise ValueError(f"{path.name}: columns {text} are not numbers; encode or drop them")
    codes = pd.factorize(table["label"], sort=True)[0] if has_label else np.zeros(len(table), int)
    return Dataset(path.name.split(".")[0], features.to_numpy(float), codes, list(features.columns))


def _openml(name: str) -> Dataset:
    from sklearn.datasets import fetch_openml

    try:
        bunch = fetch_openml(name, as_frame=False, parser="liac-arff")
    except Exception as error:
        raise ValueError(
            f"data set {name!r} was not found here nor on OpenML ({type(error).__name__}); known names "
            f"are {names()}; set SIDEBAYES_DATA to a folder of CSV files for more"
        ) from error
    codes = pd.factorize(bunch.target, sort=True)[0]
    return Dataset(name, np.asarray(bunch.data, float), codes, list(bunch.feature_names))
