"""The published two-class model of the paquid cohort; needs the tables."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb

pytestmark = pytest.mark.data


def test_two_classes_of_paquid():
    """MMSE on age and its square; lcmm 1.8.1.1 ends at a log-likelihood of -5414.573."""
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "long_paquid.csv")
    seen = table.dropna(subset=["MMSE"])
    age = (seen["age"].to_numpy() - 65) / 10
    x = np.column_stack([np.ones(len(age)), age, age**2])
    given = seen["MMSE"].to_numpy(float), x, x[:, :2], seen["ID"]
    for engine in ("em", "map"):
        fit = sb.fit(
            "mixed_effects_mixture", *given, num_clusters=2, shared=("covariance", "noise"),
            engine=engine, progress=False,
        )  # fmt: skip
        assert fit.tree["sample_stats"]["lp"].item() == pytest.approx(-5414.5725, abs=1e-3)
    first = table.groupby("ID").first()
    assert list(first.index) == list(fit.effects()["group"].to_numpy())
    ill = first["label"].to_numpy() == 1
    share = fit.responsibilities()
    falls = share[:, int(fit.params["weights"].argmin())]
    pairs = falls[ill][:, None] - falls[~ill]
    auc = (pairs > 0).mean() + (pairs == 0).mean() / 2
    assert max(auc, 1 - auc) > 0.6
