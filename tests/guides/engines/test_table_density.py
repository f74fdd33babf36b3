"""The log density of a table on disk, against that of the same rows in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.streamed_data import (
    StreamedData,
    look_over,
    streamed,
)
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.problem.density import (
    log_joint,
    place,
    unconstrained_start,
)
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.variational.guide_search import Frame
from sidebayes.guides.engines.variational.table_density import TableDensity, near
from sidebayes.models.gmm import gmm

X = np.random.default_rng(0).normal(size=(138, 2)) * [1.0, 3.0] + 2.0
OPTIONS = {"num_clusters": 2, "covariance": "diagonal"}


class Blocks:
    """Three blocks of unlike sizes."""

    ends = (0, 50, 57, 138)
    sizes = (50, 7, 81)

    def read(self, number):
        return X[self.ends[number] : self.ends[number + 1]]

    def place(self, row):
        return str(row)


@pytest.fixture(scope="module", autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def table():
    """In passes of five batches that are not of one size; forty rows are kept."""
    seen = look_over(Blocks(), 40, seed=0, progress=False)
    given = streamed(Problem(gmm, (seen.sample,), OPTIONS), "x", seen)
    data = StreamedData.prepare(given, 30, closed=False)
    some = data.first()
    start = {name: value[0] for name, value in initial_values(some, 0, 1).items()}
    free = jax.jit(lambda values: unconstrained_start(some, values))(start)
    free = {name: np.asarray(value) for name, value in free.items()}
    assert len({end - begin for _, begin, end in data.batches}) > 1
    return TableDensity(data, free, Clock())


@pytest.fixture(scope="module")
def exact(table):
    """Log density of all rows and its slope; coordinates are in units of the rows that are kept."""
    _, unravel = jax.flatten_util.ravel_pytree(table.template)
    problem = Problem(gmm, (jnp.asarray(X),), OPTIONS)

    def density(flat):
        trace, log_det = place(table.data.first(), unravel(flat))
        params = {name: trace[name]["value"] for name in table.template}
        return log_joint(problem, params) + log_det

    return jax.jit(jax.value_and_grad(density))


def points(table, number):
    rng = np.random.default_rng(1)
    flat = table.flat(table.template)
    return flat + 0.2 * rng.normal(size=(number, len(flat)))


def nothing(steps, stage):
    pass


def test_batches_average_to_the_density_and_its_gradient(table, exact):
    for point in points(table, 2):
        value, slope = table.whole(point, nothing)
        expected, by = exact(point)
        assert value == pytest.approx(float(expected), rel=1e-12)
        np.testing.assert_allclose(slope, by, rtol=1e-9, atol=1e-9)


def test_steps_average_to_the_density_less_that_at_the_mode(table, exact):
    """Over all batches of the rows that are held, two at a time."""
    centre, point = points(table, 2)
    value, slope = exact(centre)
    held = table.drawn(138, 2, [0])
    assert held.size == 138
    frame = Frame(table.template, centre, np.ones(len(centre)))

    problem, key = table.data.first(), jax.random.key(0)

    def density(at, rows):
        data = held._replace(rows=rows[None]), slope
        return near(table.data.plan, problem, frame, data, key)(at)

    found = jax.jit(jax.value_and_grad(density))
    terms = np.array([found(point, rows)[0] for rows in held.rows])
    assert terms.mean() == pytest.approx(float(exact(point)[0] - value), rel=1e-9)
    assert terms.std() > 1e-3
    # at the mode itself every batch has the value and the slope of all rows
    own_value, own = found(centre, held.rows[3])
    assert float(own_value) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(own, slope, rtol=1e-9, atol=1e-9)


def test_densities_of_draws(table, exact):
    centre, *others = points(table, 4)
    value, slope = exact(centre)
    others = np.stack(others)
    expected = [float(exact(at)[0] - value - (at - centre) @ slope) for at in others]
    whole = table.around(centre, others, None, nothing)
    np.testing.assert_allclose(whole.value, expected, rtol=1e-8)
    assert (whole.error, whole.spread, whole.num_rows) == (0.0, 0.0, 138)


def test_errors_of_densities_are_those_of_repeated_estimates(table, exact):
    """By half of the rows."""
    centre, *others = points(table, 4)
    value, slope = exact(centre)
    others = np.stack(others)
    expected = [float(exact(at)[0] - value - (at - centre) @ slope) for at in others]
    found = [table.around(centre, others, table.drawn(69, 3, [n]), nothing) for n in range(60)]
    assert {one.num_rows for one in found} == {69}
    errors = np.stack([one.value for one in found]) - expected
    common = errors.mean(axis=1)
    told = np.sqrt(np.mean([one.error**2 for one in found]))
    assert common.std() == pytest.approx(told, rel=0.25)
    assert abs(common.mean()) < 4 * told / np.sqrt(len(found))
    told = np.sqrt(np.mean([one.spread**2 for one in found]))
    apart = errors - common[:, None]
    assert np.sqrt(np.mean(apart**2)) == pytest.approx(told, rel=0.25)


def test_what_errors_have_in_common_is_left_out_of_their_spread(table):
    centre, other = points(table, 2)
    found = table.around(centre, np.stack([other] * 3), table.drawn(69, 3, [0]), nothing)
    assert found.error > 1e-3
    assert found.spread == pytest.approx(0.0, abs=1e-12)


def test_curvature_is_that_of_the_sample(table):
    (point,) = points(table, 1)
    sample = table.data.table.sample
    found = table.curvature(point)
    np.testing.assert_allclose(found, found.T, atol=1e-3 * np.abs(found).max())
    _, unravel = jax.flatten_util.ravel_pytree(table.template)
    some = table.data.first()

    def density(flat):
        trace, log_det = place(some, unravel(flat))
        params = {name: trace[name]["value"] for name in table.template}
        likelihood = trace["x"]["fn"].log_prob(trace["x"]["value"])
        return (138 / len(sample) - 1) * likelihood + log_joint(some, params) + log_det

    # but for the prior, which is by the moments of all rows
    slope, step = jax.jit(jax.grad(density)), 1e-5 * np.eye(len(point))
    expected = -np.array([slope(point + move) - slope(point - move) for move in step]) / 2e-5
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_rows_are_drawn_evenly(table):
    data = table.data
    whole = data.drawn(138, [0])
    np.testing.assert_array_equal(np.sort(whole, axis=0), np.sort(X, axis=0))
    assert len(np.intersect1d(whole[:50], X[:50])) < 80  # not one block after another
    np.testing.assert_array_equal(data.drawn(30, [5]), data.drawn(30, [5]))
    counts = np.zeros(138)
    for seed in range(400):
        some = data.drawn(30, [seed])
        counts[np.flatnonzero(np.isin(X[:, 0], some[:, 0]))] += 1
    assert counts.sum() == 400 * 30  # none is drawn twice
    share = 30 / 138
    deviation = np.sqrt(400 * share * (1 - share))
    assert np.abs(counts - 400 * share).max() < 4.5 * deviation
