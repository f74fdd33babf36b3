"""Fit, compare, load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from sidebayes.diagnostics.compare import Comparison, compare_fits
from sidebayes.diagnostics.tree import to_datatree
from sidebayes.guides.constrained_kmeans import KMeans
from sidebayes.guides.engines.base import Engine, EngineResult, Problem
from sidebayes.guides.engines.density import linked_site, site_dims
from sidebayes.models.blocks.label_graph import LabelGraph
from sidebayes.models.blocks.links import Links

from .result import Fit
from .validate import check_clusters, check_data, check_links
from .zoo import CARDS, ENGINES, Card, card_of

__all__ = ["compare", "fit", "load"]

_MOST_STORED = 20_000_000
"""Responsibilities stored at most; more draws than fit are thinned."""


def fit(
    method: str | Callable[..., None],
    x: ArrayLike,
    links: Links | LabelGraph | None = None,
    *,
    num_clusters: int | None = None,
    engine: str | Engine | None = None,
    seed: int = 0,
    init: Mapping[str, Any] | Fit | None = None,
    truth: ArrayLike | None = None,
    progress: bool = True,
    **options: Any,
) -> Fit:
    """Fit a method, or your own NumPyro model, to data with links.

    Parameters
    ----------
    method : str or callable
        Name of a card (``sidebayes list``), or ``model(x, links, *, num_clusters, ...)`` whose data
        site is a `LinkedMixture`.
    x : array_like, shape (num_points, num_features)
    links : Links, LabelGraph or None
    num_clusters : int
    engine : str or engine, optional
        "em", "map", "nuts", "kmeans", or a configured engine such as ``EM(num_restarts=20)``.
    seed : int
        Same seed and machine, same result.
    init : mapping or Fit, optional
        Start from these site values, or from another fit's.
    truth : array_like of int, shape (num_points,), optional
        Known classes, kept for scoring only.
    progress : bool
    **options
        Passed to the model.

    Returns
    -------
    Fit

    Raises
    ------
    TypeError, ValueError
        For bad input; the message names the argument, its value and the remedy.
    FitError
        If the run fails.
    """
    card = card_of(method) if isinstance(method, str) else None
    name = card.name if card else getattr(method, "__name__", "model")
    model = card.model if card else method
    if not callable(model):
        raise TypeError(f"method is a {type(method).__name__}; pass a name or a NumPyro model")
    x = check_data(x)
    num_clusters = check_clusters(num_clusters, len(x))
    takes_links = card.takes_links if card else True
    graph = check_links(links, len(x), num_clusters, name, takes_links)
    runner = _engine(engine, card, name)
    if truth is not None and np.shape(truth) != (len(x),):
        raise ValueError(f"truth has shape {np.shape(truth)}; expected ({len(x)},)")
    options = {"num_clusters": num_clusters, **options}
    start = init.params if isinstance(init, Fit) else init
    with jax.enable_x64(True):
        args = (jnp.asarray(x), graph) if takes_links else (jnp.asarray(x),)
        m_step = card.m_step(**options) if card and card.m_step else None
        problem = Problem(model, args, options, m_step)
        if init is not None:
            _check_init(start, problem)
        result = runner.run(problem, seed=seed, init=start, progress=progress)
        tree = _tree(result, problem, graph, x, truth, name, options, seed)
    return Fit(tree, name, model, options, takes_links)


def compare(fits: Mapping[str, Fit]) -> Comparison:
    """Put fits side by side: what they found, how sure they are, and what they cost.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    Comparison
        Prints as text; ``.frame`` and ``.html()`` hold the same.
    """
    if not fits:
        raise ValueError("fits is empty; pass {name: fit, ...}")
    return compare_fits(fits)


def load(path: str | Path, model: Callable[..., None] | None = None) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Parameters
    ----------
    path : path
    model : callable, optional
        Needed to predict with your own model; cards know theirs.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give a file that Fit.save wrote")
    with xr.open_datatree(path, engine="h5netcdf") as opened:
        tree = opened.load()
    if "sidebayes_method" not in tree.attrs:
        raise ValueError(f"{path} is no sidebayes fit; give a file that Fit.save wrote")
    method = tree.attrs["sidebayes_method"]
    card = CARDS.get(method)
    return Fit(
        tree,
        method,
        card.model if card else model,
        json.loads(tree.attrs["sidebayes_options"]),
        card.takes_links if card else True,
    )


def _engine(engine: str | Engine | None, card: Card | None, name: str) -> Engine:
    allowed = card.engines if card else tuple(n for n in ENGINES if n != "kmeans")
    chosen = allowed[0] if engine is None else engine
    if isinstance(chosen, str):
        if chosen not in ENGINES:
            raise ValueError(f"engine = {chosen!r} is unknown; choose from {sorted(ENGINES)}")
        chosen = ENGINES[chosen]()
    if chosen.name not in allowed:
        raise ValueError(f"engine {chosen.name!r} does not fit {name!r}; choose from {list(allowed)}")
    return chosen


def _check_init(init: Mapping[str, Any] | None, problem: Problem) -> None:
    from sidebayes.guides.engines.density import latent_supports

    missing = sorted(set(latent_supports(problem)) - set(init or {}))
    if missing:
        raise ValueError(f"init lacks the sites {missing}; give a value for each")


def _tree(
    result: EngineResult, problem: Problem, graph: LabelGraph, x, truth, name, options, seed
) -> xr.DataTree:
    chains, draws = result.sample_stats["lp"].shape
    room = max(_MOST_STORED // (x.shape[0] * options["num_clusters"] * chains), 1)
    keep = np.linspace(0, draws - 1, min(draws, room)).astype(int)
    hard = isinstance(ENGINES.get(result.engine), type) and result.engine == KMeans.name

    def derive(params: dict, args: tuple):
        site = linked_site(problem, params, args)
        if site is None:
            raise ValueError("the model has no LinkedMixture site; observe the data through one")
        fn, value = site
        prob = (
            jax.nn.one_hot(fn.mode(value), options["num_clusters"], dtype=value.dtype)
            if hard
            else fn.responsibilities(value)
        )
        return prob, fn.by_component(value)

    flat = {n: v[:, keep].reshape(-1, *v.shape[2:]) for n, v in result.draws.items()}
    mapped = jax.jit(lambda params, args: jax.lax.map(lambda p: derive(p, args), params))
    prob, terms = (np.asarray(v) for v in mapped(flat, problem.args))
    shape = (chains, len(keep))
    observed: dict[str, Any] = {"x": (("points", "features"), x)}
    if truth is not None:
        observed["truth"] = ("points", np.asarray(truth))
    return to_datatree(
        result,
        observed=observed,
        constant={
            "links": (("link", "end"), np.asarray(graph.pairs)),
            "link_weights": ("link", np.asarray(graph.pair_weights)),
            "unit": ("points", np.asarray(graph.component)),
        },
        responsibilities=prob.reshape(*shape, *prob.shape[1:]),
        log_likelihood=terms.reshape(*shape, *terms.shape[1:]),
        dims=site_dims(problem),
        attrs={
            "sidebayes_method": name,
            "sidebayes_options": json.dumps(options, default=str),
            "sidebayes_seed": seed,
            "sidebayes_version": version("sidebayes"),
            "jax_version": jax.__version__,
        },
    )


