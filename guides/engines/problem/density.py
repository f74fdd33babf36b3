"""The density of a NumPyro model: sites, log joint density, starting values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import Transform
from sidebayes.models.blocks.block_facts import HasUnits, Individual
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.manifolds.circles import Wound, is_circular

from ..base import Problem
from ..plumbing.indicators import map_onto
from ..plumbing.programs import tracing, unchecked
from .explained import explaining_numbers, naming_site, naming_text
from .honoured import Honoured, check_sites, check_unset

__all__ = [
    "abstract_trace",
    "as_numpy",
    "bijector_of",
    "circular_sites",
    "deterministics",
    "discrete_sites",
    "filled",
    "filling",
    "free_shapes",
    "is_individual",
    "is_latent",
    "latent_sites",
    "latent_supports",
    "log_joint",
    "numbers_of",
    "place",
    "refuse_unset",
    "shapes_at",
    "site_log_prob",
    "sum_log_prob",
    "summing_out",
    "trace_model",
    "traced",
    "unconstrain",
    "unconstrained_start",
    "with_numbers",
]

_EDGE = 36.0
"""Coordinate that the logistic map takes to the largest number below one."""


def traced(model: Callable[..., None], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict:
    """Run a model and return NumPyro's trace.

    NumPyro keeps one stack of handlers for all threads, so only one thread at a time runs a model.
    """
    with tracing:
        return handlers.trace(model).get_trace(*args, **kwargs)


def filled(model: Callable[..., None], fill: Callable[[dict], Array | None]) -> Callable[..., None]:
    """Return the model with the values that `fill` gives for its sites; None leaves a site as it is.

    Values are filled in before random keys are assigned, so that no program holds keys that nothing uses.
    """
    seen = model if isinstance(model, Honoured) else Honoured(model)
    return handlers.seed(handlers.substitute(seen, substitute_fn=fill), jax.random.key(0))


def trace_model(
    problem: Problem,
    params: Mapping[str, Any],
    args: tuple | None = None,
    replace_data: Callable[[dict], Array | None] | None = None,
) -> dict:
    """Run the model at given values of its latent sites and return NumPyro's trace.

    `replace_data`, if given, returns another value for each observed site.

    Raises
    ------
    ValueError
        If a latent site has no value: it would be drawn from a fixed key.
    """
    args = problem.args if args is None else args

    def fill(site: dict) -> Any:
        if site["type"] != "sample" and not site.get("is_fitted"):
            return None  # deterministic values are computed anew, also from other data
        if site["name"] in params:
            return params[site["name"]]
        observed = replace_data is not None and site.get("is_observed", False)
        return replace_data(site) if observed else None  # type: ignore[misc]

    trace = traced(filled(problem.model, fill), args, problem.kwargs)
    refuse_unset(trace, params)
    return trace


def place(
    problem: Problem,
    free: Mapping[str, Array],
    args: tuple | None = None,
    fixed: Mapping[str, Array] | None = None,
) -> tuple[dict, Array]:
    """Run the model at values given in unconstrained space.

    Supports are taken as the model runs, so that one site may bound another.

    Parameters
    ----------
    problem : Problem
    free : mapping of str to Array
        Unconstrained values; those of angles may be anywhere on a line, see `wound`.
    args : tuple, optional
    fixed : mapping of str to Array, optional
        Values of the other latent sites, in their supports.

    Returns
    -------
    trace : dict
        NumPyro's trace, with constrained values.
    log_det : Array, shape ()
        Log Jacobian determinant of the map of `free` into the supports.

    Raises
    ------
    ValueError
        If a latent site has no value.
    """
    args = problem.args if args is None else args
    known = {} if fixed is None else fixed
    log_det: list[Array] = []

    def fill(site: dict) -> Array | None:
        if site["type"] != "sample":
            return None
        if site["name"] in known:
            return known[site["name"]]
        if site["name"] not in free:
            return None
        value = free[site["name"]]
        bijector = bijector_of(site)
        if is_circular(site["fn"]) and jnp.ndim(value) > len(site["fn"].shape()):
            bijector = Wound()
        out = bijector(value)
        log_det.append(jnp.sum(bijector.log_abs_det_jacobian(value, out)))
        return out

    trace = traced(filled(problem.model, fill), args, problem.kwargs)
    refuse_unset(trace, {*free, *known})
    return trace, sum(log_det, start=jnp.zeros(()))


def refuse_unset(trace: Mapping[str, dict], given: Collection[str]) -> None:
    """Refuse values that lack latent sites of a model, as those of an older version of it may."""
    unset = [name for name, site in trace.items() if is_latent(site) and name not in given]
    if unset:
        raise ValueError(
            f"the model has latent sites without a value: {unset}; values were given for "
            f"{sorted(given)}. Is it the model that was fitted?"
        )


def is_individual(site: Mapping[str, Any]) -> bool:
    """Return whether a site has a row of latent values for each individual; see `Individual`."""
    return isinstance((site.get("infer") or {}).get("block"), Individual)


def is_latent(site: dict) -> bool:
    """Return whether a site of a trace is sampled and not observed."""
    return site["type"] == "sample" and not site["is_observed"]


def latent_supports(problem: Problem) -> dict[str, Any]:
    """Support of each latent site, in the order of the model.

    Raises
    ------
    TypeError
        If a latent site is discrete; the engines require that it is summed out.
    ValueError
        If there is no latent site.
    """
    sites = latent_sites(abstract_trace(problem))
    if not sites:
        raise ValueError(
            "the model has no latent site, so that nothing can be fitted; sample what is unknown with "
            "numpyro.sample(name, distribution), without obs"
        )
    return {name: site["fn"].support for name, site in sites.items()}


def circular_sites(trace: Mapping[str, dict]) -> tuple[str, ...]:
    """Latent sites of a trace whose values are angles."""
    return tuple(name for name, site in latent_sites(trace).items() if is_circular(site["fn"]))


def latent_sites(trace: Mapping[str, dict]) -> dict[str, dict]:
    """Latent sites of a trace, in the order of the model.

    Raises
    ------
    TypeError
        If one is discrete; the engines require that it is summed out.
    """
    found = {name: site for name, site in trace.items() if is_latent(site)}
    for name in discrete_sites(found):
        raise TypeError(f"site {name!r} is a discrete latent; {summing_out(found)}")
    return found


def discrete_sites(latent: Mapping[str, dict]) -> list[str]:
    """Names of those latent sites that are discrete."""
    return [name for name, site in latent.items() if site["fn"].support.is_discrete]


def summing_out(latent: Mapping[str, dict]) -> str:
    """How to sum the discrete sites among latent ones out."""
    sites = [latent[name] for name in discrete_sites(latent)]
    bounds = [getattr(site["fn"].support, "base_constraint", site["fn"].support) for site in sites]
    if any(hasattr(own, "lower_bound") and not hasattr(own, "upper_bound") for own in bounds):
        return (
            "its counts have no upper bound: sum it out in closed form where there is one, or up to a bound "
            "beyond which its probability is negligible, and give jax.nn.logsumexp of these terms to "
            "numpyro.factor"
        )
    if len(sites) == 1 and not sites[0]["cond_indep_stack"] and jnp.size(sites[0]["value"]) == 1:
        return (
            "sum it out: add the log probability of each of its values to the log density of all data given "
            "that value, and give jax.nn.logsumexp of these totals to numpyro.factor"
        )
    return (
        "sum it out. Labels of a mixture: LinkedMixture, or numpyro's MixtureSameFamily. States of a "
        "chain: carry log probabilities along by jax.lax.scan, add up with jax.nn.logsumexp (the forward "
        "algorithm), and give the total to numpyro.factor"
    )


def filling(draw: Callable[[tuple[int, ...]], Array]) -> Callable[[dict], Array | None]:
    """Handler that fills continuous latent sites with values that `draw` makes in unconstrained space."""

    def fill(site: dict) -> Array | None:
        if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
            return None
        fn, bijector = site["fn"], map_onto(site)
        if bijector is None:
            return None
        shape = fn.shape(site["kwargs"].get("sample_shape", ()))
        return bijector(draw(bijector.inverse_shape(shape)))

    return fill


def abstract_trace(problem: Problem) -> dict:
    """Return the abstract trace, with shapes and supports; nothing is drawn, so priors may be improper.

    Raises
    ------
    TypeError
        If the model needs the number behind a sampled value, as a branch of Python does.
    ValueError
        If parameters of a distribution that are known numbers are out of their range, or the model has
        sites or primitives that a fit does not support.
    """
    model = Honoured(problem.model)

    def go(numbers: list) -> None:
        args = tuple(map(with_numbers, problem.args, numbers))
        with unchecked():
            found = traced(filled(model, filling(jnp.zeros)), args, problem.kwargs)
        check_sites(found)
        for site in found.values():
            if site["type"] == "sample":
                with naming_site(site["name"]):
                    _check_numbers(site["fn"])
                given = (
                    old for old, new in zip(problem.args, args, strict=True) if new is site["value"]
                )
                site["value"] = next(given, site["value"])
        problem.notes["sites"] = found
        # supports may hold traced values, which are only valid within this trace
        problem.notes["free"] = {
            name: onto.inverse_shape(jnp.shape(site["value"]))
            for name, site in found.items()
            if is_latent(site) and (onto := map_onto(site)) is not None
        }

    if "sites" not in problem.notes:
        with explaining_numbers(), naming_text(problem.kwargs):
            jax.eval_shape(go, [numbers_of(a) if problem.unseen else None for a in problem.args])
        if model.unset:
            _check_unset(problem, {name: problem.notes["sites"].get(name) for name in model.unset})
    return problem.notes["sites"]


def _check_unset(problem: Problem, sites: Mapping[str, dict | None]) -> None:
    """Refuse a density that depends on parameters or random numbers which no fit would set."""

    def density(values: dict) -> Array:
        model = filled(Honoured(problem.model, values), filling(jnp.zeros))
        return sum_log_prob(traced(model, problem.args, problem.kwargs))

    with unchecked():
        check_unset(
            density,
            {
                name: jax.random.key(0)
                if site is None
                else jax.tree.map(jnp.zeros_like, site["value"])
                for name, site in sites.items()
            },
        )


def numbers_of(data: Any) -> Any:
    """Return the numbers of a table, or the weights of links, which may be hidden from a model."""
    if isinstance(data, LabelGraph):
        return data.pair_weights
    return data if isinstance(data, jax.Array) else None


def with_numbers(data: Any, numbers: Any) -> Any:
    """Return data with other numbers in place of `numbers_of` them; None leaves them as they are."""
    if numbers is None:
        return data
    return replace(data, pair_weights=numbers) if isinstance(data, LabelGraph) else numbers


def _check_numbers(fn: dist.Distribution) -> None:
    """Let NumPyro validate a distribution, and those that it is made of, where numbers are known."""
    if not all(isinstance(value, Tracer) for value in fn.get_args().values()):
        fn.validate_args(strict=False)
    for part in vars(fn).values():
        if isinstance(part, dist.Distribution):
            _check_numbers(part)


def bijector_of(site: Mapping[str, Any]) -> Transform:
    """Return the map from unconstrained coordinates to the support of a latent site, in its block's units."""
    bijector = biject_to(site["fn"].support)
    infer = site.get("infer") or {}
    block = infer.get("block")
    return block.bijector(infer["role"], bijector) if isinstance(block, HasUnits) else bijector


