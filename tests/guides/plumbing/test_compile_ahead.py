"""Programs compiled by another thread: those that a fit asks for, and no others."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing import programs
from sidebayes.guides.engines.plumbing.programs import (
    compile_ahead,
    compiled,
    counted_compilations,
    nothing_left_ahead,
)

import sidebayes as sb
from tests.support.programs import twice

X = np.sort(sb.load_dataset("iris").x[::5, :2], axis=0)
SHAPE = jax.ShapeDtypeStruct((), jnp.float32)


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(programs, "_programs", type(programs._programs)())
    monkeypatch.setattr(programs, "_ahead", {})


def asked(routine, model, *args, build=None):
    build = build or (lambda bare: bare.model)
    return routine("toy", Problem(model, ()), None, build, *args)


def wait():
    for job in list(programs._ahead.values()):
        job.future.exception()


def test_what_is_ready_is_taken():
    with counted_compilations() as names:
        asked(compile_ahead, twice, SHAPE)
        asked(compile_ahead, twice, SHAPE)  # once is enough
        wait()
        program, _ = asked(compiled, twice, jnp.float32(1.0))
        asked(compile_ahead, twice, SHAPE)  # it is there
    assert names == ["toy"]
    assert not programs._ahead
    assert float(program(jnp.float32(1.0))) == pytest.approx(2 * np.sin(1.0))


@pytest.fixture
def held(monkeypatch):
    """The other thread compiles nothing until `go` is set; `begun` says that it wants to."""
    begun, go = threading.Event(), threading.Event()
    compile_anew = programs.compile_anew

    def hold(lowered, **options):
        if not begun.is_set():
            begun.set()
            assert go.wait(30)
        return compile_anew(lowered, **options)

    monkeypatch.setattr(programs, "compile_anew", hold)
    asked(compile_ahead, jnp.cos, SHAPE)
    assert begun.wait(30)
    yield go
    go.set()
    wait()


def test_what_has_begun_is_waited_for_and_what_has_not_is_done_at_once(held):
    asked(compile_ahead, jnp.tan, SHAPE)
    with counted_compilations() as names:
        asked(compiled, jnp.tan, jnp.float32(1.0))
    assert names == ["toy"]
    threading.Timer(0.2, held.set).start()
    with counted_compilations() as names:
        program, _ = asked(compiled, jnp.cos, jnp.float32(0.0))
    assert names == ["toy"]  # by the other thread, while this one waited
    assert float(program(jnp.float32(0.0))) == 1.0


def test_what_fails_there_fails_here():
    def broken(bare):
        raise ArithmeticError("no such program")

    asked(compile_ahead, twice, SHAPE, build=broken)
    wait()
    with pytest.raises(ArithmeticError, match="no such program"):
        asked(compiled, twice, jnp.float32(1.0), build=broken)


def test_what_nobody_takes_is_dropped(held):
    with nothing_left_ahead():
        asked(compile_ahead, twice, SHAPE)
        job = next(reversed(programs._ahead.values()))
    assert job.future.cancelled()
    assert len(programs._ahead) == 1  # what had begun


def test_no_model_is_run_there_once_the_block_has_ended(monkeypatch):
    """NumPyro has one stack of handlers for all threads."""
    begun, ran = threading.Event(), []

    def traced(bare):
        begun.set()
        time.sleep(0.2)
        ran.append(1)
        return bare.model

    with nothing_left_ahead():
        asked(compile_ahead, jnp.cos, SHAPE, build=traced)
        assert begun.wait(30)
    assert ran == [1]  # waited for, since it had begun
    programs.tracing.acquire()
    with nothing_left_ahead():
        asked(compile_ahead, twice, SHAPE, build=traced)
        while programs._ahead and not next(iter(programs._ahead.values())).future.running():
            time.sleep(0.01)
    programs.tracing.release()
    wait()
    assert ran == [1]  # it came to run the model after the block, and did not


def test_settings_of_one_thread_are_those_of_its_programs():
    """The other thread has the precision, and leaves programs under other settings to this one."""
    with jax.enable_x64(True), counted_compilations() as names:
        asked(compile_ahead, twice, jax.ShapeDtypeStruct((), jnp.float64))
        wait()
        program, _ = asked(compiled, twice, jnp.float64(1.0))
        assert names == ["toy"]
        assert program(jnp.float64(1.0)).dtype == np.float64
    with jax.default_matmul_precision("float32"), counted_compilations() as names:
        asked(compile_ahead, twice, SHAPE)
        wait()
        assert names == []
        asked(compiled, twice, jnp.float32(1.0))
    assert names == ["toy"]


POWER = contextvars.ContextVar("power", default=1.0)
PLACE = threading.local()
PLACE.power = 3.0  # in this thread only


def powered(x):
    """A model that reads what may differ between threads."""
    mean = numpyro.sample("mean", dist.Normal(0.0, POWER.get() * getattr(PLACE, "power", 1.0)))
    numpyro.sample("x", dist.Normal(mean, 1.0), obs=x[:, 0])


@pytest.mark.parametrize("power", [2.0, 4.0])
def test_a_model_sees_what_its_own_thread_holds(power):
    """Now, and when it has changed since."""
    begun = POWER.set(power)
    try:
        fit = sb.fit(powered, np.array([[6.0]]), engine=sb.Laplace(num_restarts=1), progress=False)
    finally:
        POWER.reset(begun)
    deviation = np.hypot(1.0, 3.0 * power)
    assert float(fit.log_evidence) == pytest.approx(norm.logpdf(6.0, 0.0, deviation), abs=1e-6)


def test_a_thread_that_outlives_the_main_one_still_fits():
    """Python starts no thread any more then."""
    code = """
