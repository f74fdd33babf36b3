"""Latent shapes: densities, blocks, registration, and limit cases."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.models.blocks.components.gaussians.gaussian_stats import Moments
from sidebayes.models.blocks.manifolds import preshape
from sidebayes.models.blocks.manifolds.kernel_distance import kernel_distance
from sidebayes.models.blocks.manifolds.point_clouds.low_rank import (
    LowRankComponents,
    LowRankPrior,
)
from sidebayes.models.blocks.manifolds.point_clouds.point_mixture import log_point_mixture
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart
from sidebayes.models.latent_shape import latent_shape

import sidebayes as sb

RNG = np.random.default_rng(3)
SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
MARKS = sb.Landmarks.from_array(SQUARE + 0.1 * RNG.normal(size=(8, 4, 2)))
FRAME = sb.register_points(MARKS, num_modes=2)
FAST = sb.MonteCarloEM(num_samples=32, max_samples=32, max_steps=4, num_warmup=20, num_final=2)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def naive_mixture(x, subjects, shapes, scale):
    """Log density by individual, every pair of points written out."""
    found = np.zeros(len(shapes))
    for row, own in zip(x, subjects, strict=True):
        each = stats.norm.pdf(row, shapes[own], scale).prod(axis=1)
        found[own] += np.log(each.mean())
    return found


def test_point_mixture_and_its_slopes():
    subjects = np.array([0, 2, 1, 0, 2, 2, 0])
    x, shapes = RNG.normal(size=(7, 2)), RNG.normal(size=(3, 5, 2))
    assert log_point_mixture(x, subjects, jnp.asarray(shapes), 0.7) == pytest.approx(
        naive_mixture(x, subjects, shapes, 0.7)
    )
    weights = jnp.array([1.0, -2.0, 0.5])

    @jax.jit
    def total(x, shapes, scale):
        return weights @ log_point_mixture(x, jnp.asarray(subjects), shapes, scale)

    check_grads(total, (jnp.asarray(x), jnp.asarray(shapes), jnp.asarray(0.7)), 1, modes=("rev",))


@pytest.mark.parametrize("observation", ["landmarks", "density", "kernel"])
def test_density(observation):
    """The joint density against SciPy's."""
    chart = ShapeChart.of(FRAME.chart)
    subjects = FRAME.subjects
    values = {
        "weights": np.array([0.3, 0.7]),
        "mean": 0.1 * RNG.normal(size=(2, 2)),
        "loadings": 0.1 * RNG.normal(size=(2, 2, 1)),
        "variance": np.array([0.01, 0.02]),
        "coordinates": 0.1 * RNG.normal(size=(8, 2)),
    }
    options = {"num_clusters": 2, "rank": 1}
    if observation == "kernel":
        options |= {"observation": "kernel", "width": 0.4, "temperature": 0.5}
    else:
        values["noise_variance"] = np.array(0.03)
    landmarks = FRAME.landmarks if observation == "landmarks" else None
    given = FRAME.x, subjects, landmarks, None, None, FRAME.chart
    found = jax.jit(lambda at: log_density(latent_shape, given, options, at)[0])(values)
    w, radius = values["coordinates"], 0.2
    loadings = values["loadings"]
    covariance = loadings @ loadings.swapaxes(1, 2) + values["variance"][:, None, None] * np.eye(2)
    groups = [
        np.log(pi) + stats.multivariate_normal(m, c).logpdf(w)
        for pi, m, c in zip(values["weights"], values["mean"], covariance, strict=True)
    ]
    expected = np.logaddexp(*groups).sum() + stats.dirichlet([1, 1]).logpdf(values["weights"])
    expected += stats.norm(0, radius / np.sqrt(2)).logpdf(values["mean"]).sum()
    expected += stats.norm(0, radius / np.sqrt(2)).logpdf(loadings).sum()
    expected += stats.invgamma(2, scale=0.05 * radius**2 / 2).logpdf(values["variance"]).sum()
    u = np.asarray(chart.shapes(jnp.asarray(w)))
    if observation == "kernel":
        codes = jnp.asarray(subjects.codes)
        apart = jax.jit(kernel_distance)(jnp.asarray(FRAME.x), codes, u, 0.4)
        expected -= float(apart.sum()) / 0.5
    else:
        apart = np.linalg.norm(chart.reference[:, None] - chart.reference, axis=-1)
        spacing = np.where(np.eye(4) > 0, np.inf, apart).min(axis=1).mean()
        expected += stats.invgamma(1, scale=(0.03 * spacing) ** 2).logpdf(0.03)
    if observation == "density":
        expected += naive_mixture(FRAME.x, subjects.codes, u, np.sqrt(0.03)).sum()
    elif observation == "landmarks":
        rows = u[subjects.codes, FRAME.landmarks]
        noise = stats.norm(0.0, np.sqrt(0.03))
        expected += noise.logpdf(FRAME.x - rows).sum()
        expected -= 8 * (2 + 1 + 1) * noise.logpdf(0.0)  # place, size and rotation have no noise
    assert float(found) == pytest.approx(expected)


