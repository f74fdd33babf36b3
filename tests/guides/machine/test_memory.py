"""What needs more memory than there is is refused before it runs, with figures."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.machine import memory
from sidebayes.guides.engines.plumbing import programs
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.models.gmm import gmm

import sidebayes as sb
from sidebayes import FitError

X = np.random.default_rng(0).normal(size=(40, 3))
ENGINE = sb.EM(num_restarts=2, max_steps=3)


def fit(**given):
    given = {"covariance": "spherical", "engine": ENGINE, "progress": False} | given
    return sb.fit("gmm", X, num_clusters=2, **given)


def test_the_machine_says_how_much_it_has():
    assert memory.machine_memory() > 2**28


@pytest.mark.parametrize(
    ("told", "found"), [({"bytes_limit": 2000}, 2000), ({}, None), (None, None)]
)
def test_an_accelerator_has_memory_of_its_own(told, found, monkeypatch):
    device = SimpleNamespace(memory_stats=lambda: told)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert memory.machine_memory() == found
    if found:
        with pytest.raises(FitError, match=r"a program needs 2e-06 GB of memory, .*has 2e-06 GB"):
            memory.refuse_beyond_memory("a program", found + 1, {})
    memory.refuse_beyond_memory("a program", 2000, {})


def doubled(problem):
    abstract_trace(problem)  # as engines do before they compile
    return programs.compiled("doubled", problem, None, lambda _: lambda x: 2 * x, np.zeros(1000))


@pytest.mark.parametrize(
    ("have", "what", "act"),
    [
        (1, "2 starting points", lambda problem: initial_values(problem, 0, 2)),
        (2000, "the program 'doubled'", doubled),
    ],
)
def test_what_needs_more_than_the_memory_is_refused(have, what, act, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: have)
    with pytest.raises(
        FitError, match=rf"{what} needs .* GB of memory, .*has .*e-0\d GB"
    ) as refused:
        act(Problem(gmm, (jax.numpy.asarray(X),), {"num_clusters": 2}))
    assert "'covariance' of shape (2, 3, 3)" in str(refused.value)
    assert "covariance='diagonal'" in str(refused.value)


@pytest.mark.parametrize(("have", "what"), [(1, "2 starting points"), (2000, "the program 'em'")])
def test_a_fit_beyond_the_memory_is_refused(have, what, monkeypatch):
    monkeypatch.setattr(programs, "_programs", type(programs._programs)())
    monkeypatch.setattr(memory, "machine_memory", lambda: have)
    with pytest.raises(
        FitError, match=rf"{what} needs .* GB of memory, .*has .*e-0\d GB"
    ) as refused:
        fit(covariance="full")
    assert "'covariance' of shape (2, 3, 3)" in str(refused.value)
    assert "covariance='diagonal'" in str(refused.value)


def test_a_fit_within_the_memory_runs(monkeypatch):
    monkeypatch.setattr(programs, "_programs", type(programs._programs)())
    monkeypatch.setattr(memory, "machine_memory", lambda: 10**8)
    assert np.isfinite(fit().params["mean"]).all()
    monkeypatch.setattr(memory, "machine_memory", lambda: None)
    assert np.isfinite(fit(seed=1).params["mean"]).all()


def test_programs_are_let_go_before_memory_maps_run_out(monkeypatch):
    """Those longest out of use; what has gone is compiled again."""
    known = type(programs._programs)((number, None) for number in range(4))
    monkeypatch.setattr(programs, "_programs", known)
    monkeypatch.setattr(programs, "_maps_left", 0.0)
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(len(known)))
    used = iter([0.5, 0.6, 0.1])
    monkeypatch.setattr(programs, "maps_in_use", lambda: next(used))
    programs._spare_maps()
    assert list(known) == [0, 1, 2, 3]  # half of the maps may be used
    assert not cleared
    programs._spare_maps()
    assert list(known) == [2, 3]
    assert cleared == [2]


def test_programs_stay_where_letting_go_is_of_no_use(monkeypatch):
    """Maps may be those of others; more are let go once these have become more."""
    known = type(programs._programs)((number, None) for number in range(8))
    monkeypatch.setattr(programs, "_programs", known)
    monkeypatch.setattr(programs, "_maps_left", 0.0)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    monkeypatch.setattr(programs, "maps_in_use", lambda: 0.6)
    for _ in range(3):
        programs._spare_maps()
    assert len(known) == 4
    monkeypatch.setattr(programs, "maps_in_use", lambda: 0.66)
    programs._spare_maps()
    assert len(known) == 2


def test_maps_of_this_process_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_MOST_MAPS", tmp_path / "limit")
    (tmp_path / "limit").write_text("10\n")
    monkeypatch.setattr(memory, "_MAPS", tmp_path / "maps")
    assert memory.maps_in_use() == 0.0  # other systems
    (tmp_path / "maps").write_text("map\n" * 6)
    assert memory.maps_in_use() == 0.6
