"""Data and parameters drawn from the prior of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import xarray as xr
from arviz_base import dict_to_dataset
from jax import Array
from numpy.typing import NDArray
from numpyro import handlers

from sidebayes.diagnostics.sites import name_axes
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.declared import site_dims
from sidebayes.guides.engines.problem.density import (
    abstract_trace,
    deterministics,
    latent_sites,
)
from sidebayes.guides.engines.problem.honoured import Honoured
from sidebayes.guides.engines.samplers.from_prior.particles import check_prior
from sidebayes.guides.engines.steps.starts import random_keys

from ..common.fields import check_integer, check_seed
from ..results.base.predictive import (
    Drawn,
    design,
    draw_data,
    fill_tables,
    hide,
    observed_values,
    outcomes,
    refuse_unknown,
    to_dataset,
)
from ..runs.arguments import find_method, read_arguments
from ..runs.run import Run
from ..runs.stored import coordinates
from ..runs.zoo import make_engine

__all__ = ["draw_prior", "prior_predictive", "refuse_factors"]


def prior_predictive(
    method: str | Callable[..., None],
    *data: Any,
    num_draws: int = 500,
    seed: int = 0,
    **arguments: Any,
) -> xr.DataTree:
    """Draw parameters from the prior of a model, and data given them.

    Parameters
    ----------
    method : str or callable
        Name of a card or a NumPyro model, as for `fit`.
    *data
        Data as for `fit`. Outcomes may be left out or None where other data determine the number of
        rows; the model is given NaN in their place. Links and known classes are held fixed, and
        labels are drawn given them.
    num_draws : int
    seed : int
        The same seed gives the same draws.
    **arguments
        Data by name, and options of the model.

    Returns
    -------
    DataTree
        Groups ``prior``, ``prior_predictive``, ``constant_data``, and ``observed_data`` where outcomes
        were given.

    Raises
    ------
    TypeError, ValueError
        For bad input, an improper prior (the message names its site), or a model that simulates no
        data.

    Examples
    --------
    >>> import sidebayes
    >>> data = sidebayes.load_dataset("iris")
    >>> drawn = sidebayes.prior_predictive("gmm", data.x, num_clusters=3, num_draws=20)
    >>> drawn["prior_predictive"]["x"].shape
    (1, 20, 150, 4)
    """
    card, model, name = find_method(method)
    read = read_arguments(model, name, data, arguments, ("links", "table"))
    check_seed(seed)
    num_draws = check_integer("num_draws", num_draws)
    run = Run(
        name,
        model,
        read.data,
        read.options,
        make_engine(None, card),
        columns=read.columns,
        unseen=True,
    )
    run = replace(run, data=fill_tables(run, read.sizes))
    left_out = run.data.keys() - read.data.keys()
    with run.precision:
        sites, found, values = draw_prior(run, left_out, num_draws, seed, "prior_predictive")
        known = {site: table for site, table in found.items() if table in read.data}
        observed = observed_values(run, {n: value[0] for n, value in sites.items()}, known)
        dims: dict[Any, Any] = site_dims(run.problem)
    prior = dict_to_dataset({n: value[None] for n, value in sites.items()}, dims=dims)
    numbers = {"chain": np.arange(1), "draw": np.arange(num_draws)}
    groups = {
        "prior": name_axes(prior, coordinates(run)),
        "prior_predictive": to_dataset(run, found, values, numbers),
        "constant_data": design(run, left_out | set(filter(None, found.values()))),
    }
    if observed:
        groups["observed_data"] = to_dataset(run, found, observed)
    return xr.DataTree.from_dict(groups)


def draw_prior(
    run: Run, left_out: Set[str], num_draws: int, seed: int, asked: str
) -> tuple[dict[str, NDArray], dict[str, str | None], dict[str, NDArray]]:
    """Draw parameters from the prior, and the data of all observed sites given them.

    Parameters
    ----------
    run : Run
        With all its tables; see `fill_tables`.
    left_out : set of str
        Tables whose numbers are not known.
    num_draws, seed : int
    asked : str
        What was called, for messages.

    Returns
    -------
    sites : dict of ndarray, shape (num_draws, ...)
        Latent and deterministic sites.
    found : dict of str to str or None
        See `outcomes`.
    values : dict of ndarray, shape (num_draws, ...)
        Data by observed site.

    Raises
    ------
    TypeError, ValueError
        If the prior is improper, or the model simulates no data.
    """
    problem, found = run.problem, outcomes(run)
    check_prior(problem, asked, None)
    refuse_factors(abstract_trace(problem), run.method, asked)
    tables = set(filter(None, found.values()))
    keys = random_keys(seed, num_draws)
    program, _ = compiled("prior", problem, None, _draw_prior, keys, problem.args)
    sites = {n: np.asarray(value) for n, value in program(keys, problem.args).items()}
    unknown = [n for n, value in sites.items() if np.isnan(value).any()]
    refuse_unknown(run, Drawn({}, unknown, []), left_out)
    drawn = draw_data(hide(problem, tables), sites, seed + 1)
    refuse_unknown(run, drawn, left_out - tables)
    return sites, found, drawn.values


def refuse_factors(trace: Mapping[str, Any], name: str, asked: str) -> None:
    """Refuse to draw from a model with factors, given its trace."""
    factors = [site for site, about in trace.items() if isinstance(about.get("fn"), dist.Unit)]
    if factors:
        raise ValueError(
            f"{name} has the factors {factors}, so that its sites have another prior than the one that "
            f"they are sampled from; {asked} draws from models without factors"
        )


def _draw_prior(problem: Problem) -> Callable:
    def one(key: Array, args: tuple) -> dict[str, Array]:
        seeded = handlers.seed(Honoured(problem.model), jax.random.wrap_key_data(key))
        trace = handlers.trace(seeded).get_trace(*args, **problem.kwargs)
        latent = {name: site["value"] for name, site in latent_sites(trace).items()}
        return latent | deterministics(trace)

    return lambda keys, args: jax.lax.map(lambda key: one(key, args), keys)
