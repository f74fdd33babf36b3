"""Predictions of a fit: labels and densities of new data, and draws of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sidebayes.diagnostics.symmetry.matched import matched_draws
from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.indicators import keep_indicators
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.declared import finite_mixtures, individual_sites
from sidebayes.guides.engines.problem.density import abstract_trace, trace_model
from sidebayes.guides.engines.problem.honoured import is_outcome
from sidebayes.guides.engines.problem.posterior import MOST_DRAWS, thin
from sidebayes.guides.engines.problem.units import lay_out_units, log_terms, refuse_dependent_units
from sidebayes.models.blocks.side_information.links import Links

from ...common.fields import check_seed
from ...common.magnitudes import listed
from ...common.warnings import warn_user
from ...runs import checks
from ...runs.run import Run
from ...streams import by_block, refuse_target, scan_among
from .fit_base import FitBase, need_labels
from .new_data import (
    check_new,
    known_groups,
    refuse_links_to_known,
    sites_of_groups,
    stated_links,
    warn_of_idle_links,
)
from .other_rows import new_run, warn_of_reading_others
from .predictive import (
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

__all__ = [
    "log_prob",
    "over_draws",
    "predict",
    "predict_proba",
    "predictive",
    "refuse_impossible",
]


@overload
def predict_proba(
    fit: FitBase, *data: Any, to: None = None, progress: bool = True, **named: Any
) -> NDArray[np.float64]: ...
@overload
def predict_proba(
    fit: FitBase, *data: Any, to: str | Path, progress: bool = True, **named: Any
) -> Path: ...
def predict_proba(
    fit: FitBase, *data: Any, to: str | Path | None = None, progress: bool = True, **named: Any
) -> NDArray[np.float64] | Path:
    """Label probabilities of new points (Lu 2008, eq. 2.24), averaged over draws.

    Parameters
    ----------
    *data, **named
        New data for the arguments of the model, such as ``x_new`` and `Links` among the new points.
        Links, and whatever else is optional in the model, may be left out. A table on disk
        (`sidebayes.scan`) is read one block at a time.
    to : path, optional
        For a table on disk: a file ``.parquet`` or a folder ``.zarr`` to which the result is
        written block by block, instead of being returned as an array.
    progress : bool
        Show progress for a table on disk.

    Returns
    -------
    ndarray, shape (num_new, num_clusters)
        Or the path that was written to.

    Warns
    -----
    SideBayesWarning
        If links are given to a method in which links among new points change no labels, since these
        depend on the row and the parameters alone: they shape regions of space (`scp`, `mcp`) or
        are penalties of the fit (`constraint_fit`, `constraint_projection`).

    Raises
    ------
    ValueError
        If a row has density zero in every cluster, or the new links contradict each other; if a flip
        rate was learned for each group of links, and links are of none of these groups.
    """
    if scan_among(data, named) is not None:
        return _by_block(fit, predict_proba, data, named, to, "cluster", progress)
    refuse_target(to)
    need_labels(fit, "labels to predict")
    with fit.run.precision:
        sites = individual_sites(fit.run.problem)
    if sites:
        raise ValueError(
            f"{fit.method} has latent shapes of individuals, so that the probabilities of groups are "
            "integrals over them; use fit.group_log_likelihood, which has them with their errors"
        )

    def probabilities(trace: dict, layout: Any, owners: dict) -> Any:
        sources = finite_mixtures(trace).values()
        return jnp.concatenate([fn.responsibilities(value) for fn, value in sources])

    run = new_run(fit, data, named)
    warn_of_idle_links(run)
    prob = over_draws(fit, probabilities, run, matched_draws(*fit.relabelled)).mean(axis=0)
    return refuse_impossible(prob, "cluster")


@overload
def predict(
    fit: FitBase, *data: Any, to: None = None, progress: bool = True, **named: Any
) -> NDArray[np.int64]: ...
@overload
def predict(
    fit: FitBase, *data: Any, to: str | Path, progress: bool = True, **named: Any
) -> Path: ...
def predict(
    fit: FitBase, *data: Any, to: str | Path | None = None, progress: bool = True, **named: Any
) -> NDArray[np.int64] | Path:
    """Most probable label of each new point, shape (num_new,); see `predict_proba`.

    A file that is written has the column ``label``.
    """
    if scan_among(data, named) is not None:
        return _by_block(fit, predict, data, named, to, "label", progress)
    refuse_target(to)
    return np.argmax(predict_proba(fit, *data, **named), axis=1)


@overload
def log_prob(
    fit: FitBase, *data: Any, to: None = None, progress: bool = True, **named: Any
) -> NDArray[np.float64]: ...
@overload
def log_prob(
    fit: FitBase, *data: Any, to: str | Path, progress: bool = True, **named: Any
) -> Path: ...
def log_prob(
    fit: FitBase, *data: Any, to: str | Path | None = None, progress: bool = True, **named: Any
) -> NDArray[np.float64] | Path:
    """Log predictive density of each unit of new data, without links; shape (num_new,).

    It is minus infinity where a value lies outside the support of its distribution at every draw.
    Parameters are those of `predict_proba`; a file that is written has the column ``log_prob``.

    Warns
    -----
    SideBayesWarning
        If links are given, which are left out. Once, if the density of a row depends on which other
        rows are given, for example through a mean over rows.

    Raises
    ------
    ValueError
        If the model has no density of the points: a classifier describes their labels only.
    """
    if scan_among(data, named) is not None:
        return _by_block(fit, log_prob, data, named, to, "log_prob", progress)
    refuse_target(to)

    def log_density(trace: dict, layout: Any, owners: dict) -> Any:
        for site in filter(is_outcome, trace.values()):
            keep_indicators(site["fn"])
        terms, _ = log_terms(trace, layout, owners)
        by_dim: dict[Any, Any] = {}
        for name, term in terms.items():
            dim = layout.site_dims[name]
            term = term[: layout.num_units(name)]
            by_dim[dim] = by_dim[dim] + term if dim in by_dim else term
        return jnp.concatenate(list(by_dim.values()))

    with fit.run.precision:
        refuse_dependent_units(fit.run.problem, "log_prob")
    run = new_run(fit, data, named)
    _refuse_classifier(run)
    links = stated_links(run)
    if links:
        warn_user(
            f"{run.method}: log_prob leaves out {', '.join(links)}, as it is the density of each of the "
            "new units by itself"
        )
    unlinked = {n: v for n, v in run.data.items() if not isinstance(v, Links)}
    draws = pooled_draws(fit.tree)  # a density has no numbering of clusters
    per_draw = over_draws(fit, log_density, replace(run, data=unlinked), draws)
    total: NDArray[np.float64] = np.logaddexp.reduce(per_draw, axis=0) - np.log(len(per_draw))
    return total


def predictive(fit: FitBase, *data: Any, seed: int = 0, **named: Any) -> xr.DataTree:
    """Draw data from the posterior predictive distribution.

    Without arguments, replicates of the fitted data are drawn, with the same design, links and
    known classes. With new data for the arguments of the model, the outcomes of the new rows are
    drawn.

    Labels of points are drawn from their prior, given the links and known classes, which are held
    fixed. Effects or labels of groups (subjects) are drawn from their prior for new groups only;
    those of fitted groups are drawn jointly given their data, also for replicates. To compare the
    data with what the model expects of others, pass the same design with groups of new names. Sites
    with a value per unit, such as a sampled effect per subject, keep their draws for fitted groups.

    Parameters
    ----------
    *data, **named
        New data, as for `sidebayes.fit`. The outcomes to be drawn are left out or None; tables on
        which they do not depend may be left out too. Groups are matched by name.
    seed : int
        The same seed gives the same draws.

    Returns
    -------
    DataTree
        Groups ``posterior_predictive``, ``observed_data`` and ``constant_data``, which ArviZ plots;
        for new data, ``predictions`` and ``predictions_constant_data``. There is one draw for each
        draw of the parameters at which labels and densities are stored, at most 200 per chain; for
        a point estimate there are 200.

    Warns
    -----
    SideBayesWarning
        As for `log_prob`.

    Raises
    ------
    TypeError, ValueError
        For bad input, units for which a site has no values, or a model that simulates no data; the
        message says which.
    """
    check_seed(seed)
    run = fit.run
    run.problem  # noqa: B018  a model that is not known refuses
    own_design = all(value is None for value in (*data, *named.values()))
    given = {} if own_design else check_new(run, data, named, ("links", "table"))
    with run.precision:
        found, draws = outcomes(run), _stored_draws(fit)
        if own_design:
            return _replicates(run, found, draws, seed)
        return _outcomes_of(fit, given, found, draws, seed)


def _by_block(
    fit: FitBase,
    function: Callable,
    data: tuple,
    named: Mapping[str, Any],
    to: str | Path | None,
    column: str,
    progress: bool,
) -> NDArray | Path:
    sizes = fit.tree["posterior"].sizes
    draws = len(thin(sizes["draw"])) * sizes["chain"]
    asked = partial(function, fit)
    return by_block(asked, data, named, to, column, num_draws=draws, progress=progress)


def _stored_draws(fit: FitBase) -> xr.Dataset:
    """Latent sites, and deterministic ones that other data leave as they are."""
    sites = fit.tree["posterior"].to_dataset()
    sites = sites.drop_vars(set(fit.run.sized_by_units) - set(fit.run.unit_sites))
    if fit.tree["posterior"].attrs["point_estimate"]:
        again = sites.isel(draw=np.zeros(MOST_DRAWS, int))
        return again.assign_coords(draw=np.arange(MOST_DRAWS))
    return sites.sel(draw=fit.tree["log_likelihood"]["draw"])


def over_draws(fit: FitBase, function: Callable, run: Run, draws: Mapping[str, NDArray]) -> Any:
    """Apply a function of the model's trace, on the data of the fit or others, to draws of the parameters."""
    own = set() if run is fit.run else fit.run.sized_by_units  # of units that other data lack
    fixed = {n: v for n, v in draws.items() if n not in own}
    with run.precision:
        problem = run.problem
        layout = lay_out_units(problem)
        owners = {n: None if o is None else jnp.asarray(o) for n, o in layout.owners.items()}

        def over_draws(bare: Problem) -> Callable:
            def one(params: dict, args: tuple, owners: dict) -> Any:
                return function(trace_model(bare, params, args), layout, owners)

            return lambda draws, *rest: jax.lax.map(
                partial(one, args=rest[0], owners=rest[1]), draws
            )

        inputs = {n: jnp.asarray(v) for n, v in fixed.items()}, problem.args, owners
        units = tuple((name, layout.num_units(name)) for name in layout.site_dims)
        program, _ = compiled(function.__name__, problem, units, over_draws, *inputs)
        return jax.tree.map(np.asarray, program(*inputs))


