"""Predictors of single subjects from a population: closed forms, limits, errors."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import check_grad
from scipy.stats import multivariate_normal
from sidebayes.guides.transformers.detection import estimation
from sidebayes.guides.transformers.detection.population import triangular_root
from sklearn.linear_model import LinearRegression, Ridge

import sidebayes as sb
from sidebayes import LongTable, MixPrior, Population, estimate_population
from tests.support.series import IMPAIRED, NORMAL, dense, log_densities, series


def coefficients(population, table):
    return population.coefficients + population.effects(table)[0]


def outputs_table(seed=3):
    """Two outputs at different times, whose columns are zero outside their output."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(30), 7)
    output = rng.integers(0, 2, len(subject))
    basis = np.stack([np.ones(len(subject)), rng.uniform(-1, 1, len(subject))], axis=1)
    columns = np.concatenate([basis * (output == o)[:, None] for o in (0, 1)], axis=1)
    own = rng.normal(size=(30, 4))
    y = (columns * (1 + own[subject])).sum(axis=1) + (0.3 + output) * rng.normal(size=len(subject))
    return LongTable(y, columns, columns, subject, outputs=np.eye(2)[output])


@pytest.mark.parametrize("covariance", ["full", "singular", "zero"])
def test_densities_and_effects_are_those_of_dense_algebra(covariance):
    matrix = {"full": NORMAL.covariance, "singular": np.ones((2, 2)), "zero": np.zeros((2, 2))}
    population = Population([0.4, -0.3], matrix[covariance], 0.6)
    table = series()
    np.testing.assert_allclose(population.log_density(table), log_densities(population, table))
    mean, spread = population.effects(table)
    for subject in range(len(table)):
        z, residual, marginal = dense(population, table, subject)
        gain = population.covariance @ z.T @ np.linalg.inv(marginal)
        np.testing.assert_allclose(mean[subject], gain @ residual, atol=1e-12)
        left = population.covariance - gain @ z @ population.covariance
        np.testing.assert_allclose(spread[subject], left, atol=1e-12)


def test_outputs_have_a_noise_each_and_independent_ones_factor():
    table = outputs_table()
    own = Population(np.arange(4.0), np.diag([1.0, 2.0, 0.5, 0.7]), [0.4, 1.1])
    found = own.log_density(table)
    np.testing.assert_allclose(found, log_densities(own, table))
    apart = np.zeros(len(table))
    for output in (0, 1):
        rows, part = table.output_codes == output, slice(2 * output, 2 * output + 2)
        one = Population(own.coefficients[part], own.covariance[part, part], own.noise[output])
        names = table.codes[rows]
        sub = LongTable(table.y[rows], table.fixed[rows, part], table.random[rows, part], names)
        apart[sub.names.astype(int)] += one.log_density(sub)
    np.testing.assert_allclose(found, apart)


def test_blup_is_ridge_regression_with_its_limits():
    table = series(1, seed=4).take([0])
    x, y, penalty, noise = table.random, table.y, 0.7, 0.5
    assert len(y) > 2
    ridge = Ridge(alpha=noise**2 * penalty, fit_intercept=False).fit(x, y)
    found = coefficients(Population(np.zeros(2), np.eye(2) / penalty, noise), table)[0]
    np.testing.assert_allclose(found, ridge.coef_, atol=1e-10)
    least_squares = LinearRegression(fit_intercept=False).fit(x, y).coef_
    vague = Population([3.0, -2.0], 1e8 * np.eye(2), noise)
    np.testing.assert_allclose(coefficients(vague, table)[0], least_squares, atol=1e-6)
    sure = Population([3.0, -2.0], np.zeros((2, 2)), noise)
    np.testing.assert_array_equal(coefficients(sure, table)[0], [3.0, -2.0])


