"""How shapes vary: the modes of groups and population, and how well few of them describe shapes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree

from sidebayes.models.blocks.manifolds.shape_chart import whole_coordinates

from ..common.arrays import real_array
from ..common.fields import check_integer, check_seed
from .base.fit_base import FitBase
from .base.intervals import check_probability
from .shapes import band, chart_of, group_names, laws_of, table_of

__all__ = ["modes", "shape_quality"]


def modes(
    fit: FitBase,
    num_modes: int | None = None,
    *,
    deviations: ArrayLike = (-2.0, 2.0),
    probability: float = 0.9,
) -> xr.Dataset:
    """Principal modes of variation of shapes, of each group and of the population.

    Parameters
    ----------
    num_modes : int, optional
        Number of leading modes, at most that of the coordinates. Three by default, or all if there are fewer.
    deviations : array_like, shape (num_steps,)
        Steps along a mode, in standard deviations from the mean, at which shapes are given.
    probability : float
        Probability of the intervals of the variances.

    Returns
    -------
    Dataset
        ``shape`` by group, mode, step, landmark and axis; ``variance`` along each mode, with
        ``lower`` and ``upper``, and its ``share`` of the total. The modes are those of the mean
        covariance over draws. The population is the last group; its covariance is that of a shape
        from any group, given the covariates: the covariance within groups plus that between their
        means. Shares do not count variance outside the directions of the chart.

    Raises
    ------
    ValueError
        If the model has no shapes, or `num_modes` is out of range.
    """
    check_probability(probability)
    steps = np.atleast_1d(real_array("deviations", deviations))
    chart = chart_of(fit)
    size = chart.num_coordinates
    number = check_integer(
        "num_modes", min(3, size) if num_modes is None else num_modes, 1, size + 1
    )
    weights, means, covariances = laws_of(fit)
    means, covariances = means[..., :size], covariances[..., :size, :size]
    middle, total = _of_all(weights, means, covariances)
    means = np.concatenate([means, middle[:, None]], axis=1)
    covariances = np.concatenate([covariances, total[:, None]], axis=1)
    typical = covariances.mean(axis=0)
    _, vectors = np.linalg.eigh(typical)
    vectors = vectors[..., ::-1][..., :number]
    vectors *= np.sign(vectors.sum(axis=-2, keepdims=True) + 1e-300)
    along = np.einsum("gim,sgij,gjm->sgm", vectors, covariances, vectors)
    variance = np.einsum("gim,gij,gjm->gm", vectors, typical, vectors)
    whole = np.trace(typical, axis1=-2, axis2=-1)
    lengths = np.sqrt(variance)[:, :, None] * steps
    points = means.mean(axis=0)[:, None, None] + np.einsum("gim,gmd->gmdi", vectors, lengths)
    _, lower, upper = band(along, probability)
    groups = "group", "mode"
    return xr.Dataset(
        {
            "shape": ((*groups, "step", "landmark", "axis"), chart.shapes(points)),
            "variance": (groups, variance),
            "lower": (groups, lower),
            "upper": (groups, upper),
            "share": (groups, variance / whole[:, None]),
        },
        {
            "group": np.asarray(
                [*group_names(fit, means.shape[1] - 1), "population"], dtype=object
            ),
            "mode": np.arange(number),
            "step": steps,
        },
    )


def _of_all(weights: NDArray, means: NDArray, covariances: NDArray) -> tuple[NDArray, NDArray]:
    """Mean and covariance of a shape of any group, at every draw."""
    middle = (weights[..., None] * means).sum(axis=1)
    apart = means - middle[:, None]
    between = np.einsum("sg,sgi,sgj->sij", weights, apart, apart)
    return middle, np.einsum("sg,sgij->sij", weights, covariances) + between


def shape_quality(fit: FitBase, *, num_samples: int = 1000, seed: int = 0) -> pd.DataFrame:
    r"""Compactness, generalisation and specificity of the population by number of modes (Davies 2002).

    Modes are those of the covariance of all shapes in the tangent space at the reference of the
    chart. This space includes the directions that the chart leaves out. With M modes

    - compactness is the share of the variance that they explain; with as many modes as the chart
      has directions, it is the share that the chart explains;
    - generalisation is the mean distance of a shape to its approximation by the modes of all
      *others*;
    - specificity is the mean distance of shapes drawn from a normal distribution along the modes to
      the nearest shape of the data.

    Distances are Euclidean in the tangent space; smaller is better.

    Parameters
    ----------
    num_samples : int
        Number of shapes that are drawn.
    seed : int

    Returns
    -------
    DataFrame
        A row for each number of modes from 1 on: ``compactness``; ``generalisation`` and ``specificity`` in
        radians, with standard errors ``generalisation_se`` and ``specificity_se``.

    Raises
    ------
    ValueError
        If the model has no shapes, or there are fewer than three individuals.

    References
    ----------
    Davies (2002), PhD thesis, University of Manchester, section 5.2.
    """
    number = check_integer("num_samples", num_samples, 2, 2**31)
    chart = chart_of(fit)
    if chart.site in fit.params:  # latent shapes, which have no directions but those of the chart
        table = table_of(fit, chart)
    else:
        table = whole_coordinates(fit.run.data, chart.of.reference)
    if len(table) < 3:
        raise ValueError(f"there are {len(table)} individuals; generalisation needs three at least")
    _, lengths, directions = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    scores = (table - table.mean(axis=0)) @ directions.T
    most = min(len(table) - 2, table.shape[1])
    variance = lengths[:most] ** 2 / (len(table) - 1)
    standard = np.random.default_rng(check_seed(seed)).normal(size=(number, most))
    drawn = np.zeros((number, scores.shape[1]))
    nearest, apart = KDTree(scores), np.empty((most, number))
    for mode in range(most):
        drawn[:, mode] = standard[:, mode] * np.sqrt(variance[mode])
        apart[mode] = nearest.query(drawn)[0]
    missed = _missed_without(scores, most)
    return pd.DataFrame(
        {
            "compactness": np.cumsum(variance) / (lengths**2).sum() * (len(table) - 1),
            "generalisation": missed.mean(axis=1),
            "generalisation_se": missed.std(axis=1, ddof=1) / np.sqrt(len(table)),
            "specificity": apart.mean(axis=1),
            "specificity_se": apart.std(axis=1, ddof=1) / np.sqrt(number),
        },
        index=pd.RangeIndex(1, most + 1, name="modes"),
    )


def _missed_without(scores: NDArray, most: int) -> NDArray[np.float64]:
    """Distance of each centred row to its image under modes of the others, shape (most, num_rows)."""
    factor = len(scores) / (
        len(scores) - 1
    )  # a row from the mean of the others, and from that of all
    others = scores.T @ scores - factor * scores[:, :, None] * scores[:, None, :]
    _, vectors = np.linalg.eigh(others)
    own = factor * scores
    along = np.einsum("npm,np->nm", vectors[:, :, ::-1][:, :, :most], own)
    left = (own**2).sum(axis=1)[:, None] - np.cumsum(along**2, axis=1)
    found: NDArray[np.float64] = np.sqrt(np.clip(left, 0.0, None)).T
    return found
