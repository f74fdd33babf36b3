"""Landmarks in the frame of latent_shape: their size, the checks of it, and fits of what is registered."""

from functools import partial

import jax
import numpy as np
import numpyro
import pytest
from scipy.stats import norm
from sidebayes.guides.engines.problem.declared import declared_blocks
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites
from sidebayes.models.blocks.manifolds.point_clouds.completion import completed
from sidebayes.models.blocks.manifolds.point_clouds.point_sets import LandmarkErrors, PointNoise
from sidebayes.models.blocks.manifolds.point_clouds.rough_shapes import (
    LatentCoordinates,
    check_registered,
)
from sidebayes.models.blocks.manifolds.point_clouds.similarity import laid_on
from sidebayes.models.latent_shape import latent_shape

import sidebayes as sb
from tests.support.draws import at_one

FEW = sb.MonteCarloEM(num_samples=16, max_samples=16, max_steps=1, num_warmup=10)
ANGLE = np.linspace(0, 2 * np.pi, 8, endpoint=False)
MEAN = np.c_[np.cos(ANGLE), 0.6 * np.sin(ANGLE)]
MEAN = MEAN / np.linalg.norm(MEAN)
BEND = np.c_[np.zeros(8), np.cos(2 * ANGLE)]
BEND = BEND - (BEND * MEAN).sum() * MEAN
BEND = BEND / np.linalg.norm(BEND)


def bent(angles):
    """Shapes on a geodesic through the mean, in other units."""
    a = np.asarray(angles)[:, None, None]
    noise = 0.01 * np.random.default_rng(0).normal(size=(len(a), 8, 2))
    return 3 * (np.cos(a) * MEAN + np.sin(a) * BEND + noise) + 7


def norms(laid, number):
    rows = laid.x.reshape(number, 8, 2)
    return np.linalg.norm(rows - rows.mean(axis=1, keepdims=True), axis=(1, 2))


def test_complete_landmarks_have_norm_one_however_far_from_the_reference():
    laid = sb.register_points(sb.Landmarks.from_array(bent(np.linspace(-0.5, 0.5, 9))))
    np.testing.assert_allclose(norms(laid, 9), 1.0, atol=1e-12)
    new = laid.register(sb.Landmarks.from_array(bent([0.9])))
    np.testing.assert_allclose(norms(new, 1), 1.0, atol=1e-12)


def test_incomplete_landmarks_have_norm_one_with_the_reference_where_they_lack_one():
    x = bent(np.linspace(-0.4, 0.4, 9))
    x[2, 5] = x[7, 0] = np.nan
    laid = sb.register_points(sb.Landmarks.from_array(x))
    whole = np.repeat(laid.chart[None, ..., 0], 9, axis=0)
    whole[laid.subjects.codes, laid.landmarks] = laid.x
    np.testing.assert_allclose(whole.mean(axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=(1, 2)), 1.0, atol=1e-12)


def test_what_was_registered_is_taken_whole_and_however_it_is_bent():
    laid = sb.register_points(sb.Landmarks.from_array(bent(np.linspace(-0.7, 0.7, 9))))
    at = {"weights": [1.0], "mean": np.zeros((1, 2)), "loadings": [[[0.1], [0.0]]]}
    at |= {"variance": [0.01], "coordinates": np.zeros((9, 2)), "noise_variance": 0.01}
    fit = sb.fit("latent_shape", laid, engine=at_one(at), progress=False)
    sites = latent_sites(abstract_trace(fit.run.problem))
    assert sites["coordinates"]["value"].shape[0] == 9
    assert sites["loadings"]["value"].shape[-1] == 1  # of the two directions of the chart
    np.testing.assert_array_equal(fit.run.data["chart"], laid.chart)
    with pytest.raises(TypeError, match="'chart'.* by name and in the registered points"):
        sb.fit("latent_shape", laid, chart=laid.chart, engine=FEW)
    other = sb.register_points(sb.Landmarks.from_array(bent(np.linspace(-0.2, 0.3, 9))))
    with pytest.raises(ValueError, match="chart is another than that of the fit"):
        fit.group_log_likelihood(other)


def said_of(kind, laid, **options):
    """What blocks of a kind say where the verdict is made; nothing is computed."""
    said = []

    def model():
        with numpyro.handlers.seed(rng_seed=0):
            trace = numpyro.handlers.trace(latent_shape).get_trace(
                **laid.by_role(), num_clusters=1, **options
            )
        blocks = [block for block, _ in declared_blocks(trace) if isinstance(block, kind)]
        said.extend(block.remark({}) for block in blocks)

    jax.eval_shape(model)
    return said


said_of_noise, said_of_shapes = partial(said_of, PointNoise), partial(said_of, LatentCoordinates)


