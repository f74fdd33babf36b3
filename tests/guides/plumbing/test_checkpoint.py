"""Checkpoints: whole or not at all, and runs that go on from them end the same."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import KeptEngine, Problem, SideBayesWarning
from sidebayes.guides.engines.plumbing.checkpoint import (
    Checkpoint,
    check_checkpoint,
    keeping,
    read_state,
    write_state,
)
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constraint_fit import constraint_fit
from sidebayes.models.ppc import ppc

import sidebayes
from sidebayes import (
    EM,
    HMC,
    MAP,
    MCLMC,
    NUTS,
    SMC,
    SVI,
    BlockedGibbs,
    Continuation,
    CoordinateAscent,
    GeodesicHMC,
    Laplace,
    MonteCarloEM,
    NestedSlice,
    Pathfinder,
    StochasticEM,
)
from sidebayes.runs.cards import resolve
from sidebayes.runs.zoo import ENGINES
from tests import long_runs

Y = np.array([0.3, 1.2, 0.8, 2.0])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)


def problem(y=Y):
    return Problem(normal, (jnp.asarray(y),))


def state(number):
    return {
        "key": jax.random.key(number),
        "values": jnp.arange(5.0) + number,
        "count": np.asarray(number),
    }


def values(found):
    return None if found is None else np.asarray(found["values"]).tolist()


def test_round_trip_keeps_keys_types_and_bits(tmp_path):
    path = tmp_path / "run.state"
    write_state(path, state(3), "run")
    found = read_state(path, state(0), "run")
    assert found["key"].dtype == state(3)["key"].dtype
    assert jax.random.normal(found["key"]) == jax.random.normal(state(3)["key"])
    assert found["values"].dtype == jnp.float64
    assert isinstance(found["count"], np.ndarray)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.state"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_damaged_file_gives_way_to_the_one_before(tmp_path, damage):
    path = tmp_path / "run.state"
    write_state(path, state(1), "run")
    write_state(path, state(2), "run")
    assert values(read_state(path, state(0), "run")) == [2, 3, 4, 5, 6]
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-30] ^= 1
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b""}.get(damage, content))
    with pytest.warns(SideBayesWarning, match="run.state is damaged"):
        assert values(read_state(path, state(0), "run")) == [1, 2, 3, 4, 5]
    path.unlink()  # killed between the two renamings
    assert values(read_state(path, state(0), "run")) == [1, 2, 3, 4, 5]


def test_another_run_is_refused(tmp_path):
    write_state(tmp_path / "run.state", state(1), "this")
    with pytest.raises(ValueError, match="of another run"):
        read_state(tmp_path / "run.state", state(1), "that")
    assert read_state(tmp_path / "none", state(1), "this") is None


def test_keeper_writes_when_it_is_time(tmp_path):
    path = tmp_path / "run.state"
    Checkpoint(path, 3600.0, "run").offer(state(1))
    assert not path.exists()
    keeper = Checkpoint(path, 0.0, "run")
    keeper.offer(state(1))
    keeper.offer(state(2))
    assert values(keeper.restore(state(0))) == [2, 3, 4, 5, 6]
    keeper.clear()
    assert not list(tmp_path.iterdir())


def kept_run(path, engine, given, seed=0):
    """Run an engine with its state kept at every step, as `sidebayes.fit` does with a checkpoint."""
    with keeping(str(path), 0.0, engine, given, seed, None) as keep:
        return engine.run(given, seed=seed, keep=keep)


class Interrupted(Exception):
    """Stands for whatever ends a run."""


def interrupt(monkeypatch, after):
    """Let a run end after it has written its state some times."""
    offer, count = Checkpoint.offer, iter(range(after))

    def once(self, state, *, now=False):
        offer(self, state, now=now)
        if next(count, None) is None:
            raise Interrupted

    monkeypatch.setattr(Checkpoint, "offer", once)


def engines():
    chains = {"num_warmup": 60, "num_samples": 60, "num_chains": 2}
    return {
        "smc": SMC(num_particles=100, num_runs=2, target_ess=0.9),
        "nested": NestedSlice(num_live=50, num_delete=5, num_runs=2, num_samples=50),
        "map": MAP(num_restarts=2),
        "em": EM(num_restarts=2, tol=1e-12),
        "stochastic_em": StochasticEM(batch_size=4, max_epochs=3, tol=0.0),
        "laplace": Laplace(num_restarts=2),
        "pathfinder": Pathfinder(num_paths=2, num_draws=100),
        "svi": SVI(num_restarts=2, num_steps=500),
        "cavi": CoordinateAscent(num_restarts=2, tol=1e-12),
        "nuts": NUTS(**chains),
        "hmc": HMC(chain_method="vectorized", **chains),
        "mclmc": MCLMC(**chains),
        "gibbs": BlockedGibbs(**chains),
        "geodesic": GeodesicHMC(**chains),
        "continuation": Continuation(num_restarts=2),
        "monte_carlo_em": MonteCarloEM(
            sampled=("effect",), num_samples=40, max_samples=40, num_warmup=20, num_final=2
        ),
    }


SAMPLERS = ("smc", "nested", "nuts", "hmc")
"""Engines tried on one normal; the others on two clusters."""


def clusters(y=Y):
    options = {"num_clusters": 2, "reading": "relation", "covariance": "spherical"}
    x = np.concatenate([y, y + 3])[:, None]
    args = jnp.asarray(x), LabelGraph.build(Links.must_link([(0, 1)], 1.0), len(x))
    return Problem(ppc, args, options)


def priced(y=Y):
    """A pair of points that should have one label, at a price."""
    x = np.concatenate([y, y + 3])[:, None]
    args = jnp.asarray(x), LabelGraph.build(Links.must_link([(0, 5)], 2.0), len(x))
    return Problem(constraint_fit, args, {"num_clusters": 2, "covariance": "spherical"})


def effects(y=Y):
    return Problem(effects_of, (jnp.asarray(y),))


def effects_of(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)


def directed(y=Y):
    return Problem(long_runs.directed, (jnp.asarray(y),))


PROBLEMS = dict.fromkeys(SAMPLERS, problem) | {
    "continuation": priced,
    "geodesic": directed,
    "monte_carlo_em": effects,
}
OFFERED = {"nuts": 3, "stochastic_em": 2, "continuation": 3, "monte_carlo_em": 2}
"""How often the state was offered before; not at all by default."""


# SVI goes on within its ascent, or after it; Monte-Carlo EM within its steps, or (None) after them
@pytest.mark.parametrize(
    ("name", "after"),
    [(name, OFFERED.get(name, 0)) for name in engines()] + [("svi", 1), ("monte_carlo_em", None)],
)
def test_interrupted_run_ends_the_same(name, after, tmp_path, monkeypatch):
    if name in ("nested", "pathfinder", "mclmc"):
        pytest.importorskip("blackjax")
    build = PROBLEMS.get(name, clusters)
    engine = engines()[name]
    whole = engine.run(build(), seed=1)
    path = tmp_path / "run.state"
    after = whole.objective.shape[1] - 1 if after is None else after
    with monkeypatch.context() as patched:
        interrupt(patched, after)
        with pytest.raises(Interrupted):
            kept_run(path, engine, build(), 1)
    assert list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="of another run"):
        kept_run(path, engine, build(), 2)
    with pytest.raises(ValueError, match="of another run"):
        kept_run(path, engine, build(Y + 1), 1)
    found = []

    def restore(path, *given):
        found.append(read_state(path, *given))
        return found[-1]

    monkeypatch.setattr("sidebayes.guides.engines.plumbing.checkpoint.read_state", restore)
    again = kept_run(path, engine, build(), 1)
    assert all(state is not None for state in found[: 2 if after == 1 and name == "svi" else 1])
    assert_same(again, whole)
    assert not list(tmp_path.iterdir())


def assert_same(one, other):
    for name in ("draws", "sample_stats"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert set(ours) == set(theirs)
        for site, value in ours.items():
            np.testing.assert_array_equal(value, theirs[site])
    np.testing.assert_array_equal(one.objective, other.objective)
    assert one.log_evidence == other.log_evidence
    assert one.status == other.status


@pytest.mark.parametrize(
    ("name", "kills"),
    [("em", 1)] + [pytest.param(name, 3, marks=pytest.mark.slow) for name in long_runs.SETTINGS],
)
def test_killed_run_ends_the_same(name, kills, tmp_path):
    if name == "nested":
        pytest.importorskip("blackjax")
    path = tmp_path / "run.state"
    whole = long_runs.run(name)
    # compiled once, here
    same_programs = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    for pause in np.random.default_rng().uniform(0, 1, kills):
        command = [sys.executable, "-m", "tests.long_runs", name, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=same_programs) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"kept\n"
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    assert list(tmp_path.iterdir())
    assert_same(long_runs.run(name, path), whole)
    assert not list(tmp_path.iterdir())


def run_in(path, **settings):
    return kept_run(path, MAP(num_restarts=1, **settings), problem())


@pytest.mark.parametrize("name", ["thesis.txt", "run.state.previous", "run.state.0.previous"])
def test_a_foreign_file_is_never_touched(tmp_path, name):
    foreign = tmp_path / name
    foreign.write_text("a thesis")
    path = tmp_path / "run.state" if "run" in name else foreign
    with pytest.raises(ValueError, match=f"{name} is no file that a run has written"):
        kept_run(path, SVI(num_steps=100), problem())
    assert foreign.read_text() == "a thesis"


def test_a_folder_or_a_device_is_no_checkpoint(tmp_path):
    for path in (tmp_path, "/dev/null"):
        with pytest.raises(ValueError, match="it is a folder|is no file that a run has written"):
            check_checkpoint(path)


def test_two_runs_do_not_share_a_file(tmp_path, monkeypatch):
    path, refused, offer = tmp_path / "run.state", [], Checkpoint.offer

    def meanwhile(self, state, **given):
        offer(self, state, **given)
        with pytest.raises(ValueError, match="another run is using the checkpoint .*run.state"):
            run_in(path)
        refused.append(1)

    monkeypatch.setattr(Checkpoint, "offer", meanwhile)
    run_in(path)
    assert refused
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_no_lock_and_no_part(tmp_path):
    path = tmp_path / "run.state"
    for name in (
        ".run.state.12ab.writing",
        ".run.state.0.12ab.writing",
        ".run.state.sidebayes-lock",
    ):
        (tmp_path / name).touch()
    run_in(path)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_cannot_be_written_ends_no_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    whole = MAP(num_restarts=1).run(problem())
    monkeypatch.setattr("sidebayes.common.files.os.fsync", full)
    with pytest.warns(SideBayesWarning, match="no checkpoint is kept.*run.state.*No space") as told:
        found = run_in(tmp_path / "run.state", tol=1e-7)
    assert len(told) == 1
    assert_same(found, whole)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_disappears_ends_no_run(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    path = check_checkpoint(folder / "run.state")
    folder.rmdir()
    with pytest.warns(SideBayesWarning, match="there is no folder"):
        assert run_in(path).status.converged


def test_the_checkpoint_is_of_the_run(tmp_path, monkeypatch):
    """`fit` hands the file to whatever engine; neither the engine nor a saved fit names it."""
    given = {"engine": MAP(num_restarts=1), "progress": False}
    path = tmp_path / "run.state"
    with monkeypatch.context() as patched:
        interrupt(patched, 0)
        with pytest.raises(Interrupted):
            sidebayes.fit(normal, Y, checkpoint=path, checkpoint_every=0, **given)
    assert path.is_file()
    fit = sidebayes.fit(normal, Y, checkpoint=path, checkpoint_every=0, **given)
    assert not list(tmp_path.iterdir())
    whole = sidebayes.fit(normal, Y, **given)
    assert fit.tree["posterior"].equals(whole.tree["posterior"])
    assert fit.config == given["engine"]
    assert fit.tree.attrs == whole.tree.attrs
    assert fit.resume(1).run.checkpoint == str(path)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"checkpoint": 3}, TypeError, "checkpoint = 3; expected the path of a file"),
        ({"checkpoint": "no/such/folder/file"}, ValueError, "file': there is no folder no/such"),
        (
            {"checkpoint": f"{__file__}/file"},
            ValueError,
            "py is a file; name a folder in its place",
        ),
        (
            {"checkpoint_every": -1},
            ValueError,
            "checkpoint_every = -1; expected a finite number >= 0",
        ),
        (
            {"checkpoint_every": "often"},
            ValueError,
            "checkpoint_every = 'often'; expected a finite",
        ),
        (
            {"checkpoint": "file", "method": "constrained_kmeans"},
            ValueError,
            "engine 'kmeans' keeps no state on its way.*leave checkpoint out",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused_at_the_door(given, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        sidebayes.fit(**{"method": "gmm", "x": Y[:, None], "num_clusters": 2, **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ENGINES)
def test_all_engines_but_kmeans_can_be_kept(name):
    assert issubclass(resolve(ENGINES[name]), KeptEngine) == (name != "kmeans")
