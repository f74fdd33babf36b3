"""The example of growing maps finds the row that short-circuits the roll, and draws its picture."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from sidebayes.diagnostics.pictures.colours import new_figure

pytest.importorskip("numba")
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "incremental_isomap.py"))


def test_the_short_circuit_is_first_and_far_ahead(tmp_path):
    x, turn = EXAMPLE["rolled"](800)
    maps, isomap = EXAMPLE["grown"](x, (600, 800), 100, n_neighbors=6)
    assert [len(one) for one in maps] == [600, 800]
    assert abs(np.corrcoef(maps[1][:, 0], turn)[0, 1]) > 0.98
    bent, found = EXAMPLE["short_circuited"](isomap, x, turn)
    assert found["with"]["row"][0] == 800
    assert found["with"]["moved"][0] > 10 * found["without"]["moved"][0]
    assert abs(np.corrcoef(bent[:800, 0], turn)[0, 1]) < 0.95
    figure, axes = new_figure(6, 3, nrows=1, ncols=3)
    EXAMPLE["draw_row"](axes[:2], maps, turn, "roll", cmap="viridis")
    EXAMPLE["draw_shares"](axes[2], found)
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
