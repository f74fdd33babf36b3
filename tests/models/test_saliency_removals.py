"""Removals of clusters and features: gains are exact, and what pays for itself stays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.feature_saliency_removals import worst_cluster
from sidebayes.guides.feature_saliency_steps import Sites, Weighed
from sidebayes.models.blocks.saliency.feature_block import SalientFeatures
from sidebayes.models.feature_saliency import feature_saliency

import sidebayes as sb


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def mixed_table(num_points=60):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=num_points)
    x = np.column_stack(
        [
            rng.normal(3.0 * labels),
            rng.normal(size=num_points),
            rng.poisson(2.0 + 4.0 * labels),
            rng.integers(3, size=num_points),
            rng.binomial(4, 0.2 + 0.3 * labels),
        ]
    )
    x[3, 1], x[4, 2], x[5, 4] = np.nan, np.nan, np.nan
    return x.astype(float), ["normal", "normal", "count", "category:3", "ordered:5"]


def model_of(problem):
    """The model at any parameters."""
    names = Sites.of(problem)

    def traced(params):
        return trace_model(problem, {name: jnp.asarray(one) for name, one in params.items()})

    return lambda params: Weighed.of(traced(params), names), traced


def at_bounds_by_feature(at, weigh):
    """Change of the objective as removals tell it, and as the model at those parameters has it."""
    saliency = at.saliency
    now = at.log_joint()
    other = weigh(at.all_params() | {at.names.saliency: jnp.zeros_like(saliency)})
    alone = other.common_densities(at.responsibilities())
    components = weigh(at.all_params() | alone).fn.components
    log_share = at.log_responsibilities()
    told = jnp.stack(at.fn.components.at_bounds(at.value, log_share, components, at.used))

    def changes(feature):
        where = jnp.arange(len(saliency)) == feature
        common = at.mixed_by_feature(alone, where)
        params = [at.all_params() | common, at.all_params()]
        params = [
            one | {at.names.saliency: jnp.where(where, bound, saliency)}
            for bound, one in enumerate(params)
        ]
        both = jax.vmap(prior_and_joint)(jax.tree.map(lambda *two: jnp.stack(two), *params))
        return both[0] - at.log_prior, both[1] - now

    def prior_and_joint(params):
        left = weigh(params)
        return left.log_prior, left.log_joint()

    prior, joint = jax.lax.map(changes, jnp.arange(len(saliency)))
    return told + prior.T, joint.T


@pytest.mark.parametrize("with_kinds", [False, True])
def test_gains_are_differences_of_lengths(with_kinds):
    x, kinds = mixed_table()
    if not with_kinds:
        x, kinds = x[:, :3], None
    problem = Problem(feature_saliency, (x, None, None), {"num_clusters": 4, "kinds": kinds})
    weigh, traced = model_of(problem)
    params = {name: start[0] for name, start in initial_values(problem, 0, 1).items()}
    params["weights"] = np.array([0.4, 0.0, 0.35, 0.25])
    params["saliency"] = np.linspace(0.2, 1.0, x.shape[1])

    @jax.jit
    def looked_at(params, fewest):
        at = weigh(params)
        each = jax.lax.map(lambda k: weigh(at.without(k)).log_joint(), jnp.arange(len(at.weights)))
        found = worst_cluster(at, traced, fewest)
        return at.log_joint(), at.used.number, *found, each, *at_bounds_by_feature(at, weigh)

    now, number, cluster, gain, lengths, told, changes = looked_at(params, np.array(1))
    assert number == 3
    allowed = np.where(params["weights"] > 0, lengths, -np.inf)
    assert int(cluster) == int(np.argmax(allowed))
    assert float(gain) == pytest.approx(max(allowed) - float(now), abs=1e-8)
    assert looked_at(params, number)[3] == -np.inf
    np.testing.assert_allclose(told, changes, atol=1e-7)


def test_small_clusters_that_pay_for_themselves_stay():
    """Twelve rows are fewer than the features, under which the thesis takes any cluster out."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(6), 12)
    x = 3 * rng.normal(size=(6, 16))[labels] + 0.5 * rng.normal(size=(72, 16))
    fit = sb.fit("feature_saliency", x, num_clusters=12, truth=labels)
    assert (fit.params["weights"] > 0).sum() == 6
    assert float(sb.compare({"fit": fit}).frame["accuracy"].item()) == 1.0
    thesis = sb.fit("feature_saliency", x, num_clusters=12, prior="flat")
    assert (thesis.params["weights"] > 0).sum() < 6


def test_the_scale_of_variances_is_where_the_message_is_shortest():
    x = np.random.default_rng(3).normal(size=(40, 2)) * [1.0, 5.0]
    block = SalientFeatures(x, 3, "empirical", None)
    variance = np.random.default_rng(4).gamma(1.0, size=(3, 2))
    used = np.array([[True, True], [True, False], [False, True]])
    learned = jax.jit(lambda variance: block._learned_scale(block.cells, variance, used))
    own, cost = map(np.asarray, learned(variance))
    wide = x.var(axis=0)

    def log_prior(log_scale):  # of the logarithm of the scale and the variances that are used
        s = np.exp(log_scale)
        inverse = 1.5 * np.log(s / 2) - s / (2 * variance)
        return 1.5 * log_scale - s / (2 * wide) + (inverse * used).sum(axis=0)

    best, near = log_prior(np.log(own)), np.array([-0.01, 0.01])
    for step in near:
        assert (log_prior(np.log(own) + step) < best).all()
    shift = [np.asarray(learned(variance * c)[0]) for c in (1e-9, 1e9)]
    assert (shift[0] < own).all()
    assert (shift[1] > own).all()
    assert np.isfinite(cost).all()


@pytest.mark.slow
def test_contrast_estimates_all_else_again_at_its_saliencies():
    rng = np.random.default_rng(5)
    labels = rng.integers(2, size=120)
    x = np.column_stack([rng.normal(3.0 * labels), rng.normal(1.5 * labels), rng.normal(size=120)])
    fit = sb.fit("feature_saliency", x, num_clusters=4, engine=sb.ComponentwiseEM(num_restarts=2))
    found = fit.contrast()
    np.testing.assert_allclose(found.params["saliency"], fit.contrast_saliencies(), atol=1e-9)
    assert ((found.params["weights"] > 0) == (fit.params["weights"] > 0)).all()
    np.testing.assert_allclose(found.responsibilities.sum(axis=1), 1.0)
    assert (found.labels == fit.labels()).mean() > 0.95
    # at rest: expected shares are the weights, as they were not at the saliencies alone
    share = found.responsibilities.mean(axis=0)
    np.testing.assert_allclose(found.params["weights"], share, atol=1e-4)
    p, q = found.params, fit.params | {"saliency": found.params["saliency"]}
    weigh, _ = model_of(fit.run.problem)
    before, after = (float(weigh(values).at_held_precision()) for values in (q, p))
    assert after > before
    sparse = sb.fit("feature_saliency", x, num_clusters=2, selection="sparse", engine="em")
    with pytest.raises(ValueError, match="the prior of this model is a proper one"):
        sparse.contrast()
