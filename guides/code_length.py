"""Code length of the parameters of a model: what the Bayesian information criterion charges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from sidebayes.models.blocks.block_facts import HasCodeLength

from .engines.base import Problem
from .engines.problem.density import bijector_of, latent_sites, trace_model

__all__ = ["code_length"]


def code_length(
    problem: Problem, params: Mapping[str, Any], num_units: int, corners: Collection[str] = ()
) -> float:
    r"""Return the code length of the parameters of a model, in nats.

    .. math:: \sum_s \tfrac12 d_s \log n

    Site :math:`s` has :math:`d_s` degrees of freedom, the number of its unconstrained coordinates. A vector
    of which only the direction counts (`sample_direction`) has one less. Where only differences of rows count
    (``infer={"contrasts": True}``), as under a softmax, those of one row are left out. A block may charge its
    sites otherwise (`HasCodeLength`).

    Parameters
    ----------
    problem : Problem
    params : mapping
        Values of the latent sites.
    num_units : int
        Number n of exchangeable units of the data.
    corners : collection of str
        Roles of sites on simplices whose values are corners; each costs the log of the number of corners.

    Raises
    ------
    ValueError
        If the density has a factor that is not a likelihood.

    References
    ----------
    Schwarz (1978), Ann. Stat. 6, 461-464, doi:10.1214/aos/1176344136.
    """
    trace = trace_model(problem, params)
    factors = [n for n, s in trace.items() if isinstance(s.get("fn"), dist.Unit)]
    if factors:
        raise ValueError(
            f"the density has a factor that is no likelihood, {factors[0]!r}, so that it has no BIC"
        )
    total = 0.0
    for site in latent_sites(trace).values():
        infer, shape = site.get("infer") or {}, jnp.shape(site["value"])
        block, role = infer.get("block"), infer.get("role")
        charged = block.code_length(infer["role"]) if isinstance(block, HasCodeLength) else None
        if role in corners:
            charged = np.prod(shape[:-1]) * np.log(shape[-1])
        if charged is None and infer.get("manifold") == "sphere":  # lengths are no freedom
            charged = np.prod(shape[:-1]) * (shape[-1] - 1) * np.log(num_units) / 2
        if charged is None:
            charged = np.prod(bijector_of(site).inverse_shape(shape)) * np.log(num_units) / 2
            if infer.get("contrasts"):
                charged *= 1 - 1 / shape[0]
        total += float(charged)
    return total
