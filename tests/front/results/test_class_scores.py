"""Methods that learn classes are scored by their classes, in rows whose class they were not given."""

import numpy as np
import pytest

import sidebayes as sb
from sidebayes.data.tables import check_truth
from sidebayes.runs.arguments import read_run
from tests.support.draws import at_one

X = np.array([[0.0], [0.2], [5.0], [5.2], [10.0], [10.2], [15.0], [15.2]])
TRUTH = ["b", "b", "c", "c", "b", "b", "a", "c"]
KNOWN = ["b", None, "c", None, None, None, None, None]
FOUR = {
    "weights": np.full(4, 0.25),
    "mean": np.arange(4.0)[:, None] * 5,
    "covariance": np.full((4, 1, 1), 0.1),
    "class_table": np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]),
}


@pytest.fixture(scope="module")
def fit():
    given = {"num_clusters": 4, "num_classes": 2, "engine": at_one(FOUR)}
    return sb.fit("moe", X, KNOWN, truth=TRUTH, progress=False, **given)


def test_more_components_than_classes_are_no_errors(fit):
    assert fit.class_names == ("b", "c")
    assert fit.tree["observed_data"]["truth"].to_numpy().tolist() == [0, 0, 1, 1, 0, 0, 2, 1]
    row = sb.compare({"moe": fit}).frame.iloc[0]
    assert row["accuracy"] == pytest.approx(5 / 6)  # of six rows one has a class that nobody named
    assert row["ari"] > 0.4


@pytest.mark.parametrize(
    ("truth", "names", "codes"),
    [
        (["b", "a", None], (), [1, 0, -1]),
        (["b", "a", None], ("b", "a"), [0, 1, -1]),
        (["b", "a", "z"], ("c", "b"), [1, 2, 3]),
        (["b", "a", "z"], ("0", "1", "2"), [4, 3, 5]),  # numbers name none of these
        ([2, 1, -1], ("0", "1", "2"), [2, 1, -1]),
        ([2.0, 5.0, np.nan], ("0", "1", "2"), [2, 3, -1]),
        (["007", "1", ""], ("1", "007"), [1, 0, -1]),
    ],
)
def test_known_classes_are_numbered_as_those_that_are_learned(truth, names, codes):
    assert check_truth(truth, 3, names).tolist() == codes


def test_clusters_that_known_classes_name_are_classes():
    """The third cluster, which no row is known to be of, keeps its number."""
    x = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.1, 1.0, 0.0], [1.0, 0.2, 0.1]])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mean, zero = np.eye(3), np.zeros(3)
    params = {"direction_vector": mean, "direction": mean, "pole": mean[0], "variance": zero + 0.1}
    spread = 0.1 * (np.eye(3) - mean[:, :, None] * mean[:, None])
    params |= {"weights": zero + 1 / 3, "missing_mass": zero, "covariance": spread}
    given = {"num_clusters": 3, "covariance": "spherical", "engine": at_one(params)}
    fit = sb.fit("sphere_mixture", x, known=["oak", "ash", None, None], progress=False, **given)
    assert fit.class_names == ("ash", "oak", 2)
    assert fit.classes()["class"].tolist() == ["oak", "ash", "oak", "ash"]
    np.testing.assert_allclose(fit.class_probabilities(), fit.responsibilities())
    none = sb.fit("sphere_mixture", x, known=[-1, -1, -1, -1], progress=False, **given)
    with pytest.raises(ValueError, match="sphere_mixture has no classes"):
        none.classes()


def test_classes_by_row_where_groups_have_them():
    said = (
        r"shape \(6,\), expected \(3,\), one class for each of the subjects; .*groupby\(subjects\)"
    )
    with pytest.raises(ValueError, match=said):
        check_truth([0, 0, 1, 1, 0, 0], 3, (), ("subjects", 6))
    rows = np.repeat([0, 1, 2], 2)
    with pytest.raises(ValueError, match=said):
        read_run(
            *("mixed_effects_mixture", (np.arange(6.0), np.ones((6, 1)), np.ones((6, 1)), rows)),
            *({"num_clusters": 2}, None),
            truth=rows % 2,
        )
