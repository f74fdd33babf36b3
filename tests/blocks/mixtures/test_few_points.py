"""Few points for covariances of every form, and clusters of a single point."""

import numpy as np
import pytest
from sidebayes.models.blocks.components.few_points import few_points, lone_clusters

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
