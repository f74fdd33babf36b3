"""Blocked Gibbs sampling against posteriors that enumeration makes exact."""

from __future__ import annotations

import arviz_stats as azs
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from scipy.special import gammaln
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.engines.samplers.gibbs import BlockedGibbs
from sidebayes.guides.engines.steps.surrogate import drawn, linearised
from sidebayes.guides.engines.steps.updates import drawable, plan_updates
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.reliability import FLIP_RATE_PRIOR
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.ppc import ppc

from tests.reference import exact_mixture as exact
from tests.reference.brute_force import enumerate_labelings

PRIOR = GaussianPrior(np.array([0.5]), 0.4, 8.0, np.array([[4.0]]))
X = np.array([[0.1], [0.9], [2.7], [3.4]])
LINKS = Links.must_link([(0, 1)], weight=1.5) + Links.cannot_link([(1, 2), (2, 3)], weight=1.0)
ENGINE = BlockedGibbs(num_warmup=200, num_samples=1000, num_chains=4)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def build(**options):
    options = {"num_clusters": 2, "prior": PRIOR, "covariance": "diagonal", **options}
    args = jnp.asarray(X), LabelGraph.build(LINKS, len(X))
    return Problem(ppc, args, options)


def statements():
    return build(reading="relation", flip_rate="learned")


@pytest.fixture(scope="module")
def sampled():
    with jax.enable_x64(True):
        return ENGINE.run(statements(), seed=1)


def assert_moment(draws, expected):
    """Within five standard errors, by the effective sample size; and that size is not tiny."""
    ess = float(azs.ess(draws, method="mean"))
    assert ess > 200
    assert abs(draws.mean() - expected) < 5 * draws.std() / np.sqrt(ess)


def posterior_means(z):
    """Posterior mean of every cluster's mean and variance given each labeling."""
    size = (z[:, :, None] == np.arange(2)).sum(axis=1)
    total = np.stack([np.where(z == k, X[:, 0], 0.0).sum(axis=1) for k in (0, 1)], axis=1)
    squares = np.stack([np.where(z == k, X[:, 0] ** 2, 0.0).sum(axis=1) for k in (0, 1)], axis=1)
    kappa, m = PRIOR.shrinkage, PRIOR.mean[0]
    mean = (kappa * m + total) / (kappa + size)
    scale = PRIOR.scale[0, 0] + squares + kappa * m**2 - (kappa + size) * mean**2
    return size, mean, scale / (PRIOR.df + size - 2)


def test_posterior_of_statements_is_the_enumerated_one(sampled):
    z, size = exact.labelings(len(X), 2)
    wrong = exact.wrong_statements(z, LINKS.pairs, LINKS.weights)
    joint = (
        exact.log_gaussians(X, z, PRIOR, 2)
        + exact.log_dirichlet_multinomial(size, 1.0)
        + exact.log_flips(wrong, len(LINKS), FLIP_RATE_PRIOR)
    )
    prob, _ = exact.probabilities(joint)
    size, mean, variance = posterior_means(z)
    share = (1 + size) / (2 + len(X))
    square = share * (2 + size) / (3 + len(X))
    a, b = FLIP_RATE_PRIOR
    draws = sampled.draws
    weights, means, variances = draws["weights"], draws["mean"][..., 0], draws["variance"][..., 0]
    assert_moment(draws["flip_rate"], prob @ ((a + wrong) / (a + b + len(LINKS))))
    assert_moment((weights**2).sum(axis=-1), prob @ square.sum(axis=1))
    assert_moment((weights * means).sum(axis=-1), prob @ (share * mean).sum(axis=1))
    assert_moment((weights * variances).sum(axis=-1), prob @ (share * variance).sum(axis=1))
    assert_moment(means[..., 0] * means[..., 1], prob @ mean.prod(axis=1))


def test_result(sampled):
    assert {n: v.shape for n, v in sampled.draws.items()} == {
        "weights": (4, 1000, 2),
        "mean": (4, 1000, 2, 1),
        "variance": (4, 1000, 2, 1),
        "flip_rate": (4, 1000),
    }
    assert set(sampled.sample_stats) == {"lp"}
    assert sampled.density_space == "unconstrained"
    assert str(sampled.status) == "Gibbs drew 4 x 1000"
    again = ENGINE.run(statements(), seed=1)
    assert again.seconds["compile"] == 0.0
    np.testing.assert_array_equal(again.draws["mean"], sampled.draws["mean"])
    assert not np.array_equal(ENGINE.run(statements(), seed=2).draws["mean"], sampled.draws["mean"])


