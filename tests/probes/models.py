"""Models as a user writes them: no card, and nothing of the library changed for them."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from sidebayes.models.blocks.block import Block
from sidebayes.models.blocks.classes.class_mixture import NamedClassMixture
from sidebayes.models.blocks.classes.stated import stated_classes
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.mixture_components import (
    gaussian_components,
    mixture_components,
)
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.reliability import FLIP_RATE_PRIOR, FlipRate
from sidebayes.models.blocks.mixtures.weights import mixing_weights
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels


def growth(
    y: Annotated[ArrayLike, "rows"],
    times: Annotated[ArrayLike, "rows"],
    subjects: Annotated[Groups, "rows"],
    *,
    slopes: bool = True,
):
    """Random intercepts and slopes, integrated out."""
    design = jnp.stack([jnp.ones_like(times), times], axis=1)
    beta = numpyro.sample("beta", dist.Normal(0.0, 1e3).expand([2]).to_event(1))
    size = 2 if slopes else 1
    spread = numpyro.sample("spread", dist.HalfNormal(1e3).expand([size]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1e3))
    effects = RandomEffects(
        design @ beta, design[:, :size], subjects, scale_tril=jnp.diag(spread), noise=noise
    )
    numpyro.sample("y", effects, obs=y)


def counts(events: Annotated[ArrayLike, "rows"], design: Annotated[ArrayLike, "rows columns"]):
    """Poisson regression."""
    prior = dist.Normal(0.0, 2.0).expand([design.shape[1]]).to_event(1)
    beta = numpyro.sample("beta", prior)
    with numpyro.plate("rows", len(design)):
        numpyro.sample("events", dist.Poisson(jnp.exp(design @ beta)), obs=events)


def lines(
    y: Annotated[ArrayLike, "rows"],
    times: Annotated[ArrayLike, "rows"],
    subjects: Annotated[Groups, "rows"],
    links: Annotated[Links | LabelGraph | None, "subjects"] = None,
    *,
    num_clusters: int,
):
    """Mixture of regressions with links between subjects, each with its own rows and times."""
    weights = mixing_weights(num_clusters)
    with numpyro.plate("clusters", num_clusters):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    graph = as_label_graph(links, subjects.num_groups, num_clusters)
    density = dist.Normal(intercept + slope * times[:, None], noise)
    labels = LinkedCategorical(jnp.log(weights), graph)
    numpyro.sample("y", LinkedMixture(labels, density, groups=subjects), obs=y)


def labelled(
    x: Annotated[ArrayLike, "points features"],
    known: Annotated[PartialLabels, "points"],
    *,
    num_clusters: int,
    num_classes: int,
):
    """Components with classes of their own: class labels on some rows, their probabilities learned."""
    weights = mixing_weights(num_clusters)
    prior = GaussianPrior.empirical(x, num_clusters)
    density = gaussian_components(num_clusters, x.shape[1], "full", prior)
    with numpyro.plate("clusters", num_clusters):
        classes = numpyro.sample(
            "class_probs",
            dist.Dirichlet(jnp.ones(num_classes)),
            infer={"event_dims": ["classes"]},
        )
    admitted = known.admissible(num_classes).astype(float) @ classes.T
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, len(x)))
    numpyro.sample("x", LinkedMixture(labels, density, log_side=jnp.log(admitted)), obs=x)


def shifted(
    source: Annotated[ArrayLike, "source_points features"],
    target: Annotated[ArrayLike, "target_points features"],
    *,
    num_clusters: int,
):
    """Two tables: means of the target lie around those of the source, component by component."""
    size = source.shape[1]
    weights = mixing_weights(num_clusters)
    prior = GaussianPrior.empirical(source, num_clusters)
    density = gaussian_components(num_clusters, size, "tied", prior)
    shift = numpyro.sample("shift", dist.InverseGamma(3.0, 1.0))
    with numpyro.plate("clusters", num_clusters):
        around = dist.Normal(density.loc, shift).to_event(1)
        moved = numpyro.sample("moved", around, infer={"event_dims": ["features"]})
    there = dist.MultivariateNormal(moved, scale_tril=density.scale_tril)
    for name, data, components in (("source", source, density), ("target", target, there)):
        labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, len(data)))
        numpyro.sample(name, LinkedMixture(labels, components), obs=data)


SPECIES_ELSEWHERE = np.array([[4.7, 3.8], [5.6, 3.1], [6.3, 3.4]])
"""Sepals of three species of iris in another country."""


def ported(x: Annotated[ArrayLike, "points features"], known: Annotated[PartialLabels, "points"]):
    """Gaussians of known classes, all of them shifted alike from where another table had them."""
    weights = mixing_weights(3)
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.LogNormal(-1.0, 0.5))
    moved = dist.MultivariateNormal(SPECIES_ELSEWHERE + shift, scale_tril=spread * jnp.eye(2))
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, len(x)))
    stated = stated_classes(known, 3, 0.05)
    numpyro.sample("x", NamedClassMixture(labels, moved, jnp.eye(3), stated), obs=x)


def joint_survival(
    y: Annotated[ArrayLike, "rows"],
    times: Annotated[ArrayLike, "rows"],
    subjects: Annotated[Groups, "rows"],
    until: Annotated[ArrayLike, "subjects"],
    died: Annotated[ArrayLike, "subjects"],
):
    """A measure over time and a censored time to an event share a random intercept."""
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    hazard = numpyro.sample("hazard", dist.Normal(0.0, 2.0))
    pull = numpyro.sample("pull", dist.Normal(0.0, 1.0))
    with numpyro.plate("subjects", len(until)):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        rate = jnp.exp(hazard + pull * effect)
        numpyro.sample("until", Censored(rate, died), obs=until)
    with numpyro.plate("rows", len(times)):
        mean = level + spread * effect[subjects.codes]
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


class Censored(dist.Exponential):
    """Exponential times, of which some are known to be longer only."""

    def __init__(self, rate, died):
        self.died = died
        super().__init__(rate, validate_args=False)

    def log_prob(self, value):
        """Log density, or log probability of lasting longer."""
        return self.died * jnp.log(self.rate) - self.rate * value


def hierarchical(
    x: Annotated[ArrayLike, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
):
    """Linked mixture whose means have a centre and a shrinkage that are learned."""
    size = x.shape[1]
    weights = mixing_weights(num_clusters)
    centre = numpyro.sample("centre", dist.Normal(0.0, 10.0).expand([size]).to_event(1))
    shrinkage = numpyro.sample("shrinkage", dist.Gamma(2.0, 2.0))
    prior = GaussianPrior(centre, shrinkage, size + 2.0, jnp.eye(size))
    density = gaussian_components(num_clusters, size, "full", prior)
    graph = as_label_graph(links, len(x), num_clusters)
    numpyro.sample("x", LinkedMixture(LinkedCategorical(jnp.log(weights), graph), density), obs=x)


def factors(x: Annotated[ArrayLike, "points features"], *, num_dimensions: int):
    """Probabilistic principal components, whose loadings are known up to a rotation only."""
    num_features = x.shape[1]
    centre = numpyro.sample("centre", dist.Normal(0.0, 10.0).expand([num_features]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    normal = dist.Normal(0.0, 1.0).expand([num_features, num_dimensions]).to_event(2)
    loadings = numpyro.sample(
        "loadings",
        normal,
        infer={"event_dims": ["features", "dimensions"], "symmetry": {"dimensions": "orthogonal"}},
    )
    spread = noise**2 * jnp.ones(num_features)
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", dist.LowRankMultivariateNormal(centre, loadings, spread), obs=x)


class Robust(Block):
    """Location and scale of Student-t components of known degrees of freedom, by ECME."""

    factor, roles = "unary", ("location", "spread")

    def __init__(self, num_clusters, df):
        self.num_clusters, self.df = num_clusters, df

    def sample(self):
        """Sample flat locations and scales; return the components."""
        with numpyro.plate("clusters", self.num_clusters):
            flat = dist.ImproperUniform(dist.constraints.real, (), ())
            self.centre = self.declare("location", "centre", flat)
            flat = dist.ImproperUniform(dist.constraints.positive, (), ())
            self.scale = self.declare("spread", "scale", flat)
        return dist.StudentT(self.df, self.centre, self.scale)

    def statistics(self, observation):
        """Expected members, precisions, and moments of the points about the current locations."""
        member, apart = observation.expected["unary"], observation.value[:, None] - self.centre
        known = member * (self.df + 1) / (self.df + (apart / self.scale) ** 2)
        return tuple(jnp.sum(w, axis=0) for w in (member, known, known * apart, known * apart**2))

    def update(self, statistics, sources):
        """The statistics are all there is."""
        return statistics

    def mode(self, found, values):
        """Weighted means, and spread about them."""
        size, known, first, second = found
        move = first / known
        return {
            "location": values["location"] + move,
            "spread": jnp.sqrt((second - known * move**2) / size),
        }

    def starts(self, value, shapes, seed, num_starts):
        """Quantiles of the data."""
        places = np.quantile(value, (np.arange(self.num_clusters) + 0.5) / self.num_clusters)
        return {"location": np.tile(places, (num_starts, 1)), "spread": np.std(value)}


def robust(x: Annotated[ArrayLike, "points"], *, num_clusters: int, df: float = 4.0):
    """Mixture of Student-t components with an update of the user's own."""
    weights = mixing_weights(num_clusters)
    density = Robust(num_clusters, df).sample()
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, len(x)))
    numpyro.sample("x", LinkedMixture(labels, density), obs=x)


