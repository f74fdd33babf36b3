"""What the compiled climb of EM does at every step, and what it does once."""

import re

import jax
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing import programs
from sidebayes.models.gmm import gmm

import sidebayes as sb

NUM_ROWS = 3001


@pytest.fixture
def climb(monkeypatch):
    """Text of the program that climbs, after a fit of a mixture."""
    kept = {}
    made = programs._made

    def spy(name, *args):
        kept[name] = made(name, *args)
        return kept[name]

    monkeypatch.setattr(programs, "_made", spy)
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 3))
    with jax.enable_x64(True):
        sb.EM(max_steps=2).run(Problem(gmm, (x,), {"num_clusters": 2}))
    return kept["em"].executable.as_text()


def test_moments_of_all_rows_are_computed_once(climb):
    """The empirical prior needs the covariance of the data, which does not change from step to step."""
    entry = climb.index("\nENTRY ")
    centred = [m.start() for m in re.finditer(r"op_name=\"[^\"]*jit\(cov\)/sub", climb)]
    rows = [at for at in centred if f"[{NUM_ROWS},3]" in climb[climb.rfind("\n", 0, at) : at]]
    called = [at for at in rows if " fusion(" in climb[climb.rfind("\n", 0, at) : at]]
    assert called
    assert all(at > entry for at in called)
