"""Variational EM: exact factors for the blocks that have them, points for all other sites."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import gamma, norm
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.variational.coordinate_ascent import CoordinateAscent
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.weights import MixingWeights, mixing_weights
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc

import sidebayes as sb
from tests.probes import models
from tests.reference import exact_mixture as exact
from tests.reference import variational_mixture

POINTS = np.array([0.1, 0.9, 2.7, 3.1, 1.6, 0.4, 3.6])
TIGHT = CoordinateAscent(
    tol=1e-13, max_steps=3000, num_restarts=3, num_draws=100, num_inner_steps=30
)
SMALL = GaussianPrior(np.array([0.5]), 0.4, 5.0, np.array([[2.0]]))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def fit(model, *given, **options):
    return sb.fit(model, *given, engine=TIGHT, num_clusters=2, progress=False, **options)


def bound(found):
    """The best bound, and whether it fell on the way of any start."""
    assert np.nanmin(np.diff(found.objective, axis=1)) > -1e-9
    return np.nanmax(found.objective)


def halves(x):
    """A first guess of the members of two clusters."""
    return np.where(x[:, None] > 1.8, [0.1, 0.9], [0.9, 0.1])


def evidence(x, prior, log_given=lambda z: 0.0):
    """Log density of the data at the points, every labeling summed, factors integrated out."""
    z, size = exact.labelings(len(x), 2)
    joint = exact.log_gaussians(x[:, None], z, prior, 2) + exact.log_dirichlet_multinomial(size, 1)
    return exact.probabilities(joint + log_given(z))[1]


PARENTS = {
    "scale": (
        models.learned_scale,
        ("tau",),
        lambda tau: (0.0, 0.5, 3.0, tau),
        lambda tau: gamma.logpdf(tau, 4.0, scale=1 / 4.0),
    ),
    "centre and shrinkage": (
        models.hierarchical,
        ("centre", "shrinkage"),
        lambda centre, shrinkage: (centre, shrinkage, 3.0, 1.0),
        lambda centre, shrinkage: (
            norm.logpdf(centre, scale=10.0) + gamma.logpdf(shrinkage, 2.0, scale=1 / 2.0)
        ),
    ),
}
"""Models whose blocks have priors with parameters, these, and the log density of these."""


@pytest.mark.parametrize("kind", PARENTS)
def test_parameters_of_a_prior_maximise_the_bound(kind):
    """As a general optimiser does, over bounds that a program of its own finds at each point."""
    model, names, prior_at, log_prior = PARENTS[kind]
    found = fit(model, POINTS[:, None])
    member = halves(POINTS)

    def profile(values):
        values = [float(values[0]), *np.exp(values[1:])] if len(values) > 1 else np.exp(values)
        value, _ = variational_mixture.fit(POINTS, member, prior_at(*values), num_steps=1000)
        return -value - log_prior(*values)

    start = [0.0] * len(names)
    best = minimize(profile, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12})
    assert bound(found) == pytest.approx(-best.fun, abs=1e-7)
    ours = [float(np.squeeze(found.params[name])) for name in names]
    theirs = [best.x[0], *np.exp(best.x[1:])] if len(names) > 1 else np.exp(best.x)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    # it is a bound on the joint density of data and points
    centre, shrinkage, df, scale = prior_at(*ours)
    prior = GaussianPrior(np.array([centre]), shrinkage, df, np.array([[scale]]))
    limit = evidence(POINTS, prior) + log_prior(*ours)
    assert limit - 3.0 < bound(found) < limit


def test_classes_of_clusters_are_those_of_variational_em():
    known = np.array([0, -1, 1, 1, -1, 1, 0])  # some of both in either cluster
    found = fit(models.labelled, POINTS[:, None], known, num_classes=2)
    prior = GaussianPrior.empirical(POINTS[:, None], 2)
    numbers = float(prior.mean[0]), prior.shrinkage, prior.df, float(prior.scale[0, 0])
    member, classes = halves(POINTS), np.full((2, 2), 0.5)
    for _ in range(300):
        told = np.where(known[:, None] < 0, 0.0, np.log(classes.T[known]))
        value, member = variational_mixture.fit(POINTS, member, numbers, told, num_steps=20)
        counts = np.array([member[known == c].sum(axis=0) for c in (0, 1)]).T
        classes = counts / counts.sum(axis=1, keepdims=True)
    assert bound(found) == pytest.approx(value, abs=1e-7)
    ours = found.params["class_probs"]
    np.testing.assert_allclose(np.sort(ours, axis=0), np.sort(classes, axis=0), atol=1e-4)

    def log_told(z):
        return np.log(ours[z, np.maximum(known, 0)]) @ (known >= 0)

    limit = evidence(POINTS, prior, log_told)
    assert limit - 3.0 < bound(found) < limit


def test_weights_of_a_field_are_points():
    """Their partition function leaves no Dirichlet, but is exact at a point."""
    links = Links.must_link([(0, 1), (2, 4)], weight=1.2) + Links.cannot_link([(1, 2)], weight=0.7)
    found = fit(ppc, POINTS[:, None], links, prior=SMALL)
    assert json.loads(found.tree["fit_info"].attrs["points"]) == ["weights"]
    assert "the partition function of links under reading='field'" in str(found.status)
    z, _ = exact.labelings(len(POINTS), 2)
    agree = z[:, links.pairs[:, 0]] == z[:, links.pairs[:, 1]]
    field = np.log(found.params["weights"])[z].sum(axis=1) + agree @ links.weights
    joint = field - logsumexp(field) + exact.log_gaussians(POINTS[:, None], z, SMALL, 2)
    _, limit = exact.probabilities(joint)  # the prior of two weights is one everywhere
    assert limit - 3.0 < bound(found) < limit
    even = fit(ppc, POINTS[:, None], links, prior=SMALL, weights="uniform")
    assert bound(found) > bound(even) + 1e-6


def test_result_says_what_is_a_point(tmp_path):
    found = fit(models.learned_scale, POINTS[:, None])
    assert found.log_evidence is None
    assert "; points: tau (belongs to no block), so that" in str(found.status)
    assert "given the points, Pareto k-hat" in str(found.status)
    level, why = found.verdict
    assert level != "good"
    assert "tau is a point: the result says nothing about the uncertainty there" in why
    table = found.summary()
    assert list(table.index[table["point"]]) == ["tau"]
    draws = found.tree["posterior"]
    assert np.ptp(draws["tau"].to_numpy()) == 0.0
    assert np.ptp(draws["loc"].to_numpy()) > 0.0
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", model=models.learned_scale)
    assert again.summary().equals(table)
    assert "point" not in fit(gmm, POINTS[:, None]).summary()


def own(x, *, use=lambda log_weights: log_weights, move=0.0, weights=mixing_weights):
    """Blocks of the library as a user may use them."""
    log_weights = use(jnp.log(weights(2)))
    density = mixture_components(x, 2, prior=SMALL)
    if move is None:
        move = numpyro.sample("move", dist.Normal(0.0, 0.1))
        density = dist.MultivariateNormal(density.loc + move, scale_tril=density.scale_tril)
    labels = LinkedCategorical(log_weights, LabelGraph.build(None, len(x)))
    numpyro.sample("x", LinkedMixture(labels, density), obs=x)


def test_densities_beside_the_mixture_count():
    def with_factors(x, *, num_clusters):
        models.learned_scale(x, num_clusters=num_clusters)
        numpyro.sample("beside", dist.Normal(0.0, 1.0), obs=jnp.asarray(2.0))

    plain, more = (fit(model, POINTS[:, None]) for model in (models.learned_scale, with_factors))
    assert bound(more) - bound(plain) == pytest.approx(norm.logpdf(2.0), abs=1e-9)


def test_a_block_that_shares_its_log_factor_is_a_point():
    """The expectation that it knows is of its own sites alone."""
    found = sb.fit(own, POINTS[:, None], move=None, engine=TIGHT, progress=False)
    bound(found)
    assert json.loads(found.tree["fit_info"].attrs["points"]) == ["move", "covariance", "mean"]
    assert "covariance, mean enter unary of x together with move" in str(found.status)
    level, why = found.verdict
    assert level == "caution"
    assert "move, covariance, mean are points: the result says nothing" in why


class Silent(MixingWeights):
    """Weights with nothing but a mode and a full conditional."""

    expected_factors = None


class Wrong(MixingWeights):
    """Weights whose divergence is none."""

    def divergence(self, found):
        return 2 * super().divergence(found)


def test_a_block_without_expectations_is_a_point():
    found = sb.fit(own, POINTS[:, None], weights=lambda k: Silent(k, 2.0).sample("w"), engine=TIGHT)
    bound(found)
    assert "the block of w has no expected factors" in str(found.status)


@pytest.mark.parametrize(
    "options",
    [
        {"use": lambda log_weights: log_weights[::-1]},  # an order that no expectation knows
        {"weights": lambda k: Wrong(k, 2.0).sample("weights")},
    ],
    ids=["used otherwise", "wrong"],
)
def test_factors_that_contradict_the_density_are_refused(options):
    with pytest.raises(
        ValueError, match="the (factor|update) of weights contradicts the model's density"
    ):
        TIGHT.run(Problem(own, (jnp.asarray(POINTS[:, None]),), options), progress=False)


def test_a_site_under_a_scale_is_refused():
    def scaled(x):
        with handlers.scale(scale=2.0):
            own(x)

    with pytest.raises(ValueError, match=r"observed sites \['x'\] are under a scale"):
        TIGHT.run(Problem(scaled, (jnp.asarray(POINTS[:, None]),)), progress=False)
