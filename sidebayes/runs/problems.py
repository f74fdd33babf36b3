"""A model with its data: what is checked before an engine runs, and what is read off it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidebayes.guides.engines.base import Engine, Problem
from sidebayes.guides.engines.plumbing.programs import unchecked
from sidebayes.guides.engines.problem import posterior
from sidebayes.guides.engines.problem.causes import program_text
from sidebayes.guides.engines.problem.declared import (
    collapsed_sites,
    declared_blocks,
    finite_mixtures,
    observed_table,
    site_dims,
)
from sidebayes.guides.engines.problem.density import (
    abstract_trace,
    deterministics,
    filled,
    filling,
    free_shapes,
    latent_sites,
    place,
    site_log_prob,
    sum_log_prob,
    trace_model,
    traced,
)
from sidebayes.guides.engines.problem.explained import explaining_numbers
from sidebayes.guides.engines.problem.honoured import (
    is_factor,
    is_outcome,
    live_inputs,
    live_inputs_of,
)
from sidebayes.guides.engines.problem.units import given_data, model_of, unread_parameters
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.updates import block_of, plan_updates
from sidebayes.models.blocks.block_facts import (
    Checking,
    Remarking,
    RemarkingOnData,
    RemarkingOnDraw,
    Unbounded,
)
from sidebayes.models.blocks.collapsed import unexpanded
from sidebayes.models.blocks.components.gaussian_block import GaussianComponents
from sidebayes.models.blocks.directional.von_mises_fisher_components import VonMisesFisherComponents
from sidebayes.models.blocks.directional.wrapped_components import WrappedComponents
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from ..common.arrays import refuse_unwritable
from ..common.columns import by_name
from ..common.magnitudes import shown
from ..common.warnings import warn_user
from .checks import as_annotated

__all__ = [
    "check_blocks",
    "check_bounded",
    "check_names",
    "check_observed",
    "empirical_prior",
    "has_one_start",
    "idle_links",
    "label_slices",
    "remarks",
    "shapes_of",
    "suit_links",
    "tying_argument",
    "warn_of_idle_data",
    "warn_of_untold",
]


def suit_links(problem: Problem) -> Problem:
    """Lay links out for the clusters and the budget that the model itself names."""
    args = list(problem.args)
    if not any(isinstance(arg, LabelGraph) for arg in args):
        return problem
    for fn, ties in _linked(problem):
        for number, arg in enumerate(problem.args):
            if _is_of(arg, ties):
                args[number] = arg.suited(fn.labels.inference, fn.num_clusters)
    if all(new is old for new, old in zip(args, problem.args, strict=True)):
        return problem
    return replace(problem, args=tuple(args))


def check_names(problem: Problem) -> None:
    """Refuse names of sites that a DataTree takes for paths or axes, and what no file holds."""
    trace = abstract_trace(problem)
    named = [name for name in trace if "/" in name]
    if named:
        raise ValueError(
            f"sites {named} have a slash in their names, which a DataTree takes for a path; rename them, "
            "or scope them with numpyro.handlers.scope(prefix=..., divider='_')"
        )
    if "" in trace:
        raise ValueError("a site has an empty name; give it one")
    refuse_unwritable("the model's sites", trace)
    dims = site_dims(problem)
    odd = [
        n for n in dims if jnp.issubdtype(jnp.result_type(trace[n]["value"]), jnp.complexfloating)
    ]
    if odd:
        raise ValueError(
            f"sites {odd} are complex numbers, which have no mean and quantiles to show; write the real and "
            "the imaginary part, or modulus and angle, as sites of their own"
        )
    axes = {"chain", "draw"}.union(*dims.values())
    taken = sorted(axes & {name for name, site in trace.items() if site["type"] != "plate"})
    if taken:
        raise ValueError(
            f"sites {taken} are called like axes of the posterior, which are {sorted(axes)}; rename them"
        )


def check_observed(problem: Problem, method: str) -> None:
    """Refuse a model that observes nothing: its posterior is its prior."""
    trace = abstract_trace(problem)
    if any(is_outcome(site) or is_factor(site) for site in trace.values()):
        return
    signature, data = given_data(problem)
    left = [role.name for role in signature.data if role.name not in data]
    remedy = f"pass {' or '.join(left)}, or write" if left else "write"
    idle = [
        name
        for name in signature.options
        if problem.kwargs.get(name, _blank(problem, name)) is None
    ]
    if idle and not any(role.declared for role in signature.data):
        names = signature.data[0].name, *idle
        raise ValueError(
            f"{method} observes nothing. Its arguments {idle} are options, since the model has no "
            f"annotations; where they are data, annotate and pass them: {as_annotated(names)}"
        )
    raise ValueError(
        f"{method} observes nothing, so that a fit could only repeat its prior: {remedy} "
        "numpyro.sample(name, distribution, obs=data) in the model; sidebayes.prior_predictive draws "
        "from a prior"
    )


def _blank(problem: Problem, name: str) -> Any:
    """Default of an option of the model."""
    return inspect.signature(model_of(problem)).parameters[name].default


def warn_of_idle_data(problem: Problem, method: str) -> None:
    """Warn of data on which nothing depends, and of options that a model never uses.

    Data of which a model uses the shape alone, such as a table whose rows it counts, are meant to be so,
    unless a latent site has that shape.
    """

    def parts(args: tuple) -> list[Any]:
        trace = traced(filled(problem.model, filling(jnp.zeros)), args, problem.kwargs)
        return [sum_log_prob(trace), *deterministics(trace).values()]

    def program(args: tuple) -> str:
        return program_text(jax.make_jaxpr(lambda: parts(args))())

    own, latent = model_of(problem), latent_sites(abstract_trace(problem)).items()
    with unchecked(), explaining_numbers():  # here data are first traced
        live = live_inputs(parts, problem.args)
        for k, (name, flags) in enumerate(zip(given_data(problem)[1], live, strict=False)):
            data = problem.args[k]
            if any(jax.tree.leaves(flags)) or not jax.tree.leaves(data):
                continue
            alike = [site for site, value in latent if _same_shape(value["value"], data)]
            if alike:
                warn_user(
                    f"{method}: the density does not depend on {name}, and site {alike[0]!r} of the same "
                    f"shape is sampled; if it is to observe these data, write obs={name} there"
                )
            elif _is_unused(program, problem.args, k):
                warn_user(
                    f"{method}: nothing in the model depends on {name}; use it there, as by obs={name} if "
                    "it is an outcome, or leave it out"
                )
    defaults = {name: one.default for name, one in inspect.signature(own).parameters.items()}
    for name in unread_parameters(own):
        if name in problem.kwargs and problem.kwargs[name] is not defaults[name]:
            warn_user(
                f"{method}: the model never uses its option {name!r}; use it, or leave it out"
            )


def _is_unused(program: Callable[[tuple], str], args: tuple, number: int) -> bool:
    """Return whether the text of a program is the same where an argument has another shape."""
    longer = jax.tree.map(lambda leaf: jnp.zeros([n + 1 for n in leaf.shape]), args[number])
    try:
        return program(args) == program((*args[:number], longer, *args[number + 1 :]))
    except Exception:  # whatever the model makes of such a shape
        return False


def warn_of_idle_sites(problem: Problem, method: str) -> None:
    """Warn of latent sites that depend on no other site, and on which no other depends."""

    def parts(free: dict[str, Any]) -> dict[str, Any]:
        trace, _ = place(problem, free)
        terms = {n: site_log_prob(s) for n, s in trace.items() if s["type"] == "sample"}
        return terms | deterministics(trace)

    shapes = free_shapes(problem)
    with unchecked():
        live = live_inputs_of(parts, shapes)
    for name in shapes:
        parents = any(flag for other, flag in live[name].items() if other != name)
        children = any(flags[name] for part, flags in live.items() if part != name)
        cut_off = "_intervener_id" in abstract_trace(problem)[name]  # by handlers.do, on purpose
        if not parents and not children and not cut_off:
            warn_user(
                f"{method}: no other site depends on {name!r}, nor {name!r} on another, so that its "
                "posterior is its prior; use it in the model, or leave it out"
            )


def warn_of_untold(problem: Problem, method: str) -> None:
    """Warn of clusters that are arbitrary because no link says which components make them up."""
    for fn in posterior.label_sites(problem).values():
        untold = fn.is_untold and fn.num_classes is None  # of classes the verdict alone says it
        if untold and (said := fn.remark()) is not None:
            warn_user(f"{method}: {said[0].lower()}{said[1:]}")


def _same_shape(value: Any, data: Any) -> bool:
    return isinstance(data, jax.Array) and jnp.shape(value) == data.shape


def check_blocks(problem: Problem, columns: Mapping[str, Sequence[str]]) -> None:
    """Have blocks look at the data that they describe; errors name columns that have names."""
    for block, name, data in _described(problem, Checking):
        with by_name(columns, name):
            block.check(name, data)


def _described(problem: Problem, kind: type) -> Iterator[tuple[Any, str, np.ndarray]]:
    """Blocks of a kind, each with the tables that it describes and the names of their sites."""
    trace = abstract_trace(problem)
    plan = plan_updates(problem)
    for part in (*plan.starting, *plan.partly_known):
        block = block_of(trace, part)
        if not isinstance(block, kind):
            continue
        for name in part.sources:
            data = observed_table(problem, name)
            if data is not None:
                yield block, name, data


def check_bounded(problem: Problem, engine: Engine) -> None:
    """Refuse a density without bound, unless the engine takes out what makes it so.

    Raises
    ------
    ValueError
        What the block says of it.
    """
    for block, _ in declared_blocks(abstract_trace(problem)):
        reason = block.unbounded() if isinstance(block, Unbounded) else None
        if reason is not None and not engine.prunes:
            raise ValueError(f"engine {engine.name!r} cannot be used: {reason}")


def remarks(problem: Problem, draws: Mapping[str, np.ndarray]) -> list[str]:
    """What blocks have to say of the draws of their sites, and observed sites of their data."""
    trace = abstract_trace(problem)
    declared = list(declared_blocks(trace))
    named = [{role: draws[name] for role, name in sites.items()} for _, sites in declared]
    every = {role: values for own in named for role, values in own.items()}
    found = [
        _sentence(block, "remark", every | own)
        for (block, _), own in zip(declared, named, strict=True)
        if isinstance(block, Remarking)
    ]
    found += [
        _sentence(block, "remark_on_data", name, data, every)
        for block, name, data in _described(problem, RemarkingOnData)
    ]
    for name, (fn, _) in collapsed_sites(trace).items():
        found.append(fn.remark())
        for part in (fn, getattr(fn, "components", None)):
            if (
                isinstance(part, RemarkingOnData)
                and (data := observed_table(problem, name)) is not None
            ):
                found.append(_sentence(part, "remark_on_data", name, data, every))
    found += _remarks_on_draw(problem, draws)
    return [sentence for sentence in found if sentence is not None]


def _sentence(of: Any, method: str, *given: Any) -> str | None:
    """What a block or a distribution remarks; anything but a sentence or None is left out with a warning."""
    found = getattr(of, method)(*given)
    if found is None or isinstance(found, str):
        return found
    what = f"{type(of).__name__}.{method} returned {shown(found)}"
    warn_user(f"{what}, which is left out of the verdict; return a sentence, or None")
    return None


def _remarks_on_draw(problem: Problem, draws: Mapping[str, np.ndarray]) -> list[str | None]:
    """What distributions have to say of their data, given the last draw of the first chain."""
    names = [
        name
        for name, site in abstract_trace(problem).items()
        if isinstance(unexpanded(site.get("fn")), RemarkingOnDraw)
    ]
    if not names:
        return []
    trace = trace_model(problem, {name: jnp.asarray(site[0, -1]) for name, site in draws.items()})
    tables = {name: observed_table(problem, name) for name in names}
    return [
        _sentence(
            unexpanded(trace[name]["fn"]),
            "remark_on_draw",
            name,
            table,
            trace[name].get("scale") is None,
        )
        for name, table in tables.items()
        if table is not None
    ]


def has_one_start(problem: Problem, seed: int) -> bool:
    """Whether blocks know one place to start from for all sites, however many starts are asked for."""
    trace = abstract_trace(problem)
    starting = plan_updates(problem).starting
    known = {name for part in starting for name in part.sites.values()}
    if finite_mixtures(trace) or known != latent_sites(trace).keys():
        return False
    return len(next(iter(initial_values(problem, seed, 2, seeded=True).values()))) == 1


def empirical_prior(problem: Problem) -> Any:
    """Prior that a block reads off the data, as numbers; None if there is no such block."""
    for block, _ in declared_blocks(abstract_trace(problem)):
        if isinstance(block, (VonMisesFisherComponents, WrappedComponents)):
            given = block.prior
            return given and replace(given, scale=float(given.scale))
        if isinstance(block, GaussianComponents) and block.from_data:
            name = next(iter(posterior.label_sites(problem)))
            data = observed_table(problem, name)
            kind: Any = type(block.prior)  # which has such a constructor where it is from the data
            found = kind.empirical(data, block.num_cells)
            return replace(found, mean=np.asarray(found.mean), scale=np.asarray(found.scale))
    return None


def tying_argument(problem: Problem) -> str | None:
    """Name of the argument whose links tie the labels of the first linked mixture."""
    graph = next((ties for _, ties in _linked(problem)), None)
    _, data = given_data(problem)
    own = (n for n, v in data.items() if graph is not None and _is_of(v, graph))
    return next(own, None)


def idle_links(problem: Problem) -> list[str]:
    """Arguments whose links change no label, given the parameters."""
    moving = [ties for fn, ties in _linked(problem) if fn.links_move_labels]
    _, data = given_data(problem)
    graphs = {name: value for name, value in data.items() if isinstance(value, LabelGraph)}
    return [n for n, graph in graphs.items() if not any(_is_of(graph, ties) for ties in moving)]


def _linked(problem: Problem) -> list[tuple[FiniteMixture, LabelGraph]]:
    found = [(fn, fn.links()) for fn in posterior.label_sites(problem).values()]
    return [(fn, ties) for fn, ties in found if ties is not None]


def _is_of(argument: Any, graph: LabelGraph) -> bool:
    """Whether a graph is that of an argument, laid out again perhaps."""
    return isinstance(argument, LabelGraph) and argument.pairs is graph.pairs


def label_slices(problem: Problem) -> str:
    """Where the labels of each observed site stand among those of all, as JSON."""
    start, found = 0, {}
    for name, fn in posterior.label_sites(problem).items():
        size = fn.units().num_points
        found[name] = [start, start + size]
        start += size
    return json.dumps(found)


def shapes_of(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Shape of every latent and deterministic site."""
    trace = abstract_trace(problem)
    return {name: jnp.shape(trace[name]["value"]) for name in site_dims(problem)}
