"""NUTS and HMC against posteriors known in closed form, within Monte-Carlo error."""

from __future__ import annotations

import arviz_stats as azs
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.samplers.chains import divergences
from sidebayes.guides.engines.samplers.mcmc import HMC, NUTS
from sidebayes.guides.engines.samplers.microcanonical import MCLMC

Y = np.array([0.3, 1.2, 0.8, 2.0])
SMALL = NUTS(num_warmup=200, num_samples=400, num_chains=2)
FIXED = HMC(num_warmup=200, num_samples=400, num_chains=2)
LOW_RANK = NUTS(num_warmup=200, num_samples=400, num_chains=2, dense_mass="low_rank")
MICRO = MCLMC(num_warmup=200, num_samples=400, num_chains=2)
SAMPLERS = {"nuts": SMALL, "hmc": FIXED, "low rank": LOW_RANK, "mclmc": MICRO}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def conjugate(y):
    """A normal mean and a coin, each with a known posterior."""
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    heads = numpyro.sample("heads", dist.Beta(2.0, 3.0))
    numpyro.deterministic("twice", 2 * mu)
    numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)
    numpyro.sample("tosses", dist.Binomial(10, heads), obs=7)


def problem(y=Y):
    return Problem(conjugate, (jnp.asarray(y),))


@pytest.fixture(scope="module", params=SAMPLERS)
def engine(request):
    if request.param == "mclmc":
        pytest.importorskip("blackjax")
    return SAMPLERS[request.param]


@pytest.fixture(scope="module")
def result(engine):
    with jax.enable_x64(True):
        return engine.run(problem(), seed=1)


def assert_moment(draws, expected):
    """Within five standard errors, by the effective sample size; and that size is not tiny."""
    ess = float(azs.ess(draws, method="mean"))
    assert ess > 50
    assert abs(draws.mean() - expected) < 5 * draws.std() / np.sqrt(ess)


def test_moments_of_the_posterior(result):
    precision = 1 / 4 + len(Y) / 0.25
    centre = (1.0 / 4 + Y.sum() / 0.25) / precision
    assert_moment(result.draws["mu"], centre)
    assert_moment((result.draws["mu"] - centre) ** 2, 1 / precision)
    a, b = 2 + 7, 3 + 3
    assert_moment(result.draws["heads"], a / (a + b))
    variance = a * b / (a + b) ** 2 / (a + b + 1)
    assert_moment((result.draws["heads"] - a / (a + b)) ** 2, variance)


def test_shapes_names_and_deterministics(result):
    assert {n: v.shape for n, v in result.draws.items()} == dict.fromkeys(
        ("mu", "heads", "twice"), (2, 400)
    )
    np.testing.assert_allclose(result.draws["twice"], 2 * result.draws["mu"])
    stats = {"lp", "diverging", "energy", "acceptance_rate", "n_steps", "step_size"}
    if result.engine == "nuts":
        stats |= {"tree_depth", "reached_max_tree_depth"}
    assert set(result.sample_stats) == stats
    assert all(v.shape == (2, 400) for v in result.sample_stats.values())
    assert result.density_space == "unconstrained"
    assert result.status.converged
    assert all(isinstance(v, np.ndarray) for v in result.draws.values())


def test_lp_is_the_unconstrained_log_density(result):
    mu, heads = result.draws["mu"], result.draws["heads"]
    lp = (
        stats.norm(1.0, 2.0).logpdf(mu)
        + stats.beta(2.0, 3.0).logpdf(heads)
        + stats.norm(mu[..., None], 0.5).logpdf(Y).sum(axis=-1)
        + stats.binom(10, heads).logpmf(7)
        + np.log(heads * (1 - heads))
    )
    np.testing.assert_allclose(result.sample_stats["lp"], lp, rtol=1e-9)


def test_target_acceptance_is_met(result):
    stats = result.sample_stats
    assert 0.65 < stats["acceptance_rate"].mean() < 0.98
    if result.engine == "nuts":
        depth, steps = stats["tree_depth"], stats["n_steps"]
        assert np.all((steps <= 2**depth - 1) & (steps >= 2 ** (depth - 1)))
    elif result.engine == "mclmc":
        longest = 2 * MICRO.trajectory_length * np.sqrt(2)
        assert np.all(stats["n_steps"] % 2 == 0)  # gradients, of which a step takes two
        assert np.all(stats["n_steps"] <= 2 * np.ceil(longest / stats["step_size"]))
        assert len(np.unique(stats["n_steps"])) > 2
    else:
        length = FIXED.trajectory_length
        np.testing.assert_array_equal(stats["n_steps"], np.ceil(length / stats["step_size"]))


