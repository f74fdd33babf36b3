"""Checks of landmarks as users give them: individuals, names of landmarks, covariates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.models.blocks.side_information.groups import Groups

from ...common.arrays import name_array, refuse_unwritable
from ...common.magnitudes import shown

__all__ = [
    "check_landmark_names",
    "check_subjects",
    "covariate_column",
    "covariate_table",
    "covariates_by_name",
    "individual_names",
    "landmark_codes",
    "numbered_landmarks",
    "refuse_twice",
]


def check_subjects(subjects: Any, num_rows: int) -> Groups:
    """Subjects as groups of which none is empty, and no row is without."""
    groups = subjects if isinstance(subjects, Groups) else Groups(subjects)
    if groups.names is None:
        raise ValueError("subjects passed through compiled code, which keeps no names")
    if len(groups) != num_rows:
        raise ValueError(f"subjects has {len(groups)} rows and x has {num_rows}; give one per row")
    if (groups.codes < 0).any():
        row = int(np.argmax(groups.codes < 0))
        raise ValueError(f"row {row} has no individual; name one, or drop the row")
    if len(np.unique(groups.codes)) < groups.num_groups:
        return Groups(np.asarray(groups.names)[groups.codes])
    return groups


def individual_names(subjects: ArrayLike | None, size: int) -> NDArray:
    """One name per individual."""
    names = np.arange(size) if subjects is None else name_array("subjects", subjects)
    if names.shape != (size,):
        raise ValueError(
            f"subjects has shape {names.shape}; expected ({size},), one name per individual"
        )
    twice = pd.Index(names).duplicated()
    if twice.any():
        raise ValueError(
            f"subjects has {names.tolist()[np.argmax(twice)]!r} twice; give each individual a name of its own"
        )
    return names


def landmark_codes(column: pd.Series) -> tuple[NDArray[np.int64], pd.Index]:
    """Number from 0 on of each landmark in a column of a table, -1 where it is missing, and the landmarks.

    Landmarks that are numbers keep their order; names are in the order in which they first occur.
    """
    codes, marks = pd.factorize(column, sort=pd.api.types.is_numeric_dtype(column))
    return codes.astype(np.int64), pd.Index(marks)


def numbered_landmarks(
    landmarks: Any, names: Any, num_rows: int
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number of each landmark, and the names of all."""
    given = name_array("landmarks", landmarks)
    if given.shape != (num_rows,):
        raise ValueError(
            f"landmarks has shape {given.shape}; expected ({num_rows},), the landmark of each row"
        )
    known = check_landmark_names(names)
    if pd.isna(given).any():
        row = int(np.argmax(pd.isna(given)))
        raise ValueError(f"landmarks[{row}] is missing; name it, or drop the row")
    if given.dtype.kind in "iu":
        numbers = np.unique(given)
        size = len(numbers) if known is None else len(known)
        if numbers[0] < 0 or numbers[-1] >= size:
            row = int(np.argmax((given < 0) | (given >= size)))
            raise ValueError(
                f"landmarks[{row}] = {given[row]}; expected 0 to {size - 1} for {size} landmarks; give "
                "landmark_names if some occur in no row"
            )
        return given.astype(np.int64), known or tuple(map(str, range(size)))
    if given.dtype.kind not in "OUT":
        raise TypeError(f"landmarks holds {given.dtype}; give whole numbers from 0 on, or names")
    text = given.astype(str)
    known = known or tuple(pd.unique(text).tolist())
    codes = pd.Index(known).get_indexer(pd.Index(text))
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise ValueError(f"landmarks[{row}] = {shown(str(text[row]))} is not among landmark_names")
    return codes.astype(np.int64), known


def check_landmark_names(names: Any) -> tuple[str, ...] | None:
    """Names of landmarks as text, None where there are none."""
    if names is None:
        return None
    if isinstance(names, str | Mapping) or np.ndim(names) != 1:
        raise TypeError(f"landmark_names = {shown(names)}; give a list with one name per landmark")
    known = tuple(map(str, names))
    refuse_unwritable("landmark_names", known)
    if len(set(known)) < len(known):
        raise ValueError("landmark_names repeat a name; give each landmark a name of its own")
    return known


def refuse_twice(subjects: Groups, codes: NDArray[np.int64]) -> None:
    """Refuse an individual that has a landmark twice."""
    twice = pd.MultiIndex.from_arrays([subjects.codes, codes]).duplicated()
    if twice.any():
        row = int(np.argmax(twice))
        name = subjects.names.tolist()[subjects.codes[row]]
        raise ValueError(
            f"individual {name!r} has landmark {codes[row]} twice, again in row {row}; drop one"
        )


def covariate_table(covariates: Any, size: int) -> pd.DataFrame | None:
    """Columns with one row per individual."""
    if covariates is None:
        return None
    if not isinstance(covariates, pd.DataFrame | Mapping):
        raise TypeError(
            f"covariates is a {type(covariates).__name__}; give a data frame, or a mapping of names to "
            "columns"
        )
    try:
        table = pd.DataFrame(covariates)
    except ValueError as error:  # columns of different lengths, say
        raise ValueError(
            f"covariates make no table ({error}); give columns of one length"
        ) from None
    if len(table) != size:
        raise ValueError(
            f"covariates has {len(table)} rows for {size} individuals; give one row for each"
        )
    return table


def covariates_by_name(covariates: Any, names: NDArray) -> pd.DataFrame | None:
    """Covariates with the names as index."""
    table = covariate_table(covariates, len(names))
    if table is None:
        return None
    index = pd.Index(names)
    is_named = not isinstance(table.index, pd.RangeIndex) and set(table.index) == set(names)
    found: pd.DataFrame = table.loc[index] if is_named else table.set_axis(index, axis=0)
    return found


def covariate_column(argument: str, name: str, covariates: pd.DataFrame | None) -> pd.Series:
    """Covariate that stands, by its name, for the values of an argument."""
    if covariates is None or name not in covariates:
        known = [] if covariates is None else list(map(str, covariates))
        raise ValueError(
            f"{argument} = {shown(name)} is no covariate of the landmarks, which have {known}; give one of "
            "these, or a value for each individual"
        )
    found: pd.Series = covariates[name]
    return found
