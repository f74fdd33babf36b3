"""Which sites have updates in closed form, and models whose use of a block forbids its update."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.guides.engines.samplers.gibbs import BlockedGibbs
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.surrogate import expectation
from sidebayes.guides.engines.steps.update_checks import check_updates
from sidebayes.guides.engines.steps.updates import degenerate, plan_updates
from sidebayes.guides.engines.variational.coordinate_ascent import CoordinateAscent
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.weights import mixing_weights
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constrained_kmeans import constrained_kmeans
from sidebayes.models.gmm import gmm
from sidebayes.models.pair_mixture import pair_mixture
from sidebayes.models.ppc import ppc
from sidebayes.models.trajectories import trajectories

from tests.support.basics import best_trace, closed_step, slope_in_simplex, without_blocks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) + np.repeat([[-2.0, 0.0], [2.0, 1.0]], [40, 20], axis=0)
LINKS = Links.must_link([(0, 1), (41, 42)], weight=1.0) + Links.cannot_link([(2, 43)], weight=1.0)
PRIOR = GaussianPrior(np.zeros(2), 0.5, 6.0, np.eye(2))
SHORT = BlockedGibbs(num_warmup=5, num_samples=5, num_chains=2)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def problem_of(model, links=LINKS, **options):
    args = jnp.asarray(X), LabelGraph.build(links, len(X))
    options = {"num_clusters": 2} | options
    return Problem(model, args[:1] if model is gmm else args, options)


def parts_of(plan):
    return [part.sites for part in plan.parts]


def own(x, links, twist=None, *, use=lambda weights, components: jnp.log(weights), **labels):
    """A mixture of one's own by blocks of the library; `use` or `twist` says what becomes of weights."""
    weights = mixing_weights(2, 2.0)
    components = mixture_components(x, 2, prior=PRIOR)
    log_weights = use(weights, components) if twist is None else twisted(weights, twist)
    mixture = LinkedMixture(LinkedCategorical(log_weights, links, **labels), components)
    numpyro.sample("x", mixture, obs=x)


def twisted(weights, twist):
    """Log weights after what numbers say is done to the weights: data, so that all share a program."""
    power, shrink, constant, reverse = twist
    weights = jnp.where(reverse > 0, weights[::-1], weights)
    return power * jnp.log((weights + shrink) / (1 + 2 * shrink)) + constant


TWISTS = {
    "none": [1.0, 0.0, 0.0, 0.0],
    "powers": [2.0, 0.0, 0.0, 0.0],
    "shrunk": [1.0, 0.5, 0.0, 0.0],
    "constant": [1.0, 0.0, 1.0, 0.0],  # a constant factor of the density
    "reversed": [1.0, 0.0, 0.0, 1.0],
}


def own_problem(use=None, *, twist=None, **options):
    args = jnp.asarray(X), LabelGraph.build(LINKS, len(X))
    args = args if twist is None else (*args, jnp.asarray(TWISTS[twist]))
    options = {"reading": "relation"} | options
    return Problem(own, args, options if use is None else options | {"use": use})


GAUSSIANS = {"spread": "covariance", "location": "mean"}
WEIGHTS = {"mixing_weights": "weights"}
WITHIN = {"within_weights": "component_weights"}


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (gmm, {}, [WEIGHTS, GAUSSIANS]),
        (gmm, {"covariance": "diagonal"}, [WEIGHTS, GAUSSIANS | {"spread": "variance"}]),
        (ppc, {}, [WEIGHTS, GAUSSIANS]),
        (
            ppc,
            {"reading": "relation", "flip_rate": "learned"},
            [WEIGHTS, GAUSSIANS, {"reliability": "flip_rate"}],
        ),
        (ppc, {"weights": "uniform"}, [GAUSSIANS]),
        (pair_mixture, {}, [WEIGHTS, GAUSSIANS]),
        (pair_mixture, {"num_components": 3}, [WEIGHTS, WITHIN, GAUSSIANS]),
        (constrained_kmeans, {}, [{"location": "mean"}]),
    ],
)
def test_every_site_of_these_models_is_in_a_block(model, options, expected):
    plan = plan_updates(problem_of(model, **options))
    assert parts_of(plan) == expected
    assert {part.sources for part in plan.parts} == {("x",)}
    assert not any(part.chained for part in plan.parts)
    assert (plan.rest, plan.lacking) == ((), ())


