"""EM that leaves out clusters and features without which the message is shorter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray
from sidebayes.models.blocks.saliency.saliency_mixture import OF_ONE_CLUSTER, RELEVANT

from sidebayes.common.fields import Count, NonNegative

from .engines.base import (
    KEEPS_NOTHING,
    Engine,
    EngineResult,
    FitError,
    Keeper,
    KeptEngine,
    Problem,
    Status,
)
from .engines.expectation_maximisation.em import EM
from .engines.plumbing.clock import Clock
from .engines.plumbing.programs import compiled
from .engines.plumbing.progress import progress_bar
from .engines.plumbing.side_by_side import one_member, run_each
from .engines.problem.declared import approximation, observed_table
from .engines.problem.density import trace_model
from .engines.problem.posterior import label_sites
from .engines.steps.climbs import (
    BROKEN,
    SETTLED,
    climbed,
    history_length,
    rounding_of,
    stop_code,
    until_stopped,
)
from .engines.steps.starts import initial_values, starting_point
from .feature_saliency_diagonal import Diagonal, all_used, number_of_clusters, that_ranks
from .feature_saliency_removals import Traced, simpler, worst_cluster
from .feature_saliency_starts import (
    at_known_rows,
    next_best,
    num_known,
    num_starts,
    some_rows,
    with_all_features,
)
from .feature_saliency_steps import Sites, Weighed

__all__ = ["ComponentwiseEM"]


_ROUNDING = 1e-12
"""Decrease of the objective, relative to its size, that is put down to rounding."""


_WORTH = 10.0
"""Number of steps whose gain a removal must exceed before parameters have settled."""

_BETWEEN = 8
"""Number of steps after which features are assessed before parameters have settled."""

_ROUGH, _STEPS = 1e-5, 300
"""Tolerance and maximum number of steps of the search in some of the rows."""

_ROWS = 50
"""Minimum number of rows per cluster of the start for that: with few rows, messages were sometimes longer."""


class _Search(NamedTuple):
    """State of a search from one start.

    While `held`, saliencies stay at one; `diagonal` is the result of that stage.
    """

    steps: Array
    params: dict[str, Array]
    last: dict[str, Array]
    plain: Array
    held: Array
    diagonal: Diagonal
    best: dict[str, Array]
    best_value: Array
    best_bic: Array
    value: Array
    structure: Array
    code: Array
    history: Array


@dataclass(frozen=True)
class ComponentwiseEM(KeptEngine):
    r"""Expectation maximisation that removes clusters and features that do not pay for themselves.

    This engine is for models whose prior is that of a message length: `feature_saliency` with
    ``selection="mml"``. EM steps continue until nothing moves. Then a cluster is removed if the
    message is shorter without it; otherwise all features whose saliency makes it shorter at zero or
    one; otherwise the cluster that is missed least. This is repeated down to `min_clusters`, or
    until no shorter message is possible. A removal that saves many times what a step gains does not
    wait so long. The shortest message on the way is the result. All of this is one compiled
    program, which skips the clusters and features that were removed. If there are many rows, some
    are drawn, and what does not pay for itself among these is removed first.

    In the thesis the price of parameters shrinks weights and saliencies to zero within the steps,
    so a cluster is removed once it holds fewer rows than half of its parameters, whatever it saves:
    with 30 features no cluster of 29 rows could stay. The message length does not require that, and
    messages found in this way can be hundreds of nats longer. The thesis' steps remain for
    ``prior="flat"``, where no prior keeps clusters from collapsing on single rows: weights are
    updated one after another by eq. 4.29, then densities, and saliencies by eq. 4.30; a settled
    search leaves out the smallest cluster.

    Parameters
    ----------
    min_clusters : int
        Minimum number of clusters. Clusters that partial labels name always stay.
    tol : float
        A structure is settled when a step changes the length of the message by less than `tol` nats for
        each known value, whatever its unit.
    max_steps : int
        Maximum number of steps from each start, removals included.
    num_restarts : int, optional
        Number of starts at rows drawn at random, of which the shortest message is kept. By default
        there are twenty, or fewer if rows times features times clusters exceed 200,000, but at
        least three. Unless the prior is flat, there is one more start, in which all saliencies stay
        at one until the best number of clusters is known. The result is never a longer message than
        that diagonal mixture, with one exception: another start may have as many clusters,
        saliencies below one, and a message longer by no more than the price of these. Such
        saliencies are kept, since they rank the features, and the status says how much shorter the
        other message is. If the diagonal mixture has the smaller BIC, the status says so.

    References
    ----------
    Law (2006), Michigan State University, algorithm 4.1 and eqs. 4.29 and 4.30. Figueiredo and Jain
    (2002), IEEE Trans. Pattern Anal. Mach. Intell. 24, 381-396, doi:10.1109/34.990138.
    """

    min_clusters: Count = 1
    tol: NonNegative = 1e-7
    max_steps: Count = 5000
    num_restarts: Count | None = None
    name: ClassVar[str] = "componentwise_em"
    gives_point: ClassVar[bool] = True
    prunes: ClassVar[bool] = True

    def roughly(self) -> Engine:
        """Return EM, for starts of chains, as proper priors remove nothing."""
        return EM(num_restarts=4, tol=1e-5)

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts by one.

        Raises
        ------
        TypeError, ValueError
            If the model has no saliencies, other sites besides, or a proper prior.
        FitError
            If the density is not finite at any start.
        """
        approximate = approximation(problem)
        names = Sites.of(problem)
        if init is None:
            number = self.num_restarts or num_starts(problem, names)
            starts = initial_values(problem, seed, number)
            starts = at_known_rows(problem, names, starts)
        else:
            starts = {n: v[None] for n, v in starting_point(problem, init).items()}
        fixed = problem.args, np.asarray(self.tol, float), np.asarray(self.max_steps)
        clock = Clock()
        with progress_bar("Component-wise EM", shown=progress) as advance:
            advance(0, "compiling")
            if init is None and not names.is_flat:
                starts = with_all_features(names, starts)
            held = (starts[names.saliency] == 1.0).all(axis=1)
            smaller = None if init is not None else some_rows(problem, names, starts, seed)
            if smaller is not None and not names.is_flat:
                starts = self._begun(smaller, names, self._begin(starts, held), clock)
            state = self._begin(starts, held)
            build = partial(self._program, names)
            given = one_member(state, 0), *fixed, np.asarray(0)
            program = clock.counted(compiled(self.name, problem, self.min_clusters, build, *given))
            run = partial(climbed, describe=_shown, advance=advance, keep=keep, clock=clock)
            each = partial(run_each, program)
            state, _ = run(each, state, fixed)
        table = observed_table(problem, names.observed)
        num_rows = np.inf if table is None else len(table)
        fewest = max(self.min_clusters, num_known(problem))
        ties = (fn.links() for fn in label_sites(problem).values())
        has_links = any(graph is not None and graph.num_links for graph in ties)
        return self._result(
            state, problem, names, num_rows, clock.seconds, approximate, fewest, has_links
        )

    def _begun(
        self, problem: Problem, names: Sites, state: _Search, clock: Clock
    ) -> dict[str, NDArray]:
        """Return starts from a search in some of the rows, which ends where removals make messages longer.

        Clusters and features that do not pay for themselves there are removed. The other rows may lead to
        more removals.
        """
        fixed = problem.args, np.asarray(_ROUGH, float), np.asarray(_STEPS), np.asarray(_STEPS + 1)
        build, first = partial(self._program, names, begins=True), one_member(state, 0)
        made = compiled(f"{self.name} start", problem, self.min_clusters, build, first, *fixed)
        program = clock.counted(made)
        with clock.running():
            found, _ = run_each(program, state, *fixed)
        at_best = np.isfinite(np.asarray(found.best_value))
        return {
            name: np.where(at_best.reshape(-1, *(1,) * (last.ndim - 1)), found.best[name], last)
            for name, last in found.params.items()
        }

    def _begin(self, starts: Mapping[str, NDArray], held: NDArray) -> _Search:
        number = len(held)
        real = jnp.result_type(float)
        never = np.full(number, -np.inf, real)
        history = np.full((number, history_length(self.max_steps)), np.nan, real)
        zero = np.zeros(number, int)
        values: Any = dict(starts)
        begin: Any = _Search  # on the host, an axis of starts in front
        return begin(
            steps=zero,
            params=values,
            last=values,
            plain=zero == 1,
            held=held,
            diagonal=Diagonal(-never, zero),  # type: ignore[arg-type]
            best=values,
            best_value=never,
            best_bic=-never,
            value=never,
            structure=zero,
            code=zero,
            history=history,
        )

    def _program(self, names: Sites, problem: Problem, *, begins: bool = False) -> Callable:
        """Program for one start: steps until it has stopped or done `limit`; `_begun` makes starts."""

        def step(state: _Search, args: tuple, tol: Array, most: Array) -> _Search:
            def traced(params: dict[str, Array]) -> dict[str, dict]:
                return trace_model(problem, params, args)

            at = Weighed.of(traced(state.params), names)
            at = at if at.block.is_flat else at.with_share()
            length = at.log_joint()
            value = length if at.block.is_flat else at.at_held_precision()
            structure = at.structure
            good = jnp.isfinite(value)
            same = structure == state.structure
            rounding = rounding_of(value)
            least = jnp.maximum(_ROUNDING * (1 + jnp.abs(value)), rounding)
            fell = same & ~state.plain & (value < state.value - least)
            gain = jnp.abs(value - state.value)
            settled = same & ~fell & (gain <= jnp.maximum(tol * at.size, rounding))
            cut = state.steps >= most
            rests = good & ~fell & (settled | cut)
            better = rests & (length > state.best_value)
            likelihood = length - at.log_prior
            bic = at.bic(likelihood)
            best = _chosen(better, state.params, state.best)
            best_value = jnp.where(better, length, state.best_value)
            features = ~state.held
            left, early, ended, shorter = self._left(
                at, traced, state.steps, settled, same & ~fell, gain, features
            )
            # what is left would have to cost less than nothing to be shorter
            ended |= (likelihood < best_value) | (begins & ~shorter)
            # hard links may need more clusters
            over = (settled & ended) | (~good & jnp.isfinite(best_value))
            free = over & state.held & ~cut & (not begins)
            code = stop_code(broken=~good & ~over, settled=over & ~free, cut=cut)
            params = lax.cond(
                settled | early,
                lambda: left,
                lambda: lax.cond(
                    fell, lambda: state.last, lambda: at.moved(self.min_clusters, state.plain)
                ),
            )
            return _Search(
                steps=state.steps + 1,
                params=_chosen(free, best, state.params | params),
                last=_chosen(fell, state.last, state.params),
                plain=fell,
                held=state.held & ~free,
                diagonal=state.diagonal.beside(rests & state.held, bic, at.used.number),
                best=best,
                best_value=best_value,
                best_bic=jnp.where(better, bic, state.best_bic),
                value=jnp.where(settled | early | fell | free, -jnp.inf, value),
                structure=structure,
                code=code,
                history=state.history.at[state.steps].set(jnp.where(good, value, jnp.nan)),
            )

        def search(state: _Search, args: tuple, tol: Array, most: Array, limit: Array) -> Any:
            return until_stopped(lambda s: step(s, args, tol, most), state, limit), ()

        return search

    def _left(
        self,
        at: Weighed,
        traced: Traced,
        steps: Array,
        settled: Array,
        apace: Array,
        gain: Array,
        features: Array,
    ) -> tuple[dict[str, Array], Array, Array, Array]:
        """Return parameters after a removal.

        Also return whether it takes place before parameters settle, whether no removal is possible, and
        whether the message is shorter. If `features` is false, only clusters are removed.

        A removal takes place before parameters settle if it shortens the message by more than many steps
        do, or a cluster has less than a point. With links, removals wait: they may leave too few clusters.
        """
        never = jnp.zeros((), bool)
        if at.block.is_flat:
            number, smallest = at.smallest()
            none_left = (number <= self.min_clusters) | (smallest < 0)
            return at.without(smallest), never, none_left, never

        def the_same() -> tuple[dict[str, Array], Array]:
            return at.all_params(), never

        def weighed() -> tuple[dict[str, Array], Array, Array, Array]:
            least = jnp.where(settled, 0.0, jnp.maximum(_WORTH * gain, 0.0))
            cluster, saved = worst_cluster(at, traced, self.min_clusters)
            many = at.value.shape[0] >= _ROWS * len(at.weights)
            turn = features & (settled | (many & apace & (steps % _BETWEEN == 0)))
            less, some = lax.cond(turn & ~(saved > 0), lambda: simpler(at, traced, least), the_same)
            # in a settled search, the cluster that is missed least is removed in any case
            fewer = (saved > least) | (settled & ~some)
            params = jax.tree.map(
                lambda one, other: jnp.where(fewer, one, other),
                at.params | at.without(cluster),
                less,
            )
            none_left = fewer & jnp.isneginf(saved)
            return params, ~settled & (fewer | some), none_left, (saved > least) | some

        def unchanged() -> tuple[dict[str, Array], Array, Array, Array]:
            return at.all_params(), never, never, never

        ready = settled | apace if at.fn.labels.is_shared else settled
        return lax.cond(ready, weighed, unchanged)

    def _result(
        self,
        state: _Search,
        problem: Problem,
        names: Sites,
        num_rows: float,
        seconds: dict[str, float],
        approximate: str | None,
        fewest: int,
        has_links: bool,
    ) -> EngineResult:
        value, code = np.asarray(state.best_value), np.asarray(state.code)
        if not np.isfinite(value).any():
            raise FitError(
                "component-wise EM found no finite log density; check the data for rows far off"
                + ", and links" * has_links
            )
        weights, saliencies = (np.asarray(state.best[n]) for n in (names.weights, names.saliency))
        shortest = int(np.argmax(value))
        best = that_ranks(value, weights, saliencies, names.num_parameters, num_rows)
        params = {n: np.asarray(v)[best] for n, v in state.best.items()}
        used = int((params[names.weights] > 0).sum())
        steps, saliency = int(state.steps[best]) - 1, params[names.saliency]
        stopped = int(code[best]) != SETTLED
        begun, relevant = len(params[names.weights]), int((saliency > RELEVANT).sum())
        message = (
            f"component-wise EM took {steps} steps from {number_of_clusters(begun)}; the shortest "
            f"message of {len(value)} starts{' that ranks features' * (best != shortest)}, "
            f"{-value[best]:.6g} nats, has {number_of_clusters(used)}"
        )
        if used > 1:
            message += (
                f" and {relevant} of {len(saliency)} features with a saliency above {RELEVANT:g}"
            )
        if best != shortest:
            message += f"; with all saliencies at one it is {value[shortest] - value[best]:.4g} nats shorter"
        if used == 1:
            message += f"; {OF_ONE_CLUSTER}"
        elif not (saliency > 0).any():
            message += "; no feature tells the clusters apart"
        elif (saliency == 1).all():
            message += "; no saliency pays for itself: this is a diagonal mixture of all features"
        diagonal = Diagonal(*(np.asarray(part)[-1] for part in state.diagonal))
        all_normal = len(names.normal) == len(saliency)
        remark = diagonal.remark(float(np.asarray(state.best_bic)[best]), all_normal=all_normal)
        full = all_used(used, begun, all_normal=all_normal) if begun > fewest else None
        ends = {n: np.asarray(v) for n, v in state.best.items()}
        beside = next_best(problem, value, best, ends) if used > 1 else None
        if stopped:
            message += f"; it stopped at max_steps={self.max_steps}, raise it"
        return EngineResult(
            engine=self.name,
            draws={n: v[None, None] for n, v in params.items()},
            sample_stats={"lp": value[best][None, None]},
            objective=np.asarray(state.history)[:, : int(np.asarray(state.steps).max())],
            status=Status(not stopped and int(code[best]) != BROKEN, message),
            seconds=seconds,
            approximate=approximate,
            remarks=tuple(filter(None, (beside, remark, full))),
        )


def _chosen(where: Array, new: dict[str, Array], old: dict[str, Array]) -> dict[str, Array]:
    return jax.tree.map(lambda one, other: jnp.where(where, one, other), new, old)


def _shown(state: _Search) -> str:
    return f"log joint {np.nanmax(np.asarray(state.value)):.6g}"
