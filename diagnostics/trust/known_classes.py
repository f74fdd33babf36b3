"""How well a fit predicts the known classes of rows, with parameters fitted with them and without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidebayes.common.magnitudes import counted

__all__ = [
    "Recognition",
    "against_the_rest",
    "at_no_row",
    "recognition",
    "sentence",
    "unpredicted",
]

_FEWEST = 5
"""Minimum number of rows of known class for a verdict on a fit."""

_REFUTED = np.log(1000.0)
"""Log ratio by which shares of classes are more probable than a fit: if the fit's probabilities were right,
it would occur once in a thousand data sets (Markov's inequality)."""

_APART = 1.0
"""Difference in nats between a fit and the shares that is not significant: a fit that guesses no better must
be more probable by as much, and one that guesses better may be less probable by as much."""

_TINY = 1e-3
"""Minimum probability of a known class in the sum, so that no single row refutes a fit."""

_DUE = 5.0
"""Number of rows of unknown class that should have a class, by its share of the known rows, from which on the
absence of any such prediction is reported: it is rare (e**-5) if the known rows were drawn at random."""


class Recognition(NamedTuple):
    """How well classes are predicted.

    Attributes
    ----------
    num_rows : int
        Number of rows of known class.
    right : int
        Number of rows whose most probable class agrees with what is stated.
    most : int
        Number of rows of the most frequent class.
    gain : float
        Log probability of what is known, less that under the shares of the classes, in nats.
    """

    num_rows: int
    right: int
    most: int
    gain: float

    @property
    def contradicts(self) -> bool:
        """Whether the shares of the classes are far more probable, and guess as many rows correctly."""
        return self.gain <= -_REFUTED and self.right <= self.most


def recognition(prob: NDArray, stated: NDArray) -> Recognition | None:
    """Compare probabilities of classes with what is stated of rows; None if too few rows count.

    Only rows whose class has other rows count, so that the class can be learned without them.

    Parameters
    ----------
    prob : ndarray, shape (num_rows, num_classes)
    stated : ndarray, shape (num_rows, num_classes)
        Probability of what is stated of a row, given its class.
    """
    own = np.isclose(stated, stated.max(axis=1, keepdims=True))
    only = own.sum(axis=1) == 1
    number = (own & only[:, None]).sum(axis=0)
    rows = only & (number[own.argmax(axis=1)] > 1)
    if rows.sum() < _FEWEST or (number > 1).sum() < 2:
        return None
    prob, stated, own = prob[rows], stated[rows], own[rows]
    number = own.sum(axis=0)
    share = (number + 1) / (number.sum() + len(number))
    found = np.maximum((prob * stated).sum(axis=1), _TINY)
    gain = np.log(found) - np.log(stated @ share)
    right = own[np.arange(len(own)), prob.argmax(axis=1)].sum()
    return Recognition(int(rows.sum()), int(right), int(number.max()), float(gain.sum()))


def sentence(
    seen: Recognition | None, unseen: Recognition | None, *, smoothable: bool = False
) -> tuple[str, str] | None:
    """Return level and sentence of a verdict, if known classes speak against a fit.

    Parameters
    ----------
    seen : Recognition or None
        With parameters that were also fitted to the class of each row.
    unseen : Recognition or None
        With parameters from which each row was left out; None where there are none.
    smoothable : bool
        Whether the model has the option `class_concentration`.
    """
    found = seen if seen is not None and seen.contradicts else unseen
    if found is None or found.gain > (_APART if found.right <= found.most else -_APART):
        return None
    level = "bad" if found is seen else "caution"
    if found.right <= found.most:
        what = "tells the known classes no better than their shares do"
        remedy = "See whether the features say anything of the classes, or fit more components"
    else:
        what = "is too sure of its classes"
        smoother = "class_concentration = 1.3, which smooths them, " if smoothable else ""
        remedy = (
            f"Do not take its probabilities at their word; {smoother}fewer features, or fewer components "
            "may help"
        )
    how = (
        "Although it was fitted to them, it"
        if found is seen
        else "Without a look at a row's own class, the fit"
    )
    return level, (
        f"{how} {what}: it is right at {found.right} of {found.num_rows} known rows, of which "
        f"{found.most} have the same class, and the log probability of these classes is "
        f"{found.gain:+.3g} beside that under their shares. {remedy}"
    )


def against_the_rest(
    seen: Recognition | None, free: Recognition | None, rise: float
) -> tuple[str, str] | None:
    """Return level and sentence of a verdict, if rows have other clusters than the known classes.

    Two hypotheses are compared: that classes are the clusters, and that clusters are free while classes occur
    by their shares. The second is more probable by `rise`, less the gain of the first over the shares.

    Parameters
    ----------
    seen : Recognition or None
        With parameters that were fitted to the known classes.
    free : Recognition or None
        With the parameters to which the fit moves once no class is known.
    rise : float
        Log likelihood of the rows, without classes, under the latter parameters, less that under the former.
    """
    if seen is None or free is None or rise - seen.gain < _REFUTED:
        return None
    return "caution", (
        f"Known classes contradict the rows: once no class is known, the fit moves to clusters of which "
        f"{free.num_rows - free.right} of {free.num_rows} known rows are in another than stated, and the log "
        f"likelihood of the rows is {rise:.3g} higher, where the classes gain {seen.gain:.3g} on their "
        "shares. See whether known classes are in the order of the rows, or of the names of the groups"
    )


def unpredicted(prob: NDArray, label: NDArray, of_known: NDArray) -> dict[int, int]:
    """Known classes that are the most probable at no row, unless its class is known, with their known rows.

    Parameters
    ----------
    prob : ndarray, shape (num_rows, num_classes)
        Probabilities of the classes of all rows.
    label : ndarray of int, shape (num_rows,)
        Known classes, -1 where a class is not known.
    of_known : ndarray, shape (num_known, num_classes)
        Probabilities at known rows, without a look at a row's own class.
    """
    classes = prob.shape[1]
    number = np.bincount(label[label >= 0], minlength=classes)
    elsewhere = np.bincount(prob[label < 0].argmax(axis=1), minlength=classes)
    among_known = np.bincount(of_known.argmax(axis=1), minlength=classes)
    due = (label < 0).sum() * (number + 1) / (number.sum() + classes)
    missed = (number > 0) & (elsewhere == 0) & ((among_known == 0) | (due >= _DUE))
    return {int(one): int(number[one]) for one in np.flatnonzero(missed)}


def at_no_row(
    which: str,
    known: Sequence[int],
    num_classes: int,
    num_clusters: int | None,
    *,
    size: str = "num_clusters",
    hard: bool = False,
) -> str:
    """Say which classes no row is predicted to have, and what to do; see `unpredicted`.

    Parameters
    ----------
    which : str
        Names of the classes.
    known : sequence of int
        Number of known rows of each.
    num_classes : int
    num_clusters : int or None
        Number of components, if classes are not the clusters themselves.
    size : str
        Argument that sets the number of components.
    hard : bool
        Whether the method has an engine that gives every class a component, and the fit used another.
    """
    few = num_clusters is not None and num_clusters < num_classes
    rows = " and ".join(counted(number, "row") for number in known)
    remedies = ["name more of its rows"]
    if num_clusters is not None:
        remedies.insert(0, f"raise {size}" + f" to {num_classes} at least" * few)
    if hard and not few:
        remedies.insert(1, "use engine='hard_classes', which gives every class a component")
    begin = f"{size} = {num_clusters} for {num_classes} classes: at" if few else "At"
    return (
        f"{begin} no row is {which} the most probable, except where it is known ({rows}). If others should "
        f"have it, {', or '.join(remedies)}"
    )