def unconstrain(
    sites: Mapping[str, Mapping[str, Any]], params: Mapping[str, Array]
) -> dict[str, Array]:
    """Map values to the unconstrained coordinates that `place` takes; `sites` are those of a trace.

    Values on a bound, whose coordinates would be infinite, are moved away from it by a rounding error.
    """
    free = {name: bijector_of(sites[name]).inv(jnp.asarray(v)) for name, v in params.items()}
    return {
        name: jnp.where(jnp.isinf(value), jnp.copysign(_EDGE, value), value)
        for name, value in free.items()
    }


def unconstrained_start(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple | None = None,
    names: Collection[str] | None = None,
) -> dict[str, Array]:
    """Map values to unconstrained space by the supports that the model has at those values.

    `names` are the sites to map, all by default.
    """
    chosen = {name: params[name] for name in (params if names is None else names)}
    return unconstrain(trace_model(problem, params, args), chosen)


def free_shapes(problem: Problem) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the unconstrained coordinates of every latent site; units do not matter here."""
    latent = latent_sites(abstract_trace(problem))
    real = jnp.result_type(float)
    return {name: jax.ShapeDtypeStruct(problem.notes["free"][name], real) for name in latent}


def shapes_at(problem: Problem, draws: Mapping[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the unconstrained coordinates at the first draw: sites may bound one another.

    `draws` are of shape (chain, draw, ...).
    """
    first = {name: jnp.asarray(value[0, 0]) for name, value in draws.items()}
    return jax.eval_shape(lambda values: unconstrained_start(problem, values), first)


def sum_log_prob(trace: Mapping[str, dict]) -> Array:
    """Log density of a trace, including the scales of sites."""
    return sum(
        (site_log_prob(site) for site in trace.values() if site["type"] == "sample"),
        start=jnp.zeros(()),
    )


def site_log_prob(site: dict) -> Array:
    """Log density of one site, including its scale."""
    terms = site["fn"].log_prob(site["value"])
    return jnp.sum(terms if site.get("scale") is None else site["scale"] * terms)


def log_joint(problem: Problem, params: Mapping[str, Any], args: tuple | None = None) -> Array:
    """Log joint density of parameters and data in the constrained space, without a Jacobian."""
    return sum_log_prob(trace_model(problem, params, args))


def deterministics(trace: Mapping[str, dict]) -> dict[str, Array]:
    """Values of the deterministic sites of a trace."""
    kind = "deterministic"  # values of such sites may be plain numbers
    return {n: jnp.asarray(site["value"]) for n, site in trace.items() if site["type"] == kind}


def as_numpy(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copy arrays to the host as NumPy arrays."""
    return {name: np.asarray(value) for name, value in values.items()}
