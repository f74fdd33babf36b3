"""Factors of blocks, points of all other sites, and the bound that coordinate ascent increases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from sidebayes.models.blocks.block import Block, Factored, FollowsPoints, HasMeans, Observation
from sidebayes.models.blocks.collapsed import Collapsed

from ..base import Problem
from ..plumbing.programs import compiled
from ..problem.declared import collapsed_sites
from ..problem.density import abstract_trace, site_log_prob, trace_model
from ..steps.surrogate import climb, expectation, inner, slope_at
from ..steps.updates import (
    Part,
    Plan,
    block_of,
    drawable,
    is_ours,
    listed,
    observations,
    plan_updates,
    pooled,
    provenance,
)

__all__ = ["NORMALIZER", "FactoredModel", "check_factors", "entries_of", "plan_factors"]

NORMALIZER = "log_normalizer"
"""Key of a distribution's normaliser among its log-factors."""

_TOLERANCE = 1e-4
"""Relative difference between a factor and the model's density that is put down to rounding."""


def plan_factors(problem: Problem) -> Plan:
    """Plan which blocks have a factor; all other sites are points.

    Given points, a block has an exact factor where its update is the full conditional, and no other sites
    enter its log-factor of the observed sites, or their normaliser if its sites do; points that the block
    follows may. The expected log joint density is then exact: it is linear in the log-factors, which are
    either a block's, with known expectation, or depend only on points.

    Raises
    ------
    ValueError
        If no block has a factor, for reasons that the message gives, or an observed site has a scale.
    """
    trace = abstract_trace(problem)
    scaled = [name for name in collapsed_sites(trace) if trace[name].get("scale") is not None]
    if scaled:
        raise ValueError(
            f"CoordinateAscent: observed sites {scaled} are under a scale, so that their latent "
            "variables have no posterior; take it away, or use 'map' or 'nuts'"
        )
    plan = drawable(plan_updates(problem), problem)
    entered = provenance(problem, _entries)
    parts, rest, lacking = [], list(plan.rest), list(plan.lacking)
    for part in plan.parts:
        reason = _no_factor(block_of(trace, part), part, entered, set(plan.rest))
        if reason is None:
            parts.append(part)
        else:
            rest += part.sites.values()
            lacking.append(reason)
    if not parts:
        raise ValueError(
            f"CoordinateAscent: no site has a factor ({'; '.join(lacking)}), and points alone are a "
            "mode: use 'em' or 'map' for that, 'nuts' for draws"
        )
    return Plan(tuple(parts), tuple(rest), tuple(lacking), {})


def _entries(trace: Mapping[str, dict]) -> dict[str, dict[str, Array]]:
    """Return log-factors and normaliser of every observed site."""
    return {name: entries_of(*site) for name, site in collapsed_sites(trace).items()}


def entries_of(fn: Collapsed, value: Any) -> dict[str, Array]:
    """Return log-factors of an observed site, and its normaliser."""
    return fn.log_factors(value) | {NORMALIZER: fn.log_normalizer()}


def _no_factor(
    block: Block, part: Part, entered: Mapping[str, Any], points: set[str]
) -> str | None:
    """Say why a block has no exact factor; None if it has one. `points` are sites known to have none."""
    own = set(part.sites.values())
    if not isinstance(block, Factored):
        return f"the block of {listed(own)} has no expected factors"
    follows = isinstance(block, FollowsPoints)
    for source in part.sources:
        for factor in (*block.factors, NORMALIZER):
            needed = set(entered[source].get(factor, ()))
            others = needed - own
            if own & needed and others and not (follows and others <= points):
                return f"{listed(own)} enter {factor} of {source} together with {listed(others)}"
    return None