def test_low_rank_step_is_the_mode():
    """The closed form of means, loadings and variance has no slope left."""
    size, rank = 5, 2
    block = LowRankComponents(1, size, rank, LowRankPrior(0.7))
    x = RNG.normal(size=(30, size)) @ RNG.normal(size=(size, size)) * 0.3 + 0.2
    values = {
        "location": jnp.zeros((1, size)),
        "loadings": jnp.asarray(0.3 * RNG.normal(size=(1, size, rank))),
        "spread": jnp.array([0.5]),
    }

    def log_joint(values):
        with handlers.substitute(
            data={
                "mean": values["location"],
                "loadings": values["loadings"],
                "variance": values["spread"],
            }
        ):
            trace = handlers.trace(block.sample).get_trace()
        fn = block.sample.__self__  # the block itself
        assert fn is block
        prior = sum(
            site["fn"].log_prob(site["value"]).sum()
            for site in trace.values()
            if site["type"] == "sample"
        )
        covariance = values["loadings"][0] @ values["loadings"][0].T + values["spread"][
            0
        ] * jnp.eye(size)
        return (
            prior
            + jax.scipy.stats.multivariate_normal.logpdf(
                jnp.asarray(x), values["location"][0], covariance
            ).sum()
        )

    previous = -np.inf
    for _ in range(200):
        block.location = values["location"]
        apart = x - np.asarray(values["location"])
        found = Moments(
            jnp.array([30.0]),
            jnp.asarray(apart.sum(axis=0)[None]),
            jnp.asarray((apart.T @ apart)[None]),
        )
        values = block.mode(block.update(found, ()), values)
        now = float(log_joint(values))
        assert now >= previous - 1e-9
        previous = now
    slopes = jax.grad(log_joint)(values)
    for name in values:
        np.testing.assert_allclose(slopes[name], 0.0, atol=1e-4, err_msg=name)


def test_exact_landmarks_are_a_limit():
    """With little noise latent shapes are those of the landmarks."""
    fit = sb.fit(
        "latent_shape",
        FRAME.x,
        subjects=FRAME.subjects,
        landmarks=FRAME.landmarks,
        chart=FRAME.chart,
        num_clusters=1,
        rank=1,
        width=1e-3,
        engine=FAST,
        progress=False,
    )
    chart = ShapeChart.of(FRAME.chart)
    exact = np.asarray(chart.coordinates(jnp.asarray(MARKS.to_array())))
    assert np.abs(fit.params["coordinates"] - exact).max() < 0.01 * exact.std()


@pytest.mark.slow
def test_missing_landmarks_are_found():
    whole = SQUARE + np.linspace(-0.2, 0.2, 12)[:, None, None] * np.array(
        [[0, 0], [1, 0], [1, 0], [0, 0]]
    )
    whole += 0.002 * np.random.default_rng(7).normal(size=whole.shape)
    some = whole.copy()
    some[3, 1] = some[8, 2] = np.nan
    frame = sb.register_points(sb.Landmarks.from_array(some), num_modes=2)
    assert len(frame.x) == 46
    fit = sb.fit(
        "latent_shape",
        frame.x,
        subjects=frame.subjects,
        landmarks=frame.landmarks,
        chart=frame.chart,
        num_clusters=1,
        rank=1,
        engine=replace(FAST, max_steps=20),
        progress=False,
    )
    shapes = fit.shapes()["individuals"].to_numpy()
    true = preshape.to_preshape(jnp.asarray(whole)).shape
    apart = np.linalg.norm(preshape.log(jnp.asarray(shapes), true), axis=(1, 2))
    assert apart[[3, 8]].max() < 0.05  # 0.6 between the most different
    assert fit.modes() is not None


