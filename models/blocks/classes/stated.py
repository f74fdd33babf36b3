"""Statements about the classes of rows, as likelihoods of the classes."""

from __future__ import annotations

import math
from numbers import Real

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from sidebayes.common.arrays import is_traced
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown

from ..side_information.partial_labels import PartialLabels, as_partial_labels

__all__ = [
    "labelled_points",
    "noise_of_strength",
    "shares_of_classes",
    "stated_classes",
    "untold_classes",
]


def stated_classes(
    known: PartialLabels | None, num_classes: int, label_noise: float | Array = 0.0
) -> Array | None:
    r"""Probability of the statement about each row, given its class; None without statements.

    A single stated class y is wrong with probability e, and then it is any of the others:

    .. math:: P(y \mid c) = (1 - e)\,[y = c] + \frac{e}{C - 1}\,[y \ne c]

    A mask of m admissible classes has :math:`1 - e` on these and :math:`e m / (C - m)` on the
    others. This is its likelihood up to a constant if a wrong mask is any other mask of the same
    size; e must then be below :math:`1 - m / C`. A row without a statement has ones.

    Parameters
    ----------
    known : PartialLabels or None
    num_classes : int
        This number includes classes that no row is known to have.
    label_noise : float or Array, shape ()
        e, at least 0 and less than :math:`1 - 1/C`, at which statements carry no information. A
        sampled rate is not checked.

    Returns
    -------
    Array, shape (num_points, num_classes), or None

    Raises
    ------
    TypeError, ValueError
        For a number of classes below one, a rate outside its range (also that of a mask), or
        classes beyond their number.
    """
    check_integer("num_classes", num_classes)
    most = 1.0 - 1.0 / num_classes
    sampled = is_traced(label_noise)
    number = isinstance(label_noise, Real) and not isinstance(label_noise, bool)
    if not (sampled or (number and (label_noise == 0 or 0 < label_noise < most))):
        raise ValueError(
            f"label_noise = {label_noise!r}; expected the probability that a stated class is wrong, at "
            f"least 0 and, for {num_classes} classes, less than {most:.3g}"
        )
    if known is None:
        return None
    known = as_partial_labels(known)
    admissible = jnp.asarray(known.admissible(num_classes))
    if not sampled and label_noise == 0:
        return admissible.astype(float)
    if not sampled and not is_traced(known.values) and known.values.ndim == 2:
        _check_masks(np.asarray(known.values), float(label_noise))
    size = admissible.sum(axis=1, keepdims=True)
    wrong = label_noise * size / jnp.maximum(num_classes - size, 1)
    stated = jnp.where(admissible, 1.0 - label_noise, wrong)
    return jnp.where(size == num_classes, 1.0, stated)


def _check_masks(admissible: NDArray[np.bool_], label_noise: float) -> None:
    """Refuse an error rate at which a mask would favour the classes that it excludes."""
    size = admissible.sum(axis=1)
    row = int(np.argmax(np.where(size < admissible.shape[1], size, 0)))
    most = 1.0 - size[row] / admissible.shape[1]
    if 0 < most <= label_noise:
        raise ValueError(
            f"statements about classes are wrong at a rate of {label_noise:.3g}, but known[{row}] admits "
            f"{size[row]} of {admissible.shape[1]} classes: from {most:.3g} on the excluded ones would be "
            "the likelier; pass a smaller label_noise (a larger strength), or admit fewer classes"
        )


def labelled_points(stated: Array) -> Array:
    """Mask of the points with a statement, shape (num_points,); see `stated_classes`."""
    return stated.min(axis=1) < stated.max(axis=1)


def untold_classes(known: PartialLabels | None, num_classes: int) -> list[int]:
    """Classes that no statement admits; none where nothing is stated of any row, or values are traced."""
    if known is None or is_traced(as_partial_labels(known).values):
        return []
    admissible = as_partial_labels(known).admissible(num_classes)
    told = admissible[~admissible.all(axis=1)]
    return np.flatnonzero(~told.any(axis=0)).tolist() if len(told) else []


def shares_of_classes(stated: Array | None, num_classes: int) -> Array:
    """Class probabilities, given the statements about rows only, shape (num_classes,).

    They are the posterior mean under a flat Dirichlet prior, given the rows with a statement.

    Parameters
    ----------
    stated : Array, shape (num_points, num_classes), or None
        See `stated_classes`.
    num_classes : int
    """
    if stated is None:
        return jnp.full(num_classes, 1.0 / num_classes)
    told = labelled_points(stated)
    share = jnp.where(told[:, None], stated / stated.sum(axis=1, keepdims=True), 0.0)
    return (1.0 + share.sum(axis=0)) / (num_classes + told.sum())


_NO_NOISE = 1e3
"""Log-odds at which the odds of an error are zero in floating point."""


def noise_of_strength(strength: float, num_classes: int) -> float:
    r"""Probability e that a stated class is wrong, from its log-odds against any one other class.

    .. math:: \frac{1 - e}{e / (C - 1)} = e^\beta, \qquad
              e = \frac{(C - 1) e^{-\beta}}{1 + (C - 1) e^{-\beta}}

    Parameters
    ----------
    strength : float
        :math:`\beta \ge 0`, in nats; infinity is no noise.
    num_classes : int

    Raises
    ------
    ValueError
        For anything but a number of at least 0.
    """
    number = isinstance(strength, Real) and not isinstance(strength, bool)
    if not number or not strength >= 0:
        raise ValueError(f"strength = {shown(strength)}; expected a number >= 0, in nats")
    certain = float(min(strength, _NO_NOISE))  # an integer may exceed all floats
    odds = (num_classes - 1) * math.exp(-certain)
    return odds / (1 + odds)
