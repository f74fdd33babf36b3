"""scikit-learn's own checks, and what links add to them."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import sidebayes
from sidebayes import EM, KMeans, LinkedMixtureClusterer

TINY = EM(num_restarts=1, max_steps=20)
"""What is checked is the wrapper; time goes into compiling, one program per shape."""

QUICK = LinkedMixtureClusterer(3, method="soft_kmeans", engine=KMeans(num_restarts=2))

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
    return x, sidebayes.simulate_links(labels, 10, weight=3.0, seed=1)


@pytest.fixture(scope="module")
def model(iris):
    return LinkedMixtureClusterer(3, engine=TINY, random_state=4).fit(iris[0], links=iris[1])


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
    with pytest.raises(ValueError, match="out of range"):
        clone(model).fit(x, links=sidebayes.Links.must_link([(0, 99)]))
    pipe = make_pipeline(StandardScaler(), clone(model))
    pipe.fit(x, linkedmixtureclusterer__links=links)
    assert pipe[-1].result_.links.num_links == links.num_links
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = make_pipeline(StandardScaler(), clone(model).set_fit_request(links=True))
        assert pipe.fit(x, links=links)[-1].result_.links.num_links == links.num_links
