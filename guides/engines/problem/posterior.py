"""Latent variables given parameters, which are derived from every draw of any engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.collapsed import NamedArray
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.loops import FEW_CELLS
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from ..base import Problem
from ..plumbing.programs import compile_ahead, compiled
from .declared import finite_mixtures
from .density import abstract_trace, deterministics, latent_sites, site_log_prob, trace_model
from .units import Layout, lay_out_units, log_terms

__all__ = [
    "MOST_DRAWS",
    "Derived",
    "computed_sites",
    "derive",
    "derive_ahead",
    "joint_mode",
    "label_sites",
    "latent_shapes",
    "mixture_site",
    "mixture_structure",
    "num_derived",
    "thin",
]

MOST_DRAWS = 200
"""Maximum number of draws, of a chain or of all, at which labels and densities are derived.

Where all chains together have fewer than _ENOUGH, and tables are small, a chain may have more."""

_ENOUGH = 800
"""Number of draws at which weights that leave units out are reliable up to a Pareto k of .66; .57 at 200."""

_MOST_NUMBERS = 2**23
"""Maximum number of label probabilities and densities of units that more draws than `MOST_DRAWS` may give."""

_BLOCK = 50
"""Number of draws whose labels are derived by one call."""

_LARGE = 20_000
"""Number of points from which on labels are derived draw by draw."""


def label_sites(problem: Problem) -> dict[str, FiniteMixture]:
    """Observed sites whose labels are summed out, from the abstract trace."""
    return {name: fn for name, (fn, _) in finite_mixtures(abstract_trace(problem)).items()}


def mixture_site(
    problem: Problem, params: Mapping[str, Any], args: tuple | None = None
) -> tuple[FiniteMixture, Array]:
    """Return the distribution of the first observed site whose labels are summed out, and its data.

    Raises
    ------
    ValueError
        If the model has none.
    """
    return _first_labelled(trace_model(problem, params, args))


def mixture_structure(problem: Problem) -> tuple[FiniteMixture, Any]:
    """Return the same from the abstract trace, with shapes and links; nothing is computed."""
    return _first_labelled(abstract_trace(problem))


def _first_labelled(trace: Mapping[str, dict]) -> tuple[FiniteMixture, Any]:
    found = next(iter(finite_mixtures(trace).values()), None)
    if found is None:
        raise ValueError("the model has no labels: it observes no mixture")
    return found


def latent_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return the shape of every latent site; nothing is computed.

    Raises
    ------
    TypeError
        If a latent site is discrete.
    """
    latent = latent_sites(abstract_trace(problem))
    return {name: jnp.shape(site["value"]) for name, site in latent.items()}


class Derived(NamedTuple):
    """Latent variables and log densities given parameters; the first axis of each array is that of draws.

    Attributes
    ----------
    responsibilities : ndarray, shape (num_draws, num_points, num_clusters), or None
        For all sites with labels, concatenated; None without labels.
    log_likelihood : dict of ndarray, shape (num_draws, num_units)
        For each observed site; a connected set is one unit.
    log_prior : dict of ndarray, shape (num_draws,)
        Log prior density of each latent site, zero where a prior is flat; empty for a single draw.
    mode : ndarray of int, shape (num_points,), or None
        Most probable joint labeling at the first draw, which keeps hard links; the most probable
        label of each point where labels are summed out approximately.
    latents : dict of NamedArray
        Other latent variables that were integrated out, such as random effects, with names of all axes
        but the first. Where several sites have such variables, names begin with that of the site.
    agreement : (ndarray, ndarray) or None
        Probability that the labels of each link agree if no link ties them, shape (num_draws, num_links),
        and that those of any two points do, shape (num_draws,). They refer to the first site whose labels
        links tie; None if there is no such site.
    """

    responsibilities: NDArray | None
    log_likelihood: dict[str, NDArray]
    log_prior: dict[str, NDArray]
    mode: NDArray[np.int64] | None
    latents: dict[str, NamedArray]
    agreement: tuple[NDArray, NDArray] | None = None


