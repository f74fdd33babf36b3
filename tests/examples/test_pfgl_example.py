"""The example of classes within components draws its picture."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "pfgl.py"))


@pytest.mark.slow
def test_errors_and_picture(tmp_path):
    x, _, known = EXAMPLE["rows"](200, 0)
    new, classes, _ = EXAMPLE["rows"](500, 1)
    found = EXAMPLE["fits"](x, known)
    wrong = [(fit.classes(new)["class"] != classes).mean() for fit in found.values()]
    assert wrong[0] > 0.2
    assert max(wrong[1:]) < 0.12
    EXAMPLE["draw"](x, known, found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
