"""Sites of the components of a mixture: Gaussians, mixtures of Gaussians, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown

from ..mixtures.weights import WithinWeights
from .gaussian_block import GaussianComponents
from .gaussian_prior import GaussianPrior, agreed_features, resolve_prior

__all__ = ["class_components", "gaussian_components", "mixture_components", "num_rows"]


def num_rows(x: ArrayLike | None, num_points: int | None) -> int:
    """Return the number of points, of the data or to be simulated.

    Raises
    ------
    ValueError
        If `num_points` is missing without data, or contradicts the data.
    """
    if x is None:
        if num_points is None:
            raise ValueError("x is None and num_points is missing; pass num_points to simulate")
        return num_points
    rows = jnp.shape(x)[0]
    if num_points not in (None, rows):
        raise ValueError(f"num_points = {num_points}, but x has {rows} rows; leave num_points out")
    return rows


def mixture_components(
    x: ArrayLike | None,
    num_clusters: int,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    names: Mapping[str, str] | None = None,
    *,
    one_unit: int = 0,
) -> dist.Distribution:
    """Sample the parameters of all clusters; return their densities, batch shape (num_clusters,).

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
    num_clusters : int
    covariance, prior
        See `gaussian_components`, `resolve_prior`; unused if there is a `component`.
    component : callable, optional
        Function that runs inside the plate ``clusters``. It samples its own sites, one value per
        cluster, and returns the density of a point.
    names : mapping of str to str, optional
        Other names for the sites ``mean``, ``covariance`` and ``variance``.
    one_unit : int
        Number of features, the first ones, that share a unit; starts depend on it.

    Raises
    ------
    TypeError, ValueError
        If `component` is not a function, or does not return a Distribution with one entry per
        cluster.

    Examples
    --------
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> def laplace():
    ...     loc = numpyro.sample("loc", dist.Normal(0, 5).expand([2]).to_event(1))
    ...     scale = numpyro.sample("scale", dist.HalfNormal(2).expand([2]).to_event(1))
    ...     return dist.Laplace(loc, scale).to_event(1)
    >>> with numpyro.handlers.seed(rng_seed=0):
    ...     mixture_components(None, 3, component=laplace).batch_shape
    (3,)
    """
    if component is None:
        resolved = resolve_prior(prior, x, num_clusters)
        num_features = agreed_features(x, resolved)
        return gaussian_components(
            num_clusters,
            num_features,
            covariance,
            resolved,
            names,
            from_data=isinstance(prior, str),
            data=x,
            one_unit=one_unit,
        )
    if not callable(component):
        raise TypeError(
            f"component = {shown(component)}; expected a function without arguments that samples the "
            "parameters of a cluster and returns its density, such as lambda: dist.StudentT(4, "
            "numpyro.sample('loc', dist.Normal(0, 5).expand([2]).to_event(1))).to_event(1)"
        )
    with numpyro.plate("clusters", num_clusters):
        density = component()
    if not isinstance(density, dist.Distribution):
        raise TypeError(
            f"component() returned a {type(density).__name__}; expected a NumPyro Distribution, the "
            "density of a point in each cluster"
        )
    if density.batch_shape != (num_clusters,):
        raise ValueError(
            f"component() returned a density of batch shape {density.batch_shape}; expected "
            f"({num_clusters},): sample its parameters inside component, and call .to_event(1) on "
            "densities that have one factor per feature"
        )
    return density


def class_components(
    x: ArrayLike | None,
    num_clusters: int,
    num_components: int,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    concentration: float = 1.0,
) -> dist.Distribution:
    r"""Clusters that are mixtures of Gaussians themselves; batch shape (num_clusters,).

    .. math:: g_m(x) = \sum_k \pi_{mk} \mathcal{N}(x | \mu_{mk}, \Sigma_{mk}), \qquad
              \pi_m \sim \text{Dirichlet}

    Sites are ``component_weights`` (num_clusters, num_components), if there are several components,
    ``mean`` (num_clusters, num_components, num_features), and covariances likewise.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
    num_clusters, num_components : int
        Number of clusters, and of Gaussians per cluster.
    covariance, prior
        Options of the Gaussians; see `gaussian_components`, `resolve_prior`.
    concentration : float
        Concentration of the symmetric Dirichlet prior of the weights within a cluster.

    Raises
    ------
    ValueError
        If `num_components` is not an integer of at least 1.

    References
    ----------
    Yu (2016), eqs. 4.20-4.21.
    """
    num_components = check_integer("num_components", num_components)
    resolved = resolve_prior(prior, x, num_clusters * num_components)
    num_features = agreed_features(x, resolved)
    shape = (num_clusters, num_components)
    within = jnp.ones(shape)
    if num_components > 1:
        block = WithinWeights(num_components, concentration)
        within = block.sample(num_clusters, "component_weights")
    gaussians = gaussian_components(
        shape, num_features, covariance, resolved, from_data=isinstance(prior, str), data=x
    )
    return dist.MixtureSameFamily(dist.Categorical(probs=within), gaussians)


def gaussian_components(
    shape: int | tuple[int, int],
    num_features: int,
    covariance: str,
    prior: GaussianPrior | None,
    names: Mapping[str, str] | None = None,
    *,
    from_data: bool = False,
    data: ArrayLike | None = None,
    one_unit: int = 0,
) -> dist.Distribution:
    """Sample means and covariances; return the components, batch shape `shape`.

    Parameters are those of `GaussianComponents`.
    """
    block = GaussianComponents(
        shape,
        num_features,
        covariance,
        prior,
        names,
        from_data=from_data,
        data=data,
        one_unit=one_unit,
    )
    return block.sample()