def test_one_pass_needs_independent_points_and_full_gaussians():
    def one_pass(model, **options):
        return set(plan_updates(problem_of(model, **options)).one_pass)

    assert one_pass(gmm) == {"x"}
    assert one_pass(ppc, links=None) == {"x"}
    assert one_pass(gmm, covariance="diagonal") == set()
    assert one_pass(ppc) == set()
    assert one_pass(pair_mixture, links=None, num_components=2) == set()


def test_sites_without_a_block_are_named():
    plan = plan_updates(problem_of(without_blocks(ppc)))
    assert parts_of(plan) == []
    assert plan.rest == ("weights", "covariance", "mean")
    assert plan.lacking == ("covariance, mean, weights belong to no block",)


def engines():
    return [EM(num_restarts=2, max_steps=5), SHORT, CoordinateAscent(num_restarts=2, max_steps=5)]


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
@pytest.mark.parametrize("twist", ["powers", "reversed", "shrunk"])
def test_transformed_weights_are_refused(engine, twist):
    """Weights that reach the labels as something else than themselves have another posterior."""
    wrong = (
        r"the update of weights contradicts the model's density \(by .*\): the model does not use"
    )
    with pytest.raises(ValueError, match=wrong):
        engine.run(own_problem(twist=twist), progress=False)


@pytest.mark.parametrize("reading", ["relation", "field"])
def test_transformed_components_are_refused(reading):
    def halved(x, links):
        weights = mixing_weights(2, 2.0)
        parts = mixture_components(x, 2, prior=PRIOR)
        parts = dist.MultivariateNormal(parts.loc / 2, scale_tril=parts.scale_tril)
        labels = LinkedCategorical(jnp.log(weights), links, reading=reading)
        numpyro.sample("x", LinkedMixture(labels, parts), obs=x)

    problem = Problem(halved, own_problem().args)
    with pytest.raises(ValueError, match="the update of covariance, mean contradicts"):
        EM(num_restarts=2).run(problem, progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reading": "field"},
        {"weight_per": "chunklet"},
        {"twist": "constant"},
    ],
    ids=["relation", "field", "chunklet", "constant"],
)
def test_blocks_that_are_used_as_they_are_pass(options):
    problem = own_problem(**({"twist": "none"} | options))
    plan = plan_updates(problem)
    assert parts_of(plan) == [WEIGHTS, GAUSSIANS]
    check_updates(problem, plan, {n: v[0] for n, v in initial_values(problem, 0, 1).items()})


@pytest.mark.parametrize("twist", ["powers", "shrunk"])
def test_transformed_weights_of_a_field_are_refused(twist):
    """Their mode has no closed form, but EM must not end where the density is not flat."""
    with pytest.raises(ValueError, match="the update of weights contradicts the model's density"):
        EM(num_restarts=2).run(own_problem(twist=twist, reading="field"), progress=False)


def test_weights_of_a_field_follow_the_links_strengths_of_the_model():
    """Strengths other than those of the graph shape the partition function as well."""
    args = own_problem().args
    strong = 3.0 * jnp.asarray(args[1].pair_weights)
    problem = own_problem(reading="field", pair_weights=strong)
    result = EM(num_restarts=2, tol=1e-13, max_steps=2000).run(problem, progress=False)
    assert np.nanmin(np.diff(result.objective, axis=1)) > -1e-8
    params = {name: jnp.asarray(value) for name, value in result.params.items()}
    slope = jax.grad(lambda w: log_joint(problem, params | {"weights": w}))(params["weights"])
    np.testing.assert_allclose(slope_in_simplex(slope, params["weights"]), 0.0, atol=1e-3)


