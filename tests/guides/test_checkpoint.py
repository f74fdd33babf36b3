"""Checkpoints: whole or not at all, and runs that go on from them end the same."""

from __future__ import annotations

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
from sidebayes.guides.engines.base import Problem, SideBayesWarning
from sidebayes.guides.engines.checkpoint import Keeper, read_state, write_state
from sidebayes.guides.engines.em import EM
from sidebayes.guides.engines.mcmc import NUTS
from sidebayes.guides.engines.optimise import MAP
from sidebayes.guides.engines.smc import SMC

Y = np.array([0.3, 1.2, 0.8, 2.0])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)


def mixture(y):
    with numpyro.plate("clusters", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    parts = dist.Normal(mean, 1.0)
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.full(2, 0.5)), parts), obs=y)


def problem(y=Y, model=normal):
    return Problem(model, (jnp.asarray(y),))


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
    Keeper(path, 3600.0, "run").offer(state(1))
    assert not path.exists()
    keeper = Keeper(path, 0.0, "run")
    keeper.offer(state(1))
    keeper.offer(state(2))
    assert values(keeper.restore(state(0))) == [2, 3, 4, 5, 6]
    keeper.clear()
    assert not list(tmp_path.iterdir())


class Interrupted(Exception):
    """Stands for whatever ends a run."""


def interrupt(monkeypatch, after):
    """Let a run end after it has written its state some times."""
    offer, count = Keeper.offer, iter(range(after))

    def once(self, state, *, now=False):
        offer(self, state, now=now)
        if next(count, None) is None:
            raise Interrupted

    monkeypatch.setattr(Keeper, "offer", once)


def engines(path=None):
    every = {"checkpoint": path, "checkpoint_every": 0.0}
    return {
        "smc": SMC(num_particles=100, num_runs=2, target_ess=0.9, **every),
        "map": MAP(num_restarts=2, **every),
        "em": EM(num_restarts=2, tol=1e-12, **every),
        "nuts": NUTS(60, 60, 2, chain_method="sequential", **every),
    }


@pytest.mark.parametrize("name", engines())
def test_interrupted_run_ends_the_same(name, tmp_path, monkeypatch):
    if name == "smc":
        pytest.importorskip("blackjax")
    model = mixture if name in ("map", "em") else normal
    whole = engines()[name].run(problem(model=model), seed=1)
    path = tmp_path / "run.state"
    with monkeypatch.context() as patched:
        interrupt(patched, 3 if name == "nuts" else 0)
        with pytest.raises(Interrupted):
            engines(path)[name].run(problem(model=model), seed=1)
    assert list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="of another run"):
        engines(path)[name].run(problem(model=model), seed=2)
    with pytest.raises(ValueError, match="of another run"):
        engines(path)[name].run(problem(Y + 1, model), seed=1)
    found = []

    def restore(path, *given):
        found.append(read_state(path, *given))
        return found[-1]

    monkeypatch.setattr("sidebayes.guides.engines.checkpoint.read_state", restore)
    again = engines(path)[name].run(problem(model=model), seed=1)
    assert found[0] is not None
    for site, value in whole.draws.items():
        np.testing.assert_array_equal(again.draws[site], value)
    assert again.log_evidence == whole.log_evidence
    assert not list(tmp_path.iterdir())


SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.checkpoint import Keeper
from sidebayes.guides.engines.smc import SMC

def model(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(mu.sum(), 0.5), obs=y)

offer = Keeper.offer
def loud(self, state):
    offer(self, state)
    print("kept", flush=True)
Keeper.offer = loud
engine = SMC(num_particles=2000, num_runs=2, num_mutations=20, target_ess=0.98, max_steps=150,
             checkpoint=sys.argv[1], checkpoint_every=0.0)
with jax.enable_x64(True):
    found = engine.run(Problem(model, (jnp.arange(4.0),)), seed=0)
np.save(sys.argv[2], found.draws["mu"])
"""


@pytest.mark.slow
def test_killed_run_ends_the_same(tmp_path):
    pytest.importorskip("blackjax")

    def start(name):
        command = [
            sys.executable,
            "-c",
            SCRIPT,
            str(tmp_path / name),
            str(tmp_path / name) + ".npy",
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    assert start("whole").wait() == 0
    kills = 0
    for pause in np.random.default_rng().uniform(0, 2, 3):
        process = start("killed")
        assert process.stdout is not None
        if not process.stdout.readline():  # it ended before its first state
            break
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    if not (tmp_path / "killed.npy").exists():
        assert start("killed").wait() == 0
    assert kills > 0
    whole, killed = (np.load(tmp_path / f"{name}.npy") for name in ("whole", "killed"))
    np.testing.assert_array_equal(killed, whole)
    assert not (tmp_path / "killed").exists()
