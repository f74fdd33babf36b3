"""Outlines of scikit-learn's handwritten digits, as an example of shapes that needs no download."""

from __future__ import annotations

from collections.abc import Sequence

import contourpy
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...common.arrays import plain_array
from ...common.fields import check_integer
from ...common.magnitudes import shown
from .landmarks import Landmarks

__all__ = ["digit_outlines"]

_LEVEL = 6.0
"""Darkness of the pixels, from 0 to 16, along the outline."""


def digit_outlines(
    digits: Sequence[int] = (0,), *, num_points: int = 32, num_each: int | None = None
) -> Landmarks:
    """Outer outlines of handwritten digits, as points at equal distances along them.

    Points correspond by their number: each outline begins at its topmost point and runs clockwise.
    They are not landmarks that somebody has set, and slide along the outline.

    Parameters
    ----------
    digits : sequence of int
        Some of 0 to 9.
    num_points : int
        Per outline, at least 3.
    num_each : int, optional
        Number of outlines of each digit, the first in scikit-learn's file; by default all, about
        180.

    Returns
    -------
    Landmarks
        In pixels of 8-by-8 pictures, with y upwards. Individuals are named by the row of the
        picture in the file, and the covariate ``digit`` says what was written.

    Raises
    ------
    TypeError, ValueError
        For bad input.

    Notes
    -----
    The pictures are those of `sklearn.datasets.load_digits`, the test set of Alpaydin and Kaynak (1998),
    Optical Recognition of Handwritten Digits, UCI Machine Learning Repository. The outline is the longest
    contour at darkness 6 of 16, so that strokes apart from the main one are left out.

    Examples
    --------
    >>> import sidebayes
    >>> sidebayes.digit_outlines([3, 5], num_each=20)
    Landmarks(40 individuals, 32 landmarks in 2-D, in pixels, covariates digit)
    """
    from sklearn.datasets import load_digits

    asked = plain_array("digits", digits)
    if asked.ndim != 1 or not asked.size or asked.dtype.kind not in "iu":
        raise TypeError(f"digits = {shown(digits)}; expected a list of whole numbers from 0 to 9")
    if asked.min() < 0 or asked.max() > 9 or len(np.unique(asked)) < len(asked):
        raise ValueError(f"digits = {shown(digits)}; expected some of 0 to 9, each once")
    number = check_integer("num_points", num_points, 3)
    most = None if num_each is None else check_integer("num_each", num_each)
    found = load_digits()
    rows = np.sort(np.concatenate([np.flatnonzero(found.target == one)[:most] for one in asked]))
    outlines = np.stack([_outline(found.images[row], number) for row in rows])
    covariates = pd.DataFrame({"digit": found.target[rows]}, index=pd.Index(rows))
    return Landmarks.from_array(outlines, subjects=rows, covariates=covariates, units="pixels")


def _outline(picture: NDArray[np.float64], num_points: int) -> NDArray[np.float64]:
    """Points at equal distances along the longest contour, from the topmost on."""
    framed = np.pad(picture[::-1], 1)
    lines = contourpy.contour_generator(z=framed).lines(_LEVEL)
    line = max((np.asarray(one) for one in lines), key=lambda one: _lengths(one)[-1])
    area = (line[:-1, 0] * line[1:, 1] - line[1:, 0] * line[:-1, 1]).sum()
    line = line[:-1] if area < 0 else line[:0:-1]  # closed lines repeat their first point
    line = np.roll(line, -int(line[:, 1].argmax()), axis=0)
    closed = np.concatenate([line, line[:1]])
    along = _lengths(closed)
    wanted = np.linspace(0, along[-1], num_points, endpoint=False)
    return np.stack([np.interp(wanted, along, closed[:, axis]) for axis in range(2)], axis=1)


def _lengths(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance along a line to each of its points."""
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    return np.concatenate([[0.0], np.cumsum(steps)])
