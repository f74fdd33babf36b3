"""Frequencies of classes may change, and components may move: what the default makes of either."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import sidebayes.guides.domain_adaptation as learning
from scipy.stats import multivariate_normal
from sidebayes.models.blocks.classes.source_components import SourceComponents, resolve_shift
from sidebayes.models.blocks.classes.source_worth import source_worth, trusted
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from threadpoolctl import threadpool_info

import sidebayes as sb
from sidebayes import EM, ShiftPrior, SourceMixture
from sidebayes.results.base.other_rows import compare_halves

CENTRES = np.array([[0.0, 0, 0], [2.5, 0, 0], [0, 2.5, 0]])
ROOT = np.array([[1.0, 0.3, 0.0], [0.0, 1.0, -0.2], [0.0, 0.0, 0.9]])
SOURCE = SourceMixture(np.full(3, 1 / 3), CENTRES, np.stack([ROOT @ ROOT.T] * 3), np.arange(3))


def target(shares, shift=0.0, size=400, seed=0):
    """Rows of a target, their classes, and those of the first twenty."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(3, size, p=shares)
    x = CENTRES[truth] + rng.normal(size=(size, 3)) @ ROOT.T + shift
    return x, truth, np.where(np.arange(size) < 20, truth, -1)


def on_a_line(sep, by, size, width, seed):
    """Two Gaussians, learned and moved along the line between them, twenty rows of known class."""
    rng, line = np.random.default_rng(seed), np.eye(width)[0]
    y, truth = np.arange(400) % 2, rng.integers(2, size=size)
    first = np.outer(sep * y, line) + rng.normal(size=(400, width))
    x = np.outer(sep * truth + by, line) + rng.normal(size=(size, width))
    known = PartialLabels(np.where(np.arange(size) < 20, truth, -1))
    return sb.fit_source(first, y, num_components=1), x, known


@pytest.mark.parametrize("seed", range(3))
def test_frequencies_alone_hold_the_components_and_moves_do_not(seed):
    still, few, moved = (
        source_worth(SOURCE, x, PartialLabels(known))
        for x, _, known in (
            target(np.full(3, 1 / 3), seed=seed),
            target([0.6, 0.3, 0.1], seed=seed),
            target(np.full(3, 1 / 3), [0.8, 0.8, 0.8], seed=seed),
        )
    )
    assert still.means[0] == few.means[0] == 100 * 400
    assert still.weights > 300
    assert few.weights < 20
    assert few.reweighted > few.moved
    assert moved.means[0] < 10
    assert moved.weights <= 3 * moved.means[0]
    unit = np.array([1e-4, 1.0, 1e5])
    scaled = SourceMixture(
        SOURCE.weights, CENTRES * unit, SOURCE.covariance * unit[:, None] * unit, np.arange(3)
    )
    x, _, known = target([0.6, 0.3, 0.1], seed=seed)
    again = source_worth(scaled, x * unit, PartialLabels(known))
    assert again.weights == few.weights
    assert again.moved == pytest.approx(few.moved, rel=1e-4)


@pytest.mark.parametrize(("sep", "size"), [(2.0, 100), (3.0, 100), (2.0, 400), (3.0, 400)])
def test_a_move_along_the_line_between_classes_is_no_change_of_frequencies(sep, size):
    """Frequencies could take it up: .75 of the rows would be right, .79 by the source as it is."""
    source, x, known = on_a_line(sep, 0.5, size, 1, 0)
    found = source_worth(source, x, known)
    assert found.weights >= found.means[0]  # moved, or held
    assert size < 400 or found.means[0] < 50


def test_the_density_of_moments_is_that_of_their_law():
    """One component per class, no known class; by the joint normal, written out for a worth of either."""
    x, _, _ = target([0.6, 0.3, 0.1])
    found = source_worth(SOURCE, x)
    middle = CENTRES.mean(axis=0)
    off = CENTRES - middle
    inner = ROOT @ ROOT.T
    root = np.linalg.cholesky(inner + off.T @ off / 3)
    z, m = (np.linalg.solve(root, rows.T).T for rows in (x - middle, off))
    axes = np.linalg.svd(m)[2][:2].T
    v = np.linalg.solve(root, np.linalg.solve(root, inner).T)
    g = np.hstack([z, (z @ axes) ** 2])
    each = np.hstack([m, (m @ axes) ** 2 + np.diag(axes.T @ v @ axes)])
    normal = np.diag([1.0, 1, 1, 2, 2])
    noise = 2 * (5 * normal + 400 * np.cov(g.T, bias=True)) / 405 / 400
    flat = each.T @ (np.eye(3) / 3 - 1 / 9) @ each
    slopes = [np.vstack([np.eye(3), 2 * (m[k] @ axes)[:, None] * axes.T]) / 3 for k in range(3)]
    moves = sum(h @ v @ h.T for h in slopes)
    spreads = np.zeros((5, 5))
    spreads[3:, 3:] = 2 * (axes.T @ v @ axes) ** 2 / 3

    def density(total):
        apart = g.mean(axis=0) - each.mean(axis=0)
        return -0.5 * (apart @ np.linalg.solve(total, apart) + np.linalg.slogdet(total)[1])

    spare, kappa = (10.0 ** np.arange(low, np.log10(4e4), 0.25) for low in (-1, -2))
    nothing = density(noise)
    reweighted = max(density(noise + flat / (a + 1)) for a in spare) - nothing
    moved = max(density(noise + moves / k + spreads / (k + 7)) for k in kappa) - nothing
    assert found.reweighted == pytest.approx(reweighted, abs=1e-5)
    assert found.moved == pytest.approx(moved, abs=1e-5)