def pulled(x, links):
    """The means also enter a density of the user's own."""

    def use(weights, components):
        numpyro.factor("near", -0.5 * jnp.sum((components.loc - 1.0) ** 2))
        return jnp.log(weights)

    own(x, links, use=use)


def test_a_block_whose_sites_enter_another_density_is_climbed_by_gradients():
    problem = Problem(pulled, own_problem().args)
    plan = plan_updates(problem)
    assert parts_of(plan) == [WEIGHTS]
    assert set(plan.rest) == {"covariance", "mean"}
    assert plan.lacking == ("covariance, mean also enter near",)
    result = EM(num_restarts=2, tol=1e-11, num_inner_steps=30).run(problem, progress=False)
    assert np.nanmin(np.diff(result.objective, axis=1)) > -1e-8
    assert len(best_trace(result)) > 3
    params = {name: jnp.asarray(value) for name, value in result.params.items()}
    slope = jax.grad(lambda mean: log_joint(problem, params | {"mean": mean}))(params["mean"])
    np.testing.assert_allclose(slope, 0.0, atol=2e-2)
    free = EM(num_restarts=2, tol=1e-11).run(own_problem(reading="field"), progress=False).params
    assert np.abs(np.sort(params["mean"][:, 0]) - np.sort(free["mean"][:, 0])).max() > 1e-2


def test_blocks_under_a_scale_are_climbed_by_gradients():
    """A tempered likelihood is no mixture, and a tempered prior not the one that a block knows."""

    def tempered(x, links):
        with numpyro.handlers.scale(scale=0.5):
            own(x, links)

    problem = Problem(tempered, own_problem().args)
    assert plan_updates(problem).parts == ()
    result = EM(num_restarts=2, tol=1e-11, num_inner_steps=30).run(problem, progress=False)
    params = {name: jnp.asarray(value) for name, value in result.params.items()}
    slope = jax.grad(lambda mean: log_joint(problem, params | {"mean": mean}))(params["mean"])
    np.testing.assert_allclose(slope, 0.0, atol=2e-2)


def test_a_site_that_enters_two_factors_of_one_distribution_has_no_update():
    def use(weights, components):
        return jnp.log(weights) + components.loc[:, 0]

    plan = plan_updates(own_problem(use))
    assert parts_of(plan) == [WEIGHTS]
    assert plan.lacking == ("covariance, mean also enter x (log_weights)",)


def test_a_block_that_no_data_learn_from_has_no_update():
    def idle(x):
        mixing_weights(2)
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x)

    plan = plan_updates(Problem(idle, (jnp.asarray(X[:, 0]),)))
    assert parts_of(plan) == []
    assert plan.lacking == ("weights enters no observed site that integrates labels out",)


def test_what_several_blocks_lack_is_said_once():
    y, t = jnp.asarray(X[:6, 0]), jnp.arange(6.0)
    plan = plan_updates(Problem(trajectories, (y, t), {"num_clusters": 2}))
    assert plan.lacking == (
        "amplitude, length_scale, noise have no update in closed form under the prior",
    )


