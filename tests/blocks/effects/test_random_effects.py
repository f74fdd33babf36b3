"""Random effects integrated out, against dense normal densities."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sidebayes.models.blocks.collapsed import Fitted
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.side_information.groups import Groups

from tests.support.draws import assert_moments
from tests.support.effects import CODES, FACTORS, build, dense_covariance, derivatives, small_table

pytestmark = pytest.mark.usefixtures("x64")
TABLE = small_table()


@jax.jit
def found_at(scale_tril, noise):
    """All that random effects say of the table, as one program for all factors."""
    fn = RandomEffects(TABLE.mean, TABLE.design, TABLE.groups, scale_tril=scale_tril, noise=noise)
    factors = fn.log_factors(TABLE.y)
    log_z, slope = jax.value_and_grad(fn.log_partition)(factors)
    return {
        "log_prob": fn.log_prob(TABLE.y),
        "variance": fn.variance,
        "mean": fn.mean,
        "by_unit": fn.by_unit(TABLE.y),
        "posterior": fn.posterior(TABLE.y),
        "mode": fn.mode(TABLE.y),
        "factors": factors,
        "log_partition": log_z,
        "slope": slope,
    }


def found(factor="full", noise="one"):
    values = found_at(np.array(FACTORS[factor]), TABLE.noises[noise])
    return SimpleNamespace(**jax.device_get(values))


@pytest.mark.parametrize("noise", ["one", "rows"])
@pytest.mark.parametrize("factor", FACTORS)
def test_density_is_the_dense_normal(table, factor, noise):
    ours = found(factor, noise)
    cov = dense_covariance(table.design, CODES, np.array(FACTORS[factor]), table.noises[noise])
    expected = multivariate_normal(table.mean, cov).logpdf(table.y)
    np.testing.assert_allclose(ours.log_prob, expected, atol=1e-10)
    np.testing.assert_allclose(ours.variance, np.diag(cov), atol=1e-12)
    np.testing.assert_array_equal(ours.mean, table.mean)
    each = ours.by_unit
    assert each.shape == (build(table).num_units,) == (4,)
    for code in range(4):
        own = np.flatnonzero(code == CODES)
        block = multivariate_normal(table.mean[own], cov[np.ix_(own, own)])
        np.testing.assert_allclose(each[code], block.logpdf(table.y[own]), atol=1e-10)


def parameters(table, factor, noise):
    corner = np.array(FACTORS[factor])[np.tril_indices(2)]
    return np.concatenate([corner, np.atleast_1d(table.noises[noise]), table.mean])


def unpack(table, flat, noise, array):
    scale_tril = array([[flat[0], 0.0], [flat[1], flat[2]]])
    sigma = flat[3] if noise == "one" else flat[3 : -len(table.y)]
    return flat[-len(table.y) :], scale_tril, sigma


@pytest.mark.parametrize("noise", ["one", "rows"])
@pytest.mark.parametrize("factor", FACTORS)
def test_derivatives(table, factor, noise):
    """The slope and the curvature against those of the dense density, by complex steps."""

    def ours(flat):
        mean, scale_tril, sigma = unpack(table, flat, noise, jnp.array)
        fn = RandomEffects(mean, table.design, table.groups, scale_tril=scale_tril, noise=sigma)
        return fn.log_prob(table.y)

    def dense(flat):
        mean, scale_tril, sigma = unpack(table, flat, noise, np.array)
        cov = dense_covariance(table.design, CODES, scale_tril, sigma)
        away = table.y - mean
        return -0.5 * (away @ np.linalg.solve(cov, away) + np.log(np.linalg.det(cov)))

    flat = parameters(table, factor, noise)
    slope, curvature = derivatives(dense, flat)
    both = jax.jit(lambda flat: (jax.grad(ours)(flat), jax.hessian(ours)(flat)))
    ours_slope, ours_curvature = both(flat)
    np.testing.assert_allclose(ours_slope, slope, atol=1e-10)
    if factor == "zero":  # the density is even in T
        np.testing.assert_array_equal(ours_slope[:3], 0.0)
    assert np.abs(curvature[:3, :3]).max() > 0.1
    np.testing.assert_allclose(ours_curvature, curvature, atol=1e-8)


def test_factors_are_the_joint_density(table):
    """<t(u), L(y)> is log p(y, u) for any u, constants included."""
    fn = build(table, noise="rows")
    u = np.random.default_rng(0).normal(size=(4, 2))
    effects = u @ np.array(FACTORS["full"]).T
    loc = table.mean + (effects[CODES] * table.design).sum(axis=1)
    expected = norm(loc, table.noises["rows"]).logpdf(table.y).sum() + norm.logpdf(u).sum()
    factors, statistic = found(noise="rows").factors, jax.device_get(jax.jit(fn.statistic)(u))
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
    total = dense_covariance(table.design, CODES, scale_tril, table.noises[noise])
    gain = prior @ spread.T @ np.linalg.inv(total)
    return (gain @ (table.y - table.mean)).reshape(4, 2), prior - gain @ spread @ prior


@pytest.mark.parametrize("noise", ["one", "rows"])
@pytest.mark.parametrize("factor", FACTORS)
def test_posterior_and_slope_of_the_partition_function(table, factor, noise):
    ours = found(factor, noise)
    posterior, slope = ours.posterior, ours.slope
    mean, covariance = conditional(table, factor, noise)
    np.testing.assert_allclose(posterior["effects"].values, mean, atol=1e-10)
    for code in range(4):
        own = slice(2 * code, 2 * code + 2)
        np.testing.assert_allclose(
            posterior["effects_covariance"].values[code], covariance[own, own], atol=1e-10
        )
    scale_tril = np.array(FACTORS[factor])
    np.testing.assert_allclose(slope["shift"] @ scale_tril.T, mean, atol=1e-10)
    np.testing.assert_allclose(slope["shift"], ours.mode, atol=1e-10)
    second = posterior["effects_covariance"].values + mean[:, :, None] * mean[:, None, :]
    np.testing.assert_allclose(scale_tril @ slope["precision"] @ scale_tril.T, second, atol=1e-10)
    np.testing.assert_array_equal(slope["constant"], np.ones(4))
    assert slope["ungrouped"] == 1.0


def test_mode_maximises_the_joint_density(table):
    fn, ours = build(table), found()
    factors, mode = ours.factors, ours.mode

    def joint(u):
        terms = jax.tree.map(lambda a, b: (a * b).sum(), factors, fn.statistic(u))
        return sum(jax.tree.leaves(terms))

    slope = jax.jit(jax.grad(joint))
    np.testing.assert_allclose(slope(mode), 0.0, atol=1e-10)
    np.testing.assert_allclose(slope(mode + 1.0), 2 * factors["precision"] @ np.ones(2))


def test_linearised_partition_function_is_a_lower_bound(table):
    """The inequality that makes EM climb, at parameters near and far."""
    rng = np.random.default_rng(1)
    here = found()

    @jax.jit
    def factors_and_partition(mean, scale_tril, noise):
        given = {"scale_tril": scale_tril, "noise": noise}
        other = RandomEffects(mean, table.design, table.groups, **given)
        there = other.log_factors(table.y)
        return there, other.log_partition(there)

    gaps = []
    for size in [1e-3, 0.1, 1.0, 1.0, 1.0, 3.0]:
        there, log_z = factors_and_partition(
            table.mean + size * rng.normal(size=len(table.y)),
            np.array(FACTORS["full"]) + size * np.tril(rng.normal(size=(2, 2))),
            0.6 * np.exp(size * rng.normal()),
        )
        change = jax.tree.map(
            lambda s, a, b: np.sum(s * (a - b)), here.slope, jax.device_get(there), here.factors
        )
        bound = here.log_partition + sum(jax.tree.leaves(change))
        gaps.append(float(log_z - bound))
    assert min(gaps) > 0
    assert gaps[0] < 1e-3  # it touches at the parameters themselves
    assert max(gaps) > 0.1


def test_draws_have_the_posterior_moments(table):
    fn = build(table)
    count = 20_000
    keys = jax.random.split(jax.random.key(0), count)
    drawn = np.asarray(jax.jit(jax.vmap(lambda k: fn.draw(k, table.y)))(keys))
    slope = found().slope
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
    draw = jax.jit(fn.sample, static_argnums=1)
    drawn = np.asarray(draw(jax.random.key(1), (count // 10, 10)))
    assert drawn.shape == (count // 10, 10, len(table.y))
    assert jax.eval_shape(fn.sample, jax.random.key(1)).shape == table.y.shape
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

    @jax.jit
    @jax.vmap
    def draw(key):
        return new.draw_data(key, known), new.draw_data(key)

    drawn, alone = map(np.asarray, draw(keys))
    codes = np.concatenate([CODES, [3, 0, 4, 2, 4, 3]])
    design = np.concatenate([table.design, design_new])
    noise = np.concatenate([table.noises["rows"], noise_new])
    cov = dense_covariance(design, codes, scale_tril, noise)
    rows = len(CODES)
    gain = cov[rows:, :rows] @ np.linalg.inv(cov[:rows, :rows])
    mean = mean_new + gain @ (table.y - table.mean)
    assert_moments(drawn, mean, cov[rows:, rows:] - gain @ cov[:rows, rows:])
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

    both = jax.jit(jax.value_and_grad(ours))
    value, slope = both(1e4)
    expected = jax.jit(jax.value_and_grad(dense))(1e4)
    np.testing.assert_allclose(value, expected[0], atol=1e-5)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-5)
    value, slope = both(1e6)
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
