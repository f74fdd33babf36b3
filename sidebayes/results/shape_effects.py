"""What covariates do to shapes, and how much of their variance the terms of a formula account for."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sidebayes.diagnostics.symmetry.matched import matched_draws
from sidebayes.guides.engines.problem.density import abstract_trace

from ..data.formula_parts import term_of
from ..runs.stored import names_of_columns
from .base.fit_base import FitBase
from .base.intervals import check_probability
from .shapes import band, chart_of, laws_of, table_of

__all__ = ["shape_effects"]


def shape_effects(fit: FitBase, *, probability: float = 0.9) -> xr.Dataset:
    r"""Effects of covariates on shapes, and the share of shape variance that each term explains.

    The posterior of the shares replaces a Procrustes analysis of variance with sequential sums of
    squares. With effects :math:`f = C \beta` of centred covariates C, the share of a term is

    .. math:: \| (P_t - P_{t-1}) f \|^2 / \| w \|^2,

    where :math:`P_t` projects on the columns of the first t terms, and w are the centred
    coordinates. This is what the term adds to those before it, so shares add up and do not depend
    on the coding of categories. The columns of a term are those whose names agree outside brackets,
    as `shape_design` names them, such as ``sex[m]``; a column without a name is a term of its own.

    Parameters
    ----------
    probability : float
        Probability of the central intervals.

    Returns
    -------
    Dataset
        By column of the covariates: ``change`` of the mean shape of the population per unit of the
        covariate, by landmark and axis, with ``sd``, ``lower`` and ``upper``. By term: ``share``
        with ``share_lower`` and ``share_upper``. Shares are positive in every draw, whatever the
        term, and a size beside the shape has no share. Without draws, as after EM, intervals are
        NaN.

    Raises
    ------
    ValueError
        If the model has no shapes, or no covariates were given.
    """
    check_probability(probability)
    chart = chart_of(fit)
    with fit.run.precision:
        infer = abstract_trace(fit.run.problem)[chart.site]["infer"]
    data = fit.run.data.get(infer.get("covariates", ""))
    if data is None:
        raise ValueError(
            "the fit has no covariates of shapes; pass covariates=..., a column for each"
        )
    weights, means, _ = laws_of(fit)
    slopes = matched_draws(*fit.relabelled)[infer["slopes"]]
    middle = (weights[..., None] * means).sum(axis=1)
    moved = chart.shapes(middle[:, None] + slopes) - chart.shapes(middle)[:, None]
    sd, lower, upper = band(moved, probability)
    names = names_of_columns(fit.run, infer["covariates"])
    columns = list(range(data.shape[1])) if names is None else list(names)
    of_term = columns if names is None else [term_of(name) for name in names]
    terms = list(dict.fromkeys(of_term))
    own = slice(chart.num_coordinates)  # a size is no part of the shape
    table = table_of(fit, chart)[:, own]
    share = _sequential(
        np.asarray(data, float), [terms.index(one) for one in of_term], slopes[..., own]
    )
    share = share / ((table - table.mean(axis=0)) ** 2).sum()
    _, least, most = band(share, probability)
    axes = "column", "landmark", "axis"
    return xr.Dataset(
        {
            "change": (axes, moved.mean(axis=0)),
            "sd": (axes, sd),
            "lower": (axes, lower),
            "upper": (axes, upper),
            "share": ("term", share.mean(axis=0)),
            "share_lower": ("term", least),
            "share_upper": ("term", most),
        },
        {"column": np.asarray(columns, object), "term": np.asarray(terms, object)},
    )


def _sequential(covariates: NDArray, terms: list[int], slopes: NDArray) -> NDArray[np.float64]:
    """Sums of squares that each term adds to those before it, shape (num_draws, num_terms)."""
    order = np.argsort(terms, kind="stable")
    centred = covariates - covariates.mean(axis=0)
    _, triangle = np.linalg.qr(centred[:, order])
    along = (triangle @ slopes[:, order]) ** 2  # of the effects, along what each column adds
    of_term = np.asarray(terms)[order, None] == np.arange(max(terms) + 1)
    found: NDArray[np.float64] = along.sum(axis=-1) @ of_term
    return found
