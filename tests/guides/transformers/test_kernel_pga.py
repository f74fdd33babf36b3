"""Kernel principal geodesic analysis: checks 1 to 9 of its dossier, scikit-learn's contract, refusals."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.transformers.co_ranking import co_ranking_quality
from sidebayes.guides.transformers.kernel_pga import KernelPGA
from sidebayes.guides.transformers.principal_geodesics import (
    Points,
    intrinsic_mean,
    principal_directions,
)
from sidebayes.models.blocks.manifolds import sphere
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.decomposition import KernelPCA
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.utils.estimator_checks import estimator_checks_generator

from sidebayes import SideBayesWarning
from tests.reference.spheres import subsphere_points


def gaussian_gram(x):
    spread = 2 * x.var(axis=0, ddof=1).sum()
    return rbf_kernel(x, gamma=1 / (2 * spread))


@pytest.fixture
def weighted():
    rng = np.random.default_rng(0)
    gram = gaussian_gram(rng.normal(size=(40, 3)))
    weights = rng.uniform(0.2, 2, 40)
    return gram, weights / weights.sum()


def test_logarithms_of_points_of_a_kernel(weighted):
    """Check 1: of all pairs, in explicit coordinates; lengths are angles between the points."""
    gram, _ = weighted
    values, vectors = np.linalg.eigh(gram)
    with jax.enable_x64(True):
        y = jnp.asarray(vectors * np.sqrt(np.clip(values, 0, None)))
        first, second = y[:, None], y[None]
        tangent = sphere.log(first, second)
        np.testing.assert_allclose(
            sphere.exp(first, tangent), jnp.broadcast_to(second, (40, 40, 40)), atol=1e-10
        )
        np.testing.assert_allclose((tangent * first).sum(axis=-1), 0, atol=1e-12)
        apart = ~np.eye(40, dtype=bool)
        lengths = np.linalg.norm(tangent, axis=-1)
        np.testing.assert_allclose(lengths[apart], np.arccos(gram[apart]), atol=1e-10)
        slope = jax.jacobian(lambda point: sphere.log(y[0], point))(y[0])
        assert np.isfinite(slope).all()
        assert (np.asarray(sphere.log(y[0], y[0])) == 0).all()


def test_the_mean_is_stationary(weighted):
    """Check 2: the weighted tangents sum to zero, those without weights do not."""
    gram, weights = weighted
    mean = intrinsic_mean(Points(gram, is_gram=True), weights)
    assert mean.slope < 1e-9
    tenfold = intrinsic_mean(Points(gram, is_gram=True), 10 * weights)
    np.testing.assert_allclose(tenfold.coefficients, mean.coefficients, atol=1e-9)
    np.testing.assert_allclose(mean.coefficients @ gram @ mean.coefficients, 1, rtol=1e-12)
    cosines = gram @ mean.coefficients
    angle = np.arccos(cosines)
    tangents = (angle / np.sin(angle))[:, None] * (
        np.eye(40) - np.outer(cosines, mean.coefficients)
    )
    for share, is_zero in ((weights, True), (np.full(40, 1 / 40), False)):
        total = share @ tangents
        assert (np.sqrt(total @ gram @ total) < 1e-9) == is_zero


def test_dual_is_primal(weighted):
    """Check 3: eigenvalues are those of E K, directions orthonormal and orthogonal to the mean."""
    gram, weights = weighted
    points = Points(gram, is_gram=True)
    mean = intrinsic_mean(points, weights)
    directions, values, total = principal_directions(points, weights, mean, None)
    angle = np.arccos(mean.cosines)
    tangents = (angle / np.sin(angle))[:, None] * (
        np.eye(40) - np.outer(mean.cosines, mean.coefficients)
    )
    primal = np.linalg.eigvals(tangents.T @ (weights[:, None] * tangents) @ gram).real
    np.testing.assert_allclose(values[:10], np.sort(primal)[::-1][:10], atol=1e-8)
    products = directions.T @ gram @ directions
    np.testing.assert_allclose(products[:10, :10], np.eye(10), atol=1e-8)
    np.testing.assert_allclose(directions[:, :10].T @ gram @ mean.coefficients, 0, atol=1e-8)
    assert len(values) <= 39
    np.testing.assert_allclose(values.sum(), total, rtol=1e-8)


def test_explicit_coordinates_agree(weighted):
    """Checks 4 and 8: vectors of the sphere, the geometry of `sphere`, the Gram matrix: one analysis."""
    gram, weights = weighted
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-12 * values[-1]
    y = vectors[:, kept] * np.sqrt(values[kept])
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    found = []
    for points in (Points(gram, is_gram=True), Points(y, is_gram=False)):
        mean = intrinsic_mean(points, weights)
        found.append((mean, principal_directions(points, weights, mean, 5)))
    (_, first), (explicit, second) = found
    np.testing.assert_allclose(first[1], second[1], rtol=1e-9)
    with jax.enable_x64(True):
        intrinsic = sphere.karcher_mean(jnp.asarray(y), jnp.asarray(weights))
        tangents = np.asarray(intrinsic.tangents)
    np.testing.assert_allclose(explicit.coefficients, intrinsic.mean, atol=1e-9)
    covariance = tangents.T @ (weights[:, None] * tangents)
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance)[::-1][:5], second[1], rtol=1e-9)


def test_reference_eigenvalues():
    """Check 5, on 20 draws: two eigenvalues where kernel principal components have three."""
    geodesic, flat = [], []
    for seed in range(20):
        y = subsphere_points(seed)
        analysis = KernelPGA(None, kernel="linear").fit(y)
        assert len(analysis.eigenvalues_) == 2
        geodesic.append(analysis.eigenvalues_)
        flat.append(KernelPCA(3).fit(y).eigenvalues_ / len(y))
    np.testing.assert_allclose(np.mean(geodesic, axis=0).sum(), 0.2313, rtol=0.04)
    np.testing.assert_allclose(np.mean(flat, axis=0)[:2].sum(), 0.1975, rtol=0.04)
    np.testing.assert_allclose(np.mean(flat, axis=0)[2], 0.0123, rtol=0.15)


def test_nothing_is_lost_at_the_intrinsic_dimension():
    """Check 6: angles between re-mapped points are those of the inputs; flat components lose some."""
    y = subsphere_points(0)
    analysis = KernelPGA(2, kernel="linear")
    embedded = analysis.fit_transform(y)
    kept = analysis.sphere_coordinates(embedded)
    np.testing.assert_allclose(kept @ kept.T, y @ y.T, atol=1e-9)
    np.testing.assert_allclose(analysis.inverse_transform(embedded), y, atol=1e-9)
    before = np.arccos(np.clip(y @ y.T, -1, 1))
    assert co_ranking_quality(before, np.arccos(np.clip(kept @ kept.T, -1, 1))).min() > 0.9999
    flat = KernelPCA(2).fit_transform(y)
    apart = np.linalg.norm(flat[:, None] - flat, axis=-1)
    np.testing.assert_allclose(co_ranking_quality(before, apart).mean(), 0.983, atol=0.01)


def test_small_angles_give_kernel_principal_components():
    """Check 9: with a wide kernel the sphere is flat."""
    x = np.random.default_rng(1).normal(size=(40, 3))
    gamma = 1 / (2e4 * 2 * x.var(axis=0, ddof=1).sum())
    analysis = KernelPGA(3, gamma=gamma).fit(x)
    flat = KernelPCA(3, kernel="rbf", gamma=gamma).fit(x)
    np.testing.assert_allclose(analysis.eigenvalues_, flat.eigenvalues_ / 40, rtol=1e-3)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "laplacian", "precomputed"])
def test_new_rows(kernel):
    """Check 7: the training rows as new rows, and others by hand."""
    x = subsphere_points(3, 60, 5)
    given = gaussian_gram(x) if kernel == "precomputed" else x
    analysis = KernelPGA(3 if kernel != "linear" else 2, kernel=kernel)
    embedded = analysis.fit_transform(given)
    np.testing.assert_allclose(analysis.transform(given), embedded, atol=1e-9)
    np.testing.assert_allclose(analysis.transform(given[:7]), embedded[:7], atol=1e-9)


def test_weights_are_copies():
    x = load_iris().data[::5]
    weights = np.tile([1.0, 2.0], 15)
    repeated = KernelPGA(2, gamma=0.1).fit(np.repeat(x, weights.astype(int), axis=0))
    whole = KernelPGA(2, gamma=0.1).fit(x, sample_weight=10 * weights)
    np.testing.assert_allclose(whole.eigenvalues_, repeated.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(whole.transform(x)), np.abs(repeated.transform(x)), atol=1e-7)
    assert np.abs(whole.eigenvalues_ - KernelPGA(2, gamma=0.1).fit(x).eigenvalues_).max() > 1e-4


def test_few_columns_stand_for_all():
    x = load_iris().data
    whole, part = KernelPGA(3).fit(x), KernelPGA(3, rank=60).fit(x)
    assert 0 < part.residual_ < 1e-5
    np.testing.assert_allclose(part.eigenvalues_, whole.eigenvalues_, rtol=1e-5)
    np.testing.assert_allclose(np.abs(part.transform(x)), np.abs(whole.transform(x)), atol=1e-4)
    np.testing.assert_allclose(
        part.inverse_transform(part.transform(x)),
        whole.inverse_transform(whole.transform(x)),
        atol=1e-2,
    )
    with pytest.warns(SideBayesWarning, match="raise rank"):
        assert KernelPGA(2, rank=3).fit(x).residual_ > 0.01


def test_pre_images_improve_on_the_best_training_row():
    x = load_iris().data
    analysis = KernelPGA(3).fit(x)
    embedded = analysis.transform(x)
    found = analysis.inverse_transform(embedded)
    apart = np.linalg.norm(analysis.transform(found) - embedded, axis=1)
    nearest = np.linalg.norm(embedded[:, None] - embedded, axis=-1)
    np.fill_diagonal(nearest, np.inf)
    assert np.median(apart) < np.median(nearest.min(axis=1))
    # a denoised row lies nearer to its own row than another row does
    assert np.linalg.norm(found - x, axis=1).mean() < 0.5


def test_share_of_the_variance():
    x = load_iris().data
    every = KernelPGA(None).fit(x).explained_variance_ratio_
    np.testing.assert_allclose(every.sum(), 1, rtol=1e-6)
    some = KernelPGA(0.9).fit(x).explained_variance_ratio_
    assert some.sum() >= 0.9 > some[:-1].sum()
    np.testing.assert_allclose(some, every[: len(some)], rtol=1e-8)


CHECKS = [
    pytest.param(pair, id=getattr(pair[1], "func", pair[1]).__name__)
    for pair in estimator_checks_generator(KernelPGA(1))
    if "array_api" not in str(pair[1])
]


@pytest.mark.parametrize("check", CHECKS)
def test_contract_of_scikit_learn(check):
    estimator, run = check
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SideBayesWarning)
        run(clone(estimator))


INDEFINITE = np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])


@pytest.mark.parametrize(
    ("options", "x", "match"),
    [
        ({"kernel": "precomputed"}, INDEFINITE, "not positive semidefinite"),
        ({"kernel": "precomputed"}, np.ones((3, 4)), "square"),
        ({"kernel": "precomputed"}, np.array([[1, 0.5], [0.1, 1]]), "not symmetric"),
        ({"kernel": "precomputed"}, np.diag([1.0, -1.0]), "itself is -1"),
        ({"kernel": "precomputed", "rank": 2}, np.eye(3), "leave it out for a Gram matrix"),
        ({"kernel": "linear"}, np.array([[1.0, 0], [0, 0], [0, 1]]), "row 1"),
        ({"kernel": "linear"}, np.array([[1.0, 0], [-1, 0]]), "cancel one another"),
        ({}, np.ones((5, 2)), "the same"),
        ({"n_components": 0}, np.eye(4), "n_components = 0"),
        ({"n_components": 1.5}, np.eye(4), "n_components = 1.5"),
        ({"n_components": True}, np.eye(4), "n_components = True"),
        ({"n_components": 9}, np.eye(4), "at most that many"),
        ({"rank": 1}, np.eye(4), "rank"),
        (
            {"rank": 3, "kernel": lambda a, b: 1.0 if (a == b).all() else -0.9},
            np.eye(4),
            "semidefinite",
        ),
        ({"kernel": "gaussian"}, np.eye(4), "kernel = 'gaussian'"),
        ({"kernel": "polynomial", "degree": "3"}, np.eye(4), "degree = '3'"),
        (
            {"kernel": "polynomial", "coef0": "1"},
            np.eye(4),
            "coef0 = '1'; expected a finite number$",
        ),
        ({"kernel_params": {"gamma": 3}}, np.eye(4), "kernel_params are arguments of a function"),
        ({}, 1e200 * np.eye(4), "squares overflow"),
        ({}, 1e-200 * np.eye(4), "smaller units"),
    ],
)
@pytest.mark.filterwarnings("ignore:the diagonal:sidebayes.SideBayesWarning")
def test_what_cannot_be_is_refused(options, x, match):
    with pytest.raises(ValueError, match=match):
        KernelPGA(**options).fit(x)


@pytest.mark.parametrize(
    ("weights", "match"),
    [([1, 2], "shape"), ([1, -1, 1, 1], "at least zero"), ([1, 0, 0, 0], "two are positive")],
)
def test_weights_that_cannot_be(weights, match):
    with pytest.raises(ValueError, match=match):
        KernelPGA(1).fit(np.eye(4), sample_weight=weights)


def test_a_diagonal_other_than_one_is_said():
    x = np.random.default_rng(0).normal(size=(30, 3)) + 4
    with pytest.warns(SideBayesWarning, match="diagonal of the linear kernel"):
        long = KernelPGA(2, kernel="linear").fit(x)
    short = KernelPGA(2, kernel="linear").fit(x / np.linalg.norm(x, axis=1, keepdims=True))
    np.testing.assert_allclose(long.eigenvalues_, short.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(long.transform(x[:3]), short.transform(2 * x[:3]), atol=1e-10)


@pytest.mark.parametrize("kernel", ["polynomial", "chi2", "cosine"])
@pytest.mark.parametrize("rank", [None, 12])
@pytest.mark.filterwarnings("ignore:the diagonal:sidebayes.SideBayesWarning")
@pytest.mark.filterwarnings("ignore:12 columns:sidebayes.SideBayesWarning")
def test_norms_are_divided_out(kernel, rank):
    """Training rows as new ones, one at a time, for kernels whose diagonal has a form of its own."""
    x = load_iris().data[::5] / 20
    analysis = KernelPGA(1, kernel=kernel, rank=rank)
    embedded = analysis.fit_transform(x)
    found = np.vstack([analysis.transform(row[None]) for row in x])
    np.testing.assert_allclose(found, embedded, atol=1e-2 if rank else 1e-7)


def test_a_gram_matrix_without_unit_diagonal_has_no_new_rows():
    x = load_iris().data[::5]
    gram = gaussian_gram(x)
    with pytest.warns(SideBayesWarning, match="diagonal of the precomputed kernel"):
        analysis = KernelPGA(2, kernel="precomputed").fit(4 * gram)
    unit = KernelPGA(2, kernel="precomputed").fit(gram)
    np.testing.assert_allclose(analysis.eigenvalues_, unit.eigenvalues_, rtol=1e-9)
    for one, rows in ((analysis, gram[:3]), (unit, 4 * gram[:3])):
        with pytest.raises(ValueError, match="new rows have no coordinates"):
            one.transform(rows)


def test_rows_that_are_like_none_are_said():
    x = load_iris().data
    for rank in (None, 40):
        analysis = KernelPGA(2, rank=rank).fit(x)
        with pytest.warns(SideBayesWarning, match="row 1 of X is like no training row"):
            found = analysis.transform(np.vstack([x[0], x[0] + 1e4]))
        np.testing.assert_array_equal(found[1], 0.0)
        with pytest.warns(SideBayesWarning, match="rows 0, 1 of X are like no training row"):
            analysis.transform(x[:2] + 1e4)
        assert np.linalg.norm(found[0]) > 0.1


def test_a_kernel_that_sets_all_rows_apart_is_said_to():
    x = load_iris().data
    with pytest.warns(SideBayesWarning, match="of 150 rows are like no other row.*smaller gamma"):
        KernelPGA(2, gamma=1e3).fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelPGA(2, gamma=10.0).fit(x)


@pytest.mark.parametrize("rank", [None, 20])
def test_an_offset_changes_nothing(rank):
    x = load_iris().data * 64 // 1  # whole numbers, which an offset does not round
    plain, moved = (KernelPGA(2, rank=rank).fit(one[::2]) for one in (x, x + 2.0**33))
    np.testing.assert_allclose(plain.transform(x), moved.transform(x + 2.0**33), rtol=0, atol=1e-12)
    back = moved.inverse_transform(moved.transform(x[:5] + 2.0**33), max_iter=5) - 2.0**33
    near = plain.inverse_transform(plain.transform(x[:5]), max_iter=5)
    np.testing.assert_allclose(back, near, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rank", [None, 20])
def test_an_indefinite_kernel_of_points_that_lie_close_is_refused(rank):
    """The sigmoid of these rows is one but for 1e-8; its least eigenvalue is -8e-7, its second one 7e-8."""
    with pytest.raises(ValueError, match="not positive semidefinite"):
        KernelPGA(1, kernel="sigmoid", rank=rank).fit(load_iris().data)
    close = KernelPGA(1, kernel=lambda a, b: np.exp(-1e-8 * ((a - b) ** 2).sum()), rank=rank)
    close.fit(load_iris().data[::5])


def test_a_row_that_sets_the_default_width_alone_is_said():
    x = load_iris().data.copy()
    x[7] += 200
    with pytest.warns(SideBayesWarning, match="row 7 of X alone makes up"):
        KernelPGA(1).fit(x)
    KernelPGA(1, gamma=0.1).fit(x)  # is not asked what the variance is


def test_coordinates_beyond_the_sphere_are_refused():
    analysis = KernelPGA(2).fit(load_iris().data)
    for call in (analysis.sphere_coordinates, analysis.inverse_transform):
        with pytest.raises(ValueError, match="row 1 of the coordinates has length 5"):
            call([[0.0, 0.1], [3.0, 4.0]])
    with pytest.raises(ValueError, match="max_iter = 'few'"):
        analysis.inverse_transform([[0.0, 0.1]], max_iter="few")


def test_more_than_a_hemisphere_is_said():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 3)) + np.array([0.3, 0, 0])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    with pytest.warns(SideBayesWarning, match="right angle"):
        KernelPGA(2, kernel="linear").fit(x)


def test_kernels_without_pre_images_say_so():
    x = load_iris().data[::3]
    analysis = KernelPGA(2, kernel="laplacian").fit(x)
    with pytest.raises(ValueError, match="sphere_coordinates"):
        analysis.inverse_transform(analysis.transform(x))


def test_quality_by_counting():
    rng = np.random.default_rng(0)
    first, second = (np.abs(rng.normal(size=(9, 9))) for _ in "ab")
    quality = co_ranking_quality(first, second)
    for size in (1, 4, 8):
        kept = 0
        for i in range(9):
            near = [
                set([j for j in np.argsort(table[i], kind="stable") if j != i][:size])
                for table in (first, second)
            ]
            kept += len(near[0] & near[1])
        np.testing.assert_allclose(quality[size - 1], kept / (9 * size))


@pytest.mark.parametrize(
    "wrong", [np.ones((2, 3)), np.full((3, 3), np.nan), np.ones((1, 1)), -np.ones((3, 3))]
)
def test_distances_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=r"distances (has|contains|is)|distances"):
        co_ranking_quality(wrong, wrong)


@pytest.mark.parametrize("options", [{"rank": 8}, {"kernel": "cosine"}])
def test_rows_of_weight_zero_count_as_dropped(options):
    x = np.random.default_rng(4).normal(size=(20, 3))
    weights = np.where(np.arange(20) < 12, 1.0, 0.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        own, dropped = KernelPGA(2, **options), KernelPGA(2, **options).fit(x[:12])
        found = own.fit_transform(x, sample_weight=weights)
    expected = dropped.transform(x)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-10)
    np.testing.assert_allclose(own.residual_, dropped.residual_, atol=1e-12)
    first, *others = {str(one.message) for one in said} or {""}
    assert not others
    assert ("beyond a right angle" in first) == (options.get("kernel") == "cosine")