def sampled_growth(
    y: Annotated[ArrayLike, "rows"],
    times: Annotated[ArrayLike, "rows"],
    subjects: Annotated[Groups, "rows"],
):
    """The model of `growth`, whose effects are sites of their own."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1e3).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1e3).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1e3))
    with numpyro.plate("subjects", subjects.num_groups):
        white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    own = (beta + spread * white)[subjects.codes]
    with numpyro.plate("rows", len(times)):
        numpyro.sample("y", dist.Normal(own[:, 0] + own[:, 1] * times, noise), obs=y)


def renamed_gmm(table: Annotated[ArrayLike, "items columns"], *, num_clusters: int):
    """`gmm` with every name changed."""
    pi = mixing_weights(num_clusters, name="pi")
    names = {"mean": "loc", "covariance": "c_sigma"}
    density = mixture_components(table, num_clusters, names=names)
    labels = LinkedCategorical(jnp.log(pi), as_label_graph(None, len(table)))
    numpyro.sample("obs", LinkedMixture(labels, density), obs=table)


def learned_scale(table: Annotated[ArrayLike, "items columns"], *, num_clusters: int):
    """`gmm` with every name changed, and a scale of the covariances that is learned."""
    pi = mixing_weights(num_clusters, name="pi")
    scale = numpyro.sample("tau", dist.Gamma(4.0, 4.0))
    size = table.shape[1]
    prior = GaussianPrior(jnp.zeros(size), 0.5, size + 2.0, scale * jnp.eye(size))
    names = {"mean": "loc", "covariance": "c_sigma"}
    density = mixture_components(table, num_clusters, prior=prior, names=names)
    labels = LinkedCategorical(jnp.log(pi), as_label_graph(None, len(table)))
    numpyro.sample("obs", LinkedMixture(labels, density), obs=table)


def renamed_ppc(
    table: Annotated[ArrayLike, "items columns"],
    ties: Annotated[Links | LabelGraph | None, "items"] = None,
    *,
    num_clusters: int,
):
    """`ppc` with statements of learned reliability, and every name changed."""
    graph = as_label_graph(ties, len(table), num_clusters)
    pi = mixing_weights(num_clusters, name="pi")
    names = {"mean": "loc", "covariance": "c_sigma"}
    density = mixture_components(table, num_clusters, names=names)
    error = FlipRate(dist.Beta(*FLIP_RATE_PRIOR), graph).sample("error")
    sign = jnp.where(graph.pair_weights > 0, 1.0, -1.0)
    odds = sign * (jnp.log1p(-error) - jnp.log(error))
    labels = LinkedCategorical(jnp.log(pi), graph, reading="relation", pair_weights=odds)
    numpyro.sample("obs", LinkedMixture(labels, density), obs=table)
