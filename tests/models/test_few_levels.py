"""Columns of few different values, which are taken for categories unless the user says otherwise."""

import numpy as np
import pandas as pd
import pytest
from sidebayes.models.blocks.saliency.kinds import Columns
from sidebayes.models.blocks.saliency.repeated import kinds_of_columns, levels_of
from sklearn.metrics import adjusted_rand_score

import sidebayes as sb
from tests.support.draws import Pruned, at_one

ENGINE = sb.ComponentwiseEM(num_restarts=1)


def frame(seed=0, size=150):
    """Two clusters that three normal columns and one of two values tell apart, and a value that is rare."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=size)
    x = 2.5 * labels[:, None] + rng.normal(size=(size, 3))
    flag = np.where(rng.random(size) < 0.1 + 0.8 * labels, 0.48, 1.0)
    rare = np.where(np.arange(size) == 7, 0.83, rng.choice([0.0, 0.5], size))
    table = pd.DataFrame(np.column_stack([x, flag, rare]), columns=["a", "b", "c", "flag", "rare"])
    return table, labels


@pytest.fixture(scope="module")
def found():
    table, labels = frame()
    return sb.fit("feature_saliency", table, num_clusters=4, engine=ENGINE), table, labels


@pytest.fixture(scope="module")
def known():
    """Rows, some flags missing, and a fit that knows their two clusters."""
    table, labels = frame()
    table.loc[3:5, "flag"] = np.nan
    normal = [table.iloc[labels == k, :3] for k in (0, 1)]
    params = {
        "weights": [0.5, 0.5],
        "saliency": [1.0, 1.0, 1.0, 1.0, 0.0],
        "mean": [rows.mean() for rows in normal],
        "variance": [rows.var() for rows in normal],
        "common_mean": table.iloc[:, :3].mean(),
        "common_variance": table.iloc[:, :3].var(),
        "category_2": [[[0.1, 0.9]], [[0.9, 0.1]]],
        "common_category_2": [[0.5, 0.5]],
        "category_3": np.full((2, 1, 3), 1 / 3),
        "common_category_3": [[0.49, 0.49, 0.02]],
    }
    engine = Pruned(at_one(params).draws)
    return sb.fit("feature_saliency", table, num_clusters=2, engine=engine), table


def test_what_is_levels():
    rng = np.random.default_rng(0)
    assert levels_of(rng.choice([3.0, -1.5], 12)) == (-1.5, 3.0)
    assert levels_of(np.array([1.0, 2.0])) == ()  # nothing is repeated
    assert levels_of(np.array([1.0, 2.0, 2.0])) == (1.0, 2.0)
    assert levels_of(np.array([1.0, np.nan, 1.0])) == ()
    assert levels_of(np.arange(24) % 5.0) == ()  # fewer than five rows for each
    assert levels_of(np.arange(25) % 5.0) == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert levels_of(np.arange(60) % 6.0) == ()
    assert levels_of(np.arange(2000.0)) == ()
    assert levels_of(0.1 * (np.arange(30) % 2) + 1e-12 * np.arange(30)) == pytest.approx((0, 0.1))


def test_values_of_categories_are_read_as_they_are():
    columns = Columns.of(["category:-1,0.5,2", "normal", "category:3"], 3)
    (kind,) = columns.kinds
    assert kind.values == ((-1.0, 0.5, 2.0), (0.0, 1.0, 2.0))
    x = np.array([[2.0, 9.0, 0.0], [-1.0, 9.0, 2.0], [np.nan, 9.0, 1.0], [0.6, 9.0, 1.0]])
    codes, known = kind.of(x)
    np.testing.assert_array_equal(codes, [[2, 0], [0, 2], [0, 1], [3, 1]])
    np.testing.assert_array_equal(known[:, 0], [True, True, False, True])
    np.testing.assert_array_equal(kind.decoded(codes[:2]), x[:2, [0, 2]])
    # a value that no level has is all but impossible, in every cluster alike
    chances = np.full((2, 3), 1 / 3)
    found = np.asarray(kind.log_prob(codes, chances))
    np.testing.assert_allclose(found[3], [np.log(1e-10), np.log(1 / 3)])
    for wrong in ("category:1,1", "category:a,b", "category:,", "category:1,inf", "count:1,2"):
        with pytest.raises(ValueError, match=r"or the values of a category, 'category:-1,1'"):
            Columns.of([wrong], 1)


def test_levels_become_categories_and_the_status_says_so(found):
    fit, _, labels = found
    kinds = ("normal",) * 3 + ("category:0.48,1", "category:0,0.5,0.83")
    assert fit.run.options["kinds"] == kinds
    assert "columns flag, rare have few different values, and are taken for cat" in str(fit.status)
    assert "kinds='normal' takes them for normal" in str(fit.status)
    saliency = fit.features().frame["saliency"]
    assert (saliency[:4] > 0.5).all()
    assert saliency["rare"] == 0
    assert (fit.params["weights"] > 0).sum() == 2
    assert adjusted_rand_score(labels, fit.labels()) > 0.9


def test_values_stay_those_of_the_user(known, tmp_path):
    fit, table = known
    kinds = ("normal",) * 3 + ("category:0.48,1", "category:0,0.5,0.83")
    assert fit.run.options["kinds"] == kinds
    assert "columns flag, rare have few different values, and are taken for cat" in str(fit.status)
    labels = fit.predict(table[::-1])[::-1]
    np.testing.assert_array_equal(labels, fit.labels())
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", engine=fit.run.engine)
    np.testing.assert_array_equal(again.predict(table), labels)
    assert str(again.status) == str(fit.status)
    drawn = fit.predictive(seed=1).posterior_predictive["x"].to_numpy()
    assert set(np.unique(drawn[..., 3])) == {0.48, 1.0}
    assert {0.0, 0.5} <= set(np.unique(drawn[..., 4])) <= {0.0, 0.5, 0.83}


def test_new_rows(known):
    fit, table = known
    strange = table.iloc[:3].copy()
    strange.loc[1, "flag"] = 0.7
    with pytest.warns(
        sb.SideBayesWarning, match=r"x_new has the value 0.7 in column 'flag', a categ"
    ) as told:
        labels = fit.predict(strange)
    assert told[0].filename == __file__
    with pytest.warns(sb.SideBayesWarning, match="no other has been seen"):
        low = fit.log_prob(strange)
    np.testing.assert_array_equal(labels[[0, 2]], fit.labels()[[0, 2]])
    assert low[1] < fit.log_prob(table.iloc[:3])[1] - 10
    strange.loc[1, "flag"] = np.nan
    assert fit.predict(strange).shape == (3,)


def test_new_rows_suit_their_kinds():
    rng = np.random.default_rng(0)
    z = rng.integers(2, size=60)
    codes = rng.integers(4, size=60)
    x = np.stack([rng.normal(4 * z), rng.binomial(4, 0.2 + 0.6 * z), rng.poisson(2 + 5 * z), codes])
    kinds = "normal", "ordered:5", "count", "category:4"
    params = {
        "weights": [0.5, 0.5],
        "saliency": [1.0, 0.8, 1.0, 0.3],
        "mean": [[0.0], [4.0]],
        "variance": [[1.0], [1.0]],
        "common_mean": [2.0],
        "common_variance": [5.0],
        "rate": [[2.0], [7.0]],
        "common_rate": [4.5],
        "ordered_5": [[0.2], [0.8]],
        "common_ordered_5": [0.5],
        "category_4": np.full((2, 1, 4), 0.25),
        "common_category_4": np.full((1, 4), 0.25),
    }
    given = {"kinds": kinds, "num_clusters": 2, "selection": "sparse", "progress": False}
    fit = sb.fit("feature_saliency", x.T, **given, engine=at_one(params))
    for column, value, wanted in (
        (1, 5.5, "'ordered:5'; its values must be codes 0 to 4"),
        (1, 5.0, "'ordered:5'; its values must be codes 0 to 4"),
        (2, 3.5, "'count'; its values must be counts, integers from zero"),
        (2, -1.0, "'count'; its values must be counts, integers from zero"),
    ):
        strange = x.T[:3].copy()
        strange[1, column] = value
        told = f"x_new has the value {value:g} in column {column}, whose kind is {wanted}"
        for ask in (fit.predict_proba, fit.log_prob):
            with pytest.raises(ValueError, match=told):
                ask(strange)
    strange = x.T[:3].copy()
    strange[1, 3] = 7
    with pytest.warns(sb.SideBayesWarning, match="value 7 in column 3, a category of the values 0"):
        fit.predict(strange)


@pytest.mark.slow
def test_part_of_the_rows_may_have_one_value_of_a_category(found):
    assert np.isfinite(found[0].kfold(3).elpd)


def test_missing_levels_are_imputed_by_their_values(known):
    own = known[0].imputed()
    assert set(own["level"]) <= {0.48, 1.0}
    assert own["feature"].unique() == ["flag"]


def test_what_is_given_stays():
    table, _ = frame()
    x = table.to_numpy()
    kinds = np.array(["normal"] * 3 + ["category:0.48,1", "normal"])
    with pytest.warns(sb.SideBayesWarning, match="few different values: 'rare'"):
        fit = sb.fit("feature_saliency", table, num_clusters=4, engine=ENGINE, kinds=kinds)
    assert "taken for" not in str(fit.status)
    assert kinds_of_columns({"x": x[:, :3]}, {}) is None
    assert kinds_of_columns({"x": x}, {"prior": "flat"}) is None
    assert kinds_of_columns({}, {}) is None
