"""The example of latent classes of persons draws its picture, and side information helps."""

import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("formulae")
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "mixed_effects_mixture.py"))


@pytest.mark.slow
def test_classes_and_picture(tmp_path):
    table, declines = EXAMPLE["measure"]()
    design, plain, told = EXAMPLE["fit_both"](table, declines)
    right = [EXAMPLE["agreement"](fit, declines) for fit in (plain, told)]
    assert right[0] > 0.8
    assert right[1] >= right[0]
    links, known = EXAMPLE["side_information"](declines)
    some = known >= 0
    assert ((told.labels() == EXAMPLE["declining"](told))[some] == (known == 1)[some]).all()
    assert np.isfinite(links.weights).all()
    EXAMPLE["draw"](table, declines, design, plain, told, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
