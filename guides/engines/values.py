"""What numbers must be: data in the support of their sites, starting values in those of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray
from numpyro.distributions import biject_to
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical

from .base import Problem
from .density import abstract_trace, filled, filling, latent_sites, traced
from .plumbing.programs import unchecked

__all__ = [
    "check_start",
    "check_values",
    "outside_support",
    "support_name",
    "trace_anywhere",
    "unlikely_weights",
]

_CLOSE = 1e-4
"""Relative distance at which a value outside a support, or a sum of weights, counts as rounded."""


def outside_support(trace: Mapping[str, dict]) -> str | None:
    """Say which datum lies outside the support of the site that observes it; None if none does.

    Parameters
    ----------
    trace : mapping of str to site
        With numbers in it.
    """
    for name, site in trace.items():
        if site["type"] != "sample" or not site["is_observed"] or isinstance(site["fn"], dist.Unit):
            continue
        support, value = site["fn"].support, np.asarray(site["value"])
        event = value.ndim - support.event_dim
        axes = tuple(range(event, value.ndim))
        inside = np.asarray(support(site["value"])) & np.isfinite(value).all(axis=axes)
        if not inside.all():
            spot = tuple(map(int, np.argwhere(~inside)[0]))
            what = repr(value[spot].tolist()) if value[spot].size <= 8 else "a long row"
            return (
                f"{(~inside).sum()} of {inside.size} values of {name!r} are missing or outside its "
                f"support ({support_name(support)}), the first at {spot}: {what}"
            )
    return None


def unlikely_weights(trace: Mapping[str, dict]) -> tuple[str, str] | None:
    """Say which site has mixing weights that do not sum to one, and what to do; None if none has.

    Labels that are told by a classifier, whose probabilities are of classes and not of data, have no
    mixing weights.

    Parameters
    ----------
    trace : mapping of str to site
        With numbers in it.
    """
    for name, site in trace.items():
        fn = site.get("fn")
        labels = getattr(fn, "labels", fn)
        if not isinstance(labels, LinkedCategorical) or not getattr(fn, "is_density", True):
            continue
        given = np.asarray(labels.log_weights, float)
        total = np.exp(given).sum()
        if np.isfinite(total) and abs(total - 1) > _CLOSE:
            advice = "subtract jax.nn.logsumexp(log_weights) from them"
            if abs(given.sum() - 1) < _CLOSE and (given >= 0).all():
                advice = "these look like the weights themselves, so pass jnp.log(weights)"
            shown = np.array2string(given, precision=4, threshold=8)
            return (
                f"log_weights = {shown} of {name!r} are logs of weights that sum to {total:.6g}, not to 1",
                advice,
            )
    return None


def support_name(support: Any) -> str:
    """A constraint in a word or two."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return type(support).__name__.strip("_").lower()


def check_values(problem: Problem) -> None:
    """Run a model once on its numbers, its parameters anywhere, and refuse values it cannot have.

    Raises
    ------
    ValueError
        Naming the site, with the datum and its support, or with mixing weights that do not sum to one.
    """
    trace = trace_anywhere(problem)
    found = outside_support(trace)
    if found is not None:
        raise ValueError(
            f"{found}; transform or drop such data, or observe them through another distribution"
        )
    weights = unlikely_weights(trace)
    if weights is not None:
        raise ValueError("; ".join(weights))


def check_start(problem: Problem, init: Mapping[str, Any]) -> dict[str, NDArray]:
    """Check starting values against the latent sites of a model.

    Parameters
    ----------
    problem : Problem
    init : mapping of str to array_like
        Of every latent site; those of deterministic sites are passed over.

    Raises
    ------
    TypeError, ValueError
        If a site is missing, unknown, of another shape, not finite, or outside its support.
    """
    trace = abstract_trace(problem)
    shapes = {name: jnp.shape(site["value"]) for name, site in latent_sites(trace).items()}
    missing = sorted(set(shapes) - set(init))
    if missing:
        raise ValueError(f"init lacks {missing}; it must hold every latent site: {sorted(shapes)}")
    unknown = sorted(map(str, set(init) - set(trace)))
    if unknown:
        raise ValueError(f"init has {unknown}, which are no sites; the model has {sorted(shapes)}")
    out = {}
    for name, shape in shapes.items():
        try:
            value = np.asarray(init[name], float)
        except (TypeError, ValueError):
            raise TypeError(
                f"init[{name!r}] = {init[name]!r:.60}; expected numbers of shape {shape}"
            ) from None
        if value.shape != shape:
            raise ValueError(f"init[{name!r}] has shape {value.shape}, expected {shape}")
        if not np.isfinite(value).all():
            raise ValueError(f"init[{name!r}] is not finite; check the values to start from")
        out[name] = value

    def fill(site: dict) -> Array | None:
        name = site["name"]
        if site["type"] != "sample" or name not in out:
            return None
        support = site["fn"].support
        if not _lies_in(support, out[name]):
            raise ValueError(
                f"init[{name!r}] lies outside the support of its site ({support_name(support)}); start "
                "from values that the model can have"
            )
        return jnp.asarray(out[name])

    # as the model runs, because one site may bound another
    _trace(problem, fill)
    return out


def trace_anywhere(problem: Problem) -> dict:
    """Run a model on its numbers, its parameters at zero in unconstrained space; returns the trace."""
    return _trace(problem, filling(jnp.zeros))


def _trace(problem: Problem, fill: Callable[[dict], Any]) -> dict:
    with unchecked():  # parameters may be anywhere
        return traced(filled(problem.model, fill), problem.args, problem.kwargs)


def _lies_in(support: Any, value: NDArray) -> bool:
    """Whether a value is in a support, up to what rounding takes it out."""
    if np.all(support(value)):
        return True
    bijector = biject_to(support)
    back = np.asarray(bijector(bijector.inv(jnp.asarray(value))))
    return bool(np.allclose(back, value, rtol=_CLOSE, atol=_CLOSE * np.abs(value).max()))
