"""Growth of rats' skulls, beside `procGPA` and `lm` of R's shapes 1.2.7."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb

pytestmark = pytest.mark.data


def rats():
    """Eight landmarks of 18 rats at eight ages."""
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "shape_rats_growth.csv")
    x = table.drop(columns=["id", "time"]).to_numpy(float).reshape(len(table), -1, 2)
    names = [f"{rat} at {age}" for rat, age in table[["id", "time"]].to_numpy()]
    covariates = {"age": table["time"].to_numpy(float), "rat": table["id"].astype(str).to_numpy()}
    return sb.Landmarks.from_array(x, subjects=names, covariates=covariates)


def test_shares_of_age_and_rat_are_those_of_procrustes_analysis_of_variance():
    marks = rats()
    design = sb.shape_design("~ np.log(age) + rat", marks)
    fit = sb.fit("hierarchical_shape", **design, num_modes=12, engine="map", progress=False)
    # R has tangent coordinates by orthogonal projection, which are shorter for shapes far from the mean
    np.testing.assert_allclose(fit.shape_effects()["share"], [0.78433, 0.04569], rtol=0.01)
    compactness = fit.shape_quality(num_samples=2)["compactness"]
    np.testing.assert_allclose(
        np.diff(compactness[:5], prepend=0), [0.8199, 0.0816, 0.0243, 0.0168, 0.0121], atol=0.004
    )


def test_growth_from_7_to_150_days_is_the_distance_between_the_means():
    marks = rats()
    both = marks.take(marks.covariates["age"].isin([7, 150]).to_numpy())
    fit = sb.fit(
        "hierarchical_shape",
        both,
        known=both.covariates["age"].map({7.0: "young", 150.0: "old"}),
        num_clusters=2,
        num_modes=12,
        prior="flat",
        progress=False,
    )
    found = fit.shape_difference("young", "old")["distance"]
    np.testing.assert_allclose(found, 0.1947, rtol=0.01)  # riemdist of R's means
