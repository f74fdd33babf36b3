"""Fit, compare, load."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from jax import Array
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.compare import Comparison, compare_fits
from sidebayes.diagnostics.tree import to_datatree
from sidebayes.guides.engines.base import Engine, EngineResult, FitError, Problem
from sidebayes.guides.engines.density import linked_mixture, site_dims
from sidebayes.models.blocks.label_graph import LabelGraph
from sidebayes.models.blocks.links import Links

from . import checks, posterior, record
from .result import Fit
from .zoo import CARDS, Card, find_card, inference_used, links_taken, make_engine

__all__ = ["compare", "find_method", "fit", "load", "make_problem", "starting_values"]


def fit(
    method: str | Callable[..., None],
    x: ArrayLike,
    links: Links | LabelGraph | None = None,
    *,
    num_clusters: int | None = None,
    engine: str | Engine | None = None,
    seed: int = 0,
    init: Mapping[str, Any] | Fit | None = None,
    dtype: str = "float64",
    truth: ArrayLike | None = None,
    feature_names: Sequence[str] | None = None,
    progress: bool = True,
    **options: Any,
) -> Fit:
    """Fit a method, or your own NumPyro model, to data with links.

    Parameters
    ----------
    method : str or callable
        Name of a card (``sidebayes list``), or a model ``model(x, links, *, num_clusters, ...)``
        that observes its data through a `LinkedMixture` or NumPyro's ``MixtureSameFamily``; the
        parameters after `x` may be left out.
    x : array_like, shape (num_points, num_features)
    links : Links, LabelGraph or None
    num_clusters : int
        Needed by every card.
    engine : str or engine, optional
        Name, such as "em", "laplace" or "nuts" (``sidebayes list`` shows them all), or a
        configuration such as ``EM(num_restarts=20)``. By default the first that the card names.
        Samplers start from the mode that it finds.
    seed : int
        Same seed and machine, same result.
    init : mapping or Fit, optional
        Start from these values of the latent sites, or from another fit's.
    dtype : {"float64", "float32"}
    truth : array_like, shape (num_points,), optional
        Known classes; kept beside the fit for scoring, never used in it.
    feature_names : sequence of str, optional
    progress : bool
        Show progress where there is a terminal.
    **options
        Options of the model, such as ``covariance="tied"``.

    Returns
    -------
    Fit

    Raises
    ------
    TypeError, ValueError
        For bad input; the message names the argument, what it was and what to do.
    FitError
        If the run fails.

    Examples
    --------
    >>> import sidebayes
    >>> data = sidebayes.load_dataset("iris")
    >>> links = sidebayes.simulate_links(data.labels, 60)
    >>> result = sidebayes.fit("ppc", data.x, links, num_clusters=3)
    >>> result.labels().shape
    (150,)
    """
    card, model, name = find_method(method)
    if hasattr(x, "columns") and feature_names is None:
        feature_names = [str(column) for column in x.columns]
    x = checks.check_data(x, gaussian=card is not None)
    parameters = inspect.signature(model).parameters
    if card is not None or "num_clusters" in parameters:
        num_clusters = checks.check_num_clusters(num_clusters, len(x))
        shared = {"num_clusters": num_clusters}
    elif num_clusters is not None:
        raise TypeError(f"{name} has no parameter num_clusters; leave it out, or add it")
    else:
        shared = {}
    runner = make_engine(engine, card)
    checks.check_options(model, options, name)
    checks.check_seed(seed)
    _check_dtype(dtype)
    kind, inference = links_taken(card, model), inference_used(card, model, options)
    graph = checks.check_links(links, len(x), num_clusters, kind, name, inference)
    truth = checks.check_truth(truth, len(x))
    names = checks.check_names(feature_names, x.shape[1])
    options = {**shared, **options}
    with jax.enable_x64(dtype == "float64"):
        problem = make_problem(card, model, jax.device_put(x.astype(dtype)), graph, options)
        problem = _suit_links(problem)
        start = starting_values(init, problem, runner, make_engine(None, card), seed)
        result = runner.run(problem, seed=seed, init=start, progress=progress)
        return _collect(
            result, problem, runner, name, seed=seed, dtype=dtype, truth=truth, names=names
        )


def compare(fits: Mapping[str, Fit]) -> Comparison:
    """Put fits side by side: what they found, how sure they are, and what they cost.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    Comparison
        Prints as text; ``.frame`` and ``.html()`` hold the same.

    Raises
    ------
    TypeError, ValueError
        If there is nothing to compare, or something is not a fit.
    """
    if not isinstance(fits, Mapping):
        raise TypeError(f"fits is a {type(fits).__name__}; pass a mapping, {{'em': fit_1, ...}}")
    if not fits:
        raise ValueError("fits is empty; pass {name: fit, ...}")
    for name, one in fits.items():
        if not isinstance(one, Fit):
            raise TypeError(f"fits[{name!r}] is a {type(one).__name__}; expected a Fit")
    return compare_fits(fits)


def load(path: str | Path, model: Callable[..., None] | None = None) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Parameters
    ----------
    path : path
    model : callable, optional
        Needed to predict with your own model; cards know theirs.

    Raises
    ------
    ValueError
        If there is no such file, or it is not a saved fit.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give one that Fit.save wrote")
    try:
        with xr.open_datatree(path, engine="h5netcdf") as opened:
            tree = opened.load()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is no NetCDF file ({error}); give one that Fit.save wrote"
        ) from None
    if "sidebayes_method" not in tree.attrs:
        raise ValueError(f"{path} is no sidebayes fit; give a file that Fit.save wrote")
    name = tree.attrs["sidebayes_method"]
    options, lost = record.parse(tree.attrs["sidebayes_options"])
    config, _ = record.parse(tree.attrs["sidebayes_engine"])
    known = CARDS[name].model if name in CARDS and not lost else None
    return Fit(
        tree=tree,
        method=name,
        model=known if model is None else model,
        options=options,
        config=config["engine"],
    )


def find_method(method: str | Callable[..., None]) -> tuple[Card | None, Callable[..., None], str]:
    """Card, if there is one, model and name of what `fit` was asked for."""
    if isinstance(method, str):
        card = find_card(method)
        return card, card.model, card.name
    if not callable(method):
        raise TypeError(
            f"method is a {type(method).__name__}; pass a name, one of {sorted(CARDS)}, or a NumPyro "
            "model function"
        )
    own = next((c for c in CARDS.values() if c.model is method), None)
    return own, method, own.name if own else getattr(method, "__name__", "model")


def _check_dtype(dtype: str) -> None:
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype = {dtype!r}; expected 'float64' or 'float32'")


def make_problem(
    card: Card | None,
    model: Callable[..., None],
    x: Array,
    graph: LabelGraph | None,
    options: Mapping[str, Any],
) -> Problem:
    """Model and data, with the closed forms that the card knows."""
    args = (x,) if graph is None else (x, graph)
    forms = (card.m_step, card.e_step, card.conjugacy) if card else ()
    return Problem(model, args, dict(options), *(form(**options) for form in forms))


def _suit_links(problem: Problem) -> Problem:
    """Lay links out for the clusters and the budget that the model itself names."""
    mixture = linked_mixture(problem)
    if mixture is None or len(problem.args) < 2:
        return problem
    labels = mixture.labels
    graph = problem.args[1].suited(labels.inference, labels.log_weights.shape[-1])
    if graph is problem.args[1]:
        return problem
    return replace(problem, args=(problem.args[0], graph))


def starting_values(
    init: Mapping[str, Any] | Fit | None,
    problem: Problem,
    runner: Engine,
    finder: Engine,
    seed: int,
) -> dict[str, NDArray] | None:
    """Check starting values; a sampler without any starts from the mode that `finder` finds."""
    shapes = posterior.latent_shapes(problem)
    if init is None:
        if runner.name not in ("nuts", "hmc", "gibbs"):
            return None
        try:
            mode = finder.run(problem, seed=seed, progress=False)
        except FitError:
            return None
        return {name: mode.params[name] for name in shapes}
    if not isinstance(init, Fit | Mapping):
        raise TypeError(
            f"init is a {type(init).__name__}; pass a mapping of site values, or another Fit"
        )
    values = init.params if isinstance(init, Fit) else init
    return checks.check_init(values, shapes)


def _collect(
    result: EngineResult,
    problem: Problem,
    runner: Engine,
    name: str,
    *,
    seed: int,
    dtype: str,
    truth: NDArray | None,
    names: list[str],
) -> Fit:
    """Derive labels from the draws, and wrap everything into one tree."""
    chains, draws = result.sample_stats["lp"].shape
    keep = posterior.thin(draws)
    flat = {n: v[:, keep].reshape(-1, *v.shape[2:]) for n, v in result.draws.items()}
    prob, terms, mode = posterior.derive(problem, flat, hard=runner.name == "kmeans")
    observed: dict[str, Any] = {"x": (("points", "features"), np.asarray(problem.args[0]))}
    if truth is not None:
        observed["truth"] = ("points", truth)
    graph = problem.args[1] if len(problem.args) > 1 else LabelGraph.build(None, prob.shape[1])
    tied = terms.shape[1] == graph.num_components  # else links do not tie labels: a point a term
    tree = to_datatree(
        result,
        observed=observed,
        constant={
            "links": (("link", "end"), graph.links.pairs.astype(np.int32)),
            "link_weights": ("link", graph.links.weights),
            "unit": ("points", np.asarray(graph.component) if tied else np.arange(prob.shape[1])),
            "feature_names": ("features", np.asarray(names, dtype=object)),
        },
        responsibilities=prob.reshape(chains, len(keep), *prob.shape[1:]),
        log_likelihood=terms.reshape(chains, len(keep), *terms.shape[1:]),
        dims=site_dims(problem),
        attrs={
            "sidebayes_method": name,
            "sidebayes_options": record.dump(problem.kwargs),
            "sidebayes_engine": record.dump({"engine": runner}),
            "sidebayes_seed": seed,
            "sidebayes_dtype": dtype,
            "sidebayes_version": version("sidebayes"),
            "jax_version": jax.__version__,
        },
    )
    found = Fit(
        tree=tree, method=name, model=problem.model, options=dict(problem.kwargs), config=runner
    )
    group = tree["responsibilities"].to_dataset()
    labels = mode if chains * draws == 1 else found._find_labels()
    tree["responsibilities"] = xr.DataTree(group.assign(labels=("points", labels)))
    return found
