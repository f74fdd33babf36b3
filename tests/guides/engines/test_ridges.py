"""Ends of climbs without a peak: ridges and rises that level off, beside peaks of any width and shape."""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from scipy.optimize import linprog
from scipy.special import expit
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.cutting_planes import summit
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.optimisers.laplace import Laplace
from sidebayes.guides.engines.optimisers.optimise import MAP
from sidebayes.guides.engines.ridges import at_corner, flat_sites, short_of_mode, without_peak
from sidebayes.guides.engines.variational.svi import SVI
from sklearn.linear_model import Lasso
from statsmodels.regression.quantile_regression import QuantReg

YEARS = np.vander(np.arange(2000.0, 2021.0), 3) / [1e6, 1e3, 1.0]
"""Columns that are all but dependent: their least relative curvature is 4e-10."""

X = np.linspace(-1.0, 1.0, 8)


def logistic(points):
    """Slopes of the log likelihood of separated classes under an intercept and a slope."""
    design = np.stack([np.ones_like(X), X], axis=1)
    return (1.0 * (X > 0) - expit(points @ design.T)) @ design


def product(points):
    a, b = points.T
    return -np.stack([(a * b - 1) * b, (a * b - 1) * a], axis=1)


PEAKS = {
    "narrow and wide": (lambda p: -p / [1e-8, 1e8], [[0.0, 3e3]]),
    "wide, at zero": (lambda p: -p / 1e10, [[0.0]]),
    "ill-conditioned": (lambda p: -(p - [1.0, 2.0, 3.0]) @ (YEARS.T @ YEARS), [[1.0, 2.0, 3.0]]),
    "kink": (lambda p: -np.sign(p), [[0.0]]),
    "heavy tails": (lambda p: -2 * p / (1 + p**2), [[0.0]]),
    "two signs": (lambda p: p - p**3, [[1.0], [-1.0]]),
    "not quite there": (lambda p: -(p - 1e-6), [[0.0]]),
}
NO_PEAKS = {
    "sum": (lambda p: -np.repeat(p.sum(axis=1, keepdims=True), 2, axis=1), [[3.0, -3.0]], "ab"),
    "product": (product, [[2.0, 0.5], [-4.0, -0.25]], "ab"),
    "unused": (lambda p: -p * [1.0, 0.0], [[0.0, 7.0]], "b"),
    "separated": (logistic, [[0.0, 120.0]], "b"),
    "separated, to the last digit": (logistic, [[0.0, 4e4]], "b"),
}


def found(slopes, points):
    points = np.array(points)
    sites, straight = np.array(list("abc"))[: points.shape[1]], np.ones(points.shape[1], bool)
    return without_peak(sites, straight, points, np.zeros(len(points)), 0, slopes)


@pytest.mark.parametrize("kind", PEAKS)
def test_peaks_are_not_doubted(kind):
    assert not found(*PEAKS[kind])


@pytest.mark.parametrize("kind", NO_PEAKS)
def test_a_density_that_does_not_fall_is_found(kind):
    slopes, points, sites = NO_PEAKS[kind]
    assert f"does not fall along a direction in {', '.join(sites)}, whose" in found(slopes, points)


def test_a_climb_that_stopped_short_is_no_ridge():
    """Far from a wide peak, slopes are below any tolerance, and arrive at nothing."""
    said = found(lambda p: -(p - [1e6, 0.0]) / [1e10, 1.0], [[0.7, 0.0]])
    assert "still rises along a, by some 50 nats" in said


def test_what_has_a_proper_prior_is_not_moved():
    slopes, points, _ = NO_PEAKS["sum"]

    def asked(rows):
        assert (rows[:, 1] == -3.0).all()
        return slopes(rows)

    sites = np.array(["a", ""])
    assert without_peak(sites, np.ones(2, bool), np.array(points), np.zeros(1), 0, asked) == ""


def all_ones(y):
    logit = numpyro.sample("logit", dist.ImproperUniform(dist.constraints.real, (), ()))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=logit), obs=y)
        numpyro.sample("z", dist.Normal(0.0, scale), obs=1.0 * y)


def sum_of_two(y):
    one = numpyro.sample("one", dist.ImproperUniform(dist.constraints.real, (), ()))
    two = numpyro.sample("two", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(one + two, 1.0), obs=y)


def test_draws_are_not_close_to_a_posterior_that_is_none():
    with jax.enable_x64(True):
        engine = SVI(num_steps=100, num_restarts=2, num_draws=100)
        result = engine.run(Problem(sum_of_two, (jnp.arange(6.0),)), progress=False)
    assert not result.status.converged
    assert "does not fall along a direction in one, two, whose priors" in result.status.message
    assert "where the posterior has" not in result.status.message


