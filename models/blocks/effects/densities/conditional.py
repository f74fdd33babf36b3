"""Random effects as sites, for samplers."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

__all__ = ["sample_effects"]


def sample_effects(num_groups: int, scale_tril: Array, *, centred: bool) -> Array:
    """Sample random effects of every group, shape (num_groups, num_effects).

    Parameters
    ----------
    num_groups : int
    scale_tril : Array, shape (num_effects, num_effects)
    centred : bool
        Sample the effects themselves, which suits many rows per group. Otherwise sample them
        divided by `scale_tril`, which suits few rows and variances near zero.
    """
    zero = jnp.zeros(len(scale_tril))
    if centred:
        # this distribution needs a triangular factor with a positive diagonal
        lower = jnp.linalg.qr(scale_tril.T, mode="r").T
        signs = jnp.where(jnp.diagonal(lower) < 0, -1.0, 1.0)
        fn = dist.MultivariateNormal(zero, scale_tril=lower * signs)
        with numpyro.plate("subjects", num_groups):
            return numpyro.sample("random_effects", fn, infer={"event_dims": ["effects"]})
    normal = dist.Normal(zero, 1.0).to_event(1)
    with numpyro.plate("subjects", num_groups):
        infer = {"event_dims": ["effects"], "symmetry": {"effects": "signs"}}
        white = numpyro.sample("white_effects", normal, infer=infer)
    return white @ scale_tril.T
