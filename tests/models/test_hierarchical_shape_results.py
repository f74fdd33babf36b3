"""What a fit says of shapes: means, modes, differences, quality, pictures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest
from sidebayes.diagnostics.pictures.shapes import plot_shapes
from sidebayes.diagnostics.symmetry.matched import matched_draws
from sidebayes.models.blocks.manifolds import preshape
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart

import sidebayes as sb
from sidebayes import EM, BlockedGibbs, PartialLabels
from sidebayes.results.shapes import _credibility
from tests.support.draws import Told
from tests.support.two_groups import (
    APART,
    AXES,
    BASE,
    LABELS,
    MARKS,
    SHAPES,
    SIZE,
    WHOLE,
    coordinates_of,
    fitted,
)

RNG = np.random.default_rng(1)

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def drawn(known_groups):
    """Draws of the means of two groups, as far apart as their rows are."""
    at, rng = known_groups.params, np.random.default_rng(0)
    noise = rng.multivariate_normal(np.zeros(WHOLE), at["covariance"] / (SIZE // 2), (2, 300, 2))
    draws = {n: np.broadcast_to(at[n], (2, 300, *at[n].shape)) for n in ("weights", "covariance")}
    engine = Told(draws | {"mean": at["mean"] + noise})
    return fitted(engine, known=PartialLabels(np.array(["a", "b"])[LABELS]))


def test_individuals_and_means_are_shapes_of_the_data(known_groups):
    found = known_groups.shapes()
    whole = np.asarray(preshape.to_preshape(SHAPES).shape)
    individuals = found["individuals"].to_numpy()
    np.testing.assert_allclose(preshape.shape_angle(individuals, whole), 0.0, atol=1e-7)
    np.testing.assert_allclose(
        found["mean"].to_numpy(), known_groups.shape_at(known_groups.params["mean"]), atol=1e-12
    )
    assert np.isnan(found["lower"]).all()


def test_modes_are_those_of_the_covariance(known_groups):
    found = known_groups.modes(2, deviations=(-1.0, 0.0, 1.0))
    values = np.linalg.eigvalsh(known_groups.params["covariance"])[::-1]
    np.testing.assert_allclose(found["variance"][0], values[:2])
    np.testing.assert_allclose(found["share"][1], values[:2] / values.sum())
    np.testing.assert_allclose(
        found["shape"][0, :, 1], np.stack([known_groups.shapes()["mean"][0]] * 2)
    )
    chart = ShapeChart.of(known_groups.run.data["chart"])
    steps = np.asarray(chart.coordinates(found["shape"].to_numpy()[0, 1]))
    np.testing.assert_allclose(np.linalg.norm(steps[2] - steps[0]), 2 * np.sqrt(values[1]))
    # of the population: within groups and between their means
    weight, mean = known_groups.params["weights"], known_groups.params["mean"]
    apart = mean[1] - mean[0]
    total = known_groups.params["covariance"] + weight.prod() * np.outer(apart, apart)
    np.testing.assert_allclose(found["variance"][2], np.linalg.eigvalsh(total)[::-1][:2])


def test_draws_give_bands_and_differences_that_hold_the_truth(drawn):
    found = drawn.shape_difference("a", "b", probability=0.95)
    table = coordinates_of(SHAPES, drawn.run.data["chart"])
    means = [drawn.shape_at(table[k == LABELS].mean(axis=0)) for k in (0, 1)]
    inside = (found["lower"] < means[1] - means[0]) & (means[1] - means[0] < found["upper"])
    assert inside.all()
    assert 0 < found["distance_lower"] < found["distance"] < found["distance_upper"]
    back = drawn.shape_difference("b", "a")
    np.testing.assert_allclose(back["mean"], -found["mean"])
    bands = drawn.shapes()
    assert (bands["lower"] <= bands["upper"]).all()
    assert list(bands["group"].to_numpy()) == ["a", "b"]


def test_quality_of_few_modes_equals_a_loop_over_individuals(known_groups):
    found = known_groups.shape_quality(num_samples=200)
    table = coordinates_of(SHAPES, known_groups.run.data["chart"])
    missed = []
    for row in range(SIZE):
        others = np.delete(table, row, axis=0)
        own = table[row] - others.mean(axis=0)
        leading = np.linalg.svd(others - others.mean(axis=0))[2][:3]
        missed.append(np.linalg.norm(own - own @ leading.T @ leading))
    np.testing.assert_allclose(found["generalisation"][3], np.mean(missed))
    variance = np.linalg.eigvalsh(np.cov(table.T))[::-1]
    np.testing.assert_allclose(found["compactness"][3], variance[:3].sum() / variance.sum())
    assert found["specificity"].is_monotonic_increasing
    few = fitted(num_modes=2, known=PartialLabels(LABELS)).shape_quality(num_samples=200)
    pd.testing.assert_frame_equal(few, found)  # of shapes, not of what a chart holds of them
    assert (found["generalisation"].diff().dropna() < 0).all()


def test_files_keep_shapes(known_groups, tmp_path):
    known_groups.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again.shapes()["mean"], known_groups.shapes()["mean"])
    assert again.picture == "shapes"


def test_credibility_is_the_probability_of_the_ellipse_on_whose_edge_zero_lies(drawn):
    found = drawn.shape_difference("a", "b")
    draws = matched_draws(*drawn.relabelled)["mean"]
    moved = drawn.shape_at(draws[:, 1]) - drawn.shape_at(draws[:, 0])
    expected = []
    for mark in range(MARKS):
        precision = np.linalg.inv(np.cov(moved[:, mark].T))
        centre = moved[:, mark].mean(axis=0)
        apart = moved[:, mark] - centre
        inside = np.einsum("si,ij,sj->s", apart, precision, apart) < centre @ precision @ centre
        expected.append(inside.mean())
    np.testing.assert_allclose(found["credibility"], expected, atol=1e-3)
    assert (found["credibility"] > 0.99).any()
    np.testing.assert_array_equal(
        found["credibility"], drawn.shape_difference("b", "a")["credibility"]
    )


def test_groups_that_do_not_differ_are_not_said_to():
    """The credibility of a difference that is zero is uniform."""
    rng = np.random.default_rng(2)
    moved = rng.normal(size=(400, 300, 1, 2)) + rng.normal(size=(300, 1, 2))
    found = _credibility(moved)
    assert kstest(found.ravel(), "uniform").pvalue > 1e-3
    assert np.isnan(_credibility(moved[:1])).all()


@pytest.mark.slow
def test_bands_along_an_outline_are_intervals_of_the_change_across_it():
    angle = 2 * np.pi * np.arange(8) / 8
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rng = np.random.default_rng(0)
    wide = circle * (1 + 0.1 * LABELS[:, None, None] * np.array([1.0, 0.0]))
    x = wide + rng.normal(scale=0.02, size=(SIZE, 8, 2))
    engine = BlockedGibbs(num_warmup=100, num_samples=300, num_chains=2)
    given = {"shapes": x, "known": PartialLabels(LABELS), "num_modes": 12}
    fit = fitted(engine, outline="closed", **given)
    found = fit.shapes(probability=0.8)
    # outwards, as the circle is run through against the clock
    normal = found["normal"].to_numpy()
    np.testing.assert_allclose(normal, circle, atol=0.05)
    draws = matched_draws(*fit.relabelled)["mean"]
    weights = matched_draws(*fit.relabelled)["weights"]
    middle = fit.shape_at(np.einsum("sg,sgd->sd", weights, draws))
    across = ((fit.shape_at(draws[:, 1]) - middle) * normal).sum(axis=-1)
    np.testing.assert_allclose(found["change_lower"][1], np.quantile(across, 0.1, axis=0))
    np.testing.assert_allclose(found["change_upper"][1], np.quantile(across, 0.9, axis=0))
    assert found["change_lower"][1, 0] > 0 > found["change_upper"][1, 2]  # wider, and lower
    opened = fitted(EM(num_restarts=1), outline="open", **given).shapes()["normal"].to_numpy()
    edge = circle[1] - circle[0]
    np.testing.assert_allclose(opened[0], [edge[1], -edge[0]] / np.linalg.norm(edge), atol=0.05)
    np.testing.assert_allclose(opened[1:-1], normal[1:-1], atol=0.02)
    figure = fit.plot()
    bands = [len(axis.patches) for axis in figure.axes]
    assert bands[2:4] == [1, 1]
    assert "from the population" in figure.axes[2].get_title()
    with pytest.raises(ValueError, match="outline = 'round'; expected None, 'open' or 'closed'"):
        fitted(EM(num_restarts=1), outline="round", **given)


def test_the_difference_that_is_drawn_is_of_the_groups_farthest_apart():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], SIZE // 3)
    x = BASE + np.array([0.0, 1.0, -0.2])[labels, None, None] * APART
    x = x + rng.normal(scale=0.05, size=x.shape)
    names = np.array(["a", "b", "c"])[labels]
    fit = fitted(EM(num_restarts=1), x, num_clusters=3, num_modes=3, known=PartialLabels(names))
    titles = [axis.get_title() for axis in fit.plot().axes]
    assert titles[5].startswith("c less b")


def test_shapes_are_drawn_in_the_plane_and_in_space(known_groups):
    titles = [axis.get_title() for axis in known_groups.plot().axes]
    assert titles[0] == "individuals and means"
    assert titles[1] == "which points correspond"
    assert "from the population" in titles[2]
    assert titles[4].startswith("1 less 0")
    assert "mode 1" in titles[5]
    solid = [
        one.isel(axis=[0, 1, 0])
        for one in (
            known_groups.shapes(),
            known_groups.modes(2),
            known_groups.shape_difference(0, 1),
        )
    ]
    axes = plot_shapes(*solid[:2], known_groups.responsibilities(), solid[2]).axes
    assert len(axes) == len(titles)
    for axis in axes[:-1]:  # one unit is as long on each axis
        sides = np.diff(np.array([axis.get_xlim(), axis.get_ylim(), axis.get_zlim()]))[:, 0]
        np.testing.assert_allclose(sides / axis._box_aspect, (sides / axis._box_aspect)[0])


def test_groups_without_a_name_have_numbers():
    names = np.where(np.arange(SIZE) < 4, "a", None)
    names[20:] = "b"
    fit = fitted(known=PartialLabels(names), num_clusters=3, num_modes=2)
    assert fit.shapes()["group"].to_numpy().tolist() == ["a", "b", 2]
    assert fit.modes(1)["group"].to_numpy().tolist() == ["a", "b", 2, "population"]
    assert fit.shape_difference("a", 2)["distance"] > 0


def test_a_chart_of_one_direction_has_one_mode():
    fit = fitted(EM(num_restarts=1), num_modes=1)
    assert fit.modes().sizes["mode"] == 1
    # individuals, correspondence, two groups, their difference with its colours, one mode
    assert len(fit.plot().axes) == 7


def test_size_is_one_more_coordinate():
    sizes = np.where(LABELS == 0, 3.0, 30.0) * RNG.uniform(0.9, 1.1, SIZE)
    scaled = preshape.to_preshape(SHAPES).shape * sizes[:, None, None]
    fit = fitted(shapes=np.asarray(scaled), known=PartialLabels(LABELS), size=True, prior="flat")
    expected = [np.log(sizes)[k == LABELS].mean() for k in (0, 1)]
    np.testing.assert_allclose(fit.params["mean"][:, -1], expected, atol=1e-6)
    assert fit.shapes()["mean"].shape == (2, MARKS, AXES)
    assert fit.modes(2)["shape"].shape == (3, 2, 2, MARKS, AXES)
