"""Landmarks: the container, their alignment, and what is wrong with individuals."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from sidebayes import Groups, Landmarks, SideBayesWarning, register_points

RNG = np.random.default_rng(0)
MEAN = RNG.normal(size=(8, 2))
SOLID = RNG.normal(size=(8, 3))


def shapes(individuals=10, mean=MEAN, noise=0.03, seed=1):
    rng = np.random.default_rng(seed)
    return mean + noise * rng.normal(size=(individuals, *mean.shape))


def with_gaps():
    x = shapes()
    x[2, 0] = x[7, 3] = x[7, 4] = np.nan
    return x


def test_array_there_and_back():
    x = with_gaps()
    names = [f"ind{n}" for n in range(9, -1, -1)]  # sorted in reverse
    sex = np.array(list("mf") * 5)
    marks = Landmarks.from_array(x, subjects=names, covariates={"sex": sex}, units="mm")
    assert len(marks) == 10
    assert len(marks.x) == 77
    np.testing.assert_array_equal(marks.to_array(), x[::-1])
    np.testing.assert_array_equal(marks.present, np.isfinite(x[::-1, :, 0]))
    assert marks.covariates["sex"].tolist() == sex[::-1].tolist()
    assert "3 missing" in repr(marks)
    assert "mm" in repr(marks)
    assert "ind4" in marks._repr_html_()
    frame = marks.to_frame()
    assert list(frame) == ["individual", "landmark", "x", "y", "sex"]
    again = Landmarks(
        frame[["x", "y"]],
        frame["individual"],
        frame["landmark"],
        landmark_names=marks.landmark_names,
        covariates=marks.covariates,
    )
    np.testing.assert_array_equal(again.to_array(), marks.to_array())


def test_rows_are_what_models_take():
    marks = Landmarks([[0, 0], [1, 0], [0, 1], [5, 5]], list("bbba"), ["tip", "eye", "ear", "eye"])
    assert marks.landmark_names == ("tip", "eye", "ear")
    assert marks.landmarks.tolist() == [0, 1, 2, 1]
    assert marks.subjects.codes.tolist() == [1, 1, 1, 0]
    with pytest.raises(ValueError, match="read-only"):
        marks.x[0] = 3


def test_take():
    marks = Landmarks.from_array(with_gaps(), covariates={"age": np.arange(10.0)})
    some = marks.take([7, 2])
    np.testing.assert_array_equal(some.to_array(), with_gaps()[[2, 7]])
    assert some.covariates["age"].tolist() == [2, 7]
    assert some.names.tolist() == [2, 7]
    assert len(marks.take(np.arange(10) < 4)) == 4
    assert len(marks.take(slice(3))) == 3


def test_covariates_are_matched_by_name():
    table = pd.DataFrame({"age": [1, 2]}, index=["bob", "ann"])
    marks = Landmarks([[0, 0], [1, 1]], ["ann", "bob"], [0, 0], covariates=table)
    assert marks.covariates.loc["ann", "age"] == 2
    with pytest.raises(ValueError, match="by its index"):
        Landmarks.from_array(np.zeros((2, 1, 2)), subjects=["ann", "bob"], covariates=table)


def test_points_that_do_not_correspond():
    points = Landmarks(RNG.normal(size=(9, 3)), np.repeat(["a", "b"], [4, 5]))
    assert repr(points) == "Landmarks(2 individuals, 9 points in 3-D)"
    assert list(points.to_frame()) == ["individual", "x", "y", "z"]
    assert len(points.take([1]).x) == 5
    with pytest.raises(ValueError, match=r"4 to 5 each.*do not correspond"):
        points.aligned()


GOOD = {"x": [[0, 0], [1, 1]], "subjects": ["a", "a"], "landmarks": [0, 1]}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": [[0, 0, 0, 0], [1, 1, 1, 1]]}, "has 4 coordinates"),
        ({"x": [[0, np.nan], [1, 1]]}, "missing or infinite"),
        ({"subjects": ["a"]}, "has 1 rows and x has 2"),
        ({"subjects": ["a", None]}, "row 1 has no individual"),
        ({"landmarks": [0]}, r"landmarks has shape \(1,\)"),
        ({"landmarks": [0, 0]}, "'a' has landmark 0 twice, again in row 1"),
        ({"landmarks": [-1, 1]}, r"landmarks\[0\] = -1"),
        ({"landmarks": [0, 2], "landmark_names": ["a", "b"]}, r"landmarks\[1\] = 2; .* to 1"),
        ({"landmarks": ["a", "c"], "landmark_names": ["a", "b"]}, r"landmarks\[1\] = 'c' is not"),
        ({"landmarks": [0, 5]}, r"landmarks\[1\] = 5; expected 0 to 1"),
        ({"landmark_names": ["a", "a"]}, "repeat a name"),
        ({"landmarks": None, "landmark_names": ["a"]}, "without landmarks"),
        ({"covariates": {"age": [1, 2, 3]}}, "3 rows for 1 individuals"),
    ],
)
def test_refusals(change, match):
    with pytest.raises(ValueError, match=match):
        Landmarks(**GOOD | change)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"landmarks": [0.5, 1.5]}, "landmarks holds float64"),
        ({"covariates": [1]}, "covariates is a list"),
        ({"units": 3}, "units = 3"),
        ({"landmark_names": "ab"}, "landmark_names = 'ab'"),
    ],
)
def test_refusals_of_types(change, match):
    with pytest.raises(TypeError, match=match):
        Landmarks(**GOOD | change)


@pytest.mark.parametrize(
    ("x", "more", "match"),
    [
        (np.zeros((3, 2)), {}, r"x has shape \(3, 2\)"),
        (np.array([[[0, np.nan]]]), {}, r"x\[0, 0\] = .*NaN in all"),
        (np.full((2, 3, 2), np.nan), {}, "individual 0 has no landmark at all"),
        (np.zeros((2, 3, 2)), {"subjects": ["a", "a"]}, "'a' twice"),
        (np.zeros((2, 3, 2)), {"subjects": ["a"]}, r"expected \(2,\)"),
    ],
)
def test_refusals_of_arrays(x, more, match):
    with pytest.raises(ValueError, match=match):
        Landmarks.from_array(x, **more)


@pytest.mark.parametrize("mean", [MEAN, SOLID], ids=["2-D", "3-D"])
def test_aligned(mean):
    x = 7 * shapes(mean=mean) + 3
    x[2, 1] = np.nan
    found = Landmarks.from_array(x, subjects=np.arange(10) + 100).aligned()
    assert found.shapes.shape == x.shape
    np.testing.assert_array_equal(np.isnan(found.shapes), np.isnan(x))
    assert np.isfinite(found.completed).all()
    whole = np.delete(x, 2, axis=0)
    sizes = np.linalg.norm(whole - whole.mean(axis=1, keepdims=True), axis=(1, 2))
    np.testing.assert_allclose(np.delete(found.sizes, 2), sizes)
    np.testing.assert_allclose(np.linalg.norm(found.coordinates, axis=1), found.distances)
    axes = mean.shape[1]
    assert found.coordinates.shape[1] == 8 * axes - axes - 1 - axes * (axes - 1) // 2
    assert found.to_frame().index.tolist() == list(range(100, 110))
    assert "root mean square" in repr(found)
    assert "102" in found._repr_html_()


def broken(number, change, mean=MEAN):
    x = shapes(mean=mean)
    x[number] = change(x[number])
    return Landmarks.from_array(x)


@pytest.mark.parametrize("mean", [MEAN, SOLID], ids=["2-D", "3-D"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (np.zeros_like, "individual 4 lie in one point"),
        (lambda x: 0 * x + 1e6 + 0.1, "individual 4 lie in one point"),
        (lambda x: x[:, :1] * np.ones(x.shape[1]), "individual 4 lie on a line"),
    ],
)
def test_refusals_of_shapes(change, match, mean):
    marks = broken(4, change, mean)
    with pytest.raises(ValueError, match=match):
        marks.aligned()


def test_refusals_of_gaps():
    x = shapes()
    x[3, 1:] = np.nan
    with pytest.raises(
        ValueError, match="only 1 of 8 landmarks of individual 3 is present; at least 3"
    ):
        Landmarks.from_array(x).aligned()
    x[3, :2] = shapes()[3, :2]
    with pytest.raises(
        ValueError, match="only 2 of 8 landmarks of individual 3 are present; at least 3"
    ):
        Landmarks.from_array(x).aligned()
    x = shapes()
    x[:, :2], x[3, :2], x[3, 3:] = np.nan, shapes()[3, :2], np.nan
    with pytest.raises(
        ValueError, match="individual 3 has 1 landmark in common with 0, which has the most"
    ):
        Landmarks.from_array(x).aligned()
    with pytest.raises(ValueError, match="2 landmarks in 2 dimensions, which have no shape"):
        Landmarks.from_array(shapes()[:, :2]).aligned()
    x = shapes()
    x[:, 5] = np.nan
    with pytest.raises(ValueError, match="no individual has landmark 5"):
        Landmarks.from_array(x).aligned()


def test_antipodal_shapes():
    """Triangles that are mirror images of one another, equilateral ones, are antipodal."""
    triangle = np.array([[0, 0], [1, 0], [0.5, 0.75**0.5]])
    x = np.stack([triangle] * 3 + [triangle * [-1, 1]])
    with pytest.raises(ValueError, match="individual 3 is at distance pi / 2"):
        Landmarks.from_array(x).aligned()


def test_reflected_individuals():
    x = shapes()
    x[[2, 5, 6, 9]] *= [1, -1]
    with pytest.warns(SideBayesWarning, match=r"look reflected: 2, 5, 6, 9\."):
        Landmarks.from_array(x).aligned()
    planar = np.concatenate([shapes(), np.zeros((10, 8, 1))], axis=2)
    planar[3] *= [1, -1, 1]  # a rotation in space
    Landmarks.from_array(planar + 1e-4 * RNG.normal(size=planar.shape)).aligned()
    solid = shapes(mean=SOLID)
    solid[3] *= [1, 1, -1]
    with pytest.warns(SideBayesWarning, match=r"look reflected: 3\."):
        Landmarks.from_array(solid).aligned()


@pytest.mark.parametrize("mean", [MEAN, SOLID], ids=["2-D", "3-D"])
@pytest.mark.parametrize(
    "order", [[1, 0, *range(2, 8)], np.roll(np.arange(8), 3), np.arange(8)[::-1]]
)
def test_landmarks_in_another_order(mean, order):
    x = shapes(mean=mean)
    x[7] = x[7, order]
    with pytest.warns(SideBayesWarning, match=r"another order: 7\."):
        Landmarks.from_array(x).aligned()


def test_many_landmarks_in_no_order():
    """Outlines whose axes are hardly longer one than the other need more than one turn."""
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    radius = 1 + 0.3 * np.cos(3 * angle) + 0.1 * np.cos(angle)
    x = shapes(12, radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), 0.04)
    x[[5, 7]] = x[[5, 7]][:, np.random.default_rng(0).permutation(40)]
    with pytest.warns(SideBayesWarning, match=r"another order: 5, 7\."):
        Landmarks.from_array(x).aligned()


def test_odd_shapes_are_not_accused():
    """An individual that is unlike the others is far off, but neither reflected nor out of order."""
    x = shapes()
    x[7] += 0.5 * np.random.default_rng(5).normal(size=MEAN.shape)
    with pytest.warns(SideBayesWarning) as said:
        found = Landmarks.from_array(x).aligned()
    (one,) = said
    assert "from all others as is usual: 7." in str(one.message)
    assert found.distances[7] > 5 * np.median(found.distances)


def test_copies():
    x = shapes()
    x[6] = 3 * x[2] + 1
    with pytest.warns(SideBayesWarning, match=r"the same shape: 2 and 6\. "):
        Landmarks.from_array(x).aligned()
    x = shapes()
    x[4, 3] = x[4, 6]
    with pytest.warns(SideBayesWarning, match=r"same place: 4; the first 3, 6\."):
        Landmarks.from_array(x).aligned()


def test_groups_as_subjects():
    groups = Groups(["a", "b", "b"]).take([1, 2])
    assert Landmarks([[0, 0], [1, 1]], groups, [0, 1]).names.tolist() == ["b"]


def test_missing_landmarks_are_no_evidence_of_others_far_off():
    """They are filled in; individuals are compared by those that were seen."""
    rng = np.random.default_rng(39)
    turn = np.linspace(0, 2 * np.pi, 6, endpoint=False)
    along = rng.normal(size=(6, 2))
    shapes = np.stack([1.5 * np.cos(turn), np.sin(turn)], axis=1)
    shapes = shapes + 0.08 * rng.normal(size=(24, 1, 1)) * along
    shapes += 0.01 * rng.normal(size=shapes.shape)
    shapes[rng.random((24, 6)) < 0.1] = np.nan
    Landmarks.from_array(shapes).aligned()

    rng = np.random.default_rng(0)
    shapes = rng.normal(size=(8, 2)) + 0.02 * rng.normal(size=(24, 8, 2))
    shapes[rng.random((24, 8)) < 0.12] = np.nan
    shapes[3] = shapes[np.isfinite(shapes).all(axis=(1, 2))][0] + 0.02 * rng.normal(size=(8, 2))
    shapes[3, 2] += 20
    shapes[3, 5] = np.nan
    with pytest.warns(SideBayesWarning, match=r"do not: landmark 2 of individual 3\. Look"):
        Landmarks.from_array(shapes).aligned()


def test_landmarks_and_points_far_off_are_named():
    rng = np.random.default_rng(0)
    turn = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    shapes = np.stack([np.cos(turn), 0.6 * np.sin(turn)], axis=1) + 0.04 * rng.normal(
        size=(12, 8, 2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Landmarks.from_array(shapes).aligned()
    one, all_of_them = shapes.copy(), shapes.copy()
    one[3, 2] *= 100
    all_of_them[5] = rng.normal(size=(8, 2))
    with pytest.warns(
        SideBayesWarning, match=r"as far off as is usual.*: landmark 2 of individual 3\. Look"
    ):
        Landmarks.from_array(one).aligned()
    steady = shapes.mean(axis=0) + 0.1 * (all_of_them - shapes.mean(axis=0))
    steady[5] = all_of_them[5]
    with pytest.warns(SideBayesWarning, match=r"far from all others as is usual: 5\. Look"):
        Landmarks.from_array(steady).aligned()
    points = shapes.reshape(-1, 2).copy()
    points[20] += 1e3
    with pytest.warns(SideBayesWarning, match=r"row 20 of individual 2\. They"):
        register_points(points, np.repeat(np.arange(12), 8), num_points=6)


def test_what_is_odd_about_landmarks_is_said_once():
    whole = shapes(12)
    whole[3, 2] += 3.0
    whole[[1, 5, 8], 0] = np.nan
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        register_points(Landmarks.from_array(whole))
    assert [str(one.message).count("individual 3") for one in said] == [1]
