"""Draws from priors on the host, since compiled random numbers cost seconds of every first fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["prior_draws"]


def _dirichlet(rng: Generator, fn: Any, size: tuple[int, ...]) -> NDArray:
    """Draw from a Dirichlet distribution; a concentration that the model computes is taken to be one."""
    known = not isinstance(fn.concentration, Tracer)
    parts = rng.gamma(np.asarray(fn.concentration) if known else 1.0, size=size)
    return parts / parts.sum(axis=-1, keepdims=True)


_DRAWS: dict[type, Callable[[Generator, Any, tuple[int, ...]], NDArray]] = {
    dist.Beta: lambda rng, fn, size: rng.beta(fn.concentration1, fn.concentration0, size),
    dist.Cauchy: lambda rng, fn, size: fn.loc + fn.scale * rng.standard_cauchy(size),
    dist.Dirichlet: _dirichlet,
    dist.Exponential: lambda rng, fn, size: rng.exponential(1 / fn.rate, size),
    dist.Gamma: lambda rng, fn, size: rng.gamma(fn.concentration, 1 / fn.rate, size),
    dist.HalfCauchy: lambda rng, fn, size: fn.scale * abs(rng.standard_cauchy(size)),
    dist.HalfNormal: lambda rng, fn, size: fn.scale * abs(rng.normal(size=size)),
    dist.InverseGamma: lambda rng, fn, size: fn.rate / rng.gamma(fn.concentration, size=size),
    dist.Laplace: lambda rng, fn, size: rng.laplace(fn.loc, fn.scale, size),
    dist.LogNormal: lambda rng, fn, size: rng.lognormal(fn.loc, fn.scale, size),
    dist.Normal: lambda rng, fn, size: rng.normal(fn.loc, fn.scale, size),
    dist.StudentT: lambda rng, fn, size: fn.loc + fn.scale * rng.standard_t(fn.df, size),
    dist.Uniform: lambda rng, fn, size: rng.uniform(fn.low, fn.high, size),
    dist.VonMises: lambda rng, fn, size: rng.vonmises(fn.loc, fn.concentration, size),
}


def prior_draws(
    latent: Mapping[str, Mapping[str, Any]], seed: int, num_draws: int
) -> dict[str, NDArray]:
    """Draw those latent sites whose prior is of a common family and has known numbers as its parameters.

    Sites of blocks are left out, since blocks have better starts.

    Parameters
    ----------
    latent : mapping of str to site
        Latent sites of an abstract trace.
    seed, num_draws : int

    Returns
    -------
    dict of ndarray, shape (num_draws, ...)
    """
    found = {}
    rng = np.random.default_rng([seed, 1])
    for name, site in latent.items():
        fn = site["fn"]
        while isinstance(fn, dist.ExpandedDistribution | dist.Independent):
            fn = fn.base_dist
        draw = _DRAWS.get(type(fn))
        known = not any(isinstance(value, Tracer) for value in fn.get_args().values())
        known |= draw is _dirichlet
        if draw is None or not known or (site.get("infer") or {}).get("block") is not None:
            continue
        with np.errstate(all="ignore"):  # priors may be so wide that numbers overflow
            values = draw(rng, fn, (num_draws, *np.shape(site["value"])))
        if np.isfinite(values).all() and (values != 0).all():
            found[name] = values
    return found
