"""Rows in shares: the same answers as on one device, whatever the number of rows or cores."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.machine.shares import Spread
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.steps import row_tables
from sidebayes.guides.engines.steps.row_tables import in_shares
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
    return sb.fit("gmm", x, num_clusters=3, engine=engine, progress=False, **options)


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
    np.testing.assert_allclose(many.responsibilities(), one.responsibilities(), atol=1e-7)


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
