"""Gaussian components that clusters share, and the rule that assigns points to them."""

from __future__ import annotations

import numpyro.distributions as dist
from jax.typing import ArrayLike

from sidebayes.common.magnitudes import shown

from ..components.gaussian_block import GaussianComponents
from ..components.gaussian_prior import GaussianPrior, agreed_features, resolve_prior
from .discriminants import Discriminants
from .rule import Rule

__all__ = ["shared_components"]


def shared_components(
    x: ArrayLike | None,
    num_components: int,
    covariance: str,
    prior: str | GaussianPrior,
    posterior: str,
    axis: str,
) -> tuple[dist.Distribution, Rule | None]:
    r"""Sample components that clusters share, with scattered starts, and their discriminants.

    .. math:: (\mu_k, \Sigma_k) \sim \text{prior}, \qquad q(k | x) = \text{softmax}_k \psi_k(x)

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
    num_components : int
    covariance, prior
        See `gaussian_components`, `resolve_prior`.
    posterior : {"partition", "mean_field"}
        Whether all points share the rule q, or each has its own factor; without data there is no
        rule.
    axis : str
        Plate of the components.

    Returns
    -------
    density : Distribution, batch_shape (num_components,)
    rule : Rule or None

    Raises
    ------
    ValueError
        For another `posterior`, or for options that `gaussian_components` refuses.
    """
    if not isinstance(posterior, str) or posterior not in ("partition", "mean_field"):
        raise ValueError(f"posterior = {shown(posterior)}; expected 'partition' or 'mean_field'")
    resolved = resolve_prior(prior, x, num_components)
    gaussians = GaussianComponents(
        num_components,
        agreed_features(x, resolved),
        covariance,
        resolved,
        from_data=isinstance(prior, str),
        data=x,
        plate=axis,
        scattered=True,
    )
    density = gaussians.sample()
    if posterior == "mean_field" or x is None:
        return density, None
    block = Discriminants(num_components, covariance, gaussians, axis)
    return density, block.sample(x, "discriminants")
