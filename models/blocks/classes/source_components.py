"""Components and weights of a mixture that start where those of a source are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jax.typing import ArrayLike

from ..mixtures.gaussian_block import GaussianComponents
from ..mixtures.shift_prior import ShiftPrior
from ..mixtures.weights import ComponentWeights
from .source_mixture import SourceMixture

__all__ = ["FreeSourceWeights", "SourceComponents", "SourceWeights", "resolve_shift"]

_REACH = 2.0
"""Standard deviations in which means are moved for further starts (Raghuram 2014, section 4.3)."""

_FORMS = ("full", "diagonal")


def resolve_shift(
    shift: str | ShiftPrior, source: SourceMixture, x: ArrayLike | None
) -> ShiftPrior | None:
    """Turn the arguments `shift` and `source` of a model into a prior; None stands for a flat one.

    Raises
    ------
    TypeError, ValueError
        For something else than a source or a shift, or a flat prior to simulate from.
    """
    if not isinstance(source, SourceMixture):
        raise TypeError(
            f"source is a {type(source).__name__}; pass a SourceMixture, such as fit_source(x, labels)"
        )
    if isinstance(shift, ShiftPrior):
        return shift
    if not isinstance(shift, str) or shift not in ("source", "flat"):
        raise ValueError(f"shift = {shift!r:.60}; expected 'source', 'flat' or a ShiftPrior")
    if shift == "flat" and x is None:
        raise ValueError("shift='flat' cannot be simulated from: without x, pass a ShiftPrior")
    return None if shift == "flat" else ShiftPrior()


class SourceComponents(GaussianComponents):
    """Gaussians that start at those of a source, the means of further starts in a box around them.

    Parameters
    ----------
    source : SourceMixture
    covariance : {"full", "diagonal"}
    shift : ShiftPrior or None
        None is a flat prior.
    data : array_like, shape (num_points, num_features), optional
        See `GaussianComponents`.

    Raises
    ------
    ValueError
        For another form of covariances, or data of another number of features.
    """

    def __init__(
        self,
        source: SourceMixture,
        covariance: str,
        shift: ShiftPrior | None,
        data: ArrayLike | None,
    ) -> None:
        if not isinstance(covariance, str) or covariance not in _FORMS:
            raise ValueError(f"covariance = {covariance!r:.60}; expected one of {_FORMS}")
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
        self.source = source

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Means of the source first, then others around them; covariances of the source."""
        spread = self.source.covariance
        if self.covariance == "diagonal":
            spread = np.diagonal(spread, axis1=1, axis2=2)
        return {"location": self.source.moved(_REACH, seed, num_starts), "spread": spread}


class SourceWeights(ComponentWeights):
    """Weights of components, under a restricted posterior of these, that start at those of a source.

    Parameters
    ----------
    source : SourceMixture
    shift : ShiftPrior or None
        None is a flat prior.
    """

    def __init__(self, source: SourceMixture, shift: ShiftPrior | None) -> None:
        flat = ShiftPrior() if shift is None else shift
        super().__init__(source.num_components, flat.concentration(source.weights))
        self.source = source

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Weights of the source."""
        return {"mixing_weights": self.source.weights}


class FreeSourceWeights(SourceWeights):
    """The same where components are summed out exactly."""

    factor: ClassVar[str] = "log_weights"
