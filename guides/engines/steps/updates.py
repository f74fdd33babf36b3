"""Plan of updates: the sites of a model that have closed forms, found in its trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.ops.provenance import eval_provenance
from sidebayes.models.blocks.block import (
    Drawable,
    Observation,
    OnePass,
    Updatable,
)
from sidebayes.models.blocks.block_facts import Collapsible, Doubting, Improper, Obstructed
from sidebayes.models.blocks.collapsed import Collapsed

from ..base import Problem
from ..plumbing.programs import unchecked
from ..problem.declared import collapsed_sites, declared_blocks, observed_table, restricted_sites
from ..problem.density import abstract_trace, latent_sites, site_log_prob, trace_model
from ..problem.units import model_of

__all__ = [
    "Part",
    "Plan",
    "block_of",
    "closed_forms",
    "degenerate",
    "doubted",
    "drawable",
    "is_ours",
    "is_own",
    "listed",
    "maximised",
    "observations",
    "plan_updates",
    "pooled",
    "provenance",
    "refuse_restricted",
    "sources_of",
    "update_of",
    "updated",
]


class Part(NamedTuple):
    """A block and the sites for which a model uses it.

    Attributes
    ----------
    sites : dict of str to str
        Name of each site by its role.
    sources : tuple of str
        Observed sites from whose latent variables the block learns.
    chained : bool
        Whether the block's prior, or the data of its sources, depend on other latent sites.
    """

    sites: dict[str, str]
    sources: tuple[str, ...]
    chained: bool

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the sites by role."""
        return {role: params[name] for role, name in self.sites.items()}

    def named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by the names of sites."""
        return {self.sites[role]: value for role, value in values.items()}


class Plan(NamedTuple):
    """How the latent sites of a model are updated.

    Attributes
    ----------
    parts : tuple of Part
        Blocks with an update in closed form.
    rest : tuple of str
        Sites without an update.
    lacking : tuple of str
        Reasons why they have none, as sentences.
    one_pass : dict of str to str
        For observed sites whose statistics a block finds in one pass, a site of that block.
    starting : tuple of Part
        All blocks that learn from observed sites, in closed form or not; they declare starting values.
    tightened : tuple of str
        Those sites of `rest` that describe a restricted posterior and nothing else.
    partly_known : tuple of Part
        Blocks that learn from observed sites and have known sites; see `declared_blocks`.
    """

    parts: tuple[Part, ...]
    rest: tuple[str, ...]
    lacking: tuple[str, ...]
    one_pass: dict[str, str]
    starting: tuple[Part, ...] = ()
    tightened: tuple[str, ...] = ()
    partly_known: tuple[Part, ...] = ()


def plan_updates(problem: Problem) -> Plan:
    """Find the blocks of a model, and determine whether their updates are valid in it.

    A block's update is valid if its sites enter only their own priors, and one log-factor of observed sites
    that integrate their latent variables out.
    """
    if "plan" not in problem.notes:
        problem.notes["plan"] = _plan(problem)
    return problem.notes["plan"]


type _Lack = tuple[Collection[str], str, str]
"""Sites, a verb in the plural, and the rest of a sentence on why they have no update."""


def _plan(problem: Problem) -> Plan:
    trace = abstract_trace(problem)
    latent, found = latent_sites(trace), declared_blocks(trace)
    partial = declared_blocks(trace, partly_known=True)
    parts, starting, partly_known = [], [], []
    lacking: list[_Lack] = []
    uses, shifted = _uses(problem) if found or partial else ({}, {})
    for number, (block, sites) in enumerate((*found, *partial)):
        own = set(sites.values())
        sources: list[str] = []
        others: list[str] = []
        for (user, factor), needed in uses.items():
            if not own & needed or user in own:
                continue
            if factor in block.factors:
                sources.append(user)
            else:
                others.append(user if factor is None else f"{user} ({factor})")
        chained = any(uses.get((name, None), own) - own for name in own)
        chained |= any(shifted.get(name, frozenset()) - own - {name} for name in sources)
        part = Part(sites, tuple(dict.fromkeys(sources)), chained)
        if is_own(block) and block.has_update and not sources:
            _check_factor(block, own, uses)
        if number >= len(found):
            partly_known += [part] * bool(sources)
            lacking.append((own, "have", "no update where other sites of the block are known"))
            continue
        starting += [part] * bool(sources)
        if others:
            lacking.append((own, "also enter", listed(others)))
        elif scaled := [n for n in (*own, *sources) if trace[n].get("scale") is not None]:
            lacking.append((own, "enter", f"densities under a scale, {listed(scaled)}"))
        elif not sources:
            lacking.append((own, "enter", "no observed site that integrates labels out"))
        elif not block.has_update:
            lacking.append((own, "have", "no update in closed form under the prior"))
        else:
            parts.append(part)
    closed = {name for part in parts for name in part.sites.values()}
    rest = tuple(name for name in latent if name not in closed)
    plain = [n for n in rest if (latent[n].get("infer") or {}).get("block") is None]
    if plain:
        lacking.append((plain, "belong", "to no block"))
    one_pass = {} if rest else _one_pass(problem, parts)
    tightened = restricted_sites(problem)
    starts, known = tuple(starting), tuple(partly_known)
    return Plan(tuple(parts), rest, _sentences(lacking), one_pass, starts, tightened, known)


def _check_factor(
    block: Any, own: set[str], uses: Mapping[tuple[str, str | None], frozenset[str]]
) -> None:
    """Refuse an update for log-factors that no observed site has, while its sites enter some of them."""
    known = {factor for _, factor in uses if factor is not None}
    entered = [f for (user, f), needed in uses.items() if f and own & needed and user not in own]
    if entered and known.isdisjoint(block.factors):
        raise ValueError(
            f"{type(block).__name__} learns from the log-factor {listed(block.factors)}, which no "
            f"observed site has; its sites enter {listed(entered)}, so set factor to this"
        )


def _sentences(lacking: list[_Lack]) -> tuple[str, ...]:
    """Return sentences on why sites have no update, each reason once."""
    sites: dict[tuple[str, str], set[str]] = {}
    for own, *reason in lacking:
        sites.setdefault(tuple(reason), set()).update(own)  # type: ignore[arg-type]
    alone = {"have": "has"}
    return tuple(
        f"{listed(own)} {verb if len(own) > 1 else alone.get(verb, f'{verb}s')} {rest}"
        for (verb, rest), own in sites.items()
    )


def _one_pass(problem: Problem, parts: list[Part]) -> dict[str, str]:
    """Return observed sites of which only the statistics of one pass are needed; see `Plan.one_pass`."""
    trace = abstract_trace(problem)
    found = {}
    for name, (fn, _) in collapsed_sites(trace).items():
        feeding = [part for part in parts if name in part.sources]
        blocks = [block_of(trace, part) for part in feeding]
        for part, block in zip(feeding, blocks, strict=True):
            others = {name for other in blocks if other is not block for name in other.factors}
            if isinstance(block, OnePass) and block.has_one_pass(fn, others):
                found[name] = next(iter(part.sites.values()))
    return found


def listed(names: Any) -> str:
    """Return names, in their order, as text."""
    return ", ".join(sorted(map(str, names)))


def _uses(
    problem: Problem,
) -> tuple[dict[tuple[str, str | None], frozenset[str]], dict[str, frozenset[str]]]:
    """Return the latent sites that each density depends on: by site, and by log-factor if it has any.

    The second result holds the latent sites that the data of a site with log-factors depend on.
    """

    def densities(trace: Mapping[str, dict]) -> tuple[dict[str, Any], dict[str, Any]]:
        sources = collapsed_sites(trace)
        data = {name: jax.tree.leaves(value) for name, (_, value) in sources.items()}
        return data, {
            name: sources[name][0].log_factors(sources[name][1])
            if name in sources
            else {"": site_log_prob(site)}
            for name, site in trace.items()
            if site["type"] == "sample"
        }

    data, found = provenance(problem, densities)
    uses = {
        (site, factor or None): needed
        for site, factors in found.items()
        for factor, needed in factors.items()
    }
    return uses, {name: frozenset().union(*leaves) for name, leaves in data.items()}


def provenance(problem: Problem, numbers: Callable[[Mapping[str, dict]], Any]) -> Any:
    """Latent sites on which the results of a function of a trace depend, in the results' structure."""
    latent = latent_sites(abstract_trace(problem))
    values = {name: site["value"] for name, site in latent.items()}
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(jnp.shape(v), jnp.result_type(v)), values)
    with unchecked():
        return eval_provenance(lambda **params: numbers(trace_model(problem, params)), **shapes)


