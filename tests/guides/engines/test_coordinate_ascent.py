"""Coordinate ascent: a bound that rises, holds, and is scikit-learn's where there are no links."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_t
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.variational.coordinate_ascent import CoordinateAscent
from sidebayes.guides.engines.variational.factors import FactoredModel, plan_factors
from sidebayes.models.blocks.components.gaussian_block import COVARIANCES
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.reliability import FLIP_RATE_PRIOR
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture

from tests.reference import exact_mixture as exact
from tests.support.basics import climbed_bound, without_blocks

RNG = np.random.default_rng(4)
X = RNG.normal(size=(40, 2)) + RNG.integers(0, 2, (40, 1)) * [4.0, 1.0]
PRIOR = GaussianPrior(X.mean(axis=0), 0.5, 6.0, np.cov(X.T))
SMALL = GaussianPrior(np.array([0.5]), 0.4, 5.0, np.array([[2.0]]))
POINTS = np.array([[0.1], [0.9], [2.7], [3.1], [1.6]])
LINKS = Links.must_link([(0, 1), (2, 4)], weight=1.2) + Links.cannot_link([(1, 2)], weight=1.2)
ENGINE = CoordinateAscent(tol=1e-13, max_steps=3000, num_restarts=3, num_draws=200)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def build(model, x, links=None, **options):
    args = (jnp.asarray(x),) if model is gmm else (jnp.asarray(x), LabelGraph.build(links, len(x)))
    return Problem(model, args, options)


def statements(**options):
    options = {"num_clusters": 2, "prior": SMALL, "reading": "relation", **options}
    return build(ppc, POINTS, LINKS, flip_rate="learned", **options)


@pytest.fixture(scope="module")
def linked():
    with jax.enable_x64(True):
        return ENGINE.run(statements(), seed=1)


def test_chains_start_from_a_short_ascent():
    rough = CoordinateAscent(num_restarts=3).roughly()
    assert rough == CoordinateAscent(
        num_restarts=3, tol=1e-5, max_steps=100, num_inner_steps=5, num_draws=1
    )
    own = CoordinateAscent(tol=1e-2, max_steps=7, num_inner_steps=2, num_draws=1)
    assert own.roughly() == own


def test_bound_rises_and_stays_below_the_evidence(linked):
    history = linked.objective
    assert history.shape[0] == 3
    for row in history:
        row = row[~np.isnan(row)]
        assert np.diff(row).min() > -1e-10
    z, size = exact.labelings(len(POINTS), 2)
    wrong = exact.wrong_statements(z, LINKS.pairs, LINKS.weights)
    joint = (
        exact.log_gaussians(POINTS, z, SMALL, 2)
        + exact.log_dirichlet_multinomial(size, 1.0)
        + exact.log_flips(wrong, len(LINKS), FLIP_RATE_PRIOR)
    )
    _, evidence = exact.probabilities(joint)
    assert linked.log_evidence.kind == "bound"
    assert evidence - 3.0 < linked.log_evidence.value < evidence
    # labels are summed out in the weights of draws: their mean bounds the evidence more closely
    draws = linked.sample_stats["log_weight"].ravel()
    error = draws.std() / np.sqrt(len(draws))
    assert linked.log_evidence.value - 4 * error < draws.mean() < evidence + 4 * error


def test_result(linked):
    shapes = {n: v.shape for n, v in linked.draws.items()}
    assert shapes == {
        "weights": (1, 200, 2),
        "mean": (1, 200, 2, 1),
        "covariance": (1, 200, 2, 1, 1),
        "flip_rate": (1, 200),
    }
    assert linked.sample_stats["lp"].shape == (1, 200)
    assert "1 distinct mode from 3 starts" in str(linked.status)
    assert "Pareto k-hat" in str(linked.status)
    assert np.nanmax(linked.objective) == pytest.approx(linked.log_evidence.value)
    again = ENGINE.run(statements(), seed=1)
    assert again.seconds["compile"] == 0.0
    np.testing.assert_array_equal(again.draws["mean"], linked.draws["mean"])
    other = ENGINE.run(statements(), seed=2)
    assert not np.array_equal(other.draws["mean"], linked.draws["mean"])


def log_known(x, labels, covariance):
    """Density of the data given labels, one point after the other: a multivariate t each."""
    d = x.shape[1]
    scale, df = np.asarray(PRIOR.scale), PRIOR.df
    if covariance == "diagonal":
        parts = ((x[:, [j]], np.asarray(PRIOR.mean)[[j]], scale[[j]][:, [j]]) for j in range(d))
        return sum(
            exact.log_marginal(column[labels == k], mean, PRIOR.shrinkage, df, spread)
            for column, mean, spread in parts
            for k in (0, 1)
        )
    total = 0.0
    for k in (0, 1):
        if covariance != "tied":  # a tied one goes on from one cluster to the next
            scale, df = np.asarray(PRIOR.scale), PRIOR.df
        mean, kappa = np.asarray(PRIOR.mean), PRIOR.shrinkage
        for row in x[labels == k]:
            away = row - mean
            grow = (kappa + 1) / kappa
            if covariance == "spherical":
                rate = np.diag(scale).mean() * np.eye(d)
                total += multivariate_t.logpdf(row, mean, rate * grow / df, df=df)
                scale = scale + np.eye(d) * (away @ away) / grow
                df = df + d
            else:
                total += multivariate_t.logpdf(
                    row, mean, scale * grow / (df - d + 1), df=df - d + 1
                )
                scale = scale + np.outer(away, away) / grow
                df = df + 1
            mean, kappa = (kappa * mean + row) / (kappa + 1), kappa + 1
    return total


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_bound_is_the_evidence_where_labels_are_known(covariance):
    """Two clusters far apart, held together by hard links: one labeling, but for its numbering."""
    x = np.concatenate([X[:6] - 20, X[6:11] + 20])
    labels = np.repeat([0, 1], [6, 5])
    options = {"covariance": covariance, "prior": PRIOR, "concentration": 2.0}
    problem = build(
        ppc, x, Links.from_labels(labels), num_clusters=2, reading="relation", **options
    )
    value = climbed_bound(ENGINE, problem)
    weights = exact.log_dirichlet_multinomial(np.array([[6, 5]]), 2.0)[0]
    assert value == pytest.approx(weights + log_known(x, labels, covariance), abs=1e-8)


def test_without_links_it_is_scikit_learn():
    problem = build(gmm, X, num_clusters=3, prior=PRIOR)
    plan = plan_factors(problem)
    params = {name: value[0] for name, value in initial_values(problem, 0, 1).items()}

    @jax.jit
    def at_labels(member):
        slope = {"x": {"unary": member, "log_weights": member.sum(axis=0)}}
        model = FactoredModel(problem, plan, params, problem.args)
        found = model.update(slope)
        value, posterior = model.bound(found)
        weights, gaussian = found
        return value, gaussian, weights.concentration, posterior["x"]["unary"]

    bounds = []
    for seed in (0, 2, 3):  # of other optima, which it reaches in few steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            peer = BayesianGaussianMixture(
                n_components=3,
                weight_concentration_prior_type="dirichlet_distribution",
                weight_concentration_prior=1.0,
                mean_prior=X.mean(axis=0),
                mean_precision_prior=PRIOR.shrinkage,
                degrees_of_freedom_prior=PRIOR.df,
                covariance_prior=np.asarray(PRIOR.scale),
                init_params="random_from_data",
                random_state=seed,
                tol=1e-13,
                max_iter=3000,
                reg_covar=0.0,
            ).fit(X)
        member = jnp.asarray(peer.predict_proba(X))
        value, gaussian, concentration, again = at_labels(member)
        np.testing.assert_allclose(again, member, atol=1e-4)  # its optimum is a fixed point of ours
        np.testing.assert_allclose(gaussian.mean, peer.means_, atol=1e-4)
        np.testing.assert_allclose(gaussian.shrinkage, peer.mean_precision_, atol=1e-3)
        np.testing.assert_allclose(gaussian.df, peer.degrees_of_freedom_, atol=1e-3)
        spread = gaussian.scale / gaussian.df[:, None, None]
        np.testing.assert_allclose(spread, peer.covariances_, atol=1e-3)
        np.testing.assert_allclose(concentration, peer.weight_concentration_, atol=1e-3)
        bounds.append((float(value), peer.lower_bound_))
    ours, theirs = np.array(bounds).T
    assert np.ptp(theirs) > 0.1  # several optima were compared
    np.testing.assert_allclose(ours - ours[0], theirs - theirs[0], atol=1e-6)


def test_what_has_no_factor_at_all_is_refused():
    blind = Problem(without_blocks(gmm), (jnp.asarray(X),), {"num_clusters": 2})
    with pytest.raises(
        ValueError, match=r"no site has a factor \(covariance, mean, weights belong"
    ):
        ENGINE.run(blind)
    with pytest.raises(ValueError, match="prior='flat'"):
        ENGINE.run(build(gmm, X, num_clusters=2, prior="flat"))


def test_links_that_cannot_hold_are_named():
    corners = [(0, 1), (1, 2), (0, 2)]
    links = Links.cannot_link(corners)
    with pytest.raises(FitError, match="hard links that no labeling satisfies"):
        CoordinateAscent(num_restarts=1).run(
            build(ppc, POINTS, links, num_clusters=2, reading="relation")
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"tol": -1.0},
        {"max_steps": 0},
        {"num_restarts": 0},
        {"num_draws": "5"},
        {"num_inner_steps": 0},
    ],
)
def test_config_is_checked(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=rf"CoordinateAscent\({name}="):
        CoordinateAscent(**wrong)
