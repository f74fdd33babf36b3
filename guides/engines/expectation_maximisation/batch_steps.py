"""E-step of a batch of points and M-step of all points, by additive statistics of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.block import Batched, Observation, OnePassOfBatches, Updatable
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from ..base import Problem
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..problem.declared import collapsed_sites
from ..problem.density import deterministics, site_log_prob, trace_model
from ..steps.climbs import allowance, at_rest
from ..steps.updates import Plan, block_of, maximised, updated

__all__ = [
    "Passes",
    "after_pass",
    "blocks_given",
    "expect",
    "extrapolated",
    "log_densities",
    "maximise",
    "run_step",
    "tied_mixture",
]

_FARTHER = 4.0
"""Factor between the lengths of extrapolated steps."""

_LOW = np.asarray(-np.inf)


def expect(
    problem: Problem,
    plan: Plan,
    params: dict[str, Array],
    args: tuple,
    graph: LabelGraph,
    centre: Array,
    covariance: Array,
) -> tuple[Array, Array, tuple, dict[str, Array]]:
    """Return log likelihood of a batch, log prior, expected statistics, and other sites.

    Parameters
    ----------
    problem, plan, params
    args : tuple
        The rows of the batch.
    graph : LabelGraph
        Links among the rows. It holds which points are spare, which a model without links does not know.
    centre, covariance : Array
        Mean and covariance of all data, for moments and for an empirical prior.
    """
    trace = trace_model(problem, params, args)
    name, fn, value = tied_mixture(trace, graph)
    blocks, new = blocks_given(plan, trace, centre, covariance)
    passing = trace[plan.one_pass[name]]["infer"]["block"] if name in plan.one_pass else None
    if isinstance(passing, OnePassOfBatches) and passing.has_one_pass(fn):
        log_z, slope = passing.batch_pass(fn, value, graph.node_size.sum())
    else:
        log_z, slope = jax.value_and_grad(fn.log_partition)(fn.log_factors(value))
    statistics = tuple(block.statistics(Observation(fn, value, slope)) for block in blocks)
    log_prior = _log_prior(plan, params, trace, name, blocks, new, statistics)
    return log_z - fn.log_normalizer(), log_prior, statistics, deterministics(trace)


def log_densities(
    problem: Problem,
    plan: Plan,
    params: dict[str, Array],
    args: tuple,
    graph: LabelGraph,
    centre: Array,
    covariance: Array,
) -> tuple[Array, Array]:
    """Return log likelihood of a batch, and log prior; see `expect`."""
    trace = trace_model(problem, params, args)
    name, fn, value = tied_mixture(trace, graph)
    blocks, new = blocks_given(plan, trace, centre, covariance)
    nothing = Observation(fn, value, jax.tree.map(jnp.zeros_like, fn.log_factors(value)))
    statistics = tuple(block.statistics(nothing) for block in blocks)
    scale = trace[name].get("scale")
    log_likelihood = (1.0 if scale is None else scale) * fn.log_prob(value)
    return log_likelihood, _log_prior(plan, params, trace, name, blocks, new, statistics)


def _log_prior(
    plan: Plan,
    params: dict[str, Array],
    trace: Mapping[str, dict],
    observed: str,
    blocks: list[Any],
    new: list[bool],
    statistics: tuple,
) -> Array:
    """Log density of all sites but the observed mixture; only the shapes of `statistics` matter."""
    total, done = jnp.zeros(()), {observed}
    for part, block, is_new, own in zip(plan.parts, blocks, new, statistics, strict=True):
        if is_new:
            nothing = block.update(jax.tree.map(jnp.zeros_like, own), ())
            total = total + block.log_density(nothing, part.values(params))
            done |= set(part.sites.values())
    for name, site in trace.items():
        if site["type"] == "sample" and name not in done:
            total = total + site_log_prob(site)
    return total


def tied_mixture(trace: Mapping[str, dict], graph: LabelGraph) -> tuple[str, FiniteMixture, Any]:
    """Return the name of a batch's observed mixture, the mixture with the batch's links, and its data."""
    ((name, (found, value)),) = collapsed_sites(trace).items()
    assert isinstance(found, FiniteMixture)  # other models are refused earlier
    return name, found.tied_by(graph), value


def blocks_given(
    plan: Plan, trace: Mapping[str, dict], centre: Array, covariance: Array
) -> tuple[list[Any], list[bool]]:
    """Return blocks given the mean and covariance of all data, and whether each has another prior by them."""
    blocks = [block_of(trace, part) for part in plan.parts]
    new = [isinstance(one, Batched) and one.given_moments(centre, covariance) for one in blocks]
    return blocks, new


def maximise(
    problem: Problem,
    plan: Plan,
    params: dict[str, Array],
    statistics: tuple,
    linked: tuple,
    centre: Array,
    covariance: Array,
) -> dict[str, Array]:
    """Return the modes of all blocks, given statistics of all the data.

    `linked` are data of which only the links count: blank rows for the points that have links.
    """

    def found(number: int, trace: Mapping[str, dict], block: Updatable) -> Any:
        if isinstance(block, Batched):
            block.given_moments(centre, covariance)
        sources = [fn for fn, _ in collapsed_sites(trace).values()]
        return block.update(statistics[number], sources)

    return updated(problem, plan, params, linked, found, maximised)


class Passes(NamedTuple):
    """State of EM by passes over all rows, as arrays on the host.

    Attributes
    ----------
    number : ndarray of int, shape ()
        Number of passes; -1 before EM takes over from the epochs.
    earlier, latest : tuple
        Statistics that preceded those of the parameters, and those of the last pass.
    value, gain : ndarray, shape ()
        Log joint at the last pass, minus infinity if no plain step led on from there; and its gain by a plain
        step, or infinity.
    least : ndarray, shape ()
        Log joint that an extrapolated step has to reach.
    reach : ndarray, shape ()
        Maximum length of extrapolated steps, in plain steps: four times the length of one that
        succeeds, a quarter of one that is taken back.
    best : dict of ndarray
        Parameters of the last pass that was kept, whose log joint is `highest`.
    settled : ndarray of bool, shape ()
    """

    number: NDArray
    earlier: tuple
    latest: tuple
    value: NDArray
    gain: NDArray
    least: NDArray
    reach: NDArray
    best: dict[str, NDArray]
    highest: NDArray
    settled: NDArray

    @classmethod
    def none(cls, start: dict[str, NDArray], zeros: tuple) -> Passes:
        """Return the state before EM takes over, with the shapes of parameters and statistics."""
        return cls(
            number=np.asarray(-1),
            earlier=zeros,
            latest=zeros,
            value=_LOW,
            gain=-_LOW,
            least=_LOW,
            reach=np.asarray(_FARTHER),
            best=start,
            highest=_LOW,
            settled=np.asarray(False),
        )


def after_pass(
    passes: Passes,
    params: dict[str, NDArray],
    statistics: tuple,
    latest: tuple,
    value: NDArray,
    tol: float,
) -> tuple[Passes, tuple, NDArray]:
    """Return the state after a pass, the statistics to go on with, and the log joint that stands.

    The gains of two plain steps in a row tell how much is left. The second is made only where the first
    has a small gain; elsewhere statistics are extrapolated, and taken back if the log joint falls.

    Parameters
    ----------
    passes
    params, statistics
        Parameters of the pass, and the statistics of which they are the mode.
    latest : tuple
        Sums of expected statistics over the pass.
    value : ndarray, shape ()
        Log joint at `params`.
    tol : float
        See `StochasticEM`.
    """
    passes = passes._replace(number=passes.number + 1)
    if not value >= passes.least:
        reach = np.maximum(passes.reach / _FARTHER**2, 1.0)  # it was raised before the step
        back = passes._replace(value=passes.least, least=_LOW, reach=reach)
        return back, passes.latest, passes.least
    plain = passes._replace(
        best=params, highest=value, least=_LOW, value=value, gain=-_LOW, earlier=statistics
    )
    if not np.isfinite(passes.value):
        return plain, latest, value
    now, last, before = map(jnp.asarray, (value, passes.value, passes.gain))
    settled, gain = map(np.asarray, at_rest(now, last, before, tol))
    plain = plain._replace(gain=gain, settled=settled)
    if settled or (abs(gain) <= allowance(now, tol) and not np.isfinite(passes.gain)):
        return plain, latest, value
    leap, length = extrapolated(passes.earlier, statistics, latest, float(passes.reach))
    reach = np.asarray(_FARTHER * length)
    return plain._replace(value=_LOW, least=value, reach=reach, latest=latest), leap, value


def extrapolated(first: tuple, second: tuple, third: tuple, reach: float) -> tuple[tuple, float]:
    """Return statistics extrapolated from three in a row of EM's, by a squared step, and its length.

    The length is that of scheme S3 of Varadhan and Roland, at least 1, which leads to the third, and at most
    `reach`. Differences are relative to the largest entry of an array.

    References
    ----------
    Varadhan and Roland (2008), Scand. J. Stat. 35, 335-353, doi:10.1111/j.1467-9469.2007.00585.x.
    """
    scale = jax.tree.map(lambda leaf: np.max(np.abs(leaf), initial=0.0) or 1.0, second)

    def length(step: tuple) -> float:
        squares = jax.tree.map(lambda leaf, size: np.square(leaf / size).sum(), step, scale)
        return float(np.sqrt(sum(jax.tree.leaves(squares))))

    step, last = (jax.tree.map(np.subtract, *ends) for ends in ((second, first), (third, second)))
    bend = jax.tree.map(np.subtract, last, step)
    times = min(max(length(step) / (length(bend) or np.inf), 1.0), reach)
    leap = jax.tree.map(lambda s, r, v: s + 2 * times * r + times**2 * v, first, step, bend)
    return leap, times


def run_step(
    name: str, step: Callable, problem: Problem, plan: Plan, clock: Clock, *inputs: Any
) -> Any:
    """Run ``step(problem, plan, *inputs)`` as a compiled program, and return its result on the host."""
    made = compiled(name, problem, None, lambda bare: partial(step, bare, plan), *inputs)
    program = clock.counted(made)
    return jax.tree.map(np.asarray, program(*inputs))
