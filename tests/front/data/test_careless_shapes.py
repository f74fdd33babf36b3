"""Landmarks and points given carelessly: other names or orders, mirror images, lines, units."""

import numpy as np
import pytest
from sidebayes.models.blocks.manifolds.shape_chart import choose_chart

import sidebayes as sb

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2)) + 0.05 * RNG.normal(size=(12, 6, 2))
CLOUDS = RNG.normal(size=(3, 20, 2)) * [2.0, 1.0]
ROWS, OWN = CLOUDS.reshape(-1, 2), np.repeat(np.arange(3), 20)


def marks(x=X, names="abcdef"):
    return sb.Landmarks.from_array(x, landmark_names=list(names[: x.shape[1]]))


def test_landmarks_are_laid_in_a_frame_by_name():
    frame = sb.register_points(marks())
    other = frame.register(marks(X[:, ::-1], "fedcba"))
    own = np.lexsort((other.landmarks, other.subjects.codes))
    np.testing.assert_allclose(other.x[own], frame.x, atol=1e-9)
    for wrong in (marks(X[:, :5]), marks(names="uvwxyz")):
        with pytest.raises(
            ValueError, match=r"and the frame the 6 landmarks a, b, c.*landmark_names"
        ):
            frame.register(wrong)


def test_landmarks_that_new_individuals_lack_are_those_of_the_frame():
    frame, few = sb.register_points(marks()), X[:2].copy()
    few[0, :3], few[1, 3:] = np.nan, np.nan  # which have none in common
    laid = frame.register(marks(few))
    own = np.lexsort((frame.landmarks, frame.subjects.codes))[[3, 4, 5, 6, 7, 8]]
    assert laid.landmarks.tolist() == [3, 4, 5, 0, 1, 2]
    np.testing.assert_allclose(laid.x, frame.x[own], atol=0.2)
    few[0, 3:5] = np.nan
    with pytest.raises(
        ValueError, match="only 1 of 6 landmarks of individual 0 is present; at least 3"
    ):
        frame.register(marks(few))


def test_mirror_images_beside_a_reference_are_said():
    frame, flipped = sb.register_points(marks()), marks(X * [-1.0, 1.0])
    with pytest.warns(sb.SideBayesWarning, match="individuals look reflected: 0, 1, 2"):
        frame.register(flipped)
    with pytest.warns(sb.SideBayesWarning, match="individuals look reflected: 0, 1, 2"):
        sb.register_points(flipped, reference=X[0])


def test_sizes_in_two_units_are_said():
    size = np.where(np.arange(12) == 5, 1000.0, np.linspace(1.0, 5.0, 12))
    with pytest.warns(sb.SideBayesWarning, match="a factor of 207 or more: 5. Look"):
        marks(size[:, None, None] * X).aligned(scale=False)
    with pytest.warns(sb.SideBayesWarning, match="a factor of 207 or more: 5. Look"):
        choose_chart(marks(size[:, None, None] * X).by_role(), {"size": True})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.where(OWN[:, None] == 1, ROWS * [1, 0], ROWS)}, "individual 1 lie on a line"),
        ({"x": ROWS, "subjects": None}, "subjects is None; give the individual"),
        ({"x": ROWS, "reference": CLOUDS[0], "num_points": 9}, "num_points = 9, .* have 20"),
        ({"x": marks(), "subjects": None, "num_points": 9}, "num_points = 9, .* have 6"),
    ],
)
def test_what_has_no_frame_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        sb.register_points(**{"subjects": OWN, **given})