def block_of(trace: Mapping[str, dict], part: Part) -> Any:
    """Return the block in a trace, with the values that its prior has there.

    Blocks of `Plan.parts` are `Updatable`; in a plan from `drawable`, they are also `Drawable`.
    """
    return trace[next(iter(part.sites.values()))]["infer"]["block"]


def sources_of(trace: Mapping[str, dict], part: Part) -> list[Collapsed]:
    """Return the distributions of the observed sites from which a block learns."""
    return [fn for fn, _ in collapsed_sites({n: trace[n] for n in part.sources}).values()]


def observations(
    trace: Mapping[str, dict], part: Part, posterior: Mapping[str, Any]
) -> list[Observation]:
    """Return the observations of a block at its observed sites, given expected or drawn latent variables."""
    sources = collapsed_sites({name: trace[name] for name in part.sources})
    return [Observation(*sources[name], posterior[name]) for name in part.sources]


def closed_forms(
    problem: Problem,
    plan: Plan,
    params: Mapping[str, Array],
    args: tuple,
    posterior: Mapping[str, Any],
    pick: Callable[[int, Any, Any, dict[str, Array]], dict[str, Array]],
) -> dict[str, Array]:
    """Update the sites of all blocks, one block after another.

    Parameters
    ----------
    problem, plan, params, args
    posterior : mapping
        As from `expectation` or `drawn`.
    pick : callable
        ``pick(number, block, found, values) -> values``: mode or draw from the result of `Updatable.update`.
    """

    def found(number: int, trace: Mapping[str, dict], block: Updatable) -> Any:
        return update_of(block, observations(trace, plan.parts[number], posterior))

    return updated(problem, plan, params, args, found, pick)


