"""Triangles in space have a shape, which is that of triangles in the plane."""

import numpy as np
import pytest

import sidebayes as sb

PLANE = np.array([[0, 0], [1, 0], [0.3, 0.8]])
FLAT = PLANE + 0.05 * np.random.default_rng(0).normal(size=(20, 3, 2))
TURNS = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 3, 3)))[0]
SPACE = np.pad(FLAT, ((0, 0), (0, 0), (0, 1))) @ TURNS


def in_own_planes(x):
    """The first landmark at the origin, the second on the first axis, the third above it."""
    one, two = (x[:, k] - x[:, 0] for k in (1, 2))
    base = np.linalg.norm(one, axis=1)
    along = (one * two).sum(axis=1) / base
    above = np.linalg.norm(np.cross(one, two), axis=1) / base
    zero = np.zeros(len(x))
    return np.stack([zero, zero, base, zero, along, above], axis=1).reshape(-1, 3, 2)


@pytest.mark.parametrize(
    "use",
    [
        lambda marks: marks.aligned(),
        lambda marks: sb.group_test(marks, np.arange(20) % 2),
        lambda marks: sb.register_points(marks),
        lambda marks: sb.fit("hierarchical_shape", marks, progress=False),
    ],
)
def test_triangles_in_space_are_refused_with_the_way_to_their_shapes(use):
    wanted = (
        "more landmarks than dimensions; give at least 4, or two coordinates .* its own triangle"
    )
    with pytest.raises(ValueError, match=wanted) as refused:
        use(sb.Landmarks.from_array(SPACE))
    assert "no shape" not in str(refused.value)


def test_the_way_gives_their_shapes():
    found = sb.Landmarks.from_array(in_own_planes(SPACE)).aligned()
    wanted = sb.Landmarks.from_array(FLAT).aligned()
    np.testing.assert_allclose(found.distances, wanted.distances, rtol=1e-6)


def test_what_has_no_shape_is_said_to_have_none():
    for x in (SPACE[:, :2], FLAT[:, :2]):
        with pytest.raises(ValueError, match="which have no shape; give at least"):
            sb.Landmarks.from_array(x).aligned()
