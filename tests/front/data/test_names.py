"""Names that the data have are coordinates of the tree: of features, effects, groups and classes."""

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sidebayes.diagnostics.symmetry.distance import farthest
from sidebayes.models.gmm import gmm

import sidebayes
from sidebayes.common.class_names import class_codes
from sidebayes.data.datasets import Dataset
from tests.support.draws import at_one

NAMES = ["petal length (cm)", "<b>$width$"]
X = np.random.default_rng(0).normal(size=(24, 2)) + 7 * (np.arange(24) % 2)[:, None]


KNOWN = {"weights": [0.5, 0.5], "mean": [[0.0, 0.0], [7.0, 7.0]], "variance": [1.0, 1.0]}
CLASSIFIER = KNOWN | {"class_table": [[0.0001, 0.9999], [0.9999, 0.0001]]}


def quick(x, method="gmm", params=KNOWN, **options):
    """A fit whose parameters are given."""
    options = {"num_clusters": 2, "covariance": "spherical", "progress": False} | options
    return sidebayes.fit(method, x, engine=at_one(params), **options)


def as_arrow(frame):
    return pytest.importorskip("pyarrow").table({name: frame[name].to_numpy() for name in frame})


def as_dataset(frame):
    return Dataset("mine", frame.to_numpy(), None, list(frame))


@pytest.fixture(scope="module")
def named():
    return quick(pd.DataFrame(X, columns=NAMES))


@pytest.mark.parametrize("kind", [pd.DataFrame, as_arrow, as_dataset])
def test_features_are_found_by_name_whatever_table_they_came_in(kind, named):
    fit = quick(kind(pd.DataFrame(X, columns=NAMES)))
    one = fit.tree["posterior"]["mean"].sel(features=NAMES[1])
    np.testing.assert_allclose(one, fit.tree["posterior"]["mean"].isel(features=1))
    np.testing.assert_array_equal(fit.tree["observed_data"]["x"].sel(features=NAMES), X)
    np.testing.assert_array_equal(fit.responsibilities(), named.responsibilities())


def test_names_are_saved_shown_by_arviz_and_by_the_summary(named, tmp_path):
    named.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc", engine=named.config)
    labels = [f"mean[{k}, {name}]" for k in range(2) for name in NAMES]
    table = pd.DataFrame(X, columns=NAMES)
    mode = sidebayes.fit("gmm", table, num_clusters=2, covariance="spherical", progress=False)
    assert set(labels) <= set(mode.covariance.index)
    for fit in (named, again):
        assert fit.tree["posterior"]["features"].to_numpy().tolist() == NAMES
        assert set(labels) <= set(fit.summary().index)
        assert set(labels) <= set(az.summary(fit.tree, kind="stats").index)


def test_names_of_a_data_set_reach_predictions(named):
    fit = quick(as_dataset(pd.DataFrame(X, columns=NAMES)))
    turned = pd.DataFrame(X, columns=NAMES)[NAMES[::-1]]
    np.testing.assert_array_equal(fit.predict(turned), fit.predict(X))
    drawn = fit.predictive()
    assert drawn["posterior_predictive"]["x"].sel(features=NAMES[0]).shape[-1] == len(X)
    assert drawn["observed_data"]["features"].to_numpy().tolist() == NAMES


def test_a_data_set_is_a_table_everywhere():
    data = as_dataset(pd.DataFrame(X, columns=NAMES))
    assert list(data) == list(data.columns) == NAMES
    assert data.shape == (len(data), 2) == np.asarray(data).shape
    np.testing.assert_array_equal(data[NAMES[1]], X[:, 1])
    assert sidebayes.Links.from_neighbors(data, 2, 1.0).num_points == len(X)
    for x in (data, pd.DataFrame(X)):
        assert sidebayes.debug(gmm, x, num_clusters=2)["trace"].verdict == "ok"
    assert len(sidebayes.LinkedMixtureClusterer(2).fit(data).labels_) == len(X)


def test_prior_draws_have_the_names_too():
    frame = pd.DataFrame(X, columns=NAMES)
    options = {"num_clusters": 2, "covariance": "spherical", "num_draws": 3}
    drawn = sidebayes.prior_predictive("gmm", frame, **options)
    for group, site in (("prior", "mean"), ("prior_predictive", "x")):
        assert drawn[group][site].coords["features"].to_numpy().tolist() == NAMES


def test_numbers_stand_for_themselves():
    for x in (X, pd.DataFrame(X)):
        fit = quick(x)
        assert fit.tree["posterior"]["features"].to_numpy().tolist() == [0, 1]
        assert "mean[0, 1]" in fit.summary().index


def test_names_that_are_not_text_become_text():
    years = pd.DataFrame(X, columns=[1990, 2000])
    assert quick(years).tree["posterior"]["mean"].sel(features="2000").shape == (1, 1, 2)


@pytest.mark.parametrize("names", [["a", "a"], [1, "1"], ["a", "b\0"], ["a", "b\n"]])
def test_names_that_are_one_or_cannot_be_shown_are_refused(names):
    with pytest.raises(ValueError, match=r"the columns of x (repeat|hold)"):
        quick(pd.DataFrame(X, columns=names))


def test_a_functional_has_the_name_of_the_reference_whichever_fit_has_names():
    draws = np.random.default_rng(0).normal(size=(2, 50, 2))
    plain = xr.Dataset({"middle": (("chain", "draw", "features"), draws)})
    named = plain.assign_coords(features=NAMES)
    moved = xr.DataTree.from_dict({"posterior": plain + np.array([0.0, 3.0])})
    for one, label in ((named, NAMES[1]), (plain, 1)):
        shift, name = farthest(moved, xr.DataTree.from_dict({"posterior": one}))
        assert name == f"middle[{label}]"
        assert shift > 1


