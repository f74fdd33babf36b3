"""Members of a batch, each by the program of one: the same whatever runs at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing import side_by_side
from sidebayes.guides.engines.plumbing.programs import Program, compiled, counted_compilations
from sidebayes.guides.engines.plumbing.side_by_side import compiled_batch, run_all
from sidebayes.guides.engines.steps import starts
from sidebayes.models.gmm import gmm

import sidebayes as sb

PRIOR = sb.GaussianPrior(np.zeros(2), 0.1, 6.0, np.eye(2))
X = np.sort(sb.load_dataset("iris").x[::5, :2], axis=0)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def power(base, exponent):
    """One member has a number and a vector."""
    return {"whole": base["number"] ** exponent, "rows": base["row"] * exponent}


MEMBERS = {"number": np.array([1.0, 2.0, 3.0]), "row": np.arange(6.0).reshape(3, 2)}


def powers(**setting):
    program, _ = compiled_batch(
        "power", Problem(power, (), setting), None, lambda bare: bare.model, MEMBERS, np.array(3.0)
    )
    return program(MEMBERS, np.array(3.0))


@pytest.mark.parametrize("processors", [1, 2, 8])
def test_results_are_those_of_single_calls(processors, monkeypatch):
    monkeypatch.setattr(side_by_side, "num_processors", lambda: processors)
    found = powers()
    assert found["whole"].dtype == np.float64  # which the calling thread alone has asked for
    np.testing.assert_array_equal(found["whole"], [1.0, 8.0, 27.0])
    np.testing.assert_array_equal(found["rows"], 3 * MEMBERS["row"])


def test_accelerators_compute_members_in_step(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = powers(in_step=True)
    np.testing.assert_array_equal(found["whole"], [1.0, 8.0, 27.0])
    np.testing.assert_array_equal(found["rows"], 3 * MEMBERS["row"])


def test_no_more_run_at_once_than_memory_holds(monkeypatch):
    program, _ = compiled("toy", Problem(jnp.sin, ()), None, lambda bare: bare.model, np.zeros(5))
    seen = []
    in_threads = side_by_side.in_threads
    monkeypatch.setattr(side_by_side, "num_processors", lambda: 4)
    monkeypatch.setattr(
        side_by_side, "in_threads", lambda *given: seen.append(given[1]) or in_threads(*given)
    )
    run_all(program, [np.zeros(5)] * 3)
    need = side_by_side.program_memory(program.executable)
    monkeypatch.setattr(side_by_side, "machine_memory", lambda: 4 * need)
    run_all(program, [np.zeros(5)] * 3)
    monkeypatch.setattr(side_by_side, "machine_memory", lambda: need)
    run_all(program, [np.zeros(5)] * 3)  # in turn, in this thread
    assert seen == [3, 2]


def test_an_exception_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(side_by_side, "num_processors", lambda: 2)

    def fails(member):
        raise ArithmeticError(f"member {float(member)}")

    monkeypatch.setattr(side_by_side, "_room", lambda program: 2)
    with pytest.raises(ArithmeticError, match=r"member 1\.0"):
        run_all(Program(fails), [np.array(1.0), np.array(2.0)])


def reported(member):
    """What a function of the host is given."""
    return jax.pure_callback(
        lambda value: np.asarray(value), jax.ShapeDtypeStruct((), member.dtype), member
    )


def test_settings_of_the_calling_thread_hold_in_others(monkeypatch):
    """Its precision, in what the program calls, and whether what is not a number is reported."""
    monkeypatch.setattr(side_by_side, "num_processors", lambda: 2)
    both = [np.array(1 + 1e-12), np.array(2 + 1e-12)]
    program, _ = compiled("toy", Problem(reported, ()), None, lambda bare: bare.model, both[0])
    np.testing.assert_array_equal(run_all(program, both), both)
    program, _ = compiled("toy", Problem(jnp.log, ()), None, lambda bare: bare.model, both[0])
    assert np.isnan(run_all(program, [np.array(-1.0)] * 2)).all()
    with jax.debug_nans(True):
        program, _ = compiled("toy", Problem(jnp.log, ()), None, lambda bare: bare.model, both[0])
        with pytest.raises(Exception, match="nan"):  # of a class that is private to JAX
            run_all(program, [np.array(-1.0)] * 2)


def test_engines_of_the_user_have_programs_of_their_own_on_accelerators(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    class Engine:
        def build(self, problem):
            return lambda member: member["number"]

    class Doubled(Engine):
        def build(self, problem):
            return lambda member: 2 * member["number"]

    found = [
        compiled_batch("own", Problem(power, ()), None, kind().build, MEMBERS)[0](MEMBERS)
        for kind in (Engine, Doubled)
    ]
    np.testing.assert_array_equal(found, [MEMBERS["number"], 2 * MEMBERS["number"]])


@pytest.mark.parametrize("engine", [sb.EM, sb.MAP, sb.CoordinateAscent])
def test_starts_end_where_they_end_alone(engine, monkeypatch):
    """Any number of starts is one program, and no start knows of the others, once they are chosen."""
    monkeypatch.setattr(starts, "_CANDIDATES", (1, 1))
    problem = Problem(gmm, (jnp.asarray(X),), {"num_clusters": 2, "covariance": "spherical"})
    some = engine(num_restarts=3, max_steps=20).run(problem)
    with counted_compilations() as names:
        more = engine(num_restarts=5, max_steps=20).run(problem)
    assert names == []
    both = np.asarray(some.objective), np.asarray(more.objective)
    width = min(part.shape[1] for part in both)
    np.testing.assert_array_equal(both[0][:, :width], both[1][:3, :width])


def test_chains_do_not_depend_on_the_number_of_processors(monkeypatch):
    data = Problem(gmm, (jnp.asarray(X),), {"num_clusters": 2, "prior": PRIOR})
    engine = sb.NUTS(num_warmup=10, num_samples=15, num_chains=3)
    found = []
    for processors in (1, 3):
        monkeypatch.setattr(side_by_side, "num_processors", lambda n=processors: n)
        found.append(engine.run(data, progress=False).sample_stats["lp"])
    np.testing.assert_array_equal(*found)
    assert found[0].shape == (3, 15)
    assert len(np.unique(found[0][:, -1])) == 3


def test_a_given_start_is_climbed_from_on_accelerators_too(monkeypatch):
    """The program there is for as many starts as there are, not for as many as were asked for."""
    engine = sb.CoordinateAscent(num_restarts=3, max_steps=2, num_draws=1)
    start = {
        "weights": np.full(2, 0.5),
        "mean": X[[0, -1]],
        "covariance": np.stack([np.eye(2)] * 2),
    }
    found = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        fit = sb.fit(
            "gmm", X, num_clusters=2, prior=PRIOR, engine=engine, init=start,
            progress=False,
        )  # fmt: skip
        found.append(fit.objective)
    np.testing.assert_allclose(*found, rtol=1e-12)