def test_lp_is_the_density_in_unconstrained_space(sampled):
    params = {name: jnp.asarray(value[2, 7]) for name, value in sampled.draws.items()}
    problem = statements()

    @jax.jit
    def density(params):
        sites = trace_model(problem, params).values()
        total = sum(s["fn"].log_prob(s["value"]).sum() for s in sites if s["type"] == "sample")
        weights, rate = params["weights"], params["flip_rate"]
        jacobian = jnp.log(weights).sum() + jnp.log(params["variance"]).sum()
        jacobian += len(weights) * jnp.log(X.std(axis=0)).sum()  # means are in units of the data
        return total + jacobian + jnp.log(rate * (1 - rate))

    assert sampled.sample_stats["lp"][2, 7] == pytest.approx(float(density(params)))


@pytest.mark.parametrize("weight_per", ["point", "chunklet"])
def test_labels_are_drawn_jointly_from_their_posterior(weight_per):
    hard = LINKS + Links.must_link([(0, 3)])
    graph = LabelGraph.build(hard, len(X))
    options = {
        "num_clusters": 2,
        "prior": PRIOR,
        "covariance": "diagonal",
        "weight_per": weight_per,
    }
    problem = Problem(ppc, (jnp.asarray(X), graph), options)
    params = {
        "weights": jnp.array([0.3, 0.7]),
        "mean": jnp.array([[0.5], [2.0]]),
        "variance": jnp.array([[1.0], [2.0]]),
    }
    keys = jax.random.split(jax.random.key(0), 20_000)
    one = jax.jit(lambda k: drawn(problem, params, problem.args, k)["x"])
    found = jax.tree.map(np.asarray, jax.vmap(one)(keys))
    labels = found["unary"].argmax(axis=2)
    unary = np.asarray(
        dist.Normal(params["mean"][:, 0], jnp.sqrt(params["variance"][:, 0])).log_prob(X)
    )
    log_weights = np.log(params["weights"])
    z, energy = enumerate_labelings(unary, hard.pairs, hard.weights)
    member = np.eye(2)[z]
    share = np.array([0.5, 1, 1, 0.5])[:, None] if weight_per == "chunklet" else 1.0
    count = (member * share).sum(axis=1)
    prob, _ = exact.probabilities(energy + count @ log_weights)
    code = 2 ** np.arange(len(X))[::-1]
    frequency = np.bincount(labels @ code, minlength=16) / len(labels)
    error = np.sqrt(prob * (1 - prob) / len(labels))
    assert np.all(np.abs(frequency - prob[np.argsort(z @ code)]) <= 5 * error)
    # what else is told of the labels, and the density that it makes
    row = 5
    chosen = int(labels[row] @ code)
    np.testing.assert_allclose(found["log_weights"][row], count[chosen])
    agree = z[chosen][hard.pairs[:, 0]] == z[chosen][hard.pairs[:, 1]]
    np.testing.assert_array_equal(
        found["pair_weights"][row], np.where(np.isinf(hard.weights), 0, agree)
    )

    @jax.jit
    def both(slope):
        trace = trace_model(problem, params)
        mixture = trace["x"]["fn"]
        labels = slope["unary"].argmax(axis=1)
        own = (
            mixture.labels.log_prob(labels)
            + mixture.log_factors(X)["unary"][jnp.arange(4), labels].sum()
        )
        prior = sum(trace[n]["fn"].log_prob(trace[n]["value"]).sum() for n in params)
        return linearised(trace, {"x": slope}), own + prior

    np.testing.assert_allclose(*both(jax.tree.map(lambda a: a[row], found)), rtol=1e-12)


