"""Groups of shapes: individuals vary about the mean of their group, groups about that of a population."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.manifolds.covariates import check_covariates, covariate_effects
from .blocks.manifolds.population import population_prior
from .blocks.manifolds.shape_chart import (
    ShapeChart,
    check_outline,
    check_shapes,
    choose_chart,
    shape_coordinates,
)
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.mixtures.weights import cluster_weights
from .blocks.roles import Checked, Chosen, Held, OwnFrame
from .blocks.side_information.groups import Groups, as_groups
from .blocks.side_information.hard_links import check_known_clusters
from .blocks.side_information.links import Links
from .blocks.side_information.partial_labels import PartialLabels, log_admissible

__all__ = ["hierarchical_shape"]


def hierarchical_shape(
    x: Annotated[ArrayLike | None, "rows axes", OwnFrame("subjects")],
    subjects: Annotated[Groups, "rows"],
    landmarks: Annotated[ArrayLike, "rows"],
    links: Annotated[Links | LabelGraph | None, "subjects"] = None,
    known: Annotated[PartialLabels | None, "subjects", Checked(check_known_clusters)] = None,
    covariates: Annotated[ArrayLike | None, "subjects terms", Checked(check_covariates)] = None,
    chart: Annotated[
        ArrayLike | None, "marks axes directions", Chosen(choose_chart, check_shapes)
    ] = None,
    *,
    num_clusters: int = 1,
    num_modes: int | None = None,
    size: bool = False,
    covariance: str = "tied",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    population: str = "fixed",
    outline: str | None = None,
    concentration: float = 1.0,
    weights: ArrayLike | str | None = None,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> None:
    r"""Hierarchical model of shapes (Yu 2016, chapter 3), for landmarks that correspond.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad
              P(z) \propto \prod_i \pi_{z_i} \prod_{(i,j)} e^{w_{ij}[z_i = z_j]}, \\
              (m_g, C_g) \sim \text{prior}, \quad w_i \mid z_i = g \sim N(m_g, C_g), \quad
              u_i = \text{Exp}_{M}(B w_i)

    or, with covariates c of the individuals, mean :math:`m_g + \beta^\top (c_i - \bar c)`.
    Individual i has shape u, of centroid size one; its place, size and rotation in the data do not matter.
    Shapes are vectors w in the chart at M, the mean shape of all, whose directions B are horizontal: the
    population is the prior of the group means :math:`m_g`. Groups may be known, partly known, or unknown.

    Yu uses normal densities of points on the preshape sphere, and leaves out their normaliser,
    which depends on the parameters. In the chart the densities are normal and normalised, and each
    step of his algorithm (section 3.6) is exact. A free covariance of the population, which he
    estimates, is hardly identified: with G groups maximum likelihood recovers (G - 1) / G of it.
    Here it is a multiple of the covariance within groups, :math:`m_g \sim N(m, C_g / \kappa)`; see
    `GaussianPrior`.

    Parameters
    ----------
    x : array_like, shape (num_rows, 2) or (num_rows, 3), or None
        Places of landmarks, in any unit, one per row. None simulates.
    subjects : Groups
        Individual of each row.
    landmarks : array_like of int, shape (num_rows,)
        Number of the landmark of each row, from 0; every individual has each once.
    links : Links, LabelGraph or None
        Links between individuals, by their numbers in ``subjects.names``, which are sorted.
    known : PartialLabels, optional
        Known groups of some individuals, or of all, in the order of ``subjects.names``.
    covariates : array_like, shape (num_subjects, num_terms), optional
        Columns c without an intercept, in the order of ``subjects.names``: age, log size, or
        indicators of known groups that are not labels, for example. `shape_design` makes them from
        a formula. Their slopes :math:`\beta` are the same in all groups. New individuals need them as
        well.
    chart : array_like, shape (num_landmarks, num_axes, 1 + num_modes), optional
        The mean shape M, and the directions B, as `shape_chart` returns them. By default, `fit`
        chooses the Procrustes mean and the principal directions about it.
    num_clusters : int
        Number of groups.
    num_modes : int, optional
        Number of directions of a chosen chart. By default as many as explain 95 % of the
        variance, but no more than one per three individuals. Variation beyond them is left out.
    size : bool
        Whether the logarithm of the centroid size is added to the coordinates of the shape, as the
        last one.
    covariance : {"full", "tied", "diagonal", "spherical"}
        Covariance of the individuals of a group about its mean; "tied" is one for all groups.
    prior : {"empirical", "flat"} or GaussianPrior
        Prior of means and covariances, in the chart.
    population : {"fixed", "learned"}
        Whether mean and :math:`\kappa` of the population are those of the prior, or sites of their
        own. The latter is for engines that draw: a joint mode pulls group means together. See
        `population_prior`.
    outline : {"open", "closed"}, optional
        Whether landmarks in the order of their numbers form an outline, for pictures and bands
        along it; the density does not depend on it.
    concentration, weights, reading, flip_rate, weight_per, inference
        See `ppc`, with groups as clusters and individuals as points.

    References
    ----------
    Yu (2016), PhD thesis, University of Utah, chapter 3. Dryden and Mardia (2016), Statistical Shape
    Analysis, 2nd ed., chapters 4 and 7.
    """
    subjects = as_groups(subjects)
    given = {"x": x, "subjects": subjects, "landmarks": landmarks}
    table = choose_chart(given, {"num_modes": num_modes}) if chart is None else chart
    shapes = ShapeChart.of(table)
    coordinates = shape_coordinates(x, subjects, landmarks, shapes, size=size)
    shift = covariate_effects(covariates, coordinates)
    graph = as_label_graph(links, subjects.num_groups, num_clusters, inference)
    pi = cluster_weights(graph, num_clusters, concentration, weights, reading, inference)
    groups = population_prior(prior, coordinates, num_clusters, population)
    one_unit = shapes.num_directions  # not that of the size
    density = mixture_components(coordinates, num_clusters, covariance, groups, one_unit=one_unit)
    labels = LinkedCategorical(
        jnp.log(pi),
        graph,
        reading=reading,
        weight_per=weight_per,
        pair_weights=learned_pair_weights(graph, flip_rate, reading),
        inference=inference,
    )
    log_side = log_admissible(known, num_clusters)
    fn = LinkedMixture(labels, density, log_side)
    left = None if coordinates is None else coordinates - shift
    infer = {
        "chart": "chart",
        "covariates": "covariates",
        "slopes": "slopes",
        "offset": shift,
        "outline": check_outline(outline),
    }
    numpyro.sample("coordinates", fn, obs=left, infer=infer)