def test_the_default_is_the_reweighted_source_where_frequencies_alone_have_changed():
    """Shares of .05, .9, .05: means that move with them lose rows."""
    x, truth, known = target([0.05, 0.9, 0.05], seed=1)
    fit = sb.fit(
        "domain_adaptation", x, known, source=SOURCE, engine=EM(num_restarts=1), progress=False
    )
    assert fit.run.options["weights_worth"] < 3
    weights = SOURCE.weights
    ratio = np.stack([multivariate_normal(m, SOURCE.covariance[0]).pdf(x) for m in CENTRES], 1)
    ratio = np.where((known >= 0)[:, None] & (np.arange(3) != known[:, None]), 0, ratio)
    for _ in range(200):  # EM of the frequencies, densities held
        joint = ratio * weights
        weights = (joint / joint.sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(fit.params["weights"], weights, atol=0.01)
    right = (fit.class_probabilities().argmax(axis=1) == truth)[20:].mean()
    assert right > (SOURCE.predict(x) == truth)[20:].mean() + 0.05
    with fit.run.precision:
        assert compare_halves(fit) is None


def test_what_neither_moments_nor_classes_decide_is_said():
    source, x, known = on_a_line(3.0, 0.5, 100, 2, 31)
    found = source_worth(source, x, known)
    assert found.is_doubtful
    values = {
        "mixing_weights": source.weights,
        "location": source.mean,
        "spread": source.covariance,
    }
    values = {role: one[None, None] for role, one in values.items()}
    for worth, said in ((None, True), (found.means, True), (np.full(2, 50.0), False)):
        prior = resolve_shift("source", source, x, worth, known=known)
        remark = SourceComponents(source, "full", prior, x, known).remark(values)
        assert ("about as well as a move of the components" in (remark or "")) == said


def test_doubt_is_about_the_worth_that_was_chosen():
    """Known classes that are likely to be wrong say nothing about the means, there as here."""
    source, x, known = on_a_line(3.0, 0.5, 100, 2, 31)
    prior = resolve_shift("source", source, x, known=known, strength=1.0)
    block = SourceComponents(source, "full", prior, x, known, 1.0)
    assert block.trusted is None
    np.testing.assert_allclose(prior.worth, source_worth(source, x, block.trusted).means)
    assert SourceComponents(source, "full", prior, x, known).trusted is block.known


def test_worths_are_the_same_inside_compiled_programs():
    x, _, known = target([0.6, 0.3, 0.1])
    with jax.enable_x64(True):
        found = jax.jit(source_worth)(SOURCE, x, PartialLabels(known))
    expected = source_worth(SOURCE, x, PartialLabels(known))
    np.testing.assert_allclose(found.means, expected.means)
    np.testing.assert_allclose(found.weights, expected.weights)


def test_statements_that_may_be_wrong_do_not_tell_moves():
    known = PartialLabels(target(np.full(3, 1 / 3))[2])
    assert trusted(known, 100.0, SOURCE) is known
    assert trusted(known, 2.0, SOURCE) is trusted(known, 0.0, SOURCE) is None


def test_the_worth_of_weights_is_a_number_of_points():
    x = target(np.full(3, 1 / 3))[0]
    given = resolve_shift("source", SOURCE, x, np.full(3, 2.0), 12.0)
    np.testing.assert_allclose(given.concentration(SOURCE.weights), 5.0)
    alone = resolve_shift("source", SOURCE, x, np.full(3, 2.0))
    np.testing.assert_allclose(alone.concentration(SOURCE.weights), 3.0)
    for bad in (-1.0, np.ones(3), np.nan):
        with pytest.raises(ValueError, match="weights_worth = .*expected a number of points"):
            resolve_shift("source", SOURCE, x, weights_worth=bad)
    with pytest.raises(ValueError, match="weights_worth is for shift='source' alone"):
        resolve_shift(ShiftPrior(), SOURCE, x, weights_worth=1.0)


def test_learning_a_source_shows_how_far_it_is_and_takes_one_thread(monkeypatch):
    """Threads of K-means wait in loops: on busy processors a source took 56 seconds for 4."""
    steps, threads, shown = [], [], []
    bar, mixture = learning.progress_bar, learning.GaussianMixture.fit

    def seen(title, total=None, *, shown=True):
        steps.append(total)
        return bar(title, total, shown=shown)

    def fitted(self, rows):
        threads.extend(one["num_threads"] for one in threadpool_info())
        shown.append(len(rows))
        return mixture(self, rows)

    monkeypatch.setattr(learning, "progress_bar", seen)
    monkeypatch.setattr(learning.GaussianMixture, "fit", fitted)
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    x = rng.normal(size=(160, 1)) + 8.0 * (np.arange(160) % 4 > 1)[:, None] + y[:, None]
    assert sb.fit_source(x, y, num_restarts=1, progress=False).num_components == 4
    assert steps == [22]  # two classes, by BIC and in five folds twice
    assert set(threads) == {1}