def test_a_high_target_acceptance_is_not_to_be_raised():
    stats = {"diverging": np.array([[True, False]])}
    assert "raise target_accept" in divergences(problem(), stats, 0.95)[0]
    said = divergences(problem(), stats, 0.99)[0]
    assert said.startswith("with 1 divergence at target_accept = 0.99; ")
    assert "raise" not in said


def test_same_seed_same_draws_and_no_second_compilation(engine, result):
    again = engine.run(problem(), seed=1)
    np.testing.assert_array_equal(again.draws["mu"], result.draws["mu"])
    other = engine.run(problem(Y + 1), seed=2)
    assert other.seconds["compile"] == 0.0
    assert not np.array_equal(other.draws["mu"], result.draws["mu"])
    assert other.draws["mu"].mean() > result.draws["mu"].mean() + 0.7


def test_init_and_jitter_decide_where_chains_start():
    point = {"mu": 1.0, "heads": 0.5}

    def first(jitter, init=point):
        engine = NUTS(num_warmup=200, num_samples=5, num_chains=2, jitter=jitter)
        return engine.run(problem(), init=init, seed=3).draws["mu"]

    np.testing.assert_array_equal(first(0.1), first(0.1))
    assert not np.array_equal(first(0.0), first(0.1))
    assert not np.array_equal(first(0.0), first(0.0, {"mu": 1.0, "heads": 0.9}))
    with pytest.raises(ValueError, match="no value for site 'heads'"):
        first(0.1, {"mu": 1.0})


def test_dense_mass_and_chains_in_step_on_a_mixture():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(jnp.array([-3.0, 3.0]), 1.0).to_event(1))
        parts = dist.Normal(mean, 1.0)
        numpyro.sample(
            "x", dist.MixtureSameFamily(dist.Categorical(jnp.full(2, 0.5)), parts), obs=x
        )

    x = np.concatenate([np.linspace(-5, -3, 12), np.linspace(2, 4, 12)])
    engine = NUTS(
        num_warmup=150,
        num_samples=250,
        num_chains=2,
        dense_mass=True,
        chain_method="vectorized",
    )
    start = {"mean": np.array([-3.0, 3.0])}
    draws = engine.run(Problem(model, (jnp.asarray(x),)), init=start).draws["mean"]
    assert draws.shape == (2, 250, 2)
    assert not np.array_equal(draws[0], draws[1])
    # clusters are seven apart: the labels are all but known, the posterior all but conjugate
    assert_moment(draws[..., 0], (-3 + x[:12].sum()) / 13)
    assert_moment(draws[..., 1], (3 + x[12:].sum()) / 13)


def test_length_of_a_trajectory_sets_how_far_draws_move():
    """Half a period turns a normal posterior upside down, so that draws alternate."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), jnp.ones(2)).to_event(1))
        numpyro.sample("y", dist.Normal(mu.sum(), 0.1), obs=y)

    def correlation(length):
        # small steps, so that trajectories are all but exact
        engine = HMC(300, 300, 2, 0.98, dense_mass=True, trajectory_length=length)
        draws = engine.run(Problem(model, (jnp.asarray(1.0),)), seed=4).draws["mu"]
        apart = draws - draws.mean(axis=(0, 1))
        return (apart[:, 1:] * apart[:, :-1]).sum() / (apart**2).sum()

    assert abs(correlation(np.pi / 2)) < 0.25
    assert correlation(np.pi) < -0.5
    assert correlation(0.3) > 0.5


def test_bad_start_names_the_site(engine):
    with pytest.raises(FitError, match=r"chain 0 starts .* site 'y' has log density -inf"):
        engine.run(problem(np.array([0.3, np.nan, 0.8, 2.0])))


def test_a_single_coordinate_has_no_direction_to_turn():
    pytest.importorskip("blackjax")

    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    with pytest.raises(ValueError, match="MCLMC needs at least two coordinates, .* use NUTS"):
        MICRO.run(Problem(model, (jnp.zeros(3),)))


def test_discrete_latent_is_refused():
    def model(x):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(2) / 2))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)

    with pytest.raises(TypeError, match="'z' is a discrete latent"):
        SMALL.run(Problem(model, (jnp.ones(3),)))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (NUTS, {"num_chains": 0}),
        (NUTS, {"target_accept": 1.0}),
        (NUTS, {"num_warmup": 0}),
        (NUTS, {"max_tree_depth": 0}),
        (NUTS, {"chain_method": "threads"}),
        (HMC, {"num_samples": 0}),
        (HMC, {"trajectory_length": 0.0}),
        (HMC, {"trajectory_length": np.inf}),
        (MCLMC, {"trajectory_length": -1.0}),
        (NUTS, {"dense_mass": "full"}),
    ],
)
def test_config_is_checked(kind, wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=rf"{kind.__name__}\({name}="):
        kind(**wrong)
