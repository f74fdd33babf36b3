"""Predictive scores for held-out units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.problem import posterior
from sidebayes.guides.engines.problem.units import (
    Layout,
    lay_out_units,
    refuse_dependent_units,
)

from ...common.fields import check_integer, check_seed
from ...common.magnitudes import shown
from ...common.warnings import warn_user
from ...runs.run import Run
from ...tasks import Task, run_tasks
from ..base.fit_base import FitBase
from ..base.other_rows import joined_units, refuse_reading_others, sum_by_unit
from .unit_names import (
    by_unit,
    observed_terms,
    refuse_links_alone,
    refuse_no_rows,
    unit_names,
    warn_of_few,
    without_links,
)

if TYPE_CHECKING:
    from arviz_stats.utils import ELPDDataLOOKFold

__all__ = [
    "Units",
    "check_unit",
    "deal_folds",
    "error_of_sum",
    "fits_without",
    "kfold",
    "refuse_sample",
    "unit_terms",
    "units_held_out",
    "warn_of_unsettled",
]


def unit_terms(fit: FitBase) -> NDArray[np.float64]:
    """See `Fit.unit_terms`."""
    if "log_likelihood" not in fit.tree:
        raise ValueError(f"{fit.method} has only factors, and so no densities of units")
    by_dim: dict[str, NDArray] = {}
    for values in fit.tree["log_likelihood"].data_vars.values():
        dim, terms = str(values.dims[-1]), values.to_numpy()
        by_dim[dim] = by_dim[dim] + terms if dim in by_dim else terms
    return np.concatenate(list(by_dim.values()), axis=-1)


def refuse_sample(fit: FitBase, asked: str) -> None:
    """Refuse scores of a fit whose table on disk is kept as a sample of its rows."""
    if fit.run.sample_of:
        raise ValueError(
            f"{asked} needs all {fit.run.sample_of} rows of the table on disk, and the fit keeps a sample of "
            "them; fit.log_prob(scan) gives the log density of any rows"
        )


def kfold(
    fit: FitBase,
    num_folds: int = 10,
    *,
    unit: str = "set",
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = True,
) -> ELPDDataLOOKFold:
    r"""Leave out one fold of units at a time, and refit to the rest.

    No link is cut: a connected set is held out with all its points and links, and a group with all
    its rows. Each is scored by

    .. math:: \log \frac1S \sum_s p(x_c, \ell_c \mid \theta_s), \qquad
              \theta_s \sim p(\theta \mid x_{-F}, \ell_{-F}),

    with latent variables integrated out, where F is the fold that contains c. If links are read as
    a field, the density is that of the data given the links. The score is exact up to Monte Carlo
    error, whereas `loo` relies on importance weights. Refits keep the prior of the whole fit, even
    if it was set from the data. Data that are observed as a whole, beside others that have units,
    stay in every refit.

    Method, options and engine are those of the fit, without a checkpoint.

    Parameters
    ----------
    num_folds : int
        Number of folds, at least 2. With as many folds as connected sets, one set is left out at a
        time.
    unit : {"set", "row"}
        "set" leaves out units. "row" deals single rows to folds, even where links tie them, drops
        all links of a fold's rows, and scores each row by its density alone, as `loo` does. Fits
        with any links, or with none, can then be compared.
    seed : int
        Seed of the assignment of units to folds, and of the engine.
    n_jobs : int, optional
        Number of folds to fit in parallel; by default one, or as ``joblib.parallel_config`` sets
        it. The scores are the same.
    progress : bool

    Returns
    -------
    arviz_stats.utils.ELPDDataLOOKFold
        ``elpd_i`` and ``p_kfold_i`` are by unit; their coordinate names the elements of each unit,
        such as "3" or "3+17". `arviz_stats.compare` accepts the result, but pairs units by their
        order alone.

    Raises
    ------
    ValueError
        If there are fewer units than folds; if the data do not determine the units; if parameters
        belong to single rows, so that held-out rows have no density; or if the density of a row
        depends on which other rows are given, for example through a mean over rows; or, for "row",
        if units do not consist of rows.
    """
    from arviz_stats.utils import ELPDDataLOOKFold

    check_unit(unit)
    refuse_sample(fit, "kfold")
    units = units_held_out(fit, "kfold", unit)
    of, starts = units.of, units.starts
    flat = np.concatenate([starts[dim] + u for dim, u in of.items()])
    dims = np.repeat(np.arange(len(of)), [int(u.max()) + 1 for u in of.values()])
    fold = deal_folds(flat, num_folds, seed, dims)
    within = _by_row(fit, of) if unit == "row" else _by_joined_unit(fit, units.layout, of)
    elpd = np.full(units.size, np.nan)
    unsettled = {}
    held = (
        Task(f"fold {number + 1}", {d: fold[starts[d] + u] == number for d, u in of.items()})
        for number in range(num_folds)
    )
    how: dict[str, Any] = {"n_jobs": n_jobs, "title": "k-fold", "progress": progress}
    refits = fits_without(fit, of, held, alone=unit == "row", seed=seed, total=num_folds, **how)
    for number, refit in enumerate(refits):
        for dim, (numbers, density) in refit.density.items():
            elpd[starts[dim] + numbers] = density
        if refit.doubt:
            unsettled[number] = refit.doubt
    warn_of_unsettled("on folds", unsettled)
    left = np.bincount(fold[flat], minlength=num_folds)
    warn_of_few(fit, int(units.observed.sum()), len(flat), len(flat) - int(left.max()))
    elpd, inside = elpd[units.observed], within[units.observed]
    names = unit_names(fit.run, of)[units.observed]
    return ELPDDataLOOKFold(
        elpd=float(elpd.sum()),
        se=error_of_sum(elpd),
        p=float((inside - elpd).sum()),
        n_samples=refit.num_draws,
        n_data_points=len(elpd),
        scale="log",
        warning=bool(unsettled),
        good_k=None,  # type: ignore[arg-type]
        elpd_i=by_unit("elpd_i", elpd, names),
        n_folds=num_folds,
        p_kfold_i=by_unit("p_kfold_i", inside - elpd, names),
    )


def check_unit(unit: str) -> None:
    """Refuse what is no unit of `loo` and `kfold`."""
    if not isinstance(unit, str) or unit not in ("set", "row"):
        raise ValueError(f"unit = {shown(unit)}; expected 'set' or 'row'")


def error_of_sum(terms: NDArray[np.float64]) -> float:
    """Standard error of a sum of scores by unit; NaN where there is one unit.

    The variance of the scores has n - 1 in its denominator, as that of LOO has in ArviZ.
    """
    return float(np.sqrt(len(terms)) * terms.std(ddof=1)) if len(terms) > 1 else np.nan


class Units(NamedTuple):
    """Units that can be held out.

    Attributes
    ----------
    layout : Layout
    of : dict of str to ndarray of int
        Unit of every element, by dimension, numbered from zero in each.
    starts : dict of str to int
        Number of the first unit of each dimension among all, in whose order `loo` has the units.
    size : int
    observed : ndarray of bool, shape (size,)
        Which of them are of data; others are not counted.
    """

    layout: Layout
    of: dict[str, NDArray[np.int64]]
    starts: dict[str, int]
    size: int
    observed: NDArray[np.bool_]


def units_held_out(fit: FitBase, asked: str, kind: str = "set") -> Units:
    """Units of the data of a fit, which can be held out; single rows if the `kind` is "row".

    Raises
    ------
    ValueError
        If held-out data have no density given a fit to the others, or one of several dimensions has a single
        unit.
    """
    if fit.config.hard_labels:
        raise ValueError("K-means has no density of held-out data; fit with 'em' or 'map'")
    with fit.run.precision:
        refuse_dependent_units(fit.run.problem, asked)
        layout = lay_out_units(fit.run.problem)
    unit = joined_units(fit.run, layout)
    stored = fit.tree["log_likelihood"].data_vars  # in whose order `loo` has the units
    own = dict.fromkeys(layout.site_dims[str(name)] for name in stored)
    unit = {dim: unit[dim] for dim in own if dim in unit}
    if kind == "row":
        refuse_no_rows(fit.run, layout)
        unit = {dim: np.arange(len(u)) for dim, u in unit.items()}
    if fit.run.unit_sites:
        raise ValueError(
            f"{fit.method}: sites {fit.run.unit_sites} change shape with the data, so that rows "
            "held out have no density given a fit to the others"
        )
    fit.run.rows.refuse_others(fit.method)
    refuse_reading_others(fit, asked)
    sizes = [int(u.max()) + 1 for u in unit.values()]
    alone = [dim for dim, size in zip(unit, sizes, strict=True) if size == 1]
    if len(unit) > 1 and alone:
        raise ValueError(
            f"{asked} leaves out units, and fits the rest; {alone[0]!r} has one unit, without which nothing "
            "of it is left to fit"
        )
    starts = dict(zip(unit, np.cumsum([0, *sizes]).tolist(), strict=False))
    told = observed_terms(fit)
    observed = [np.bincount(u, told[d][layout.unit[d]]) > 0 for d, u in unit.items()]
    return Units(layout, unit, starts, sum(sizes), np.concatenate(observed))


class _Refits(NamedTuple):
    """What fits without some elements have in common."""

    of: Callable[..., FitBase]
    base: Run
    unit: Mapping[str, NDArray]
    alone: bool
    sized_by_units: Collection[str]


class Refit(NamedTuple):
    """What a fit without some elements says of them.

    Attributes
    ----------
    density : dict of (ndarray, ndarray)
        Numbers of the units left out of each dimension, and their log predictive densities.
    num_draws : int
    doubt : str
        How the engine ended where it did not converge; empty if it did.
    """

    density: dict[str, tuple[NDArray, NDArray]]
    num_draws: int
    doubt: str


def fits_without(
    fit: FitBase,
    unit: Mapping[str, NDArray],
    held: Iterable[Task],
    *,
    alone: bool = False,
    seed: int,
    **how: Any,
) -> Iterator[Refit]:
    """Fit again without some elements, whose units are scored.

    Parameters
    ----------
    fit : Fit
    unit : mapping of str to ndarray of int
        Unit of every element, by dimension.
    held : iterable of Task
        Which elements to hold out, as a mask by dimension.
    alone : bool
        Score the elements without the links among them.
    seed : int
    **how
        Arguments of `run_tasks`.
    """
    base = replace(fit.run.settled(), seed=seed, checkpoint=None)
    shared = _Refits(type(fit).of, base, unit, alone, fit.run.sized_by_units)
    return run_tasks(_fit_without, held, shared, **how)


def _fit_without(shared: _Refits, held: Mapping[str, NDArray]) -> Refit:
    some = shared.of(shared.base.subset({d: ~mask for d, mask in held.items()}), progress=False)
    # a plate needs a row: of a dimension that nothing is held out of, the first unit stands in
    shown = {d: m if m.any() else shared.unit[d] == shared.unit[d][0] for d, m in held.items()}
    rest = replace(shared.base.subset(shown), unseen=True)
    rest = without_links(rest) if shared.alone else rest
    found, draws = _held_out(some, rest, shown, shared.unit, shared.sized_by_units)
    density = {dim: own for dim, own in found.items() if held[dim].any()}
    doubt = "" if some.status.converged else some.status.message
    return Refit(density, draws, doubt)


def warn_of_unsettled(where: str, doubts: Mapping[int, str]) -> None:
    """Name the refits that did not converge, and say how the first of them ended."""
    if doubts:
        first = next(iter(doubts.values()))
        warn_user(f"the engine did not converge {where} {[*doubts]}; the first of them: {first}")


def deal_folds(
    unit: NDArray, num_folds: int, seed: int, dims: NDArray | None = None
) -> NDArray[np.int64]:
    """Fold of each connected set: dealt at random, the largest first, to the fold with fewest points.

    Those of each dimension are dealt evenly, to the fold with fewest points of this dimension.

    Parameters
    ----------
    unit : ndarray of int, shape (num_points,)
        Connected set of each point.
    num_folds, seed : int
    dims : ndarray of int, shape (num_connected_sets,), optional
        Number of the dimension of each connected set; by default there is one.

    Returns
    -------
    ndarray of int, shape (num_connected_sets,)

    Raises
    ------
    ValueError
        If there are fewer connected sets than folds.
    """
    size = np.bincount(unit)
    num_folds = check_integer("num_folds", num_folds, 2)
    if num_folds > len(size):
        alone = "units that can be held out, which are rows, or groups of them"
        joined = "connected sets of the links, which are held out whole"
        raise ValueError(
            f"num_folds = {num_folds}; expected at most {len(size)}, the number of "
            f"{alone if size.max() <= 1 else joined}"
        )
    order = np.random.default_rng(check_seed(seed)).permutation(len(size))
    order = order[np.argsort(-size[order], kind="stable")]
    dims = np.zeros(len(size), np.int64) if dims is None else dims
    fold, points = np.empty(len(size), np.int64), np.zeros((int(dims.max()) + 1, num_folds))
    for one in order:
        fold[one] = np.lexsort((points.sum(axis=0), points[dims[one]]))[0]
        points[dims[one], fold[one]] += size[one]
    return fold


def _by_row(fit: FitBase, unit: Mapping[str, NDArray]) -> NDArray[np.float64]:
    """Log density of each row alone, without its links, given the whole fit."""
    whole = {dim: np.ones(len(u), bool) for dim, u in unit.items()}
    found, _ = _held_out(fit, without_links(fit.run), whole, unit, ())
    terms = np.concatenate([density for _, density in found.values()])
    refuse_links_alone(fit.run, terms)
    return terms


def _by_joined_unit(
    fit: FitBase, layout: Layout, unit: Mapping[str, NDArray]
) -> NDArray[np.float64]:
    """Log density of each unit given the whole fit, averaged over draws."""
    stored = fit.tree["log_likelihood"].data_vars.items()
    terms = {str(name): v.to_numpy().reshape(-1, v.shape[-1]) for name, v in stored}
    found = sum_by_unit(terms, layout, unit)
    return np.concatenate([_log_mean(total) for _, total in found.values()])


def _held_out(
    fit: FitBase,
    held: Run,
    masks: Mapping[str, NDArray],
    unit: Mapping[str, NDArray],
    sized_by_units: Collection[str],
) -> tuple[dict[str, tuple[NDArray, NDArray]], int]:
    """Log predictive density of units left out, by dimension with their numbers; and draws used."""
    with held.precision:
        problem = held.problem
        draws = pooled_draws(fit.tree, of_each_chain=True)
        draws = {n: v for n, v in draws.items() if n not in sized_by_units}
        terms = posterior.derive(problem, draws).log_likelihood
        layout = lay_out_units(problem)
    own = {dim: joined[masks[dim]] for dim, joined in unit.items()}
    found = sum_by_unit(terms, layout, own)
    return {dim: (numbers, _log_mean(total)) for dim, (numbers, total) in found.items()}, len(
        next(iter(terms.values()))
    )


def _log_mean(terms: NDArray) -> NDArray:
    return np.asarray(logsumexp(terms, axis=0) - np.log(len(terms)))
