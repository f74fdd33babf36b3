"""Groups of shapes that are observed through points without correspondence, or noisy landmarks."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.manifolds.point_clouds.low_rank import WEAK_PRIOR, LowRankComponents, LowRankPrior
from .blocks.manifolds.point_clouds.point_sets import rows_about
from .blocks.manifolds.point_clouds.rough_shapes import (
    LatentCoordinates,
    chart_of_means,
    check_registered,
)
from .blocks.manifolds.shape_chart import ShapeChart
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.mixtures.weights import cluster_weights
from .blocks.roles import Checked, Chosen
from .blocks.side_information.groups import Groups, as_groups
from .blocks.side_information.hard_links import check_known_clusters
from .blocks.side_information.links import Links
from .blocks.side_information.partial_labels import PartialLabels, log_admissible

__all__ = ["latent_shape"]


def latent_shape(
    x: Annotated[ArrayLike | None, "rows axes"],
    subjects: Annotated[Groups, "rows"],
    landmarks: Annotated[ArrayLike | None, "rows"] = None,
    links: Annotated[Links | LabelGraph | None, "subjects"] = None,
    known: Annotated[PartialLabels | None, "subjects", Checked(check_known_clusters)] = None,
    chart: Annotated[
        ArrayLike | None, "marks axes directions", Chosen(chart_of_means, check_registered)
    ] = None,
    *,
    num_clusters: int = 1,
    rank: int | None = None,
    observation: str = "density",
    width: float | None = None,
    temperature: float | None = None,
    prior: LowRankPrior = WEAK_PRIOR,
    concentration: float = 1.0,
    weights: ArrayLike | str | None = None,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> None:
    r"""Hierarchical model of latent shapes (Yu 2016, chapter 3), of which points are observed.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad
              P(z) \propto \prod_i \pi_{z_i} \prod_{(i,j)} e^{w_{ij}[z_i = z_j]}, \\
              m_g, W_g, v_g \sim \text{prior}, \quad
              w_i \mid z_i = g \sim N(m_g, W_g W_g^\top + v_g I), \quad u_i = \text{Exp}_{M}(B w_i), \\
              p(x_n) = \frac1T \sum_t N(x_n; u_{i(n), t}, s^2 I), \quad s^2 \sim \text{InvGamma}

    Individual i has a latent shape u of T points, a vector w in the chart at M. Its rows lie about
    any of these points or, with `landmarks`, about the point with the row's number; an individual
    may lack some. Groups may be known, partly known, or unknown; the population is the prior of the
    group means. A covariance is of low rank, with the same variance in all other directions.

    The rows of all individuals are in the frame of the chart: `register_points` moves them there.

    Yu uses the potential of the kernel distance in place of the density of points, and normal
    densities on the preshape sphere without their normaliser; see `KernelPotential` and
    `hierarchical_shape`. A joint mode of shapes and covariances is useless: the density of shapes
    grows without bound as their variance decreases, and only the prior limits it. `MonteCarloEM`
    averages over shapes.

    Parameters
    ----------
    x : array_like, shape (num_rows, 2) or (num_rows, 3), or None
        Points or landmarks, one per row, in the frame of the chart. None simulates.
    subjects : Groups
        Individual of each row.
    landmarks : array_like of int, shape (num_rows,), optional
        Number of the landmark of each row, from 0, for rows that correspond.
    links : Links, LabelGraph or None
        Links between individuals, by their numbers in ``subjects.names``, which are sorted.
    known : PartialLabels, optional
        Known groups of some individuals, or of all, in the order of ``subjects.names``.
    chart : array_like, shape (num_points, num_axes, 1 + num_modes), optional
        The reference M, and the directions B, as `register_points` and `shape_chart` return them.
        For landmarks that are in one frame, M is their mean by default, with all directions.
    num_clusters : int
        Number of groups.
    rank : int, optional
        Number of columns of W, below the number of directions of the chart; by default 3, or the
        maximum.
    observation : {"density", "kernel"}
        The density above, or the potential of the kernel distance, which is not a density: it suits
        fits, but neither simulates nor compares models.
    width : float, optional
        s, if it is not to be learned; for the kernel, its width, by default twice the distance
        between neighbouring points of M.
    temperature : float, optional
        Temperature of the kernel potential, by default :math:`1 / T^2`, which is that of the source
        if individuals have T points.
    prior : LowRankPrior
        Prior of means and covariances, by default of radius 0.2.
    concentration, weights, reading, flip_rate, weight_per, inference
        See `ppc`, with groups as clusters and individuals as points.

    References
    ----------
    Yu (2016), PhD thesis, University of Utah, sections 3.4-3.6.
    """
    subjects = as_groups(subjects)
    given = {"x": x, "subjects": subjects, "landmarks": landmarks}
    shapes = ShapeChart.of(chart_of_means(given, {}) if chart is None else chart)
    graph = as_label_graph(links, subjects.num_groups, num_clusters, inference)
    pi = cluster_weights(graph, num_clusters, concentration, weights, reading, inference)
    density = LowRankComponents(num_clusters, shapes.num_directions, rank, prior).sample()
    labels = LinkedCategorical(
        jnp.log(pi),
        graph,
        reading=reading,
        weight_per=weight_per,
        pair_weights=learned_pair_weights(graph, flip_rate, reading),
        inference=inference,
    )
    log_side = log_admissible(known, num_clusters)
    individuals = LinkedMixture(labels, density, log_side)
    block = LatentCoordinates(x, subjects, landmarks, shapes, annealed=observation == "kernel")
    coordinates = block.sample(individuals)
    points = shapes.shapes(coordinates)
    fn = rows_about(points, shapes, subjects, landmarks, observation, width, temperature)
    numpyro.sample("x", fn, obs=x)
