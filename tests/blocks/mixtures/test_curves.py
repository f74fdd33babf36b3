"""Curves and sticks as blocks: kernels, anchors, full conditionals, expected factors, divergences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.special import digamma
from scipy.stats import beta, norm
from sidebayes.models.blocks.block import Observation
from sidebayes.models.blocks.kernels.curve_density import CurveDensity
from sidebayes.models.blocks.kernels.curves import Curves, Scale
from sidebayes.models.blocks.kernels.stationary import choose_anchors, features, gram
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.sticks import Sticks, log_stick_weights
from sidebayes.models.blocks.side_information.links import Links
from sklearn.gaussian_process.kernels import RBF, Matern

from tests.reference import trajectory_mixture as reference

RNG = np.random.default_rng(0)
INPUTS = np.sort(RNG.uniform(0, 3, 6))
Y = RNG.normal(size=(6, 2))
SHARE = RNG.uniform(0.1, 1, (6, 3))
SCALES = {"length_scale": 0.7, "amplitude": 1.3, "noise": 0.3}
GRAM = reference.rbf(INPUTS, INPUTS, 0.7, 1.3)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("kernel", "theirs"),
    [
        ("rbf", RBF([0.5, 2.0])),
        ("matern32", Matern([0.5, 2.0], nu=1.5)),
        ("matern52", Matern([0.5, 2.0], nu=2.5)),
    ],
)
def test_kernels_are_those_of_scikit_learn(kernel, theirs):
    first, second = RNG.normal(size=(5, 2)), RNG.normal(size=(4, 2))
    mine = jax.jit(gram, static_argnums=0)(kernel, first, second, np.array([0.5, 2.0]))
    np.testing.assert_allclose(mine, theirs(first, second), atol=1e-13)
    slope = jax.jit(jax.grad(lambda scale: gram(kernel, first, first, scale).sum()))(np.ones(2))
    assert np.isfinite(slope).all()  # distances of zero among them


def test_anchors_explain_everything():
    inputs = RNG.uniform(0, 10, (300, 1))
    anchors, left = choose_anchors("rbf", np.repeat(inputs, 2, axis=0), 3.0, 100)
    assert len(anchors) < 30
    assert left <= 1e-12
    phi, unexplained = jax.jit(features, static_argnums=0)("rbf", inputs, anchors, 3.0)
    phi, whole = np.asarray(phi), jax.jit(gram, static_argnums=0)("rbf", inputs, inputs, 3.0)
    np.testing.assert_allclose(phi @ phi.T, whole, atol=1e-9)
    assert unexplained.max() < 1e-9
    few, left = choose_anchors("rbf", inputs, 3.0, 4)
    phi, unexplained = jax.jit(features, static_argnums=0)("rbf", inputs, few, 3.0)
    np.testing.assert_allclose(unexplained.max(), left, atol=1e-9)
    assert left > 1e-3


def observation(share=SHARE, y=Y, inputs=INPUTS, weights=None, **other):
    size = share.shape[1]
    shape = (size, *y.shape[1:], len(INPUTS))
    weights = jnp.zeros(shape) if weights is None else weights
    density = CurveDensity("rbf", inputs, INPUTS, weights, **(SCALES | other))
    labels = LinkedCategorical(jnp.zeros(size), LabelGraph.build(None, len(y)))
    return Observation(
        LinkedMixture(labels, density), jnp.asarray(y), {"unary": jnp.asarray(share)}
    )


BLOCK = Curves(3, 6, 2)


@jax.jit
def conditional(share, y=Y, **other):
    """Posterior of the curves, its divergence, and expected densities at shares."""
    given = observation(share, y, **other)
    found = BLOCK.update(BLOCK.statistics(given), [given.fn])
    phi, _ = given.fn.components.features()
    value = given.fn.components.values(phi, found.mean)
    doubt = SCALES["amplitude"] ** 2 * BLOCK._doubt(found, phi, own=False)
    return (
        found,
        value,
        doubt,
        BLOCK.divergence(found),
        BLOCK.expected_factors(found, given)["unary"],
    )


def test_conditional_is_that_of_gaussian_processes():
    """Acceptance check A1: inverses of Gram matrices, cluster by cluster."""
    _, value, doubt, divergence, unary = conditional(SHARE)
    found = [reference.naive_factor(GRAM, column, 0.3, Y) for column in SHARE.T]
    np.testing.assert_allclose(divergence, sum(one for *_, one in found), atol=1e-8)
    for k, (mean, covariance, _) in enumerate(found):
        np.testing.assert_allclose(value[:, k], mean, atol=1e-9)
        np.testing.assert_allclose(doubt[:, k, 0], np.diag(covariance), atol=1e-9)
        square = ((Y - mean) ** 2).sum(axis=1) + 2 * np.diag(covariance)
        np.testing.assert_allclose(
            unary[:, k], -np.log(2 * np.pi * 0.09) - 0.5 * square / 0.09, rtol=1e-8
        )


def test_rows_of_no_share_are_as_left_out():
    """Acceptance check A2."""
    share = SHARE.copy()
    share[[1, 4], 0] = 0.0
    share[:, 2] = 0.0
    _, value, doubt, _, _ = jax.device_get(conditional(share))
    kept = share[:, 0] > 0
    sub = reference.rbf(INPUTS[kept], INPUTS[kept], 0.7, 1.3)
    mean, covariance, _ = reference.naive_factor(sub, share[kept, 0], 0.3, Y[kept])
    np.testing.assert_allclose(value[kept, 0], mean, atol=1e-9)
    np.testing.assert_allclose(doubt[kept, 0, 0], np.diag(covariance), atol=1e-9)
    np.testing.assert_allclose(value[:, 2], 0.0, atol=1e-12)
    np.testing.assert_allclose(doubt[:, 2], 1.3**2, atol=1e-9)


def test_outputs_have_noise_of_their_own_and_some_are_not_observed():
    """Each output is as a mixture of its own, of the rows where it was observed."""
    noise, observed = np.array([0.3, 0.5]), np.ones((6, 2))
    observed[[0, 3], 1] = 0.0
    holes = np.where(observed > 0, Y, np.nan)
    given = {"noise": noise[None], "observed": observed}
    _, value, doubt, divergence, unary = jax.device_get(conditional(SHARE, holes, **given))
    due, apart = np.zeros((6, 3)), 0.0
    for d in range(2):
        kept = observed[:, d] > 0
        for k, column in enumerate(SHARE.T):
            mean, covariance, own = reference.naive_factor(
                GRAM[np.ix_(kept, kept)], column[kept], noise[d], Y[kept, d : d + 1]
            )
            np.testing.assert_allclose(value[kept, k, d], mean[:, 0], atol=1e-9)
            np.testing.assert_allclose(doubt[kept, k, d], np.diag(covariance), atol=1e-9)
            square = (Y[kept, d] - mean[:, 0]) ** 2 + np.diag(covariance)
            due[kept, k] += -0.5 * (np.log(2 * np.pi * noise[d] ** 2) + square / noise[d] ** 2)
            apart += own
    np.testing.assert_allclose(unary, due, rtol=1e-8)
    np.testing.assert_allclose(divergence, apart, atol=1e-8)

    @jax.jit
    def both(y, weights):
        fn = observation(y=y, weights=weights, **given).fn
        return fn.components.mean, fn.log_factors(y)["unary"]

    mean, factor = both(holes, np.ones((3, 2, 6)))
    normal = norm(mean, noise).logpdf(np.nan_to_num(holes)[:, None])
    np.testing.assert_allclose(factor, (normal * observed[:, None]).sum(axis=2), rtol=1e-8)


def test_draws_densities_and_modes_belong_together():
    found, *_ = conditional(SHARE)
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = jax.jit(jax.vmap(lambda key: BLOCK.draw(key, found)["curves"]))(keys)
    density = jax.jit(lambda curves: BLOCK.log_density(found, {"curves": curves}))
    mode = jax.jit(lambda: BLOCK.mode(found, {})["curves"])()
    gap = density(mode) - density(drawn[0])
    drawn, found = jax.device_get((drawn, found))
    mean, spread = drawn.mean(axis=0), drawn.std(axis=0)
    np.testing.assert_allclose(mean, found.mean, atol=5 * float(spread.max()) / np.sqrt(4000))
    covariance = np.linalg.inv(found.root[1, 0] @ found.root[1, 0].T)
    np.testing.assert_allclose(np.cov(drawn[:, 1, 0].T), covariance, atol=0.05)
    apart = drawn[0] - found.mean
    quadratic = sum(
        float(apart[k, d] @ found.root[k, 0] @ found.root[k, 0].T @ apart[k, d])
        for k in range(3)
        for d in range(2)
    )
    np.testing.assert_allclose(gap, 0.5 * quadratic, rtol=1e-9)


def test_clusters_have_length_scales_of_their_own():
    own = {**SCALES, "length_scale": jnp.array([[0.4], [0.7], [1.5]]), "amplitude": jnp.ones(3)}
    weights = RNG.normal(size=(3, 6))

    @jax.jit
    def answers(value):
        together = CurveDensity("rbf", INPUTS, INPUTS, weights, **own)
        each = [
            CurveDensity(
                "rbf", INPUTS, INPUTS, weights[[k]], **{**own, "length_scale": s, "amplitude": 1.0}
            )
            for k, s in enumerate((0.4, 0.7, 1.5))
        ]
        alone = [one.log_prob(value) for one in each]
        some = together.take(np.array([2, 4])).mean
        return together.log_prob(value), alone, together.mean, some

    log_prob, alone, mean, some = jax.device_get(answers(Y[:, :1]))
    np.testing.assert_allclose(log_prob, np.concatenate(alone, axis=1), rtol=1e-9)
    np.testing.assert_allclose(some, mean[[2, 4]], atol=1e-12)


@pytest.mark.parametrize("truncation", ["closed", "open"])
def test_sticks(truncation):
    block, count = Sticks(4, 0.7, truncation), jnp.array([5.0, 0.0, 2.5, 1.0])
    labels = LinkedCategorical(jnp.zeros(4), LabelGraph.build(None, 3))

    @jax.jit
    def answers(count):
        found = block.update(count, [labels])
        keys = jax.random.split(jax.random.key(1), 4000)
        draws = jax.vmap(lambda key: block.draw(key, found)["sticks"])(keys)
        expected = block.expected_factors(found, None)["log_weights"]
        return found.first, found.second, expected, block.divergence(found), draws

    first, second, log_weights, apart, draws = jax.device_get(answers(count))
    a, b = np.array([6.0, 1.0, 3.5, 2.0]), np.array([4.2, 4.2, 1.7, 0.7])
    size = 3 if truncation == "closed" else 4
    np.testing.assert_allclose(first, a[:size])
    np.testing.assert_allclose(second, b[:size])

    def mean(k, function):
        law = beta(a[k], b[k])
        return quad(lambda v: law.pdf(v) * function(v), 0, 1)[0]

    taken = [mean(k, np.log) for k in range(size)] + [0.0] * (4 - size)
    left = np.cumsum([0.0] + [mean(k, lambda v: np.log1p(-v)) for k in range(3)])
    np.testing.assert_allclose(log_weights, np.array(taken) + left, atol=1e-6)
    divergence = sum(
        mean(k, lambda v, k=k: beta(a[k], b[k]).logpdf(v) - beta(1, 0.7).logpdf(v))
        for k in range(size)
    )
    np.testing.assert_allclose(apart, divergence, atol=1e-6)
    np.testing.assert_allclose(draws.mean(axis=0), a[:size] / (a + b)[:size], atol=0.02)


def test_expected_sticks_without_data():
    """Acceptance check A22: each index costs a reciprocal concentration in nats."""
    block = Sticks(5, 0.03, "open")
    found = block.update(jnp.zeros(5), [])
    expected = block.expected_factors(found, None)["log_weights"]
    np.testing.assert_allclose(np.diff(expected), -1 / 0.03, rtol=1e-9)
    np.testing.assert_allclose(expected[0], digamma(1.0) - digamma(1.03), rtol=1e-12)


def test_mode_of_sticks_that_links_tie():
    """It is stationary where the partition function of the field depends on the sticks."""
    links = Links.from_pairs([(0, 1), (1, 2)], [True, True], 1.5, 4)
    graph = LabelGraph.build(links, 4)
    block, count = Sticks(3, 1.8, "closed"), jnp.array([2.0, 1.2, 0.8])

    def mixture(log_weights):
        labels = LinkedCategorical(log_weights, graph)
        return LinkedMixture(
            labels, CurveDensity("rbf", INPUTS[:4], INPUTS, jnp.zeros((3, 6)), **SCALES)
        )

    @jax.jit
    def climb(start):
        fn = mixture(log_stick_weights(start, 3))
        found = block.update(count, [fn])
        mode = block.mode(found, {"sticks": start})["sticks"]
        slope = jax.grad(lambda v: block.log_density(found, {"sticks": v}))(mode)
        return mode, slope

    mode, slope = climb(jnp.array([0.3, 0.5]))
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
    assert block.obstacle([mixture(jnp.zeros(3))]) is not None

    @jax.jit
    def without_links(count):
        free = block.update(count, [])
        plain = block.mode(free, {})["sticks"]
        return plain, jax.grad(lambda v: block.log_density(free, {"sticks": v}))(plain)

    plain, gradient = without_links(count)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-9)
    assert np.abs(plain - mode).max() > 0.01


def test_remarks_on_the_truncation():
    block = Sticks(3, 1.0, "closed")
    assert block.remark({"sticks": np.array([[[0.6, 0.99]]])}) is None
    said = block.remark({"sticks": np.array([[[0.6, 0.5]]])})
    assert "has 20% of the mass: the truncation matters; raise num_clusters" in said
    said = block.remark({"sticks": np.array([[[0.6, 1e-4]]])})
    assert "and 1 before it have next to none" in said


def test_rows_of_another_shape_than_the_components_are_refused():
    labels = LinkedCategorical(jnp.zeros(3), LabelGraph.build(None, 6, 3))
    density = CurveDensity("rbf", INPUTS, INPUTS, jnp.zeros((3, 1, 6)), **SCALES)
    with pytest.raises(ValueError, match=r"data have shape \(6,\).*rows of shape \(1,\)"):
        LinkedMixture(labels, density).log_prob(Y[:, 0])


def test_noise_that_vanishes_at_a_mode_is_said():
    noise = Scale("noise", dist.LogNormal(np.log(0.3), 1.0), 0.3, None, "outputs")
    said = noise.remark({"curve_scale": np.full((1, 1), 1e-4)})
    assert said.startswith("noise is 0.0001, 0.0003 times its typical value")
    assert noise.remark({"curve_scale": np.full((1, 1), 0.1)}) is None
    assert noise.remark({"curve_scale": np.full((2, 50), 1e-4)}) is None  # draws
    length = Scale("length_scale", dist.LogNormal(0.0, 1.0), 1.0, None, "outputs")
    assert length.remark({"curve_scale": np.full((1, 1), 1e-4)}) is None