def updated(
    problem: Problem,
    plan: Plan,
    params: Mapping[str, Array],
    args: tuple,
    find: Callable[[int, Mapping[str, dict], Updatable], Any],
    pick: Callable[[int, Any, Any, dict[str, Array]], dict[str, Array]],
) -> dict[str, Array]:
    """Do as `closed_forms`, with ``find(number, trace, block)`` for the result of `Updatable.update`."""
    params, trace = dict(params), {}
    for number, part in enumerate(plan.parts):
        if part.chained or not number:
            trace = trace_model(problem, params, args)
        block = block_of(trace, part)
        params |= part.named(pick(number, block, find(number, trace, block), part.values(params)))
    return params


def maximised(
    number: int, block: Updatable, found: Any, values: dict[str, Array]
) -> dict[str, Array]:
    """Return the mode; a `pick` for `closed_forms`."""
    return block.mode(found, values)


def update_of(block: Updatable, given: list[Observation]) -> Any:
    """Return what `Updatable.update` finds from the observations of all sites that the block learns from."""
    return block.update(pooled([block.statistics(one) for one in given]), [g.fn for g in given])


def pooled(statistics: list[Any]) -> Any:
    """Add up statistics of several sites or batches."""
    return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *statistics)


def drawable(plan: Plan, problem: Problem) -> Plan:
    """Return the plan with only those blocks that have a full conditional to draw from.

    Raises
    ------
    ValueError
        If the prior of a block leads to an improper posterior.
    """
    trace = abstract_trace(problem)
    parts, rest, lacking = [], list(plan.rest), list(plan.lacking)
    for part in plan.parts:
        block = block_of(trace, part)
        improper = block.improper() if isinstance(block, Improper) else None
        if improper is not None:
            raise ValueError(improper)
        reason = None
        if isinstance(block, Obstructed):
            reason = block.obstacle(sources_of(trace, part))
        if reason is None and not isinstance(block, Drawable):
            reason = f"the update of {listed(part.sites.values())} is no full conditional"
        if reason is None:
            parts.append(part)
        else:
            rest += part.sites.values()
            lacking.append(reason)
    return Plan(tuple(parts), tuple(rest), tuple(lacking), {})


def refuse_restricted(problem: Problem) -> None:
    """Refuse to draw sites that describe a restricted posterior of others: they have none of their own."""
    names = restricted_sites(problem)
    if names:
        raise ValueError(
            f"{listed(names)} describe a restricted posterior and have none of their own to draw from; fit "
            "by engine='em' or 'map', or sum out exactly, where the model can (posterior='exact')"
        )


def is_ours(problem: Problem) -> bool:
    """Return whether the model belongs to the library, whose use of its blocks is tested."""
    module = getattr(model_of(problem), "__module__", None)
    return isinstance(module, str) and module.startswith("sidebayes.models")


def is_own(block: Any) -> bool:
    """Return whether the class of a block is a user's own; those of the library are tested."""
    return not type(block).__module__.startswith("sidebayes.models")


def degenerate(problem: Problem, params: Mapping[str, np.ndarray]) -> tuple[int, str] | None:
    """Return the first collapsed cluster that a block reports, and a description of what happened."""
    for block, sites in declared_blocks(abstract_trace(problem)):
        if isinstance(block, Collapsible):
            found = block.degenerate({role: params[name] for role, name in sites.items()})
            if found is not None:
                return found
    return None


def doubted(
    problem: Problem, modes: Sequence[Mapping[str, np.ndarray]], sound: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return the nats that blocks leave out of the log density of modes, and where they lie; see `Doubting`.

    They are finite for some of the `sound` modes; others are not looked at.
    """
    found = [
        _doubted(problem, mode) if ok else (0.0, "") for mode, ok in zip(modes, sound, strict=True)
    ]
    nats = np.array([own for own, _ in found])
    if np.isinf(nats[sound]).all():
        nats = np.zeros(len(nats))
    return nats, [where for _, where in found]


def _doubted(problem: Problem, mode: Mapping[str, np.ndarray]) -> tuple[float, str]:
    nats, where = 0.0, ""
    for part in plan_updates(problem).starting:
        block = block_of(abstract_trace(problem), part)
        if isinstance(block, Doubting):
            values = {role: mode[name] for role, name in part.sites.items()}
            tables = [observed_table(problem, name) for name in part.sources]
            for found in filter(None, (block.doubts(values, one) for one in tables or [None])):
                nats, where = nats + found[0], found[1]
    return nats, where
