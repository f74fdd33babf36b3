"""Landmarks of individuals in long form: one row for each that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.models.blocks.manifolds.alignment import Alignment, align_landmarks
from sidebayes.models.blocks.side_information.cells import cell
from sidebayes.models.blocks.side_information.groups import (
    Groups,
    refuse_mixed_orders,
    refuse_other_order,
)
from sidebayes.models.blocks.side_information.partial_labels import frozen

from ...common.arrays import chosen_rows, real_array
from ...common.files import LANDMARKS, check_writable, write_whole
from ...common.magnitudes import counted, shown
from ..tables import check_data
from .landmark_checks import (
    check_landmark_names,
    check_subjects,
    covariate_table,
    covariates_by_name,
    individual_names,
    numbered_landmarks,
    refuse_twice,
)

__all__ = ["Landmarks"]

_AXES = ("x", "y", "z")


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Landmarks, or unordered points, of individuals, with one row per measured point.

    A missing landmark has no row. ``x``, ``subjects`` and ``landmarks`` are what models of shapes
    take.

    Parameters
    ----------
    x : array_like, shape (num_rows, num_coordinates)
        Places in the plane or in space.
    subjects : Groups or array_like, shape (num_rows,)
        Individual that each row belongs to, by name or number.
    landmarks : array_like, shape (num_rows,), optional
        Landmark of each row, by number from 0 on or by name; each occurs at most once per
        individual. None if points of different individuals do not correspond.
    landmark_names : sequence of str, optional
        Names of the landmarks, in order of their number. Names in `landmarks` are by default numbered in
        the order in which they first occur.
    covariates : data frame or mapping of str to array_like, optional
        One row per individual, in the order of ``subjects.names``; the rows of a frame whose index
        has these names are put in that order.
    units : str, optional
        Units of `x`, such as "mm".

    Attributes
    ----------
    names : ndarray, shape (num_individuals,)
        Individuals in sorted order, as in ``subjects.names``.

    Raises
    ------
    TypeError, ValueError
        If coordinates are not finite, an individual has a landmark twice, or sizes do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from sidebayes import Landmarks
    >>> square = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
    >>> shapes = np.stack([square, 2 * square])
    >>> shapes[1, 3] = np.nan
    >>> marks = Landmarks.from_array(shapes, subjects=["ann", "bob"])
    >>> marks, marks.landmarks.tolist()
    (Landmarks(2 individuals, 4 landmarks in 2-D, 1 missing), [0, 1, 2, 3, 0, 1, 2])
    """

    x: NDArray[np.float64]
    subjects: Groups
    landmarks: NDArray[np.int64] | None = None
    landmark_names: tuple[str, ...] | None = None
    covariates: pd.DataFrame | None = None
    units: str | None = None

    def __post_init__(self) -> None:
        x = np.asarray(check_data(self.x, "x", ("rows", "coordinates")), float)
        if x.shape[1] not in (2, 3):
            raise ValueError(f"x has {x.shape[1]} coordinates; expected 2 or 3, one per column")
        refuse_mixed_orders(x=self.x, subjects=self.subjects, landmarks=self.landmarks)
        subjects = check_subjects(self.subjects, len(x))
        object.__setattr__(self, "x", frozen(x))
        object.__setattr__(self, "subjects", subjects)
        if self.landmarks is None and self.landmark_names is not None:
            raise ValueError(
                "landmark_names are given without landmarks; give the landmark of each row"
            )
        if self.landmarks is not None:
            codes, names = numbered_landmarks(self.landmarks, self.landmark_names, len(x))
            refuse_twice(subjects, codes)
            object.__setattr__(self, "landmarks", frozen(codes))
            object.__setattr__(self, "landmark_names", names)
        object.__setattr__(self, "covariates", covariates_by_name(self.covariates, subjects.names))
        if self.units is not None and not isinstance(self.units, str):
            raise TypeError(f"units = {shown(self.units)}; give text, such as 'mm'")

    @classmethod
    def from_array(
        cls,
        x: ArrayLike,
        *,
        subjects: ArrayLike | None = None,
        landmark_names: Sequence[str] | None = None,
        covariates: pd.DataFrame | Mapping[str, Any] | None = None,
        units: str | None = None,
    ) -> Self:
        """Make landmarks from an array.

        Parameters
        ----------
        x : array_like, shape (num_individuals, num_landmarks, num_coordinates)
            NaN in all coordinates of a landmark that is missing.
        subjects : array_like, shape (num_individuals,), optional
            Names of the individuals, by default their numbers.
        landmark_names : sequence of str, optional
        covariates : data frame or mapping of str to array_like, optional
            In the order of `x`.
        units : str, optional
        """
        values = real_array("x", x)
        if values.ndim != 3 or 0 in values.shape:
            raise ValueError(
                f"x has shape {values.shape}; expected (individuals, landmarks, coordinates), at least one "
                "of each"
            )
        missing = np.isnan(values)
        partly = np.argwhere(missing.any(axis=2) & ~missing.all(axis=2))
        if len(partly):
            one, landmark = map(int, partly[0])
            raise ValueError(
                f"x[{one}, {landmark}] = {values[one, landmark]}; a landmark that is missing has NaN in all "
                "coordinates"
            )
        names = individual_names(subjects, len(values))
        refuse_mixed_orders(subjects=subjects, covariates=covariates)
        refuse_other_order("covariates", covariates, names)
        table = covariate_table(covariates, len(names))
        if table is not None:
            table = table.set_axis(pd.Index(names), axis=0)
        present = ~missing.all(axis=2)
        empty = np.flatnonzero(~present.any(axis=1))
        if len(empty):
            raise ValueError(
                f"individual {names.tolist()[empty[0]]!r} has no landmark at all; drop it"
            )
        rows, marks = np.nonzero(present)
        labels = check_landmark_names(landmark_names) or tuple(map(str, range(values.shape[1])))
        if len(labels) != values.shape[1]:
            raise ValueError(
                f"landmark_names has {counted(len(labels), 'name')} for {values.shape[1]} landmarks; "
                "give one for each"
            )
        return cls(values[present], Groups(names[rows]), marks, labels, table, units)

    @property
    def names(self) -> NDArray:
        """Names of the individuals, in sorted order."""
        return self.subjects.names

    @property
    def num_landmarks(self) -> int | None:
        """Number of landmarks that an individual may have; None where points do not correspond."""
        return None if self.landmark_names is None else len(self.landmark_names)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which individuals have which landmarks, shape (num_individuals, num_landmarks)."""
        codes, number = self._corresponding()
        found = np.zeros((len(self), number), bool)
        found[self.subjects.codes, codes] = True
        return found

    def to_array(self) -> NDArray[np.float64]:
        """Array of shape (num_individuals, num_landmarks, num_coordinates), NaN where missing.

        Raises
        ------
        ValueError
            If points do not correspond.
        """
        codes, number = self._corresponding()
        found = np.full((len(self), number, self.x.shape[1]), np.nan)
        found[self.subjects.codes, codes] = self.x
        return found

    def by_role(self) -> dict[str, Any]:
        """Data by name of the argument, as models of shapes take them; see `sidebayes.fit`."""
        found = {"x": self.x, "subjects": self.subjects, "landmarks": self.landmarks}
        return {name: value for name, value in found.items() if value is not None}

    def to_frame(self) -> pd.DataFrame:
        """Long table: individual, landmark, x, y (and z), and the covariates of the individual."""
        individuals = np.asarray(self.names)[self.subjects.codes]
        table = pd.DataFrame({"individual": individuals})
        if self.landmarks is not None and self.landmark_names is not None:
            table["landmark"] = np.asarray(self.landmark_names, object)[self.landmarks]
        table[list(_AXES[: self.x.shape[1]])] = self.x
        if self.covariates is None:
            return table
        rows = self.covariates.iloc[self.subjects.codes].reset_index(drop=True)
        return pd.concat([table, rows], axis=1)

    def take(self, individuals: ArrayLike | slice) -> Self:
        """Landmarks of some individuals, which stay in sorted order.

        Parameters
        ----------
        individuals : array_like of int or bool, or slice
            Numbers of individuals in the order of `names`, or a mask over them.

        Raises
        ------
        ValueError
            If these do not name some of the individuals.
        """
        chosen = np.unique(chosen_rows("individuals", individuals, len(self)))
        if not len(chosen):
            raise ValueError("individuals names none; choose at least one")
        rows = np.flatnonzero(np.isin(self.subjects.codes, chosen))
        names = np.asarray(self.names)[self.subjects.codes[rows]]
        return type(self)(
            self.x[rows],
            Groups(names),
            None if self.landmarks is None else self.landmarks[rows],
            self.landmark_names,
            None if self.covariates is None else self.covariates.iloc[chosen],
            self.units,
        )

    def aligned(self, *, scale: bool = True) -> Alignment:
        """Align all individuals with their mean shape, by generalised Procrustes analysis.

        Missing landmarks are left out of each individual's fit to the mean.

        Parameters
        ----------
        scale : bool
            Whether size is removed (the full Procrustes mean); otherwise individuals are only moved
            and rotated.

        Raises
        ------
        ValueError
            If points do not correspond; if all landmarks of an individual coincide or lie on a
            line, or too few are common; or if a shape is as far from the mean as shapes can be.

        Warns
        -----
        SideBayesWarning
            If individuals look reflected, have landmarks in another order or in the same place, have a
            landmark far from where others have it, are far from all others, or have
            the same shape as others.
        """
        if not isinstance(scale, bool):
            raise TypeError(f"scale = {shown(scale)}; expected True or False")
        return align_landmarks(self.to_array(), self.names, self.landmark_names, scale=scale)

    def write_tps(self, path: Any) -> None:
        """Write a TPS file, with NA for the coordinates of missing landmarks, as `read_landmarks` reads it.

        Parameters
        ----------
        path : path
            Its name should end in ".tps".

        Raises
        ------
        TypeError, ValueError
            If `path` cannot be written to, holds a file of another kind, or ends as one does.
        """
        check_writable(path, LANDMARKS)
        lines = []
        for name, places in zip(self.names, self.to_array(), strict=True):
            lines.append(f"LM{'' if places.shape[1] == 2 else 3}={len(places)}")
            lines += [" ".join("NA" if np.isnan(v) else repr(float(v)) for v in p) for p in places]
            lines.append(f"ID={name}")
        write_whole(path, ("\n".join(lines) + "\n").encode())

    def __len__(self) -> int:
        """Number of individuals."""
        return self.subjects.num_groups

    def __repr__(self) -> str:
        """Sizes, missing landmarks, units and covariates."""
        what = f"{len(self.x)} points"
        if self.num_landmarks is not None:
            what = f"{self.num_landmarks} landmarks"
        parts = [f"{len(self)} individuals", f"{what} in {self.x.shape[1]}-D"]
        missing = 0 if self.num_landmarks is None else int((~self.present).sum())
        parts += [f"{missing} missing"] * bool(missing) + [f"in {self.units}"] * (
            self.units is not None
        )
        if self.covariates is not None:
            parts.append(f"covariates {', '.join(map(str, self.covariates))}")
        return f"Landmarks({', '.join(parts)})"

    def _repr_html_(self) -> str:
        table = pd.DataFrame(
            {"points": np.bincount(self.subjects.codes)}, pd.Index(self.names, name="individual")
        )
        table = table if self.covariates is None else table.join(self.covariates)
        return cell(repr(self), table)

    def _corresponding(self) -> tuple[NDArray[np.int64], int]:
        if self.landmarks is None or self.num_landmarks is None:
            counts = np.bincount(self.subjects.codes)
            raise ValueError(
                f"points of the {len(self)} individuals ({counts.min()} to {counts.max()} each) do not "
                "correspond; give landmarks, the landmark of each row, or use a model of unordered points"
            )
        return self.landmarks, self.num_landmarks
