"""Published fits of lme4, nlme and statsmodels (check 25 of the dossier on Lu 2008); needs the tables."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb

pytestmark = pytest.mark.data

CASES = {
    "sleepstudy": ("Reaction", "Days", {
        "marginal": (-875.9697, [565.515, 11.055, 32.682], 654.941),
        "restricted": (-871.8141, [612.091, 9.604, 35.072], 654.941),
    }),
    "orthodont": ("distance", "age", {
        "marginal": (-219.6058, [4.8143, -0.2742, 0.0462], None),
        "restricted": (-221.3183, [2.3271**2, -0.609 * 2.3271 * 0.2264, 0.2264**2], 1.3100**2),
    }),
}  # fmt: skip
"""Response, time, and by form: log-likelihood, lower triangle of D, noise variance."""


@pytest.mark.parametrize("form", ["marginal", "restricted"])
@pytest.mark.parametrize("name", CASES)
def test_published_figures(name, form):
    response, time, figures = CASES[name]
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / f"long_{name}.csv")
    y, days = table[response].to_numpy(float), table[time].to_numpy(float)
    x = np.column_stack([np.ones(len(y)), days])
    value, lower, variance = figures[form]
    for engine in ("map", "newton", sb.EM(tol=1e-12, max_steps=5000)):
        fit = sb.fit(
            "mixed_effects", y, x, x, table["Subject"], form=form, engine=engine, progress=False
        )
        assert np.nanmin(np.diff(fit.objective, axis=1)) > -1e-8
        assert fit.tree["sample_stats"]["lp"].item() == pytest.approx(value, abs=2e-4)
        found = fit.params["covariance"][np.tril_indices(2)]
        np.testing.assert_allclose(found, lower, rtol=2e-3)
        if variance is not None:
            assert fit.params["noise"] ** 2 == pytest.approx(variance, rel=1e-3)
    if name == "sleepstudy":
        estimate = fit.coefficients()["estimate"]
        np.testing.assert_allclose(estimate, [251.4051, 10.4673], atol=1e-4)
