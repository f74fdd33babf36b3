"""A NumPyro model seen as a density: sites, log joint, starting values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro import handlers
from numpyro.distributions import biject_to
from sidebayes.models.blocks.linked import LinkedMixture
from sidebayes.models.blocks.partition import check_inference

from .base import Problem

__all__ = [
    "approximation",
    "constrain",
    "initial_values",
    "latent_supports",
    "linked_site",
    "log_joint",
    "site_dims",
    "trace_model",
    "unconstrain",
]


def trace_model(problem: Problem, params: Mapping[str, Any], args: tuple | None = None) -> dict:
    """Run the model at given values of its latent sites; returns NumPyro's trace."""
    args = problem.args if args is None else args
    seeded = handlers.seed(problem.model, jax.random.key(0))
    return handlers.trace(handlers.substitute(seeded, data=dict(params))).get_trace(
        *args, **problem.kwargs
    )


def _latent(site: dict) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def latent_supports(problem: Problem) -> dict[str, Any]:
    """Support of each latent site.

    Raises
    ------
    TypeError
        If a latent site is discrete; the engines need it summed out.
    """
    blank = _prior_free_trace(problem)
    for name, site in blank.items():
        if _latent(site) and site["fn"].support.is_discrete:
            raise TypeError(
                f"site {name!r} is a discrete latent; sum it out, e.g. with LinkedMixture or "
                "numpyro's MixtureSameFamily"
            )
    return {name: site["fn"].support for name, site in blank.items() if _latent(site)}


def _prior_free_trace(problem: Problem) -> dict:
    """Abstract trace: shapes and supports, nothing computed, so improper priors do as well."""

    def fill(site: dict) -> Any:
        if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
            return None
        fn = site["fn"]
        if fn.support.is_discrete:
            return None
        bijector = biject_to(fn.support)
        return bijector(jnp.zeros(bijector.inverse_shape(fn.batch_shape + fn.event_shape)))

    found = {}

    def go() -> None:
        seeded = handlers.seed(problem.model, jax.random.key(0))
        substituted = handlers.substitute(seeded, substitute_fn=fill)
        found.update(handlers.trace(substituted).get_trace(*problem.args, **problem.kwargs))

    jax.eval_shape(go)
    return found


def constrain(supports: Mapping[str, Any], free: Mapping[str, Array]) -> dict[str, Array]:
    """Map unconstrained values into the supports."""
    return {name: biject_to(supports[name])(value) for name, value in free.items()}


def unconstrain(supports: Mapping[str, Any], params: Mapping[str, Array]) -> dict[str, Array]:
    """Map values of the latent sites to unconstrained space."""
    return {
        name: biject_to(support).inv(jnp.asarray(params[name]))
        for name, support in supports.items()
    }


def log_joint(problem: Problem, params: Mapping[str, Any], args: tuple | None = None) -> Array:
    """Log density of parameters and data, in the constrained space (no Jacobian)."""
    sites = trace_model(problem, params, args).values()
    return sum(
        jnp.sum(site["fn"].log_prob(site["value"])) for site in sites if site["type"] == "sample"
    )


def linked_site(
    problem: Problem, params: Mapping[str, Any], args: tuple | None = None
) -> tuple[LinkedMixture, Array] | None:
    """Find the observed mixture with linked labels and its data; None if there is none."""
    for site in trace_model(problem, params, args).values():
        if site["type"] == "sample" and isinstance(site["fn"], LinkedMixture):
            return site["fn"], site["value"]
    return None


def approximation(problem: Problem) -> str | None:
    """Name the approximation that summing out the labels makes, None where it is exact.

    Raises
    ------
    ValueError
        If a component of links is too wide and the model names no approximation.
    """
    for site in _prior_free_trace(problem).values():
        if site["type"] == "sample" and isinstance(site["fn"], LinkedMixture):
            labels = site["fn"].labels
            return check_inference(labels.graph, labels.log_weights.shape[-1], labels.inference)
    return None


