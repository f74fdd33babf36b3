"""Data of models of shapes, made of landmarks and their covariates by a formula."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ...common.magnitudes import shown
from ..formula_parts import OF_SHAPES, Columns, naming, refuse_words, term_of
from .landmarks import Landmarks

__all__ = ["ShapeDesign", "shape_design"]

_SIZE = "log_size"


class ShapeDesign(Mapping[str, Any]):
    """Data by role for ``sidebayes.fit("hierarchical_shape", **design)``.

    A mapping with the entries ``x``, ``subjects``, ``landmarks`` and ``covariates``. `at` makes the
    same columns for other individuals.

    Attributes
    ----------
    formula : str
    """

    def __init__(self, formula: str, landmarks: Landmarks) -> None:
        self.formula = formula
        terms = _right_hand_side(formula)
        table = _table(landmarks, formula)
        with naming(formula, table):
            self._columns = Columns(terms, table, OF_SHAPES)
        _refuse_unreadable(self._columns)
        self._data = self._by_role(landmarks, self._columns)

    def at(self, landmarks: Landmarks) -> dict[str, Any]:
        """Data of other individuals, such as for ``fit.predict_proba(**design.at(new))``.

        Parameters
        ----------
        landmarks : Landmarks
            With the covariates that the formula names. Categories and bases are those of the individuals
            that the design was made of.

        Returns
        -------
        dict

        Raises
        ------
        TypeError, ValueError
            If these are not landmarks, or a covariate is missing or has a new category.
        """
        table = _table(landmarks, self.formula)
        with naming(self.formula, table):
            return self._by_role(landmarks, self._columns.at(table))

    @staticmethod
    def _by_role(landmarks: Landmarks, columns: Columns) -> dict[str, Any]:
        covariates = columns.frame.drop(columns="Intercept", errors="ignore")
        return {**landmarks.by_role(), "covariates": covariates.set_axis(landmarks.names, axis=0)}

    def __getitem__(self, name: str) -> Any:
        """One of the data."""
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the data."""
        return iter(self._data)

    def __len__(self) -> int:
        """Number of data."""
        return len(self._data)

    def __repr__(self) -> str:
        """Formula and sizes."""
        individuals, columns = self["covariates"].shape
        return f"ShapeDesign({self.formula}: {individuals} individuals, {columns} columns)"


def shape_design(formula: str, landmarks: Landmarks) -> ShapeDesign:
    """Data by role of a model of shapes, from landmarks and a formula of their covariates.

    Parameters
    ----------
    formula : str
        Terms without a response, ``"~ species * sex"``, in the language of `sidebayes.design`. The intercept
        is the mean of a group. ``log_size`` is the logarithm of the centroid size, if no covariate
        has this name: ``"~ log_size"`` is allometry.
    landmarks : Landmarks
        Landmarks with covariates.

    Returns
    -------
    ShapeDesign
        ``sidebayes.fit("hierarchical_shape", **shape_design(...))``.

    Raises
    ------
    ImportError
        If the library formulae is not installed.
    TypeError, ValueError
        If these are not landmarks, the formula cannot be read, or a covariate is missing or
        incomplete.

    Examples
    --------
    >>> import numpy as np, sidebayes
    >>> x = np.random.default_rng(0).normal(size=(4, 5, 2))
    >>> marks = sidebayes.Landmarks.from_array(x, covariates={"sex": list("fmfm"), "age": [1, 2, 4, 8]})
    >>> sidebayes.shape_design("~ sex * age", marks)["covariates"].columns.tolist()
    ['sex[m]', 'age', 'sex[m]:age']
    """
    return ShapeDesign(formula, landmarks)


def _right_hand_side(formula: Any) -> str:
    """Terms of a formula without a response."""
    response, tilde, right = formula.partition("~") if isinstance(formula, str) else ("", "", "")
    if not tilde or response.strip() or not right.strip() or "|" in right:
        raise ValueError(
            f"formula = {shown(formula)}; expected terms without a response or random effects, such as "
            "'~ species * sex'; shapes are what they explain"
        )
    refuse_words(formula)
    return right.strip()


def _table(landmarks: Landmarks, formula: str) -> pd.DataFrame:
    """Covariates of the individuals, with their log centroid size where the formula asks for it."""
    if not isinstance(landmarks, Landmarks):
        raise TypeError(
            f"landmarks is a {type(landmarks).__name__}; pass sidebayes.Landmarks with covariates"
        )
    table = landmarks.covariates
    table = pd.DataFrame(index=landmarks.names) if table is None else table
    table = table.reset_index(drop=True)
    if _SIZE in table or not re.search(rf"\b{_SIZE}\b", formula):
        return table
    places = landmarks.to_array()
    without = np.isnan(places).any(axis=(1, 2))
    if without.any():
        name = landmarks.names.tolist()[int(np.argmax(without))]
        raise ValueError(
            f"{_SIZE} needs all landmarks, and individual {name!r} lacks one; give its size as a covariate"
        )
    centred = places - places.mean(axis=1, keepdims=True)
    return table.assign(**{_SIZE: np.log(np.linalg.norm(centred, axis=(1, 2)))})


def _refuse_unreadable(columns: Columns) -> None:
    """Refuse categories for whose names columns cannot be put back together to terms."""
    names = columns.frame.columns
    for term, where in columns.common.slices.items():
        wrong = [name for name in names[where] if term_of(name) != term]
        if wrong:
            raise ValueError(
                f"a category of {term} makes the column {wrong[0]!r}; rename categories that have brackets "
                "or colons, since columns go by term[category]"
            )
