"""Gaussian components that clusters have in common."""

from __future__ import annotations

from jax.typing import ArrayLike

from ..components.gaussian_block import GaussianComponents
from ..components.gaussian_prior import GaussianPrior, agreed_features, resolve_prior

__all__ = ["shared_components"]


def shared_components(
    x: ArrayLike | None,
    num_components: int,
    covariance: str,
    prior: str | GaussianPrior,
    axis: str,
) -> GaussianComponents:
    """Block of components that clusters have in common, to start scattered; nothing is sampled yet.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
    num_components : int
    covariance, prior
        See `gaussian_components`, `resolve_prior`.
    axis : str
        Plate of the components.
    """
    resolved = resolve_prior(prior, x, num_components)
    num_features = agreed_features(x, resolved)
    return GaussianComponents(
        num_components,
        num_features,
        covariance,
        resolved,
        from_data=isinstance(prior, str),
        data=x,
        plate=axis,
        scattered=True,
    )