@pytest.mark.parametrize("engine", [MAP(num_restarts=2), EM(num_restarts=2)], ids=["map", "em"])
def test_the_status_says_that_there_is_no_mode(engine):
    with jax.enable_x64(True):
        problem = Problem(all_ones, (jnp.ones(6, int),))
        assert flat_sites(problem) == ("logit",)
        result = engine.run(problem, progress=False)
    assert not result.status.converged
    assert not result.is_mode
    assert "direction in logit, whose prior is flat" in result.status.message


def test_a_climb_goes_on_as_far_as_the_density_rises():
    """By the whole of Newton's step on a parabola, by a part where it falls before, and nowhere at a mode."""
    sites = np.array(["a", "b"])
    wide = lambda p: -(p - [1e6, 0.0]) / [1e10, 1.0]  # noqa: E731
    short = short_of_mode(sites, np.array([0.7, 0.0]), wide)
    np.testing.assert_allclose(short.move, [1e6, 0.0], rtol=1e-4)
    fenced = short_of_mode(sites, np.zeros(2), lambda p: np.where(p > 2e5, -1.0, wide(p)))
    np.testing.assert_allclose(fenced.move, [1e5, 0.0], rtol=1e-4)
    assert short_of_mode(sites, np.array([1e6 - 100.0, 0.0]), wide) is None
    assert short_of_mode(np.array(["", "b"]), np.zeros(2), wide) is None


@pytest.mark.parametrize(
    ("slopes", "corners", "edge"),
    [
        (lambda p: -np.sign(p) - 1e-3 * p, [True, True], False),
        (
            lambda p: np.stack([0.5 - np.sign(p[:, 0]), 1.0 - p[:, 1] + 0.3 * p[:, 0]], axis=1),
            [True, False],
            False,
        ),
        (lambda p: 2.0 - np.sign(p), [False, False], True),  # the slope does not change its sign
        (lambda p: np.sign(p), [False, False], True),  # a trough
        (lambda p: -p / [1e-12, 1.0], [False, False], False),  # narrow, and smooth
        # edges along which the density rises, in one unit and in two
        (lambda p: [1.0, -1.0] - 9.0 * np.sign(p @ [[1.0], [1.0]]), [False, False], True),
        (
            lambda p: [0.0, 1e-3] - np.sign(p @ [[1e3], [1.0]] + 1e-5) * [1e3, 1.0],
            [False, False],
            True,
        ),
    ],
    ids=["both", "one", "passed", "trough", "narrow", "edge", "edge in two units"],
)
def test_corners_are_found(slopes, corners, edge):
    found, aslant = at_corner(np.array(["a", "b"]), np.zeros(2), slopes)
    assert found.tolist() == corners
    assert aslant == edge


