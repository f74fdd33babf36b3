"""Shapes of groups: means with bands, single shapes, and differences between groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.symmetry.matched import matched_draws
from sidebayes.guides.engines.problem.declared import finite_mixtures, observed_table
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.models.blocks.manifolds import preshape
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from ..common.arrays import real_array
from ..common.magnitudes import shown
from .base.fit_base import FitBase
from .base.intervals import check_probability
from .base.predictions import over_draws

__all__ = [
    "band",
    "chart_of",
    "farthest_apart",
    "group_names",
    "has_shapes",
    "laws_of",
    "shape_at",
    "shape_difference",
    "shapes",
    "table_of",
]


@dataclass(frozen=True)
class FittedChart:
    """Chart of the shapes of a fit.

    Attributes
    ----------
    of : ShapeChart
    site : str
        Observed site of the coordinates.
    outline : str or None
        "open" or "closed" where landmarks in their order are an outline.
    """

    of: ShapeChart
    site: str
    outline: str | None

    @property
    def num_coordinates(self) -> int:
        """Number of coordinates of a shape; a size is one more column of the site."""
        return self.of.directions.shape[1]

    def shapes(self, coordinates: ArrayLike) -> NDArray[np.float64]:
        """Shapes at coordinates, whose further columns are left out."""
        with jax.enable_x64(True):
            table = jnp.asarray(np.asarray(coordinates, float)[..., : self.num_coordinates])
            return np.asarray(self.of.shapes(table))


def has_shapes(fit: FitBase) -> bool:
    """Whether labels of the fit are of shapes, whose chart is among the data."""
    return fit.run.model is not None and _charted(fit) is not None


def _charted(fit: FitBase) -> tuple[str, dict[str, Any]] | None:
    """Site of shapes, and what it says of them, such as the argument that holds their chart."""
    with fit.run.precision:
        trace = abstract_trace(fit.run.problem)
    found = ((name, trace[name].get("infer") or {}) for name in finite_mixtures(trace))
    return next(((name, infer) for name, infer in found if infer.get("chart") is not None), None)


def chart_of(fit: FitBase) -> FittedChart:
    """Chart of a fit of shapes; refuse a fit of others."""
    found = None if fit.run.model is None else _charted(fit)
    if found is None:
        raise ValueError(
            f"{fit.method} has no shapes: no observed site says infer={{'chart': ...}}, the name of the "
            "argument that holds their chart"
        )
    site, infer = found
    with jax.enable_x64(True):
        table = ShapeChart.of(fit.run.data[infer["chart"]])
    return FittedChart(table, site, infer.get("outline"))


def laws_of(fit: FitBase) -> tuple[NDArray, NDArray, NDArray]:
    """Weights, means and covariances of the groups in the chart, each with an axis of draws in front."""

    def laws(trace: dict, layout: Any, owners: dict) -> Any:
        ((fn, _),) = finite_mixtures(trace).values()
        density: Any = fn.components
        mean = density.mean
        if hasattr(density, "covariance_matrix"):
            covariance = jnp.broadcast_to(density.covariance_matrix, (*mean.shape, mean.shape[-1]))
        else:
            covariance = density.variance[..., None] * jnp.eye(mean.shape[-1])
        weights = jnp.broadcast_to(jax.nn.softmax(fn.labels.log_weights), mean.shape[:1])
        return jnp.concatenate([weights, mean, covariance], axis=None)

    draws = matched_draws(*fit.relabelled)
    flat = over_draws(fit, laws, fit.run, draws)
    with fit.run.precision:
        ((fn, _),) = finite_mixtures(abstract_trace(fit.run.problem)).values()
    groups, size = fn.num_clusters, fn.event_shape[-1]
    ends = groups, groups + groups * size
    weights, means, covariances = np.split(flat, ends, axis=1)
    return (
        weights,
        means.reshape(-1, groups, size),
        covariances.reshape(-1, groups, size, size),
    )


def table_of(fit: FitBase, chart: FittedChart) -> NDArray[np.float64]:
    """Coordinates of the individuals."""
    if chart.site in fit.params:  # latent shapes, at their mean
        return np.asarray(fit.params[chart.site])
    with fit.run.precision:
        table = observed_table(fit.run.problem, chart.site)
    assert table is not None  # coordinates of shapes are a table
    return table


def _draws_of_individuals(fit: FitBase, chart: FittedChart) -> tuple[NDArray, str] | None:
    """Coordinates of latent shapes, draws in front, and what they are draws of; None without any."""
    if chart.site not in fit.params:
        return None
    draws = matched_draws(*fit.relabelled)[chart.site]
    if len(draws) > 1:
        return draws, "posterior"
    if "conditional_posterior" not in fit.tree:
        return None
    given = fit.tree["conditional_posterior"][chart.site].to_numpy()
    return given.reshape(-1, *given.shape[2:]), "given the estimated parameters"


def group_names(fit: FitBase, number: int) -> NDArray:
    """Names of the groups, where known labels have names; else their numbers."""
    known = (v.names for v in fit.run.data.values() if isinstance(v, PartialLabels))
    names = next(filter(None, known), None)
    if names is None:
        return np.arange(number)
    return np.asarray([*names, *range(len(names), number)][:number], dtype=object)


def band(draws: NDArray, probability: float) -> tuple[NDArray, NDArray, NDArray]:
    """Standard deviation and quantiles over draws; NaN where there is one draw only."""
    if len(draws) == 1:
        missing = np.full(draws.shape[1:], np.nan)
        return missing, missing, missing
    low, high = np.quantile(draws, [(1 - probability) / 2, (1 + probability) / 2], axis=0)
    return draws.std(axis=0, ddof=1), low, high


def shapes(fit: FitBase, *, probability: float = 0.9) -> xr.Dataset:
    """Mean shapes of the groups and of the population, with posterior bands, and individual shapes.

    Parameters
    ----------
    probability : float
        Probability of the central intervals of each coordinate of a landmark.

    Returns
    -------
    Dataset
        ``mean``, ``sd``, ``lower`` and ``upper`` by group, landmark and axis; ``population``, the
        weighted mean of the groups; and ``individuals`` by subject, as the chart describes them.
        All are aligned with the reference of the chart and have centroid size one. ``change`` is
        the mean of a group less that of the population, with the ``credibility`` of each landmark,
        as in `shape_difference`. Where landmarks in the plane are an outline, ``change_lower`` and
        ``change_upper`` are intervals of the change along ``normal``, the direction perpendicular
        to the outline of the population. Without draws, as after EM, the bands are NaN.

        Where shapes of individuals are latent and there are draws of them, ``individuals_sd``,
        ``individuals_lower`` and ``individuals_upper`` are their bands. The attribute
        ``individuals`` names their distribution: "posterior", or "given the estimated parameters"
        after `MonteCarloEM`. The latter bands are those of empirical Bayes, and are too narrow
        because they ignore the uncertainty of means and covariances.

    Raises
    ------
    ValueError
        If the model has no shapes, or the probability is not between 0 and 1.
    """
    check_probability(probability)
    chart = chart_of(fit)
    weights, means, _ = laws_of(fit)
    drawn = chart.shapes(means)
    sd, lower, upper = band(drawn, probability)
    middle = (weights[..., None] * means).sum(axis=1)
    population = chart.shapes(middle.mean(axis=0))
    moved = drawn - chart.shapes(middle)[:, None]
    groups = "group", "landmark", "axis"
    subjects = next(v.names for v in fit.run.data.values() if isinstance(v, Groups))
    found = xr.Dataset(
        {
            "mean": (groups, chart.shapes(means.mean(axis=0))),
            "sd": (groups, sd),
            "lower": (groups, lower),
            "upper": (groups, upper),
            "population": (groups[1:], population),
            "change": (groups, moved.mean(axis=0)),
            "credibility": (groups[:2], _credibility(moved)),
            "individuals": (("subject", *groups[1:]), chart.shapes(table_of(fit, chart))),
        },
        {"group": group_names(fit, means.shape[1]), "subject": np.asarray(subjects)},
        {"outline": chart.outline or "none", "probability": probability},
    )
    own = _draws_of_individuals(fit, chart)
    if own is not None:
        edges = dict(
            zip(("sd", "lower", "upper"), band(chart.shapes(own[0]), probability), strict=True)
        )
        bands = {f"individuals_{name}": (("subject", *groups[1:]), v) for name, v in edges.items()}
        found = found.assign(bands).assign_attrs(individuals=own[1])
    if chart.outline is None or population.shape[1] != 2:
        return found
    normal = _normals(population, chart.outline)
    _, least, most = band((moved * normal).sum(axis=-1), probability)
    across = {"change_lower": (groups[:2], least), "change_upper": (groups[:2], most)}
    return found.assign({"normal": (groups[1:], normal), **across})


def _credibility(moved: NDArray) -> NDArray[np.float64]:
    """Share of draws nearer to their mean than zero is, in the metric of their covariance; NaN of one draw.

    Displacements have axes of draws in front, and coordinates of one landmark last.
    """
    if len(moved) == 1:
        return np.full(moved.shape[1:-1], np.nan)
    mean = moved.mean(axis=0)
    apart = moved - mean
    metric = np.linalg.pinv(
        np.einsum("s...i,s...j->...ij", apart, apart) / len(moved), rcond=1e-9, hermitian=True
    )
    distances = np.einsum("s...i,...ij,s...j->s...", apart, metric, apart)
    of_zero = np.einsum("...i,...ij,...j->...", mean, metric, mean)
    share: NDArray[np.float64] = (distances < of_zero).mean(axis=0)
    return share


def _normals(outline: NDArray, kind: str) -> NDArray[np.float64]:
    """Unit vectors across an outline in the plane at its points; zero where neighbours coincide."""
    if kind == "closed":
        along = np.roll(outline, -1, axis=0) - np.roll(outline, 1, axis=0)
    else:
        along = np.gradient(outline, axis=0)
    length = np.linalg.norm(along, axis=1, keepdims=True)
    return np.stack([along[:, 1], -along[:, 0]], axis=1) / np.where(length > 0, length, 1.0)


def shape_at(fit: FitBase, coordinates: ArrayLike) -> NDArray[np.float64]:
    """Shape at any point of the chart.

    Parameters
    ----------
    coordinates : array_like, shape (num_coordinates,) or (..., num_coordinates)
        Coordinates in radians along the directions of the chart, ``fit.run.data["chart"]``, from
        the overall mean shape; for example the means in `params`, or points between them.

    Returns
    -------
    ndarray, shape (..., num_landmarks, num_axes)
        Centred, of centroid size one, aligned with the reference.

    Raises
    ------
    ValueError
        If the model has no shapes, the last axis of the coordinates has the wrong length, or a
        point lies pi / 2 or farther from the reference, where the chart ends.
    """
    chart = chart_of(fit)
    points = real_array("coordinates", coordinates)
    if points.shape[-1:] != (chart.num_coordinates,):
        raise ValueError(
            f"coordinates have shape {points.shape}; expected {chart.num_coordinates} in the last axis, one "
            "for each direction of the chart"
        )
    far = np.linalg.norm(points, axis=-1).max(initial=0.0)
    if far >= np.pi / 2:
        raise ValueError(
            f"coordinates lie {far:.3g} radians from the reference, and the chart ends at pi / 2; give "
            "points that are nearer"
        )
    return chart.shapes(points)


def shape_difference(
    fit: FitBase, first: Any, second: Any, *, probability: float = 0.9
) -> xr.Dataset:
    """Posterior of the difference between the mean shapes of two groups, and where it lies.

    Parameters
    ----------
    first, second : int or str
        Groups, by the names that known labels have; groups without a name by number.
    probability : float
        Probability of the central intervals.

    Returns
    -------
    Dataset
        ``mean``, ``sd``, ``lower`` and ``upper`` of second minus first, by landmark and axis;
        ``length`` of the difference at each landmark, with ``length_lower`` and ``length_upper``;
        ``credibility`` of each landmark, the posterior probability of the ellipse about the mean
        difference, in the metric of its posterior covariance, whose edge passes through zero, so
        that the groups differ at landmarks near 1; and ``distance``, the Riemannian distance of the
        two shapes in radians, with ``distance_lower`` and ``distance_upper``. Each landmark is
        judged by itself, without a correction for their number. Lengths and distances are positive
        in every draw, so their intervals never contain zero. To judge whether groups differ, use
        the intervals of the coordinates, or `group_test`. Without draws, as after EM, intervals are
        NaN.

    Raises
    ------
    ValueError
        If the model has no shapes, or there is no such group.
    """
    check_probability(probability)
    chart = chart_of(fit)
    _, means, _ = laws_of(fit)
    names = group_names(fit, means.shape[1]).tolist()
    for name, value in (("first", first), ("second", second)):
        if value not in names:
            raise ValueError(f"{name} = {shown(value)}; expected one of the groups {names}")
    one, two = (chart.shapes(means[:, names.index(value)]) for value in (first, second))
    moved = two - one
    lengths = np.linalg.norm(moved, axis=-1)
    with jax.enable_x64(True):
        angles = np.asarray(preshape.shape_angle(jnp.asarray(one), jnp.asarray(two)))
    sd, lower, upper = band(moved, probability)
    _, shortest, longest = band(lengths, probability)
    _, nearest, farthest = band(angles, probability)
    places = "landmark", "axis"
    return xr.Dataset(
        {
            "mean": (places, moved.mean(axis=0)),
            "sd": (places, sd),
            "lower": (places, lower),
            "upper": (places, upper),
            "length": ("landmark", lengths.mean(axis=0)),
            "length_lower": ("landmark", shortest),
            "length_upper": ("landmark", longest),
            "credibility": ("landmark", _credibility(moved)),
            "distance": ((), angles.mean()),
            "distance_lower": ((), nearest),
            "distance_upper": ((), farthest),
        },
        attrs={"groups": [first, second]},
    )


def farthest_apart(fit: FitBase) -> tuple[Any, Any] | None:
    """The two groups whose mean shapes are farthest apart in the chart, None of a single group."""
    _, means, _ = laws_of(fit)
    middle = means.mean(axis=0)[:, : chart_of(fit).num_coordinates]
    if len(middle) < 2:
        return None
    apart = np.linalg.norm(middle[:, None] - middle, axis=-1)
    first, second = sorted(np.unravel_index(apart.argmax(), apart.shape))
    names = group_names(fit, len(middle))
    return names[first], names[second]