def site_dims(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Name the axes of every latent and deterministic site: plates first, then features."""
    dims = {}
    for name, site in _prior_free_trace(problem).items():
        if site["type"] != "deterministic" and not _latent(site):
            continue
        rank = len(jnp.shape(site["value"]))
        plates = {frame.dim: frame.name for frame in site.get("cond_indep_stack", ())}
        event = site["fn"].event_dim if site["type"] == "sample" else rank - len(plates)
        batch = rank - event
        named = [plates.get(axis - batch, f"{name}_dim_{axis}") for axis in range(batch)]
        known = {"weights": ("clusters",)}.get(name, ("features", "features_1"))
        if name in ("weights", "mean", "variance", "covariance"):
            tail = known[:event]
        else:
            tail = tuple(f"{name}_dim_{batch + axis}" for axis in range(event))
        dims[name] = (*named, *tail)
    return dims


def initial_values(problem: Problem, rng_key: Array, num_starts: int) -> dict[str, Array]:
    """Starting values for several runs, each array with a leading axis of length `num_starts`.

    Means start at k-means++ seeds of the data, covariances at the data covariance shrunk to the
    cell of a cluster, mixing weights uniform; other sites are drawn around zero in unconstrained
    space.
    """
    supports = latent_supports(problem)
    trace = _prior_free_trace(problem)
    shapes = {name: jnp.shape(trace[name]["value"]) for name in supports}
    data = next((jnp.asarray(a) for a in problem.args if jnp.ndim(a) == 2), None)
    like_mixture = data is not None and "mean" in shapes and len(shapes["mean"]) == 2

    def start(key: Array) -> dict[str, Array]:
        values = {}
        for name, support in supports.items():
            key, sub = jax.random.split(key)
            shape = biject_to(support).inverse_shape(shapes[name])
            values[name] = biject_to(support)(0.5 * jax.random.uniform(sub, shape, minval=-1))
        if "weights" in values:
            values["weights"] = jnp.full(shapes["weights"], 1.0 / shapes["weights"][-1])
        if like_mixture:
            values["mean"] = _spread_points(key, data, shapes["mean"][0])
            values |= _data_spread(data, shapes)
        return values

    return jax.jit(jax.vmap(start))(jax.random.split(rng_key, num_starts))


def _data_spread(data: Array, shapes: Mapping[str, tuple]) -> dict[str, Array]:
    num_features = data.shape[1]
    num_clusters = shapes["mean"][0]
    variance = data.var(axis=0) / num_clusters ** (2 / num_features)
    variance = variance + 1e-6 * variance.mean() + 1e-12
    out = {}
    if "covariance" in shapes:
        out["covariance"] = jnp.broadcast_to(jnp.diag(variance), shapes["covariance"])
    if "variance" in shapes:
        spherical = len(shapes["variance"]) == 1
        value = variance.mean() if spherical else variance
        out["variance"] = jnp.broadcast_to(value, shapes["variance"])
    return out


def _spread_points(key: Array, data: Array, num_points: int) -> Array:
    """Rows of the data far apart from each other (k-means++, Arthur and Vassilvitskii 2007)."""
    scale = jnp.where(data.std(axis=0) > 0, data.std(axis=0), 1.0)
    scaled = data / scale

    def pick(carry, sub):
        nearest = carry
        prob = jnp.where(nearest.sum() > 0, nearest, 1.0)
        row = jax.random.categorical(sub, jnp.log(prob))
        distance = jnp.sum((scaled - scaled[row]) ** 2, axis=1)
        return jnp.minimum(nearest, distance), row

    first = jnp.full(data.shape[0], jnp.finfo(data.dtype).max / data.shape[0] ** 2)
    _, rows = jax.lax.scan(pick, first, jax.random.split(key, num_points))
    return data[rows]


def as_numpy(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copy arrays to the host."""
    return {name: np.asarray(value) for name, value in values.items()}


def is_mixture(fn: Any) -> bool:
    """Tell whether a distribution sums out labels and can be linearised by EM."""
    return isinstance(fn, LinkedMixture | dist.MixtureSameFamily)