def derive(problem: Problem, draws: Mapping[str, NDArray], *, hard: bool = False) -> Derived:
    """Derive labels, other latents and log likelihoods at every draw, and the joint labeling at the first.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (num_draws, ...)
    hard : bool
        Take the most probable joint labeling in place of marginal probabilities.
    """
    number = len(next(iter(draws.values())))
    layout = lay_out_units(problem)
    size, asked = _description(problem, number == 1, hard)
    found: Any = None
    for first in range(0, number, size):
        part = {name: np.asarray(value[first : first + size]) for name, value in draws.items()}
        count = min(size, number - first)
        given = {
            name: np.pad(value, [(0, size - count)] + [(0, 0)] * (value.ndim - 1))
            for name, value in part.items()
        }
        (program, _), inputs = asked(compiled, given, count)
        block = program(*inputs)
        if found is None:  # filled block by block: a second copy of much data may not fit
            found = jax.tree.map(
                lambda leaf: np.empty((number, *leaf.shape[1:]), leaf.dtype), block
            )
        for whole, leaf in zip(*map(jax.tree.leaves, (found, block)), strict=True):
            whole[first : first + count] = np.asarray(leaf)[:count]
    prob, terms, prior, mode, latents, agreement = found
    terms = {name: value[:, : layout.num_units(name)] for name, value in terms.items()}
    if prob is None:
        return Derived(None, terms, prior, None, latents)
    return Derived(prob, terms, prior, mode[0].astype(np.int64), latents, agreement)


def computed_sites(
    problem: Problem, names: tuple[str, ...], draws: Mapping[str, NDArray]
) -> dict[str, NDArray]:
    """Deterministic sites at draws of the latent ones, by name.

    Parameters
    ----------
    problem : Problem
    names : tuple of str
    draws : mapping of str to ndarray, shape (num_draws, ...)
    """

    def build(bare: Problem) -> Callable:
        def one(values: dict[str, Array], args: tuple) -> dict[str, Array]:
            found = deterministics(trace_model(bare, values, args))
            return {name: found[name] for name in names}

        return lambda draws, args: jax.lax.map(lambda values: one(values, args), draws)

    latent = {name: jnp.asarray(draws[name]) for name in latent_shapes(problem)}
    program, _ = compiled("computed", problem, names, build, latent, problem.args, once=True)
    return {name: np.asarray(v) for name, v in program(latent, problem.args).items()}


def derive_ahead(problem: Problem, *, single: bool, hard: bool = False) -> None:
    """Compile the program of `derive` in another thread, for a single draw or for several."""
    size, asked = _description(problem, single, hard)
    trace = abstract_trace(problem)
    found = {name: site["value"] for name, site in latent_sites(trace).items()}
    shapes = {
        name: jax.ShapeDtypeStruct((size, *jnp.shape(value)), jnp.result_type(value))
        for name, value in (found | deterministics(trace)).items()
    }
    asked(compile_ahead, shapes, size)


def _description(problem: Problem, single: bool, hard: bool) -> tuple[int, Callable]:
    """Return the number of draws per call of the program, and a function that requests the program."""
    layout = lay_out_units(problem)
    owners = {name: None if o is None else jnp.asarray(o) for name, o in layout.owners.items()}
    # blocks have one size, so that all numbers of draws above one share the program; for a single draw,
    # or many points, the block is one draw
    large = max((len(unit) for unit in layout.unit.values()), default=0) >= _LARGE
    size = 1 if single or large else _BLOCK
    # where terms are summed by unit, the number of units shapes the program
    owned = tuple((n, layout.num_units(n)) for n, o in owners.items() if o is not None)
    config = hard, size, single, tuple(layout.site_dims.items()), owned
    build = partial(_over_draws, hard, layout, not single)
    quick = not any(map(_sums_long, problem.args))

    def asked(routine: Callable, given: dict[str, Any], count: int) -> tuple[Any, tuple]:
        inputs = given, problem.args, owners, np.asarray(count)
        return routine("derive", problem, config, build, *inputs, once=quick), inputs

    return size, asked


def _sums_long(value: Any) -> bool:
    """Return whether sums over the loops of links take so long that optimised compilation pays."""
    return (
        isinstance(value, LabelGraph)
        and value.buckets is not None
        and value.buckets.num_cells > FEW_CELLS
    )


