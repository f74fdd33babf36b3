"""The number of classes in public data: Raghuram (2014), Table 3.2; dossier check 31.

Wall-following robots, the other set of the check, are not among the public data used here.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.optimised]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "reproduce" / "mcp.py"


@pytest.mark.parametrize(
    ("name", "num_splits", "least", "most"), [("pendigits", 1, 9, 11.5), ("segment", 3, 6, 8)]
)
def test_pairs_call_for_the_classes_that_there_are(name, num_splits, least, most):
    """R31 asks 9 to 11.5 of pen digits from 6 % pairs, over ten sets; here is the first of them."""
    choose = runpy.run_path(str(SCRIPT))["choose"]
    path = choose(name, 0.06, 0, num_splits, (10.0, 100.0), keep=None)
    chosen = path[path["chosen"]].iloc[0]
    assert least <= chosen.num_clusters <= most
    assert chosen.violation < 0.05
    assert chosen.f > 0.65
