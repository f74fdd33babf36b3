"""The example of curves finds them by links, and draws its picture."""

import runpy
from pathlib import Path

import pytest

import sidebayes as sb

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "trajectories.py"))


@pytest.mark.slow
def test_links_tell_curves_apart_where_they_cross(tmp_path):
    table = sb.simulate_sinusoids(seed=0)
    links = sb.simulate_links(table["curve"], 60, weight=10.0, seed=1)
    linked, plain = (EXAMPLE["fit"](table, one, num_restarts=5) for one in (links, None))
    assert EXAMPLE["score"](table, linked) > EXAMPLE["score"](table, plain) + 0.1
    EXAMPLE["draw"](table, {"plain": plain, "linked": linked}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
