"""Classical scaling, its Ritz steps, and scaling from landmarks: checks 8 to 10 and 13 of the dossier."""

from importlib.util import find_spec

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist
from sidebayes.guides.transformers.isomap.scaling import (
    between_all,
    from_landmarks,
    placed,
    ritz_step,
    spectrum_shift,
)
from sklearn.manifold import Isomap

from sidebayes import IncrementalIsomap
from tests.reference.swiss_roll import swiss_roll

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is an extra")


def centred_products(distances):
    squares = np.square(distances)
    squares = squares - squares.mean(axis=0)
    return -0.5 * (squares - squares.mean(axis=1, keepdims=True))


def relative_error(found, wanted):
    signs = np.sign(np.sum(found * wanted, axis=0))
    return np.linalg.norm(found * signs - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("size", [50, 400])
def test_converged_coordinates_are_leading_eigenvectors(size):
    distances = cdist(swiss_roll(size, 0), swiss_roll(size, 0), "cityblock")
    values, vectors = np.linalg.eigh(centred_products(distances))
    found = between_all(distances, 3)
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:3], rtol=1e-10)
    wanted = vectors[:, ::-1][:, :3] * np.sqrt(values[::-1][:3])
    assert relative_error(found.points, wanted) < 1e-8


def test_new_points_are_placed_exactly():
    """Check 8: Euclidean distances in as many dimensions, beside scaling of all points."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    distances = cdist(x, x)
    found = between_all(distances[:50, :50], 3)
    means = np.square(distances[:50, :50]).mean(axis=1)
    new = placed(np.square(distances[50:, :50]), means, found.points)
    turn, _ = orthogonal_procrustes(x[:50] - x[:50].mean(axis=0), found.points)
    np.testing.assert_allclose(new, (x[50:] - x[:50].mean(axis=0)) @ turn, atol=1e-9)


@needs_numba
def test_ritz_steps_need_the_shift():
    """Check 9: with a large negative eigenvalue the shifted steps converge, others do not."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(80, 80)) - rng.normal(size=80).mean())[0]
    basis -= basis.mean(axis=0)
    basis, _ = np.linalg.qr(basis[:, :-1])
    values = np.concatenate([[10.0, 6.0], np.linspace(1, 0, 76), [-50.0]])
    products = basis * values @ basis.T
    diagonal = np.diagonal(products)
    squares = diagonal[:, None] + diagonal - 2 * products
    offset = (
        -squares.min() + 1e-9
    )  # distances are real; a constant off the diagonal moves eigenvalues
    squares += offset * (1 - np.eye(80))
    distances = np.sqrt(squares)
    values, vectors = np.linalg.eigh(centred_products(distances))
    wanted = vectors[:, ::-1][:, :2]
    shift = spectrum_shift(distances, values[::-1][:2])
    assert shift == pytest.approx(max(-0.7 * values[0] - 0.3 * values[-2], 0), rel=1e-6)
    ends = {}
    for added in (0.0, shift):
        points = rng.normal(size=(80, 2))
        for _ in range(400):
            points = ritz_step(distances, points, added).points + 1e-9 * rng.normal(size=(80, 2))
        basis, _ = np.linalg.qr(points)
        ends[added] = np.linalg.norm(wanted - basis @ (basis.T @ wanted), 2)
    assert ends[0.0] > 1e-2
    assert ends[shift] < 1e-6
    assert (abs(values[0] + shift)) / (values[-2] + shift) == pytest.approx(3 / 7, rel=1e-6)


def test_landmarks_restore_euclidean_distances():
    """Check 13: factors are exact after one pass from any start, and the metric is restored."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 2)) * [3, 1]
    landmarks = np.arange(20)
    distances = cdist(x[landmarks], x)
    inner = centred_products(distances)
    for start in (None, rng.normal(size=(400, 2))):
        found = from_landmarks(distances, landmarks, 2, start)
        error = np.linalg.norm(found.sources @ found.points.T - inner) / np.linalg.norm(inner)
        assert error < 1e-10
        np.testing.assert_allclose(cdist(found.points, found.points), cdist(x, x), atol=1e-8)
        np.testing.assert_allclose(
            found.points.T @ found.points, np.diag(found.eigenvalues), atol=1e-8
        )


def test_all_points_as_landmarks_are_classical_scaling():
    x = np.random.default_rng(3).normal(size=(30, 2)) * [2, 1]
    distances = cdist(x, x)
    whole, found = between_all(distances, 2), from_landmarks(distances, np.arange(30), 2)
    assert relative_error(found.points, whole.points) < 1e-9
    np.testing.assert_allclose(found.eigenvalues, whole.eigenvalues)


@pytest.mark.parametrize("num_landmarks", [None, 40])
@needs_numba
def test_one_step_follows_the_batch(num_landmarks):
    """Check 10, from 100 to 600 rows, against coordinates of the same distances from scratch."""
    x = swiss_roll(600, 0)
    found = IncrementalIsomap(n_neighbors=6, n_landmarks=num_landmarks).fit(x[:100])
    errors = []
    for row in range(100, 600):
        found.partial_fit(x[row : row + 1])
        if row % 10:
            continue
        if num_landmarks is None:
            batch = between_all(found.dist_matrix_, 2)
        else:
            batch = from_landmarks(found.dist_matrix_, found.landmarks_, 2)
        errors.append(relative_error(found.embedding_, batch.points))
    assert np.median(errors) < 2e-3
    assert np.mean(errors) < 2e-2


@needs_numba
def test_converged_updates_are_those_of_scikit_learn():
    x = swiss_roll(260, 1)
    found = IncrementalIsomap(n_neighbors=6).fit(x[:200])
    for row in range(200, 240):
        found.partial_fit(x[row : row + 1])
    assert found.residual_ > 0
    found.set_params(converge=True).remove(np.arange(7))
    batch = Isomap(n_neighbors=6).fit(x[7:240])
    np.testing.assert_allclose(found.dist_matrix_, batch.dist_matrix_, atol=1e-10)
    assert relative_error(found.embedding_, batch.embedding_) < 1e-6
    assert found.residual_ == 0
    assert relative_error(found.transform(x[240:]), batch.transform(x[240:])) < 1e-6