@pytest.fixture(scope="module")
def longitudinal():
    rng = np.random.default_rng(1)
    who = np.repeat(["s<1>", "b", "c", "d", "e", "f"], 5)
    time = np.tile(np.arange(5.0), 6)
    y = rng.normal(size=6)[np.arange(30) // 5] + 0.3 * time + 0.2 * rng.normal(size=30)
    columns = pd.DataFrame({"Intercept": 1.0, "time": time})
    fit = sidebayes.fit(
        "mixed_effects", y, columns, columns[["Intercept"]], who, covariance="full", progress=False
    )
    return fit, sorted(set(who))


def test_effects_and_terms_and_groups_go_by_name(longitudinal, tmp_path):
    fit, groups = longitudinal
    fit.save(tmp_path / "fit.nc")
    for one in (fit, sidebayes.load(tmp_path / "fit.nc")):
        stored = one.tree["latents"]
        assert stored["effects"].sel(subjects="s<1>", effect="Intercept").shape == (1, 1)
        assert stored["coefficients"].sel(terms="time").shape == (1, 1)
        root = one.tree["posterior"]["covariance"]
        assert root.sel(effects="Intercept", effects_1="Intercept").shape == (1, 1)
        with pytest.warns(sidebayes.SideBayesWarning, match="intervals of 6 groups"):
            found = one.effects()
        assert found["group"].to_numpy().tolist() == groups
        assert found["effect"].to_numpy().tolist() == ["Intercept"]
        assert one.coefficients().index.tolist() == ["Intercept", "time"]
        assert "effects[b, Intercept]" in az.summary(one.tree, group="latents", kind="stats").index


CLASSES = np.array(["oak", "<ash>"], object)


@pytest.fixture(scope="module")
def classes():
    known = np.where(np.arange(24) % 3 == 0, CLASSES[np.arange(24) % 2], None)
    return quick(X, "moe", CLASSIFIER, known=known, num_classes=2)


def test_classes_go_by_name(classes, tmp_path):
    classes.save(tmp_path / "fit.nc")
    order = ["<ash>", "oak"]
    for fit in (classes, sidebayes.load(tmp_path / "fit.nc", engine=classes.config)):
        assert fit.tree["posterior"]["class_table"].sel(classes="oak").shape == (1, 1, 2)
        assert fit.class_names == tuple(order)
        found = fit.classes()
        assert found["class"].tolist() == CLASSES[np.arange(24) % 2].tolist()
        new = fit.class_probabilities(X[:2], ["oak", None])  # by name, though they sort otherwise
        assert new[0, 1] > 0.999
        with pytest.raises(ValueError, match="'elm'"):
            fit.class_probabilities(X[:2], ["elm", None])


def test_classes_with_numbers_keep_them():
    known = np.where(np.arange(24) % 3, -1, np.arange(24) % 2)
    fit = quick(X, "moe", CLASSIFIER, known=known, num_classes=2)
    assert fit.class_names == (0, 1)
    assert fit.classes()["class"].dtype.kind == "i"
    assert fit.tree["posterior"]["classes"].to_numpy().tolist() == [0, 1]


def test_partial_labels_carry_names():
    labels = sidebayes.PartialLabels(["b", "", None, "a"])
    assert labels.names == ("a", "b")
    assert labels.values.tolist() == [1, -1, -1, 0]
    assert labels.under(("c", "b", "a")).values.tolist() == [1, -1, -1, 2]
    assert labels.subset([3]).names == ("a", "b")
    mask = pd.DataFrame({"x": [True, True], "y": [False, True]})
    assert sidebayes.PartialLabels(mask).names == ("x", "y")
    turned = sidebayes.PartialLabels(mask).under(("y", "z", "x"))
    assert turned.values.tolist() == [[False, False, True], [True, False, True]]
    whole = sidebayes.PartialLabels(["b", None], names=["c", "b"])
    assert whole.values.tolist() == [1, -1]
    numbers = sidebayes.PartialLabels([2, None, 0])
    assert numbers.values.tolist() == [2, -1, 0]
    assert numbers.names is None


@pytest.mark.parametrize(
    "values",
    [
        [None] * 3,
        [""] * 3,
        ["", None, -1],
        [np.nan] * 3,
        [-1] * 3,
        pd.Series([None] * 3, dtype="string"),
    ],
)
def test_partial_labels_of_no_known_class(values):
    for names in (None, ("a", "b")):
        labels = sidebayes.PartialLabels(values, names)
        assert labels.values.tolist() == [-1] * 3
        assert labels.names == names
        assert not labels.states_any


@pytest.mark.parametrize(
    ("values", "names", "said"),
    [
        (["a", None], ["b"], r"\['a'\]"),
        ([0, 2], ["a", "b"], "2 names of classes, and 3"),
        ([0, 1], ["a", "a"], "repeat"),
        ([[True, False]], ["a"], "1 names of classes, and 2"),
    ],
)
def test_names_of_classes_that_do_not_fit_are_refused(values, names, said):
    with pytest.raises(ValueError, match=said):
        sidebayes.PartialLabels(np.asarray(values), names)


def test_class_codes_are_the_numbers_of_named_classes():
    np.testing.assert_array_equal(class_codes(["b", "a", ""]), [1, 0, -1])
