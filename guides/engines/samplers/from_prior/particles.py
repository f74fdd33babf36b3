"""Parts of samplers that start from the prior: prior draws, split densities, evidence of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro import handlers
from scipy import special
from sidebayes.models.blocks.block_facts import Improper

from sidebayes.common.warnings import warn_user

from ...base import Evidence, FitError, Problem
from ...problem.causes import advice, explain_at
from ...problem.density import (
    abstract_trace,
    deterministics,
    latent_sites,
    place,
    sum_log_prob,
    traced,
    unconstrain,
)
from ...problem.honoured import Honoured, is_improper

__all__ = [
    "Tails",
    "check_prior",
    "check_prior_draws",
    "draw_prior",
    "draw_usable",
    "finish",
    "greatest_rise",
    "light_tails",
    "load_blackjax",
    "log_densities",
    "num_temperatures",
    "pool_evidence",
    "refuse_improper",
    "resampled",
    "split_density",
    "unraveller",
    "warn_of_length",
]

_HEAVY = 7.0
"""Ratio of the ranges that hold 98 and 50 per cent of prior draws above which tails are heavy.

It is 3.4 for the normal distribution, 5.6 for Laplace's, and 32 for Cauchy's.
"""


_BATCHES = 100
"""Maximum number of prior draws that are searched for a finite likelihood, per draw that is needed."""


_LONG = 120.0
"""Seconds of a run above which a warning predicts its length."""


class Tails(NamedTuple):
    """Coordinates u in which prior draws have light tails: ``centre + scale * sinh(u)``.

    Moves shaped by the covariance of particles fail where a few of these lie far out.

    Attributes
    ----------
    centre, scale : Array, shape (num_coordinates,)
        A scale of zero leaves a coordinate as it is.
    """

    centre: Array
    scale: Array

    def outward(self, vector: Array) -> tuple[Array, Array]:
        """Return unconstrained coordinates, and the log Jacobian determinant of the map to them."""
        heavy = self.scale > 0
        inner = jnp.where(heavy, vector, 0.0)
        scale = jnp.where(heavy, self.scale, 1.0)
        log_cosh = jnp.abs(inner) + jnp.log1p(jnp.exp(-2 * jnp.abs(inner))) - math.log(2)
        log_det = jnp.where(heavy, jnp.log(scale) + log_cosh, 0.0).sum(axis=-1)
        return jnp.where(heavy, self.centre + scale * jnp.sinh(inner), vector), log_det

    def inward(self, vector: Array) -> Array:
        """Return the coordinates u for unconstrained ones."""
        heavy = self.scale > 0
        inner = jnp.arcsinh((vector - self.centre) / jnp.where(heavy, self.scale, 1.0))
        return jnp.where(heavy, inner, vector)


def light_tails(draws: Array) -> Tails:
    """Return coordinates for a prior, from draws of it, shape (num_draws, num_coordinates)."""
    low, first, centre, third, high = jnp.quantile(
        draws, jnp.asarray([0.01, 0.25, 0.5, 0.75, 0.99]), axis=0
    )
    spread = third - first
    return Tails(centre, jnp.where(high - low > _HEAVY * spread, spread / 2, 0.0))


def load_blackjax(engine: str) -> ModuleType:
    """Import blackjax, an optional dependency.

    Raises
    ------
    ImportError
        If it is not installed; the message says how to install it.
    """
    try:
        import blackjax
    except ImportError as error:
        raise ImportError(
            f"{engine} needs blackjax, which is not installed: pip install 'sidebayes[sampling]'"
        ) from error
    return blackjax


def check_prior(problem: Problem, engine: str, init: Mapping[str, Any] | None) -> None:
    """Refuse models from whose prior one cannot draw, and refuse starting values.

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
        refuse_improper(name, site, engine)


def refuse_improper(name: str, site: Mapping[str, Any], asked: str) -> None:
    """Refuse a site whose prior is improper; `asked` names what requires draws from it."""
    if is_improper(site["fn"]):
        block = (site.get("infer") or {}).get("block")
        advice = block.improper() if isinstance(block, Improper) else None
        raise ValueError(
            f"{asked} draws from the prior, and that of site {name!r} is improper; "
            f"{advice or 'give it a proper one'}"
        )


def unraveller(problem: Problem, args: tuple) -> Callable[[Array], dict[str, Array]]:
    """Return the map from one vector to the latent sites in unconstrained space."""
    shapes = jax.eval_shape(lambda key: _free(problem, key, args), jax.random.key(0))
    return ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))[1]


