"""Finds causes of densities that are not finite or change between runs, and of clusters that collapse."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from sidebayes.models.blocks.block import Block
from sidebayes.models.blocks.block_facts import Collapsible
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.side_information.groups import Groups

from sidebayes.common.magnitudes import counted, far_rows, listed

from ..base import Problem
from ..plumbing.identity import freeze
from ..plumbing.indicators import bounded_parameters
from ..plumbing.programs import unchecked
from ..plumbing.reads import replayed
from .declared import collapsed_sites, declared_blocks, finite_mixtures, observed_table
from .density import (
    abstract_trace,
    numbers_of,
    place,
    site_log_prob,
    trace_model,
    with_numbers,
)
from .honoured import is_factor, is_outcome, live_inputs_of
from .units import given_data, model_of
from .values import evaluated, may_vanish, trace_anywhere

__all__ = [
    "advice",
    "check_indices",
    "check_repeatable",
    "edge_advice",
    "explain_at",
    "explain_nonfinite",
    "known_cause",
    "out_of_range",
    "program_text",
    "remedy",
]

_FACTOR = ", which is a factor"


def explain_nonfinite(problem: Problem, params: Mapping[str, Any]) -> str:
    """Name the sites whose log density is not finite at `params`; empty if all are finite.

    Where single observations have no finite density, the first is named with its value.
    """

    @jax.jit
    def by_site(params: dict, args: tuple) -> dict[str, tuple[Array, Array | None, Any]]:
        found = {}
        for name, site in trace_model(problem, params, args).items():
            if site["type"] == "sample":
                terms = site["fn"].log_prob(site["value"]) if is_outcome(site) else None
                found[name] = site_log_prob(site), terms, site["value"]
        return found

    found = jax.device_get(by_site(dict(params), problem.args))
    trace, said = abstract_trace(problem), []
    for name, (total, terms, value) in found.items():
        if np.isfinite(total):
            continue
        what = _FACTOR if is_factor(trace[name]) else _first_without(problem, terms, value)
        said.append(f"site {name!r} has log density {total}{what}")
    return "; ".join(said)


def explain_at(problem: Problem, free: Mapping[str, Array]) -> tuple[dict[str, np.ndarray], str]:
    """Values of the sites at unconstrained coordinates, and the result of `explain_nonfinite` there."""
    with unchecked():  # NumPyro would refuse parameters out of range without naming the site
        sites, _ = place(problem, free)
    values = {name: np.asarray(sites[name]["value"]) for name in free}
    return values, explain_nonfinite(problem, values)


def _first_without(problem: Problem, terms: Any, value: Any) -> str:
    """Say where the first datum without a finite density is, and its value."""
    if not np.ndim(terms) or np.shape(value)[: np.ndim(terms)] != np.shape(terms):
        return ""
    bad = np.argwhere(~np.isfinite(terms))
    if not len(bad):
        return ""
    spot = tuple(map(int, bad[0]))
    datum = np.asarray(value)[spot]
    shown = repr(datum.tolist()) if datum.size <= 8 else "a long row"
    spot = (int(_numbers(problem, np.asarray(spot[0]))), *spot[1:])
    return f", as {len(bad)} of its {np.size(terms)} values have none, the first at {spot}: {shown}"


def advice(problem: Problem, blame: str, *, takes_init: bool = True) -> str:
    """Say what to do where the log density is finite at no start; `blame` comes from `explain_nonfinite`.

    `takes_init` is whether the engine accepts starting values; other engines start from the prior.
    """
    known = known_cause(problem) or out_of_range(problem)
    if known:
        return known
    what = "that factor" if blame.endswith(_FACTOR) else "the data of that site"
    other = "pass init= with values at which it is finite" if takes_init else "widen the priors"
    return f"check {what}, or {other}"


def known_cause(problem: Problem) -> str | None:
    """Name a cause that no values of parameters can remove, and its remedy; None if no such cause is found.

    Looks for hard links that no labeling satisfies, and for columns of the data that are copies, sums
    or other linear combinations of the rest.
    """
    return _impossible_links(problem) or _dependent_columns(problem)


def edge_advice(problem: Problem, otherwise: str) -> str:
    """Advice where an approximation fails: `otherwise`, unless the density is zero or undefined somewhere."""
    cause = out_of_range(problem)
    if cause or not may_vanish(problem):
        return cause or otherwise
    return (
        f"{otherwise}. Where the density is zero beyond the edge of a support, or because a factor says so, "
        "no normal distribution or mode describes a posterior that ends there: use NUTS, SMC or nested "
        "sampling"
    )


def out_of_range(problem: Problem) -> str:
    """Name scales, rates and probabilities that latent sites may take out of their range; "" if none do."""

    def outside(at: float) -> dict[str, Array]:
        trace = trace_anywhere(problem, lambda shape: jnp.full(shape, at))
        return {
            f"the {parameter} of site {name!r} must lie {_bounds(within)}": ~within(value)
            for name, site in trace.items()
            if is_outcome(site)
            for parameter, within, value in bounded_parameters(site["fn"])
        }

    ends = evaluated(lambda: [outside(at) for at in (-3.0, 3.0)])
    found = [said for said in ends[0] if any(np.any(end[said]) for end in ends)]
    if not found:
        return ""
    return (
        f"{found[0]}, and does not at values that the priors of the latent sites allow; use priors on that "
        "range, such as HalfNormal, for the sites that it depends on, or map it there, as by jnp.exp"
    )


def _bounds(within: Any) -> str:
    ends = {"above": "lower_bound", "below": "upper_bound"}
    return " and ".join(
        f"{side} {np.ravel(getattr(within, end))[0]:g}"
        for side, end in ends.items()
        if hasattr(within, end)
    )


def check_repeatable(problem: Problem) -> None:
    """Refuse a model whose density changes from one run to the next, as with numbers drawn inside it.

    The programs of a fit are traced one by one, so that each would hold numbers of its own.

    Raises
    ------
    ValueError
        Naming the first site, with its two log densities.
    """

    def terms() -> dict[str, tuple[Array, ...]]:
        traces = [trace_anywhere(problem, at) for at in (jnp.zeros, _uneven)]
        names = [n for n, s in traces[0].items() if s["type"] in ("sample", "deterministic")]
        return {name: tuple(_of_site(trace[name]) for trace in traces) for name in names}

    # a new function each time, as JAX remembers what it traced
    once, again = (jax.make_jaxpr(partial(terms))() for _ in range(2))
    same = len(once.consts) == len(again.consts) and all(
        one is other or freeze(_plain(one)) == freeze(_plain(other))
        for one, other in zip(once.consts, again.consts, strict=True)
    )
    if same and program_text(once) == program_text(again):
        return
    first, second = evaluated(terms), evaluated(terms)
    for name in (site for site in first if site in second):
        for one, two in zip(first[name], second[name], strict=True):
            if not np.array_equal(one, two, equal_nan=True):
                raise ValueError(
                    f"the model is not the same each time that it runs: with equal parameters and data, site "
                    f"{name!r} is {one:.6g} and then {two:.6g} (its log density, or a sum of its values), as "
                    "when NumPy draws numbers inside a model; draw them before the fit and pass them as "
                    "data, or make them latent by numpyro.sample"
                )


def check_indices(problem: Problem) -> None:
    """Refuse data that a model uses as indices beyond what it reads by them.

    JAX reads the last element there and leaves the read out of the gradient, so that density and gradient
    disagree. Indices that depend on latent sites are not checked, nor reads on which no density depends, as
    where a mask replaces them.

    Raises
    ------
    ValueError
        Naming the index, how many elements are read by it, and the argument.
    """

    def terms(at: Array, numbers: list) -> list[Array]:
        seen = replace(problem, args=tuple(map(with_numbers, problem.args, numbers)))
        trace = trace_anywhere(seen, lambda shape: at + _uneven(shape))
        return [_of_site(s) for s in trace.values() if s["type"] in ("sample", "deterministic")]

    inputs = jnp.asarray(0.3), [numbers_of(a) if problem.unseen else None for a in problem.args]
    try:
        program = jax.make_jaxpr(terms)(*inputs)
    except Exception:  # new data without an outcome that the model requires, say
        return
    values = [*program.consts, *jax.tree.leaves(inputs)]
    here = len(program.consts)
    positional = dict(
        zip(inspect.signature(model_of(problem)).parameters, problem.args, strict=False)
    )
    names = {
        k: name
        for k, one in enumerate(values)
        for name, data in (positional | given_data(problem)[1] | problem.kwargs).items()
        if isinstance(data, jax.Array | np.ndarray | Groups)
        if any(_is_copy(one, leaf) for leaf in jax.tree.leaves(data))
    }
    if problem.unseen:  # outcomes may be unknown, of which a density depends on nothing
        values = list(map(_made_up, values))

    def read(values: list, change: Any = None) -> tuple[list[Any], Array]:
        return replayed(program.jaxpr, values, names, change)

    try:
        ranges = evaluated(lambda: read(values)[1])
    except Exception:  # an operation that cannot be applied again is no fault of the model
        return
    outside = np.flatnonzero((ranges[:, 0] < 0) | (ranges[:, 1] >= ranges[:, 2]))
    if not len(outside):
        return
    live = live_inputs_of(lambda given: {str(k): read(given)[1][k] for k in outside}, values)
    fixed = [k for k in outside if not live[str(k)][here]]
    as_is, changed = evaluated(lambda: [read(values, change)[0] for change in (0.0, 0.7)])
    same = (np.array_equal(*two, equal_nan=True) for two in zip(as_is, changed, strict=True))
    if not fixed or all(same):
        return
    used = {name: np.asarray(values[k]) for k, name in names.items() if live[str(fixed[0])][k]}
    raise ValueError(_beyond(ranges[fixed[0]], used, problem.unseen))


def _is_copy(one: Any, data: Any) -> bool:
    """Return whether a constant of a program is an array of the data, or a copy of an option."""
    if one is data or not isinstance(data, np.ndarray):
        return one is data
    return jnp.issubdtype(one.dtype, jnp.integer) and np.array_equal(one, data)


def _made_up(data: Any) -> Any:
    """Return data with a number where there is none, which most supports contain."""
    is_float = isinstance(data, jax.Array) and jnp.issubdtype(data.dtype, jnp.floating)
    return jnp.where(jnp.isnan(data), 1.0, data) if is_float else data


def _beyond(ranges: NDArray, used: Mapping[str, Any], unseen: bool) -> str:
    """Say which index is out of range, which of the arguments hold it, and what to do."""
    low, high, size, own = map(int, ranges)
    index = high if high >= size else low
    holding = {name: values for name, values in used.items() if own and (values == index).any()}
    names = " and ".join(holding or used)
    if not own and index < 0:
        index -= size  # as it was before it was counted from the end
    what = f"an index that the model computes{f' from {names}' if names else ''} is {index}"
    if holding:
        what = f"{names} has the value {index}, which the model uses as an index"
    remedy = "number what is indexed from 0, or check how many elements there are"
    if unseen:
        remedy = "number as in the fit, and leave out levels that were not fitted"
    elif holding and index < 0:
        remedy = "leave out rows without a number, or give these a number of their own"
    elif index == size and len(holding) == 1 and holding[names].min() == 1:
        remedy = f"number from 0, as by {names} - 1"
    return f"{what}, and {counted(size, 'element')} are numbered from 0 to {size - 1}: {remedy}"


def _uneven(shape: tuple[int, ...]) -> Array:
    """Coordinates all of which differ, so that it matters which of them a row has."""
    return jnp.cos(1.0 + jnp.arange(math.prod(shape))).reshape(shape)


def _of_site(site: dict) -> Array:
    return site_log_prob(site) if site["type"] == "sample" else jnp.sum(site["value"])


def _plain(constant: Any) -> Any:
    """Return a constant of a program, which may be a wrapper of JAX's, as an array that has content."""
    return constant if isinstance(constant, jax.Array) else np.asarray(constant)


