"""Shared by samplers that start from the prior: prior draws, split densities, evidence of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro import handlers
from sidebayes.models.blocks.block import Improper

from ..base import Evidence, FitError, Problem
from ..problem.causes import known_cause
from ..problem.density import (
    abstract_trace,
    deterministics,
    explain_nonfinite,
    latent_sites,
    place,
    sum_log_prob,
    traced,
    unconstrain,
)
from ..problem.honoured import Honoured, is_improper

__all__ = [
    "check_prior",
    "check_prior_draws",
    "draw_prior",
    "finish",
    "load_blackjax",
    "log_densities",
    "pool_evidence",
    "unraveller",
]


def load_blackjax(engine: str) -> ModuleType:
    """Import blackjax, an optional dependency.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    try:
        import blackjax
    except ImportError as error:
        raise ImportError(
            f"{engine} needs blackjax, which is not installed: pip install 'sidebayes[sampling]'"
        ) from error
    return blackjax


def check_prior(problem: Problem, engine: str, init: Mapping[str, Any] | None) -> None:
    """Refuse models whose prior cannot be drawn from, and starting values.

    Raises
    ------
    TypeError
        If a latent site is discrete.
    ValueError
        If a prior is improper, or `init` is given.
    """
    if init is not None:
        raise ValueError(f"{engine} starts from draws of the prior; leave init out")
    for name, site in latent_sites(abstract_trace(problem)).items():
        if is_improper(site["fn"]):
            block = (site.get("infer") or {}).get("block")
            advice = block.improper() if isinstance(block, Improper) else None
            raise ValueError(
                f"{engine} draws from the prior, and that of site {name!r} is improper; "
                f"{advice or 'give it a proper one'}"
            )


def unraveller(problem: Problem, args: tuple) -> Callable[[Array], dict[str, Array]]:
    """Map from one vector to the latent sites in unconstrained space."""
    shapes = jax.eval_shape(lambda key: _free(problem, key, args), jax.random.key(0))
    return ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))[1]


def draw_prior(problem: Problem, keys: Array, args: tuple) -> Array:
    """Draws from the prior in unconstrained space, shape (num_keys, num_unconstrained)."""
    return jax.vmap(lambda key: ravel_pytree(_free(problem, key, args))[0])(keys)


def _free(problem: Problem, key: Array, args: tuple) -> dict[str, Array]:
    trace = traced(handlers.seed(Honoured(problem.model), key), args, problem.kwargs)
    return unconstrain(trace, {name: site["value"] for name, site in latent_sites(trace).items()})


def log_densities(
    problem: Problem, free: Mapping[str, Array], args: tuple
) -> tuple[Array, Array, dict[str, Array]]:
    """Split the log joint density at values in unconstrained space.

    Returns
    -------
    log_prior : Array, shape ()
        Of the latent sites, Jacobian included.
    log_likelihood : Array, shape ()
        Of everything else; minus infinity where it cannot be computed.
    values : dict
        Latent and deterministic sites.
    """
    trace, log_det = place(problem, free, args)
    prior = sum_log_prob({name: trace[name] for name in free}) + log_det
    likelihood = sum_log_prob({name: site for name, site in trace.items() if name not in free})
    values = {name: trace[name]["value"] for name in free} | deterministics(trace)
    return prior, jnp.where(jnp.isnan(likelihood), -jnp.inf, likelihood), values


def check_prior_draws(
    problem: Problem, engine: str, particles: Array, log_likelihood: Array
) -> None:
    """Refuse prior draws of which none can be used.

    Raises
    ------
    FitError
        Naming the sites to blame.
    """
    if np.isfinite(log_likelihood).any():
        return
    free = unraveller(problem, problem.args)(particles.reshape(-1, particles.shape[-1])[0])
    sites, _ = place(problem, free)
    values = {name: np.asarray(sites[name]["value"]) for name in free}
    blame = explain_nonfinite(problem, values) or "the likelihood is zero or not a number"
    raise FitError(
        f"{engine}: no draw of the prior has a finite likelihood ({blame}); "
        f"{known_cause(problem) or 'check the data of that site'}",
        values,
    )


def finish(problem: Problem) -> Callable:
    """Program that says what lies at particles of shape (run, draw, num_unconstrained).

    It returns the latent and deterministic sites, and the log density in unconstrained space.
    """

    def at(particles: Array, args: tuple) -> tuple[dict[str, Array], Array]:
        unravel = unraveller(problem, args)

        def one(vector: Array) -> tuple[dict[str, Array], Array]:
            prior, likelihood, values = log_densities(problem, unravel(vector), args)
            return values, prior + likelihood

        return jax.vmap(jax.vmap(one))(particles)

    return at


def pool_evidence(log_evidence: NDArray, own_variance: float = 0.0) -> Evidence:
    """Log evidence of independent runs, averaged on the natural scale, and its standard error.

    Parameters
    ----------
    log_evidence : ndarray, shape (num_runs,)
    own_variance : float
        Variance of the log evidence of one run, if a theory gives it; the error is the greater of
        what this and the spread of the runs say.
    """
    number = len(log_evidence)
    value = float(np.logaddexp.reduce(log_evidence)) - math.log(number)
    variance = max(float(log_evidence.var(ddof=1)), own_variance)
    return Evidence(value, "estimate", math.sqrt(variance / number))
