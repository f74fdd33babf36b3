"""The example of linear mixed effects draws its picture."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import sidebayes as sb

pytest.importorskip("formulae")
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "mixed_effects.py"))


@pytest.mark.slow
def test_estimates_and_picture(tmp_path):
    table = EXAMPLE["measure"](num_persons=30)
    design = sb.design(EXAMPLE["FORMULA"], table)
    fit = sb.fit("mixed_effects", **design, progress=False)
    found = fit.coefficients()
    truth = np.array([50.0, -1.4, 0.0, 0.8])
    assert (np.abs(found["estimate"] - truth) < 4 * found["standard_error"]).all()
    EXAMPLE["draw"](table, fit, design, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
