"""Random effects integrated out, against dense normal densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sidebayes.models.blocks.collapsed import Fitted
from sidebayes.models.blocks.random_effects import RandomEffects
from sidebayes.models.blocks.side_information.partial_labels import Groups

from tests.support_draws import assert_moments
from tests.support_effects import CODES, FACTORS, build, dense_covariance

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("noise", ["one", "rows"])
@pytest.mark.parametrize("factor", FACTORS)
def test_density_is_the_dense_normal(table, factor, noise):
    fn = build(table, factor, noise)
    cov = dense_covariance(table.design, CODES, np.array(FACTORS[factor]), table.noises[noise])
    expected = multivariate_normal(table.mean, cov).logpdf(table.y)
    np.testing.assert_allclose(fn.log_prob(table.y), expected, atol=1e-10)
    np.testing.assert_allclose(fn.variance, np.diag(cov), atol=1e-12)
    np.testing.assert_array_equal(fn.mean, table.mean)
    each = fn.by_unit(table.y)
    assert each.shape == (fn.num_units,) == (4,)
    for code in range(4):
        own = np.flatnonzero(code == CODES)
        block = multivariate_normal(table.mean[own], cov[np.ix_(own, own)])
        np.testing.assert_allclose(each[code], block.logpdf(table.y[own]), atol=1e-10)


def parameters(table, factor, noise):
    corner = jnp.array(FACTORS[factor])[jnp.tril_indices(2)]
    return jnp.concatenate([corner, jnp.atleast_1d(table.noises[noise]), table.mean])


def unpack(table, flat, noise):
    scale_tril = jnp.zeros((2, 2)).at[jnp.tril_indices(2)].set(flat[:3])
    sigma = flat[3] if noise == "one" else flat[3 : -len(table.y)]
    return flat[-len(table.y) :], scale_tril, sigma


@pytest.mark.parametrize("noise", ["one", "rows"])
@pytest.mark.parametrize("factor", FACTORS)
def test_derivatives(table, factor, noise):
    """The slope against differences of the dense density, the curvature against its Hessian."""

    def ours(flat):
        mean, scale_tril, sigma = unpack(table, flat, noise)
        fn = RandomEffects(mean, table.design, table.groups, scale_tril=scale_tril, noise=sigma)
        return fn.log_prob(table.y)

    def dense(flat):
        mean, scale_tril, sigma = unpack(table, flat, noise)
        cov = dense_covariance(table.design, CODES, scale_tril, sigma)
        return jax.scipy.stats.multivariate_normal.logpdf(table.y, mean, cov)

    flat, step = parameters(table, factor, noise), 1e-5
    moved = step * jnp.eye(len(flat))
    density = jax.jit(jax.vmap(dense))
    slope = (density(flat + moved) - density(flat - moved)) / (2 * step)
    found = jax.jit(jax.grad(ours))(flat)
    np.testing.assert_allclose(found, slope, atol=1e-7)
    if factor == "zero":  # the density is even in T
        np.testing.assert_array_equal(found[:3], 0.0)
    curvature = jax.jit(jax.hessian(dense))(flat)
    assert np.abs(curvature[:3, :3]).max() > 0.1
    np.testing.assert_allclose(jax.jit(jax.hessian(ours))(flat), curvature, atol=1e-8)


def test_factors_are_the_joint_density(table):
    """<t(u), L(y)> is log p(y, u) for any u, constants included."""
    fn = build(table, noise="rows")
    u = np.random.default_rng(0).normal(size=(4, 2))
    effects = u @ np.array(FACTORS["full"]).T
    loc = table.mean + (effects[CODES] * table.design).sum(axis=1)
    expected = norm(loc, table.noises["rows"]).logpdf(table.y).sum() + norm.logpdf(u).sum()
    factors, statistic = fn.log_factors(table.y), fn.statistic(jnp.asarray(u))
    assert jax.tree.structure(factors) == jax.tree.structure(statistic)
    assert jax.tree.map(jnp.shape, factors) == jax.tree.map(jnp.shape, statistic)
    terms = jax.tree.map(lambda a, b: (a * b).sum(), factors, statistic)
    np.testing.assert_allclose(sum(jax.tree.leaves(terms)), expected, atol=1e-10)


def conditional(table, factor, noise):
    """Mean (4, 2) and covariance (8, 8) of all effects given the data, by dense conditioning."""
    scale_tril = np.array(FACTORS[factor])
    prior = np.kron(np.eye(4), scale_tril @ scale_tril.T)
    spread = np.zeros((len(CODES), 8))
    for row, code in enumerate(CODES):
        spread[row, 2 * code : 2 * code + 2] = table.design[row]
    total = np.asarray(dense_covariance(table.design, CODES, scale_tril, table.noises[noise]))
    gain = prior @ spread.T @ np.linalg.inv(total)
    return (gain @ (table.y - table.mean)).reshape(4, 2), prior - gain @ spread @ prior


@pytest.mark.parametrize("noise", ["one", "rows"])
@pytest.mark.parametrize("factor", FACTORS)
def test_posterior_and_slope_of_the_partition_function(table, factor, noise):
    fn = build(table, factor, noise)
    posterior = fn.posterior(table.y)
    mean, covariance = conditional(table, factor, noise)
    np.testing.assert_allclose(posterior["effects"], mean, atol=1e-10)
    for code in range(4):
        own = slice(2 * code, 2 * code + 2)
        np.testing.assert_allclose(
            posterior["effects_covariance"][code], covariance[own, own], atol=1e-10
        )
    slope = jax.grad(fn.log_partition)(fn.log_factors(table.y))
    scale_tril = np.array(FACTORS[factor])
    np.testing.assert_allclose(slope["shift"] @ scale_tril.T, mean, atol=1e-10)
    np.testing.assert_allclose(slope["shift"], fn.mode(table.y), atol=1e-10)
    second = posterior["effects_covariance"] + mean[:, :, None] * mean[:, None, :]
    np.testing.assert_allclose(scale_tril @ slope["precision"] @ scale_tril.T, second, atol=1e-10)
    np.testing.assert_array_equal(slope["constant"], np.ones(4))
    assert slope["ungrouped"] == 1.0


def test_mode_maximises_the_joint_density(table):
    fn = build(table)
    factors, mode = fn.log_factors(table.y), fn.mode(table.y)

    def joint(u):
        terms = jax.tree.map(lambda a, b: (a * b).sum(), factors, fn.statistic(u))
        return sum(jax.tree.leaves(terms))

    np.testing.assert_allclose(jax.grad(joint)(mode), 0.0, atol=1e-10)
    np.testing.assert_allclose(jax.grad(joint)(mode + 1.0), 2 * factors["precision"] @ jnp.ones(2))


def test_linearised_partition_function_is_a_lower_bound(table):
    """The inequality that makes EM climb, at parameters near and far."""
    rng = np.random.default_rng(1)
    fn = build(table)
    here = fn.log_factors(table.y)
    slope = jax.grad(fn.log_partition)(here)
    gaps = []
    for size in [1e-3, 0.1, 1.0, 1.0, 1.0, 3.0]:
        there = RandomEffects(
            table.mean + size * rng.normal(size=len(table.y)),
            table.design,
            table.groups,
            scale_tril=np.array(FACTORS["full"]) + size * np.tril(rng.normal(size=(2, 2))),
            noise=0.6 * np.exp(size * rng.normal()),
        ).log_factors(table.y)
        change = jax.tree.map(lambda s, a, b: (s * (a - b)).sum(), slope, there, here)
        bound = fn.log_partition(here) + sum(jax.tree.leaves(change))
        gaps.append(float(fn.log_partition(there) - bound))
    assert min(gaps) > 0
    assert gaps[0] < 1e-3  # it touches at the parameters themselves
    assert max(gaps) > 0.1


def test_draws_have_the_posterior_moments(table):
    fn = build(table)
    count = 20_000
    keys = jax.random.split(jax.random.key(0), count)
    drawn = np.asarray(jax.jit(jax.vmap(lambda k: fn.draw(k, table.y)))(keys))
    slope = jax.grad(fn.log_partition)(fn.log_factors(table.y))
    error = drawn.std(axis=0) / np.sqrt(count)
    assert (np.abs(drawn.mean(axis=0) - slope["shift"]) < 4 * error).all()
    squares = drawn[..., :, None] * drawn[..., None, :]
    error = squares.std(axis=0) / np.sqrt(count)
    assert (np.abs(squares.mean(axis=0) - slope["precision"]) < 4 * error).all()
    # groups are independent of one another given the data
    across = np.corrcoef(drawn.reshape(count, -1).T)[:2, 2:]
    assert np.abs(across).max() < 4 / np.sqrt(count)


def test_samples_have_the_marginal_moments(table):
    fn = build(table, noise="rows")
    count = 20_000
    drawn = np.asarray(fn.sample(jax.random.key(1), (count // 10, 10)))
    assert drawn.shape == (count // 10, 10, len(table.y))
    assert fn.sample(jax.random.key(1)).shape == table.y.shape
    drawn = drawn.reshape(count, -1)
    cov = dense_covariance(table.design, CODES, np.array(FACTORS["full"]), table.noises["rows"])
    error = drawn.std(axis=0) / np.sqrt(count)
    assert (np.abs(drawn.mean(axis=0) - table.mean) < 4 * error).all()
    away = drawn - table.mean
    products = away[:, :, None] * away[:, None, :]
    error = products.std(axis=0) / np.sqrt(count)
    assert (np.abs(products.mean(axis=0) - cov) < 4.5 * error).all()


@pytest.mark.parametrize("factor", ["full", "singular"])
def test_new_data_are_drawn_by_gaussian_conditioning(table, factor):
    """Of known groups and of new ones, rows of one group together."""
    rng, count = np.random.default_rng(2), 20_000
    fitted = build(table, factor, "rows")
    names = np.array(["d", "a", "x", "c", "x", "d"])
    mean_new, noise_new = rng.normal(size=6), rng.uniform(0.3, 1.0, size=6)
    design_new = np.column_stack([np.ones(6), rng.normal(size=6)])
    scale_tril, groups = np.array(FACTORS[factor]), Groups(names)
    new = RandomEffects(mean_new, design_new, groups, scale_tril=scale_tril, noise=noise_new)
    known = Fitted(fitted, table.y, table.groups.codes_of(groups.names))
    keys = jax.random.split(jax.random.key(0), count)
    drawn = np.asarray(jax.vmap(lambda key: new.draw_data(key, known))(keys))
    codes = np.concatenate([CODES, [3, 0, 4, 2, 4, 3]])
    design = np.concatenate([table.design, design_new])
    noise = np.concatenate([table.noises["rows"], noise_new])
    cov = np.asarray(dense_covariance(design, codes, scale_tril, noise))
    rows = len(CODES)
    gain = cov[rows:, :rows] @ np.linalg.inv(cov[:rows, :rows])
    mean = mean_new + gain @ (table.y - table.mean)
    assert_moments(drawn, mean, cov[rows:, rows:] - gain @ cov[:rows, rows:])
    alone = np.asarray(jax.vmap(new.draw_data)(keys))
    assert_moments(alone, mean_new, cov[rows:, rows:])


def test_effects_far_larger_than_noise(table):
    """Also of groups with fewer rows than effects, whose information is singular."""

    def ours(size):
        scale_tril = size * jnp.array(FACTORS["full"])
        fn = RandomEffects(table.mean, table.design, table.groups, scale_tril=scale_tril, noise=0.6)
        return fn.log_prob(table.y)

    def dense(size):
        scale_tril = size * jnp.array(FACTORS["full"])
        cov = dense_covariance(table.design, CODES, scale_tril, np.array(0.6))
        return jax.scipy.stats.multivariate_normal.logpdf(table.y, table.mean, cov)

    found, expected = jax.value_and_grad(ours)(1e4), jax.value_and_grad(dense)(1e4)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    value, slope = jax.value_and_grad(ours)(1e6)
    assert np.isfinite(value)
    assert np.isfinite(slope)


def test_no_array_of_rows_by_rows():
    rows, rng = 4000, np.random.default_rng(0)
    groups = Groups(rng.integers(0, 500, size=rows))
    design, y = rng.normal(size=(rows, 2)), rng.normal(size=rows)

    def density(scale_tril, noise):
        fn = RandomEffects(jnp.zeros(rows), design, groups, scale_tril=scale_tril, noise=noise)
        return fn.log_prob(y)

    program = jax.jit(jax.grad(density, (0, 1))).lower(jnp.eye(2), 1.0).compile()
    assert program.memory_analysis().temp_size_in_bytes < 100 * 8 * rows