def draw_prior(problem: Problem, keys: Array, args: tuple) -> Array:
    """Draw from the prior in unconstrained space, shape (num_keys, num_unconstrained)."""
    return jax.vmap(lambda key: ravel_pytree(_free(problem, key, args))[0])(keys)


def draw_usable(
    problem: Problem, key: Array, number: int, args: tuple
) -> tuple[Array, Array, Array]:
    """Draw from the prior until enough draws have a finite likelihood.

    Returns
    -------
    draws : Array, shape (number, num_unconstrained)
        Those of finite likelihood come first; there are others only if too few were found.
    tried, found : Array, shape ()
        Number of draws up to the last one that was needed, and how many of these have a finite likelihood,
        at most `number`.
    """
    unravel = unraveller(problem, args)

    def draw(batch: Array) -> Array:
        return draw_prior(problem, jax.random.split(jax.random.fold_in(key, batch), number), args)

    def search(state: tuple) -> tuple:
        draws, rank, tried, found, batch = state
        new = draw(batch)
        likelihood = jax.vmap(lambda u: log_densities(problem, unravel(u), args)[1])(new)
        usable = likelihood > -jnp.inf
        rank = jnp.concatenate([rank, jnp.where(usable, 0, 1)])
        first = jnp.argsort(rank, stable=True)[:number]
        enough = found + jnp.cumsum(usable) >= number
        looked_at = jnp.where(enough.any(), jnp.argmax(enough) + 1, number)
        draws, rank = jnp.concatenate([draws, new])[first], rank[first]
        return draws, rank, tried + looked_at, jnp.sum(rank == 0), batch + 1

    def unfinished(state: tuple) -> Array:
        *_, found, batch = state
        return (found < number) & (batch < _BATCHES)

    shape, none = jax.eval_shape(draw, 0), jnp.asarray(0)
    blank = jnp.zeros(shape.shape, shape.dtype), jnp.full(number, 2)
    draws, _, tried, found, _ = lax.while_loop(unfinished, search, (*blank, none, none, none))
    return draws, tried, found


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
        Log prior of the latent sites, including the Jacobian, as it is drawn from; it ignores
        `handlers.scale`.
    log_likelihood : Array, shape ()
        Log density of everything else; minus infinity where it cannot be computed.
    values : dict
        Latent and deterministic sites.
    """
    trace, log_det = place(problem, free, args)
    prior = sum_log_prob({name: {**trace[name], "scale": None} for name in free}) + log_det
    rest = {name: site for name, site in trace.items() if name not in free}
    raised = {name: trace[name] for name in free if trace[name].get("scale") is not None}
    rest |= {name: {**site, "scale": site["scale"] - 1} for name, site in raised.items()}
    likelihood = sum_log_prob(rest)
    values = {name: trace[name]["value"] for name in free} | deterministics(trace)
    return prior, jnp.where(jnp.isnan(likelihood), -jnp.inf, likelihood), values


def split_density(
    problem: Problem, args: tuple, tails: Tails
) -> Callable[[Array], tuple[Array, Array]]:
    """Function of log prior, with Jacobian, and log likelihood at a vector of coordinates of `tails`."""
    unravel = unraveller(problem, args)

    def at(vector: Array) -> tuple[Array, Array]:
        outer, log_det = tails.outward(vector)
        prior, likelihood, _ = log_densities(problem, unravel(outer), args)
        prior = prior + log_det
        return jnp.where(jnp.isnan(prior), -jnp.inf, prior), likelihood

    return at


def check_prior_draws(
    problem: Problem, engine: str, particles: Array, log_likelihood: Array
) -> None:
    """Refuse prior draws if none of them can be used.

    Raises
    ------
    FitError
        The message names the sites to blame.
    """
    if np.isfinite(log_likelihood).any():
        return
    free = unraveller(problem, problem.args)(particles.reshape(-1, particles.shape[-1])[0])
    values, blame = explain_at(problem, free)
    blame = blame or "the likelihood is zero or not a number"
    raise FitError(
        f"{engine}: no draw of the prior has a finite likelihood ({blame}); "
        f"{advice(problem, blame, takes_init=False)}",
        values,
    )


def finish(renumbered: Callable[[Problem, tuple], Callable] | None, problem: Problem) -> Callable:
    """Program of the sites and the log density at particles of shape (run, draw, num_coordinates).

    Its arguments are particles, the tails of each run, and numberings of the clusters for ``renumbered``,
    where that is given. It returns latent and deterministic sites, and the log density in unconstrained
    space.
    """

    def at(
        particles: Array, tails: Tails, orders: Array, args: tuple
    ) -> tuple[dict[str, Array], Array]:
        unravel = unraveller(problem, args)
        move = None if renumbered is None else renumbered(problem, args)

        def one(tails: Tails, vector: Array, order: Array) -> tuple[dict[str, Array], Array]:
            outer, _ = tails.outward(vector)
            outer = outer if move is None else move(outer, order)
            prior, likelihood, values = log_densities(problem, unravel(outer), args)
            return values, prior + likelihood

        return jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)))(tails, particles, orders)

    return at


def warn_of_length(engine: str, number: float, seconds: float, what: str, advice: str) -> None:
    """Warn of a run that will be long.

    Parameters
    ----------
    engine : str
    number : float
        Number of remaining steps.
    seconds : float
        Maximum time of each step.
    what : str
        Name of the steps.
    advice : str
        What to do instead.
    """
    wait = number * seconds
    if wait > _LONG:
        warn_user(
            f"{engine} will take up to {wait / 60:.0f} minutes: {number:.0f} {what} of {seconds:.2g} s; "
            f"{advice}"
        )


def pool_evidence(
    log_evidence: NDArray, own_variance: float = 0.0, shared_error: float = 0.0
) -> Evidence:
    """Average the log evidence of independent runs on the natural scale, and return its standard error.

    The sample spread of a few runs underestimates the error. It is widened so that 1.96 errors give the 95 %
    interval of Student's t with the degrees of freedom of the spread.

    Parameters
    ----------
    log_evidence : ndarray, shape (num_runs,)
    own_variance : float
        Variance of the log evidence of one run, if a theory gives it. The error is the larger of the one by
        this variance and the one by the spread of the runs.
    shared_error : float
        Error that all runs have in common, such as that of the stopping rule.
    """
    number = len(log_evidence)
    value = float(np.logaddexp.reduce(log_evidence)) - math.log(number)
    widened = special.stdtrit(number - 1, 0.975) / special.ndtri(0.975)
    variance = max(float(log_evidence.var(ddof=1)) * widened**2, own_variance)
    return Evidence(value, "estimate", math.hypot(math.sqrt(variance / number), shared_error))


_HALVINGS = 60
"""Number of halvings of the range of rises, after which no float lies between its ends, except near zero."""


def greatest_rise(log_likelihood: Array, target_ess: float, most: Array) -> Array:
    """Rise of the power of the likelihood, up to `most`, at which a share of particles stays effective.

    Parameters
    ----------
    log_likelihood : Array, shape (num_particles,)
        Finite log likelihoods.
    target_ess : float
        See `SMC`.
    most : Array, shape ()
    """
    least = math.log(target_ess * len(log_likelihood))

    def suffices(rise: Array) -> Array:
        log_weights = rise * log_likelihood
        twice = jax.nn.logsumexp(2 * log_weights)
        return 2 * jax.nn.logsumexp(log_weights) - twice >= least

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        enough = suffices(middle)
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(most), most))
    return jnp.where(suffices(most), most, low)


def resampled(key: Array, weights: Array) -> Array:
    """Draw as many particles systematically by weights of mean 1; return their indices in order."""
    number = len(weights)
    places = jnp.arange(number) + jax.random.uniform(key)
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), places), number - 1)


def num_temperatures(temperature: float, num_coordinates: int, target_ess: float) -> float:
    r"""Predict the number of temperatures from a given one on, as for a normal posterior.

    Between temperatures the log-weights, of variance v, leave a share :math:`e^{-v}` of the particles
    effective. At power t of the likelihood its logarithm has variance :math:`d / (2 t^2)`, so that
    there are :math:`\sqrt{d / 2} \log(1 / t) / \sqrt{-\log \text{share}}` steps to power one.

    Parameters
    ----------
    temperature : float
        Power of the likelihood that has been reached, in (0, 1].
    num_coordinates : int
        Unconstrained dimension d.
    target_ess : float
        See `SMC`.
    """
    steps = -np.log(temperature) * np.sqrt(num_coordinates / 2) / np.sqrt(-np.log(target_ess))
    return 1.0 + float(steps)  # one more move at the posterior itself