def counts(x, links):
    """Poisson counts in two clusters, with a field whose partition function matters."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(2, 1.5)))
    with numpyro.plate("clusters", 2):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    numpyro.deterministic("ratio", rate[0] / rate.sum())
    labels = LinkedCategorical(jnp.log(weights), links)
    numpyro.sample("x", LinkedMixture(labels, dist.Poisson(rate)), obs=x)


def test_own_model_with_a_field_has_the_enumerated_posterior():
    x = np.array([1, 3, 2, 7])
    problem = Problem(counts, (jnp.asarray(x, float), LabelGraph.build(LINKS, 4)))
    engine = BlockedGibbs(num_warmup=300, num_samples=1000, num_chains=4)
    result = engine.run(problem, seed=3)
    z, size = exact.labelings(4, 2)
    total = np.stack([np.where(z == k, x, 0).sum(axis=1) for k in (0, 1)], axis=1)
    shape, rate = 2.0 + total, 0.5 + size
    log_x = (gammaln(shape) - shape * np.log(rate)).sum(axis=1)
    agree = z[:, LINKS.pairs[:, 0]] == z[:, LINKS.pairs[:, 1]]
    energy = agree @ LINKS.weights
    # the mixing weights by quadrature: their partition function has no closed form
    grid = (np.arange(4000) + 0.5) / 4000
    pi = np.stack([grid, 1 - grid], axis=1)
    field = energy[:, None] + size @ np.log(pi).T
    field = field - np.logaddexp.reduce(field, axis=0)
    joint = log_x[:, None] + field + 0.5 * np.log(pi).sum(axis=1)
    prob, _ = exact.probabilities(joint)
    square = (pi**2).sum(axis=1)
    assert_moment((result.draws["weights"] ** 2).sum(axis=-1), prob.sum(axis=0) @ square)
    rates = result.draws["rate"]
    assert_moment(rates.sum(axis=-1), prob.sum(axis=1) @ (shape / rate).sum(axis=1))
    assert_moment(rates.prod(axis=-1), prob.sum(axis=1) @ (shape / rate).prod(axis=1))
    mean = np.einsum("zg,gk,zk->", prob, pi, shape / rate)
    assert_moment((result.draws["weights"] * rates).sum(axis=-1), mean)
    np.testing.assert_allclose(result.draws["ratio"], rates[..., 0] / rates.sum(axis=-1))
    assert {"diverging", "acceptance_rate", "n_steps", "step_size", "lp"} == set(
        result.sample_stats
    )
    assert 0.6 < result.sample_stats["acceptance_rate"].mean() < 0.99
    # adaptation ends with the warm-up
    assert np.ptp(result.sample_stats["step_size"], axis=1).max() == 0.0
    assert "divergences of NUTS" in str(result.status)


@pytest.mark.slow
def test_successive_conditional_draws_have_the_prior():
    """Geweke (2004): data redrawn from the model after every sweep leave the prior invariant."""
    problem = build()  # a field: Gaussian blocks are conjugate, mixing weights move by NUTS
    engine = BlockedGibbs(num_warmup=300, num_samples=1, num_chains=2)
    one = {
        "weights": jnp.array([0.4, 0.6]),
        "mean": jnp.zeros((2, 1)),
        "variance": jnp.ones((2, 1)),
    }
    starts = {n: jnp.stack([v] * 4) for n, v in one.items()}
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
    graph = problem.args[1]
    plan = drawable(plan_updates(problem), problem)
    assert plan.rest == ("weights",)
    state = jax.jit(engine._begin(plan, problem))(keys, jnp.zeros((4, 6)), starts, problem.args)
    sweep = engine._sweep(problem, plan)

    def successive(carry, key):
        state, x = carry
        state = sweep(state, (x, graph))
        mixture = trace_model(problem, state.params, (x, graph))["x"]["fn"]
        return (state, mixture.sample(key)), state.params

    @jax.jit
    @jax.vmap
    def chain(state, key):
        x = jnp.asarray(X)
        warm, _ = lax.scan(successive, (state, x), jax.random.split(key, 500))
        return lax.scan(successive, warm, jax.random.split(jax.random.fold_in(key, 1), 6000))[1]

    draws = jax.tree.map(np.asarray, chain(state, jax.random.split(jax.random.key(1), 4)))
    rng = np.random.default_rng(0)
    number = 200_000
    variance = 2.0 / rng.gamma(4.0, size=(number, 2))
    prior = {
        "weights": rng.dirichlet(np.ones(2), number),
        "variance": variance[..., None],
        "mean": (0.5 + np.sqrt(variance / 0.4) * rng.normal(size=(number, 2)))[..., None],
    }

    def functionals(values):
        weights, mean, log_variance = (
            values["weights"],
            values["mean"][..., 0],
            np.log(values["variance"][..., 0]),
        )
        return {
            "square": (weights**2).sum(axis=-1),
            "entropy": (weights * np.log(weights)).sum(axis=-1),
            "mean": np.tanh(mean).sum(axis=-1),
            "product": np.tanh(mean).prod(axis=-1),
            "variance": log_variance.sum(axis=-1),
            "variances": log_variance.prod(axis=-1),
            "joint": (weights * np.tanh(mean) * log_variance).sum(axis=-1),
        }

    expected = functionals(prior)
    for name, values in functionals(draws).items():
        ess = float(azs.ess(values, method="mean"))
        assert ess > 200, name
        error = np.hypot(values.std() / np.sqrt(ess), expected[name].std() / np.sqrt(number))
        assert abs(values.mean() - expected[name].mean()) < 5 * error, name


def test_labels_of_a_plain_mixture():
    def normals(x):
        parts = dist.Normal(jnp.array([-1.0, 1.0]), 1.0)
        with numpyro.plate("points", len(x)):
            numpyro.sample(
                "x", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), parts), obs=x
            )

    x = jnp.array([-2.0, 0.3])
    problem = Problem(normals, (x,))
    keys = jax.random.split(jax.random.key(0), 10_000)
    found = jax.vmap(jax.jit(lambda k: drawn(problem, {}, problem.args, k)["x"]))(keys)
    np.testing.assert_array_equal(found["log_weights"], found["unary"].sum(axis=1))
    prob = 1 / (1 + np.exp(-2 * np.asarray(x)))
    error = np.sqrt(prob * (1 - prob) / len(keys))
    assert np.all(np.abs(found["unary"][..., 1].mean(axis=0) - prob) < 5 * error)


def test_what_cannot_be_sampled_is_refused():
    def no_mixture(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    with pytest.raises(ValueError, match="the model integrates none out"):
        ENGINE.run(Problem(no_mixture, (jnp.ones(3),)))
    with pytest.raises(ValueError, match="prior='flat' leaves no posterior"):
        ENGINE.run(build(reading="relation", prior="flat"))


def test_bad_start_names_the_site():
    problem = statements()
    args = problem.args[0].at[2].set(jnp.nan), problem.args[1]
    with pytest.raises(FitError, match=r"chain 0 is where .* site 'x' has log density -inf"):
        ENGINE.run(Problem(ppc, args, problem.kwargs))


@pytest.mark.parametrize(
    "wrong", [{"num_chains": 0}, {"target_accept": 1.0}, {"num_warmup": 0}, {"jitter": -0.1}]
)
def test_config_is_checked(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=rf"BlockedGibbs\({name}="):
        BlockedGibbs(**wrong)


def test_thinning_keeps_every_third_sweep():
    engine = BlockedGibbs(num_warmup=1, num_samples=6, num_chains=2)
    every = engine.run(statements(), seed=1, progress=False)
    engine = BlockedGibbs(num_warmup=1, num_samples=2, num_chains=2, thinning=3)
    third = engine.run(statements(), seed=1, progress=False)
    # after a warm-up of one sweep the draws are sweeps 1 to 6; after one of three, sweeps 3 and 6
    np.testing.assert_allclose(third.draws["weights"], every.draws["weights"][:, 2::3])
    np.testing.assert_allclose(third.sample_stats["lp"], every.sample_stats["lp"][:, 2::3])


@pytest.mark.parametrize("problem", [statements, build], ids=["conjugate", "with NUTS"])
def test_single_sweeps_are_those_of_a_run(problem):
    """Two sweeps a draw: the run throws the first draw away, then keeps three."""
    engine = BlockedGibbs(num_warmup=1, num_samples=3, num_chains=1, thinning=2)
    run = engine.run(problem(), seed=4)
    state = engine.init(problem(), seed=4)
    for draw in range(3):
        for _ in range(engine.thinning):
            state = engine.step(problem(), state)
        np.testing.assert_allclose(state.log_joint, run.sample_stats["lp"][0, draw], rtol=1e-6)
        for name, value in state.params.items():
            np.testing.assert_allclose(value, run.draws[name][0, draw], rtol=1e-6)


def test_single_sweeps_need_latent_variables_and_values():
    def model(x):
        numpyro.sample("x", dist.Normal(numpyro.sample("mean", dist.Normal()), 1.0), obs=x)

    with pytest.raises(ValueError, match="integrates none out"):
        BlockedGibbs().init(Problem(model, (jnp.zeros(3),)))
    with pytest.raises(ValueError, match="init has no value for site"):
        BlockedGibbs().init(statements(), init={"flip_rate": 0.1})
    with pytest.raises(ValueError, match="seed = 'a'"):
        BlockedGibbs().init(statements(), seed="a")
    with pytest.raises(TypeError, match="state = 3; expected the GibbsState that init or step"):
        BlockedGibbs().step(statements(), 3)