def test_where_the_chart_has_all_directions_the_width_is_asked_for():
    landmarks = sb.Landmarks.from_array(bent(np.linspace(-0.7, 0.7, 9)))
    assert said_of_noise(sb.register_points(landmarks)) == [None]
    every_way = sb.register_points(landmarks, num_modes=12)
    (said,) = said_of_noise(every_way)
    assert "give width=" in said
    assert said_of_noise(every_way, width=0.01) == []


def turned(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@pytest.mark.parametrize(
    "change", [lambda x: x @ turned(0.8), lambda x: 2 * x, lambda x: x / 3, lambda x: x + 0.4]
)
def test_other_places_sizes_and_rotations_are_refused(change):
    laid = sb.register_points(sb.Landmarks.from_array(bent(np.linspace(-0.8, 0.8, 9))))
    data = laid.by_role()
    check_registered(data)
    moved = np.where((laid.subjects.codes == 3)[:, None], change(laid.x), laid.x)
    with pytest.raises(
        ValueError, match="rows of individual 3 do not lie .* give the fit what it returns"
    ):
        check_registered(data | {"x": moved})


def test_a_chart_of_one_direction_is_told_to_have_two():
    laid = sb.register_points(sb.Landmarks.from_array(bent(np.linspace(-0.2, 0.3, 9))), num_modes=1)
    with pytest.raises(ValueError, match="num_modes=2 or more to sidebayes.register_points"):
        sb.fit("latent_shape", laid, engine=FEW)


def test_what_is_lacking_is_what_registration_returns():
    with pytest.raises(TypeError, match="register_points returns them, and is given whole"):
        sb.fit("latent_shape", np.zeros((9, 2)))


@pytest.mark.parametrize("prior", ["flat", None, 0.2, sb.GaussianPrior])
def test_a_prior_of_another_kind_is_refused(prior):
    laid = sb.register_points(sb.Landmarks.from_array(bent(np.linspace(-0.2, 0.3, 9))))
    with pytest.raises(
        TypeError, match=r"prior = .*; expected a LowRankPrior, such as sidebayes\."
    ):
        sb.fit("latent_shape", laid, prior=prior, engine=FEW)


def test_a_prior_is_public_and_kept_with_its_fit(tmp_path):
    laid = sb.register_points(sb.Landmarks.from_array(bent(np.linspace(-0.2, 0.3, 9))), num_modes=2)
    at = {"weights": [1.0], "mean": [[0.0, 0.0]], "loadings": [[[0.1], [0.0]]], "variance": [0.01]}
    engine = at_one(at | {"coordinates": np.zeros((9, 2))})
    given = {"prior": sb.LowRankPrior(0.1), "rank": 1, "width": 0.1}
    sb.fit("latent_shape", laid, engine=engine, progress=False, **given).save(tmp_path / "fit.nc")
    found = sb.load(tmp_path / "fit.nc", engine=engine)
    assert found.run.options["prior"] == sb.LowRankPrior(0.1)


@pytest.mark.parametrize(("num_axes", "num_fixed"), [(2, 4), (3, 7)])
def test_errors_have_no_part_in_place_size_and_rotation(num_axes, num_fixed):
    """The density is that of a normal in the directions that draws span."""
    rng = np.random.default_rng(0)
    subjects, landmarks = sb.Groups(np.repeat([0, 1], [6, 5])), np.r_[:6, :5]
    shapes = rng.normal(size=(2, 6, num_axes))
    errors = LandmarkErrors(shapes, 0.1, subjects, landmarks)
    draws = np.asarray(errors.sample(jax.random.key(0), (500,)), float)
    apart = draws - shapes[subjects.codes, landmarks]
    for code, density in enumerate(np.asarray(errors.by_unit(draws[0]))):
        own = apart[:, subjects.codes == code].reshape(500, -1)
        _, size, _ = np.linalg.svd(own)
        free = own.shape[1] - num_fixed
        assert size[free - 1] > 1.0 > 1e-3 > size[free]
        np.testing.assert_allclose(np.square(own).sum(axis=1).mean(), 0.01 * free, rtol=0.1)
        expected = norm(scale=0.1).logpdf(np.r_[np.linalg.norm(own[0]), np.zeros(free - 1)]).sum()
        assert density == pytest.approx(expected, rel=1e-4)
        spin = own.reshape(500, -1, num_axes).sum(axis=1)
        np.testing.assert_allclose(spin, 0.0, atol=1e-5)


def with_holes(x):
    """A tenth of the landmarks are missing."""
    x = x.copy()
    x[np.random.default_rng(1).random(x.shape[:2]) < 0.1] = np.nan
    return x


def test_missing_landmarks_are_predicted_from_how_shapes_vary():
    x = bent(np.linspace(-0.5, 0.5, 20))
    found = sb.Landmarks.from_array(with_holes(x)).aligned()
    present = np.isfinite(with_holes(x)).all(axis=2)
    with jax.enable_x64(True):
        whole, moved = completed(found.completed, present)
        wanted = np.asarray(laid_on(x, whole, present, np.ones(20, bool)))
    np.testing.assert_allclose(wanted[present], whole[present], atol=1e-9)
    assert np.abs(wanted - whole)[~present].max() < 0.04  # 0.2 if they are those of the mean
    assert moved < 1e-6
    np.testing.assert_array_equal(completed(x, np.ones_like(present))[0], x)


def test_the_chart_has_all_directions_beyond_noise():
    """The third has less than five hundredths of the variance, and much more than noise has."""
    rng = np.random.default_rng(11)
    angle = np.linspace(0, 2 * np.pi, 6, endpoint=False)
    parts = rng.normal(size=(3, 6, 2))
    spread = rng.normal(size=(24, 3)) * [0.1, 0.05, 0.03]
    shapes = np.c_[1.5 * np.cos(angle), np.sin(angle)] + np.tensordot(spread, parts, 1)
    measured = shapes + 0.01 * rng.normal(size=shapes.shape)
    assert sb.shape_chart(measured).shape[2] - 1 == 2
    assert sb.register_points(sb.Landmarks.from_array(measured)).chart.shape[2] - 1 == 3
    one = bent(np.linspace(-0.5, 0.5, 20))  # without noise
    assert sb.register_points(sb.Landmarks.from_array(one)).chart.shape[2] - 1 == 2


def test_predictions_that_have_not_converged_are_warned_of(monkeypatch):
    marks = sb.Landmarks.from_array(with_holes(bent(np.linspace(-0.5, 0.5, 20))))
    monkeypatch.setattr("sidebayes.models.blocks.manifolds.point_clouds.completion._CYCLES", 1)
    with pytest.warns(
        sb.SideBayesWarning, match="of all, are not told well by those that are seen"
    ):
        sb.register_points(marks)


def test_half_of_the_landmarks_may_be_missing():
    """Rounds that end too early leave errors of a tenth of the size of the shapes."""
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(2, 12, 2)) * np.array([0.3, 0.2])[:, None, None]
    whole = rng.normal(size=(12, 2)) + np.tensordot(rng.normal(size=(40, 2)), parts, 1)
    x = whole + 0.01 * rng.normal(size=whole.shape)
    gone = rng.random((40, 12)) < 0.5
    gone[:, :4] = False
    x[gone] = np.nan
    found = sb.Landmarks.from_array(x).aligned()
    with jax.enable_x64(True):
        made, moved = completed(found.completed, ~gone)
        beside = np.asarray(laid_on(whole, made, ~gone, np.ones(40, bool)))
    assert moved < 1e-6
    assert np.sqrt(np.square(beside - made)[gone].mean()) < 0.01


