"""Mixtures of linear mixed models against enumeration over labels and dense normal densities."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sidebayes.models.blocks.block import Observation
from sidebayes.models.blocks.collapsed import Fitted
from sidebayes.models.blocks.effects.class_parameters import class_parameters
from sidebayes.models.blocks.effects.densities.marginal import MixedEffects
from sidebayes.models.blocks.effects.densities.mixture import EffectsMixture
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links

from tests.reference import brute_force
from tests.support.draws import assert_moments
from tests.support.effects import CODES, FACTORS, dense_covariance, small_table

pytestmark = pytest.mark.usefixtures("x64")

ROWS, GROUPS = len(CODES), 4
RNG = np.random.default_rng(2)
TABLE = small_table()
FIXED = np.column_stack([np.ones(ROWS), RNG.normal(size=ROWS), RNG.normal(size=ROWS)])
OUTPUTS = np.eye(2)[np.arange(ROWS) % 2]
BETA = np.array([[2.0, -1.0, 0.5], [-1.0, 0.3, 1.0], [0.0, 0.5, 0.0]])
FACTOR = np.array([FACTORS["full"], FACTORS["singular"], FACTORS["zero"]])
NOISE = np.array([[0.6, 0.9], [1.1, 0.4], [0.8, 0.8]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
KNOWN = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 0]], bool)
PAIRS = np.array([[0, 1], [1, 2], [2, 3]])
STRENGTH = np.array([1.3, -0.7, -np.inf])


def build(links=None, known=None, reading="field", beta=BETA, factor=FACTOR, noise=NOISE):
    graph = as_label_graph(links, GROUPS, len(beta))
    labels = LinkedCategorical(jnp.log(WEIGHTS[: len(beta)]), graph, reading=reading)
    log_side = None if known is None else jnp.log(1.0 * known)
    return EffectsMixture(
        labels, FIXED, beta, TABLE.design, TABLE.groups,
        scale_tril=factor, noise=noise, outputs=OUTPUTS, log_side=log_side,
    )  # fmt: skip


def test_noise_may_be_one_number():
    np.testing.assert_array_equal(build(noise=0.6).noise, np.full((3, 2), 0.6))
    own = np.array([[0.6], [1.1], [0.8]])
    np.testing.assert_array_equal(build(noise=own).noise, np.repeat(own, 2, axis=1))
    with pytest.raises(ValueError, match="noise has shape"):
        build(noise=np.ones(3))


@cache
def by_class():
    """Log density of each group in each class, and moments of its effects, by dense matrices."""
    density = np.empty((GROUPS, 3))
    mean, cov = np.empty((GROUPS, 3, 2)), np.empty((GROUPS, 3, 2, 2))
    for k in range(3):
        whole = dense_covariance(TABLE.design, CODES, FACTOR[k], OUTPUTS @ NOISE[k])
        prior = FACTOR[k] @ FACTOR[k].T
        for g in range(GROUPS):
            own = g == CODES
            sigma, residual = whole[np.ix_(own, own)], (TABLE.y - FIXED @ BETA[k])[own]
            density[g, k] = multivariate_normal(np.zeros(own.sum()), sigma).logpdf(residual)
            gain = prior @ TABLE.design[own].T @ np.linalg.inv(sigma)
            mean[g, k], cov[g, k] = gain @ residual, prior - gain @ TABLE.design[own] @ prior
    return density, mean, cov


@pytest.mark.parametrize("known", [None, KNOWN])
@pytest.mark.parametrize("linked", [False, True])
def test_density_and_posterior_are_enumeration(linked, known):
    pairs, strength = (PAIRS, STRENGTH) if linked else (PAIRS[:0], STRENGTH[:0])
    links = Links(pairs, strength) if linked else None

    @jax.jit
    def ours(y):
        fn = build(links, known)
        return fn.log_prob(y), *fn.summaries(y), fn.mode(y)

    log_prob, found, terms, ours_mode = jax.device_get(ours(TABLE.y))
    density, mean, cov = by_class()
    prior = np.tile(np.log(WEIGHTS), (GROUPS, 1))
    with np.errstate(divide="ignore"):
        log_side = 0.0 if known is None else np.log(1.0 * known)
    log_omega = brute_force.infer(prior, pairs, strength)[0]
    log_z, share, _, mode, _ = brute_force.infer(prior + density + log_side, pairs, strength)
    assert log_prob == pytest.approx(log_z - log_omega, abs=1e-9)
    assert float(terms.sum()) == pytest.approx(log_z - log_omega, abs=1e-9)
    np.testing.assert_allclose(found["responsibilities"].values, share, atol=1e-10)
    np.testing.assert_array_equal(ours_mode, mode)
    average = np.einsum("gk,gki->gi", share, mean)
    np.testing.assert_allclose(found["effects"].values, average, atol=1e-9)
    second = np.einsum("gk,gkij->gij", share, cov + mean[..., :, None] * mean[..., None, :])
    total = second - average[:, :, None] * average[:, None, :]
    np.testing.assert_allclose(found["effects_covariance"].values, total, atol=1e-9)


def test_gradient_is_that_of_dense_densities():
    """Of the log density in coefficients, factors and noise of all classes."""
    covariance = TABLE.design, CODES

    def dense(beta, factor, noise):
        terms = []
        for k in range(3):
            sigma = dense_covariance(*covariance, factor[k], OUTPUTS @ noise[k])
            blocks = []
            for g in range(GROUPS):
                own = np.flatnonzero(g == CODES)
                residual = (TABLE.y - FIXED @ beta[k])[own]
                part = sigma[np.ix_(own, own)]
                quad = residual @ jnp.linalg.solve(part, residual)
                size = len(own) * jnp.log(2 * jnp.pi)
                blocks.append(-0.5 * (quad + jnp.linalg.slogdet(part)[1] + size))
            terms.append(jnp.stack(blocks) + np.log(WEIGHTS[k]))
        return jax.nn.logsumexp(jnp.stack(terms), axis=0).sum()

    def ours(beta, factor, noise):
        return build(beta=beta, factor=factor, noise=noise).log_prob(TABLE.y)

    given = BETA, FACTOR, NOISE
    wanted = jax.jit(jax.grad(dense, argnums=(0, 1, 2)))(*given)
    found = jax.jit(jax.grad(ours, argnums=(0, 1, 2)))(*given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), found, wanted)


def test_one_class_is_the_linear_mixed_model():
    @jax.jit
    def both(y):
        several = build(beta=BETA[:1], factor=FACTOR[:1], noise=NOISE[:1])
        one = MixedEffects(
            FIXED, BETA[0], TABLE.design, TABLE.groups,
            scale_tril=FACTOR[0], noise=NOISE[0], outputs=OUTPUTS,
        )  # fmt: skip
        return [(fn.log_prob(y), fn.by_unit(y), fn.posterior(y)) for fn in (several, one)]

    ours, theirs = both(TABLE.y)
    # a lone class has weight one, whatever is said of it
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    np.testing.assert_allclose(ours[1][:GROUPS], theirs[1], rtol=1e-10)
    for name in theirs[2]:
        assert ours[2][name].dims == theirs[2][name].dims
        np.testing.assert_allclose(ours[2][name].values, theirs[2][name].values, atol=1e-12)


@pytest.mark.parametrize("shared", [(), ("covariance", "noise")])
def test_one_pass_is_the_slope(shared, monkeypatch):
    """In chunks that do not divide the groups, with known classes."""
    monkeypatch.setattr("sidebayes.models.blocks.effects.one_pass._CHUNK", 3)
    fn = build(known=KNOWN)
    block = class_parameters(
        TABLE.y, FIXED, TABLE.design, TABLE.groups, OUTPUTS,
        num_clusters=3, shared=shared, shared_terms=(1,),
    )  # fmt: skip
    assert block.has_one_pass(fn)
    assert not block.has_one_pass(build(Links(PAIRS, STRENGTH)))

    @jax.jit
    def both(value):
        log_z, slope = jax.value_and_grad(fn.log_partition)(fn.log_factors(value))
        total, expected = block.one_pass(fn, value)
        apart = block.statistics(Observation(fn, value, slope))
        at_once = block.statistics(Observation(fn, value, expected))
        weights = slope["log_weights"], expected["log_weights"]
        return (log_z, total), weights, (apart, at_once)

    (log_z, total), (slope, expected), (apart, at_once) = both(TABLE.y)
    np.testing.assert_allclose(total, log_z, rtol=1e-12)
    np.testing.assert_allclose(expected, slope, atol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), at_once, apart)


def test_draws_are_of_the_posterior_and_of_new_data():
    """Labels and effects of fitted groups given their data; others from the prior, given links."""
    fn, value = build(known=KNOWN), jnp.asarray(TABLE.y)
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = jax.jit(jax.vmap(lambda key: fn.draw(key, value)))(keys)
    found = fn.posterior(value)
    share = np.stack([(drawn.labels == k).mean(axis=0) for k in range(3)], axis=1)
    np.testing.assert_allclose(share, found["responsibilities"].values, atol=0.02)
    effects = jnp.einsum("sgij,sgj->sgi", jnp.asarray(FACTOR)[drawn.labels], drawn.effects)
    for group in range(GROUPS):
        cov = np.asarray(found["effects_covariance"].values[group])
        assert_moments(effects[:, group], np.asarray(found["effects"].values[group]), cov)
    statistic = jax.vmap(fn.statistic)(jax.tree.map(lambda leaf: leaf[:2000], drawn))
    slope = jax.grad(fn.log_partition)(fn.log_factors(value))
    for name in ("unary", "shift", "precision", "log_weights"):
        np.testing.assert_allclose(statistic[name].mean(axis=0), slope[name], atol=0.15)
    codes = np.array([2, -1, -1, -1])  # the first group here is the third of the fit
    told = Fitted(fn, value, jnp.asarray(codes))
    linked = build(Links(np.array([[1, 2]]), np.array([np.inf])))
    again = jax.jit(jax.vmap(lambda key: linked.draw_data(key, told)))(keys)
    rows = CODES == 0
    weights = found["responsibilities"].values[2]
    centre = [FIXED[rows] @ BETA[k] + TABLE.design[rows] @ by_class()[1][2, k] for k in range(3)]
    error = np.asarray(again[:, rows].std(axis=0)) / np.sqrt(len(keys))
    wanted = np.einsum("k,kr->r", weights, np.stack(centre))
    assert (np.abs(again[:, rows].mean(axis=0) - wanted) < 5 * error).all()
    whole = jax.jit(lambda key: fn.sample(key, (2, 3)))(keys[0])
    assert whole.shape == (2, 3, ROWS)


def test_refusals():
    codes = Groups(np.where(CODES == 0, -1, CODES))
    given = {"scale_tril": FACTOR, "noise": NOISE, "outputs": OUTPUTS}
    labels = build().labels
    with pytest.raises(ValueError, match="row 1 belongs to no group|groups have 11 rows of 3"):
        EffectsMixture(labels, FIXED, BETA, TABLE.design, codes, **given)
    with pytest.raises(ValueError, match="coefficients has shape"):
        EffectsMixture(labels, FIXED, BETA[:, :2], TABLE.design, TABLE.groups, **given)
    with pytest.raises(ValueError, match="log_side has shape"):
        build(known=KNOWN[:, :2])
    with pytest.raises(ValueError, match="value has shape"):
        build().log_prob(TABLE.y[:3])
    with pytest.raises(TypeError, match="LinkedCategorical"):
        EffectsMixture(None, FIXED, BETA, TABLE.design, TABLE.groups, **given)
    for options, message in (
        ({"shared": ("weights",)}, "shared = "),
        ({"shared_terms": (3,)}, "shared_terms = "),
        ({"shared_terms": (0, 1, 2)}, "at least one column is left"),
    ):
        with pytest.raises(ValueError, match=message):
            class_parameters(TABLE.y, FIXED, TABLE.design, TABLE.groups, num_clusters=2, **options)