def sparse(x, y):
    slopes = numpyro.sample("slopes", dist.Laplace(0.0, 0.05).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


def test_the_mode_at_a_corner_is_that_of_the_lasso():
    x = np.random.default_rng(0).normal(size=(30, 2))
    y = x @ [2.0, 0.0] + np.sin(np.arange(30.0))
    with jax.enable_x64(True):
        problem = Problem(sparse, (jnp.asarray(x), jnp.asarray(y)))
        result = MAP(num_restarts=1).run(problem, progress=False)
    assert result.status.converged
    assert "at a corner of the density in slopes" in result.status.message
    lasso = Lasso(alpha=20.0 / len(y), fit_intercept=False, tol=1e-12).fit(x, y).coef_
    np.testing.assert_allclose(np.squeeze(result.draws["slopes"]), lasso, atol=1e-6)
    assert lasso[1] == 0


def absolute(design, y):
    """Log density of least absolute deviations and its gradient, at rows of coefficients."""

    def density(points):
        rest = y - points @ design.T
        return -np.abs(rest).sum(axis=1), np.sign(rest) @ design

    return density


@pytest.mark.parametrize("centre", [0.0, 1000.0], ids=["centred", "nearly parallel planes"])
def test_cutting_planes_find_the_mode_on_an_edge(centre):
    rng = np.random.default_rng(3)
    design = np.column_stack([np.ones(60), centre + rng.normal(size=(60, 3))])
    y = design @ [1.0, 0.5, -0.5, 0.2] + rng.standard_t(3, size=60)
    density = absolute(design, y)
    start = np.linalg.lstsq(design, y, rcond=None)[0]
    top = summit(np.arange(4), start, np.full(4, 1e-5), density)
    assert top.certain
    end = density(np.stack([start + top.move, start]))[0]
    ones, free = np.ones(60), [(None, None)] * 4
    exact = linprog(
        np.concatenate([np.zeros(4), ones, ones]),
        A_eq=np.column_stack([design, np.diag(ones), -np.diag(ones)]),
        b_eq=y,
        bounds=free + [(0, None)] * 120,
    )
    assert end[0] == pytest.approx(-exact.fun, abs=1e-4)
    assert top.rise == pytest.approx(end[0] - end[1])
    again = summit(np.arange(4), start + top.move, np.full(4, 1e-5), density)
    assert again.certain
    assert again.rise <= 1e-4


def test_cutting_planes_find_the_mode_with_a_scale():
    """A density that is concave in the coefficients at every scale, and not in both together."""
    rng = np.random.default_rng(4)
    design = np.column_stack([np.ones(50), rng.normal(size=50)])
    y = design @ [1.0, 0.5] + rng.standard_t(3, size=50)
    of_one = absolute(design, y)

    def density(points):
        scale = np.exp(points[:, 2])
        value, slope = of_one(points[:, :2])
        own = -value / scale - 50
        return value / scale - 50 * points[:, 2], np.column_stack([slope / scale[:, None], own])

    start = np.append(np.linalg.lstsq(design, y, rcond=None)[0], 0.0)
    top = summit(np.arange(3), start, np.full(3, 1e-5), density)
    end = start + top.move
    assert top.certain
    least = summit(np.arange(2), start[:2], np.full(2, 1e-5), of_one)
    np.testing.assert_allclose(design @ (end - start)[:2], design @ least.move, atol=1e-3)
    assert np.exp(end[2]) == pytest.approx(-of_one(end[None, :2])[0][0] / 50, rel=2e-3)


@pytest.mark.parametrize(
    "density",
    [
        lambda p: (np.abs(p).sum(axis=1), np.sign(p)),
        lambda p: (
            p[:, 0] ** 2 - np.abs(p[:, 1]),
            np.stack([2 * p[:, 0], -np.sign(p[:, 1])], axis=1),
        ),
        lambda p: (1e13 - np.abs(p).sum(axis=1), -np.sign(p)),
        lambda p: (
            np.where(p[:, 0] == 0, 0.0, -np.inf),
            np.where(p[:, :1] == 0, 1.0, np.nan) * [1, 1],
        ),
    ],
    ids=["trough", "saddle", "rounding", "not finite around"],
)
def test_cutting_planes_are_not_certain_elsewhere(density):
    assert not summit(np.arange(2), np.zeros(2), np.full(2, 1e-5), density).certain


def test_cutting_planes_pass_by_where_the_density_is_not_finite():
    def fenced(points):
        out = np.abs(points[:, 0]) > 1e-3
        value = np.where(out, -np.inf, 3 * points[:, 0] - 5 * np.abs(points[:, 0] - 5e-4))
        return value, np.where(out, np.nan, 3 - 5 * np.sign(points[:, 0] - 5e-4))[:, None]

    top = summit(np.arange(1), np.zeros(1), np.full(1, 1e-5), fenced)
    assert top.certain
    assert top.move == pytest.approx([5e-4], abs=1e-6)


def test_more_coordinates_than_planes_can_tell_of_are_left_alone():
    assert not summit(np.arange(51), np.zeros(51), np.ones(51), None).certain


def quantile(x: Annotated[ArrayLike, "rows ..."], y: Annotated[ArrayLike, "rows"]):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1e3).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.AsymmetricLaplaceQuantile(x @ slopes, 1.0, 0.8), obs=y)


def test_the_mode_on_an_edge_is_that_of_quantile_regression():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(80), rng.normal(size=(80, 2))])
    y = x @ [1.0, 0.5, -0.5] + rng.standard_t(3, size=80)
    with jax.enable_x64(True):
        problem = Problem(quantile, (jnp.asarray(x), jnp.asarray(y)))
        result = MAP(num_restarts=3, max_steps=100).run(problem, progress=False)
    assert result.status.converged
    assert "at an edge of the density in slopes" in result.status.message
    assert len(result.modes.height) == 1
    with jax.enable_x64(True), pytest.raises(FitError, match="ended at the edge of a density"):
        Laplace(num_restarts=3, max_steps=100).run(problem, progress=False)
    exact = QuantReg(y, x).fit(q=0.8, p_tol=1e-9).params
    np.testing.assert_allclose(np.squeeze(result.draws["slopes"]), exact, atol=1e-3)


def large_outcomes(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1e8))
    scale = numpyro.sample("scale", dist.HalfNormal(1e7))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def test_units_of_outcomes_do_not_keep_climbs_from_the_mode():
    """Slopes in the mean are below the tolerance at scales of the prior, some million units away."""
    y = 1e6 + 4e4 * np.linspace(-1.0, 1.0, 100)
    with jax.enable_x64(True):
        result = MAP(num_restarts=4).run(Problem(large_outcomes, (jnp.asarray(y),)), progress=False)
    assert result.status.converged
    np.testing.assert_allclose(result.draws["mean"], 1e6, rtol=1e-3)
    np.testing.assert_allclose(result.draws["scale"], y.std(), rtol=1e-3)
    assert len(result.modes.height) == 1