def test_expected_error_is_that_of_simulation_and_the_least():
    times, later = np.array([0.0, 1.0, 2.5, 3.0]), np.array([4.0, 5.0])
    people = Population([1.0, -1.0], [[1.0, 0.6], [0.6, 2.0]], np.sqrt(0.5))
    seen, new = (np.stack([np.ones(len(t)), t], axis=1) for t in (times, later))
    exact = people.expected_error(seen, new)
    assert exact == pytest.approx(2.4887, abs=5e-5)
    rng, size = np.random.default_rng(0), 20_000
    own = people.coefficients + rng.normal(size=(size, 2)) @ people.root.T
    y = own @ seen.T + np.sqrt(0.5) * rng.normal(size=(size, 4))
    target = own @ new.T + np.sqrt(0.5) * rng.normal(size=(size, 2))
    table = LongTable.from_times(y.ravel(), np.tile(times, size), np.repeat(np.arange(size), 4))

    def errors(found):
        return ((found @ new.T - target) ** 2).sum(axis=1)

    blup = errors(coefficients(people, table))
    assert abs(blup.mean() - exact) < 4 * blup.std() / np.sqrt(size)
    gram = seen.T @ seen
    ridge = {p: y @ seen @ np.linalg.inv(gram + p * np.eye(2)) for p in np.linspace(0, 1, 21)}
    by_penalty = {p: errors(found).mean() for p, found in ridge.items()}
    assert min(by_penalty.values()) == pytest.approx(2.65, abs=0.04)
    assert by_penalty[0.0] == pytest.approx(2.745, abs=0.04)
    assert blup.mean() < min(by_penalty.values())
    mean = Population(people.coefficients, np.zeros((2, 2)), people.noise)
    prior = np.trace(new.T @ new @ people.covariance) + 1.0
    assert prior == pytest.approx(95.8)
    assert errors(coefficients(mean, table)).mean() == pytest.approx(prior, rel=0.03)


def test_expected_error_of_one_subject_and_its_average():
    people, rng = IMPAIRED, np.random.default_rng(1)
    seen, new = rng.normal(size=(4, 2)), rng.normal(size=(3, 2))
    own, size = np.array([1.5, -0.5]), 20_000
    y = (people.coefficients + own) @ seen.T + 0.6 * rng.normal(size=(size, 4))
    flat, subject = np.tile(seen, (size, 1)), np.repeat(np.arange(size), 4)
    found = coefficients(people, LongTable(y.ravel(), flat, flat, subject))
    missed = (found - people.coefficients - own) @ new.T - 0.6 * rng.normal(size=(size, 3))
    missed = (missed**2).sum(axis=1)
    exact = people.expected_error(seen, new, own)
    assert abs(missed.mean() - exact) < 4 * missed.std() / np.sqrt(size)
    # quadratic in the effects: the average over their law needs its second moments only
    axes = np.sqrt(2) * people.root.T
    by_axis = [people.expected_error(seen, new, s * a) for a in axes for s in (-1, 1)]
    assert np.mean(by_axis) == pytest.approx(people.expected_error(seen, new))


def test_mixture_has_the_exact_posterior_mean():
    table = series(3, seed=2)
    mixture = MixPrior((NORMAL, IMPAIRED), [3.0, 1.0])
    found, rng, size = mixture.coefficients(table), np.random.default_rng(0), 200_000
    classes = rng.random(size) < 0.25
    drawn = np.where(classes[:, None], IMPAIRED.coefficients, NORMAL.coefficients)
    white = rng.normal(size=(size, 2))
    drawn = drawn + np.where(classes[:, None], white @ IMPAIRED.root.T, white @ NORMAL.root.T)
    for subject in range(len(table)):
        rows = table.codes == subject
        log_weight = multivariate_normal.logpdf(
            table.y[rows] - drawn @ table.random[rows].T, cov=0.36 * np.eye(rows.sum())
        )
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        mean = weight @ drawn
        error = np.sqrt(weight**2 @ (drawn - mean) ** 2)
        assert (np.abs(found[subject] - mean) < 4 * error).all()
        assert (error < 0.02).all()


def test_mixture_collapses_to_its_parts():
    table = series()
    alone = MixPrior((NORMAL, NORMAL), [0.2, 0.8])
    np.testing.assert_allclose(alone.coefficients(table), coefficients(NORMAL, table))
    np.testing.assert_allclose(alone.probabilities(table), np.tile([0.2, 0.8], (len(table), 1)))
    away = Population(NORMAL.coefficients + 1e3, NORMAL.covariance, NORMAL.noise)
    np.testing.assert_allclose(MixPrior((NORMAL, away)).probabilities(table)[:, 0], 1.0)