def test_marginal_density_of_groups_against_quadrature():
    given = {"subjects": FRAME.subjects, "landmarks": FRAME.landmarks}
    fit = sb.fit(
        "latent_shape",
        FRAME.x,
        **given,
        chart=FRAME.chart,
        known=sb.PartialLabels([0, 1] * 4),
        num_clusters=2,
        rank=1,
        engine=FAST,
        progress=False,
    )
    found = fit.group_log_likelihood(FRAME.x, **given, num_draws=4000)
    chart, params = ShapeChart.of(FRAME.chart), fit.params
    axis = np.linspace(-0.8, 0.8, 201)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    shapes = np.asarray(chart.shapes(jnp.asarray(grid)))
    noise = stats.norm(0, np.sqrt(params["noise_variance"]))
    data = np.stack(
        [noise.logpdf(rows - shapes).sum(axis=(-2, -1)) for rows in FRAME.x.reshape(8, 4, 2)]
    )
    data -= 4 * noise.logpdf(0.0)  # place, size and rotation have no errors
    for group in range(2):
        covariance = params["loadings"][group] @ params["loadings"][group].T
        covariance = covariance + params["variance"][group] * np.eye(2)
        prior = stats.multivariate_normal(params["mean"][group], covariance).logpdf(grid)
        exact = np.log(np.exp(data + prior).sum(axis=(1, 2)) * (axis[1] - axis[0]) ** 2)
        error = found["standard_error"][:, group] + 1e-3
        assert (np.abs(found["log_likelihood"][:, group] - exact) < 4 * error).all()
    np.testing.assert_allclose(found["probability"].sum("group"), 1.0)
    with pytest.raises(TypeError, match="the fit has landmarks; pass landmarks of the new data"):
        fit.group_log_likelihood(FRAME.x, FRAME.subjects)


def test_registered_points_do_not_depend_on_place_size_and_turn():
    outline = np.array([[np.cos(a), 0.4 * np.sin(a)] for a in np.linspace(0, 6.2, 40)])
    angle = RNG.uniform(-0.3, 0.3, 5)
    turn = np.array([[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angle])
    clouds = 3 * (outline @ turn.swapaxes(1, 2)) + RNG.normal(size=(5, 1, 2))
    subjects = np.repeat(np.arange(5), 40)
    frame = sb.register_points(clouds.reshape(-1, 2), subjects, num_points=20)
    rows = frame.x.reshape(5, 40, 2)
    assert np.abs(rows - rows[0]).max() < 0.02 * np.abs(rows).max()
    other = frame.register(clouds[0] * 7, np.zeros(40, int))
    np.testing.assert_allclose(other.x, rows[0], atol=0.01)
    chart = ShapeChart.of(frame.chart)
    assert np.linalg.norm(chart.reference) == pytest.approx(1.0)
    assert chart.num_directions == 20 * 2 - 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": FRAME.x + 5}, "do not lie on the reference"),
        ({"x": 9 * FRAME.x}, "register_points"),
        (
            {"landmarks": np.tile([0, 1, 2, 7], 8)},
            r"landmarks\[3\] = 7; expected a whole number from 0 to 3",
        ),
        ({"observation": "kernel"}, "leave landmarks out"),
        ({"observation": "distance"}, "expected one of"),
        ({"temperature": 2.0}, "observation='kernel' only"),
        ({"width": -0.1}, "width = -0.1; expected a finite number > 0"),
        (
            {"width": np.float32(30.0)},
            r"width = 30; expected a number between 0 and .* unit of the chart",
        ),
        ({"width": 1e-3, "landmarks": None}, r"width = 0.001; expected a number between 0.0"),
        ({"chart": None, "landmarks": np.tile([1, 2, 3, 4], 8)}, "no row has landmark 0; number"),
        (
            {"chart": None, "landmarks": np.tile([0, 1, 2, -3], 8)},
            r"landmarks\[3\] = -3; expected a whole number",
        ),
        ({"rank": 9}, "rank"),
        ({"landmarks": None, "chart": None}, "points without numbers need the chart"),
    ],
)
def test_refuses(change, message):
    given = {
        "x": FRAME.x,
        "subjects": FRAME.subjects,
        "landmarks": FRAME.landmarks,
        "chart": FRAME.chart,
        "num_clusters": 1,
        "rank": 1,
    } | change
    with pytest.raises(ValueError, match=message):
        sb.fit("latent_shape", engine=FAST, progress=False, **given)


def test_points_are_simulated_and_the_potential_is_not():
    given = {"chart": FRAME.chart, "num_clusters": 2, "rank": 1}
    with handlers.seed(rng_seed=0):
        assert handlers.trace(latent_shape).get_trace(None, FRAME.subjects, **given)["x"][
            "value"
        ].shape == (32, 2)
    with (
        handlers.seed(rng_seed=0),
        pytest.raises(NotImplementedError, match="no density of points"),
    ):
        latent_shape(None, FRAME.subjects, observation="kernel", **given)


