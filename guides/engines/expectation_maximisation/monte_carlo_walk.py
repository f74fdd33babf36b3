"""A run of Monte-Carlo EM: steps of the parameters, and chains that sample other sites given them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from ..base import FitError, Problem
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..problem.causes import explain_nonfinite
from ..problem.density import place, sum_log_prob, unconstrained_start
from ..problem.units import Layout, lay_out_units, log_joint_by_unit
from ..samplers.chains import recording
from ..samplers.hamiltonian.transitions import nuts_given
from ..samplers.hamiltonian.unit_hmc import adapted, unit_hmc
from ..steps.starts import random_keys
from ..steps.updates import Plan
from .monte_carlo_steps import maximise, moved, score

__all__ = ["Gain", "Walk", "hidden_rise", "left_to_rise"]

_ROUGH = 0.5
"""Standard deviation of the first draws about rough rows, relative to that of these rows."""

_PIECE = 50
"""Maximum number of transitions that one call records."""

_TOGETHER = 4
"""Minimum number of steps whose rises are judged together; later, the share of all steps is a quarter."""


class Gain(NamedTuple):
    """Estimated rise of the surrogate in a step, its Monte Carlo standard error, and the number of draws."""

    mean: float
    error: float
    num_draws: int = 0


def _together(gains: Sequence[Gain]) -> int:
    """Return how many steps are judged together: slowly decreasing rises need more steps to be detected."""
    return max(_TOGETHER, len(gains) // _TOGETHER)


def _summed(gains: Sequence[Gain]) -> Gain:
    """Return the total rise of several steps, with the smallest number of draws of any."""
    mean, error, count = zip(*gains, strict=True)
    return Gain(sum(mean), math.hypot(*error), min(count))


def left_to_rise(gains: Sequence[Gain], confidence: float) -> float:
    r"""Return the remaining rise of the log density, in nats, after some steps; infinite if it is unknown.

    Near a mode, the distance from it falls by a factor r in every step of EM. Rises g of the surrogate then
    fall by :math:`r^2`, and the remaining rise after a step is :math:`g r^2 / (1 - r)`. Both r and g are
    those of the last steps, with `confidence` standard errors added to their rise.
    """
    number = min(_together(gains), len(gains) // 2)
    if not number:
        return math.inf
    before, last = _summed(gains[-2 * number : -number]), _summed(gains[-number:])
    most = max(last.mean, 0.0) + confidence * last.error
    if most == 0:
        return 0.0
    ratio = (most / before.mean) ** (1 / number) if most < before.mean else 1.0
    return most / number * ratio / (1 - math.sqrt(ratio)) if ratio < 1 else math.inf


def hidden_rise(gains: Sequence[Gain], confidence: float, count: int) -> float | None:
    """Rise of a step that Monte Carlo error hides; None unless the last, of `count` draws, show none."""
    number = _together(gains)
    if len(gains) < number:
        return None
    last = _summed(gains[-number:])
    error = confidence * last.error
    if last.num_draws < count or last.mean > error:
        return None
    # draws that do not enter a step lose by it what it gained by fitting the noise of others
    return (abs(last.mean) + error) / number


class Settings(Protocol):
    """The options of its engine that a run reads; see `MonteCarloEM`."""

    def __hash__(self) -> int: ...
    @property
    def sampled(self) -> tuple[str, ...]: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def num_chains(self) -> int: ...
    @property
    def num_warmup(self) -> int: ...
    @property
    def kernel(self) -> str: ...
    @property
    def num_leapfrog(self) -> int: ...
    @property
    def num_inner_steps(self) -> int: ...


class Walk:
    """State of a run, with its parameters and chains, and the operations on it.

    Attributes
    ----------
    theta : dict of Array
        The sites that are maximised.
    count : int
        Number of draws of a step.
    gains : list of Gain
        Rise of the surrogate in every step.
    settled : bool
        Whether the remaining rise is small, or no rise is detected.
    num_newton : int
        Number of Newton steps taken afterwards.
    is_singular : bool
        Whether the next Newton step could not be taken.
    moved : dict of ndarray
        Parameters to which each batch alone would have led in the last Newton step.

    Raises
    ------
    FitError
        If the log density is not finite at the start.
    """

    def __init__(
        self,
        config: Settings,
        problem: Problem,
        plan: Plan,
        start: Mapping[str, Any],
        seed: int,
        clock: Clock,
        layout: Layout | None = None,
    ) -> None:
        self.config, self.problem, self.plan, self.clock = config, problem, plan, clock
        self.theta = {n: jnp.asarray(v) for n, v in start.items() if n not in config.sampled}
        self.count = config.num_samples
        self.gains: list[Gain] = []
        self.settled, self.num_newton, self.is_singular = False, 0, False
        self.moved: dict[str, NDArray] = {n: np.zeros(0) for n in self.theta}
        self._programs: dict[Any, Callable] = {}
        self._units: tuple = ()
        """Owners of terms and rows, for a sampler of a single site with a row per individual."""
        if config.kernel == "hmc":
            self._layout = lay_out_units(problem) if layout is None else layout
            (site,) = config.sampled
            dim = str(self._layout.site_dims[site])
            self._units = self._layout.owners, self._layout.unit[dim]
        keys = random_keys(seed, config.num_chains)
        first = {n: jnp.asarray(start[n]) for n in config.sampled}
        inputs = keys, first, self.theta, problem.args, self._units
        begin = self.compiled("mcem-begin", self._begin, *inputs)
        self._chains, energy, others = begin(*inputs)
        if not np.isfinite(energy).all():
            point = {name: np.asarray(value) for name, value in start.items()}
            blame = explain_nonfinite(problem, point) or "its value is not a number"
            raise FitError(
                f"MonteCarloEM: the log density is not finite at the start ({blame})", point
            )

        if not np.isclose(others, 0.0, atol=1e-6 * (1 + abs(float(energy)))):
            raise ValueError(
                "MonteCarloEM(kernel='hmc'): the log density is no sum over individuals, as some "
                f"term joins them ({float(others):.3g} nats at the start); use kernel='nuts'"
            )

    @property
    def state(self) -> tuple:
        """Everything that is needed to continue a run, as a pytree of arrays."""
        counts = np.asarray([self.count, self.settled, self.num_newton, self.is_singular])
        gains = np.asarray(self.gains, float).reshape(-1, len(Gain._fields))
        return self.theta, self._chains, self.moved, gains, counts

    def resume(self, state: tuple) -> None:
        """Go on from a `state`."""
        self.theta, self._chains, self.moved, gains, counts = state
        self.gains = [Gain(mean, error, int(number)) for mean, error, number in gains.tolist()]
        self.count, settled, self.num_newton, singular = counts.tolist()
        self.settled, self.is_singular = bool(settled), bool(singular)

    def compiled(self, name: str, build: Callable, *inputs: Any) -> Callable:
        """Return the program for inputs of these shapes; the clock counts the time of compilation."""
        # results of a program may differ from its inputs in their device, not in shape
        key = name, tuple(map(jnp.shape, jax.tree.leaves(inputs)))
        if key not in self._programs:
            made = compiled(name, self.problem, self.config, build, *inputs)
            self._programs[key] = self.clock.counted(made)
        return self._programs[key]

    def draw(self, count: int) -> dict[str, NDArray]:
        """Draw the sampled sites given the others: unconstrained, shape (draw, ...), chain by chain."""
        each = -(-count // self.config.num_chains)
        inputs = self._chains, (self.problem.args, self.theta, *self._units), np.asarray(1)
        march = self.compiled("mcem-march", self._march, *inputs)
        pieces = []
        while each > 0:
            steps = min(each, _PIECE)
            self._chains, found = march(self._chains, inputs[1], np.asarray(steps))
            # by NumPy, as JAX would compile every length anew
            pieces.append({name: np.asarray(value)[:steps] for name, value in found.items()})
            each -= steps
        whole = {n: np.concatenate([piece[n] for piece in pieces]) for n in pieces[0]}
        draws = {n: v.swapaxes(0, 1).reshape(-1, *v.shape[2:]) for n, v in whole.items()}
        if self.config.kernel == "hmc":
            self._chains = adapted(self._chains, draws, self.config.num_chains)
        return draws

    def step_from_start(self) -> None:
        """Maximise at draws about the rough rows of individuals, so that these lie near their own groups.

        Variances from the few rows alone would be near zero, from where they grow slowly.
        """
        each = -(-self.count // self.config.num_chains)
        rng = np.random.default_rng(0)

        def spread(rows: Array) -> NDArray:
            whole = np.repeat(np.asarray(rows), each, axis=0)
            deviation = np.sqrt(np.square(rows[0] - rows[0].mean(axis=0)).mean())
            return whole + _ROUGH * float(deviation) * rng.normal(size=whole.shape)

        self.theta, _ = self.maximise({n: spread(rows) for n, rows in self._chains.z.items()})

    def joined(self, draws: dict[str, NDArray], more: dict[str, NDArray]) -> dict[str, NDArray]:
        """Join two sets of draws, chain by chain."""
        chains = self.config.num_chains

        def one(*both: NDArray) -> NDArray:
            parts = [values.reshape(chains, -1, *values.shape[1:]) for values in both]
            whole = np.concatenate(parts, axis=1)
            return whole.reshape(-1, *whole.shape[2:])

        return jax.tree.map(one, draws, more)

    def maximise(self, draws: dict[str, NDArray]) -> tuple[dict[str, Array], Gain]:
        """Return the parameters that maximise the surrogate of some draws, and its rise.

        With rows per individual, there are as many parameters as latent numbers of an individual, and they
        also fit the noise of draws. The rise is then computed at draws that do not enter the step.
        """
        others, count = draws, len(next(iter(draws.values())))
        if self.config.kernel == "hmc":
            draws, others = self._halves(draws)
        inputs = draws, others, self.theta, self.problem.args
        build = partial(maximise, self.plan, self.config.num_inner_steps)
        theta, rise = self.compiled("mcem-maximise", build, *inputs)(*inputs)
        chains = np.asarray(rise).reshape(self.config.num_chains, -1)
        spread, ess = chains.std(), float(chains.size)
        if spread > 0 and chains.shape[1] >= 4:
            from arviz_stats.base import array_stats

            ess = max(float(array_stats.ess(chains, chain_axis=0, draw_axis=1)), 1.0)
        error = float(spread / np.sqrt(min(ess, chains.size)))
        return theta, Gain(float(chains.mean()), error, count)

    def _halves(self, draws: dict[str, NDArray]) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Return the earlier and the later half of the draws of each chain, equal in number."""
        chains = self.config.num_chains

        def part(values: NDArray, late: bool) -> NDArray:
            whole = values.reshape(chains, -1, *values.shape[1:])
            half = whole.shape[1] // 2
            piece = whole[:, -half:] if late else whole[:, :half]
            return piece.reshape(-1, *values.shape[1:])

        early, late = (
            {name: part(values, late) for name, values in draws.items()} for late in (False, True)
        )
        return early, late

    def newton(self, num_batches: int, advance: Callable[[int, str], None]) -> None:
        """Take a Newton step, unless the observed information is singular."""
        batches = []
        for _ in range(num_batches):
            inputs = self.draw(self.count), self.theta, self.problem.args
            batches.append(self.compiled("mcem-score", score, *inputs)(*inputs))
            advance(1, "last steps")
        scores, bend, square = (np.stack(part) for part in zip(*batches, strict=True))
        mean = scores.mean(axis=0)
        information = -bend.mean(axis=0) - square.mean(axis=0) + np.outer(mean, mean)
        if not np.isfinite(information).all() or np.linalg.eigvalsh(information)[0] <= 0:
            self.is_singular = True
            return
        steps = np.linalg.solve(information, np.vstack([mean, scores]).T).T
        first = {name: value[0] for name, value in inputs[0].items()}
        given = np.clip(steps, -1.0, 1.0), first, *inputs[1:]
        found = self.compiled("mcem-moved", moved, *given)(*given)
        found = {name: np.asarray(value) for name, value in found.items()}
        self.theta = {name: jnp.asarray(value[0]) for name, value in found.items()}
        self.moved = {name: value[1:] for name, value in found.items()}
        self.num_newton += 1

    def _kernel(self, problem: Problem) -> tuple[Callable, Callable]:
        """Make the sampler of the sampled sites given the parameters."""
        if self.config.kernel == "hmc":
            return unit_hmc(partial(_energies, problem, self._layout), self.config.num_leapfrog)

        def potential(args: tuple, theta: dict) -> Callable[[dict], Array]:
            return partial(_energy, problem, args, theta)

        return nuts_given(potential, self.config.num_warmup)

    def _begin(self, problem: Problem) -> Callable:
        ready, _ = self._kernel(problem)

        def begin(
            keys: Array, first: dict, theta: dict, args: tuple, units: tuple
        ) -> tuple[Any, Array, Array]:
            free = unconstrained_start(problem, {**theta, **first}, args, tuple(first))
            states = jax.vmap(partial(ready, free))(jax.random.wrap_key_data(keys))
            energy = _energy(problem, args, theta, free)
            if not units:
                return states, energy, jnp.zeros(())
            moved = jax.tree.map(lambda rows: 0.99 * rows + 1e-3, free)
            by_unit = _energies(problem, self._layout, args, theta, units[0])
            change = _energy(problem, args, theta, moved) - energy
            return states, energy, change - (by_unit(moved) - by_unit(free)).sum()

        return begin

    def _march(self, problem: Problem) -> Callable:
        _, move = self._kernel(problem)

        def transition(state: Any, inputs: tuple) -> tuple[Any, dict[str, Array]]:
            state = move(state, inputs)
            return state, state.z

        return recording(transition)


def _energies(
    problem: Problem, layout: Layout, args: tuple, theta: dict, owners: dict
) -> Callable[[dict], Array]:
    """Return the negative log joint density of the sampled site by unit."""

    def at(free: dict[str, Array]) -> Array:
        trace, _ = place(problem, free, args, theta)
        return -log_joint_by_unit(trace, layout, owners, *free)

    return at


def _energy(problem: Problem, args: tuple, theta: dict, free: dict[str, Array]) -> Array:
    """Return the negative log joint density of the unconstrained sampled sites, given the parameters."""
    trace, log_det = place(problem, free, args, theta)
    return -sum_log_prob(trace) - log_det
