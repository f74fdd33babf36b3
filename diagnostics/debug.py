"""Ladder of checks that finds faults of a model, one sentence each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro import handlers
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.jumps import jumping_sites
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.plumbing.indicators import indicators
from sidebayes.guides.engines.plumbing.programs import refuse_fork
from sidebayes.guides.engines.problem.causes import check_indices, check_repeatable
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import (
    discrete_sites,
    filling,
    log_joint,
    place,
    sum_log_prob,
    summing_out,
    trace_model,
    traced,
    unconstrained_start,
)
from sidebayes.guides.engines.problem.explained import explaining_integers
from sidebayes.guides.engines.problem.honoured import (
    Honoured,
    check_sites,
    is_factor,
    is_outcome,
    live_inputs,
)
from sidebayes.guides.engines.problem.units import unread_parameters
from sidebayes.guides.engines.problem.values import (
    admitted_values,
    evaluated,
    floats_where_borne,
    mixing_log_weights,
    moving_sites,
    outside_support,
    unlikely_weights,
)
from sidebayes.guides.engines.steps.starts import with_density
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.roles import signature_of
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from sidebayes.common.arrays import plain_array
from sidebayes.common.magnitudes import counted

from .model_errors import arguments_taken, finding_and_remedy, on_one_line, place_of

__all__ = ["DebugReport", "Rung", "debug"]

_NUM_POINTS = 3
"""Number of points of the parameter space at which density and gradient are checked."""


@dataclass(frozen=True)
class Rung:
    """One check: its name, verdict ("ok", "note", "fail" or "skipped"), finding and remedy."""

    name: str
    verdict: str
    finding: str
    remedy: str = ""

    def __str__(self) -> str:
        """Format the check as one line."""
        remedy = f" -> {self.remedy}" if self.remedy else ""
        return f"{self.verdict:8}{self.name:10}{self.finding}{remedy}"


@dataclass(frozen=True)
class DebugReport:
    """Result of `debug`, from the first check to the last; prints one line per check."""

    rungs: tuple[Rung, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(rung.verdict != "fail" for rung in self.rungs)

    def __getitem__(self, name: str) -> Rung:
        """Return the rung of a name, such as ``report["gradient"]``."""
        return next(rung for rung in self.rungs if rung.name == name)

    def __str__(self) -> str:
        """Format the report, with one line per rung."""
        return "\n".join(map(str, self.rungs))

    __repr__ = __str__


def debug(model: Callable[..., None], *args: Any, seed: int = 0, **kwargs: Any) -> DebugReport:
    """Find out what is wrong with a model before fitting it.

    The checks start with what a model needs to run at all, end with what a gradient needs, and stop
    where the rest would make no sense.

    Parameters
    ----------
    model : callable
        NumPyro model.
    *args, **kwargs
        Its arguments, as the model takes them; `Links` are compiled as in `fit`.
    seed : int
        Seed of the points at which density and gradient are computed.

    Returns
    -------
    DebugReport
        Rungs ``links`` (if there are any), ``trace``, ``observed``, ``discrete``, ``support``,
        ``density``, ``indices``, ``gradient`` and ``arguments``.

    Examples
    --------
    >>> import numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(x):
    ...     rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    ...     numpyro.sample("x", dist.Exponential(rate), obs=x)
    >>> print(debug(model, np.array([0.5, -2.0]))["support"])  # doctest: +ELLIPSIS
    fail    support   1 of 2 values of 'x' are missing or outside its support (positive), the first ...
    """
    if not callable(model):
        raise TypeError(f"model is a {type(model).__name__}; pass the NumPyro function itself")
    refuse_fork()
    with jax.enable_x64(True):
        return DebugReport(tuple(_climb(model, args, kwargs, seed)))


def _climb(model: Callable, args: tuple, kwargs: dict, seed: int) -> Iterator[Rung]:
    size = _num_points(args, kwargs)
    links = list(_links((*args, *kwargs.values()), size, kwargs.get("num_clusters")))
    yield from links
    if any(rung.verdict == "fail" for rung in links):
        return

    try:
        signature = signature_of(model)
    except (TypeError, ValueError) as error:
        yield Rung("trace", "fail", *finding_and_remedy(error))
        return
    roles = {role.name: role.kind for role in signature.data}
    order = [role.name for role in signature.data]

    def convert(value: Any, name: str) -> Any:
        if isinstance(value, Links):
            points = value.num_points or (joined[0].num_groups if joined else size)
            return as_label_graph(value, points, kwargs.get("num_clusters"))
        if roles.get(name) == "groups" and not isinstance(value, Groups):
            return Groups(value)
        if roles.get(name) == "labels" and not isinstance(value, PartialLabels):
            return PartialLabels(np.asarray(value))
        return jnp.asarray(value) if isinstance(value, np.ndarray) else value

    named = [(value, order[n] if n < len(order) else "") for n, value in enumerate(args)]
    joined = [convert(v, n) for v, n in named if roles.get(n) == "groups"]

    def made(tables: dict[str, np.ndarray]) -> Problem:
        def one(value: Any, name: str) -> Any:
            return jnp.asarray(tables[name]) if name in tables else convert(value, name)

        args = tuple(one(value, name) for value, name in named)
        return Problem(model, args, {name: one(value, name) for name, value in kwargs.items()})

    tables = {
        name: plain_array(name, value)  # may be a data frame, say
        for name, value in {**{name: value for value, name in named}, **kwargs}.items()
        if roles.get(name) == "table" and value is not None
    }
    problem = made(floats_where_borne(tables, made))
    try:
        with explaining_integers():
            traces, points, admitted, log_weights = _runs(problem, seed)
        check_sites(traces[0])
    except Exception as error:  # a user's model raises whatever it raises
        place = place_of(error, model) or arguments_taken(model, args, kwargs)
        yield Rung("trace", "fail", f"{type(error).__name__}: {on_one_line(error)}", place)
        return
    trace = traces[0]
    latent = {n: s for n, s in trace.items() if _is_latent(s)}
    shapes = ", ".join(f"{n} {jnp.shape(s['value'])}" for n, s in latent.items())
    yield Rung("trace", "ok", f"{counted(len(latent), 'latent site')}: {shapes or 'none'}")
    yield _observed(trace)
    discrete = _discrete(latent)
    yield discrete
    yield _support(trace, admitted, log_weights)
    if discrete.verdict == "fail" or not latent:
        why = "sum out discrete sites first" if latent else "there is nothing to infer"
        yield from (Rung(name, "skipped", why) for name in ("density", "indices", "gradient"))
    else:
        for name, look in (
            ("density", partial(_density, seed=seed)),
            ("indices", _indices),
            ("gradient", _gradient),
            ("arguments", _arguments),
        ):
            try:
                with explaining_integers():
                    rung = look(problem, points)
                yield rung
            except Exception as error:  # a model that runs may still not compile
                yield Rung(
                    name,
                    "fail",
                    f"{type(error).__name__}: {on_one_line(error)}",
                    place_of(error, model),
                )
                return


def _num_points(args: tuple, kwargs: Mapping[str, Any]) -> int:
    """Return the number of rows of the first array, or of points that the links name."""
    for value in (*args, *kwargs.values()):
        if getattr(value, "shape", ()):
            return int(value.shape[0])
    links = [v for v in (*args, *kwargs.values()) if isinstance(v, Links)]
    return max((int(link.pairs.max(initial=-1)) + 1 for link in links), default=0)


def _links(values: tuple, size: int, num_clusters: int | None) -> Iterator[Rung]:
    for links in values:
        if not isinstance(links, Links):
            continue
        try:
            report = links.check(links.num_points or size, num_clusters)
        except ValueError as error:
            yield Rung("links", "fail", on_one_line(error), "drop one of them, or make it soft")
        else:
            yield Rung("links", "ok", "; ".join(str(report).splitlines()))


def _run(problem: Problem, seed: int) -> dict:
    """Return the trace of a run with latent sites near zero when unconstrained; priors may be improper."""
    rng = np.random.default_rng(seed)
    fill = filling(lambda shape: jnp.asarray(rng.uniform(-1.0, 1.0, shape)))
    seeded = handlers.seed(Honoured(problem.model), jax.random.key(seed))
    with indicators():
        return traced(handlers.substitute(seeded, substitute_fn=fill), problem.args, problem.kwargs)


def _runs(problem: Problem, seed: int) -> tuple:
    """Return traces at several points, and numbers from them: latent values, admitted data, mixing weights.

    A model that cannot be compiled is run operation by operation.
    """
    traces: list[dict] = []

    def look() -> tuple:
        traces[:] = [_run(problem, seed + k) for k in range(_NUM_POINTS)]
        points = [_point(trace) for trace in traces]
        moving = moving_sites(problem, traces[0])
        return points, admitted_values(traces[0], moving), mixing_log_weights(traces[0])

    try:
        numbers = evaluated(look)
    except Exception:  # a user's model raises whatever it raises
        numbers = look()
    return traces, *numbers


def _is_latent(site: dict) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _point(trace: Mapping[str, dict]) -> dict[str, Array]:
    return {name: site["value"] for name, site in trace.items() if _is_latent(site)}


def _observed(trace: Mapping[str, dict]) -> Rung:
    sites = [name for name, site in trace.items() if is_outcome(site)]
    if not sites:
        remedy = "pass the data, numpyro.sample('x', distribution, obs=x)"
        if any(map(is_factor, trace.values())):
            what = "only factors: no data can be drawn, and no rows left out"
            return Rung("observed", "note", what, f"where these are wanted, {remedy}")
        return Rung("observed", "fail", "no site is observed", remedy)
    if not collapsed_sites(trace):
        return Rung(
            "observed",
            "note",
            f"{', '.join(sites)}, none of them a mixture",
            "observe the data through LinkedMixture or MixtureSameFamily if labels are wanted",
        )
    return Rung("observed", "ok", ", ".join(sites))


def _discrete(latent: Mapping[str, dict]) -> Rung:
    found = discrete_sites(latent)
    if not found:
        return Rung("discrete", "ok", "no discrete latent sites")
    are = "is" if len(found) == 1 else "are"
    what = f"{', '.join(map(repr, found))} {are} discrete and latent"
    return Rung("discrete", "fail", what, summing_out(latent))


def _support(
    trace: Mapping[str, dict],
    admitted: Mapping[str, tuple[Any, Any]],
    log_weights: Mapping[str, Any],
) -> Rung:
    found = outside_support(trace, admitted)
    if found is None:
        weights = unlikely_weights(log_weights)
        if weights is not None:
            return Rung("support", "fail", *weights)
        return Rung("support", "ok", "all data lie in the supports of their sites")
    remedy = "transform or drop them, or observe through a distribution that allows them"
    return Rung("support", "fail", found, remedy)


def _indices(problem: Problem, points: list[dict[str, Array]]) -> Rung:
    """Check whether data that the model uses as indices are out of range."""
    try:
        check_indices(problem)
    except ValueError as error:
        return Rung("indices", "fail", *finding_and_remedy(error, ": "))
    return Rung("indices", "ok", "no index from the data is out of range")


def _with_density(
    problem: Problem, points: list[dict[str, Array]], seed: int
) -> list[dict[str, Array]]:
    """Replace points of zero density by others, where the model has any of positive density."""
    starts = {name: np.array([point[name] for point in points]) for name in points[0]}
    starts = with_density(problem, starts, seed, Clock())
    return [{n: jnp.asarray(v[k]) for n, v in starts.items()} for k in range(len(points))]


def _density(problem: Problem, points: list[dict[str, Array]], seed: int) -> Rung:
    """Check log densities at the points; points of zero density are replaced where possible."""

    @jax.jit
    def by_site(point: dict) -> dict[str, Array]:
        sites = trace_model(problem, point).items()
        return {n: sum_log_prob({n: site}) for n, site in sites if site["type"] == "sample"}

    def at_points() -> list[dict[str, float]]:
        return [{name: float(v) for name, v in by_site(point).items()} for point in points]

    check_repeatable(problem)
    values = at_points()
    if any(-np.inf in value.values() for value in values):
        points[:] = _with_density(problem, points, seed)
        values = at_points()
    bad = sorted({name for value in values for name in value if not np.isfinite(value[name])})
    if not bad:
        total = max(sum(value.values()) for value in values)
        return Rung("density", "ok", f"finite at {len(points)} points, {total:.6g} at the best")
    worst = values[0] | next(v for v in values if not np.isfinite(v[bad[0]]))
    return Rung(
        "density",
        "fail",
        "; ".join(f"site {name!r} has log density {worst[name]}" for name in bad),
        "look for zero scales, log of zero, or links that no labeling satisfies",
    )


def _gradient(problem: Problem, points: list[dict[str, Array]]) -> Rung:
    start = jax.jit(lambda point: unconstrained_start(problem, point))
    free = [start(point) for point in points]
    slope = jax.jit(jax.grad(lambda at: sum_log_prob(place(problem, at)[0])))
    slopes = [{n: np.asarray(v) for n, v in slope(at).items()} for at in free]
    bad = [n for n in slopes[0] if not all(np.isfinite(one[n]).all() for one in slopes)]
    if bad:
        return Rung(
            "gradient",
            "fail",
            f"not finite in {', '.join(map(repr, bad))}",
            "look for sqrt, log or norms at zero and for jnp.where whose unused branch is infinite",
        )
    jumps = jumping_sites(problem)
    if jumps:
        return Rung(
            "gradient",
            "note",
            f"the density jumps with {', '.join(map(repr, jumps))}, and its gradient sees nothing of that",
            "use SMC, which needs no gradients, or sum the site out",
        )
    idle = [n for n in slopes[0] if not any(one[n].any() for one in slopes)]
    if idle:
        return Rung(
            "gradient",
            "note",
            f"the density does not change with {', '.join(map(repr, idle))}",
            "use the site, give it a proper prior, or drop it",
        )
    return Rung("gradient", "ok", f"finite at {len(points)} points")


def _arguments(problem: Problem, points: list[dict[str, Array]]) -> Rung:
    """Check which positional arguments reach the density, and which parameters the function reads at all."""
    # as JAX arrays, which a model may index by traced values
    point = {name: jnp.asarray(value) for name, value in points[0].items()}

    live = live_inputs(lambda args: log_joint(problem, point, args), problem.args)
    names = list(inspect.signature(problem.model).parameters)
    idle = [
        name
        for name, flags in zip(names, live, strict=False)
        if not any(jax.tree.leaves(flags)) and jax.tree.leaves(flags)
    ]
    idle += [name for name in unread_parameters(problem.model) if name not in idle]
    if idle:
        does, it = ("do", "them") if len(idle) > 1 else ("does", "it")
        return Rung(
            "arguments",
            "note",
            f"{', '.join(map(repr, idle))} {does} not enter the density",
            f"use {it}, or drop {it} from the model",
        )
    return Rung("arguments", "ok", "all enter the density")
