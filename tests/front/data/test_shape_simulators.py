"""Simulated shapes: the figures that the dossier's generators were verified by."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import sidebayes as sb

SIMULATORS = {
    "box_bumps": (sb.simulate_box_bumps, {}),
    "ellipsoids": (sb.simulate_ellipsoids, {"num_individuals": 3}),
    "leaves": (sb.simulate_leaves, {"num_individuals": 3}),
    "tubes": (sb.simulate_tubes, {}),
}


def centred_values(shapes):
    """Singular values of shapes about their mean."""
    flat = shapes.reshape(len(shapes), -1)
    return np.linalg.svd(flat - flat.mean(axis=0), compute_uv=False)


def preshapes(shapes):
    shapes = shapes - shapes.mean(axis=1, keepdims=True)
    return shapes / np.linalg.norm(shapes, axis=(1, 2), keepdims=True)


@pytest.mark.parametrize("name", SIMULATORS)
def test_rows_and_seeds(name):
    call, given = SIMULATORS[name]
    one, again, other = (call(**given, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.x, again.x)
    assert not np.array_equal(one.x[:100], other.x[:100])
    number = len(one.classes)
    assert one.x.shape == (len(one.subjects), one.x.shape[1])
    assert one.subjects.num_groups == len(one.parameters) == number
    if one.landmarks is not None:
        sb.Landmarks(one.x, one.subjects, one.landmarks)  # each at most once per individual
        assert one.shapes.shape == (number, one.landmarks.max() + 1, one.x.shape[1])


def test_boxes_vary_in_one_direction():
    shapes = sb.simulate_box_bumps().shapes
    for group in (shapes[:4], shapes[4:]):
        values = centred_values(group)
        np.testing.assert_allclose(values[0], 1.065, atol=5e-4)
        assert values[1] < 1e-14
    values = centred_values(shapes)
    np.testing.assert_allclose(values[0], 6.248, atol=1e-3)
    assert values[1] < 1e-14
    # the mean is the box with its bump in the middle, which is symmetric
    mean = shapes.mean(axis=0)
    mirrored = mean * [-1, 1]
    gap = np.linalg.norm(mean[:, None] - mirrored, axis=-1).min(axis=1)
    assert mean[:, 1].max() == pytest.approx(0.8)
    assert mean[np.argmax(mean[:, 1]), 0] == pytest.approx(0, abs=1e-15)
    assert gap.max() < 0.2
    for group, share in ((shapes[:4], 0.026), (shapes[4:], 0.026), (shapes, 0.063)):
        values = centred_values(preshapes(group))
        np.testing.assert_allclose(values[1] / values[0], share, atol=1e-3)


def test_boxes_begin_anywhere_and_are_noisy():
    clean, shifted = sb.simulate_box_bumps(noise=0.0, seed=3), sb.simulate_box_bumps(seed=3)
    assert clean.landmarks is None
    same = sb.simulate_box_bumps(noise=0.0, is_shifted=False)
    np.testing.assert_array_equal(same.x, same.shapes.reshape(-1, 2))
    firsts = set()
    for found, shape in zip(clean.x.reshape(8, 64, 2), clean.shapes, strict=True):
        first = int(np.argmin(np.linalg.norm(shape - found[0], axis=1)))
        np.testing.assert_array_equal(found, np.roll(shape, -first, axis=0))
        firsts.add(first)
    assert len(firsts) > 4
    spread = (shifted.x - clean.x).std()
    assert abs(spread - 0.02) < 4 * 0.02 / np.sqrt(2 * shifted.x.size)


def test_ellipsoids():
    found = sb.simulate_ellipsoids(200, noise=0.002, seed=4)
    axis = found.parameters["axis"].to_numpy()
    for group, mean in ((0, 0.9), (1, 1.1)):
        own = axis[found.classes == group]
        assert abs(own.mean() - mean) < 4 * 0.1 / np.sqrt(200)
        assert abs(own.std() - 0.1) < 4 * 0.1 / np.sqrt(400)
    np.testing.assert_allclose(found.shapes.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found.shapes, axis=(1, 2)), 1, rtol=1e-12)
    height = found.shapes[..., 2].std(axis=1) / found.shapes[..., 0].std(axis=1) / axis
    np.testing.assert_allclose(height, height[0], rtol=1e-12)
    assert abs(height[0] - 1) < 0.01  # points are spread evenly over the sphere
    spread = (found.x - found.shapes.reshape(-1, 3)).std()
    assert abs(spread - 0.002) < 4 * 0.002 / np.sqrt(2 * found.x.size)


def mean_kernel(one, other, width):
    """Mean Gaussian kernel between two sets of points."""
    return np.exp(-cdist(one, other, "sqeuclidean") / (2 * width**2)).mean()


def trivial_rule(**options):
    """Share of leaves whose three training outlines of least mean kernel distance are of their group."""
    right = []
    for seed in range(5):
        found = sb.simulate_leaves(seed=seed, **options)
        leaves = [found.x[found.subjects.codes == one] for one in range(46)]
        own = np.array([mean_kernel(leaf, leaf, 0.15) for leaf in leaves])
        train = np.r_[0:3, 23:26]
        test = np.setdiff1d(np.arange(46), train)
        cross = [[mean_kernel(leaves[one], leaves[other], 0.15) for other in train] for one in test]
        apart = own[test][:, None] + own[train] - 2 * np.array(cross)
        near = apart.reshape(len(test), 2, 3).mean(axis=2)
        right.append((near.argmin(axis=1) == found.classes[test]).mean())
    return np.mean(right)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 0.995),
        ({"asymmetry": 0.40, "width_deviation": 0.05}, 0.905),
        ({"asymmetry": 0.35, "width_deviation": 0.05}, 0.83),
    ],
)
def test_leaves_by_the_trivial_rule(options, share):
    """The dossier's figures come from other draws; splits vary more than their leaves."""
    assert abs(trivial_rule(**options) - share) < 0.02 + 4 * np.sqrt(share * (1 - share) / 200)


