"""One clock of an engine's run: what is compiled while it runs is not counted twice."""

from __future__ import annotations

from sidebayes.guides.engines.plumbing import clock as module
from sidebayes.guides.engines.plumbing.clock import Clock


def test_compiling_within_a_run_is_counted_once(monkeypatch):
    now = iter([10.0, 17.0, 20.0, 21.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    clock = Clock()
    assert clock.counted(("one", 2.0)) == "one"
    with clock.running():
        assert clock.counted(("other", 3.0)) == "other"
    assert clock.seconds == {"compile": 5.0, "run": 4.0}
    with clock.running():
        pass
    assert clock.seconds == {"compile": 5.0, "run": 5.0}
