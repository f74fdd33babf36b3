"""What numbers must be: data in the support of their sites, starting values in those of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray
from numpyro import handlers
from numpyro.distributions import biject_to

from .base import Problem
from .density import abstract_trace, filling, latent_sites, traced
from .plumbing.programs import unchecked

__all__ = ["check_start", "check_values", "outside_support", "support_name"]

_CLOSE = 1e-4
"""Relative distance to a support at which a starting value counts as rounded."""


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


def support_name(support: Any) -> str:
    """A constraint in a word or two."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return type(support).__name__.strip("_").lower()


def check_values(problem: Problem) -> None:
    """Run a model once on its numbers, its parameters anywhere, and refuse data it cannot have.

    Raises
    ------
    ValueError
        Naming the site, the datum and the support.
    """
    found = outside_support(_run(problem, filling(jnp.zeros)))
    if found is not None:
        raise ValueError(
            f"{found}; transform or drop such data, or observe them through another distribution"
        )


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
    _run(problem, fill)
    return out


def _run(problem: Problem, fill: Callable[[dict], Any]) -> dict:
    seeded = handlers.seed(problem.model, jax.random.key(0))
    with unchecked():  # parameters may be anywhere
        return traced(handlers.substitute(seeded, substitute_fn=fill), problem.args, problem.kwargs)


def _lies_in(support: Any, value: NDArray) -> bool:
    """Whether a value is in a support, up to what rounding takes it out."""
    if np.all(support(value)):
        return True
    bijector = biject_to(support)
    back = np.asarray(bijector(bijector.inv(jnp.asarray(value))))
    return bool(np.allclose(back, value, rtol=_CLOSE, atol=_CLOSE * np.abs(value).max()))
