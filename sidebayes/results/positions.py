"""Positions of points on a map, fitted and new, with their uncertainty."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from sidebayes.diagnostics.positions import Moments, has_positions, moments, principal_frame
from sidebayes.guides.engines.problem.density import abstract_trace, trace_model
from sidebayes.guides.engines.problem.importance import pareto_smoothed
from sidebayes.models.blocks.collapsed import unexpanded
from sidebayes.models.blocks.embedding.distances import NoisyDistances, deviance_residuals
from sidebayes.models.blocks.embedding.geodesics import geodesics_from
from sidebayes.models.blocks.embedding.outlying import outlying
from sidebayes.models.blocks.embedding.placement import Placement, place_points

from ..common.arrays import point_table, real_array
from ..common.magnitudes import counted, listed
from ..common.warnings import warn_user
from ..data.tables import in_order_of
from .base.fit_base import FitBase

__all__ = ["WIDE", "loo_points", "place", "placements", "positions"]

_MOST_DRAWS = 100
"""Draws at which new points are placed."""
_FAR = 5.0
"""How many times farther from every landmark a new point may lie than any point of the fit."""
WIDE = 0.7
"""Pareto k above which draws are too narrow to leave a point out."""
_FEWEST_DRAWS = 50
"""Draws whose weights can be smoothed."""


def positions(fit: FitBase) -> pd.DataFrame:
    """Positions of the points, with their posterior standard deviations.

    Draws are rotated to agree, centred so that the mean of all points is zero, and expressed along
    the principal axes of their mean.

    Returns
    -------
    DataFrame
        One row per point, with columns ``position_0``, ``sd_0`` and so on; the standard deviations
        of a single mode are NaN.

    Raises
    ------
    ValueError
        If the model has no positions.
    """
    _need_positions(fit)
    return _frame(moments(fit.aligned[0]))


def place(
    fit: FitBase, x: ArrayLike | None = None, *, distances: ArrayLike | None = None
) -> pd.DataFrame:
    """Place new points without moving those of the fit.

    At each of up to 100 draws of the landmarks' positions and of the noise, the position of a new
    point is approximated by a normal distribution at its mode (Laplace's method). The law of total
    variance combines means and covariances over draws.

    Parameters
    ----------
    x : array_like, shape (num_new, num_features)
        New points, if the fit is to a table; they are joined to their nearest neighbours among its
        points. Columns of a data frame are matched by name.
    distances : array_like, shape (num_new, num_landmarks)
        Distances from the landmarks, in place of `x`; NaN where missing. A point at distance zero
        from a landmark is placed on it, unless the noise is "normal".

    Returns
    -------
    DataFrame
        Positions as in `positions`, in the same frame.

    Warns
    -----
    SideBayesWarning
        If new points are far from all others, or a distance contradicts the other distances of its
        point.

    Raises
    ------
    ValueError
        If the model has no positions; if not exactly one of `x` and `distances` is given, with the
        right number of columns; or if a point has distance zero from several landmarks.
    """
    _need_positions(fit)
    table = _new_distances(fit, x, distances)
    _warn_of_far(table, np.asarray(fit.run.data["distances"], float))
    draws, center, axes = principal_frame(fit.aligned[0])
    kept = _kept(len(draws))
    near = _landmarks(fit)
    if near.law != "normal":
        _refuse_several(table)
    found = _placed(fit, table, near)
    if distances is not None:
        _warn_of_outlying(table, np.asarray(found.mode).mean(axis=0), near)
    modes = (np.asarray(found.mode) - center[kept]) @ axes
    within = np.einsum("ka,snkl,lb->snab", axes, np.asarray(found.covariance), axes)
    apart = modes - modes.mean(axis=0)
    between = np.einsum("sna,snb->nab", apart, apart) / len(kept)
    return _frame(Moments(modes.mean(axis=0), within.mean(axis=0) + between))


def loo_points(fit: FitBase) -> pd.DataFrame:
    r"""Leave-one-out log predictive density of the distances of each point, all left out together.

    .. math:: \log p(d_i \mid d_{-i}) = -\log E[1 / p(d_i \mid x_{-i}, \sigma)], \qquad
              p(d_i \mid x_{-i}, \sigma) = \int p(d_i \mid x_i, x_{-i}, \sigma) \, p(x_i) \, dx_i

    over up to 100 draws, whose weights are Pareto-smoothed. The position of the point is integrated
    out by Laplace's method, whereas `loo` treats it as a parameter, which hardly any draws allow.
    The table omits landmarks unless all points are landmarks, since other points depend on them. If
    the density of the distances is raised to a power, these densities are too.

    Returns
    -------
    DataFrame
        ``elpd`` and ``pareto_k`` by number of the point; ``pareto_k`` is above .7 where the draws
        are too narrow.

    Warns
    -----
    SideBayesWarning
        If the draws are too narrow for some points.

    Raises
    ------
    ValueError
        If the model has no positions, or the fit is a mode.
    """
    _need_positions(fit)
    table = np.array(fit.run.data["distances"], float)
    landmarks = (
        table.argmin(axis=0) if "landmarks" not in fit.run.data else fit.run.data["landmarks"]
    )
    landmarks = np.asarray(landmarks).astype(int)
    table[landmarks, np.arange(len(landmarks))] = np.nan
    rows = np.arange(len(table))
    if len(landmarks) < len(table):
        rows = np.setdiff1d(rows, landmarks)
    else:  # a pair may be known in one of its two places only
        ordered = np.empty_like(table)
        ordered[:, landmarks] = table
        table = np.where(np.isnan(table), ordered.T[:, landmarks], table)
    terms = np.asarray(placements(fit, table[rows]).log_density)
    if len(terms) < _FEWEST_DRAWS:
        raise ValueError(
            f"{fit.engine} gave {counted(len(terms), 'draw')}, too few to leave points out by their "
            "weights; use an engine that draws, such as 'laplace' or 'nuts'"
        )
    log_weights, shape = pareto_smoothed(-terms.T)
    elpd = logsumexp(terms.T + log_weights, axis=1)
    if wide := int((~(shape <= WIDE)).sum()):
        warn_user(
            f"Pareto k is above {WIDE} at {wide} of {len(rows)} points: without them the posterior is "
            "another, and the estimate is not to be trusted"
        )
    return pd.DataFrame({"elpd": elpd, "pareto_k": shape}, index=pd.Index(rows, name="point"))


def placements(fit: FitBase, table: NDArray) -> Placement:
    """Where points are by draw, given distances from the landmarks; in the frame of the aligned draws."""
    return _placed(fit, table, _landmarks(fit))


class _Landmarks(NamedTuple):
    """What distances of new points are judged by, the first three by draw.

    Attributes
    ----------
    anchors : Array, shape (num_draws, num_landmarks, num_dimensions)
    noise, scale : Array, shape (num_draws,)
    power : Array, shape ()
    law : str
    """

    anchors: Array
    noise: Array
    scale: Array
    power: Array
    law: str


def _landmarks(fit: FitBase) -> _Landmarks:
    draws, _, _ = principal_frame(fit.aligned[0])
    kept = _kept(len(draws))
    group = fit.aligned[0]["posterior"].to_dataset()
    values = {
        str(name): jnp.asarray(site.to_numpy().reshape(-1, *site.shape[2:])[kept])
        for name, site in group.items()
    }
    with fit.run.precision:
        problem = fit.run.problem
        name, site = _distances_of(abstract_trace(problem))
        power = site.get("scale")

        def at(draw: dict[str, Array]) -> tuple[Array, Array, Array]:
            found = trace_model(problem, draw)
            fn = unexpanded(found[name]["fn"])
            own = next(s["infer"]["block"] for s in found.values() if _is_position(s))
            return fn.positions[fn.landmarks], fn.noise, own.scale

        share = jnp.asarray(1.0 if power is None else power)
        anchors, noise, scale = jax.lax.map(at, values)
        return _Landmarks(anchors, noise, scale, share, unexpanded(site["fn"]).law)


def _placed(fit: FitBase, table: NDArray, near: _Landmarks) -> Placement:
    with fit.run.precision:
        found: Placement = place_points(
            jnp.asarray(table), near.anchors, near.noise, near.scale[0], near.power, near.law
        )
    return found


def _kept(number: int) -> NDArray[np.int64]:
    """Draws that are used."""
    return np.linspace(0, number - 1, min(number, _MOST_DRAWS)).astype(int)


def _is_position(site: dict) -> bool:
    return (site.get("infer") or {}).get("role") == "position"


def _distances_of(trace: Any) -> tuple[str, dict]:
    """Observed site of distances, and its name."""
    return next(
        (name, site)
        for name, site in trace.items()
        if isinstance(unexpanded(site.get("fn")), NoisyDistances)
    )


def _need_positions(fit: FitBase) -> None:
    if not has_positions(fit.tree):
        raise ValueError(
            f"{fit.method} has no positions of points; fit 'geodesic_embedding', or a model of its blocks"
        )


def _new_distances(
    fit: FitBase, x: ArrayLike | None, distances: ArrayLike | None
) -> NDArray[np.float64]:
    """Distances of new points from the landmarks, checked."""
    if (x is None) == (distances is None):
        raise ValueError("pass new points either as x or by their distances from the landmarks")
    known, columns = np.asarray(fit.run.data["distances"]), fit.run.columns
    if distances is not None:
        table = real_array(
            "distances", in_order_of(distances, "distances", columns.get("distances"))
        )
        if table.ndim != 2 or table.shape[1] != known.shape[1]:
            raise ValueError(
                f"distances has shape {table.shape}; expected (num_new, {known.shape[1]}), a column for "
                "each landmark"
            )
        if np.isinf(table).any() or (table < 0).any():
            raise ValueError(
                "distances holds negative or infinite numbers; NaN is for missing ones"
            )
        return table
    if "x" not in fit.run.data:
        raise ValueError("the fit is of distances, not of a table x; pass distances")
    old = np.asarray(fit.run.data["x"])
    new = point_table("x", in_order_of(x, "x", columns.get("x")))
    if new.shape[1] != old.shape[1]:
        raise ValueError(f"x has {new.shape[1]} features; the fit has {old.shape[1]}")
    return geodesics_from(new, old, known, fit.options)


def _warn_of_far(table: NDArray, known: NDArray) -> None:
    """Warn of new points that lie far from every landmark, as none of the fit does."""
    away = np.where(known > 0, known, np.inf).min(axis=1)  # not of a landmark from itself
    reach = _FAR * away[np.isfinite(away)].max(initial=0.0)
    nearest = np.where(np.isnan(table), np.inf, table).min(axis=1)
    far = np.flatnonzero(np.isfinite(nearest) & (nearest > reach))
    if len(far):
        warn_user(
            f"{len(far)} of {len(table)} new points, the first of them {far[0]}, are more than {_FAR:g} "
            "times as far from every landmark as any point of the fit: their positions and deviations "
            "rest on nothing near them"
        )


def _refuse_several(table: NDArray) -> None:
    """Refuse points at distance zero from several landmarks, which lie apart where noise is relative."""
    several = np.flatnonzero((table == 0).sum(axis=1) > 1)
    if len(several):
        columns = np.flatnonzero(table[several[0]] == 0)
        raise ValueError(
            f"distances is zero in columns {listed(columns)} of row {several[0]}: a point is on one landmark "
            "at most; give NaN where a distance is missing, or fit with noise='normal'"
        )


def _warn_of_outlying(table: NDArray, positions: NDArray, near: _Landmarks) -> None:
    """Warn of distances that contradict the others of their point in the noise that was fitted."""
    noise = float(near.noise.mean())
    residuals = partial(deviance_residuals, noise=noise, law=near.law)
    found = outlying(table, positions, np.asarray(near.anchors).mean(axis=0), residuals)
    if found:
        first, rows = found[0], {one.row for one in found}
        also = f"; {len(rows) - 1} more rows hold such distances" if len(rows) > 1 else ""
        warn_user(
            f"distances[{first.row}, {first.column}] = {first.value:.4g} is impossible beside the other "
            f"distances of row {first.row} in the noise that was fitted: they put the point "
            f"{first.expected:.4g} from this landmark{also}. Correct it, or give NaN where it is not known"
        )


def _frame(found: Moments) -> pd.DataFrame:
    sd = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
    columns = {}
    for number in range(found.mean.shape[1]):
        columns[f"position_{number}"] = found.mean[:, number]
        columns[f"sd_{number}"] = sd[:, number]
    return pd.DataFrame(columns)
