"""Few points for covariances of every form, and clusters of a single point."""

import numpy as np
import pytest
from sidebayes.models.blocks.components.few_points import (
    few_points,
    held_by_gaussian_prior,
    lone_clusters,
)
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.directional.directional_prior import DirectionalPrior
from sidebayes.models.blocks.directional.von_mises_fisher_components import (
    VonMisesFisherComponents,
)
from sidebayes.models.blocks.directional.wrapped_components import WrappedComponents

import sidebayes as sb

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("num_points", "num_clusters", "num_features", "form", "few"),
    [
        (150, 3, 4, "full", False),  # iris
        (178, 3, 13, "full", True),  # wine
        (178, 3, 13, "tied", False),
        (178, 3, 13, "diagonal", False),
        (200, 1, 20, "full", False),
        (4, 1, 10, "full", True),
        (48, 1, 20, "full", True),
        (4, 2, 10, "tied", True),
        (2, 2, 3, "tied", True),
        (4, 2, 1, "tied", True),
        (5, 2, 3, "diagonal", True),
        (6, 2, 3, "spherical", False),
        (2, 1, 3, "spherical", True),
    ],
)
def test_which_numbers_are_few(num_points, num_clusters, num_features, form, few):
    assert (few_points(num_points, num_clusters, num_features, form) is not None) == few


def test_clusters_of_one_point_are_named():
    assert "Cluster 1 has a single point" in lone_clusters(np.array([7.0, 1.0, 0.0]))
    assert "Clusters 0, 2 have a single point each" in lone_clusters(np.array([1.0, 7.0, 1.2]))
    assert lone_clusters(np.array([7.0, 2.0, 0.0])) is None
    assert lone_clusters(np.array([1.0])) is None
    assert lone_clusters(np.array([28.0, 1.0, 1.0])) is None  # the verdict names their points


WIDE = GaussianPrior(np.zeros(2), 0.01, 4.0, np.array([[9.0, 3.0], [3.0, 4.0]]))
"""Prior of two features whose deviations are 3 and 2."""


@pytest.mark.parametrize("form", ["full", "tied", "diagonal", "spherical"])
@pytest.mark.parametrize(("own", "held"), [(0.3, True), (0.4, False)])
def test_spreads_that_the_prior_doubles_are_named(form, own, held):
    """The squares about a mean are a share of those that the prior adds, in one direction alone."""
    sizes = np.array([12.0, 200.0])
    root = np.linalg.cholesky(WIDE.scale)
    scatter = root @ np.diag([own, 9.0]) @ root.T
    if form == "full":
        spread = np.stack([(WIDE.scale + scatter) / 16.0, WIDE.scale])
    elif form == "tied":
        spread = (WIDE.scale + scatter) / 216.0
    elif form == "diagonal":
        spread = np.stack([[9.0 * (1 + own) / 15.0, 1.0], [1.0, 1.0]])
    else:
        spread = np.array([6.5 * (1 + own) / 27.0, 1.0])
    said = held_by_gaussian_prior(spread, sizes, WIDE, form)
    assert (said is not None) == held
    if held:
        assert said.startswith("Clusters 0, 1 are" if form == "tied" else "Cluster 0 is")
        assert "GaussianPrior.by_evidence" in said


def test_components_go_by_the_numbers_of_their_clusters():
    spread = np.stack([np.asarray(WIDE.scale)] * 4).reshape(2, 2, 2, 2) / 30.0
    spread[0] *= 2.0
    said = held_by_gaussian_prior(spread, np.full((2, 2), 20.0), WIDE, "full")
    assert said.startswith("Cluster 1 is at least twice as wide")


def test_clusters_of_few_points_may_be_as_wide_as_the_prior():
    spread = np.stack([np.asarray(WIDE.scale)] * 2) / [[[12.0]], [[204.0]]]
    said = held_by_gaussian_prior(spread, np.array([8.0, 200.0]), WIDE, "full")
    assert said.startswith("Cluster 1 is at least twice as wide")


@pytest.mark.parametrize("from_data", [True, False])
@pytest.mark.parametrize("family", ["wrapped", "von Mises-Fisher"])
def test_clusters_on_a_sphere_say_so_too(family, from_data):
    points, prior = np.tile(np.eye(3), (14, 1))[:40], DirectionalPrior(4.0, 1.0)
    values = {"mixing_weights": np.full((1, 1, 2), 0.5)}
    if family == "wrapped":
        block = WrappedComponents(2, 2, "full", 1, prior, points, from_data=from_data)
        narrow = np.stack([np.eye(2) / 24.0, np.eye(2) / 8.0])
        values["tangent_covariance"] = narrow[None, None]
    else:
        block = VonMisesFisherComponents(2, 2, prior, points, from_data=from_data)
        values["concentration"] = np.array([[[43.0, 1.0]]])
    said = block.remark(values)
    assert (said is not None) == from_data
    if from_data:
        assert said.startswith("Cluster 0 is at least twice as wide")


def test_the_fit_of_clusters_far_apart_for_their_size_is_a_caution():
    x = np.repeat([[0.0, 0.0], [1.0, 0.0]], [20, 21], axis=0) + 0.01 * RNG.normal(size=(41, 2))
    fit = fitted(x)
    assert fit.verdict[0] == "caution"
    assert "Clusters 0, 1 are at least twice as wide" in fit.verdict[1]


def fitted(x):
    engine = sb.EM(num_restarts=2)
    return sb.fit("gmm", x, num_clusters=2, covariance="tied", engine=engine, progress=False)


def test_a_fit_says_so_and_takes_other_rows():
    x = np.concatenate([RNG.normal(size=(3, 2)), [[50.0, 50.0]]])
    fit = fitted(x)
    assert fit.verdict[0] == "caution"
    assert "4 points are few for 2 means and a covariance of 3 numbers" in fit.verdict[1]
    assert fit.log_prob(RNG.normal(size=(5, 2))).shape == (5,)


def test_an_outlier_alone_is_a_caution():
    fit = fitted(np.concatenate([RNG.normal(size=(7, 2)), [[50.0, 50.0]]]))
    assert fit.verdict[0] == "caution"
    assert "has a single point" in fit.verdict[1]


def test_an_outlier_among_many_is_named_once():
    x = np.concatenate([RNG.normal(size=(40, 2)), [[50.0, 50.0]]])
    fit = fitted(x)
    assert fit.verdict[0] == "caution"
    said = [one for one in fit.verdict[1].split(". ") if "a single point" in one]
    assert len(said) == 1  # by the number of the point
    assert " holds a single point of 41, number 40" in said[0]
