"""Groups of shapes: the chart, the density of a mixture of coordinates, what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.manifolds import preshape
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart, choose_chart
from sidebayes.models.hierarchical_shape import hierarchical_shape
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import sidebayes as sb
from sidebayes import EM, NUTS, BlockedGibbs, Links, PartialLabels, shape_chart
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
    posed,
    rows,
)

RNG = np.random.default_rng(1)

pytestmark = pytest.mark.usefixtures("double")


def test_a_chart_is_orthonormal_and_its_shapes_are_aligned():
    chart = ShapeChart.of(shape_chart(SHAPES, WHOLE))
    np.testing.assert_allclose(chart.directions.T @ chart.directions, np.eye(WHOLE), atol=1e-12)
    found = chart.shapes(chart.coordinates(posed(SHAPES)))
    np.testing.assert_allclose(found.sum(axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found, axis=(1, 2)), 1.0)
    cross = np.swapaxes(found, 1, 2) @ chart.reference
    np.testing.assert_allclose(cross, np.swapaxes(cross, 1, 2), atol=1e-12)
    # nothing is lost in a whole chart, and few directions are the principal ones
    original = preshape.to_preshape(SHAPES).shape
    np.testing.assert_allclose(preshape.shape_angle(found, original), 0.0, atol=1e-7)
    variance = coordinates_of(SHAPES, shape_chart(SHAPES, WHOLE)).var(axis=0)
    assert (np.diff(variance) < 0).all()
    few = shape_chart(SHAPES, 2)
    np.testing.assert_allclose(few, shape_chart(SHAPES, WHOLE)[..., :3], atol=1e-12)


def test_the_default_chart_holds_the_variance_but_no_more_than_individuals_bear():
    variance = coordinates_of(SHAPES, shape_chart(SHAPES, WHOLE)).var(axis=0)
    number = shape_chart(SHAPES).shape[2] - 1
    share = np.cumsum(variance) / variance.sum()
    assert number == SIZE // 3 == 8 or (share[number - 1] >= 0.95 > share[number - 2])
    assert shape_chart(SHAPES[:6]).shape[2] - 1 <= 2


def test_the_density_is_that_of_a_mixture_of_the_coordinates():
    chart = shape_chart(SHAPES, WHOLE)
    table = coordinates_of(SHAPES, chart)
    links = sb.LabelGraph.build(Links.must_link([(0, 1), (5, 20)], weight=1.5), SIZE)
    prior = GaussianPrior(np.zeros(WHOLE), 0.5, WHOLE + 3.0, 0.1 * np.eye(WHOLE))
    options = {"num_clusters": 2, "covariance": "tied", "prior": prior}
    given = rows(SHAPES)
    ours = Problem(
        hierarchical_shape,
        (given["x"], given["subjects"], given["landmarks"], links, None, None, chart),
        options,
    )
    plain = Problem(sb.CARDS["ppc"].model, (table, links), options)
    at = {
        "weights": np.array([0.3, 0.7]),
        "mean": RNG.normal(scale=0.1, size=(2, WHOLE)),
        "covariance": 0.1 * np.eye(WHOLE) + 0.02,
    }
    found, expected = densities(at, (ours, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def densities(at, problems):
    return jax.jit(lambda at: [log_joint(problem, at) for problem in problems])(at)


@pytest.mark.parametrize(
    ("covariance", "prior"), [("full", "flat"), ("tied", "empirical"), ("spherical", "empirical")]
)
def test_the_m_step_is_where_slopes_vanish(covariance, prior):
    """Check 18: by automatic differentiation, for means and covariances, known groups."""
    options = {"covariance": covariance, "prior": prior, "known": PartialLabels(LABELS)}
    fit = fitted(EM(tol=1e-13), num_modes=3, **options)
    problem, at = fit.run.problem, {n: jnp.asarray(v) for n, v in fit.params.items()}
    sites = [name for name in at if name != "weights"]

    def density(moved):
        return log_joint(problem, at | moved)

    slopes = jax.jit(jax.grad(density))({name: at[name] for name in sites})
    for name in sites:  # relative: by how much the log density changes if a value doubles
        assert abs(slopes[name] * at[name]).max() < 1e-9


def arguments(chart):
    given = rows(SHAPES)
    return given["x"], given["subjects"], given["landmarks"], None, None, None, chart


def test_a_learned_population_is_a_prior_whose_mean_and_shrinkage_are_sites():
    chart = shape_chart(SHAPES, 3)
    center = np.array([0.3, 0.0, 5.0])  # far from zero where a size is among the coordinates
    prior = GaussianPrior(center, 0.01, 6.0, 0.1 * np.eye(3))
    at = {
        "weights": np.array([0.3, 0.7]),
        "mean": RNG.normal(scale=0.1, size=(2, 3)),
        "covariance": 0.1 * np.eye(3) + 0.02,
    }
    middle, shrinkage = np.array([0.1, -0.2, 0.0]), 0.4
    given = replace(prior, mean=middle, shrinkage=shrinkage)
    fixed = Problem(hierarchical_shape, arguments(chart), {"num_clusters": 2, "prior": given})
    options = {"num_clusters": 2, "prior": prior, "population": "learned"}
    learned = Problem(hierarchical_shape, arguments(chart), options)
    level = {"population_mean": middle, "population_shrinkage": shrinkage}
    found, plain = densities(at | level, (learned, fixed))
    spread = coordinates_of(SHAPES, chart).std(axis=0)
    own = norm.logpdf(middle, center, spread).sum() - shrinkage  # Gamma(1, 1)
    np.testing.assert_allclose(found, plain + own, rtol=1e-10)


@pytest.mark.slow
def test_samplers_agree_about_a_learned_population():
    engines = (
        BlockedGibbs(num_warmup=500, num_samples=3000),
        NUTS(num_warmup=500, num_samples=3000),
    )
    given = {"known": PartialLabels(LABELS), "num_modes": 3, "population": "learned"}
    fits = [fitted(engine, **given) for engine in engines]
    for name in ("population_mean", "population_shrinkage", "mean"):
        sites = [fit.tree["posterior"][name] for fit in fits]
        means = [site.mean(("chain", "draw")).to_numpy() for site in sites]
        errors = [az.mcse(fit.tree["posterior"].to_dataset())[name].to_numpy() for fit in fits]
        assert (abs(means[0] - means[1]) < 4 * np.hypot(*errors)).all()


def test_place_size_and_rotation_of_individuals_do_not_matter(known_groups):
    other = fitted(known=PartialLabels(LABELS), shapes=posed(SHAPES), prior="flat")
    np.testing.assert_allclose(
        np.nanmax(other.objective), np.nanmax(known_groups.objective), rtol=1e-7
    )
    one, two = (fit.shape_difference(0, 1)["distance"] for fit in (known_groups, other))
    np.testing.assert_allclose(one, two, rtol=1e-5)


def test_known_groups_without_prior_are_discriminant_analysis(known_groups):
    fit = known_groups
    table = coordinates_of(SHAPES, fit.run.data["chart"])
    means = np.stack([table[k == LABELS].mean(axis=0) for k in (0, 1)])
    np.testing.assert_allclose(fit.params["mean"], means, atol=1e-6)
    apart = table - means[LABELS]
    np.testing.assert_allclose(fit.params["covariance"], apart.T @ apart / SIZE, atol=1e-6)
    rng = np.random.default_rng(4)
    new = BASE + 0.5 * APART + rng.normal(scale=0.15, size=(40, MARKS, AXES))
    peer = LinearDiscriminantAnalysis(solver="lsqr", priors=[0.5, 0.5]).fit(table, LABELS)
    # their covariance is divided by n too, and equal weights are those of the data
    theirs = peer.predict_proba(coordinates_of(new, fit.run.data["chart"]))
    np.testing.assert_allclose(fit.predict_proba(**rows(posed(new))), theirs, atol=1e-5)
    np.testing.assert_allclose(fit.class_probabilities(**rows(posed(new))), theirs, atol=1e-5)
    assert fit.class_names == (0, 1)  # the clusters are the known groups
    np.testing.assert_array_equal(fit.classes()["class"], LABELS)


def test_unknown_groups_are_found_and_links_tie_them():
    alone, linked = (
        fitted(EM(), links=links, num_modes=3)
        for links in (Links.cannot_link([(0, 20)]), Links.cannot_link([(0, 1)]))
    )
    agree = (alone.labels() == LABELS).mean()
    assert max(agree, 1 - agree) == 1.0
    assert linked.labels()[0] != linked.labels()[1]


@pytest.mark.parametrize("name", ["known", "truth", "covariates"])
def test_values_of_individuals_in_another_order_are_refused(name):
    names = [f"s{number}" for number in range(SIZE)]  # s10 comes before s2
    given = rows(SHAPES) | {"subjects": np.repeat(names, MARKS), "num_clusters": 2}
    value = pd.Series(LABELS, index=names)
    value = value.to_frame() if name == "covariates" else value
    with pytest.raises(ValueError, match=f"{name} has 's2' at place 2, by its index, where 's10'"):
        sb.fit("hierarchical_shape", **given, **{name: value}, progress=False)


def test_new_individuals_need_all_landmarks_and_the_same_side(known_groups):
    given = rows(SHAPES[:2])
    for number in (-1, -MARKS):
        few = {"x": given["x"][:number], "landmarks": given["landmarks"][:number]}
        few["landmarks"] = few["landmarks"] + (number == -MARKS)
        subjects = np.asarray(given["subjects"].codes)[:number]
        with pytest.raises(ValueError, match=r"0 rows of landmark 5|landmarks\[5\] = 6"):
            known_groups.predict_proba(**few, subjects=subjects)
    with pytest.raises(ValueError, match="individual 1 lie in one point"):
        known_groups.predict_proba(
            **given | {"x": np.r_[SHAPES[0], np.tile(SHAPES[1, 0], (MARKS, 1))]}
        )
    with pytest.warns(sb.SideBayesWarning, match="look reflected: 0, 1"):
        known_groups.predict_proba(**given | {"x": given["x"] * [-1, 1]})
    turned = np.asarray(given["x"]).reshape(-1, MARKS, 2)[:, ::-1].reshape(-1, 2)
    with pytest.warns(sb.SideBayesWarning, match="another order: 0, 1"):
        known_groups.predict_proba(**given | {"x": turned * [-1, 1]})


def test_a_model_without_data_draws_coordinates():
    prior = GaussianPrior(np.zeros(3), 0.5, 6.0, 0.01 * np.eye(3))
    given = {n: v for n, v in rows(SHAPES).items() if n != "x"}
    found = sb.prior_predictive(
        "hierarchical_shape",
        **given,
        chart=shape_chart(SHAPES, 3),
        num_clusters=2,
        prior=prior,
        num_draws=5,
    )
    assert found["prior_predictive"]["coordinates"].shape[-2:] == (SIZE, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": SHAPES.reshape(-1, 2)[:-1]}, "individual 23 has 0 rows of landmark 5"),
        ({"landmarks": np.tile([0, 1, 2, 3, 4, 4], SIZE)}, "individual 0 has 2 rows of landmark 4"),
        ({"landmarks": np.tile([0, 1, 2, 3, 4, 5.5], SIZE)}, r"landmarks\[5\] = 5.5"),
        ({"num_modes": WHOLE + 1}, "num_modes = 9"),
        (
            {"landmarks": np.tile(np.arange(1, 7), SIZE)},
            "numbers from 1 to 6, and no row of landmark 0",
        ),
        ({"num_modes": 0}, "num_modes = 0"),
        (
            {"known": LABELS, "num_clusters": 1},
            "known: labels name class 1 .*, too many for num_clusters = 1; pass num_clusters=2 at least",
        ),
        ({"population": "free"}, "population = 'free'"),
        ({"population": "learned", "num_clusters": 1}, "needs several groups"),
        ({"population": "learned", "prior": "flat"}, "prior='flat' has none"),
        ({"covariates": np.full((SIZE, 1), 0.1)}, "constant in column 0"),
        ({"covariates": np.outer(np.arange(SIZE), [1.0, 0.3])}, "2 columns, centred of rank 1"),
    ],
)
def test_bad_input_is_refused(change, message):
    given = rows(SHAPES) | {"num_clusters": 2} | change
    if len(given["x"]) < SIZE * MARKS:
        given["subjects"], given["landmarks"] = (
            sb.Groups(np.repeat(np.arange(SIZE), MARKS)[:-1]),
            given["landmarks"][:-1],
        )
    with pytest.raises(ValueError, match=message):
        sb.fit("hierarchical_shape", **given, progress=False)


def test_shapes_without_a_chart_and_lines_are_refused(known_groups):
    line = np.linspace(0, 1, MARKS)[:, None] * np.array([1.0, 2.0, 0.5]) + np.zeros((4, 1, 1))
    with pytest.raises(ValueError, match="lie on a line"):
        shape_chart(line)
    with (
        pytest.warns(sb.SideBayesWarning, match="have the same shape"),
        pytest.raises(ValueError, match="one shape, of 4 individuals"),
    ):
        shape_chart(posed(np.stack([BASE] * 4)))
    with pytest.raises(ValueError, match="gmm has no shapes"):
        sb.fit("gmm", SHAPES[:, :, 0], num_clusters=2, progress=False).shapes()
    with pytest.raises(ValueError, match="expected 8 in the last axis"):
        known_groups.shape_at(np.zeros(3))
    with pytest.raises(ValueError, match="the chart ends"):
        known_groups.shape_at(np.full(WHOLE, 1.0))
    with pytest.raises(ValueError, match="first = 'c'; expected one of the groups .0, 1.$"):
        known_groups.shape_difference("c", 1)


@pytest.mark.parametrize("axes", [1, 4])
def test_landmarks_are_in_the_plane_or_in_space(axes):
    with pytest.raises(ValueError, match=f"x has {axes} columns; expected 2 or 3"):
        fitted(shapes=RNG.normal(size=(6, 7, axes)), num_clusters=1)


def test_flat_shapes_in_space_are_said():
    flat = np.concatenate([SHAPES, np.zeros((SIZE, MARKS, 1))], axis=2)
    with pytest.warns(sb.SideBayesWarning, match="lie in a plane"):
        shape_chart(flat)
    flat[0, 0, 2] = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shape_chart(flat)


@pytest.mark.parametrize(
    ("known", "columns", "message"),
    [
        (np.arange(SIZE), 0, f"{SIZE} groups leave nothing of {SIZE} individuals"),
        (None, SIZE - 1, f"1 groups and {SIZE - 1} covariates leave nothing"),
        (LABELS, SIZE - 2, f"2 groups and {SIZE - 2} covariates leave nothing"),
        (LABELS, SIZE - 3, None),
        (np.where(np.arange(SIZE) == 3, -1, np.arange(SIZE)), 0, None),
    ],
)
def test_groups_and_covariates_that_leave_nothing_unexplained_are_said(known, columns, message):
    given = rows(SHAPES) | {"known": None if known is None else PartialLabels(known)}
    given["covariates"] = RNG.normal(size=(SIZE, columns)) if columns else None
    if message is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            choose_chart(given, {})
    else:
        with pytest.warns(sb.SideBayesWarning, match=message):
            choose_chart(given, {})


def test_turning_all_data_changes_neither_starts_nor_density():
    """Starts are partitions of the coordinates, whose axes and signs must turn with the data."""
    turn = np.array([[np.cos(2.0), -np.sin(2.0)], [np.sin(2.0), np.cos(2.0)]])
    problems, starts = [], []
    for shapes in (SHAPES, SHAPES @ turn):
        given = arguments(shape_chart(shapes, 3))
        given = (shapes.reshape(given[0].shape), *given[1:])
        problems.append(Problem(hierarchical_shape, given, {"num_clusters": 2}))
        starts.append(initial_values(problems[-1], 0, 4))
    for name, value in starts[0].items():
        np.testing.assert_allclose(starts[1][name], value, atol=1e-9)
    one, other = densities({name: value[1] for name, value in starts[0].items()}, problems)
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("size", [False, True])
def test_the_first_starts_are_of_kmeans_in_the_unit_of_all_shapes(size):
    """Scaling each coordinate amplifies the noise, and hid groups that k-means of the shapes finds."""
    rng = np.random.default_rng(0)
    turn = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    group = np.arange(40) % 2
    oval = np.stack([np.cos(turn), 0.6 * np.sin(turn)], axis=1)
    longer = np.stack([1 + 0.15 * group, np.ones(40)], axis=1)
    shapes = oval * longer[:, None] + 0.02 * rng.normal(size=(40, 8, 2))
    chart, given = shape_chart(shapes), rows(shapes)
    problem = Problem(
        hierarchical_shape,
        (given["x"], given["subjects"], given["landmarks"], None, None, None, chart),
        {"num_clusters": 2, "size": size},
    )
    found = np.sort(initial_values(problem, 0, 2)["mean"][0, :, 0])
    table = coordinates_of(shapes, chart)
    own = np.sort([table[group == g, 0].mean() for g in (0, 1)])
    np.testing.assert_allclose(found, own, atol=0.2 * np.ptp(own))
