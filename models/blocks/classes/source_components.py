"""Components and weights of a mixture that start at those of a source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from scipy.stats import norm

from sidebayes.common.arrays import given_array
from sidebayes.common.magnitudes import counted, shown

from ..components.gaussian_block import GaussianComponents
from ..components.shift_prior import ShiftPrior, WorthPrior
from ..mixtures.weights import ComponentWeights
from ..side_information.partial_labels import PartialLabels, as_partial_labels
from .source_mixture import SourceMixture
from .source_worth import SourceWorth, source_worth, trusted

__all__ = [
    "FreeSourceWeights",
    "SourceComponents",
    "SourceWeights",
    "resolve_shift",
    "spread_factors",
]

_REACH = 2.0
"""Range, in standard deviations, of moved means in further starts (Raghuram 2014, section 4.3)."""

_MUCH = 0.25
"""Share of the rows that may change class without support by known classes."""

_UNITS = 3.0, 10.0
"""Factors outside of the spreads that a source allows, of the median column and of a single one.

Halves of twelve public sets, also with other frequencies of classes or a single class, reach 1.2 and 2.9;
see `benchmarks/domain_adaptation.py --spreads`.
"""

_FEW = 10
"""Number of rows below which a target does not show whether it has moved, nor how narrow it is."""

_FORMS = ("full", "diagonal")


def resolve_shift(
    shift: str | ShiftPrior,
    source: SourceMixture,
    x: ArrayLike | None,
    worth: ArrayLike | None = None,
    weights_worth: ArrayLike | None = None,
    known: PartialLabels | None = None,
    strength: float = math.inf,
) -> ShiftPrior | WorthPrior | None:
    """Turn arguments of a model into a prior; None stands for a flat one.

    Parameters
    ----------
    shift : {"source", "flat"} or ShiftPrior
    source : SourceMixture
    x : array_like, shape (num_points, num_features), or None
    worth : array_like, shape (num_components,), optional
        For "source" only; by default that of `source_worth`, or one point if there are no rows.
    weights_worth : array_like, shape (), optional
        The same for all weights together; by default that of `source_worth`, or `worth` if given.
    known : PartialLabels, optional
    strength : float
        Strength of the known classes; see `chosen_worth`.

    Raises
    ------
    TypeError, ValueError
        For anything but a source or a shift, for simulation from a flat prior, or for a worth that
        the shift does not use.
    """
    if not isinstance(source, SourceMixture):
        raise TypeError(
            f"source is a {type(source).__name__}; pass a SourceMixture, such as fit_source(x, labels)"
        )
    if not isinstance(shift, ShiftPrior) and not (
        isinstance(shift, str) and shift in ("source", "flat")
    ):
        raise ValueError(f"shift = {shown(shift)}; expected 'source', 'flat' or a ShiftPrior")
    for name, value in {"worth": worth, "weights_worth": weights_worth}.items():
        if shift != "source" and value is not None:
            raise ValueError(
                f"{name} is for shift='source' alone; shift = {shown(shift)}: leave it out"
            )
    if isinstance(shift, ShiftPrior):
        return shift
    if shift == "flat" and x is None:
        raise ValueError("shift='flat' cannot be simulated from: without x, pass a ShiftPrior")
    if shift == "flat":
        return None
    if worth is None and x is not None:
        found = source_worth(source, x, trusted(known, strength, source))
        worth = found.means
        weights_worth = found.weights if weights_worth is None else weights_worth
    elif worth is None:
        worth = np.ones(source.num_components)
    if np.shape(worth) != (source.num_components,):
        raise ValueError(
            f"worth has shape {np.shape(worth)} for a source of {source.num_components} components; pass a "
            "number of points for each, or leave it out"
        )
    if not isinstance(worth, Tracer) and not (np.asarray(worth) > 0).all():
        numbers = np.asarray(worth).tolist()
        raise ValueError(f"worth = {shown(numbers)}; expected positive numbers of points")
    if weights_worth is None:
        return WorthPrior(jnp.asarray(worth))
    weights = given_array("weights_worth", weights_worth)
    if np.shape(weights) or not (isinstance(weights, Tracer) or weights >= 0):
        raise ValueError(
            f"weights_worth = {shown(weights_worth)}; expected a number of points >= 0"
        )
    return WorthPrior(jnp.asarray(worth), jnp.asarray(weights))


class SourceComponents(GaussianComponents):
    """Gaussians that start at those of a source; further starts have means in a box around them.

    Parameters
    ----------
    source : SourceMixture
    covariance : {"full", "diagonal"}
    shift : ShiftPrior, WorthPrior or None
        None is a flat prior.
    data : array_like, shape (num_points, num_features), optional
        See `GaussianComponents`.
    known : PartialLabels, optional
        Classes of the rows, by which the components are compared with the source; see `remark`.
    strength : float
        Log-odds that these classes are right.

    Raises
    ------
    ValueError
        For another form of covariances, or data with another number of features.
    """

    remedy: str = (
        "use shift='source', which keeps components near those of the source, "
        "or more rows of the target"
    )

    def __init__(
        self,
        source: SourceMixture,
        covariance: str,
        shift: ShiftPrior | WorthPrior | None,
        data: ArrayLike | None,
        known: PartialLabels | None = None,
        strength: float = math.inf,
    ) -> None:
        if not isinstance(covariance, str) or covariance not in _FORMS:
            raise ValueError(f"covariance = {shown(covariance)}; expected one of {_FORMS}")
        if data is not None and np.shape(data)[1] != source.num_features:
            raise ValueError(
                f"x has {np.shape(data)[1]} features and the source {source.num_features}; both domains "
                "need the same features, in the same order"
            )
        given = source.mean, source.covariance
        prior = None if shift is None else shift.around(*given, form=covariance)
        super().__init__(
            source.num_components,
            source.num_features,
            covariance,
            prior,
            data=data,
            plate="components",
        )
        self.source, self.rows = source, data
        self.known = None if known is None else as_partial_labels(known)
        self.trusted = trusted(self.known, strength, source)  # as where the worth was chosen
        self.worth = shift.worth if isinstance(shift, WorthPrior) else None

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that the rows do not support the move, compared with the classes under the unmoved source."""
        given = self.rows, None if self.known is None else self.known.values, self.source.mean
        if self.rows is None or any(isinstance(one, Tracer) for one in given):
            return None
        roles = ("mixing_weights", "location", "spread")
        if any(role not in values for role in roles):  # given, or under a prior of the user
            return _in_other_units(self.source, np.asarray(self.rows))
        weights, mean, spread = (np.mean(values[role], axis=(0, 1)) for role in roles)
        if self.covariance == "diagonal":
            spread = spread[:, :, None] * np.eye(spread.shape[1])
        weights = np.maximum(weights, np.finfo(float).tiny)
        try:
            owner = self.source.component_class
            moved = SourceMixture(weights / weights.sum(), mean, spread, owner)
        except ValueError:  # collapsed, which the status reports
            return None
        rows = np.asarray(self.rows)
        return (
            _in_other_units(self.source, rows)
            or _unsupported(self.source, moved, rows, self.known)
            or _too_few(rows)
            or _undecided(source_worth(self.source, rows, self.trusted), self.worth)
        )

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Means of the source, then others around them, with the covariances of the source."""
        spread = self.source.covariance
        if self.covariance == "diagonal":
            spread = np.diagonal(spread, axis1=1, axis2=2)
        return {"location": self.source.moved(_REACH, seed, num_starts), "spread": spread}


def spread_factors(source: SourceMixture, rows: NDArray) -> NDArray[np.float64]:
    """How much wider (> 1) or narrower (< 1) columns are than a source allows, whatever its frequencies.

    The least spread that it allows is that of a single component, and the greatest that of two halves at
    the ends. Columns are judged by their standard deviation or by their inner four fifths, whichever is
    closer, so that neither single far rows nor rare values count. Constant columns have 1, and so have
    narrow ones of few rows.

    Parameters
    ----------
    source : SourceMixture
    rows : ndarray, shape (num_points, num_features)

    Returns
    -------
    ndarray, shape (num_features,)
    """
    variance = np.diagonal(source.covariance, axis1=1, axis2=2)
    most = np.sqrt(variance.max(axis=0) + np.ptp(source.mean, axis=0) ** 2 / 4)
    least = np.sqrt(variance.min(axis=0))
    inner = np.ptp(np.quantile(rows, [0.1, 0.9], axis=0), axis=0) / np.ptp(norm.ppf([0.1, 0.9]))
    spread = np.stack([rows.std(axis=0), inner])
    wide = np.maximum(spread.min(axis=0) / most, 1.0)
    narrow = np.minimum(spread.max(axis=0) / least, 1.0) if len(rows) >= _FEW else 1.0
    return np.where(np.ptp(rows, axis=0) > 0, wide * narrow, 1.0)


def _in_other_units(source: SourceMixture, rows: NDArray) -> str | None:
    """A remark if columns have a spread that no frequencies of the source's components explain."""
    factors = spread_factors(source, rows)
    apart = np.exp(np.abs(np.log(factors)))
    typical, single = _UNITS
    if np.median(apart) <= typical and apart.max() <= single:
        return None
    far, number = int(apart.argmax()), int((apart > typical).sum())
    return (
        f"Column {far} of x spreads {factors[far]:.3g} times as wide as the source allows, whatever the "
        f"frequencies of its components ({number} of {counted(len(apart), 'column')} off by a factor above "
        f"{typical:g}): give x in the units of the source, or standardise each domain by its own means "
        "and deviations before fit_source and fit. If the spread itself has changed, trust the classes "
        "only where rows of known class confirm them"
    )


