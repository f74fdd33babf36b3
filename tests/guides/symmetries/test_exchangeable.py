"""Exchangeable components are found from the density, whatever their axes are called."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.symmetries.exchangeable import cluster_axes

import sidebayes as sb
from tests.support.draws import at_one

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(-2.0, 1.0, 12), RNG.normal(2.0, 1.0, 12)])


def mix(weights, mean, x):
    fn = dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(mean, 1.0))
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", fn, obs=x)


def in_a_plate_of_its_own(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("K", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    numpyro.deterministic("double", 2 * mean)
    mix(weights, mean, x)


def without_a_plate(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    numpyro.deterministic("double", 2 * mean)
    mix(weights, mean, x)


def beside_another_axis(x):
    with numpyro.plate("K", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    shift = numpyro.sample("shift", dist.Normal(jnp.array([0.0, 1.0]), 0.1).to_event(1))
    mix(jnp.ones(2) / 2, mean + shift.sum(), x)


def fixed_components(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    mix(weights, jnp.array([-0.2, 0.2]), x)


def unlike_priors(x):
    with numpyro.plate("clusters", 2):
        mean = numpyro.sample("mean", dist.Normal(jnp.array([-0.1, 0.1]), 3.0))
    mix(jnp.ones(2) / 2, mean, x)


def in_order(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    mean = numpyro.sample(
        "mean",
        dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,)),
    )
    numpyro.factor("prior", dist.Normal(0.0, 3.0).log_prob(mean).sum())
    mix(weights, mean, x)


def drawn(model):
    engine = sb.SMC(num_particles=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        return sb.fit(model, X, engine=engine, progress=False)


def mode(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        return sb.fit(model, X, engine=sb.MAP(num_restarts=2), progress=False)


@pytest.mark.parametrize("model", [in_a_plate_of_its_own, without_a_plate])
def test_components_of_any_name_are_matched(model):
    fit = drawn(model)
    posterior = fit.tree["posterior"]
    assert {n: posterior[n].dims[-1] for n in posterior} == dict.fromkeys(posterior, "clusters")
    assert not posterior.attrs["ordered_clusters"]
    # particles from the prior have either numbering, whose average is no estimate
    assert abs(posterior["mean"].mean(("chain", "draw"))).max() < 1.5
    estimate = np.sort(fit.params["mean"])
    np.testing.assert_allclose(estimate, [-2.0, 2.0], atol=0.8)
    np.testing.assert_allclose(np.sort(fit.params["double"]), 2 * estimate, rtol=1e-6)


def test_an_axis_of_that_length_that_does_not_permute_keeps_its_name():
    posterior = mode(beside_another_axis).tree["posterior"]
    assert posterior["mean"].dims[-1] == "clusters"
    assert posterior["shift"].dims[-1] == "shift_dim_0"


def test_fixed_components_need_no_match():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "clusters cannot be matched")
        fit = sb.fit(
            fixed_components, X[:6], engine=sb.NUTS(num_warmup=100, num_samples=100), progress=False
        )
        estimate = fit.params["weights"]
    mean = fit.tree["posterior"]["weights"].mean(("chain", "draw"))
    np.testing.assert_allclose(estimate, mean)


Y = np.stack([X, RNG.normal(size=len(X))], axis=1)


def with_hyperparameters(x):
    """As many features as clusters, and sites whose last axis has a name of its own."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    tau = numpyro.sample("tau", dist.HalfNormal(5.0).expand([2]).to_event(1))
    with numpyro.plate("groups", 2):
        centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    with numpyro.plate("clusters", 2):
        loc = numpyro.sample("loc", dist.Normal(centre[:, None], tau).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(2.0).expand([2]).to_event(1))
    components = dist.Normal(loc, scale).to_event(1)
    with numpyro.plate("points", len(x)):
        numpyro.sample(
            "x", dist.MixtureSameFamily(dist.Categorical(probs=weights), components), obs=x
        )


def with_many_axes(x):
    """Ten axes as long as there are components, of which two are of these."""
    shift = sum(
        numpyro.sample(f"shift_{i}", dist.Normal(jnp.array([0.0, 1.0]), 0.1).to_event(1)).sum()
        for i in range(8)
    )
    in_a_plate_of_its_own(x - shift)


def broken_sticks(x):
    with numpyro.plate("sticks", 1):
        stick = numpyro.sample("stick", dist.Beta(1.0, 2.0))
    weights = numpyro.deterministic("weights", jnp.concatenate([stick, 1 - stick]))
    with numpyro.plate("K", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    mix(weights, mean, x)


def with_sites_of_all_kinds(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("clusters", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    numpyro.deterministic("first", mean[0])
    numpyro.deterministic("above", mean[1] > mean[0])
    numpyro.deterministic("apart", mean[:, None] - mean)
    numpyro.deterministic("total", mean.sum())
    numpyro.deterministic("double", 2 * mean)
    numpyro.deterministic("log", jnp.log(mean - 100.0).sum())
    mix(weights, mean, x)


def with_weights_of_a_covariate(x):
    """Weights that depend on a covariate, by coefficients of each component."""
    with numpyro.plate("K", 2):
        level = numpyro.sample("level", dist.Normal(0.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    along = jnp.linspace(-1.0, 1.0, len(x))[:, None]
    mix(jax.nn.softmax(level + slope * along), mean, x)


def axes_of(model, x):
    problem = Problem(model, (x,), {})
    starts = initial_values(problem, 0, 2)
    return cluster_axes(problem, {n: v[:, None] for n, v in starts.items()})


def test_clusters_are_found_among_many_axes_of_their_length():
    found = axes_of(with_hyperparameters, Y)
    assert found.are_exchangeable
    assert found.dims == {
        "weights": ("clusters",),
        "tau": ("tau_dim_0",),
        "centre": ("clusters",),
        "loc": ("clusters", "loc_dim_1"),
        "scale": ("clusters", "scale_dim_1"),
    }
    found = axes_of(with_many_axes, X)
    assert found.are_exchangeable
    assert found.dims["mean"] == found.dims["weights"] == ("clusters",)
    assert found.dims["shift_0"] == ("shift_0_dim_0",)


@pytest.mark.parametrize("model", [fixed_components, unlike_priors, in_order])
def test_components_that_are_told_apart_have_an_order(model):
    found = axes_of(model, X)
    assert found.ordered
    assert found.doubt is None


def test_clusters_that_only_their_weights_tell_apart_are_in_doubt():
    """Draws may change numbers, so that sites by component are not judged; a mode has one numbering."""
    found = axes_of(broken_sticks, X)
    assert found.ordered
    assert found.dims["mean"] == ("clusters",)
    assert found.numbered == ("stick", "weights")
    assert "fit.same_cluster. Take broken sticks from stick_weights" in found.doubt
    known = at_one({"stick": [0.5], "mean": [-2.0, 2.0]})
    fit = sb.fit(broken_sticks, X, engine=known, progress=False)
    assert fit.tree["posterior"].attrs["ordered_clusters"]
    assert "numbers" not in fit.verdict[1]


def test_weights_that_depend_on_a_covariate_are_of_components_where_coefficients_are():
    found = axes_of(with_weights_of_a_covariate, X)
    assert found.are_exchangeable
    assert {found.dims[name] for name in ("level", "slope", "mean")} == {("clusters",)}


def test_sites_that_depend_on_the_numbers_of_clusters_are_found():
    found = axes_of(with_sites_of_all_kinds, X)
    assert found.numbered == ("above", "apart", "first")
    assert found.dims["double"] == ("clusters",)
