"""Stepwise EM against EM; batches touch every component once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.expectation_maximisation.stochastic_em import StochasticEM, _Data
from sidebayes.guides.engines.surrogate import expectation
from sidebayes.guides.engines.variational.batches import chunk_moments, deal_batches
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links

from tests.support import closed_step, ppc_problem

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


def test_every_component_is_visited_once():
    graph = LabelGraph.build(LINKS, 240)
    batches = deal_batches(graph, 60, seed=0)
    assert 4 <= len(batches) <= 6
    rows = np.concatenate([batch.points for batch in batches])
    np.testing.assert_array_equal(np.sort(rows), np.arange(240))
    linked = {}
    for batch in batches:
        at = batch.live[np.asarray(batch.graph.pairs)].all(axis=1)
        ends = batch.rows[np.asarray(batch.graph.pairs)[at]]
        linked |= {
            frozenset(pair): weight
            for pair, weight in zip(
                ends.tolist(), np.asarray(batch.graph.pair_weights)[at], strict=True
            )
        }
    expected = zip(LINKS.pairs.tolist(), LINKS.weights, strict=True)
    assert linked == {frozenset(pair): weight for pair, weight in expected}
    sizes = {(b.graph.num_points, b.graph.num_nodes, b.graph.num_edges) for b in batches}
    assert len(sizes) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": "full"},
        {"covariance": "diagonal", "reading": "relation", "flip_rate": "learned"},
    ],
    ids=["field", "relation"],
)
def test_batches_sum_to_the_whole(options):
    """Value and statistics of small padded batches add up to those of EM's own E-step."""
    given = problem(**options)
    params = {"weights": np.array([0.4, 0.6]), "mean": np.array([[0.2, 0.0], [2.0, 1.0]])}
    if options["covariance"] == "full":
        params["covariance"] = np.array([np.eye(2), 2 * np.eye(2)])
    else:
        params |= {"variance": np.array([[1.0, 0.5], [2.0, 0.7]]), "flip_rate": np.asarray(0.15)}
    clock = {"compile": 0.0}
    data = _Data.prepare(given, 60, seed=0)
    parts = [data.expect(params, n, clock) for n in range(len(data.batches))]
    value = sum(part[0] for part in parts) + parts[0][1]
    statistics = jax.tree.map(lambda *leaves: sum(leaves), *(part[2] for part in parts))
    expected, slope = jax.jit(lambda p, args: expectation(given, p, args))(params, given.args)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    step = closed_step(given, params, slope)
    for name, new in data.maximise(params, statistics, clock).items():
        np.testing.assert_allclose(new, step[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_data_on_disk_give_the_same(found, tmp_path):
    path = tmp_path / "x.dat"
    np.memmap(path, float, "w+", shape=X.shape)[:] = X
    given = problem()
    on_disk = Problem(
        given.model,
        (np.memmap(path, float, "r", shape=X.shape), given.args[1]),
        given.kwargs,
    )
    again = ENGINE.run(on_disk, seed=1)
    np.testing.assert_array_equal(again.params["mean"], found.params["mean"])
    assert again.sample_stats["lp"] == found.sample_stats["lp"]


def test_seed_and_start(found):
    short = StochasticEM(batch_size=60, max_epochs=1, final_pass=False)
    runs = [short.run(problem(), seed=s, init=found) for s in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0].params["mean"], runs[1].params["mean"])
    assert (runs[0].params["mean"] != runs[2].params["mean"]).any()
    assert not runs[0].status.converged
    assert "raise max_epochs" in runs[0].status.message
    assert runs[0].objective.shape == (1, 1)


def test_moments_by_chunks(monkeypatch):
    monkeypatch.setattr("sidebayes.guides.engines.variational.batches._CHUNK", 50)
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

    with pytest.raises(ValueError, match="needs closed-form M-steps.*mean belong to no block"):
        ENGINE.run(Problem(model, (jnp.asarray(X),)))
    for decay in (0.5, 1.5):
        with pytest.raises(ValueError, match=r"above 0.5 and at most 1"):
            StochasticEM(decay=decay)
    with pytest.raises(ValueError, match="batch_size=0"):
        StochasticEM(batch_size=0)


def test_breakdown_is_an_error(found):
    start = found.params | {"covariance": np.zeros((2, 2, 2))}
    with pytest.raises(FitError, match="stopped being finite"):
        ENGINE.run(problem(), init=start)
