"""Climbs near the edge of a support: they come back, or say that the mode lies on a bound."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.coordinates import coordinates_of
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.optimisers.optimise import MAP, Newton
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites
from sidebayes.guides.engines.problem.prior_draws import prior_draws
from sidebayes.guides.engines.steps.climbs import at_rest
from sidebayes.guides.engines.steps.edges import _grows
from sidebayes.guides.engines.steps.lbfgs import search_step, start_search
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.variational.coordinate_ascent import CoordinateAscent
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.embedding.centred import CentredNormal
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.weights import mixing_weights

each_engine = pytest.mark.parametrize(
    "engine", [MAP(), EM(), Newton(num_restarts=5)], ids=["map", "em", "newton"]
)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def uniform(y):
    sd = numpyro.sample("sd", dist.Uniform(0.0, 100.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mu, sd), obs=y)


def narrow(y, array):
    with numpyro.plate("kinds", 2):
        sd = numpyro.sample("sd", dist.Uniform(0.0, array([1.0, 9.0])))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(0.0, sd[0]), obs=y)
    numpyro.sample("z", dist.Normal(0.0, sd[1]), obs=2.0)


def coin(y):
    p = numpyro.sample("p", dist.Beta(0.5, 0.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def shares(y):
    with numpyro.plate("groups", 2):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.Multinomial(probs=p), obs=y)


def scaled(x, widest):
    scale = numpyro.sample("scale", dist.Uniform(0.0, widest))
    prior = GaussianPrior(jnp.zeros(1), 0.5, 3.0, scale * jnp.eye(1))
    components = mixture_components(x, 1, prior=prior)
    labels = LinkedCategorical(jnp.log(mixing_weights(1)), as_label_graph(None, len(x)))
    numpyro.sample("x", LinkedMixture(labels, components), obs=x)


def ends_of(result):
    return np.array([path[np.isfinite(path)][-1] for path in result.objective])


@each_engine
@pytest.mark.parametrize(("mean", "spread"), [(3.0, 0.5), (60.0, 2.0), (-1.0, 30.0)])
def test_every_start_finds_the_mode_of_a_uniform_scale(engine, mean, spread):
    y = np.random.default_rng(0).normal(mean, spread, 40)
    result = engine.run(Problem(uniform, (jnp.asarray(y),)))
    assert result.status.converged
    np.testing.assert_allclose(result.params["mu"], y.mean(), rtol=1e-2)
    np.testing.assert_allclose(result.params["sd"], y.std(), rtol=1e-2)
    np.testing.assert_allclose(ends_of(result), result.sample_stats["lp"].item(), rtol=1e-6)
    assert "bound" not in result.status.message


@each_engine
@pytest.mark.parametrize("far", [100 * (1 - 1e-16), 100 * (1 - 1e-12), 1e-9])
def test_a_start_where_coordinates_are_flat_comes_back(engine, far):
    y = np.random.default_rng(0).normal(3.0, 0.5, 40)
    result = engine.run(Problem(uniform, (jnp.asarray(y),)), init={"mu": 3.0, "sd": far})
    assert result.status.converged
    np.testing.assert_allclose(result.params["sd"], y.std(), rtol=1e-2)


@each_engine
@pytest.mark.parametrize(
    ("array", "named"), [(np.array, "sd[0] = 1"), (jnp.array, "the edge of the support of sd[0]")]
)
def test_a_mode_on_a_bound_is_said_to_be_on_it(engine, array, named):
    y = 5 * np.random.default_rng(1).normal(size=20)
    result = engine.run(Problem(partial(narrow, array=array), (jnp.asarray(y),)))
    assert result.status.converged
    assert f"the mode lies on a bound: {named}" in result.status.message
    np.testing.assert_allclose(result.params["sd"], [1.0, 2.0], rtol=1e-3)


@each_engine
def test_a_corner_of_a_simplex_is_a_bound(engine):
    counts = jnp.array([[3, 2, 0], [4, 0, 1]])
    result = engine.run(Problem(shares, (counts,)))
    assert result.status.converged
    assert result.status.message.endswith("the mode lies on a bound: p[0, 2] = 0, p[1, 1] = 0")
    np.testing.assert_allclose(result.params["p"], counts / 5, atol=1e-3)


@each_engine
@pytest.mark.parametrize("value", [0, 1])
def test_a_density_without_bound_has_no_mode(engine, value):
    result = engine.run(Problem(coin, (jnp.full(10, value),)))
    assert not result.status.converged
    assert "found no mode" in result.status.message
    assert f"grows without bound towards p = {value}" in result.status.message


def eight_schools(effect, error):
    """Deviations from the mean are a spread times standard normal sites: both vanish together at the mode."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(effect)):
        deviation = numpyro.sample("deviation", dist.Normal(0.0, 1.0))
        numpyro.sample("effect", dist.Normal(mean + spread * deviation, error), obs=effect)


@pytest.mark.parametrize(("factor", "on_bound"), [(1, True), (10, False)])
def test_a_scale_that_vanishes_with_what_it_scales_is_on_a_bound(factor, on_bound):
    effect = factor * jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    error = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    status = MAP().run(Problem(eight_schools, (effect, error))).status
    assert status.converged
    assert ("the mode lies on a bound: spread = 0" in status.message) == on_bound


def unit_means(y):
    spread = numpyro.sample("spread", dist.HalfNormal(5.0))
    with numpyro.plate("units", len(y)):
        mean = numpyro.sample("mean", dist.Normal(0.0, spread))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("engine", [EM(), MAP()], ids=str)
