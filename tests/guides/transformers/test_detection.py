"""Classifiers of series: likelihood ratios, Fisher features, and cross-validation by subject."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.scipy.stats import multivariate_normal
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, LeaveOneOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import sidebayes as sb
from sidebayes import FisherFeatures, LikelihoodRatio, LongTable, MixPrior, Population
from sidebayes.data.simulators import decline_populations
from tests.support.series import IMPAIRED, NORMAL, dense, log_densities, series, two_classes

BOTH = [NORMAL, IMPAIRED]
SHARE = np.array([0.7, 0.3])


def gram(features):
    return features @ features.T


def unscaled(design, table, populations=BOTH, **options):
    """Features of a design, not divided by their length, of classes with the shares above."""
    size = 10 * len(table)
    labels = np.arange(size) >= SHARE[0] * size
    trained = series(size, seed=9)
    found = FisherFeatures(design, populations=populations, **options).fit(trained, labels)
    return found.transform(table) * found.scale_


def vech_score(population, gamma):
    """Score of the mean and of the lower triangle of the covariance at effects, by hand."""
    inverse = np.linalg.inv(population.covariance)
    white = inverse @ (gamma - population.coefficients)
    slope = (np.outer(white, white) - inverse) / 2
    return np.array([*white, slope[0, 0], 2 * slope[1, 0], slope[1, 1]])


def vech_information(population):
    """Closed form of the information in these coordinates."""
    inverse = np.linalg.inv(population.covariance)
    units = np.array([[[1, 0], [0, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 1]]])
    out = np.zeros((5, 5))
    out[:2, :2] = inverse
    out[2:, 2:] = 0.5 * np.einsum("ij,ajk,kl,bli->ab", inverse, units, inverse, units)
    return out


def test_labels_whose_index_is_of_another_order_are_refused():
    table, labels = two_classes()
    named = pd.Series(labels, index=table.names)
    LikelihoodRatio(populations=BOTH).fit(table, named)
    with pytest.raises(ValueError, match="labels has .* by its index"):
        LikelihoodRatio(populations=BOTH).fit(table, named[::-1])


def test_minus_one_is_a_class_of_subjects():
    table, labels = two_classes()
    partly = np.where(np.arange(len(labels)) % 3 == 0, -1, labels)
    with pytest.raises(
        ValueError, match="labels has 3 classes; expected two; -1 is a class here, so leave"
    ):
        LikelihoodRatio(populations=BOTH).fit(table, partly)


def test_a_class_of_as_few_subjects_as_effects_is_said():
    table, _ = two_classes()
    labels = np.arange(len(table)) == np.bincount(table.codes).argmax()
    with pytest.warns(sb.SideBayesWarning, match="class True has 1 subject for 2 random effects"):
        LikelihoodRatio().fit(table, labels)
    LikelihoodRatio(individual=False).fit(table, labels)
    with pytest.warns(sb.SideBayesWarning, match="table has 2 subjects for 2 random effects"):
        sb.estimate_population(table.take([0, 1]))


def test_likelihood_ratio_and_its_decisions():
    table, labels = two_classes()
    found = LikelihoodRatio(populations=BOTH, costs=(1.0, 5.0)).fit(table, labels)
    ratio = log_densities(IMPAIRED, table) - log_densities(NORMAL, table)
    np.testing.assert_allclose(found.decision_function(table), ratio)
    joint = np.stack([log_densities(one, table) for one in BOTH], axis=1) + np.log(0.5)
    np.testing.assert_allclose(
        np.log(found.predict_proba(table)), joint - logsumexp(joint, axis=1)[:, None]
    )
    np.testing.assert_array_equal(found.predict(table), ratio > -np.log(5.0))
    np.testing.assert_allclose(found.mixture().probabilities(table), found.predict_proba(table))


def test_without_random_effects_both_ratios_are_the_same():
    table, labels = two_classes()
    pooled = LikelihoodRatio(individual=False).fit(table, labels)
    flat = [Population(p.coefficients, np.zeros((2, 2)), p.noise) for p in pooled.populations_]
    given = LikelihoodRatio(populations=flat).fit(table, labels)
    np.testing.assert_allclose(given.decision_function(table), pooled.decision_function(table))
    by_row = np.zeros(len(table))
    for sign, one in zip((-1, 1), flat, strict=True):
        residual = (table.y - table.fixed @ one.coefficients) / one.noise[0]
        np.add.at(by_row, table.codes, -sign * (np.log(one.noise[0]) + residual**2 / 2))
    np.testing.assert_allclose(pooled.decision_function(table), by_row)


def test_cross_validation_leaves_subjects_out():
    table, labels = two_classes(8)
    rule = LikelihoodRatio(individual=False)
    found = cross_val_predict(rule, table, labels, cv=LeaveOneOut(), method="decision_function")
    for out in (0, 11):
        rest = np.delete(np.arange(16), out)
        own = clone(rule).fit(table.take(rest), labels[rest])
        assert found[out] == own.decision_function(table.take([out]))[0]


def test_pipelines_and_searches_take_long_tables():
    table, labels = two_classes(20)
    machine = make_pipeline(FisherFeatures(populations=BOTH), SVC(kernel="linear"))
    grid = {"fisherfeatures__design": ["B", "C", "marginalised"], "svc__C": [1.0, 10.0]}
    search = GridSearchCV(machine, grid, scoring="roc_auc", cv=3).fit(table, labels)
    assert search.best_score_ > 0.7
    assert search.predict(table).shape == (40,)


def test_single_component_kernel_is_the_fisher_kernel():
    rng = np.random.default_rng(0)
    effects = rng.normal(size=(6, 2))
    scores = np.stack([vech_score(IMPAIRED, one) for one in effects])
    kernel = scores @ np.linalg.inv(vech_information(IMPAIRED)) @ scores.T
    u = np.linalg.solve(IMPAIRED.root, (effects - IMPAIRED.coefficients).T).T
    inner, square = u @ u.T, (u**2).sum(axis=1)
    closed = inner + 0.5 * (inner**2 - square[:, None] - square + 2)
    np.testing.assert_allclose(kernel, closed, atol=1e-10)
    # effects that are all but observed: many exact rows each
    x = np.tile(np.array([[1.0, 0.0], [0.0, 1.0]]), (6, 1))
    sure = Population(IMPAIRED.coefficients, IMPAIRED.covariance, 1e-5)
    table = LongTable(effects.ravel(), x, x, np.repeat(np.arange(6), 2))
    found = gram(unscaled("C", table, [NORMAL, sure]))
    np.testing.assert_allclose(found, closed, atol=1e-6)


@pytest.fixture(scope="module")
def scores():
    """Scores of the log density of each subject in all parameters but the noise, by `jax.grad`."""
    table = series()
    rows, cols = np.tril_indices(2)

    def log_density(point, z, y):
        def part(mean, lower, noise):
            covariance = jnp.zeros((2, 2)).at[rows, cols].set(lower).at[cols, rows].set(lower)
            marginal = z @ covariance @ z.T + noise**2 * jnp.eye(len(y))
            return multivariate_normal.logpdf(y, z @ mean, marginal)

        zero = part(point[1:3], point[3:6], NORMAL.noise[0])
        one = part(point[6:8], point[8:11], IMPAIRED.noise[0])
        return jnp.logaddexp(jnp.log1p(-point[0]) + zero, jnp.log(point[0]) + one)

    start = np.concatenate(
        [SHARE[1:], *([*p.coefficients, *p.covariance[rows, cols]] for p in BOTH)]
    )
    with jax.enable_x64(True):
        found = []
        for subject in range(len(table)):
            z, residual, _ = dense(NORMAL, table, subject)
            y = residual + z @ NORMAL.coefficients
            # rows beyond the subject's own say nothing: one program serves all
            pad = 5 - len(y)
            z, y = np.pad(z, ((0, pad), (0, 0))), np.pad(y, (0, pad))
            found.append(jax.jit(jax.grad(log_density))(start, z, y))
    return table, np.asarray(found)


def test_expected_scores_are_gradients_and_design_b_their_kernel(scores):
    table, by_gradient = scores
    prob = MixPrior(tuple(BOTH), SHARE).probabilities(table)
    share = prob[:, 1] / SHARE[1] - prob[:, 0] / SHARE[0]
    np.testing.assert_allclose(by_gradient[:, 0], share, atol=1e-8)
    information = np.zeros((11, 11))
    information[0, 0] = 1 / SHARE.prod()
    for m, part in enumerate((slice(1, 6), slice(6, 11))):
        information[part, part] = SHARE[m] * vech_information(BOTH[m])
    kernel = by_gradient @ np.linalg.inv(information) @ by_gradient.T
    np.testing.assert_allclose(gram(unscaled("B", table)), kernel, atol=1e-8)
    # the printed form, less the one that a share which is not free takes away
    psi = [unscaled("C", table, [one, one]) for one in BOTH]
    terms = [np.outer(r, r) * (1 + gram(p)) / s for r, p, s in zip(prob.T, psi, SHARE, strict=True)]
    np.testing.assert_allclose(kernel, sum(terms) - 1, atol=1e-8)
    marginal = sum(np.outer(r, r) * gram(p) for r, p in zip(prob.T, psi, strict=True))
    np.testing.assert_allclose(gram(unscaled("marginalised", table)), marginal, atol=1e-10)


def test_design_a_has_the_information_of_effects_without_labels(scores):
    table, by_gradient = scores
    drawn, rng, size = [], np.random.default_rng(0), 40_000
    for one, share in zip(BOTH, SHARE, strict=True):
        white = rng.normal(size=(int(size * share), 2))
        drawn.append(one.coefficients + white @ one.root.T)
    effects = np.concatenate(drawn)
    log_density = []
    for one in BOTH:
        u = np.linalg.solve(one.root, (effects - one.coefficients).T)
        log_density.append(-0.5 * (u**2).sum(axis=0) - np.log(np.diag(one.root)).sum())
    joint = np.stack(log_density, axis=1) + np.log(SHARE)
    prob = np.exp(joint - logsumexp(joint, axis=1)[:, None])
    score = [prob[:, 1] / SHARE[1] - prob[:, 0] / SHARE[0]]
    for m, one in enumerate(BOTH):
        inverse = np.linalg.inv(one.covariance)
        white = (effects - one.coefficients) @ inverse
        slope = (white[:, :, None] * white[:, None, :] - inverse) / 2
        columns = [*white.T, slope[:, 0, 0], 2 * slope[:, 1, 0], slope[:, 1, 1]]
        score += [prob[:, m] * column for column in columns]
    score = np.stack(score, axis=1)
    information = score.T @ score / size
    kernel = by_gradient @ np.linalg.solve(information, by_gradient.T)
    found = gram(unscaled("A", table))
    np.testing.assert_allclose(found, kernel, rtol=0.1, atol=0.1 * np.abs(kernel).max())
    # labels that are not seen leave less information
    joint = gram(unscaled("B", table))
    assert (np.diag(found) >= 0.98 * np.diag(joint)).all()
    assert (np.diag(found) > 1.2 * np.diag(joint)).any()


def test_design_a_of_one_component_is_design_c():
    table = series()
    found = gram(unscaled("A", table, [IMPAIRED, IMPAIRED]))
    target = gram(unscaled("C", table))
    np.testing.assert_allclose(found, target, atol=0.03 * np.abs(target).max())


def test_design_a_of_a_singular_covariance_is_design_b():
    flat = Population([0.4, -0.3], [[1.0, 0.0], [0.0, 0.0]], 0.6)
    table, both = series(), [flat, IMPAIRED]
    found, target = (gram(unscaled(design, table, both)) for design in "AB")
    np.testing.assert_allclose(found, target, atol=0.03 * np.abs(target).max())


@pytest.mark.parametrize("design", ["A", "B", "C", "marginalised"])
def test_kernels_do_not_depend_on_units(design):
    table = series()
    names = table.names[table.codes]
    raw = LongTable.from_times(table.y, 80 + 10 * table.times, names)
    basis = np.array([[1.0, -8.0], [0.0, 0.1]])
    moved = [
        Population(basis @ p.coefficients, basis @ p.covariance @ basis.T, p.noise) for p in BOTH
    ]
    found, target = gram(unscaled(design, raw, moved)), gram(unscaled(design, table))
    tolerance = 0.05 if design == "A" else 1e-7  # of Monte Carlo
    np.testing.assert_allclose(found, target, atol=tolerance * np.abs(target).max())


def test_a_subject_without_information_is_at_the_origin():
    nothing = LongTable([0.7], [[1.0, 0.0]], [[0.0, 0.0]], ["a"])
    np.testing.assert_array_equal(unscaled("C", nothing), np.zeros((1, 5)))


def test_features_are_scaled_on_the_training_subjects():
    table, labels = two_classes(15)
    found = FisherFeatures("C").fit(table, labels)
    assert (found.transform(table) ** 2).sum(axis=1).mean() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, y: LikelihoodRatio().fit(np.ones((16, 2)), y), "LongTable"),
        (lambda t, y: LikelihoodRatio().fit(t, y[:3]), "one per subject"),
        (lambda t, y: LikelihoodRatio().fit(t, np.zeros(16)), "1 classes"),
        (lambda t, y: LikelihoodRatio(costs=(1.0, -1.0)).fit(t, y), "costs"),
        (lambda t, y: LikelihoodRatio(populations=[NORMAL]).fit(t, y), "populations"),
        (lambda t, y: FisherFeatures("D").fit(t, y), "design"),
        (lambda t, y: FisherFeatures("A", num_draws=2, populations=BOTH).fit(t, y), "num_draws"),
        (lambda t, y: t.take([0, 0]), "twice"),
        (lambda t, y: t.take([99]), "16 samples"),
        (lambda t, y: t.by_subject(np.arange(len(t.y))), "within subject"),
        (lambda t, y: t.by_subject(y), "one per row"),
    ],
)
def test_bad_input_is_named(call, message):
    table, labels = two_classes(8)
    with pytest.raises((TypeError, ValueError), match=message):
        call(table, labels)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": [1.0, np.nan]}, r"y\[1\] = nan"),
        ({"fixed": np.ones(2)}, "fixed has shape"),
        ({"random": np.ones((3, 1))}, "random has shape"),
        ({"subjects": ["a", None]}, "no subject"),
        ({"outputs": [[1.0, 1.0], [0.0, 1.0]]}, "a single 1 per row"),
        ({"subjects": []}, "empty"),
    ],
)
def test_tables_are_checked(changed, message):
    good = {"y": [1.0, 2.0], "fixed": np.ones((2, 1)), "random": np.ones((2, 1))}
    with pytest.raises((TypeError, ValueError), match=message):
        LongTable(**({"subjects": ["a", "b"]} | good | changed))


def test_samples_come_in_the_order_asked_for():
    table = series()
    some = table.take([4, 1])
    assert some.names.tolist() == ["s004", "s001"]
    np.testing.assert_allclose(NORMAL.log_density(some), NORMAL.log_density(table)[[4, 1]])
    labels = np.char.upper(table.names)[table.codes]
    np.testing.assert_array_equal(table.by_subject(labels), np.char.upper(table.names))


def test_simulated_decline_has_the_populations_it_is_drawn_from():
    frame = sb.simulate_decline("tapping_other", 1500, 1500, seed=3)
    assert frame.groupby("subject").size().between(4, 12).all()
    assert frame["age"].between(67, 101).all()
    normal, impaired = decline_populations("tapping_other")
    for label, one in enumerate((normal, impaired)):
        own = frame[frame["impaired"] == label]
        table = LongTable.from_times(own["value"], own["age"], own["subject"], center=80, unit=10)
        found = sb.estimate_population(table)
        scale = np.sqrt(np.diag(one.covariance))
        assert (np.abs(found.coefficients - one.coefficients) < 0.15 * scale).all()
        np.testing.assert_allclose(found.noise, one.noise, rtol=0.03)
        error = np.abs(found.covariance - one.covariance)
        assert (error < 0.15 * np.outer(scale, scale)).all()
    heavy = sb.simulate_decline("steps", 50, 0, df=3.0)
    assert heavy["value"].notna().all()
    with pytest.raises(ValueError, match="measure"):
        sb.simulate_decline("speed")
    with pytest.raises(ValueError, match="df"):
        sb.simulate_decline(df=2)


@pytest.mark.parametrize(
    ("measure", "area"),
    [
        ("seconds", 0.760),
        ("steps", 0.772),
        ("tapping_dominant", 0.861),
        ("tapping_other", 0.729),
        ("delayed_recall", 0.835),
        ("logical_memory", 0.791),
    ],
)
def test_areas_of_simulated_decline(measure, area):
    """Against those of an independent generator; random effects help on every measure."""
    frame = sb.simulate_decline(measure, 3000, 3000, seed=7)
    table = LongTable.from_times(frame["value"], frame["age"], frame["subject"], center=80, unit=10)
    labels = table.by_subject(frame["impaired"])
    known = LikelihoodRatio(populations=list(decline_populations(measure)))
    found, simplified = (
        roc_auc_score(labels, rule.fit(table, labels).decision_function(table))
        for rule in (known, LikelihoodRatio(individual=False))
    )
    assert found == pytest.approx(area, abs=0.02)
    assert found > simplified
