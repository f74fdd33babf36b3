"""Rows in shares: the same answers as on one device, whatever the number of rows or cores."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.machine.shares import Spread, on_each
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.steps import row_tables
from sidebayes.guides.engines.steps.row_tables import in_shares
from sidebayes.models.blocks.components.gaussians import linked_pass
from sidebayes.models.blocks.label_inference import label_graph
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc

import sidebayes as sb

ONE_START = {
    "em": sb.EM(num_restarts=1),
    "map": sb.MAP(num_restarts=1),
    "cavi": sb.CoordinateAscent(num_restarts=1),
}


def rows(number, seed=0):
    """Three clusters in three dimensions."""
    rng = np.random.default_rng(seed)
    centre = np.array([[0.0, 0, 0], [6, 0, 1], [0, 7, -2]])
    return centre[rng.integers(3, size=number)] + rng.normal(size=(number, 3))


@pytest.fixture
def always(monkeypatch):
    """Divide tables of any size."""
    monkeypatch.setattr(row_tables, "_LARGE", 1)


def fit(x, engine, **options):
    with jax.enable_x64(True):
        return engine.run(Problem(gmm, (x,), {"num_clusters": 3} | options))


def both(x, engine, monkeypatch, **options):
    """The same fit on one device and in shares; the second compiles a program of its own."""
    one = fit(x, engine, **options)
    monkeypatch.setattr(row_tables, "_LARGE", 1)
    with counted_compilations() as names:
        many = fit(x, engine, **options)
    assert names
    return one, many


@pytest.mark.parametrize("number", [240, 243])
@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal"])
def test_em_in_shares_is_em(number, covariance, monkeypatch):
    x = rows(number)
    one, many = both(x, ONE_START["em"], monkeypatch, covariance=covariance)
    np.testing.assert_allclose(np.nanmax(many.objective), np.nanmax(one.objective), rtol=1e-12)
    for name, value in one.params.items():
        np.testing.assert_allclose(many.params[name], value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("engine", ["map", pytest.param("cavi", marks=pytest.mark.slow)])
def test_other_engines_in_shares(engine, monkeypatch):
    one, many = both(rows(243), ONE_START[engine], monkeypatch)
    for name in ("mean", "covariance"):
        np.testing.assert_allclose(many.params[name], one.params[name], rtol=0.02, atol=2e-3)


def problem(x, *args):
    return Problem(gmm, (x, *args), {"num_clusters": 3})


@pytest.mark.parametrize("number", [240, 243])
def test_shares_are_equal_and_keep_the_rows(number, always):
    x = rows(number).astype(np.float32)
    (table,) = in_shares(problem(x), 1)
    assert isinstance(table, Spread)
    assert table.num_rows == number
    shares = [np.asarray(shard.data) for shard in table.table.addressable_shards]
    assert len({len(share) for share in shares}) == 1
    np.testing.assert_array_equal(np.concatenate(shares)[:number], x)
    assert jax.device_count() == 1


def test_small_tables_stay_whole():
    x = rows(100)
    assert in_shares(problem(x), 1)[0] is x


def test_several_starts_use_all_cores_as_they_are(always):
    x = rows(100)
    assert in_shares(problem(x), 2)[0] is x


def test_linked_points_stay_whole(always):
    x, links = rows(100), sb.Links.must_link([(0, 1)])
    graph = LabelGraph.build(links, 100)
    linked = Problem(ppc, (x, graph), {"num_clusters": 3})
    assert in_shares(linked, 1)[0] is x


@pytest.fixture
def in_lanes(monkeypatch):
    """Small trees stand in lanes in graphs of any size, and there are many chunks."""
    monkeypatch.setattr(label_graph, "WIDTH", 8)
    monkeypatch.setattr(linked_pass, "CHUNK", 64)
    monkeypatch.setattr(label_graph, "MANY_NODES", 1)
    monkeypatch.setattr(label_graph, "FEW_NODES", 1)


def linked_rows(number=3001):
    """Rows, pairs of which few are in trees too large for a lane, and in loops, and a start."""
    x, rng = rows(number), np.random.default_rng(1)
    pairs = rng.choice(number, (number // 4, 2))
    pairs = np.concatenate([pairs[pairs[:, 0] != pairs[:, 1]], [(0, 1), (1, 2), (0, 2)]])
    same = np.linalg.norm(x[pairs[:, 0]] - x[pairs[:, 1]], axis=1) < 4
    mean = np.array([[0.0, 0, 0], [5, 1, 0], [1, 6, 0]])
    start = {"mean": mean, "covariance": np.stack([np.eye(3)] * 3), "weights": np.ones(3) / 3}
    return x, sb.Links(pairs, np.where(same, 1.5, -1.0), number), start


@pytest.mark.parametrize(
    ("reading", "flip_rate"), [("field", None), ("relation", None), ("relation", "learned")]
)
def test_em_of_linked_points_in_turns_is_em(reading, flip_rate, in_lanes, monkeypatch):
    x, links, start = linked_rows()
    graph = LabelGraph.build(links, len(x), 3)
    assert graph.sums_loops
    assert graph.peeling.num_rows > 0

    def fit():
        given = {"reading": reading, "flip_rate": flip_rate, "num_clusters": 3}
        with jax.enable_x64(True):
            return sb.EM(max_steps=8).run(Problem(ppc, (x, graph), given), init=start)

    start = start if flip_rate is None else start | {"flip_rate": np.array(0.2)}
    one = fit()
    monkeypatch.setattr(row_tables, "_LARGE", 1)
    placed = []
    monkeypatch.setattr(row_tables, "on_each", lambda args: placed.append(1) or on_each(args))
    many = fit()
    assert placed
    np.testing.assert_allclose(many.objective, one.objective, rtol=1e-12)
    for name, value in one.params.items():
        np.testing.assert_allclose(many.params[name], value, rtol=1e-8, atol=1e-10)


def test_data_on_each_device_are_one_copy(always):
    x, links, _ = linked_rows()
    x, graph = x[::2].astype(np.float32), LabelGraph.build(links, len(x), 3)
    table, placed = on_each((x, graph))
    shards = [shard.data for shard in table.table.addressable_shards]
    assert len({shard.unsafe_buffer_pointer() for shard in shards}) == 1
    np.testing.assert_array_equal(table.table, x)
    np.testing.assert_array_equal(placed.order, graph.order)


def test_large_trees_leave_linked_points_whole(in_lanes, always):
    number = 3001
    path = np.column_stack([np.arange(number - 1), np.arange(1, number)])
    graph = LabelGraph.build(sb.Links(path, np.full(number - 1, 1.0), number), number, 3)
    linked = Problem(ppc, (rows(number), graph), {"num_clusters": 3})
    assert in_shares(linked, 1, {"x"}) is linked.args


SCRIPT = """
import os, sys
os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[: int(sys.argv[1])]))
import numpy as np
from sidebayes.guides.engines.steps import row_tables
import sidebayes as sb
row_tables._LARGE = 1
x = np.random.default_rng(0).normal(size=(20_000, 12))
fit = sb.fit("gmm", x, num_clusters=4, engine=sb.EM(num_restarts=1, max_steps=5), progress=False)
print(fit.params["mean"].tobytes().hex())
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_any_number_of_cores_gives_the_same_result():
    told = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, number], capture_output=True, text=True, check=True
        ).stdout
        for number in ("1", "2")
    ]
    assert told[0] == told[1]