class FactoredModel:
    """A model whose blocks have factors and whose other sites are points.

    Parameters
    ----------
    problem : Problem
    plan : Plan
        Plan from `plan_factors`.
    params : mapping
        Values of all latent sites: points, and any values of the sites of blocks, which expectations
        replace.
    args : tuple
    """

    def __init__(
        self, problem: Problem, plan: Plan, params: Mapping[str, Array], args: tuple
    ) -> None:
        self._problem, self._plan, self._params, self._args = problem, plan, params, args
        self._trace = trace_model(problem, params, args)

    @property
    def points(self) -> dict[str, Array]:
        """Return the values of the sites that have no factor."""
        return {name: self._params[name] for name in self._plan.rest}

    @property
    def is_followed(self) -> bool:
        """Whether factors depend on the points, so that they are updated after these have moved."""
        blocks = (block_of(self._trace, part) for part in self._plan.parts)
        return bool(self._plan.rest) and any(isinstance(block, FollowsPoints) for block in blocks)

    def update(self, posterior: Mapping[str, Any]) -> tuple:
        """Return the best factor of every block given expected latent variables."""
        return tuple(_update(self._trace, part, posterior) for part in self._plan.parts)

    def bound(self, found: tuple) -> tuple[Array, dict[str, Any]]:
        """Return the lower bound with the best factor of the latent variables, and its gradients."""
        total, posterior = _apart(self._plan, found, self._trace), {}
        for name, (fn, at_points, expected) in _sources(self._plan, found, self._trace).items():
            factors = at_points | expected
            normalizer = factors.pop(NORMALIZER)
            log_z, posterior[name] = jax.value_and_grad(fn.log_partition)(factors)
            total = total + log_z - normalizer
        return total, posterior

    def climb(self, found: tuple, posterior: Mapping[str, Any], num_steps: int) -> dict[str, Array]:
        """Return points after L-BFGS steps up the expected log joint density, which never decreases.

        Factors that follow the points must then be updated by `update`.
        """
        if not self._plan.rest:
            return {}
        objective = partial(_of_points, self._plan, found, posterior)
        moved = climb(
            self._problem, self._params, self._args, objective, num_steps, self._plan.rest
        )
        return {name: moved[name] for name in self._plan.rest}

    def slope_at(self, found: tuple, point: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradient of the expected log joint density at a vector of coordinates of the points."""
        _, posterior = self.bound(found)
        objective = partial(_of_points, self._plan, found, posterior)
        return slope_at(self._problem, self._params, self._args, objective, self._plan.rest, point)

    def draw(self, rng_key: Array, found: tuple) -> tuple[dict[str, Array], Array]:
        """Draw sites from the factors; return them together with the points, and their log density."""
        params = self.points
        log_q = jnp.zeros(())
        keys = jax.random.split(rng_key, len(found))
        for part, factor, key in zip(self._plan.parts, found, keys, strict=True):
            block = block_of(self._trace, part)
            values = block.draw(key, factor)
            log_q = log_q + block.log_density(factor, values)
            params |= part.named(values)
        return params, log_q

    def means(self, found: tuple) -> dict[str, Array]:
        """Return means of sites under their factors, where blocks provide them."""
        known: dict[str, Array] = {}
        for part, factor in zip(self._plan.parts, found, strict=True):
            block = block_of(self._trace, part)
            if isinstance(block, HasMeans):
                known |= part.named(block.means(factor))
        return known


def _update(trace: Mapping[str, dict], part: Part, posterior: Mapping[str, Any]) -> Any:
    block, given = block_of(trace, part), observations(trace, part, posterior)
    statistics = pooled([block.statistics(one) for one in given])
    return block.update(statistics, [one.fn for one in given])


def _sources(
    plan: Plan, found: tuple, trace: Mapping[str, dict]
) -> dict[str, tuple[Collapsed, dict[str, Array], dict[str, Array]]]:
    """For every observed site, return its distribution, its log-factors, and expectations by blocks.

    The normaliser is one of the log-factors.
    """
    out = {}
    entries = _entries(trace)
    for name, (fn, value) in collapsed_sites(trace).items():
        expected: dict[str, Array] = {}
        for part, factor in zip(plan.parts, found, strict=True):
            if name in part.sources:
                given = Observation(fn, value, {})
                expected |= block_of(trace, part).expected_factors(factor, given)
        out[name] = fn, entries[name], expected
    return out


def _apart(plan: Plan, found: tuple, trace: Mapping[str, dict]) -> Array:
    """Terms of the bound beside those of observed sites: densities of points, less divergences of factors."""
    inside = {name for part in plan.parts for name in part.sites.values()}
    inside |= set(collapsed_sites(trace))
    plain = [
        site_log_prob(site)
        for name, site in trace.items()
        if site["type"] == "sample" and name not in inside
    ]
    parts = zip(plan.parts, found, strict=True)
    cost = [block_of(trace, part).divergence(factor) for part, factor in parts]
    return sum(plain, start=jnp.zeros(())) - sum(cost, start=jnp.zeros(()))


def _of_points(
    plan: Plan, found: tuple, posterior: Mapping[str, Any], trace: Mapping[str, dict]
) -> Array:
    """Expected log joint density as a function of the points of a trace, up to a constant.

    Factors that follow the points are the best ones given the points: the objective is the bound with these
    maximised out. The bound has no gradient in a factor that is best, so none is computed.
    """
    blocks = [block_of(trace, part) for part in plan.parts]
    follows = [isinstance(block, FollowsPoints) for block in blocks]
    follow = {f for block, one in zip(blocks, follows, strict=True) if one for f in block.factors}
    found = tuple(
        jax.lax.stop_gradient(_update(trace, part, posterior)) if one else factor
        for part, one, factor in zip(plan.parts, follows, found, strict=True)
    )
    total = _apart(plan, found, trace)
    for name, (_, at_points, expected) in _sources(plan, found, trace).items():
        moving = {key: value for key, value in at_points.items() if key not in expected}
        moving |= {key: value for key, value in expected.items() if key in follow}
        normalizer = moving.pop(NORMALIZER, jnp.zeros(()))
        slope = {key: posterior[name][key] for key in moving}
        total = total + inner(slope, moving) - normalizer
    return total


def check_factors(problem: Problem, plan: Plan, params: Mapping[str, Any]) -> None:
    r"""Compare expected factors and divergences with the density of a user's model.

    At a conjugate update :math:`\log q = \log p + \langle s, L\rangle - C` for all values of the sites,
    so that :math:`\mathrm{KL} = \langle s, E_q L\rangle - C`.

    Raises
    ------
    ValueError
        The message names the sites whose factor contradicts the density.
    """
    if is_ours(problem):
        return

    def build(bare: Problem) -> Callable:
        def differences(params: dict[str, Array], args: tuple) -> list[Array]:
            _, posterior = expectation(bare, params, args)
            trace = trace_model(bare, params, args)
            return [_difference(trace, part, posterior) for part in plan.parts]

        return differences

    inputs = {name: jnp.asarray(value) for name, value in params.items()}, problem.args
    sites = tuple(tuple(part.sites.values()) for part in plan.parts)
    program, _ = compiled("factors", problem, sites, build, *inputs, once=True)
    for part, difference in zip(plan.parts, program(*inputs), strict=True):
        if not abs(float(difference)) <= _TOLERANCE:
            raise ValueError(
                f"the factor of {listed(part.sites.values())} contradicts the model's density (by "
                f"{float(difference):.3g}): its expected factors or its divergence are not those of "
                "these sites as the model uses them. Pass the sites on unchanged, or sample them "
                "without a block"
            )


def _difference(trace: Mapping[str, dict], part: Part, posterior: Mapping[str, Any]) -> Array:
    """Relative difference of a factor's divergence from the one by its density and expected log-factors."""
    block, entries = block_of(trace, part), _entries(trace)
    found = _update(trace, part, posterior)
    values = {role: trace[name]["value"] for role, name in part.sites.items()}
    prior = sum(site_log_prob(trace[name]) for name in part.sites.values())
    claimed, due = block.divergence(found), block.log_density(found, values) - prior
    size = 1 + jnp.abs(claimed) + jnp.abs(due)
    for name, given in zip(part.sources, observations(trace, part, posterior), strict=True):
        slope = {**posterior[name], NORMALIZER: -1.0}
        for factor, expected in block.expected_factors(found, given).items():
            rise = inner(slope[factor], expected - entries[name][factor])
            due, size = due + rise, size + jnp.abs(rise)
    return (claimed - due) / size
