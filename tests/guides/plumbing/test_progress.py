"""Long runs in pieces: how long these are."""

from types import SimpleNamespace

import numpy as np
import pytest
from sidebayes.guides.engines.plumbing import progress


@pytest.mark.parametrize("overhead", [0.0, 2.0])
def test_pieces_are_longer_where_each_does_much_before_its_first_step(monkeypatch, overhead):
    """Steps of a tenth of a second, without and with two seconds before the first."""
    clock, pieces = [0.0], []
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])

    def march(state, limit):
        steps = min(int(limit), 500) - int(state.steps)
        clock[0] += overhead + 0.1 * steps
        pieces.append(steps)
        return SimpleNamespace(steps=np.asarray(state.steps + steps)), None

    state, _ = progress.in_pieces(
        march, SimpleNamespace(steps=np.asarray(0)), lambda *_: None, lambda _: ""
    )
    assert int(state.steps) == 500
    assert max(pieces) <= 200
    if overhead:
        assert clock[0] < 1.35 * 0.1 * 500
    else:
        assert max(pieces[1:]) <= 5