def test_one_block_learns_from_two_observed_sites():
    """Statistics of both sites add up: EM's mode is that of the data put together."""

    def twice(x, y):
        log_weights = jnp.log(mixing_weights(2, 2.0))
        components = mixture_components(x, 2, prior=PRIOR)
        for name, value in (("x", x), ("y", y)):
            labels = LinkedCategorical(log_weights, LabelGraph.build(None, len(value)))
            numpyro.sample(name, LinkedMixture(labels, components), obs=value)

    def once(x):
        own(x, LabelGraph.build(None, len(x)))

    apart = Problem(twice, (jnp.asarray(X[::2]), jnp.asarray(X[1::2])))
    assert {part.sources for part in plan_updates(apart).parts} == {("x", "y")}
    together = Problem(once, (jnp.asarray(X),))
    start = {name: value[0] for name, value in initial_values(together, 0, 1).items()}
    found = EM(tol=1e-13).run(apart, init=start, progress=False)
    assert np.abs(found.params["mean"] - start["mean"]).max() > 0.01

    @jax.jit
    def step(params):
        value, posterior = expectation(together, params, together.args)
        return value, closed_step(together, params, posterior)

    value, again = step(found.params)
    np.testing.assert_allclose(found.sample_stats["lp"].item(), value, rtol=1e-12)
    for name, settled in found.params.items():
        np.testing.assert_allclose(again[name], settled, atol=1e-6)


def test_a_block_under_a_prior_with_parameters_follows_them():
    """The scale of the prior is climbed by gradients, and the block's next update knows it."""

    def learned(x):
        scale = numpyro.sample("scale", dist.Gamma(4.0, 4.0))
        weights = mixing_weights(2, 2.0)
        prior = GaussianPrior(np.zeros(2), 0.5, 6.0, scale * jnp.eye(2))
        labels = LinkedCategorical(jnp.log(weights), LabelGraph.build(None, len(x)))
        numpyro.sample("x", LinkedMixture(labels, mixture_components(x, 2, prior=prior)), obs=x)

    problem = Problem(learned, (jnp.asarray(X),))
    plan = plan_updates(problem)
    assert parts_of(plan) == [WEIGHTS, GAUSSIANS]
    assert [part.chained for part in plan.parts] == [False, True]
    assert plan.rest == ("scale",)
    result = EM(num_restarts=2, tol=1e-12).run(problem, progress=False)
    assert np.nanmin(np.diff(result.objective, axis=1)) > -1e-8
    params = {name: jnp.asarray(value) for name, value in result.params.items()}
    for name in ("scale", "mean", "covariance"):
        slope = jax.grad(lambda v, n=name: log_joint(problem, params | {n: v}))(params[name])
        np.testing.assert_allclose(slope, 0.0, atol=1e-2, err_msg=name)


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_names_of_sites_make_no_difference(engine):
    """NumPyro's scope renames every site; blocks know theirs by role."""
    options = {"covariance": "diagonal", "reading": "relation", "flip_rate": "learned"}
    plain = problem_of(ppc, prior=PRIOR, **options)
    renamed = Problem(handlers.scope(ppc, prefix="mine"), plain.args, plain.kwargs)
    parts = plan_updates(renamed).parts
    assert [
        {role: f"mine/{name}" for role, name in s.items()} for s in parts_of(plan_updates(plain))
    ] == [part.sites for part in parts]
    assert {part.sources for part in parts} == {("mine/x",)}
    start = {name: value[0] for name, value in initial_values(plain, 0, 1).items()}
    one = engine.run(plain, seed=1, init=start, progress=False)
    again = {f"mine/{name}": value for name, value in start.items()}
    two = engine.run(renamed, seed=1, init=again, progress=False)
    for name, value in one.draws.items():
        if f"mine/{name}" in two.draws:
            np.testing.assert_allclose(two.draws[f"mine/{name}"], value, rtol=1e-8, err_msg=name)
    assert {f"mine/{name}" for name in start} <= set(two.draws)


def test_a_collapsed_cluster_is_found_under_any_name():
    problem = problem_of(handlers.scope(gmm, prefix="mine"))
    problem = Problem(problem.model, problem.args[:1], problem.kwargs)
    params = {
        "mine/weights": np.full(2, 0.5),
        "mine/mean": np.zeros((2, 2)),
        "mine/covariance": np.stack([np.eye(2), 1e-14 * np.eye(2)]),
    }
    assert degenerate(problem, params) == (1, "its covariance is singular")
    params["mine/covariance"] = np.stack([np.eye(2), 1e-3 * np.eye(2)])
    assert degenerate(problem, params) is None
