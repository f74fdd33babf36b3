"""Points on a map in few dimensions, with noisy observations of distances: Isomap as a model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro import handlers

from .blocks.embedding.distances import NoisyDistances
from .blocks.embedding.geodesics import (
    NUM_NEIGHBORS,
    check_distances,
    choose_distances,
    choose_landmarks,
)
from .blocks.embedding.nearness import stated_nearness
from .blocks.embedding.points import Points
from .blocks.embedding.positions import Positions, point_scale
from .blocks.embedding.setting import check_setting, choose_power, distance_power, tables_of
from .blocks.label_inference.label_graph import LabelGraph
from .blocks.roles import Checked, Chosen, Missing
from .blocks.side_information.links import Links
from .blocks.side_information.partial_labels import PartialLabels, check_known_classes

__all__ = ["geodesic_embedding"]


def geodesic_embedding(
    x: Annotated[ArrayLike | None, "points features"] = None,
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    known: Annotated[PartialLabels | None, "points", Checked(check_known_classes)] = None,
    landmarks: Annotated[ArrayLike | None, "sources", Chosen(choose_landmarks)] = None,
    distances: Annotated[
        ArrayLike | None,
        "points sources",
        Missing(),
        Chosen(choose_distances, check_distances),
    ] = None,
    *,
    num_dimensions: int = 2,
    num_neighbors: int = NUM_NEIGHBORS,
    num_landmarks: int | None = None,
    noise: str = "log_normal",
    noise_level: float = 0.1,
    power: Annotated[float | None, Chosen(choose_power)] = None,
    scale: float | None = None,
    reach: float | dist.Distribution = 0.25,
    num_classes: int | None = None,
    num_points: int | None = None,
) -> None:
    r"""Positions of points whose distances are observed with noise (Oh and Raftery 2001).

    .. math:: x_i \sim \mathcal N(0, s^2 I_q) \mid \textstyle\sum_i x_i = 0, \qquad
              \sigma^2 \sim \text{IG}(1, \sigma_0^2 / 2), \\
              \log d_{ij} \sim \mathcal N(\log\|x_i - x_j\|, \sigma^2)

    for landmarks j. Positions are known up to rotation and reflection; their mean, about which
    distances hold no information, is zero.

    Distances along the graph of a table of points are sums of the same edges, and depend strongly
    on one another. This density ignores the dependence: distances treated as independent give a
    posterior that is much too narrow. By default the density of such distances is therefore raised
    to a power below one, see `power`. With a power the likelihood is not a density of data, and
    `loo` and `kfold` refuse it.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), optional
        Points, whose distances are shortest paths in the graph of nearest neighbours, as in Isomap.
        Not needed if distances are given.
    links : Links, LabelGraph or None
        Statements that points are near one another, or far apart; see `stated_nearness`.
    known : PartialLabels, optional
        Known classes of some points, which are about the centre of their class; see `Positions`.
    landmarks : array_like of int, shape (num_landmarks,), optional
        Numbers of the points from which distances are known, in the order of the columns; all by default.
    distances : array_like, shape (num_points, num_landmarks), optional
        Distances that replace those along the graph of `x`. Zero from a point to itself; NaN where
        missing.
    num_dimensions : int
        q, less than the number of landmarks.
    num_neighbors : int
        Points are neighbours if one is among this many nearest points of the other.
    num_landmarks : int, optional
        Number of landmarks of `x`, far from one another; by default all points if there are up to
        500, else 100.
    noise : {"log_normal", "log_t", "normal"}
        Distribution of a distance, see `NoisyDistances`: with relative noise, the same with the
        tails of Student's t with 4 degrees of freedom, or with noise of the same size for all.
    noise_level : float
        :math:`\sigma_0`, typical size of the noise, as a share of distances.
    power : float, optional
        Power to which the density of the distances is raised, in (0, 1]. By default one if
        `distances` are given, with or without `x`. For distances of `x` it is the number of edges
        of which they are sums, at least ``num_points * num_neighbors / 2``, as a share of the
        number of distances.
    scale : float, optional
        s; by default the value at which mean squared distances match those of the data.
    reach : float or Distribution
        Distance, in units of s, up to which links count points as near; see `stated_nearness`.
    num_classes : int, optional
        Number of classes of `known`.
    num_points : int, optional
        Number of points, to simulate without data.

    References
    ----------
    Oh and Raftery (2001), J. Am. Stat. Assoc. 96, 1031-1044, doi:10.1198/016214501753208690. Tenenbaum,
    de Silva and Langford (2000), Science 290, 2319-2323. Law (2006), chapter 3.
    """
    check_setting(num_dimensions, noise, noise_level, known, num_classes)
    options: dict[str, int | None] = {
        "num_neighbors": num_neighbors,
        "num_dimensions": num_dimensions,
        "num_landmarks": num_landmarks,
        "num_points": num_points,
    }
    given = {"x": x, "landmarks": landmarks, "distances": distances}
    size, sources, table = tables_of(given, options)
    deviation = point_scale(table, num_dimensions, scale)
    classes = None if known is None or num_classes is None else known.admissible(num_classes)
    points = None if x is None else Points(x, num_neighbors)
    block = Positions(deviation, has_zeros=noise == "normal", points=points)
    positions = block.sample(size, num_dimensions, classes)
    variance = numpyro.sample("noise_variance", dist.InverseGamma(1.0, noise_level**2 / 2))
    unit = jnp.sqrt(2.0 * num_dimensions) * deviation if noise == "normal" else 1.0
    law = NoisyDistances(positions, sources, unit * jnp.sqrt(variance), noise)
    share = distance_power(power, given, options)
    raised = nullcontext() if share == 1 else handlers.scale(scale=share)
    with numpyro.plate("points", size), raised:
        numpyro.sample("distances", law, obs=table, infer={"power": share})
    stated_nearness(links, positions, deviation, reach)
