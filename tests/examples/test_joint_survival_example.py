"""The example of joint models finds what it simulated and draws its picture."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import sidebayes as sb

pytest.importorskip("formulae")
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "joint_survival.py"))


@pytest.mark.slow
def test_association_and_picture(tmp_path):
    scores, persons = EXAMPLE["measure"]()
    design = sb.design("score ~ years + (years | person)", scores)
    data = design.survival("Surv(until, diagnosed) ~ carrier", persons, num_intervals=1)
    fit = sb.fit("joint_survival", **data, engine=sb.Laplace(), progress=False)
    draws = fit.tree["posterior"]["association"].to_numpy().reshape(-1, 2)
    assert (np.abs(draws.mean(axis=0) - [-0.12, -1.5]) < 3 * draws.std(axis=0)).all()
    EXAMPLE["draw"](scores, persons, fit, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