def _too_few(rows: NDArray) -> str | None:
    """A remark if there are hardly any rows."""
    if len(rows) >= _FEW:
        return None
    return (
        f"x has {counted(len(rows), 'row')}, fewer than {_FEW}, which cannot show whether the target has "
        "moved: compare source.predict(x), or give more rows of the target"
    )


def _unsupported(
    source: SourceMixture, moved: SourceMixture, rows: NDArray, known: PartialLabels | None
) -> str | None:
    """A remark if known classes contradict a move, or do not support a move that changes much."""
    guesses = [one.predict_proba(rows).argmax(axis=1) for one in (source, moved)]
    classes = np.full(len(rows), -1) if known is None else np.asarray(known.classes)
    told = classes >= 0
    before, after = (int((guess != classes)[told].sum()) for guess in guesses)
    changed = float(np.mean(guesses[0] != guesses[1]))
    if after <= before and (changed <= _MUCH or after < before):
        return None
    gain = np.mean(moved.log_density(rows) - source.log_density(rows))
    said = (
        f"it is wrong at {after} of {told.sum()} rows of known class, the source as it is at {before}"
        if told.any()
        else "no class is known that could decide which is right"
    )
    return (
        f"The moved classifier gives {changed:.0%} of the rows another class than the source as it is, and "
        f"changes the mean log density of a row by {gain:+.3g}; {said}: compare source.predict(x), or hold "
        f"the classifier closer to the source: shift='source', worth=np.full({source.num_components}, 1e3)"
    )