@pytest.mark.parametrize("outputs", [False, True])
def test_slopes_of_the_likelihood(outputs):
    table = outputs_table() if outputs else series(12, population=NORMAL)
    size, kinds = table.random.shape[1], table.num_outputs
    lower = np.tril_indices(size)

    def at(point):
        root = np.zeros((size, size))
        root[lower] = point[:-kinds]
        return estimation._profile(table.sums, root, np.exp(point[-kinds:]))

    def slope(point):
        _, root, noise = at(point)
        return np.concatenate([root[lower], noise])

    point = np.random.default_rng(0).normal(size=len(lower[0]) + kinds)
    error = check_grad(lambda p: at(p)[0], slope, point)
    assert error < 1e-5 * np.linalg.norm(slope(point))


def test_estimates_are_those_of_statsmodels():
    mixed = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    table = series(40, population=NORMAL)
    found = estimate_population(table)
    peer = mixed.MixedLM(table.y, table.fixed, table.codes, table.random).fit(reml=False)
    assert found.log_density(table).sum() == pytest.approx(peer.llf, abs=1e-6)
    np.testing.assert_allclose(found.coefficients, peer.fe_params, atol=1e-4)
    np.testing.assert_allclose(found.covariance, peer.cov_re, atol=1e-3)


def test_estimates_of_several_outputs_are_a_maximum():
    table, rng = outputs_table(), np.random.default_rng(0)
    found = estimate_population(table)
    best = found.log_density(table).sum()
    for _ in range(30):
        near = Population(
            found.coefficients + 0.01 * rng.normal(size=4),
            (turn := np.eye(4) + 0.01 * rng.normal(size=(4, 4))) @ found.covariance @ turn.T,
            found.noise * np.exp(0.01 * rng.normal(size=2)),
        )
        assert near.log_density(table).sum() < best
    assert abs(found.noise - [0.3, 1.3]).max() < 0.15


def test_estimates_follow_the_units_of_time():
    table = series(40, population=NORMAL)
    names = table.names[table.codes]
    raw = LongTable.from_times(table.y, 80 + 10 * table.times, names)
    one, other = estimate_population(table), estimate_population(raw)
    np.testing.assert_allclose(other.log_density(raw), one.log_density(table), atol=1e-4)
    total = one.log_density(table).sum()
    assert other.log_density(raw).sum() == pytest.approx(total, abs=1e-6)


def test_a_singular_estimate_is_found():
    flat = Population([0.4, -0.3], [[1.0, 0.0], [0.0, 0.0]], 0.6)
    found = estimate_population(series(25, seed=6, population=flat))
    correlation = found.covariance / np.sqrt(np.outer(*[np.diag(found.covariance)] * 2))
    assert np.linalg.eigvalsh(correlation)[0] < 1e-6
    np.testing.assert_allclose(found.root @ found.root.T, found.covariance, atol=1e-12)