def test_leaves():
    found = sb.simulate_leaves(40, noise=0.0, seed=5)
    counts = np.bincount(found.subjects.codes)
    assert counts.min() >= 150
    assert counts.max() <= 300
    for individual in (0, 41):
        leaf = found.x[found.subjects.codes == individual]
        np.testing.assert_allclose(leaf.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(np.square(leaf).sum(axis=1).mean(), 1, rtol=1e-12)
        edges = np.linalg.norm(leaf - np.roll(leaf, 1, axis=0), axis=1)
        assert edges.std() < 0.02 * edges.mean()
    for group, mean in ((0, 0.45), (1, 0.05)):
        own = found.parameters["asymmetry"][found.classes == group]
        assert abs(own.mean() - mean) < 4 * 0.05 / np.sqrt(40)


def test_tubes():
    found = sb.simulate_tubes(40, 30, noise=0.0, seed=6)
    assert found.shapes.shape == (70, 128, 3)
    controls, cases = (found.parameters[found.classes == group].mean() for group in (0, 1))
    assert abs(controls["radius"] - 0.22) < 4 * 0.01 / np.sqrt(40)
    assert abs(cases["radius"] - 0.198) < 4 * 0.01 / np.sqrt(30)
    assert abs(controls["swelling"] - 0.5) < 4 * 0.05 / np.sqrt(40)
    assert abs(cases["swelling"] - 0.35) < 4 * 0.05 / np.sqrt(30)
    assert abs(found.parameters["length"].mean() - 1.6) < 4 * 0.1 / np.sqrt(70)
    # all points of a ring are as far from the arc as its radius
    distance = np.hypot(np.hypot(*found.shapes[0, :, :2].T) - 1, found.shapes[0, :, 2])
    made = found.parameters.iloc[0]
    along = np.repeat(np.linspace(0, made["length"], 16), 8)
    expected = made["radius"] * (1 + made["swelling"] * np.exp(-np.square(along / 0.25)))
    np.testing.assert_allclose(distance, expected, rtol=1e-12)
    # turned by at most ten degrees, and not moved
    x = found.x.reshape(found.shapes.shape)
    np.testing.assert_allclose(
        np.linalg.norm(x, axis=2), np.linalg.norm(found.shapes, axis=2), rtol=1e-12
    )
    cosine = (x * found.shapes).sum(axis=2) / np.square(found.shapes).sum(axis=2)
    assert np.cos(np.deg2rad(10)) - 1e-12 <= cosine.min() < 0.999


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sb.simulate_box_bumps(noise=-1.0), "noise"),
        (lambda: sb.simulate_ellipsoids(0), "num_individuals"),
        (lambda: sb.simulate_ellipsoids(num_points=3), "num_points"),
        (lambda: sb.simulate_leaves(width_deviation=np.nan), "width_deviation"),
        (lambda: sb.simulate_tubes(num_cases=2.5), "num_cases"),
    ],
)
def test_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
