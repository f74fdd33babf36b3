"""Simulation-based calibration of a model and an engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import ArrayLike, NDArray
from numpyro import handlers
from numpyro.primitives import Messenger

from sidebayes.diagnostics.calibration import Calibration, functionals, is_told, rank_of_truth
from sidebayes.guides.engines.base import Engine, EngineResult, FitError, Problem, SideBayesWarning
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem import posterior
from sidebayes.guides.engines.problem.declared import collapsed_sites, site_dims, site_roles
from sidebayes.guides.engines.problem.density import abstract_trace, deterministics, traced
from sidebayes.guides.engines.problem.honoured import Honoured
from sidebayes.guides.engines.samplers.from_prior.particles import refuse_improper
from sidebayes.guides.engines.symmetries.declared import site_symmetries
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.roles import Signature, signature_of
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from ..common.fields import check_integer, check_seed
from ..common.magnitudes import counted
from ..data.tables import check_data
from ..results.base.predictive import fill_tables
from ..runs import checks
from ..runs.arguments import clusters_asked, find_method, read_arguments, rows_given
from ..runs.execution import starting_values
from ..runs.run import Run
from ..runs.zoo import can_draw, make_engine
from ..tasks import Task, run_tasks
from .prior import draw_prior, refuse_factors

__all__ = ["calibrate"]

type _Simulated = tuple[dict[str, NDArray], Run]
"""The truth, and data to be fitted."""


def calibrate(
    method: str | Callable[..., None],
    engine: str | Engine,
    *,
    num_points: int | None = None,
    x: ArrayLike | None = None,
    links: Links | None = None,
    num_simulations: int = 100,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = True,
    **arguments: Any,
) -> Calibration:
    """Check by simulation whether the posteriors that an engine gives for a model are calibrated.

    Parameters and data are drawn from the model, the data are fitted, and for each functional of
    the parameters the truth is ranked among the draws. No functional depends on the numbering of
    clusters. If everything is right, ranks are uniform. The coverage of intervals is reported too.
    Functionals that equal the truth in every draw of every simulation carry no information about
    calibration, and are left out.

    Parameters
    ----------
    method : str or callable
        Name of a card, or a model that simulates `num_points` rows when its table is None.
    engine : str or engine
        An engine that draws from the posterior.
    num_points : int, optional
        Number of rows to simulate.
    x : array_like, shape (num_points, num_features), optional
        Features to hold fixed, in place of `num_points`, for a model that has no density of the
        features and draws statements only, such as "pairwise_gp".
    links : Links, optional
        Links read as a field are kept as they are. For links read as statements
        (``reading="relation"``) pairs and strengths are kept, and what they state is drawn with the
        labels.
    num_simulations : int
    seed : int
    n_jobs : int, optional
        Number of fits to run in parallel; by default one, or as ``joblib.parallel_config`` sets it.
        The ranks are the same.
    progress : bool
    **arguments
        Options of the model, with a proper prior: ``prior=GaussianPrior(...)``. Data that are
        passed by name are held fixed, such as the design of a long table,
        ``fixed=, random=, subjects=``. Outcomes that are left out are drawn; neither `num_points`
        nor `x` is needed then.

    Returns
    -------
    Calibration

    Raises
    ------
    TypeError, ValueError
        If the model cannot simulate, or the engine gives a single point.

    Notes
    -----
    With `num_points` the table is None while data are drawn. A branch of the model for this case is
    therefore run, and is compared with the likelihood. Outcomes that are left out of data by name
    are arrays of NaN, not None: they are drawn from the distributions of the likelihood itself, and
    a branch on ``y is None`` is neither run nor checked.

    References
    ----------
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), arXiv:1804.06788. Säilynoja, Bürkner and
    Vehtari (2022), Stat. Comput. 32, doi:10.1007/s11222-022-10090-6.
    """
    card, model, name = find_method(method)
    runner = make_engine(engine, card)
    if runner.gives_point and can_draw(card):
        raise ValueError(
            f"engine {runner.name!r} gives a point, and the truth is ranked among draws; choose one that "
            "draws from the posterior, such as 'nuts'"
        )
    num_simulations = check_integer("num_simulations", num_simulations, 10)
    seed = check_seed(seed)
    own = {role.name for role in signature_of(model).data}.intersection(arguments)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", SideBayesWarning)
        blank = Run(name, model, {}, {}, runner, seed=seed)
        if own:
            if num_points is not None or x is not None:
                raise TypeError(
                    f"{name} was given {sorted(own)}, which say how many rows there are; leave out "
                    "num_points and x"
                )
            given = arguments if links is None else {**arguments, "links": links}
            simulated = _given_design(blank, given, num_simulations)
        else:
            simulated = _rows_of_points(blank, num_points, x, links, arguments, num_simulations)
        tasks = (Task(f"simulation {number}", one) for number, one in enumerate(simulated))
        found = list(
            run_tasks(
                _ranks_of_fit,
                tasks,
                n_jobs=n_jobs,
                title="calibrate",
                total=num_simulations,
                progress=progress,
            )
        )
    fitted = [one for one in found if one is not None]
    failed = len(found) - len(fitted)
    if not fitted:
        raise FitError(f"all {failed} fits failed; fit one simulated data set to see why")
    ranks, told = (pd.DataFrame(one) for one in zip(*fitted, strict=True))
    untold = ranks.columns[~told.any()]
    return Calibration(
        f"{name} by {runner.name}", ranks.drop(columns=untold), failed, untold=tuple(untold)
    )


def _ranks_of_fit(shared: None, simulated: _Simulated) -> tuple[pd.Series, pd.Series] | None:
    """Ranks of one truth, and which of them depend on the draws; None if the fit failed."""
    truth, run = simulated
    with run.precision:
        try:
            init = starting_values(run, None)
            result = run.engine.run(run.problem, seed=run.seed, init=init, progress=False)
            return _ranks(run.problem, result, truth)
        except FitError:
            return None


def _given_design(blank: Run, arguments: Mapping[str, Any], size: int) -> Iterator[_Simulated]:
    """Draw the outcomes that were left out, given all other data."""
    assert blank.model is not None  # it was just found
    read = read_arguments(blank.model, blank.method, (), arguments, ("links", "table"))
    run = replace(blank, data=read.data, options=read.options, unseen=True)
    run = replace(run, data=fill_tables(run, read.sizes))
    left_out = run.data.keys() - read.data.keys()
    if not left_out:
        raise TypeError(
            f"{run.method} was given all its tables, so nothing is drawn; leave out the outcomes"
        )
    truths, found, values = draw_prior(run, left_out, size, run.seed, "calibrate")
    drawn = {table: values[site] for site, table in found.items() if table is not None}
    if kept := sorted(drawn.keys() & read.data.keys()):
        raise TypeError(
            f"{run.method}: {kept} are outcomes, which are drawn; leave them out as well"
        )
    for number in range(size):
        data = {**run.data, **{name: value[number] for name, value in drawn.items()}}
        truth = {site: value[number] for site, value in truths.items()}
        yield truth, replace(run, data=data, seed=run.seed + number, unseen=False)


def _rows_of_points(
    blank: Run,
    num_points: int | None,
    x: ArrayLike | None,
    links: Links | None,
    options: Mapping[str, Any],
    size: int,
) -> Iterator[_Simulated]:
    """Draw rows of a table, or what links state of rows that are given."""
    model, name = blank.model, blank.method
    assert model is not None  # it was just found
    signature = signature_of(model)
    checks.check_options(signature, options, name)
    _check_draws(signature, name, num_points, x, options)
    if x is not None:
        x = check_data(x)
        num_points = len(x)
    num_points = check_integer("num_points", num_points)
    if "num_clusters" in signature.options:
        clusters_asked(model, options, num_points)
    table, ties = _roles(signature, links, name, _outcome(model, x, num_points, options))
    partial = signature.of_kind("labels")

    def run_on(rows: NDArray, links: Links | None, seed: int = blank.seed, **drawn: Any) -> Run:
        data = {table: rows} | ({} if links is None or ties is None else {ties: links}) | drawn
        return replace(blank, data=data, options=options, seed=seed)

    template = run_on(np.zeros((num_points, 1)), links)
    graph = template.graph(signature.of_kind("links")[0], num_points) if ties else None
    truths, data, agree = _simulate(model, x, graph, num_points, options, size, blank.seed, table)
    if x is not None and agree is None and not any(role.name in truths for role in partial):
        stated = ", or pass links that are read as statements" * bool(ties)
        raise ValueError(
            f"{name} draws nothing beside x, which is given; let it draw num_points rows when {table} is "
            f"None{stated}"
        )
    if agree is not None and links is not None and links.hard.any():
        raise ValueError(
            "hard links cannot be simulated as statements; make them soft, links.with_strength(2.0)"
        )
    for number in range(size):
        if agree is not None and links is not None:
            said: Links | None = _stated(links, agree[number])
        else:
            said = links
        truth = {site: value[number] for site, value in truths.items()}
        # sites that are called like an argument are data besides the table, as known classes are
        known = {r.name: PartialLabels(truth.pop(r.name)) for r in partial if r.name in truth}
        yield truth, run_on(data[number], said, blank.seed + number, **known)


def _check_draws(
    signature: Signature,
    name: str,
    num_points: int | None,
    x: ArrayLike | None,
    options: Mapping[str, Any],
) -> None:
    """Refuse calls from which nothing can be drawn, and say what to pass."""
    tables = [role.name for role in signature.of_kind("table")]
    if "num_points" in signature.options:
        if x is not None:
            raise TypeError(f"{name} draws its rows itself; pass num_points in place of x")
        if num_points is None:
            raise TypeError(f"{name} needs num_points=..., the number of rows to draw")
    elif len(tables) > 1:
        leave = "" if num_points is None and x is None else "leave num_points and x out, and "
        raise TypeError(
            f"{name} has no parameter num_points; {leave}pass by name the data that are held, all of "
            f"{tables} but the outcomes, which are drawn"
        )
    elif num_points is not None or x is None:
        otherwise = ""
        if signature.of_kind("links"):
            otherwise = ", or pass x alone if only what links state is drawn"
        elif held := [option for option, value in options.items() if rows_given(value)]:
            data = checks.as_annotated([tables[0], *held])
            otherwise = f", or leave {tables[0]} out and annotate the data: {data}"
        raise TypeError(
            f"{name} has no parameter num_points, so it cannot simulate; let it draw num_points rows "
            f"when {tables[0]} is None{otherwise}"
        )


def _ranks(
    problem: Problem, result: EngineResult, truth: Mapping[str, NDArray]
) -> tuple[pd.Series, pd.Series]:
    """Rank the truth, which is described as one more draw of every chain; see `_ranks_of_fit`."""
    chains, size = result.sample_stats["lp"].shape
    if chains * size < 10:
        raise ValueError(
            f"engine {result.engine!r} gives {counted(chains * size, 'draw')}, and the truth is ranked among "
            "ten or more; let it draw more often"
        )
    if result.points:
        raise ValueError(
            f"engine {result.engine!r} gives {list(result.points)} a point, and a truth has no rank among "
            "copies of one; calibrate a model whose sites all have draws"
        )
    keep = posterior.thin(size)
    draws = {}
    for name, values in result.draws.items():
        real = np.broadcast_to(truth[name], (chains, 1, *values.shape[2:]))
        draws[name] = np.concatenate([values[:, keep], real], axis=1)
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.items()}
    derived = posterior.derive(problem, flat)
    prob = derived.responsibilities
    graphs = [arg for arg in problem.args if isinstance(arg, LabelGraph)]
    # statistics of the data are no parameters: those of the truth are of other data, or of none
    noted = {name for name, site in abstract_trace(problem).items() if site.get("is_fitted")}
    found = functionals(
        {name: values for name, values in draws.items() if name not in noted},
        site_dims(problem),
        site_roles(problem),
        site_symmetries(problem),
        None if prob is None else prob.reshape(chains, -1, *prob.shape[1:]),
        np.sum([terms.sum(axis=1) for terms in derived.log_likelihood.values()], axis=0),
        graphs[0].links.pairs if graphs else np.zeros((0, 2), int),
    )
    real = np.arange(len(found)) % (len(keep) + 1) == len(keep)
    both = found[real][:1], found[~real]
    return rank_of_truth(*both, num_chains=chains), is_told(*both)


class _Proper(Messenger):  # type: ignore[misc]
    """A model that refuses to draw from an improper prior."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Look at a site before it is drawn."""
        if msg["type"] == "sample" and not msg["is_observed"]:
            refuse_improper(msg["name"], msg, "calibrate")