def test_rows_that_determine_no_covariance_are_pointed_out():
    rng = np.random.default_rng(0)
    table = LongTable.from_times(rng.normal(size=40), np.tile([0.0, 1.0], 20), np.arange(40) // 2)
    with pytest.warns(sb.SideBayesWarning, match="table leaves the covariance .* undetermined"):
        estimate_population(table)


def test_without_effects_it_is_pooled_least_squares():
    table = series(40, population=NORMAL)
    found = estimate_population(table, individual=False)
    fitted = LinearRegression(fit_intercept=False).fit(table.fixed, table.y)
    np.testing.assert_allclose(found.coefficients, fitted.coef_)
    residual = table.y - fitted.predict(table.fixed)
    assert found.noise[0] == pytest.approx(np.sqrt(np.mean(residual**2)))


def test_a_fit_is_a_population():
    table = series(40, population=NORMAL)
    names = table.names[table.codes]
    fit = sb.fit(
        "mixed_effects",
        table.y,
        table.fixed,
        table.random,
        names,
        form="marginal",
        progress=False,
    )
    found, peer = Population.of(fit), estimate_population(table)
    np.testing.assert_allclose(found.coefficients, peer.coefficients, atol=1e-4)
    np.testing.assert_allclose(found.covariance, peer.covariance, atol=1e-3)
    np.testing.assert_allclose(found.effects(table)[0], fit.effects()["mean"].to_numpy(), atol=1e-6)


def test_columns_in_another_order_are_refused():
    table = series(12, seed=4)
    columns = pd.DataFrame(table.fixed, columns=["level", "slope"])
    rows = table.y, table.names[table.codes]
    named, turned = (
        LongTable(rows[0], one, one, rows[1]) for one in (columns, columns[["slope", "level"]])
    )
    population = estimate_population(named)
    np.testing.assert_array_equal(population.effects(named)[0], population.effects(table)[0])
    with pytest.raises(ValueError, match=r"has the (fixed|random) columns \['slope', 'level'\]"):
        population.effects(turned.take([0, 1]))
    with pytest.raises(ValueError, match=r"populations\[1\] has the .* columns"):
        MixPrior([population, estimate_population(turned)])


def test_roots():
    for matrix in (NORMAL.covariance, np.ones((3, 3)), np.zeros((2, 2)), np.diag([1e8, 1e-8])):
        root = triangular_root(matrix)
        np.testing.assert_allclose(root @ root.T, matrix, atol=1e-12 * (np.abs(matrix).max() + 1))
        assert (np.triu(root, 1) == 0).all()
        assert (np.diag(root) >= 0).all()
    np.testing.assert_allclose(
        triangular_root(NORMAL.covariance), np.linalg.cholesky(NORMAL.covariance)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Population([0.0], [[1.0, 0.0]], 1.0), "symmetric"),
        (lambda: Population([0.0], [[-1.0]], 1.0), "positive semidefinite"),
        (lambda: Population([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]], 1.0), "positive semidefinite"),
        (lambda: Population([0.0], [[1.0]], 0.0), "noise"),
        (lambda: Population([np.nan], [[1.0]], 1.0), "coefficients"),
        (lambda: Population([0.0], [[1.0]], 1.0, ["age"]), r"columns = \['age'\]; pass a mapping"),
        (lambda: NORMAL.log_density(series(degree=2)), "3 fixed and 3 random"),
        (lambda: NORMAL.log_density(np.ones((3, 2))), "LongTable"),
        (lambda: NORMAL.expected_error(np.ones((2, 3)), np.ones((1, 2))), "seen"),
        (lambda: MixPrior((NORMAL,), [-1.0]), "weights"),
        (lambda: MixPrior((NORMAL, Population([0.0], [[1.0]], 1.0))), "same columns"),
        (lambda: MixPrior("ab"), "populations"),
        (lambda: Population.of(3), "pass a Fit"),
        (lambda: estimate_population(np.ones(3)), "LongTable"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_an_offset_of_the_rows_is_no_reason_to_refuse_them():
    rng, subject = np.random.default_rng(0), np.repeat(np.arange(20), 4)
    times, own = np.tile([0.0, 1.0, 2.0, 3.0], 20), rng.normal(size=20)[subject]
    y = own + 0.3 * rng.normal(size=80)
    plain, moved = (
        estimate_population(LongTable.from_times(y + o, times, subject)) for o in (0.0, 3e6)
    )
    np.testing.assert_allclose(moved.noise, plain.noise, rtol=1e-4)
    np.testing.assert_allclose(moved.covariance, plain.covariance, atol=1e-3)


def test_rows_that_tell_no_noise_are_refused():
    times, names = [0.0, 1.0, 2.0, 3.0], ["a", "a", "b", "b"]
    for offset in (0.0, 3e5, 1e12):
        line = LongTable.from_times(offset + np.array([1.0, 2.0, 3.0, 4.0]), times, names)
        with pytest.raises(
            ValueError, match="table: .* fits y exactly.*; give fewer fixed columns"
        ):
            estimate_population(line)
    with pytest.raises(ValueError, match="fits y exactly"):
        estimate_population(LongTable.from_times(np.full(4, 0.1), times, names))
    with pytest.raises(ValueError, match="depend on each other"):
        estimate_population(LongTable.from_times([1.0, 2.0, 4.0, 7.0], times, names, degree=4))
    rng, subject = np.random.default_rng(0), np.repeat(np.arange(20), 3)
    own, times = rng.normal(size=(2, 20))[:, subject], np.tile([0.0, 1.0, 2.0], 20)
    with pytest.raises(ValueError, match="give fewer random"):
        estimate_population(LongTable.from_times(own[0] + own[1] * times, times, subject))
