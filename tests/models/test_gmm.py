"""The plain mixture and its components: agreement with scikit-learn, priors, simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, substitute, trace
from scipy.stats import invgamma, invwishart, multivariate_normal
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.problem.density import log_joint, sum_log_prob
from sidebayes.guides.engines.steps.surrogate import expectation
from sidebayes.guides.engines.steps.updates import closed_forms, maximised, plan_updates
from sidebayes.models.blocks.components.gaussian_block import COVARIANCES
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.gaussians.gaussian_stats import Moments
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.components.normal_inverse_gamma import mode, update
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.weights import mixing_weights
from sidebayes.models.gmm import gmm
from sidebayes.models.pair_mixture import pair_mixture
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture

X, Y = load_iris(return_X_y=True)
LOG_TWO = np.log(2)  # density of Dirichlet(1, 1, 1)
NAMES = {"full": "full", "tied": "tied", "diagonal": "diag", "spherical": "spherical"}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_maximum_likelihood_is_that_of_scikit_learn(covariance):
    """Lu (2008), check 1, for every covariance form: value, fixed point, and parameters."""
    theirs = GaussianMixture(
        3, covariance_type=NAMES[covariance], random_state=0, tol=1e-10, max_iter=5000, reg_covar=0
    ).fit(X)
    options = {"num_clusters": 3, "covariance": covariance, "prior": "flat"}
    problem = Problem(gmm, (jnp.asarray(X),), options)
    spread = "covariance" if covariance in ("full", "tied") else "variance"
    params = {"weights": theirs.weights_, "mean": theirs.means_, spread: theirs.covariances_}
    value = float(jax.jit(lambda given: log_joint(problem, given))(params)) - LOG_TWO
    np.testing.assert_allclose(value, theirs.score(X) * 150, rtol=1e-12)
    if covariance == "full":
        np.testing.assert_allclose(value, -180.1855, atol=1e-3)
    assert plan_updates(problem).rest == ()
    result = EM(tol=1e-12).run(problem, init=params)
    np.testing.assert_allclose(result.sample_stats["lp"].item() - LOG_TWO, value, atol=1e-5)
    for name, start in params.items():
        np.testing.assert_allclose(result.params[name], start, atol=1e-3)


def test_one_em_step_is_that_of_scikit_learn():
    start = {
        "weights": np.full(3, 1 / 3),
        "mean": X[[0, 60, 120]],
        "covariance": np.broadcast_to(np.cov(X.T), (3, 4, 4)),
    }
    theirs = GaussianMixture(
        3,
        weights_init=start["weights"],
        means_init=start["mean"],
        precisions_init=np.linalg.inv(start["covariance"]),
        max_iter=1,
        reg_covar=0,
    )
    with pytest.warns(Warning, match="converge"):
        theirs.fit(X)
    options = {"num_clusters": 3, "prior": "flat"}
    ours = EM(max_steps=1).run(Problem(gmm, (jnp.asarray(X),), options), init=start)
    np.testing.assert_allclose(ours.params["mean"], theirs.means_, rtol=1e-8)
    np.testing.assert_allclose(ours.params["covariance"], theirs.covariances_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.params["weights"], theirs.weights_, rtol=1e-8)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_prior_densities_are_scipys(covariance):
    rng = np.random.default_rng(0)
    prior = GaussianPrior(rng.normal(size=3), 0.7, 6.5, np.cov(rng.normal(size=(3, 9))))
    root = rng.normal(size=(2, 3, 5))
    sigma = root @ root.transpose(0, 2, 1)
    mean = rng.normal(size=(2, 3))
    diagonal = np.diagonal(sigma, axis1=1, axis2=2)
    scale = np.diagonal(prior.scale)
    if covariance == "full":
        value = {"covariance": sigma}
        expected = sum(invwishart(6.5, prior.scale).logpdf(s) for s in sigma)
    elif covariance == "tied":
        value, sigma = {"covariance": sigma[0]}, sigma[[0, 0]]
        expected = invwishart(6.5, prior.scale).logpdf(sigma[0])
    elif covariance == "diagonal":
        value, sigma = {"variance": diagonal}, np.stack([np.diag(row) for row in diagonal])
        expected = invgamma((6.5 - 2) / 2, scale=scale / 2).logpdf(diagonal).sum()
    else:
        value = {"variance": diagonal[:, 0]}
        sigma = diagonal[:, :1, None] * np.eye(3)
        expected = invgamma((6.5 - 2) / 2, scale=scale.mean() / 2).logpdf(diagonal[:, 0]).sum()
    expected += sum(
        multivariate_normal(prior.mean, s / 0.7).logpdf(m) for m, s in zip(mean, sigma, strict=True)
    )

    def components():
        mixture_components(None, 2, covariance, prior)

    @jax.jit
    def density(value):
        sites = trace(substitute(seed(components, 0), value)).get_trace()
        assert sites["mean"]["cond_indep_stack"][0].name == "clusters"
        return sum_log_prob(sites)

    np.testing.assert_allclose(density({"mean": mean, **value}), expected, rtol=1e-10)


def test_empirical_prior_is_that_of_fraley_and_raftery():
    prior = GaussianPrior.empirical(X, 3)
    np.testing.assert_allclose(prior.mean, X.mean(axis=0))
    np.testing.assert_allclose(prior.scale, np.cov(X.T) / np.sqrt(3), rtol=1e-4)
    assert (prior.shrinkage, prior.df) == (0.01, 6.0)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_it_simulates(covariance):
    prior = GaussianPrior(np.array([3.0, -2.0]), 0.5, 5.0, np.eye(2))
    options = {"num_clusters": 2, "covariance": covariance, "prior": prior, "num_points": 30}
    sites = trace(seed(gmm, 0)).get_trace(None, **options)
    assert sites["x"]["value"].shape == (30, 2)
    means = jax.vmap(
        lambda key: trace(seed(gmm, key)).get_trace(None, **options)["x"]["value"].mean(axis=0)
    )(jax.random.split(jax.random.key(1), 400))
    error = means.std(axis=0) / np.sqrt(len(means))
    assert np.all(np.abs(means.mean(axis=0) - prior.mean) < 5 * error)


def test_own_component_runs_inside_the_plate():
    def poisson():
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.1).expand([2]).to_event(1))
        return dist.Poisson(rate).to_event(1)

    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=200)
    x = rng.poisson(np.array([[5.0, 30.0], [20.0, 8.0]])[truth])
    result = EM(num_restarts=3).run(
        Problem(gmm, (jnp.asarray(x, float),), {"num_clusters": 2, "component": poisson})
    )
    rate = result.params["rate"]
    rate = rate[np.argsort(rate[:, 0])]
    np.testing.assert_allclose(rate, [[5.0, 30.0], [20.0, 8.0]], rtol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": None, "num_points": 5}, "cannot be simulated from"),
        ({"x": None, "prior": "flat", "num_points": 5}, "cannot be simulated from"),
        ({"x": None, "prior": GaussianPrior(np.zeros(2), 1.0, 4.0, np.eye(2))}, "pass num_points"),
        ({"num_points": 7}, "but x has 150 rows"),
        ({"prior": "vague"}, "expected 'empirical', 'flat' or a GaussianPrior"),
        ({"covariance": "round"}, "expected one of"),
        ({"component": lambda: 3.0}, "expected a NumPyro Distribution"),
        ({"component": lambda: dist.Normal(0, 1)}, "batch shape"),
    ],
)
def test_it_refuses(options, message):
    options = {"x": X, "num_clusters": 3, **options}
    with pytest.raises((ValueError, TypeError), match=message):
        jax.eval_shape(lambda: seed(gmm, 0)(options.pop("x"), **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shrinkage": 0.0}, "shrinkage"),
        ({"df": 1.0}, "df"),
        ({"mean": np.zeros(3)}, "mean has shape"),
        ({"scale": np.ones(2)}, "scale"),
    ],
)
def test_prior_refuses(change, message):
    fields = {"mean": np.zeros(2), "shrinkage": 1.0, "df": 4.0, "scale": np.eye(2)} | change
    with pytest.raises(ValueError, match=message):
        GaussianPrior(**fields)


def point_by_point(x, num_clusters, covariance):
    """The same mixture with silent evidence about its labels, which no pass over the data serves."""
    weights = mixing_weights(num_clusters)
    density = mixture_components(x, num_clusters, covariance, "empirical")
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, len(x)))
    silent = jnp.zeros((len(x), num_clusters))
    numpyro.sample("x", LinkedMixture(labels, density, silent), obs=x)


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_one_pass_climbs_as_the_generic_e_step(covariance):
    options = {"num_clusters": 3, "covariance": covariance}
    problems = [Problem(model, (jnp.asarray(X),), options) for model in (gmm, point_by_point)]
    assert [set(plan_updates(p).one_pass) for p in problems] == [{"x"}, set()]
    engine = EM(max_steps=5, num_restarts=2, tol=1e-15)
    fast, plain = (engine.run(problem, seed=1) for problem in problems)
    np.testing.assert_allclose(fast.objective, plain.objective, rtol=1e-10)
    for name, value in plain.params.items():
        np.testing.assert_allclose(fast.params[name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_one_pass_leaves_the_m_step_of_responsibilities(covariance):
    problem = Problem(gmm, (jnp.asarray(X),), {"num_clusters": 3, "covariance": covariance})
    plan = plan_updates(problem)
    params = {
        "weights": jnp.array([0.5, 0.3, 0.2]),
        "mean": jnp.asarray(X[[3, 60, 120]]),
        "covariance": jnp.eye(4) if covariance == "tied" else jnp.stack([jnp.eye(4)] * 3),
    }

    @jax.jit
    def step(params, args):
        both = [expectation(problem, params, args, how) for how in (plan.one_pass, None)]
        return [
            (value, counts(slope), closed_forms(problem, plan, params, args, slope, maximised))
            for value, slope in both
        ]

    def counts(slope):
        return slope["x"]["log_weights"]

    fast, plain = step(params, problem.args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), fast, plain)
    assert np.abs(plain[2]["mean"] - params["mean"]).max() > 0.1


def test_one_pass_where_there_is_one():
    def has_one(model, **options):
        problem = Problem(model, (jnp.asarray(X),), {"num_clusters": 3} | options)
        return plan_updates(problem).one_pass != {}

    def four():
        return dist.Normal(numpyro.sample("loc", dist.Normal(0, 9).expand([4]).to_event(1)), 1.0)

    assert has_one(gmm)
    assert not has_one(gmm, covariance="diagonal")
    assert not has_one(gmm, component=lambda: four().to_event(1))
    assert not has_one(pair_mixture, num_components=2)


@pytest.mark.parametrize("spherical", [False, True])
def test_variances_of_many_features_are_near_those_of_the_rows(spherical):
    """The prior weighs no more with more features."""
    x = np.random.default_rng(0).normal(size=(25, 49))
    with jax.enable_x64(True):
        moments = Moments(np.array([25.0]), x.sum(axis=0)[None], (x**2).sum(axis=0)[None])
        prior = GaussianPrior.empirical(x, 1)
        found = update(moments, np.zeros(49), prior, spherical=spherical)
        variance = np.asarray(mode(found)[1])
    own = x.var(axis=0)
    assert 0.8 < np.mean(variance / (own.mean() if spherical else own)) < 1.05