def _simulate(
    model: Callable[..., None],
    x: NDArray | None,
    graph: LabelGraph | None,
    num_points: int,
    options: Mapping[str, Any],
    size: int,
    seed: int,
    table: str = "",
) -> tuple[dict[str, NDArray], NDArray, NDArray | None]:
    """Draw parameters, data, and whether labels of statements agree; the first axis numbers simulations."""
    options, name = dict(options), getattr(model, "__name__", "the model")
    if x is None:
        options["num_points"] = num_points
    args = (None if x is None else jnp.asarray(x), *([] if graph is None else [graph]))

    def build(bare: Problem) -> Callable:
        def one(key: Array, args: tuple) -> tuple[dict[str, Array], Array, Array | None]:
            key_model, *keys = jax.random.split(key, 4)
            seeded = handlers.seed(_Proper(Honoured(bare.model)), key_model)
            sites = traced(seeded, args, bare.kwargs)
            refuse_factors(sites, name, "calibrate")
            sampled = {n: s for n, s in sites.items() if s["type"] == "sample"}
            fixed = {n: s | {"is_observed": True} for n, s in sampled.items()}
            mixed = list(collapsed_sites(fixed)) or [table] * (table in sampled)
            if not mixed:
                raise ValueError(
                    f"the model draws no data from a mixture, nor at a site called {table!r}; use a "
                    "LinkedMixture"
                )
            data = sampled.pop(mixed[-1])
            params = {n: s["value"] for n, s in sampled.items()} | deterministics(sites)
            if not isinstance(data["fn"], FiniteMixture) or len(args) < 2:
                return params, data["value"], None
            return params, *_draw_linked(data["fn"], args[0], keys)

        return lambda keys, args: jax.lax.map(lambda key: one(key, args), keys)

    keys = jax.random.split(jax.random.key(seed), size)
    problem = Problem(model, args, options)
    program, _ = compiled("simulate", problem, None, build, keys, args)
    params, value, agree = program(keys, args)
    return (
        {name: np.asarray(drawn) for name, drawn in params.items()},
        np.asarray(value),
        None if agree is None else np.asarray(agree),
    )


