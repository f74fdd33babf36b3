"""ROC curves compared and stitched, kernels of series, kernels fused by alignment."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import check_grad
from sidebayes.guides.transformers.detection import series_kernels
from sklearn.base import clone
from sklearn.metrics import auc, roc_auc_score, roc_curve

from sidebayes import (
    FisherFeatures,
    LeastSquaresFeatures,
    LongTable,
    Population,
    SeriesKernel,
    align_kernels,
    delong_test,
    kernel_alignment,
    stitch_roc,
)
from tests.support.series import NORMAL, series


def scored(rng, size=(97, 46), shift=0.8):
    labels = np.repeat([0, 1], size)
    both = rng.normal(size=(sum(size), 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])
    return labels, *(both + shift * labels[:, None]).T


def test_areas_and_variance_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    labels, one, other = (np.round(v, 1) for v in scored(rng))  # with ties
    found = delong_test(labels, one, other)
    parts = []
    for score in (one, other):
        upper, lower = score[labels == 1][:, None], score[labels == 0]
        parts.append((upper > lower) + 0.5 * (upper == lower))
    expected = [roc_auc_score(labels, score) for score in (one, other)]
    np.testing.assert_allclose(found.auc, expected, rtol=1e-12)
    wins = parts[0] - parts[1]
    variance = wins.mean(axis=1).var(ddof=1) / 46 + wins.mean(axis=0).var(ddof=1) / 97
    assert found.error == pytest.approx(np.sqrt(variance), rel=1e-10)
    assert found.statistic == pytest.approx(wins.mean() / np.sqrt(variance), rel=1e-10)


def test_monotone_transforms_and_equal_scores():
    labels, one, other = scored(np.random.default_rng(1))
    found, moved = delong_test(labels, one, other), delong_test(labels, np.exp(one), other**3)
    assert moved.p_value == pytest.approx(found.p_value, rel=1e-10)
    same = delong_test(labels, one, 2 * one)
    assert (same.difference, same.statistic, same.p_value) == (0.0, 0.0, 1.0)
    perfect = delong_test([0, 0, 1, 1], [0, 1, 2, 3], [3, 2, 1, 0])
    assert (perfect.difference, perfect.error) == (1.0, 0.0)
    assert np.isnan(perfect.p_value)  # four subjects prove nothing
    scores = pd.Series(one)
    with pytest.raises(ValueError, match="others has 142 at place 0, by its index, where 0"):
        delong_test(pd.Series(labels), scores, scores[::-1])


def test_rejections_under_the_null_hypothesis():
    rng = np.random.default_rng(2)
    runs = [delong_test(*scored(rng)) for _ in range(2000)]
    rejected = np.mean([run.p_value < 0.05 for run in runs])
    assert 0.03 <= rejected <= 0.07
    spread = np.var([run.difference for run in runs])
    assert np.mean([run.error**2 for run in runs]) == pytest.approx(spread, rel=0.1)


def test_stitched_curves():
    labels, one, other = scored(np.random.default_rng(3))
    low, high = roc_curve(labels, one), roc_curve(labels, other)
    x, y = stitch_roc(low, low)
    assert auc(x, y) == pytest.approx(auc(*low[:2]), rel=1e-12)
    more = np.setdiff1d(x, low[0])
    assert set(more) <= {0.5}
    np.testing.assert_allclose(y[np.isin(x, more)], np.interp(more, *low[:2]))
    assert set(zip(*low[:2], strict=True)) <= set(zip(x, y, strict=True))
    x, y = stitch_roc(low, high, at=0.3)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    np.testing.assert_array_equal(y[x < 0.3], low[1][low[0] < 0.3])
    assert set(y[x > 0.3]) <= {*high[1], np.interp(0.3, *low[:2])}
    for at, whole in ((0.0, high), (1.0, low)):
        assert auc(*stitch_roc(low, high, at)) == pytest.approx(auc(*whole[:2]), abs=0.005)


def test_least_squares_features():
    table = series(40, population=NORMAL)
    table = table.take(np.flatnonzero(np.bincount(table.codes) > 1))
    found = LeastSquaresFeatures().fit(table)
    features = found.transform(table)
    np.testing.assert_allclose(features.std(axis=0), 1.0)
    rows = table.codes == 5
    own = np.polyfit(table.times[rows], table.y[rows], 1)[::-1]
    np.testing.assert_allclose(features[5] * found.scale_, own)
    with pytest.raises(ValueError, match="do not determine 2 coefficients"):
        found.transform(LongTable.from_times([1.0], [0.0], ["a"]))


@pytest.mark.parametrize(
    "kind",
    [
        *(FisherFeatures(design, num_draws=500) for design in ("A", "B", "C", "marginalised")),
        LeastSquaresFeatures(),
        SeriesKernel(length=1.0, noise=0.5),
    ],
    ids=repr,
)
def test_features_have_names(kind):
    table = series(12, population=NORMAL)
    table = table.take(np.flatnonzero(np.bincount(table.codes) > 1))
    found = clone(kind).fit(table, np.arange(len(table)) % 2)
    plain = found.transform(table)
    frame = (
        clone(kind)
        .set_output(transform="pandas")
        .fit(table, np.arange(len(table)) % 2)
        .transform(table)
    )
    np.testing.assert_array_equal(frame, plain)
    assert list(frame) == list(found.get_feature_names_out())


def test_polynomials_in_another_unit_are_refused():
    given = [1.0, 2.0, 3.0, 5.0], [70.0, 71.0, 70.0, 72.0], list("aabb")
    one, other = (LongTable.from_times(*given, center=at, unit=10.0) for at in (70.0, 80.0))
    found = LeastSquaresFeatures().fit(one)
    assert np.isfinite(found.transform(one.take([1]))).all()
    with pytest.raises(ValueError, match=r"polynomial columns \['\(times - 80\) / 10'\]"):
        found.transform(other)
    population = Population([0.0, 0.0], np.eye(2), 1.0, one.columns)
    with pytest.raises(ValueError, match="polynomial columns"):
        population.log_density(other)


def covariance(one, other, kernel):
    distance = one[:, None] - other
    return kernel.variance_ * np.exp(-0.5 * (distance / kernel.length_) ** 2)


@pytest.mark.parametrize("given", [{}, {"length": 0.7, "noise": 0.4, "bandwidth": 1.3}])
def test_kernel_of_smoothed_series(given):
    table = series(9, population=NORMAL)
    kernel = SeriesKernel(**given).fit(table)
    some = table.take([3, 8, 1])
    found, whole = kernel.transform(some), kernel.transform(table)
    np.testing.assert_allclose(found, whole[[3, 8, 1]], atol=1e-12)
    np.testing.assert_allclose(np.diag(whole), 1.0, atol=1e-7)
    assert np.linalg.eigvalsh(whole)[0] > -1e-8
    y = (table.y - table.y.mean()) / table.y.std()
    smoothed = []
    for subject in range(9):
        rows = table.codes == subject
        times = table.times[rows]
        inner = covariance(times, times, kernel) + kernel.noise_**2 * np.eye(len(times))
        smoothed.append((times, np.linalg.solve(inner, y[rows])))
    for i, j in ((0, 1), (3, 5), (2, 8)):
        times = np.concatenate([smoothed[i][0], smoothed[j][0]])
        weights = np.concatenate([smoothed[i][1], -smoothed[j][1]])
        distance = weights @ covariance(times, times, kernel) @ weights
        expected = np.exp(-0.5 * distance / kernel.bandwidth_**2)
        assert whole[i, j] == pytest.approx(expected, abs=1e-10)


def test_equal_series_are_alike():
    table = LongTable.from_times([1.0, 2.0, 1.0, 2.0, 0.0], [0, 1, 0, 1, 0.5], list("aabbc"))
    found = SeriesKernel(length=1.0, noise=0.5).fit(table).transform(table)
    assert found[0, 1] == pytest.approx(1.0)
    assert found[0, 2] < 1


def test_evidence_of_all_series_has_its_slopes(monkeypatch):
    table, kept = series(9, population=NORMAL), {}

    def keep(loss, start, **_):
        kept.update(loss=loss, start=np.asarray(start))
        raise StopIteration

    monkeypatch.setattr(series_kernels, "minimize", keep)
    with pytest.raises(StopIteration):
        SeriesKernel().fit(table)
    loss, point = kept["loss"], kept["start"] + [0.3, -0.2, 0.1]
    assert check_grad(lambda p: loss(p)[0], lambda p: loss(p)[1], point) < 1e-6
    y, value = (table.y - table.y.mean()) / table.y.std(), 0.0
    length, variance, noise = np.exp(point)
    for subject in range(9):
        rows = table.codes == subject
        square = (table.times[rows][:, None] - table.times[rows]) ** 2
        inner = variance * np.exp(-0.5 * square / length**2) + noise**2 * np.eye(rows.sum())
        value += 0.5 * np.linalg.slogdet(inner)[1]
        value += 0.5 * y[rows] @ np.linalg.solve(inner, y[rows])
    assert loss(point)[0] == pytest.approx(value / len(y))


def test_aligned_weights_are_the_best():
    rng = np.random.default_rng(0)
    labels = np.repeat(["n", "i"], [25, 15])
    sign = np.where(labels == "n", 0.0, 1.0)
    grams = []
    for signal in (0.3, 1.0, 0.0):
        x = signal * sign[:, None] + rng.normal(size=(40, 3))
        grams.append(x @ x.T)
    weights = align_kernels(grams, labels)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()
    best = kernel_alignment(np.tensordot(weights, grams, axes=1), labels)
    for other in rng.dirichlet(np.ones(3), size=200):
        assert kernel_alignment(np.tensordot(other, grams, axes=1), labels) <= best + 1e-12
    assert best > max(kernel_alignment(one, labels) for one in grams) - 1e-12


def test_alignment_of_the_kernel_of_labels_is_one():
    sign = np.array([1.0, 1.0, -1.0, -1.0, -1.0])
    assert kernel_alignment(np.outer(sign, sign), sign > 0) == pytest.approx(1.0)
    assert kernel_alignment(np.outer(sign, sign) + 5.0, sign > 0) == pytest.approx(1.0)
    assert kernel_alignment(np.ones((5, 5)), sign) == 0.0
    np.testing.assert_array_equal(align_kernels([np.ones((5, 5))] * 2, sign), [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: delong_test([0, 1, 1], [1, 2, 3], [1, 2, 3]), "2 or more"),
        (lambda: delong_test([0, 0, 1, 1], [1, 2, 3], [1, 2, 3, 4]), "scores has shape"),
        (lambda: delong_test([0, 0, 1, 1], [1, 2, 3, np.nan], [1, 2, 3, 4]), "scores"),
        (lambda: stitch_roc(([0, 1], [0, 1]), ([0, 1], [1, 0])), "high is no ROC curve"),
        (lambda: stitch_roc(([0, 1], [0, 1]), ([0, 1], [0, 1]), at=2.0), "at = 2.0"),
        (lambda: stitch_roc(3, 3), "low = 3"),
        (lambda: align_kernels([np.ones((3, 2))], [0, 1, 1]), r"grams\[0\] has shape \(3, 2\)"),
        (
            lambda: align_kernels([np.eye(3), [[1, 2, 0], [0, 1, 0], [0, 0, 1]]], [0, 1, 1]),
            r"grams\[1\]\[0, 1\] = 2 and \[1, 0\] = 0; expected a symmetric",
        ),
        (
            lambda: align_kernels([np.full((3, 3), np.nan)], [0, 1, 1]),
            r"grams\[0\]\[0, 0\] = nan, the first of 9 numbers .*; leave such subjects out",
        ),
        (
            lambda: delong_test([0, 0, 1, 1], [1, 2, np.nan, 3], [1, 2, 3, 4]),
            r"scores\[2\] = nan, the first of 1 numbers that are missing; leave subjects",
        ),
        (lambda: align_kernels([], [0, 1, 1]), "kernel matrices"),
        (lambda: kernel_alignment(np.eye(3), [0, 1, 2]), "3 classes"),
        (lambda: SeriesKernel(length=1.0).fit(series()), "both length and noise"),
        (lambda: SeriesKernel(bandwidth=-1.0).fit(series()), "bandwidth"),
        (lambda: SeriesKernel().fit(np.ones((3, 2))), "LongTable"),
        (
            lambda: SeriesKernel().fit(LongTable([1.0], [[1.0]], [[1.0]], ["a"])),
            "no times",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("missing", [np.nan, None, "", pd.NA])
def test_missing_labels_are_no_class(missing):
    labels = np.array([missing, missing, missing, "ill", "ill", "ill"], object)
    if missing is np.nan:
        labels = np.where(labels == "ill", 1.0, np.nan).astype(float)
    scores = np.arange(6.0)
    for call in (
        lambda: delong_test(labels, scores, -scores),
        lambda: kernel_alignment(np.eye(6), labels),
    ):
        with pytest.raises(ValueError, match=r"labels\[0\] is missing"):
            call()
