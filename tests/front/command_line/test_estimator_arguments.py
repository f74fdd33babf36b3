"""What the estimators say of arguments, under the names that they have there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import sidebayes
from sidebayes import (
    Groups,
    KMeans,
    LinkedKFold,
    LinkedMixtureClusterer,
    Links,
    MixtureClassifier,
    PartialLabels,
    SideBayesWarning,
)
from tests.support.draws import at_one

X = np.random.default_rng(0).normal(size=(12, 2))
LINKS = Links.must_link([(0, 1)], num_points=12)
QUICK = LinkedMixtureClusterer(
    2, method="soft_kmeans", engine=KMeans(num_restarts=1), random_state=0
)


@pytest.mark.parametrize(
    "given", [LINKS, Groups(np.arange(12) // 2), PartialLabels(np.arange(12) % 3), {"links": LINKS}]
)
def test_side_information_is_refused_where_y_is_ignored(given):
    for call in (QUICK.fit, QUICK.fit_predict):
        with pytest.raises(
            TypeError, match=r"y is a .*, which a clusterer ignores; pass links=links"
        ):
            call(X, given)
    with pytest.raises(TypeError, match="rows are scored without links"):
        QUICK.score(X, given)
    with pytest.raises(TypeError, match=r"pass groups=groups by name"):
        next(LinkedKFold(LINKS, 2).split(X, given))
    with pytest.raises(TypeError, match=r"links are for LinkedMixtureClusterer\(...\).fit"):
        MixtureClassifier(2).fit(X, given)


def test_folds_of_fewer_rows_than_links_refer_to_are_refused():
    with pytest.raises(ValueError, match="12 rows, X has 5; pass all rows that they refer to as X"):
        next(LinkedKFold(LINKS, 2).split(X[:5]))


def test_folds_that_links_leave_no_room_for_are_refused():
    with pytest.raises(ValueError, match="connect the rows into 1 set, too few for n_splits = 2"):
        next(LinkedKFold(Links.must_link([[0, 1], [1, 2]]), 2).split(X[:3]))


def test_classes_as_y_are_ignored_and_links_by_name_are_used():
    fitted = QUICK.fit(X, np.arange(12) % 2, links=LINKS)
    np.testing.assert_array_equal(
        fitted.labels_, QUICK.fit_predict(X, np.arange(12) % 2, links=LINKS)
    )
    assert QUICK.result_.links.num_links == 1


@pytest.mark.parametrize("bad", [2.5, "3", 0, True, 13])
def test_numbers_are_named_as_the_estimator_has_them(bad):
    with pytest.raises(ValueError, match=rf"n_clusters = {bad!r}"):
        LinkedMixtureClusterer(bad).fit(X)
    with pytest.raises(ValueError, match=rf"n_components = {bad!r}"):
        MixtureClassifier(bad).fit(X, np.arange(12) % 2)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("moe", r"use MixtureClassifier\(method='moe'\).fit\(x, y\)"),
        ("nfgl", r"use MixtureClassifier\(method='nfgl'\)"),
        ("trajectories", r"needs inputs too; give the estimator options=\{'inputs': ...\}"),
        ("mixed_effects", r"use sidebayes.fit\('mixed_effects', ...\)"),
        ("mixed_effects_mixture", "does not find clusters of the rows"),
        ("latent_shape", "does not find clusters of the rows"),
        ("geodesic_embedding", "does not find clusters of the rows"),
    ],
)
def test_methods_that_need_more_are_refused_by_name(method, said):
    with pytest.raises(ValueError, match=rf"method = '{method}' .*{said}"):
        LinkedMixtureClusterer(2, method=method).fit(X)


@pytest.fixture(scope="module")
def iris():
    data = sidebayes.load_dataset("iris")
    return data.x[::5], np.array(["red", "green", "blue"])[data.labels[::5]]


def of_iris(means, shares):
    """Classifier that knows its components, and the shares of classes within each."""
    given = {"mean": means, "covariance": np.tile(0.1 * np.eye(4), (len(means), 1, 1))}
    given |= {"weights": np.full(len(means), 1 / len(means)), "class_table": shares}
    return MixtureClassifier(len(means), engine=at_one(given), random_state=0)


@pytest.fixture(scope="module")
def means(iris):
    return iris[0].reshape(3, 10, 4).mean(axis=1)  # of red, green and blue rows


@pytest.fixture(scope="module")
def separate(means):
    """Classifier of a component for each class, by their names."""
    return of_iris(means, 0.01 + 0.97 * np.eye(3)[[2, 1, 0]])


@pytest.fixture(scope="module")
def learned(iris, separate):
    return clone(separate).fit(*iris)


def test_a_class_that_no_component_can_have_alone_is_warned_of(iris, learned, means):
    x, y = iris
    shares = np.array([[0.02, 0.02, 0.96], [0.5, 0.48, 0.02]])  # of blue, green and red
    model = of_iris(np.stack([means[0], means[1:].mean(axis=0)]), shares)
    with pytest.warns(SideBayesWarning, match="n_components = 2 for 3 classes: at no row is '"):
        model.fit(x, y)
    assert len(set(model.predict(x))) == 2
    level, why = model.result_.verdict
    assert level != "good"
    assert "num_clusters = 2 for 3 classes: at no row is class" in why
    assert "no row is" not in learned.result_.verdict[1]
    with pytest.raises(ValueError, match="give it 3 components at least"):
        MixtureClassifier(2, engine="hard_classes").fit(x, y)


def test_rows_without_a_class_are_not_scored(iris, learned):
    (x, y), model = iris, learned
    right = model.predict(x) == y
    unknown = np.arange(len(x)) % 3 == 0
    missing = np.where(unknown, None, y.astype(object))
    assert model.score(x, y) == pytest.approx(right.mean())
    for partly in (
        missing,
        missing.tolist(),
        np.ma.masked_array(y, unknown),
        np.where(unknown, "-1", y),
    ):
        assert model.score(x, partly) == pytest.approx(right[~unknown].mean())
    weight = np.arange(len(x), dtype=float)
    by_hand = np.average(right[~unknown], weights=weight[~unknown])
    assert model.score(x, missing, weight) == pytest.approx(by_hand)
    with pytest.raises(
        ValueError, match=r"y names no class of any point; name the classes of some$"
    ):
        MixtureClassifier().fit(x, np.full(len(x), -1))
    with pytest.raises(ValueError, match="y names no class"):
        model.score(x, np.full(len(x), None))
    with pytest.raises(ValueError, match="y has 2 entries"):
        model.score(x, y[:2])
    with pytest.raises(
        TypeError, match=r"y names classes otherwise than at fit, where they were \['"
    ):
        model.score(x, np.unique(y, return_inverse=True)[1])
    with pytest.warns(SideBayesWarning, match=r"not learned, \['other'\], in 1 row"):
        other = model.score(x, np.array(["other", *y[1:]]))
    assert other == pytest.approx(right.mean() - right[0] / len(x))
    with pytest.raises(TypeError, match="y mixes names"):
        model.score(x, np.array([1, *y[1:]], object))


def test_a_fold_of_one_class_and_rows_without_any_is_scored(iris, separate):
    x, y = iris
    codes = np.unique(y, return_inverse=True)[1]
    model = clone(separate).fit(x, codes)
    ones = np.where(codes == 1, 1, -1)
    assert model.score(x, ones) == pytest.approx((model.predict(x[codes == 1]) == 1).mean())


@pytest.mark.parametrize(
    "weight", [[1.0, 2.0], 1.0, ["a"] * 4, [1, 1, 1, -9], [0] * 4, [np.inf] * 4]
)
def test_weights_of_rows_are_one_number_for_each(weight, iris, learned):
    x = iris[0][[0, 1, 12, 25]]
    y = learned.predict(x)
    with pytest.raises((TypeError, ValueError), match="sample_weight"):
        learned.score(x, y, sample_weight=weight)
    assert learned.score(x, y, sample_weight=np.arange(1, 5)) == 1.0


def test_rows_in_another_order_than_their_classes_are_refused(iris, learned):
    x = pd.DataFrame(iris[0][:4], index=list("abcd"))
    y = pd.Series(["red", "red", "blue", "green"], index=x.index)
    with pytest.raises(ValueError, match=r"y has 'd' at place 0, by its index.*X\.index"):
        MixtureClassifier().fit(x, y[::-1])
    with pytest.raises(ValueError, match=r"y has 'd' at place 0"):
        learned.score(x, y[::-1])
    with pytest.raises(ValueError, match="sample_weight has 'd' at place 0"):
        learned.score(x, y, sample_weight=pd.Series(1.0, index=x.index[::-1]))


@pytest.mark.parametrize("method", ["moe", "pfgl"])
def test_a_classifier_has_no_use_for_links(method):
    model = MixtureClassifier(method=method, options={"links": LINKS})
    message = (
        "options has 'links', and MixtureClassifier learns from the class.*LinkedMixtureClusterer"
    )
    with pytest.raises(TypeError, match=message):
        model.fit(X, np.arange(12) % 2)


def test_links_are_given_in_one_place():
    with pytest.raises(ValueError, match="links are given to fit, and others to the constructor"):
        LinkedMixtureClusterer(2, links=LINKS).fit(X, links=LINKS.hardened())
