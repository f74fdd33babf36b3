"""Methods whose results depend on the units of columns say so where spreads differ much."""

from __future__ import annotations

import numpy as np
import pytest
from sidebayes.models.blocks.components.centroids import Centroids
from sidebayes.models.blocks.components.gaussian_block import GaussianComponents
from sidebayes.models.blocks.kernels.latent_classifier import LatentClassifier
from sidebayes.models.blocks.mixtures import data_units

import sidebayes
from tests.support.draws import at_one

DATA = sidebayes.load_dataset("iris")
LINKS = sidebayes.simulate_links(DATA.labels, 20, seed=1)
WIDE = DATA.x * np.array([1.0, 1.0, 1.0, 300.0])


def test_wide_columns_are_named():
    said = data_units.remark_on_units("x", WIDE)
    assert "column 3 has 100% of the sum of their variances, and 3 of 4 spread less" in said
    assert data_units.remark_on_units("x", DATA.x) is None
    assert data_units.remark_on_units("x", WIDE / WIDE.std(axis=0)) is None


def test_one_narrow_column_of_several_is_named():
    assert "1 of 4 spread less" in data_units.remark_on_units("x", DATA.x * [1, 1, 1, 0.01])


def test_orthogonal_columns_have_the_spread_that_they_should():
    axes = np.linalg.svd(WIDE - WIDE.mean(axis=0))[2]
    assert data_units.remark_on_units("x", (WIDE - WIDE.mean(axis=0)) @ axes.T) is None
    features = sidebayes.GraphKernel.build(DATA.x).features()
    assert np.ptp(np.log10(features.std(axis=0))) > 1
    assert data_units.remark_on_units("x", features) is None


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Centroids(3, 4, 1.0), True),
        (LatentClassifier(np.zeros((3, 4))), True),
        (GaussianComponents(3, 4, "spherical", None), True),
        (GaussianComponents(3, 4, "full", sidebayes.GaussianPrior.empirical(WIDE, 3)), False),
    ],
    ids=["centres", "classifier", "spheres", "full covariances"],
)
def test_parts_of_models_that_depend_on_units_say_so(part, says):
    wide, alike = (part.remark_on_data("x", x - x.mean(axis=0), {}) or "" for x in (WIDE, DATA.x))
    assert ("depends on the units of the columns of x" in wide) == says
    assert "units of the columns" not in alike


@pytest.mark.parametrize(
    ("method", "options"),
    [("soft_kmeans", {}), ("pairwise_gp", {}), ("gmm", {"covariance": "spherical"}), ("gmm", {})],
)
def test_methods_that_depend_on_units_say_so(method, options):
    given = () if method == "gmm" else (LINKS,)
    x = WIDE - WIDE.mean(axis=0)
    fit = sidebayes.fit(method, x, *given, num_clusters=3, progress=False, **options)
    says = "depends on the units of the columns of x" in fit.verdict[1]
    assert says == ((method, options) != ("gmm", {}))
    assert fit.verdict[0] == ("caution" if says else "good")


def test_an_offset_is_in_the_verdict_and_in_files(tmp_path):
    """Of too few links to fit without them."""
    x, links = DATA.x + 50.0, sidebayes.simulate_links(DATA.labels, 4, seed=1)
    engine = at_one({"variance": 1.0, "coefficients": np.eye(3, 4)})
    with pytest.warns(sidebayes.SideBayesWarning, match="x lies far from zero"):
        fit = sidebayes.fit("pairwise_gp", x, links, num_clusters=3, engine=engine, progress=False)
    fit.save(tmp_path / "fit.nc")
    for one in (fit, sidebayes.load(tmp_path / "fit.nc", engine=engine)):
        assert one.verdict[0] == "caution"
        assert "x lies far from zero" in str(one)