def _undecided(found: SourceWorth, worth: ArrayLike | None) -> str | None:
    """A remark if frequencies and a move explain the target equally well and the worth was chosen."""
    if not found.is_doubtful or worth is None or not np.allclose(found.means, worth):
        return None
    held = f"worth=np.full({len(found.means)}, 1e6), weights_worth=0"
    return (
        "Other frequencies of the classes explain the mean and the spread of the target about as well as "
        f"a move of the components does (log evidence {found.reweighted:.1f} and {found.moved:.1f}), and "
        f"known classes do not tell them apart: give more of them, or compare {held} and shift=ShiftPrior()"
    )


class SourceWeights(ComponentWeights):
    """Weights of components that start at those of a source, under a restricted posterior.

    Parameters
    ----------
    source : SourceMixture
    shift : ShiftPrior, WorthPrior or None
        None is a flat prior.
    """

    def __init__(self, source: SourceMixture, shift: ShiftPrior | WorthPrior | None) -> None:
        flat = ShiftPrior() if shift is None else shift
        super().__init__(source.num_components, flat.concentration(source.weights))
        self.source = source

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Weights of the source."""
        return {"mixing_weights": self.source.weights}


class FreeSourceWeights(SourceWeights):
    """`SourceWeights` for components that are summed out exactly."""

    factor: ClassVar[str] = "log_weights"