import threading, time
import numpy as np
import sidebayes as sb

def fitted(num_clusters):
    return sb.fit("gmm", np.arange(12.0)[:, None], num_clusters=num_clusters, progress=False)

def late():
    threading.main_thread().join()
    print(f"found {len(fitted(2).labels())}")

fitted(1)
threading.Thread(target=late).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "found 12", done.stderr


def test_a_thread_drops_its_own_jobs_only(held):
    def other():
        with nothing_left_ahead():
            asked(compile_ahead, jnp.tan, SHAPE)

    with nothing_left_ahead():
        asked(compile_ahead, twice, SHAPE)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        kept = [key for key, job in programs._ahead.items() if not job.dropped.is_set()]
        assert len(kept) == 2  # what this thread asked for: one has begun, one waits


def test_nothing_is_compiled_ahead_where_memory_maps_are_scarce(monkeypatch):
    monkeypatch.setattr(programs, "maps_in_use", lambda: 0.6)
    asked(compile_ahead, twice, SHAPE)
    assert not programs._ahead


SHORT = {"num_warmup": 5, "num_samples": 5, "num_chains": 2}
ENGINES = {
    "em": sb.EM(num_restarts=1, max_steps=5),
    "map": sb.MAP(num_restarts=1, max_steps=5),
    "laplace": sb.Laplace(num_restarts=1, num_draws=100),
    "svi": sb.SVI(num_restarts=1, num_steps=100, num_draws=100),
    "nuts": sb.NUTS(**SHORT),
    "vectorized": sb.NUTS(**SHORT, chain_method="vectorized"),
    "low rank": sb.NUTS(**SHORT, dense_mass="low_rank"),
    "mclmc": sb.MCLMC(**SHORT),
    "gibbs": sb.BlockedGibbs(**SHORT),
    "cavi": sb.CoordinateAscent(num_restarts=1, num_draws=100),
    "geodesic": sb.GeodesicHMC(**SHORT),
}
SLOW = ("vectorized", "low rank", "mclmc", "svi", "gibbs", "cavi", "map", "geodesic")


@pytest.mark.parametrize(
    "engine", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in ENGINES]
)
@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")  # five draws
def test_a_fit_asks_ahead_for_what_it_takes(engine, monkeypatch):
    """A program of another shape than the one that is asked for would be compiled beside it."""
    # programs that are let go of for want of memory maps are compiled again
    monkeypatch.setattr(programs, "maps_in_use", lambda: 0.0)
    card, x = "ppc", X
    options = {"prior": sb.GaussianPrior(np.zeros(2), 0.1, 6.0, np.eye(2))}
    if engine == "geodesic":
        card, x, options = "sphere_mixture", X / np.linalg.norm(X, axis=1, keepdims=True), {}
    links = sb.Links.must_link([(0, 1), (4, 5)], weight=1.0)
    given = {"num_clusters": 2, "engine": ENGINES[engine], "progress": False}
    with counted_compilations() as names:
        sb.fit(card, x, links, **given, **options)
        wait()
    assert "derive" in names
    assert max(Counter(names).values()) == 1, names
    assert not programs._ahead
