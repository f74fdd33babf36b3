"""Simulation-based calibration of a model and an engine."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import NDArray
from numpyro import handlers

from sidebayes.diagnostics.calibration import Calibration, functionals, rank_of_truth
from sidebayes.guides.engines.base import (
    Engine,
    EngineResult,
    FitError,
    Problem,
    SideBayesWarning,
    Status,
)
from sidebayes.guides.engines.progress import progress_bar
from sidebayes.models.blocks.label_graph import as_label_graph
from sidebayes.models.blocks.linked import LinkedMixture
from sidebayes.models.blocks.links import Links

from .api import fit
from .zoo import find_card, make_engine

__all__ = ["calibrate"]


def calibrate(
    method: str | Callable[..., None],
    engine: str | Engine,
    *,
    num_points: int,
    links: Links | None = None,
    num_simulations: int = 100,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Calibration:
    """Check by simulation that an engine's posteriors of a model are as sure as they should be.

    Parameters and data are drawn from the model, the data are fitted, and the truth is ranked among
    the draws, functional by functional; none of these depends on the numbering of clusters. If
    everything is right, ranks are uniform. Coverage of intervals comes with them.

    Parameters
    ----------
    method : str or callable
        A card, or a model that simulates `num_points` rows when ``x`` is None.
    engine : str or engine
        One that draws from the posterior.
    num_points : int
    links : Links, optional
        As a field they are kept as they are. As statements (``reading="relation"``) their pairs and
        strengths are kept and what they say is drawn with the labels.
    num_simulations : int
    seed : int
    progress : bool
    **options
        Of the model, with a proper prior: ``prior=GaussianPrior(...)``.

    Returns
    -------
    Calibration

    Raises
    ------
    TypeError, ValueError
        If the model cannot simulate, or the engine gives a single point.

    References
    ----------
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), arXiv:1804.06788. Säilynoja, Bürkner and
    Vehtari (2022), Stat. Comput. 32, doi:10.1007/s11222-022-10090-6.
    """
    card = find_card(method) if isinstance(method, str) else None
    model: Callable[..., None] = card.model if card else method  # type: ignore[assignment]
    runner = make_engine(engine, card)
    for name, value, least in (
        ("num_points", num_points, 1),
        ("num_simulations", num_simulations, 10),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} = {value!r}; expected an integer >= {least}")
    with jax.enable_x64(True):
        truths, data, agree = _simulate(model, links, num_points, options, num_simulations, seed)
    ranks, failed = [], 0
    with progress_bar("calibrate", num_simulations, shown=progress) as advance:
        for run in range(num_simulations):
            stated = _stated(links, agree, run)
            given: dict[str, Any] = options | {"progress": False}
            given |= {} if stated is None else {"links": stated}
            known = _Known({name: value[run] for name, value in truths.items()})
            advance(1, f"{failed} failed")
            with warnings.catch_warnings():
                # numbering of clusters is of no account here
                warnings.simplefilter("ignore", SideBayesWarning)
                try:
                    found = fit(model, data[run], engine=runner, seed=seed + run, **given)
                except FitError:
                    failed += 1
                    continue
                truth = fit(model, data[run], engine=known, **given)
            sizes = found.tree["responsibilities"].sizes
            if sizes["chain"] * sizes["draw"] < 10:
                raise ValueError(
                    f"engine {runner.name!r} gives {sizes['chain'] * sizes['draw']} draws; calibrate "
                    "one that draws from the posterior, such as 'nuts', at least ten times"
                )
            ranks.append(
                rank_of_truth(
                    functionals(truth.tree),
                    functionals(found.tree),
                    num_chains=sizes["chain"],
                    seed=seed + run,
                )
            )
    if not ranks:
        raise FitError(f"all {failed} fits failed; fit one simulated data set to see why")
    name = card.name if card else getattr(method, "__name__", "model")
    return Calibration(f"{name} by {runner.name}", pd.DataFrame(ranks), failed)


@dataclass(frozen=True)
class _Known:
    """Engine that knows the truth, so that it is described as every fit is."""

    params: Mapping[str, NDArray] = field(repr=False)
    name: ClassVar[str] = "truth"

    def run(
        self, problem: Problem, *, seed: int = 0, init: Any = None, progress: bool = True
    ) -> EngineResult:
        """Return the truth as a single draw."""
        return EngineResult(
            engine=self.name,
            draws={name: np.asarray(value)[None, None] for name, value in self.params.items()},
            sample_stats={"lp": np.zeros((1, 1))},
            objective=np.empty((0, 0)),
            status=Status(True, "the truth"),
            seconds={"compile": 0.0, "run": 0.0},
        )


def _simulate(
    model: Callable[..., None],
    links: Links | None,
    num_points: int,
    options: Mapping[str, Any],
    size: int,
    seed: int,
) -> tuple[dict[str, NDArray], NDArray, NDArray | None]:
    """Draw parameters, data, and whether statements are met, each with a leading axis of length `size`."""
    if "num_points" not in inspect.signature(model).parameters:
        raise TypeError(
            f"{getattr(model, '__name__', 'the model')} has no parameter num_points, so it cannot "
            "simulate; let it draw num_points rows when x is None"
        )
    graph = (
        None if links is None else as_label_graph(links, num_points, options.get("num_clusters"))
    )
    args = (None,) if graph is None else (None, graph)

    def one(key: Array) -> tuple[dict[str, Array], Array, Array | None]:
        key_model, key_labels, key_data, key_links = jax.random.split(key, 4)
        sites = handlers.trace(handlers.seed(model, key_model)).get_trace(
            *args, num_points=num_points, **options
        )
        params = {
            n: s["value"]
            for n, s in sites.items()
            if n != "x" and s["type"] in ("sample", "deterministic")
        }
        fn = sites["x"]["fn"]
        if not isinstance(fn, LinkedMixture) or graph is None:
            return params, sites["x"]["value"], None
        label = fn.labels.sample(key_labels)
        every = fn.components.sample(key_data, (num_points,))
        x = jnp.take_along_axis(every, label[:, None, None], axis=1)[:, 0]
        if fn.labels.reading == "field":
            return params, x, None
        pairs = jnp.asarray(graph.pairs)
        # log-odds of a right statement; negative where a learned flip rate is above one half
        right = jax.nn.sigmoid(jnp.sign(graph.pair_weights) * fn.labels.pair_weights)
        met = jax.random.bernoulli(key_links, right)
        return params, x, (label[pairs[:, 0]] == label[pairs[:, 1]]) == met

    keys = jax.random.split(jax.random.key(seed), size)
    params, x, agree = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    if agree is not None and links is not None and links.hard.any():
        raise ValueError(
            "hard links cannot be simulated as statements; make them soft, links.with_strength(2.0)"
        )
    return (
        {name: np.asarray(value) for name, value in params.items()},
        np.asarray(x),
        None if agree is None else np.asarray(agree),
    )


def _stated(links: Links | None, agree: NDArray | None, run: int) -> Links | None:
    """Links of one simulation."""
    if links is None or agree is None:
        return links
    return Links.from_pairs(links.pairs, agree[run], np.abs(links.weights), links.num_points)
