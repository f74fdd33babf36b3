"""Validates values against supports: data, starting values and mixing weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer, eval_jaxpr
from jax.interpreters import partial_eval
from numpy.typing import NDArray
from numpyro.distributions import biject_to
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical

from sidebayes.common.magnitudes import shown

from ..base import Problem
from ..plumbing.indicators import kept_indicators, plain_support
from ..plumbing.programs import unchecked
from .density import (
    abstract_trace,
    filled,
    filling,
    is_latent,
    latent_sites,
    sum_log_prob,
    traced,
)
from .explained import IntegersNeededError, explaining_integers, explaining_numbers
from .honoured import is_factor, is_outcome, live_inputs, mask_of

__all__ = [
    "admitted_values",
    "check_integers",
    "check_start",
    "check_values",
    "evaluated",
    "floats_where_borne",
    "may_vanish",
    "mixing_log_weights",
    "moving_sites",
    "outside_support",
    "support_name",
    "trace_anywhere",
    "unlikely_weights",
]

_CLOSE = 1e-4
"""Relative distance at which a value outside a support, or a sum of weights, counts as rounded."""


def moving_sites(problem: Problem, trace: Mapping[str, dict] | None = None) -> frozenset[str]:
    """Observed sites whose data may lie outside the support at some parameters, or in some components.

    Their supports depend on latent sites, or they are composed of distributions with supports of their own.

    Parameters
    ----------
    problem : Problem
    trace : mapping of str to site, optional
        Trace of this problem within a program; by default, the abstract trace.
    """
    trace = abstract_trace(problem) if trace is None else trace
    observed = {n: site["fn"] for n, site in trace.items() if is_outcome(site)}
    kept = {n: found for n, fn in observed.items() if (found := kept_indicators(fn))}
    return frozenset(
        name for name, found in kept.items() if found != [observed[name]] or _moves(problem, name)
    )


def may_vanish(problem: Problem) -> bool:
    """Return whether the density may be zero in a part of the space, as far as the distributions show.

    It may be zero where data can lie outside a support, where NumPyro states a larger support for a prior
    than it has, and where a factor declares it.
    """
    if "may_vanish" not in problem.notes:
        trace = abstract_trace(problem)
        sites = [site for site in trace.values() if site["type"] == "sample"]
        problem.notes["may_vanish"] = bool(moving_sites(problem)) or any(
            is_factor(site)
            or (is_latent(site) and kept_indicators(site["fn"]) not in ([], [site["fn"]]))
            for site in sites
        )
    return bool(problem.notes["may_vanish"])


def _moves(problem: Problem, name: str) -> bool:
    """Return whether the support of an observed site depends on latent sites."""

    def bounds(at: Array) -> list[Any]:
        trace = trace_anywhere(problem, lambda shape: jnp.full(shape, at))
        return jax.tree.leaves(trace[name]["fn"].support)

    return bool(live_inputs(bounds, jnp.zeros(())))


def admitted_values(
    trace: Mapping[str, dict], moving: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """For each observed site, its values, and a mask of those finite and in its support, or masked out.

    Sites of `moving_sites` have no support that holds everywhere; all finite values of theirs are admitted.
    """
    return {
        name: (site["value"], _admitted(site["fn"], site["value"], name in moving))
        for name, site in trace.items()
        if is_outcome(site)
    }


def _admitted(fn: dist.Distribution, value: Any, moves: bool) -> Any:
    event = tuple(range(-fn.event_dim if moves else -fn.support.event_dim, 0))
    inside = jnp.isfinite(value).all(axis=event)
    if not moves:
        inside &= fn.support(value)
    mask = mask_of(fn)
    return inside if mask is True else inside | ~mask


def outside_support(
    trace: Mapping[str, dict], admitted: Mapping[str, tuple[Any, Any]]
) -> str | None:
    """Name the first datum that lies outside the support of its site; None if there is none.

    Parameters
    ----------
    trace : mapping of str to site
    admitted : mapping of str to pair of arrays
        What `admitted_values` found, as numbers.
    """
    for name, (given, mask) in admitted.items():
        support, value = trace[name]["fn"].support, np.asarray(given)
        event = value.ndim - support.event_dim
        inside = np.broadcast_to(mask, value.shape[:event])
        if not inside.all():
            inside = _by_entry(inside, value, plain_support(support))
            spot = tuple(map(int, np.argwhere(~inside)[0]))
            bad, are = int((~inside).sum()), "is" if inside.size == 1 else "are"
            return (
                f"{bad} of {inside.size} values of {name!r} {are} missing or outside its support "
                f"({_described(support)}), the first at {spot}: {_told(value[spot])}"
            )
    return None


def _described(support: Any) -> str:
    """Describe a constraint in a word or two, with its bounds where these are single numbers."""
    support = plain_support(support)
    bounds = [
        f"{float(np.asarray(bound).ravel()[0]):g}" if np.unique(bound).size == 1 else "by entry"
        for end in ("lower_bound", "upper_bound")
        if not isinstance(bound := getattr(support, end, None), Tracer | None)
    ]
    told = f" from {' to '.join(bounds)}" if bounds and bounds != ["0"] else ""
    return support_name(support) + told


def _by_entry(inside: NDArray, value: NDArray, support: Any) -> NDArray:
    """Return which entries of values are inside, where each entry has a support of its own."""
    if support.event_dim or inside.ndim == value.ndim:
        return inside
    with np.errstate(invalid="ignore"):
        own = evaluated(lambda: support(jnp.asarray(value)) & jnp.isfinite(value))
    entries: NDArray = inside.reshape(*inside.shape, *[1] * (value.ndim - inside.ndim)) | own
    return inside if entries.all() else entries


def _told(event: NDArray) -> str:
    """Return a value of a site in words."""
    return repr(event.tolist()) if event.size <= 8 else "a long row"


def mixing_log_weights(trace: Mapping[str, dict]) -> dict[str, Any]:
    """Return the logs of mixing weights by site.

    Labels that a classifier models have no mixing weights: its probabilities are those of classes, not of
    data.
    """
    found = {}
    for name, site in trace.items():
        fn = site.get("fn")
        labels = getattr(fn, "labels", fn)
        if isinstance(labels, LinkedCategorical) and getattr(fn, "is_density", True):
            found[name] = getattr(fn, "mixing_log_weights", labels.log_weights)
    return found


def unlikely_weights(log_weights: Mapping[str, Any]) -> tuple[str, str] | None:
    """Name the site whose mixing weights do not sum to one, and the remedy; None if there is none.

    Parameters
    ----------
    log_weights : mapping of str to array
        What `mixing_log_weights` found, as numbers.
    """
    for name, logs in log_weights.items():
        rows = np.atleast_2d(np.asarray(logs, float))
        totals = np.exp(rows).sum(axis=1)
        wrong = np.isfinite(totals) & (abs(totals - 1) > _CLOSE)
        if wrong.any():
            given, total = rows[wrong.argmax()], totals[wrong.argmax()]
            advice = "subtract jax.nn.logsumexp(log_weights, axis=-1, keepdims=True) from them"
            if abs(given.sum() - 1) < _CLOSE and (given >= 0).all():
                advice = "these look like the weights themselves, so pass jnp.log(weights)"
            shown = np.array2string(given, precision=4, threshold=8)
            return (
                f"log_weights = {shown} of {name!r} are logs of weights that sum to {total:.6g}, not to 1",
                advice,
            )
    return None


def support_name(support: Any) -> str:
    """Describe a constraint in a word or two."""
    return type(plain_support(support)).__name__.strip("_").lower()


def check_values(problem: Problem) -> None:
    """Run a model once on its data, with arbitrary parameters, and refuse values outside supports.

    Raises
    ------
    ValueError
        The message names the site, with the datum and its support, or with mixing weights that do not sum to
        one.
    """
    traces = []

    def look() -> tuple:
        traces.append(trace_anywhere(problem))
        _check_types(traces[-1])
        moving = moving_sites(problem)
        return admitted_values(traces[-1], moving), mixing_log_weights(traces[-1])

    with explaining_numbers():
        admitted, log_weights = evaluated(look)
    found = outside_support(traces[-1], admitted)
    if found is not None:
        raise ValueError(
            f"{found}; transform or drop such data, or observe them through another distribution"
        )
    weights = unlikely_weights(log_weights)
    if weights is not None:
        raise ValueError("; ".join(weights))


def check_integers(problem: Problem) -> None:
    """Run a model and draw its data abstractly, and refuse floats where integers are needed.

    Raises
    ------
    IntegersNeededError
        If the model uses floats as indices, or its data cannot be drawn without integers.
    """

    def look() -> Array:
        trace = trace_anywhere(problem)
        total = sum_log_prob(trace)
        for site in filter(is_outcome, trace.values()):
            try:
                with explaining_integers():
                    site["fn"].sample(jax.random.key(0))
            except IntegersNeededError:
                raise
            except Exception:  # what cannot be drawn is said where it is asked for
                continue
        return total

    with explaining_numbers():
        jax.eval_shape(look)


def floats_where_borne(
    tables: dict[str, np.ndarray], problem_of: Callable[[dict[str, np.ndarray]], Problem]
) -> dict[str, np.ndarray]:
    """Tables whose integers are floats, except those that the model uses as categories or indices.

    Truth values stay such, unless the model runs with floats alone: with these it takes no ``~``, which of
    integers would be another.
    """

    def refusal(given: dict[str, np.ndarray]) -> Exception | None:
        try:
            check_integers(problem_of(given))
        except Exception as error:  # which the fit tells
            return error
        return None

    truths = {n: table.astype(float) for n, table in tables.items() if table.dtype.kind == "b"}
    if truths and refusal(tables) is not None and refusal(tables | truths) is None:
        tables = tables | truths
    for name in (n for n, table in tables.items() if table.dtype.kind == "i"):
        floats = {**tables, name: tables[name].astype(float)}
        tables = tables if isinstance(refusal(floats), IntegersNeededError) else floats
    return tables


def _check_types(trace: Mapping[str, dict]) -> None:
    """Refuse floats as values of a discrete distribution that uses them as indices."""
    for site in trace.values():
        if is_outcome(site) and site["fn"].support.is_discrete:
            with explaining_numbers():
                jax.eval_shape(site["fn"].log_prob, site["value"])


def evaluated(function: Callable[[], Any]) -> Any:
    """Return the result of a function as numbers.

    The function is traced, and one program computes only what these numbers need. Operation by operation,
    the first run of a model would compile dozens of programs.
    """
    known: dict[int, Any] = {}
    trees: list[Any] = []

    def unknown() -> list[Any]:
        leaves, tree = jax.tree.flatten(function())
        known.update({n: leaf for n, leaf in enumerate(leaves) if not isinstance(leaf, Tracer)})
        trees.append(tree)
        return [leaf for leaf in leaves if isinstance(leaf, Tracer)]

    closed = jax.make_jaxpr(unknown)()
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    program = jax.jit(lambda consts: eval_jaxpr(jaxpr, consts))
    found = iter(jax.device_get(program(closed.consts)))
    leaves = [known[n] if n in known else next(found) for n in range(trees[-1].num_leaves)]
    return jax.tree.unflatten(trees[-1], leaves)


def check_start(
    problem: Problem, init: Mapping[str, Any], given_by: Mapping[str, str] | None = None
) -> dict[str, NDArray]:
    """Check starting values against the latent sites of a model.

    Parameters
    ----------
    problem : Problem
    init : mapping of str to array_like
        Values of every latent site; those of deterministic sites are ignored.
    given_by : mapping of str to str, optional
        What messages call the values of a site, "init" by default.

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
    label = {name: f"{(given_by or {}).get(name, 'init')}[{name!r}]" for name in shapes}
    out = {}
    for name, shape in shapes.items():
        try:
            value = np.asarray(init[name], float)
        except (TypeError, ValueError):
            raise TypeError(
                f"{label[name]} = {shown(init[name])}; expected numbers of shape {shape}"
            ) from None
        if value.shape != shape:
            raise ValueError(f"{label[name]} has shape {value.shape}, expected {shape}")
        if not np.isfinite(value).all():
            raise ValueError(f"{label[name]} is not finite; check the values to start from")
        out[name] = value

    doubtful: dict[str, str] = {}

    def look() -> dict[str, tuple[Any, Any]]:
        """Supports at the values of this run, because one site may bound another."""
        found = {}

        def fill(site: dict) -> Array | None:
            name = site["name"]
            if site["type"] != "sample" or name not in out:
                return None
            support, value = site["fn"].support, jnp.asarray(out[name])
            back = None
            if name in doubtful:  # what rounding took out of a support is mapped back near by
                bijector = biject_to(support)
                back = bijector(bijector.inv(value))
            found[name] = support(value), back
            kinds[name] = support_name(support)
            return value

        _trace(problem, fill)
        return found

    kinds: dict[str, str] = {}
    inside = evaluated(look)
    doubtful |= {name: kinds[name] for name, (mask, _) in inside.items() if not np.all(mask)}
    for name, (_, back) in (evaluated(look) if doubtful else {}).items():
        size = np.abs(out[name]).max(initial=0.0)
        if name in doubtful and not np.allclose(back, out[name], rtol=_CLOSE, atol=_CLOSE * size):
            raise ValueError(
                f"{label[name]} lies outside the support of its site ({doubtful[name]}); start "
                "from values that the model can have"
            )
    return out


def trace_anywhere(problem: Problem, point: Callable[[tuple[int, ...]], Array] = jnp.zeros) -> dict:
    """Run a model on its data and return the trace; `point` makes the unconstrained coordinates of a site."""
    return _trace(problem, filling(point))


def _trace(problem: Problem, fill: Callable[[dict], Any]) -> dict:
    with unchecked():  # parameters may be anywhere
        return traced(filled(problem.model, fill), problem.args, problem.kwargs)
