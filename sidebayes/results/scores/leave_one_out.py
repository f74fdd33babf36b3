"""Leave-one-out scores: of units, and of single rows with the links of the row dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sidebayes.diagnostics.sites import point_sites
from sidebayes.guides.engines.problem import posterior
from sidebayes.guides.engines.problem.declared import imputed_sites, individual_sites
from sidebayes.guides.engines.problem.importance import pareto_smoothed
from sidebayes.guides.engines.problem.units import (
    dependent_sites,
    lay_out_units,
    refuse_dependent_units,
    refuse_powers,
)
from sidebayes.models.blocks.side_information.links import Links

from ...common.fields import check_seed
from ...common.magnitudes import counted, listed, shown
from ...common.warnings import warn_user
from ...runs.zoo import can_draw
from ...tasks import Task
from ..base.fit_base import FitBase
from .unit_names import (
    by_unit,
    observed_terms,
    refuse_links_alone,
    refuse_no_rows,
    unit_names,
    units_of_terms,
)
from .validation import (
    check_unit,
    error_of_sum,
    fits_without,
    refuse_sample,
    unit_terms,
    units_held_out,
    warn_of_unsettled,
)

if TYPE_CHECKING:
    from arviz_stats.utils import ELPDDataLOO

__all__ = ["loo"]

_FEW = 3
"""Numbers of points up to which LOO is of use. Each raises it by about one nat (Stone 1977, J. R. Stat. Soc.
B 39, 44-47, on the equivalence with Akaike's criterion), and differences below 4 nats tell nothing."""


def loo(
    fit: FitBase,
    *,
    unit: str = "set",
    refit: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = True,
) -> ELPDDataLOO:
    r"""Leave out one unit at a time, by Pareto-smoothed importance sampling (PSIS).

    A unit is what is exchangeable: a row, a group, or a connected set of rows.

    Parameters
    ----------
    unit : {"set", "row"}
        "set" leaves out units. "row" leaves out single rows, even where links tie them. The term of
        row i is then

        .. math:: \log p(x_i \mid x_{-i}, \ell_{-i}) = \log \int p(x_i \mid \theta)\,
                  p(\theta \mid x_{-i}, \ell_{-i})\, d\theta

        with the links :math:`\ell_{-i}` that do not join row i. The term does not contain the row's
        own links, so it can be compared between fits with any links, or with none.
    refit : bool
        Refit without each unit whose Pareto k is too high, instead of using its importance weights.
    seed : int
        Seed of the refits.
    n_jobs : int, optional
        Number of refits to run in parallel; by default one, or as ``joblib.parallel_config`` sets
        it. The result is the same.
    progress : bool

    Returns
    -------
    arviz_stats.utils.ELPDDataLOO
        ``elpd_i`` and ``pareto_k`` are by unit; their coordinate names the elements of each unit,
        such as "3" or "3+17". ``pareto_k`` is zero for units that were left out by a refit. A
        warning counts the units for which the draws are too narrow, and recommends `refit` for a
        few of them and `kfold` for many. `arviz_stats.compare` accepts the result, but pairs units
        by their order alone.

    Warns
    -----
    SideBayesWarning
        If some sites are point estimates beside variational factors; it says by how much the
        estimate is too high.

    Raises
    ------
    ValueError
        If the fit is a point estimate, holds more than three numbers at point estimates, or gives
        some units no density; if there is only one unit; or, for "row", if units do not consist of rows.

    References
    ----------
    Vehtari, Gelman and Gabry (2017), Stat. Comput. 27, 1413-1432, doi:10.1007/s11222-016-9696-4. Its
    weights for a row, :math:`p(x_{C \setminus i}, \ell_{-i} \mid \theta) / p(x_C, \ell_C \mid \theta)`, C the
    connected set of row i, are our own.
    """
    check_unit(unit)
    if not isinstance(refit, bool | np.bool_):
        raise TypeError(f"refit = {shown(refit)}; expected True or False")
    check_seed(seed)
    terms = _finite_terms(fit, unit)
    _look_at_points(fit, unit)
    found = _of_units(fit, terms) if unit == "set" else _of_rows(fit, terms)
    wide = np.flatnonzero(
        ~(found.pareto_k.to_numpy() <= found.good_k)
    )  # NaN where weights have no tail
    if refit and len(wide):
        return _refitted(fit, found, wide, unit, seed, n_jobs, progress)
    if len(wide):
        warn_user(
            f"Pareto k is above {found.good_k:.2f} at {len(wide)} of {found.n_data_points} units: "
            "without them the posterior is another, and the estimate is not to be trusted; "
            + (
                "a fit with form='marginal' can be made again without units, by loo(refit=True) or kfold()"
                if _shares_effects(fit)
                else f"fit.loo({_of(unit, 'refit=True')}) fits again without each of them, "
                f"fit.kfold({_of(unit)}) without a tenth at a time, unless parameters belong to single units"
            )
        )
    return found


def _refuse_imputed(fit: FitBase) -> None:
    """Refuse densities of values that are no data."""
    for site, latent in imputed_sites(fit.run.problem).items():
        if latent:
            raise ValueError(
                f"{fit.method}: site {site!r} observes values that depend on {listed(latent)}, so that loo "
                "would score values that are imputed or transformed as if they were data; have it observe "
                "the data themselves (obs=x, say), without missing ones by numpyro.handlers.mask"
            )


def _finite_terms(fit: FitBase, unit: str) -> NDArray[np.float64]:
    """Terms of the log likelihood by unit, of enough draws."""
    refuse_sample(fit, "loo")
    terms = unit_terms(fit)
    with fit.run.precision:
        if fit.run.model is not None:
            refuse_powers(fit.run.problem, "loo")
            if sites := individual_sites(fit.run.problem):
                raise ValueError(
                    f"{fit.method} has densities of individuals given their {sites[0]}, of which nothing is "
                    "known once an individual is left out; use fit.group_log_likelihood of new individuals"
                )
        if fit.run.model is not None and fit.run.card is None:
            _refuse_imputed(fit)
    if np.prod(terms.shape[:2]) < 100:
        raise ValueError(
            f"{fit.engine} gave {counted(int(np.prod(terms.shape[:2])), 'draw')}, too few to leave data out "
            f"by their weights; {_by_refits(fit, unit)}"
            + ", or an engine that draws"
            * can_draw(fit.run.card)
        )
    if not np.isfinite(terms).all():
        raise ValueError("the fit gives some rows no density; there is nothing to leave out")
    return terms


def _by_refits(fit: FitBase, unit: str) -> str:
    """How units are left out by fits without them, to follow a message."""
    if _shares_effects(fit):
        return "use form='marginal' and kfold()"
    return f"use fit.kfold({_of(unit)})"


def _of(unit: str, *given: str) -> str:
    """Arguments of a call that leaves out the same units."""
    return ", ".join([f"unit={unit!r}"] * (unit != "set") + list(given))


def _shares_effects(fit: FitBase) -> bool:
    """Whether units share effects that were integrated out, so that no fit is made without some."""
    if fit.run.model is None:  # a loaded fit
        return False
    with fit.run.precision:
        return bool(dependent_sites(fit.run.problem))


def _look_at_points(fit: FitBase, unit: str) -> None:
    """Refuse or warn where sites are points, at which the density of a unit is one of data that were seen."""
    points = point_sites(fit.tree)
    number = sum(points.values())
    if not number:
        return
    held = f"{fit.engine} holds {listed(list(points))} at points that were fitted to all units"
    remedy = f"{_by_refits(fit, unit)}, or an engine that draws these sites, such as 'nuts'"
    if number > _FEW:
        raise ValueError(
            f"{held}, so that units left out by weights are not left out of these {number} numbers, and the "
            f"estimate would be too high; {remedy}"
        )
    warn_user(
        f"{held}, so that the estimate is too high by about {number} nats, one for each number; for more "
        f"{remedy}"
    )


def _of_units(fit: FitBase, terms: NDArray) -> ELPDDataLOO:
    flat = terms.reshape(-1, terms.shape[-1]).T
    if len(flat) == 1:
        raise ValueError(
            f"{fit.method} observes all data as one unit, without which none are left: a site without plate "
            "and annotated rows, or rows that links all join (unit='row' scores these without their links). "
            "Compare such fits by fit.log_evidence"
        )
    if fit.run.model is None:  # which tells the units
        return _weighted(-flat, flat, None)
    observed, names = _observed(fit, "set"), unit_names(fit.run, units_of_terms(fit))
    return _weighted(-flat[observed], flat[observed], names[observed])


def _observed(fit: FitBase, unit: str) -> NDArray[np.bool_]:
    """Which units, or rows of such units, are of data; others have no score."""
    told = observed_terms(fit)
    if unit == "row":
        told = {dim: told[dim][owner] for dim, owner in units_of_terms(fit).items()}
    return np.concatenate(list(told.values()))


def _of_rows(fit: FitBase, terms: NDArray) -> ELPDDataLOO:
    """Scores of rows, each without its links; see `loo`."""
    run = fit.run
    with run.precision:
        refuse_dependent_units(run.problem, "loo(unit='row')")
        layout = lay_out_units(run.problem)
    refuse_no_rows(run, layout)
    ((dim, unit),) = layout.unit.items()
    if np.array_equal(unit, np.arange(len(unit))):
        return _of_units(fit, terms)
    flat = terms.reshape(-1, terms.shape[-1])
    ratios, own = np.empty((len(unit), len(flat))), np.empty((len(unit), len(flat)))
    for dropped in _rounds(unit):
        rest, alone = _without(fit, dim, unit, dropped)
        ratios[dropped] = rest[unit[dropped]] - flat.T[unit[dropped]]
        own[dropped] = alone
    refuse_links_alone(run, own)
    observed, names = _observed(fit, "row"), unit_names(run, {dim: np.arange(len(unit))})
    return _weighted(ratios[observed], own[observed], names[observed])


def _rounds(unit: NDArray[np.int64]) -> Sequence[NDArray[np.int64]]:
    """Rows by their place in their connected set, so that those of one round are in sets of their own."""
    order = np.argsort(unit, kind="stable")
    first = np.searchsorted(unit[order], unit[order])
    place = np.empty(len(unit), np.int64)
    place[order] = np.arange(len(unit)) - first
    return [np.flatnonzero(place == number) for number in range(place.max() + 1)]


def _without(
    fit: FitBase, dim: str, unit: NDArray[np.int64], dropped: NDArray[np.int64]
) -> tuple[NDArray, NDArray]:
    """Terms at every draw, links of some rows dropped: of what is left of each set, and of these rows."""
    run = fit.run
    links = {
        name: one.take(np.flatnonzero(~np.isin(one.pairs, dropped).any(axis=1)))
        for name, one in run.data.items()
        if isinstance(one, Links)
    }
    kept = fit.tree["log_likelihood"]["draw"].to_numpy()
    keep = np.searchsorted(fit.tree["posterior"]["draw"].to_numpy(), kept)
    sites = fit.tree["posterior"].data_vars.items()
    draws = {str(n): v.to_numpy()[:, keep].reshape(-1, *v.shape[2:]) for n, v in sites}
    bare = replace(run, data={**run.data, **links}, unseen=True)  # of links, none may be left
    with bare.precision:
        layout = lay_out_units(bare.problem)
        found = posterior.derive(bare.problem, draws).log_likelihood
    terms: Any = np.sum(list(found.values()), axis=0).T
    now = layout.unit[dim]
    alone = terms[now[dropped]]
    terms[now[dropped]] = 0.0
    owner = np.zeros(len(terms), np.int64)
    owner[now] = unit
    rest = np.zeros((unit.max() + 1, terms.shape[1]))
    np.add.at(rest, owner, terms)
    return rest, alone


def _weighted(ratios: NDArray, own: NDArray, names: NDArray[np.object_] | None) -> ELPDDataLOO:
    """Scores by smoothed weights; the axes of log ratios and log densities are (unit, draw)."""
    from arviz_stats.utils import ELPDDataLOO

    number = ratios.shape[1]
    weights, k = pareto_smoothed(ratios)
    good = min(1 - 1 / np.log10(number), 0.7)
    elpd = logsumexp(weights + own, axis=1)
    inside = logsumexp(own, axis=1) - np.log(number)
    return ELPDDataLOO(
        elpd=float(elpd.sum()),
        se=error_of_sum(elpd),
        p=float((inside - elpd).sum()),
        n_samples=number,
        n_data_points=len(elpd),
        scale="log",
        warning=not bool((k <= good).all()),
        good_k=good,
        elpd_i=by_unit("elpd_i", elpd, names),
        pareto_k=by_unit("pareto_k", k, names),
    )


def _refitted(
    fit: FitBase,
    found: ELPDDataLOO,
    wide: NDArray,
    unit: str,
    seed: int,
    n_jobs: int | None,
    progress: bool,
) -> ELPDDataLOO:
    """Scores of some units replaced by those of fits without them."""
    held = units_held_out(fit, "loo(refit=True)")
    own = {d: np.arange(len(u)) for d, u in held.of.items()} if unit == "row" else held.of
    observed = _observed(fit, unit)
    if sum(int(u.max()) + 1 for u in own.values()) != len(observed):
        raise ValueError(
            "links that do not tie labels join what loo leaves out one by one, so that no fit can be made "
            "without a single unit; use fit.kfold()"
        )
    starts = dict(zip(own, np.cumsum([0, *(int(u.max()) + 1 for u in own.values())]), strict=False))
    places = np.flatnonzero(observed)
    elpd, k = found.elpd_i.to_numpy().copy(), found.pareto_k.to_numpy().copy()
    unsettled = {}
    left_out = (
        Task(f"without unit {number}", {d: starts[d] + u == number for d, u in own.items()})
        for number in places[wide]
    )
    how: dict[str, Any] = {"n_jobs": n_jobs, "title": "loo", "progress": progress}
    refits = fits_without(fit, own, left_out, seed=seed, total=len(wide), **how)
    for number, refit in zip(wide, refits, strict=True):
        elpd[number] = sum(float(value.sum()) for _, value in refit.density.values())
        k[number] = 0.0
        if refit.doubt:
            unsettled[int(places[number])] = refit.doubt
    warn_of_unsettled("without units", unsettled)
    change = float(elpd.sum()) - found.elpd
    return replace(
        found,
        elpd=float(elpd.sum()),
        se=error_of_sum(elpd),
        p=found.p - change,
        warning=bool(unsettled),
        elpd_i=found.elpd_i.copy(data=elpd),
        pareto_k=found.pareto_k.copy(data=k),
    )