def refuse_impossible(prob: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """Probabilities of rows, unless there is a row for which nothing is possible.

    Raises
    ------
    ValueError
        Naming such rows.
    """
    bad = np.flatnonzero(~np.isclose(prob.sum(axis=1), 1.0, atol=1e-3))
    if len(bad):
        raise ValueError(
            f"no {what} is possible for {len(bad)} of {len(prob)} rows: {listed(bad)}. They lie too far "
            "from the data that were fitted, or links contradict each other there; drop or correct these rows"
        )
    return prob


def _refuse_classifier(run: Run) -> None:
    """Refuse a model that describes labels given the rows, and not the rows."""
    with run.precision:
        sources = finite_mixtures(abstract_trace(run.problem)).values()
    if not all(fn.is_density for fn, _ in sources):
        raise ValueError(
            f"{run.method} is a classifier: it describes labels given the rows of data, and gives the rows "
            "themselves no density; use fit.predict_proba for labels, fit.score_links for held-out links"
        )


def _replicates(
    run: Run, found: Mapping[str, str | None], draws: xr.Dataset, seed: int
) -> xr.DataTree:
    """Data like those that were fitted."""
    problem, tables, values = run.problem, set(filter(None, found.values())), _flat(draws)
    drawn = draw_data(hide(problem, tables), values, seed, fitted=problem)
    refuse_unknown(run, drawn, ())
    observed = observed_values(run, {n: v[0] for n, v in values.items()}, found)
    alike = {n: v.astype(drawn.values[n].dtype) for n, v in observed.items()}
    groups = {
        "posterior_predictive": to_dataset(run, found, drawn.values, draws.coords),
        "observed_data": to_dataset(run, found, alike),
        "constant_data": design(run, tables),
    }
    return xr.DataTree.from_dict(groups)


def _outcomes_of(
    fit: FitBase,
    given: Mapping[str, Any],
    found: Mapping[str, str | None],
    draws: xr.Dataset,
    seed: int,
) -> xr.DataTree:
    """Outcomes of new rows."""
    run = fit.run
    tables = set(filter(None, found.values()))
    if tables & given.keys():
        raise TypeError(
            f"{sorted(tables & given.keys())} are what {run.method} observes, and what is drawn; leave "
            "them out, or pass None"
        )
    codes = known_groups(run, given)
    refuse_links_to_known(run, given, codes)
    taken = sites_of_groups(run, given, codes)
    filled = fill_tables(
        replace(run, data=given), checks.check_dims(run.signature, given), run.data
    )
    new = run.with_data(filled, known=taken)
    warn_of_reading_others(fit, given)
    warn_of_idle_links(new)
    known = {n: np.resize(run.data[n], filled[n].shape) for n in tables & filled.keys()}

    def drawn_from(new: Run) -> Drawn:
        how: dict[str, Any] = {"fitted": run.problem, "codes": codes, "taken": taken}
        return draw_data(new.problem, _flat(draws), seed, **how)

    drawn = drawn_from(new)
    left_out = filled.keys() - given.keys() - tables
    refuse_unknown(run, drawn, left_out, lambda: drawn_from(replace(new, data={**filled, **known})))
    groups = {
        "predictions": to_dataset(new, found, drawn.values, draws.coords),
        "predictions_constant_data": design(new, filled.keys() - given.keys()),
    }
    return xr.DataTree.from_dict(groups)


def _flat(draws: xr.Dataset) -> dict[str, NDArray]:
    """Values of sites, chains one after another."""
    arrays = {str(name): site.to_numpy() for name, site in draws.data_vars.items()}
    return {name: value.reshape(-1, *value.shape[2:]) for name, value in arrays.items()}
