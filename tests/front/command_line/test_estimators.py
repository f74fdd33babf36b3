"""scikit-learn's own checks, and what links add to them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import sidebayes
from sidebayes import EM, KMeans, LinkedKFold, LinkedMixtureClusterer, MixtureClassifier
from tests.support.draws import at_one

TINY = EM(num_restarts=1, max_steps=20)
"""What is checked is the wrapper; time goes into compiling, one program per shape."""

QUICK = LinkedMixtureClusterer(
    3, method="soft_kmeans", engine=KMeans(num_restarts=2), random_state=0
)

FAST = {
    "check_estimator_cloneable",
    "check_estimator_get_tags_default_keys",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_fit2d_1sample",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
}
"""Checks that fit little or nothing."""


def checks():
    for estimator, check in estimator_checks_generator(QUICK, mark="skip"):
        name = getattr(check, "func", check).__name__
        yield pytest.param(
            estimator, check, id=name, marks=() if name in FAST else pytest.mark.slow
        )


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_estimator(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([LinkedMixtureClusterer(3, engine=TINY)])
def test_estimator_with_mixture(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    data = sidebayes.load_dataset("iris")
    x, labels = data.x[::5], data.labels[::5]
    return x, sidebayes.simulate_links(labels, 4, weight=3.0, seed=1)


@pytest.fixture(scope="module")
def model(iris):
    means = iris[0].reshape(3, 10, 4).mean(axis=1)  # rows are in the order of their classes
    at = {"weights": np.full(3, 1 / 3), "mean": means, "variance": np.full(3, 0.1)}
    known = {"engine": at_one(at), "options": {"covariance": "spherical"}}
    return LinkedMixtureClusterer(3, random_state=4, **known).fit(iris[0], links=iris[1])


def test_answers_are_those_of_the_fit(model, iris):
    x, links = iris
    assert model.result_.links.num_links == links.num_links
    np.testing.assert_array_equal(model.labels_, model.result_.labels())
    np.testing.assert_array_equal(model.predict(x), model.predict_proba(x).argmax(axis=1))
    np.testing.assert_allclose(model.score(x), model.result_.log_prob(x).mean())


def test_links_by_construction_pipeline_and_routing(model, iris):
    x, links = iris
    own = clone(model).set_params(links=links).fit(x)
    np.testing.assert_array_equal(own.labels_, model.labels_)
    for few in (sidebayes.Links.must_link([(0, 99)]), sidebayes.Links.empty(99)):
        named = r"pass rows, .*cross_val_score\(.*in a pipeline .*linkedmixtureclusterer__rows"
        with pytest.raises(ValueError, match=named):
            clone(model).fit(x, links=few)
    with pytest.raises(ValueError, match="rows has 3 entries"):
        clone(model).fit(x, links=links, rows=[0, 1, 2])
    unsized = clone(model).set_params(links=sidebayes.Links(links.pairs, links.weights))
    with pytest.warns(sidebayes.SideBayesWarning, match="applied to other rows; give num_points"):
        unsized.fit(x)
    unsized.fit(x, rows=np.arange(len(x)))
    pipe = make_pipeline(StandardScaler(), clone(model))
    pipe.fit(x, linkedmixtureclusterer__links=links)
    assert pipe[-1].result_.links.num_links == links.num_links
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = make_pipeline(StandardScaler(), clone(model).set_fit_request(links=True))
        assert pipe.fit(x, links=links)[-1].result_.links.num_links == links.num_links
        of_rows = pipe.score_samples(x)
        assert pipe.score(x) == pytest.approx(of_rows.mean())
    weight = np.arange(1.0, len(x) + 1)
    score = pipe.score(x, sample_weight=weight)
    assert score == pytest.approx(weight @ of_rows / weight.sum())
    with pytest.raises(ValueError, match="sample_weight: expected finite numbers of at least zero"):
        pipe.score(x, sample_weight=-weight)


def test_links_find_their_place_in_every_model():
    x = np.random.default_rng(0).normal(size=(12, 1))
    links = sidebayes.Links.must_link([(0, 1)])
    known = {"sticks": [0.5], "length_scale": [1.0], "amplitude": 1.0, "noise": 1.0}
    engine = at_one(known | {"curves": np.zeros((2, 1, 12))})
    given = {"engine": engine, "options": {"inputs": x}}
    found = LinkedMixtureClusterer(2, method="trajectories", **given).fit(x, links=links)
    assert found.result_.links.num_links == 1


def test_links_have_no_place_by_position_in_every_model():
    x, links = np.random.default_rng(0).normal(size=(12, 1)), sidebayes.Links.must_link([(0, 1)])
    with pytest.raises(TypeError, match="trajectories takes links by name only: links="):
        sidebayes.fit("trajectories", x, links, num_clusters=2)


@pytest.fixture(scope="module")
def whole():
    data = sidebayes.load_dataset("iris")
    return data.x, sidebayes.simulate_links(data.labels, 60, weight=3.0, seed=1), data.labels


def test_no_link_crosses_a_fold(whole):
    x, links, _ = whole
    folds = LinkedKFold(links, n_splits=4)
    assert folds.get_n_splits() == 4
    held = [np.zeros(150, bool) for _ in range(4)]
    for mask, (train, test) in zip(held, folds.split(x), strict=True):
        mask[test] = True
        assert not mask[train].any()
        assert (mask[links.pairs[:, 0]] == mask[links.pairs[:, 1]]).all()
    assert (np.sum(held, axis=0) == 1).all()
    groups = np.maximum(np.arange(150) - 9, 0)  # the first ten rows are one
    assert all(
        np.isin(np.arange(10), test).mean() in (0, 1) for _, test in folds.split(x, None, groups)
    )
    with pytest.raises(ValueError, match="connect the rows into 1 set, "):
        next(folds.split(x, groups=np.zeros(150)))
    with pytest.raises(ValueError, match="pass all rows"):
        next(LinkedKFold(links).split(x[:100]))
    with pytest.raises(TypeError, match="pass Links"):
        LinkedKFold(links.pairs)
    for number in (1, 2.5, "3", None):
        with pytest.raises(ValueError, match=f"n_splits = {number!r}; expected an integer >= 2"):
            LinkedKFold(links, number)
    with pytest.raises(TypeError, match="X = None; pass the table"):
        next(folds.split(None))
    with pytest.raises(ValueError, match="groups has 2 entries, X has 150 rows"):
        next(folds.split(x, groups=[0, 1]))


def test_rows_choose_the_links_among_them(whole):
    x, links, _ = whole
    rows = np.arange(0, 150, 2)
    some = clone(QUICK).set_params(links=links).fit(x[rows], rows=rows)
    ours, theirs = some.result_.links, links.subset(rows)
    np.testing.assert_array_equal(ours.pairs, theirs.pairs)
    np.testing.assert_array_equal(ours.weights, theirs.weights)


@pytest.mark.parametrize("routing", [False, True])
def test_searches_with_links(whole, routing):
    """On iris with 60 links: every fit sees the links among its own rows, and no others."""
    x, links, labels = whole
    rows, folds = np.arange(150), LinkedKFold(links, n_splits=3)
    with sklearn.config_context(enable_metadata_routing=routing):
        model = clone(QUICK).set_params(links=links)
        if routing:
            model.set_fit_request(rows=True)
        search = GridSearchCV(
            model, {"n_clusters": [2, 3]}, cv=folds, scoring="adjusted_rand_score"
        ).fit(x, labels, rows=rows)
        assert search.best_params_ == {"n_clusters": 3}
        assert search.best_estimator_.result_.links.num_links == links.num_links
        scores = cross_val_score(
            model, x, labels, cv=folds, scoring="adjusted_rand_score", params={"rows": rows}
        )
    np.testing.assert_allclose(scores.mean(), search.best_score_)
    by_hand = []
    for train, test in folds.split(x):
        fold = clone(QUICK).set_params(links=links.subset(train)).fit(x[train])
        by_hand.append(adjusted_rand_score(labels[test], fold.predict(x[test])))
    np.testing.assert_allclose(scores, by_hand)


def test_density_of_held_out_rows_is_the_default_score(whole):
    x, links, _ = whole
    model = LinkedMixtureClusterer(3, engine=TINY, links=links, random_state=4)
    folds = LinkedKFold(links, n_splits=2)
    found = cross_val_score(model, x, cv=folds, params={"rows": np.arange(150)})
    assert np.isfinite(found).all()


def test_one_class_is_refused():
    x = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match="y names one class, 'yes', .*label rows of another class"):
        MixtureClassifier().fit(x, ["yes"] * 10 + [None] * 10)
    with pytest.raises(ValueError, match="y names one class, 3, "):
        MixtureClassifier().fit(x, np.full(20, 3))


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (
            LinkedMixtureClusterer,
            {"num_clusters": 2},
            "the estimator's own n_clusters says; set that",
        ),
        (LinkedMixtureClusterer, {"seed": 2}, "the estimator's own random_state says"),
        (LinkedMixtureClusterer, {"progress": True}, "options has 'progress'.*leave it out"),
        (LinkedMixtureClusterer, ["tied"], r"options = \['tied'\]; pass a mapping"),
        (MixtureClassifier, {"num_clusters": 2}, "the estimator's own n_components says; set that"),
        (MixtureClassifier, {"num_classes": 2}, "options has 'num_classes'.*leave it out"),
    ],
)
def test_options_that_an_estimator_says_itself(estimator, options, message):
    x = np.arange(12.0).reshape(6, 2)
    with pytest.raises(TypeError, match=message):
        estimator(options=options).fit(x, [0, 0, 0, 1, 1, -1])


def test_links_that_are_none_and_predictions_before_a_fit():
    x = np.arange(12.0).reshape(6, 2)
    for links in ([(0, 1)], np.array([[0, 1]]), pd.DataFrame({"i": [0], "j": [1]})):
        for model in (LinkedMixtureClusterer(2), LinkedMixtureClusterer(2, links=links)):
            with pytest.raises(TypeError, match=f"links is a {type(links).__name__}; pass Links"):
                model.fit(x, links=links if model.links is None else None)
    for ask in (MixtureClassifier().predict, MixtureClassifier().predict_proba):
        with pytest.raises(NotFittedError):
            ask(x)
