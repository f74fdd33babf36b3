"""Stepwise EM against EM; what batches say adds up to what all the data say."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.expectation_maximisation.batch_data import BatchData, chunk_moments
from sidebayes.guides.engines.expectation_maximisation.batch_steps import extrapolated
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.expectation_maximisation.stochastic_em import (
    StochasticEM,
    _expected,
    _maximised,
)
from sidebayes.guides.engines.plumbing import programs
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.steps.surrogate import expectation
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.label_inference.approximate import BeliefPropagation
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.weights import mixing_weights
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.gmm import gmm

from tests.support.basics import closed_step, ppc_problem

RNG = np.random.default_rng(0)
TRUTH = RNG.integers(2, size=240)
X = np.array([[0.0, 0.0], [4.0, 1.5]])[TRUTH] + RNG.normal(size=(240, 2)) * [1.0, 0.6]


def make_links():
    """Pairs, chains, a triangle and chunklets, some statements wrong."""
    order = RNG.permutation(240)
    pairs = order[:120].reshape(-1, 2).tolist()
    pairs += [[order[1], order[2]], [order[5], order[6]]]
    pairs += [[order[130], order[131]], [order[131], order[132]], [order[130], order[132]]]
    chunks = [[order[140 + i], order[141 + i]] for i in range(0, 30, 2)]
    same = TRUTH[np.array(pairs)]
    signs = np.where(same[:, 0] == same[:, 1], 1.5, -1.5)
    signs[:4] *= -1
    keep = [pair for pair in chunks if TRUTH[pair[0]] == TRUTH[pair[1]]]
    return Links(np.array(pairs + keep), np.append(signs, np.full(len(keep), np.inf)), 240)


LINKS = make_links()
ENGINE = StochasticEM(batch_size=60, max_epochs=30, tol=1e-7)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def problem(**options):
    return ppc_problem(X, LINKS, num_clusters=2, **options)


@pytest.fixture(scope="module")
def mode():
    with jax.enable_x64(True):
        return EM(num_restarts=2, tol=1e-10).run(problem(), progress=False)


@pytest.fixture(scope="module")
def found():
    with jax.enable_x64(True):
        return ENGINE.run(problem(), seed=1)


def test_reaches_the_fixed_point_of_em(mode, found):
    gap = mode.sample_stats["lp"] - found.sample_stats["lp"]
    assert gap < 2e-3  # nats, for eleven parameters: far within what the data can tell
    order = np.argsort(found.params["mean"][:, 0])
    truth = np.argsort(mode.params["mean"][:, 0])
    for name, value in found.params.items():
        np.testing.assert_allclose(value[order], mode.params[name][truth], atol=0.01)
    assert found.objective[0, -1] == found.sample_stats["lp"]
    assert found.draws["mean"].shape == (1, 1, 2, 2)


def test_a_slow_climb_is_not_cut_short():
    """Overlapping clusters: epochs gain little long before the mode, where EM takes over."""
    rng = np.random.default_rng(1)
    rows = (
        rng.normal(size=(4000, 2)) * 1.5 + rng.normal(size=(2, 2))[rng.integers(2, size=4000)] * 2
    )
    given = Problem(gmm, (jnp.asarray(rows),), {"num_clusters": 2})
    ended = StochasticEM(batch_size=400).run(given, progress=False)
    assert ended.status.converged
    assert "steps of EM" in ended.status.message
    climb = EM(num_restarts=1).run(given, init=ended, progress=False)
    assert climb.sample_stats["lp"] - ended.sample_stats["lp"] < 0.05
    of_em = np.diff(ended.objective[0, 3:])
    assert of_em.min() > -1e-6  # steps that go down are taken back


def test_extrapolation_finds_the_limit_of_equal_rates():
    """Of statistics that approach their limit by the same factor; within reach, and no shorter than EM."""
    limit, apart = (np.array([2.0, 5.0]), np.array(3.0)), (np.array([0.4, -1.0]), np.array(0.2))
    path = [jax.tree.map(lambda a, b, k=k: a + 0.9**k * b, limit, apart) for k in range(3)]
    leap, length = extrapolated(*path, 100.0)
    assert length == pytest.approx(10.0)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10), leap, limit)
    for reach in (4.0, 1.0):
        leap, length = extrapolated(*path, reach)
        assert length == reach
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), leap, path[2])


def families(
    known: Annotated[PartialLabels, "subjects"],
    x: Annotated[ArrayLike, "rows features"],
    subjects: Annotated[Groups, "rows"],
    links: Annotated[Links | LabelGraph | None, "subjects"] = None,
    *,
    num_clusters: int,
):
    """Rows of subjects, whose labels are linked and partly known."""
    weights = mixing_weights(num_clusters)
    density = mixture_components(x, num_clusters)
    labels = LinkedCategorical(jnp.log(weights), links)
    log_side = jnp.where(known.admissible(num_clusters), 0.0, -jnp.inf)
    numpyro.sample("x", LinkedMixture(labels, density, log_side, subjects), obs=x)


def grouped():
    """Each subject with one to three rows, in any order."""
    rng = np.random.default_rng(1)
    order = rng.permutation(np.append(np.arange(240), rng.integers(240, size=200)))
    known = PartialLabels(np.where(rng.random(240) < 0.1, TRUTH, -1))
    args = known, jnp.asarray(X[order]), Groups(order), LabelGraph.build(soft(), 240)
    return Problem(families, args, {"num_clusters": 2})


def soft():
    """Those links that partial labels cannot contradict."""
    some = np.isfinite(LINKS.weights)
    return Links(LINKS.pairs[some], LINKS.weights[some], 240)


STATEMENTS = {"covariance": "diagonal", "reading": "relation", "flip_rate": "learned"}
START = {"weights": np.array([0.4, 0.6]), "mean": np.array([[0.2, 0.0], [2.0, 1.0]])}
FULL = {"covariance": np.array([np.eye(2), 2 * np.eye(2)])}
CASES = {
    "field": (lambda: problem(), FULL),
    "chunklet": (lambda: problem(weight_per="chunklet"), FULL),
    "relation": (
        lambda: problem(**STATEMENTS),
        {"variance": np.array([[1.0, 0.5], [2.0, 0.7]]), "flip_rate": np.asarray(0.15)},
    ),
    "groups": (grouped, FULL),
    "free": (lambda: Problem(gmm, (jnp.asarray(X),), {"num_clusters": 2}), FULL),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_sum_to_the_whole(case):
    """Value and statistics of batches of unequal size add up to those of EM's own E-step."""
    build, spread = CASES[case]
    given = build()
    params = START | spread
    clock = Clock()
    data = BatchData.prepare(given, 35, seed=0)
    assert len(data.batches) == 7
    parts = [_expected(data, params, n, clock) for n in range(7)]
    value = sum(part[0] for part in parts) + parts[0][1]
    statistics = jax.tree.map(lambda *leaves: sum(leaves), *(part[2] for part in parts))

    @jax.jit
    def whole(params, args):
        value, slope = expectation(given, params, args)
        return value, closed_step(given, params, slope, args)

    expected, step = whole(params, given.args)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    for name, new in _maximised(data, params, statistics, clock).items():
        np.testing.assert_allclose(new, step[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_loops_too_wide_are_approximated_where_they_are():
    """One batch has them; the others take part with none."""
    inference = BeliefPropagation(max_table=2**5)
    wide = Links.from_grid((4, 4), 0.7)
    links = Links(np.concatenate([wide.pairs, [(20, 21), (21, 22)]]), 0.7, 240)
    given = ppc_problem(X, links, num_clusters=2, reading="relation", inference=inference)
    data = BatchData.prepare(given, 60, seed=0)
    assert data.approximate == "belief_propagation on 16 chunklets in loops"
    params = START | FULL
    parts = [_expected(data, params, n, Clock()) for n in range(len(data.batches))]
    whole = jax.jit(lambda p, args: expectation(given, p, args)[0])(params, given.args)
    np.testing.assert_allclose(sum(part[0] for part in parts) + parts[0][1], whole, rtol=1e-7)


def test_all_batches_share_one_program(monkeypatch):
    monkeypatch.setattr(programs, "_programs", type(programs._programs)())
    with counted_compilations() as names:
        StochasticEM(batch_size=35, max_epochs=2).run(problem(), progress=False)
    assert names.count("stochastic-em-expect") == 1
    assert names.count("stochastic-em-maximise") == 1


class Watched(np.memmap):
    """Data on disk that know how many rows were asked for at once."""

    most = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        Watched.most = max(Watched.most, len(np.atleast_2d(found)))
        return np.asarray(found)


def test_data_on_disk_are_read_by_batches_and_give_the_same(found, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{chunk_moments.__module__}._CHUNK", 50)
    path = tmp_path / "x.dat"
    np.memmap(path, float, "w+", shape=X.shape)[:] = X
    given = problem()
    on_disk = Problem(
        given.model,
        (Watched(path, float, "r", shape=X.shape), given.args[1]),
        given.kwargs,
    )
    again = ENGINE.run(on_disk, seed=1)
    assert 50 <= Watched.most <= 60
    np.testing.assert_allclose(again.params["mean"], found.params["mean"], rtol=1e-10)
    np.testing.assert_allclose(again.sample_stats["lp"], found.sample_stats["lp"], rtol=1e-10)


def test_seed_and_start(found):
    short = StochasticEM(batch_size=60, max_epochs=1, final_pass=False)
    runs = [short.run(problem(), seed=s, init=found) for s in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0].params["mean"], runs[1].params["mean"])
    assert (runs[0].params["mean"] != runs[2].params["mean"]).any()
    assert not runs[0].status.converged
    assert "raise max_epochs" in runs[0].status.message
    assert runs[0].objective.shape == (1, 1)


def test_moments_by_chunks(monkeypatch):
    monkeypatch.setattr(f"{chunk_moments.__module__}._CHUNK", 50)
    mean, covariance = chunk_moments(X)
    np.testing.assert_allclose(mean, X.mean(axis=0))
    np.testing.assert_allclose(covariance, np.cov(X.T))
    holes = X.copy()
    holes[77, 1] = np.nan
    with pytest.raises(ValueError, match="row 77"):
        chunk_moments(holes)


def test_refusals():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    with pytest.raises(ValueError, match="needs closed-form M-steps.*mean belongs? to no block"):
        ENGINE.run(Problem(model, (jnp.asarray(X),)))

    def apart(x: Annotated[ArrayLike, "rows features"], subjects: Annotated[Groups, "rows"]):
        gmm(x, num_clusters=2)

    with pytest.raises(ValueError, match="the mixture that the model observes knows of no groups"):
        ENGINE.run(Problem(apart, (jnp.asarray(X), Groups(TRUTH))))

    def twice(
        x: Annotated[ArrayLike, "rows features"],
        one: Annotated[Groups, "rows"],
        two: Annotated[Groups, "rows"],
    ):
        gmm(x, num_clusters=2)

    with pytest.raises(ValueError, match="the data have 2 groupings"):
        ENGINE.run(Problem(twice, (jnp.asarray(X), Groups(TRUTH), Groups(TRUTH))))
    for decay in (0.5, 1.5):
        with pytest.raises(ValueError, match=r"above 0.5 and at most 1"):
            StochasticEM(decay=decay)
    with pytest.raises(ValueError, match="batch_size=0"):
        StochasticEM(batch_size=0)


def test_breakdown_is_an_error():
    """By the program of `test_batches_sum_to_the_whole`."""
    start = START | CASES["relation"][1] | {"variance": np.zeros((2, 2))}
    with pytest.raises(FitError, match="stopped being finite"):
        StochasticEM(batch_size=35).run(problem(**STATEMENTS), init=start)


def test_batches_of_one_row_are_refused_by_their_size():
    with pytest.raises(ValueError, match="batch_size = 1 makes batches of one row"):
        StochasticEM(batch_size=1).run(Problem(gmm, (X,), {"num_clusters": 2}), progress=False)


@pytest.mark.parametrize(("size", "is_small"), [(5, True), (6, False), (240, False)])
def test_batches_with_fewer_rows_than_determine_covariances_are_remarked_on(size, is_small):
    """Two clusters of two features have two covariances, of three rows each."""
    data = BatchData.prepare(Problem(gmm, (X,), {"num_clusters": 2}), size, 0)
    said = StochasticEM(batch_size=size)._doubts(data, data.first())
    assert len(said) == is_small
    assert all("a batch_size of at least 6" in sentence for sentence in said)
