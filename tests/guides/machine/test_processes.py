"""One fit by several devices, and by several processes under `jax.distributed`."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

FIT = """
import json, sys
import jax
{before}
import numpy as np
from sidebayes.guides.engines.steps import row_tables
import sidebayes as sb
from sidebayes.models.blocks.label_inference import label_graph
row_tables._LARGE = label_graph.MANY_NODES = label_graph.FEW_NODES = 1
rng = np.random.default_rng(0)
x = rng.normal(size=(301, 2)) + 5 * rng.integers(2, size=(301, 1))
seen = []
for name in ("spread", "on_each"):
    made = getattr(row_tables, name)
    setattr(row_tables, name, lambda args, made=made: seen.append(1) or made(args))
start = {{"mean": np.array([[-1.0, 0], [6, 4]]), "weights": np.array([0.5, 0.5])}}
start["covariance"] = np.stack([np.eye(2)] * 2)
given = {{"num_clusters": 2, "engine": sb.EM(max_steps=30), "init": start, "progress": False}}
fit = sb.fit("gmm", x, **given)
pairs = rng.choice(301, (80, 2))
links = sb.Links(pairs[pairs[:, 0] != pairs[:, 1]], 1.0, 301)
linked = sb.fit("ppc", x, links, **given)
told = {{"mean": fit.params["mean"].tolist(), "lp": float(np.nanmax(fit.objective))}}
told["linked"] = [float(np.nanmax(linked.objective)), *linked.params["mean"].ravel().tolist()]
told |= {{"devices": jax.device_count(), "divided": len(seen)}}
print("told", json.dumps(told))
"""


def run(*befores):
    """Results of the fit in processes that run side by side."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", FIT.format(before=before)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for before in befores
    ]
    told = []
    for job in jobs:
        out, error = job.communicate(timeout=240)
        assert job.returncode == 0, error[-2000:]
        told.append(json.loads(out.split("told ", 1)[1]))
    return told


@pytest.fixture(scope="module")
def alone():
    return run("")[0]


def agree(one, other):
    np.testing.assert_allclose(one["lp"], other["lp"], rtol=1e-12)
    np.testing.assert_allclose(np.sort(one["mean"], 0), np.sort(other["mean"], 0), rtol=1e-10)
    np.testing.assert_allclose(one["linked"], other["linked"], rtol=1e-10)


def test_two_devices(alone):
    (two,) = run("jax.config.update('jax_num_cpu_devices', 2)")
    assert two["devices"] == 2
    assert two["divided"] == 2
    agree(alone, two)


def test_two_processes(alone):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    first, second = run(*(f"jax.distributed.initialize({address!r}, 2, {n})" for n in (0, 1)))
    assert first["devices"] == 2
    assert first["divided"] == 2
    assert first["mean"] == second["mean"]
    assert first["linked"] == second["linked"]
    agree(alone, first)
