"""Components of one class each: EM that changes the class of a component where that pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sidebayes.models.blocks.classes.class_mixture import ClassMixture
from sidebayes.models.blocks.classes.class_table import ClassTable

from .engines.base import Problem
from .engines.expectation_maximisation.em import EM, EMState
from .engines.plumbing.clock import Clock
from .engines.plumbing.programs import compiled
from .engines.problem.declared import collapsed_sites, declared_blocks
from .engines.problem.density import abstract_trace, trace_model
from .engines.steps.surrogate import expectation
from .engines.steps.updates import Plan

__all__ = ["HardClasses", "class_purity"]


@dataclass(frozen=True)
class HardClasses(EM):
    """EM for components that have one class each (MOE-hard); every class has a component.

    The class table is one of zeros and ones. After every M-step each component in turn takes the
    class under which the rows and their known classes are likeliest, unless a class would be left
    without a component. The likelihood with all labels summed out decides: EM's surrogate never
    favours a switch, since a row of another class has no share in the component.

    Parameters and starts are those of `EM`; the first classes are chosen by expected numbers of
    labelled rows. A flat prior of the table, ``class_concentration=1``, is assumed.

    References
    ----------
    Raghuram (2014), section 2.2.2.
    """

    name: ClassVar[str] = "hard_classes"
    corners: ClassVar[tuple[str, ...]] = ("class_table",)

    def _starts(
        self,
        problem: Problem,
        seed: int,
        init: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        clock: Clock,
    ) -> dict[str, NDArray]:
        starts = super()._starts(problem, seed, init, clock)
        name, observed = _class_table(problem)

        def build(bare: Problem) -> Callable:
            def one(start: dict[str, Array], args: tuple) -> Array:
                return expectation(bare, start, args)[1][observed]["log_classes"]

            return jax.vmap(one, in_axes=(0, None))

        given = starts, problem.args
        program = clock.counted(compiled("class-counts", problem, None, build, *given))
        counts = np.asarray(program(*given))
        return starts | {name: np.stack([_covering(one) for one in counts])}

    def _maximise(
        self, problem: Problem, plan: Plan, state: EMState, args: tuple
    ) -> dict[str, Array]:
        name, observed = _class_table(problem, trace_model(problem, state.params, args))
        new = super()._maximise(problem, plan, state, args) | {name: state.params[name]}
        site = trace_model(problem, new, args)[observed]
        return new | {name: _switched(site["fn"], site["value"])}


def _class_table(problem: Problem, trace: Mapping[str, dict] | None = None) -> tuple[str, str]:
    """Return the names of the class table's site and of the observed site with its classes.

    Raises
    ------
    ValueError
        If there is none, or there are fewer components than classes.
    """
    trace = abstract_trace(problem) if trace is None else trace
    tables = [s for block, s in declared_blocks(trace) if isinstance(block, ClassTable)]
    sources = {
        n: fn for n, (fn, _) in collapsed_sites(trace).items() if isinstance(fn, ClassMixture)
    }
    if not tables or not sources:
        raise ValueError("HardClasses needs a class table, such as that of 'moe'; use 'em'")
    observed, fn = next(iter(sources.items()))
    if fn.num_clusters < fn.num_classes:
        raise ValueError(
            f"HardClasses: {fn.num_clusters} components cannot have {fn.num_classes} classes, one each; "
            f"give it {fn.num_classes} components at least"
        )
    return next(iter(tables[0].values())), observed


def _covering(counts: NDArray) -> NDArray[np.float64]:
    """Return a table of one class per component, with every class at least once, by largest counts."""
    best = counts.argmax(axis=1)
    clusters, classes = linear_sum_assignment(-counts)
    best[clusters] = classes
    # logarithms of zero are not finite, even where a flat prior gives them no weight
    return np.maximum(np.eye(counts.shape[1])[best], np.finfo(float).tiny)


def _switched(fn: ClassMixture, value: Array) -> Array:
    """Return the class table after one turn of all components."""
    table = jnp.asarray(fn.classes)
    if fn.stated is None:
        return table
    factors = fn.log_factors(value)
    joint = factors["unary"] + factors["log_weights"]
    says = jnp.where(fn.is_told[:, None], fn.stated, 1.0)
    top = lax.stop_gradient(joint.max(axis=1, keepdims=True))
    density, floor = jnp.exp(joint - top), jnp.finfo(joint.dtype).tiny

    def turn(cluster: Array, table: Array) -> Array:
        others = (density * (says @ table.T)).at[:, cluster].set(0.0).sum(axis=1)
        total = others[:, None] + density[:, cluster, None] * says
        value = jnp.log(jnp.maximum(total, floor)).sum(axis=0)
        covered = table.at[cluster].set(0.0).sum(axis=0) > 0
        now = table[cluster].argmax()
        alone = ~covered[now]
        best = value.argmax()
        best = jnp.where(alone | (value[best] <= value[now]), now, best)
        return table.at[cluster].set(jax.nn.one_hot(best, table.shape[1], dtype=table.dtype))

    return jnp.maximum(lax.fori_loop(0, len(table), turn, table.round()), floor)


def class_purity(member: NDArray, classes: NDArray) -> float:
    """Average class purity of components (Raghuram 2014, eq. 2.3), between 1 / num_classes and 1.

    Parameters
    ----------
    member : ndarray, shape (num_points, num_clusters)
        Responsibilities.
    classes : ndarray of int, shape (num_points,)
        Class of every row.
    """
    kinds = np.unique(classes)[:, None] == classes
    return float((kinds @ member).max(axis=0).sum() / len(classes))