def test_the_chart_does_not_shrink_where_landmarks_are_missing():
    x = bent(np.linspace(-0.5, 0.5, 20))
    charts = [sb.register_points(sb.Landmarks.from_array(one)).chart for one in (x, with_holes(x))]
    first, second = (chart[..., 1].ravel() for chart in charts)
    assert abs(first @ second) > 0.999


@pytest.mark.parametrize("axes", [2, 3])
def test_incomplete_individuals_may_lie_anywhere(axes):
    """Their place, size and rotation depend on what is missing; those of complete ones do not."""
    rng = np.random.default_rng(0)
    shapes = rng.normal(size=(2, 6, axes))
    codes, marks = np.r_[np.zeros(6, int), np.ones(5, int)], np.r_[:6, :5]
    noise = 0.01 * rng.normal(size=(11, axes))
    turn = np.eye(axes)
    turn[:2, :2] = turned(0.7)
    moved = np.where(codes[:, None] == 1, shapes[codes, marks] @ turn + 0.4, shapes[codes, marks])
    with jax.enable_x64(True):
        fn = LandmarkErrors(*map(np.asarray, (shapes, 0.01)), sb.Groups(codes), marks)
        at_shapes = np.asarray(fn.by_unit(shapes[codes, marks] + noise))
        found = np.asarray(fn.by_unit(moved + noise @ turn))
        slope = jax.grad(lambda s: LandmarkErrors(s, 0.01, fn.groups, marks).by_unit(moved).sum())
        assert np.isfinite(slope(shapes)).all()
    np.testing.assert_allclose(found[1], at_shapes[1], rtol=1e-9)
    square = (noise[:6] ** 2).sum() / 0.01**2
    free = 6 * axes - {2: 4, 3: 7}[axes]
    wanted = -square / 2 - free * np.log(0.01 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(at_shapes[0], wanted)


def test_a_chart_of_some_directions_is_said_to_hold_missing_landmarks_badly():
    x = bent(np.linspace(-0.5, 0.5, 20))
    whole, some = (sb.Landmarks.from_array(one) for one in (x, with_holes(x)))
    assert said_of_shapes(sb.register_points(whole)) == [None]
    assert said_of_shapes(sb.register_points(some, num_modes=12)) == [None]
    (said,) = said_of_shapes(sb.register_points(some, num_modes=2))
    assert "2 of 12 directions" in said
    assert "register_points(num_modes=12), and width=" in said
