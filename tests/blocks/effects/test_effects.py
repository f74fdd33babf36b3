"""Linear mixed effects, fixed effects integrated out as well, against dense normal densities."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sidebayes.models.blocks.collapsed import Fitted
from sidebayes.models.blocks.effects.densities.basis import lower_basis
from sidebayes.models.blocks.effects.densities.marginal import MixedEffects
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.effects.densities.restricted import RestrictedEffects
from sidebayes.models.blocks.effects.densities.small import cholesky, forward_solve
from sidebayes.models.blocks.side_information.groups import Groups

from tests.support.draws import assert_moments
from tests.support.effects import CODES, FACTORS, dense_covariance, small_table

pytestmark = pytest.mark.usefixtures("x64")

ROWS = len(CODES)
TABLE = small_table()
RNG = np.random.default_rng(11)
FIXED = np.column_stack([np.ones(ROWS), RNG.normal(size=ROWS), RNG.normal(size=ROWS)])
BETA = np.array([2.0, -1.0, 0.5])
OUTPUTS = np.eye(2)[np.arange(ROWS) % 2]
NOISES = {"one": (np.array([0.6]), None), "two": (np.array([0.5, 1.1]), OUTPUTS)}
PRIOR = (np.array([1.0, 0.0, -1.0]), np.array([[2.0, 0, 0], [0.3, 0.7, 0], [-0.5, 0.2, 1.5]]))


def by_row(noise):
    deviations, outputs = NOISES[noise]
    return np.full(ROWS, deviations[0]) if outputs is None else outputs @ deviations


def dense(table, factor, noise):
    """Covariance of all rows given the fixed effects."""
    return dense_covariance(table.design, CODES, np.array(FACTORS[factor]), by_row(noise))


def restricted(table, factor="full", noise="two", prior=None):
    deviations, outputs = NOISES[noise]
    return at_values(table, np.array(FACTORS[factor]), deviations, outputs, prior)


def at_values(table, scale_tril, deviations, outputs=OUTPUTS, prior=None):
    given = {"scale_tril": scale_tril, "noise": deviations, "outputs": outputs}
    return RestrictedEffects(FIXED, table.design, table.groups, prior=prior, **given)


@partial(jax.jit, static_argnames="noise")
def density_and_posterior(scale_tril, noise, prior, y):
    """One program for all factors and all data."""
    deviations, outputs = NOISES[noise]
    fn = at_values(TABLE, scale_tril, deviations, outputs, prior)
    return fn.log_prob(y), fn.variance, fn.posterior(y), fn.by_unit(y)


def restricted_likelihood(y, fixed, cov):
    """Of the textbook: profiled likelihood, and the determinant of the information."""
    inverse = np.linalg.inv(cov)
    information = fixed.T @ inverse @ fixed
    beta = np.linalg.solve(information, fixed.T @ inverse @ y)
    profiled = multivariate_normal(fixed @ beta, cov).logpdf(y)
    size = fixed.shape[1]
    correction = size * np.log(2 * np.pi) - np.linalg.slogdet(information)[1]
    return profiled + correction / 2, beta, np.linalg.inv(information)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("factor", FACTORS)
def test_mixed_effects_are_random_effects_about_a_linear_mean(table, factor, noise):
    deviations, outputs = NOISES[noise]

    def linear(scale_tril):
        given = {"scale_tril": scale_tril, "noise": deviations, "outputs": outputs}
        return MixedEffects(FIXED, BETA, table.design, table.groups, **given)

    def plain(scale_tril):
        given = {"scale_tril": scale_tril, "noise": by_row(noise)}
        return RandomEffects(FIXED @ BETA, table.design, table.groups, **given)

    @jax.jit
    def both(scale_tril, y):
        each = (kind(scale_tril) for kind in (linear, plain))
        return [(fn.log_prob(y), fn.by_unit(y), fn.posterior(y)) for fn in each]

    ours, theirs = both(np.array(FACTORS[factor]), table.y)
    assert theirs[2].keys() <= ours[2].keys()
    for name, value in theirs[2].items():
        np.testing.assert_allclose(ours[2][name].values, value.values, atol=1e-10)
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-10)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-10)
    with pytest.raises(ValueError, match="use jax.vmap"):
        linear(np.array(FACTORS[factor])).log_prob(table.y[None])


@pytest.mark.parametrize("outputs", [None, OUTPUTS])
def test_noise_may_be_one_number(table, outputs):
    """Also one that is sampled."""
    size = 1 if outputs is None else 2

    def densities(noise):
        given = {"scale_tril": np.array(FACTORS["full"]), "noise": noise, "outputs": outputs}
        kinds = (partial(MixedEffects, FIXED, BETA), partial(RestrictedEffects, FIXED))
        return [kind(table.design, table.groups, **given).log_prob(table.y) for kind in kinds]

    one, each = jax.jit(lambda s: (densities(s), densities(jnp.full(size, s))))(0.6)
    np.testing.assert_array_equal(one, each)
    with pytest.raises(ValueError, match=r"noise has shape \(3,\); expected one number, or"):
        densities(np.ones(3))


def test_outcomes_far_from_zero_lose_no_digits(table):
    """Squares are about a least-squares fit: an offset of a million noise scales costs six digits."""
    given = np.array(FACTORS["full"]), "two", None
    moved = density_and_posterior(*given, table.y + 1e6 * FIXED[:, 0])[0]
    np.testing.assert_allclose(moved, density_and_posterior(*given, table.y)[0], rtol=1e-9)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("factor", FACTORS)
def test_flat_prior_is_the_restricted_likelihood(table, factor, noise):
    log_prob, _, posterior, _ = density_and_posterior(
        np.array(FACTORS[factor]), noise, None, table.y
    )
    expected, beta, covariance = restricted_likelihood(table.y, FIXED, dense(table, factor, noise))
    np.testing.assert_allclose(log_prob, expected, atol=1e-10)
    np.testing.assert_allclose(posterior["coefficients"].values, beta, atol=1e-10)
    np.testing.assert_allclose(posterior["coefficients_covariance"].values, covariance, atol=1e-10)


def test_restricted_likelihood_is_the_integral_over_one_coefficient(table):
    """By quadrature, constants included (check 26 of the dossier)."""
    fixed, cov = np.ones((ROWS, 1)), dense(table, "full", "one")
    given = {"scale_tril": np.array(FACTORS["full"]), "noise": NOISES["one"][0]}
    fn = RestrictedEffects(fixed, table.design, table.groups, **given)
    grid = np.linspace(-40, 40, 8001)
    density = np.exp(multivariate_normal(np.zeros(ROWS), cov).logpdf(table.y - grid[:, None]))
    found = jax.jit(fn.log_prob)(table.y)
    np.testing.assert_allclose(found, np.log(np.trapezoid(density, grid)), atol=1e-8)


@pytest.mark.parametrize("factor", FACTORS)
def test_normal_prior_is_integrated_out(table, factor):
    log_prob, variance, _, _ = density_and_posterior(
        np.array(FACTORS[factor]), "two", PRIOR, table.y
    )
    cov = dense(table, factor, "two") + FIXED @ PRIOR[1] @ PRIOR[1].T @ FIXED.T
    expected = multivariate_normal(FIXED @ PRIOR[0], cov).logpdf(table.y)
    np.testing.assert_allclose(log_prob, expected, atol=1e-10)
    np.testing.assert_allclose(variance, np.diag(cov), atol=1e-12)
    assert np.isinf(restricted(table).variance).all()


def everything(table, factor, prior, y):
    """Mean and covariance of coefficients and all effects given the data, by dense conditioning."""
    scale_tril = np.array(FACTORS[factor])
    spread = np.zeros((ROWS, 8))
    for row, code in enumerate(CODES):
        spread[row, 2 * code : 2 * code + 2] = table.design[row]
    both = np.hstack([FIXED, spread])
    before = np.zeros((11, 11))
    before[:3, :3] = prior[1] @ prior[1].T
    before[3:, 3:] = np.kron(np.eye(4), scale_tril @ scale_tril.T)
    mean = np.concatenate([prior[0], np.zeros(8)])
    total = both @ before @ both.T + np.diag(by_row("two") ** 2)
    gain = before @ both.T @ np.linalg.inv(total)
    return mean + gain @ (y - both @ mean), before - gain @ both @ before


@pytest.mark.parametrize("factor", ["full", "singular"])
def test_posterior_draws_and_slopes(table, factor):
    fn = restricted(table, factor, prior=PRIOR)
    mean, covariance = everything(table, factor, PRIOR, table.y)

    @jax.jit
    def everything_found(y):
        factors, mode = fn.log_factors(y), fn.mode(y)
        slope = jax.grad(fn.log_partition)(factors)
        return fn.posterior(y), factors, slope, mode, fn.statistic(mode)

    found, factors, slope, mode, statistic = everything_found(table.y)
    np.testing.assert_allclose(found["coefficients"].values, mean[:3], atol=1e-9)
    np.testing.assert_allclose(
        found["coefficients_covariance"].values, covariance[:3, :3], atol=1e-9
    )
    np.testing.assert_allclose(found["effects"].values.ravel(), mean[3:], atol=1e-9)
    for code in range(4):
        own = slice(3 + 2 * code, 5 + 2 * code)
        np.testing.assert_allclose(
            found["effects_covariance"].values[code], covariance[own, own], atol=1e-9
        )
    np.testing.assert_allclose(slope["shift"], mode.effects, atol=1e-9)
    np.testing.assert_allclose(slope["fixed_shift"], mode.move, atol=1e-9)
    for name in ("precision", "fixed_precision"):
        square = np.asarray(slope[name])
        np.testing.assert_allclose(square, square.mT, atol=1e-12)
    assert jax.tree.map(jnp.shape, factors) == jax.tree.map(jnp.shape, statistic)
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = jax.jit(jax.vmap(lambda key: fn.draw(key, table.y)))(keys)
    drawn = jax.device_get(drawn)
    basis = lower_basis(np, FIXED)
    flat = np.hstack(
        [drawn.move @ basis.T, (drawn.effects @ np.array(FACTORS[factor]).T).reshape(-1, 8)]
    )
    least = np.linalg.lstsq(FIXED, table.y)[0]
    assert_moments(flat, mean - np.concatenate([least, np.zeros(8)]), covariance)
    second = drawn.effects[..., :, None] * drawn.move[:, None, None, :]
    error = second.std(axis=0) / np.sqrt(len(second))
    assert (np.abs(second.mean(axis=0) - slope["cross"]) < 4.5 * error + 1e-12).all()


def test_linearised_partition_function_is_a_lower_bound(table):
    """The inequality that makes EM of REML climb."""
    rng = np.random.default_rng(1)

    @jax.jit
    def partition_and_slope(scale_tril, noise):
        fn = at_values(table, scale_tril, noise)
        factors = fn.log_factors(table.y)
        return factors, *jax.value_and_grad(fn.log_partition)(factors)

    factor, deviations = np.array(FACTORS["full"]), NOISES["two"][0]
    here, log_z, slope = jax.device_get(partition_and_slope(factor, deviations))
    gaps = []
    for size in [1e-3, 0.1, 1.0, 3.0]:
        there, other, _ = partition_and_slope(
            factor + size * np.tril(rng.normal(size=(2, 2))),
            deviations * np.exp(size * rng.normal(size=2)),
        )
        change = jax.tree.map(
            lambda s, a, b: np.sum(s * (a - b)), slope, jax.device_get(there), here
        )
        gaps.append(float(other - log_z - sum(jax.tree.leaves(change))))
    assert min(gaps) > 0
    assert gaps[0] < 1e-3


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_terms_are_densities_given_all_other_groups(table, prior):
    found = density_and_posterior(np.array(FACTORS["full"]), "two", prior, table.y)[3]

    def log_density(rows):
        y, fixed = table.y[rows], FIXED[rows]
        cov = dense(table, "full", "two")[np.ix_(rows, rows)]
        if prior is None:
            return restricted_likelihood(y, fixed, cov)[0]
        spread = fixed @ prior[1] @ prior[1].T @ fixed.T
        return multivariate_normal(fixed @ prior[0], cov + spread).logpdf(y)

    whole = log_density(np.ones(ROWS, bool))
    expected = [whole - log_density(code != CODES) for code in range(4)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("factor", FACTORS)
def test_derivatives_against_the_dense_density(table, factor):
    def parts(flat):
        scale_tril = jnp.zeros((2, 2)).at[jnp.tril_indices(2)].set(flat[:3])
        return scale_tril, flat[3:]

    def ours(flat):
        scale_tril, noise = parts(flat)
        return at_values(table, scale_tril, noise).log_prob(table.y)

    def brute(flat):
        scale_tril, noise = parts(flat)
        cov = dense_covariance(table.design, CODES, scale_tril, OUTPUTS @ noise)
        inverse = jnp.linalg.inv(cov)
        information = FIXED.T @ inverse @ FIXED
        beta = jnp.linalg.solve(information, FIXED.T @ inverse @ table.y)
        profiled = jax.scipy.stats.multivariate_normal.logpdf(table.y, FIXED @ beta, cov)
        return profiled - jnp.linalg.slogdet(information)[1] / 2

    flat = jnp.concatenate([jnp.array(FACTORS[factor])[jnp.tril_indices(2)], NOISES["two"][0]])
    ours_both, brute_both = (
        jax.jit(lambda flat, of=of: (jax.grad(of)(flat), jax.hessian(of)(flat)))(flat)
        for of in (ours, brute)
    )
    np.testing.assert_allclose(ours_both[0], brute_both[0], atol=1e-8)
    np.testing.assert_allclose(ours_both[1], brute_both[1], atol=1e-7)


def test_new_data_are_drawn_given_those_that_were_fitted(table):
    rng = np.random.default_rng(2)
    fitted = restricted(table)
    names = np.array(["d", "a", "x", "x"])
    groups = Groups(names)
    design = np.column_stack([np.ones(4), rng.normal(size=4)])
    fixed = np.column_stack([np.ones(4), rng.normal(size=(4, 2))])
    outputs, noise = np.eye(2)[[0, 1, 1, 0]], NOISES["two"][0]
    new = RestrictedEffects(
        fixed,
        design,
        groups,
        scale_tril=np.array(FACTORS["full"]),
        noise=noise,
        outputs=outputs,
    )
    known = Fitted(fitted, table.y, table.groups.codes_of(groups.names))
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: new.draw_data(key, known)))(keys))
    # the limit of a prior so wide that the data say all there is to know
    codes, wide = np.concatenate([CODES, [3, 0, 4, 4]]), 300.0
    both = np.concatenate([table.design, design])
    row_noise = np.concatenate([by_row("two"), outputs @ noise])
    cov = dense_covariance(both, codes, np.array(FACTORS["full"]), row_noise)
    terms = np.concatenate([FIXED, fixed])
    cov = cov + wide**2 * terms @ terms.T
    gain = cov[ROWS:, :ROWS] @ np.linalg.inv(cov[:ROWS, :ROWS])
    assert_moments(drawn, gain @ table.y, cov[ROWS:, ROWS:] - gain @ cov[:ROWS, ROWS:])
    with pytest.raises(ValueError, match="flat prior cannot be drawn"):
        new.draw_data(keys[0])
    simulated = np.asarray(restricted(table, prior=PRIOR).sample(keys[0], (20_000,)))
    cov = dense(table, "full", "two") + FIXED @ PRIOR[1] @ PRIOR[1].T @ FIXED.T
    assert_moments(simulated, FIXED @ PRIOR[0], cov)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_small_factors_are_those_of_lapack(size):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(5, size, size + 2))
    matrix, right = root @ root.swapaxes(1, 2), rng.normal(size=(5, size, 2))

    def half_log_determinant(matrix):
        lower = cholesky(matrix)
        logs = jnp.log(jnp.diagonal(lower, axis1=1, axis2=2))
        return logs.sum(), (lower, forward_solve(lower, right))

    both = jax.jit(jax.grad(half_log_determinant, has_aux=True))
    slope, (lower, solved) = jax.device_get(both(matrix))
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), atol=1e-12)
    np.testing.assert_allclose(lower @ solved, right, atol=1e-10)
    np.testing.assert_allclose(slope, np.linalg.inv(matrix) / 2, atol=1e-9)
    assert np.isnan(both(-matrix)[1][0]).any()