def _draw_linked(
    fn: FiniteMixture, x: Array | None, keys: list[Array]
) -> tuple[Array, Array | None]:
    """Draw data given parameters, unless they are given, and what statements say."""
    key_labels, key_data, key_links = keys
    labels = fn.labels
    if x is None:
        label = labels.sample(key_labels)
        x = fn.data_given(key_data, label)
    elif labels.reading == "field":
        raise ValueError(
            "x is given and links are a field, so nothing is drawn; read them as statements"
        )
    else:
        unary = fn.label_factors(fn.log_factors(x))
        label = jax.random.categorical(key_labels, unary + labels.log_weights)
    if labels.reading == "field" or labels.graph.num_links == 0:
        return x, None
    return x, labels.draw_statements(key_links, label)


def _stated(links: Links, agree: NDArray) -> Links:
    """Links of one simulation."""
    told = agree[: len(links)]  # spare rows say nothing
    return links.with_weights(np.where(told, 1.0, -1.0) * np.abs(links.weights))


def _outcome(
    model: Callable[..., None], x: NDArray | None, num_points: int, options: Mapping[str, Any]
) -> str | None:
    """The one table of several that the model draws at a site of its name, None if there is none."""
    tables = [role.name for role in signature_of(model).of_kind("table")]
    if len(tables) < 2 or x is not None or "num_points" not in signature_of(model).options:
        return None
    given = {**dict.fromkeys(tables), **options, "num_points": num_points}
    sites = jax.eval_shape(
        lambda key: {
            name: site["value"]
            for name, site in traced(handlers.seed(model, key), (), given).items()
        },
        jax.random.key(0),
    )
    drawn = [name for name in tables if name in sites]
    return drawn[0] if len(drawn) == 1 else None


def _roles(
    signature: Signature, links: Links | None, name: str, outcome: str | None
) -> tuple[str, str | None]:
    """Arguments that hold the table of points and the links among them."""
    tables, ties = signature.of_kind("table"), signature.of_kind("links")
    tables = tuple(role for role in tables if outcome in (None, role.name))
    if len(tables) != 1:
        raise TypeError(
            f"calibrate draws one table of points, and {name} has {[role.name for role in tables]}; leave "
            "num_points and x out, and pass by name the data that are held, all but the outcomes"
        )
    if links is not None and not ties:
        raise checks.no_links(name)
    return tables[0].name, ties[0].name if ties else None