def test_a_scale_that_vanishes_with_what_it_scales_has_no_mode(engine):
    """The slope in the scale alone is zero at the ends, which differ as far as the climbs got."""
    result = engine.run(Problem(unit_means, (jnp.linspace(-1.0, 1.0, 8),)), seed=0)
    assert not result.status.converged
    assert "grows without bound towards spread = 0" in result.status.message


def test_ends_far_out_that_agree_are_modes():
    distance = np.array([30.0, 30.1, 30.2, 29.9])
    assert not _grows(distance, np.array([5.0, 5.0, 5.0, 1.0]))
    assert not _grows(distance, np.array([5.0, 1.0, 3.0, 7.0]))
    assert _grows(distance, 4 * distance)


@pytest.mark.parametrize(("widest", "on_bound"), [(0.01, True), (1e4, False)])
def test_points_of_coordinate_ascent_come_back_or_are_said_to_be_on_a_bound(widest, on_bound):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 1)))
    problem = Problem(scaled, (x, widest))
    init = {"weights": np.ones(1), "mean": np.zeros((1, 1)), "covariance": np.ones((1, 1, 1))}
    init |= {"scale": widest * (1 - 1e-15)}
    result = CoordinateAscent(num_draws=10).run(problem, init=init)
    assert result.status.converged
    assert ("a bound: scale = 0.01" in result.status.message) == on_bound
    if not on_bound:
        assert 0.1 < result.draws["scale"][0, 0] < 10


FAMILIES = {
    "beta": (dist.Beta(0.5, 2.0), stats.beta(0.5, 2.0)),
    "cauchy": (dist.Cauchy(1.0, 2.0), stats.cauchy(1.0, 2.0)),
    "exponential": (dist.Exponential(3.0), stats.expon(scale=1 / 3)),
    "gamma": (dist.Gamma(2.0, 3.0), stats.gamma(2.0, scale=1 / 3)),
    "half_cauchy": (dist.HalfCauchy(2.0), stats.halfcauchy(scale=2.0)),
    "half_normal": (dist.HalfNormal(3.0), stats.halfnorm(scale=3.0)),
    "inverse_gamma": (dist.InverseGamma(2.0, 3.0), stats.invgamma(2.0, scale=3.0)),
    "laplace": (dist.Laplace(-1.0, 2.0), stats.laplace(-1.0, 2.0)),
    "log_normal": (dist.LogNormal(1.0, 0.5), stats.lognorm(0.5, scale=np.e)),
    "normal": (dist.Normal(3.0, 2.0), stats.norm(3.0, 2.0)),
    "student": (dist.StudentT(4.0, 1.0, 2.0), stats.t(4.0, 1.0, 2.0)),
    "uniform": (dist.Uniform(-2.0, 5.0), stats.uniform(-2.0, 7.0)),
}


def test_draws_are_those_of_the_priors():
    def model():
        for name, (fn, _) in FAMILIES.items():
            numpyro.sample(name, fn)
        numpyro.sample("shares", dist.Dirichlet(np.array([1.0, 2.0, 5.0])).expand([2]))
        numpyro.sample("other", dist.Gumbel(0.0, 1.0))

    found = prior_draws(latent_sites(abstract_trace(Problem(model, ()))), 0, 500)
    assert set(found) == {*FAMILIES, "shares"}
    for name, (_, law) in FAMILIES.items():
        assert found[name].shape == (500,)
        assert stats.kstest(found[name], law.cdf).pvalue > 1e-3, name
    np.testing.assert_allclose(found["shares"].mean(axis=0), [[0.125, 0.25, 0.625]] * 2, atol=0.03)


def test_every_second_start_is_a_draw_of_the_prior():
    starts = initial_values(Problem(uniform, (jnp.ones(5),)), 0, 200, seeded=True)
    assert np.ptp(starts["mu"][::2]) < 2.1
    assert np.ptp(starts["mu"][1::2]) > 200
    assert starts["sd"][1::2].max() > 90


def test_a_climb_rests_when_little_is_left_however_slow():
    """Gains fall by a tenth of their size, so that nine times the last one are left."""
    gains = 0.9 ** np.arange(200)
    values = -1000.0 - 10 * gains
    rests = [
        bool(
            at_rest(*map(jnp.asarray, (values[n], values[n - 1], gains[n - 2] * 0.1 * 10)), 1e-6)[0]
        )
        for n in range(2, 200)
    ]
    left = 10 * gains[2 + rests.index(True)]
    assert 0.8e-6 < left / 1001 <= 1e-6


def test_steps_in_bounded_coordinates_are_short():
    def loss(point):
        return (-point + 0.01 * point**2).sum()

    @jax.jit
    def step(search):
        return search_step(jax.value_and_grad(loss), search, bounded=jnp.array([True, False]))

    search, points = start_search(jnp.zeros(2), 5), []
    for _ in range(40):
        search = step(search)
        points.append(np.asarray(search.point))
    steps = np.abs(np.diff(points, axis=0))
    assert steps[:, 0].max() <= 4.0
    np.testing.assert_allclose(points[-1], 50.0, rtol=1e-6)


def test_centred_positions_have_no_edge():
    """However far out: a mode with a point far from all others is not at a bound."""
    sites = {"positions": {"fn": CentredNormal(1.0, 5, 2)}}
    assert not coordinates_of(sites, {"positions": jnp.full((4, 2), 1e3)}).bounded.any()