@pytest.mark.slow
def test_other_engines_and_prediction():
    given = {"subjects": FRAME.subjects, "landmarks": FRAME.landmarks}
    fit = sb.fit(
        "latent_shape",
        FRAME.x,
        **given,
        chart=FRAME.chart,
        num_clusters=1,
        rank=1,
        engine=sb.SVI(guide="mean_field", num_draws=100, num_restarts=1, tol=1e-2),
        progress=False,
    )
    assert np.isfinite(fit.shapes()["sd"]).all()
    with pytest.raises(ValueError, match="use fit.group_log_likelihood"):
        fit.predict(FRAME.x, **given)
    found = fit.group_log_likelihood(FRAME.x, **given)
    assert found["pareto_k"].shape == (8, 1)
    # ten individuals, of which two lack a landmark, and one alone: the same program
    again = np.r_[np.arange(32), np.arange(3), np.arange(4, 7)]
    names = np.r_[np.asarray(FRAME.subjects.codes), [8] * 3, [9] * 3]
    with counted_compilations() as compiled:
        more = fit.group_log_likelihood(FRAME.x[again], names, FRAME.landmarks[again])
        one = fit.group_log_likelihood(FRAME.x[4:8], names[4:8], FRAME.landmarks[4:8])
    assert compiled == []
    wanted, most = found["log_likelihood"], 6 * float(found["standard_error"].max()) + 1e-3
    np.testing.assert_allclose(more["log_likelihood"][:8], wanted, atol=most)
    np.testing.assert_allclose(one["log_likelihood"], wanted[1:2], atol=most)
    assert more["subject"].to_numpy().tolist() == list(range(10))
    assert np.isfinite(more["log_likelihood"]).all()


def leading(table):
    """Singular values of coordinates about their mean, and the first direction."""
    _, values, directions = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    return values, directions[0]


@pytest.mark.slow
def test_box_bump():
    """Check 21 of the dossier: shapes vary along one direction, from points in any order."""
    data = sb.simulate_box_bumps()
    frame = sb.register_points(data.x, data.subjects, reference=data.shapes.mean(axis=0))
    fit = sb.fit(
        "latent_shape",
        frame.x,
        subjects=frame.subjects,
        known=data.classes,
        chart=frame.chart,
        num_clusters=2,
        rank=1,
        observation="kernel",
        progress=False,
    )
    assert "width = 0.0965, 0.0594, 0.0401, 0.0297" in fit.status.message
    chart = ShapeChart.of(frame.chart)
    true = np.asarray(chart.coordinates(jnp.asarray(data.shapes)))
    found = fit.params["coordinates"]
    apart = np.asarray(chart.shapes(jnp.asarray(found)) - chart.shapes(jnp.asarray(true)))
    assert np.sqrt((apart**2).mean()) < 0.02
    for group in (0, 1):
        own = np.asarray(data.classes) == group
        values, direction = leading(found[own])
        assert 0.08 < values[0] < 0.15
        assert values[1] < 0.1 * values[0]
        assert abs(direction @ leading(true[own])[1]) > 0.75
    assert 0.55 < leading(found)[0][0] < 0.85
    with pytest.warns(sb.SideBayesWarning, match="kernel potential is no density of points"):
        fit.group_log_likelihood(frame.x, frame.subjects, num_draws=100)


@pytest.mark.slow
def test_leaves_are_told_apart():
    """Check 24 of the dossier: groups of new individuals, from three of each."""
    data = sb.simulate_leaves(13, seed=1)
    classes, codes = np.asarray(data.classes), data.subjects.codes
    place = np.concatenate([np.flatnonzero(classes == group)[:3] for group in (0, 1)])
    train = np.isin(codes, place)
    given = {"engine": FAST, "progress": False, "num_clusters": 2, "rank": 1}
    frame = sb.register_points(data.x[train], codes[train], num_points=32)
    new = frame.register(data.x[~train], codes[~train])
    answer = np.delete(classes, place)
    found = []
    for labels in (classes[np.sort(place)], 1 - classes[np.sort(place)]):
        fit = sb.fit(
            "latent_shape",
            frame.x,
            subjects=frame.subjects,
            chart=frame.chart,
            known=labels,
            **given,
        )
        told = fit.group_log_likelihood(new.x, subjects=new.subjects, num_draws=1000)
        found.append(told["log_likelihood"].to_numpy() @ [-1, 1])
    assert ((found[0] > 0) == answer).mean() >= 0.95
    assert (np.sign(found[0]) == -np.sign(found[1])).mean() > 0.9


def test_points_of_no_individual_count_nowhere():
    subjects = np.array([0, 2, 1, 0, 2, 2, 0])
    x, shapes = jnp.asarray(RNG.normal(size=(7, 2))), jnp.asarray(RNG.normal(size=(3, 5, 2)))

    def total(x, shapes, subjects):
        return jnp.array([1.0, -2.0, 0.5]) @ log_point_mixture(x, subjects, shapes, 0.7)

    sloped = jax.jit(jax.value_and_grad(total, (0, 1)))
    wanted = sloped(x, shapes, subjects)
    spare = jnp.concatenate([x[:2], x, x[:1]]), shapes, np.array([-1, -1, *subjects, -1])
    value, slopes = sloped(*spare)
    assert value == pytest.approx(float(wanted[0]))
    np.testing.assert_allclose(slopes[0][2:9], wanted[1][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes[1], wanted[1][1], rtol=1e-5, atol=1e-6)
    assert not np.asarray(slopes[0])[[0, 1, 9]].any()