def _over_draws(hard: bool, layout: Any, with_prior: bool, problem: Problem) -> Callable:
    """Build the program that derives latents for the first `count` draws of a block."""

    @jax.jit  # traced only once
    def at(number: Array, params: dict, args: tuple, owners: dict) -> tuple:
        params = {name: value[number] for name, value in params.items()}
        trace = trace_model(problem, params, args)
        terms, summaries = log_terms(trace, layout, owners)
        latent = latent_sites(trace).items() if with_prior else ()
        prior = {name: site_log_prob(site) for name, site in latent}
        labels: list[Array] = []
        modes: list[Array] = []
        for name, (fn, value) in finite_mixtures(trace).items():
            prob = summaries[name].pop("responsibilities").values
            best = _labeling(fn, value, prob, hard, number)
            modes.append(best)
            labels.append(jax.nn.one_hot(best, prob.shape[-1], dtype=prob.dtype) if hard else prob)
        latents = _named(summaries, layout)
        if not labels:
            return None, terms, prior, None, latents, None
        alone = _agreement(trace)
        return jnp.concatenate(labels), terms, prior, jnp.concatenate(modes), latents, alone

    def over_draws(params: dict, args: tuple, owners: dict, count: Array) -> Any:
        blank = jax.tree.map(
            lambda leaf: jnp.zeros((len(next(iter(params.values()))), *leaf.shape), leaf.dtype),
            jax.eval_shape(at, jnp.asarray(0), params, args, owners),
        )

        def step(number: Array, out: Any) -> Any:
            found = at(number, params, args, owners)
            return jax.tree.map(lambda all_, one: all_.at[number].set(one), out, found)

        return jax.lax.fori_loop(0, count, step, blank)

    return over_draws


def _agreement(trace: Mapping[str, dict]) -> tuple[Array, Array] | None:
    """Compute `Derived.agreement`."""
    for fn, value in finite_mixtures(trace).values():
        ties = fn.links()
        if fn.is_density and ties is not None and ties.num_links:
            unary = fn.label_factors(fn.log_factors(value)) + fn.labels.log_weights
            share = jax.nn.softmax(unary, axis=-1)
            first, second = (share[end] for end in jnp.asarray(ties.pairs).T)
            return (first * second).sum(axis=-1), jnp.square(share.mean(axis=0)).sum()
    return None


def _named(
    summaries: Mapping[str, Mapping[str, NamedArray]], layout: Layout
) -> dict[str, NamedArray]:
    """Return the summaries of all sites; axes of points are named by the dimension of the data."""
    owned = {site: own for site, own in summaries.items() if own}
    found = {}
    for site, own in owned.items():
        prefix = f"{site}_" if len(owned) > 1 else ""
        for name, (dims, values) in own.items():
            axes = (layout.points[site] or d if d == "points" else f"{prefix}{d}" for d in dims)
            found[f"{prefix}{name}"] = NamedArray(tuple(axes), values)
    return found


def _labeling(fn: FiniteMixture, value: Array, prob: Array, hard: bool, number: Array) -> Array:
    """Return the most probable labels: jointly at the first draw or for `hard` labels, else by point."""
    likeliest = prob.argmax(axis=-1)
    ties = fn.links()
    if ties is None or ties.num_links == 0 or (fn.approximation() is not None and not hard):
        return likeliest
    best = jax.lax.cond(hard | (number == 0), lambda: fn.mode(value), lambda: likeliest)
    return best.astype(likeliest.dtype)


def joint_mode(problem: Problem, params: Mapping[str, NDArray]) -> NDArray[np.int64]:
    """Return the most probable joint labeling at parameters, as in `Derived.mode`."""
    found = derive(problem, {name: np.stack([value] * 2) for name, value in params.items()}).mode
    assert found is not None  # called for models with labels only
    return found


def num_derived(problem: Problem, num_chains: int) -> int:
    """Maximum number of draws of each chain at which labels and densities are derived.

    One chain has as many as four have together, unless a draw gives many numbers, or takes long.
    """
    if num_chains * MOST_DRAWS >= _ENOUGH or any(map(_sums_long, problem.args)):
        return MOST_DRAWS
    layout = lay_out_units(problem)
    numbers = sum(map(layout.num_units, layout.site_dims))
    numbers += sum(fn.units().num_points * fn.num_clusters for fn in label_sites(problem).values())
    return max(MOST_DRAWS, min(_ENOUGH, _MOST_NUMBERS // max(numbers, 1)) // num_chains)


def thin(num_draws: int, most: int = MOST_DRAWS) -> NDArray[np.int64]:
    """Return indices of at most `most` draws, evenly spread over a chain, first and last included."""
    return np.linspace(0, num_draws - 1, max(min(num_draws, most), 1)).astype(int)
