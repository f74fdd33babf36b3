"""Climbs of many points at once end where the density is highest, each by itself."""

import numpy as np
from sidebayes.guides.engines.optimisers.dense_climbs import climb_all

CURVATURE = np.array([[40.0, 19.0], [19.0, 10.0]])


def two_peaks(points):
    """Log of two normal densities, one at (0, 0) and one at (30, -30)."""
    apart = points[:, None] - np.array([[0.0, 0.0], [30.0, -30.0]])
    near = np.argmin(np.einsum("nki,ij,nkj->nk", apart, CURVATURE, apart), axis=1)
    own = apart[np.arange(len(points)), near]
    value = -np.einsum("ni,ij,nj->n", own, CURVATURE, own) / 2
    return np.where(points[:, 0] > 100, -np.inf, value), -own @ CURVATURE


def test_each_climb_ends_at_its_own_peak():
    starts = np.array([[3.0, -2.0], [25.0, -33.0], [101.0, 0.0]])
    points, values, slopes = climb_all(two_peaks, starts, 60)
    np.testing.assert_allclose(points[:2], [[0.0, 0.0], [30.0, -30.0]], atol=1e-4)
    np.testing.assert_allclose(values, [0.0, 0.0, -np.inf], atol=1e-6)
    assert np.abs(slopes[:2]).max() < 1e-2
    np.testing.assert_array_equal(points[2], starts[2])


def test_a_few_steps_are_not_the_whole_way():
    _, values, _ = climb_all(two_peaks, np.array([[3.0, -2.0]]), 2)
    assert values[0] < -1e-3
