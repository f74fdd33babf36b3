"""K-means with links: Lloyd's iterations that assign linked points together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import Inference, as_inference
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph

from sidebayes.common.fields import Count
from sidebayes.common.magnitudes import counted

from .engines.base import Engine, EngineResult, FitError, Problem, Status
from .engines.plumbing.clock import Clock
from .engines.plumbing.programs import compiled
from .engines.plumbing.progress import progress_bar
from .engines.steps.starts import initial_values

__all__ = ["KMeans"]


@dataclass(frozen=True)
class KMeans(Engine):
    """Lloyd's algorithm on the limit objective of `constrained_kmeans` and `soft_kmeans`.

    All points of a connected set are assigned jointly, at minimum cost, by max-product elimination:
    hard links are kept whenever some labeling keeps them, even where greedy assignment runs into a
    dead end (Lu 2008, section M3; Wagstaff et al. 2001 assign one point after another). Connected
    sets too wide for that are refused, or assigned by the approximation that the model's
    `inference` names, to a local optimum; see `partition.mode`.

    Parameters
    ----------
    max_steps : int
        Maximum number of steps; the iteration ends when a step does not lower the cost.
    num_restarts : int
        Number of starts; the assignment of least cost is kept.
    """

    max_steps: Count = 100
    num_restarts: Count = 10
    name: ClassVar[str] = "kmeans"
    gives_point: ClassVar[bool] = True
    hard_labels: ClassVar[bool] = True

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit; see `Engine.run`.

        Raises
        ------
        FitError
            If no labeling keeps all hard links.
        """
        x = jnp.asarray(problem.args[0])
        num_clusters = problem.kwargs["num_clusters"]
        width = problem.kwargs.get("scale", 1.0)
        method = as_inference(problem.kwargs.get("inference", "exact"))
        links = problem.args[1] if len(problem.args) > 1 else None
        graph = as_label_graph(links, x.shape[0]).suited(method, num_clusters)
        approximate = partition.check_inference(graph, num_clusters, method)
        if init is None:
            starts = initial_values(problem, seed, self.num_restarts)["mean"]
        else:
            starts = np.asarray(init["mean"], x.dtype)[None]
        inputs = starts, x, graph, np.asarray(width, float)
        with progress_bar("K-means", shown=progress) as advance:
            advance(0, "compiling")
            build = partial(self._program, method=method)
            clock = Clock()
            lloyd = clock.counted(compiled("kmeans", problem, self.max_steps, build, *inputs))
            advance(0, "assigning")
            with clock.running():
                mean, value, history, steps = lloyd(*inputs)
        value, history, steps = np.asarray(value), np.asarray(history), np.asarray(steps)
        if not (value > partition.FORBIDDEN / 2).any():
            found = f"found by {approximate} " if approximate else ""
            raise FitError(
                f"no labeling {found}with {num_clusters} clusters keeps all hard links; add clusters, "
                "drop links, or give them finite weights and use soft_kmeans"
            )
        best = int(np.argmax(value))
        return EngineResult(
            engine=self.name,
            draws={"mean": np.asarray(mean)[best][None, None]},
            sample_stats={"lp": value[best][None, None]},
            objective=history[:, : int(steps.max())],
            status=Status(
                bool(steps[best] < self.max_steps),
                f"K-means settled in {counted(steps[best], 'step')}; the best of "
                f"{counted(len(value), 'start')} has cost {max(0.0, -value[best] * width**2):.6g}",
            ),
            seconds=clock.seconds,
            approximate=approximate,
        )

    def _program(self, problem: Problem, method: Inference) -> Callable:
        return jax.vmap(partial(self._lloyd, method), in_axes=(0, None, None, None))

    def _lloyd(self, method, mean, x, graph, width):
        num_clusters = mean.shape[0]
        offset = x.mean(axis=0)  # distances come from products, and must not cancel
        spread = jnp.sqrt(jnp.mean((x - offset) ** 2))
        unit = jnp.where(spread > 0, spread, 1.0)  # costs near one, whatever the unit of the data
        x, mean = (x - offset) / unit, (mean - offset) / unit
        weights = jnp.asarray(graph.pair_weights) * (width / unit) ** 2

        def assign(mean):
            squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(mean**2, axis=1)
            unary = x @ mean.T - 0.5 * squares
            labels = partition.mode(unary, graph, pair_weights=weights, inference=method)
            cost = jnp.take_along_axis(unary, labels[:, None], axis=1).sum()
            same = labels[graph.pairs[:, 0]] == labels[graph.pairs[:, 1]]
            held = jnp.where(jnp.isinf(weights), 0.0, jnp.where(same == (weights > 0), 0.0, 1.0))
            broken = jnp.isinf(weights) & (same != (weights > 0))
            finite = jnp.where(jnp.isinf(weights), 0.0, jnp.abs(weights))
            penalty = jnp.sum(held * finite) - partition.FORBIDDEN * broken.any()
            return labels, cost - penalty

        def step(state):
            count, mean, labels, value, history, _ = state
            member = (labels[:, None] == jnp.arange(num_clusters)).astype(x.dtype)
            size = member.sum(axis=0)
            centre = (member.T @ x) / jnp.maximum(size, 1.0)[:, None]
            centre = jnp.where(size[:, None] > 0, centre, mean)  # an empty cluster stays in place
            new = centre, *assign(centre)
            better = new[-1] > value  # approximate assignment can be worse
            kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, (mean, labels, value))
            return count + 1, *kept, history.at[count].set(kept[-1]), better

        labels, value = assign(mean)
        history = jnp.full(self.max_steps, jnp.nan)
        state = (0, mean, labels, value, history, jnp.asarray(True))
        count, mean, _, value, history, _ = lax.while_loop(
            lambda s: (s[0] < self.max_steps) & s[5], step, state
        )
        scale = (unit / width) ** 2
        value = jnp.where(value > partition.FORBIDDEN / 2, value * scale, value)
        return mean * unit + offset, value, history * scale, count
