"""Where runs of positions start: mistakes of classical scaling, and walls where points would meet."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.spatial import procrustes
from scipy.spatial.distance import cdist
from sidebayes.models.blocks.embedding.positions import Positions, landmark_scaling
from sidebayes.models.blocks.embedding.stress import relaxed

SIZE = 25
SHAPES = {"position": (SIZE, 2)}


def noisy(seed):
    """Points in the plane and their distances in noise of a tenth."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(SIZE, 2)) * 3
    upper = np.triu(np.exp(rng.normal(size=(SIZE, SIZE)) * 0.1), 1)
    return rng, z - z.mean(axis=0), cdist(z, z) * (upper + upper.T)


def with_gaps():
    """Three in ten pairs missing: `log` climbs from classical scaling ended 49 nats below the best."""
    rng, z, table = noisy(0)
    rng.normal(size=20 * 2 * SIZE)
    rng.permutation(SIZE)
    gaps = np.triu(rng.random((SIZE, SIZE)) < 0.3, 1)
    table[gaps | gaps.T] = np.nan
    return z, table, np.arange(SIZE)


def to_landmarks():
    """Ten landmarks: the same, 34 nats below."""
    _, z, table = noisy(0)
    return z, table[:, :10], np.arange(10)


def log_stress(start, table, landmarks):
    """Sum of squares of log ratios of known distances after a climb, and how many there are."""
    row, column = np.nonzero(np.isfinite(table) & (np.arange(SIZE)[:, None] != landmarks))
    at, known = landmarks[column], table[row, column]

    def loss(flat):
        x = flat.reshape(start.shape)
        apart = x[row] - x[at]
        square = (apart**2).sum(axis=1)
        excess = np.log(square) / 2 - np.log(known)
        slope = np.zeros(x.shape)
        pull = (2 * excess / square)[:, None] * apart
        np.add.at(slope, row, pull)
        np.subtract.at(slope, at, pull)
        return (excess**2).sum(), slope.ravel()

    options = {"maxiter": 3000}
    return minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=options).fun


@pytest.mark.parametrize("case", [with_gaps, to_landmarks])
def test_a_climb_from_some_start_ends_where_one_from_the_truth_does(case):
    z, table, landmarks = case()
    starts = Positions(1.0).starts(table, SHAPES, 0, 10)["position"]
    best = min(log_stress(start, table, landmarks) for start in starts)
    assert best <= 1.01 * log_stress(z, table, landmarks)


def test_relaxed_positions_do_not_depend_on_the_unit():
    _, table, landmarks = with_gaps()
    scaled = landmark_scaling(table, 2)
    plain = relaxed(scaled, table, landmarks)
    for unit in (1e-9, 1e9):
        np.testing.assert_allclose(
            relaxed(scaled * unit, table * unit, landmarks) / unit, plain, atol=1e-4
        )


def test_exact_positions_stay():
    _, z, _ = noisy(1)
    assert procrustes(z, relaxed(z, cdist(z, z), np.arange(SIZE)))[2] < 1e-8