def program_text(program: Any) -> str:
    """Return the text of a traced program, without addresses."""
    return re.sub("0x[0-9a-f]+", "", str(program))


def remedy(problem: Problem) -> str:
    """Return what to do where a cluster collapses, by its rows and its blocks, as text after a semicolon."""
    blocks = (block for block, _ in declared_blocks(abstract_trace(problem)))
    own = (block.remedy for block in blocks if isinstance(block, Collapsible))
    advised = "; ".join(dict.fromkeys(own)) or Block.remedy
    return ", or ".join([*_far_rows(problem), advised])


def _far_rows(problem: Problem) -> list[str]:
    """Name rows so far from all others that no covariance resolves both, and say what to do about them."""
    return [
        f"{name!r} has values far from all others in row {listed(_numbers(problem, rows))}: correct or drop "
        "such rows"
        for name, table in _observed_tables(problem)
        if len(rows := np.unique(far_rows(table)[0]))
    ]


def _observed_tables(problem: Problem) -> list[tuple[str, np.ndarray]]:
    """Tables observed by mixtures and their like, by site."""
    found = ((n, observed_table(problem, n)) for n in collapsed_sites(abstract_trace(problem)))
    return [(name, table) for name, table in found if table is not None and table.ndim == 2]


def _numbers(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """Numbers of some rows of the data, in the table on disk that these are a sample of."""
    return rows if problem.row_numbers is None else problem.row_numbers[rows]


def _impossible_links(problem: Problem) -> str | None:
    sizes: dict[str, int] = {}

    def look() -> dict[str, tuple[Array, Array]]:
        found = {}
        for name, (fn, _) in finite_mixtures(trace_anywhere(problem)).items():
            graph = fn.links()
            if graph is not None and _may_be_hard(graph.pair_weights):
                labels, sizes[name] = fn.labels, fn.num_clusters
                blank = jnp.zeros((graph.num_points, fn.num_clusters), labels.log_weights.dtype)
                value = partition.log_partition(blank, graph, inference=labels.inference)
                one, other = jnp.asarray(graph.pairs).T  # equal in spare rows
                hard = jnp.isinf(graph.pair_weights) & (one != other)
                found[name] = hard.sum(), jnp.isfinite(value)
        return found

    # one program; run operation by operation, it would compile hundreds
    for name, (hard, possible) in jax.jit(look)().items():
        if hard and not possible:
            return (
                f"{name!r} has {hard} hard links that no labeling satisfies with {sizes[name]} clusters: "
                "allow more clusters, drop a cannot-link, or make the links soft, "
                "links.with_strength(4.0)"
            )
    return None


def _may_be_hard(weights: ArrayLike) -> bool:
    return isinstance(weights, Tracer) or bool(np.isinf(np.asarray(weights)).any())


def _dependent_columns(problem: Problem) -> str | None:
    trace = abstract_trace(problem)
    blocks = [block for block, _ in declared_blocks(trace)]
    advice = [block.of_dependent for block in blocks if block.of_dependent is not None]
    if blocks and not advice:
        return None
    for name, table in _observed_tables(problem):
        table = np.delete(table, far_rows(table)[0], axis=0)  # beside which all others are alike
        if len(table) <= table.shape[1]:
            continue
        centred = table - table.mean(axis=0)
        spread = centred.std(axis=0)
        rank = np.linalg.matrix_rank(centred / np.where(spread > 0, spread, 1.0))
        if rank < table.shape[1]:
            return (
                f"the {table.shape[1]} columns of {name!r} have rank {rank}, so that some are constant, "
                f"copies or sums of others: {', or '.join(['drop those', *dict.fromkeys(advice)])}"
            )
    return None
