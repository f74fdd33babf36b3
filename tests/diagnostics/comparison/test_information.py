"""BIC in a comparison: of modes, of the same data, and what the first line makes of it."""

import json

import numpy as np
import pytest
from sidebayes.diagnostics.comparison.compare import compare_fits

import sidebayes
from tests.diagnostics.comparison.test_left_out import with_unit
from tests.diagnostics.fakes import FakeFit, make_tree
from tests.support.draws import Told

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(-4, 1, (40, 2)), RNG.normal(4, 1, (40, 2))])


def mode(number, bic, tree=None):
    """A fit of so many clusters with a BIC."""
    tree = make_tree()[0] if tree is None else tree
    tree.attrs["sidebayes_options"] = json.dumps({"num_clusters": number})
    return type("Mode", (FakeFit,), {"bic": bic})(tree)


def test_modes_of_several_models_are_compared():
    bics = {"1": 30.0, "2": 10.0, "3": 12.5}
    fits = {name: mode(int(name), bic) for name, bic in bics.items()}
    table = compare_fits(fits)
    assert table.frame["bic"].to_dict() == bics
    assert "BIC prefers 2, by 2.5 over 3" in table.headline
    assert "12.5" in str(table)
    assert "BIC" not in compare_fits({"2": fits["2"], "again": mode(2, 11.0)}).headline


def test_modes_of_other_data_and_draws_are_not_compared():
    one, moved, drawn = mode(2, 10.0), mode(3, 20.0), mode(3, 5.0, make_tree(2, 120, 60)[0])
    moved.tree["observed_data"]["x"] = moved.tree["observed_data"]["x"] + 1.0
    table = compare_fits({"2": one, "moved": moved})
    assert "BIC" not in table.headline
    said = "BIC cannot be compared between 2 and moved: they are of other data or units."
    assert said in table.notes
    points = np.arange(40)
    rows, sets = with_unit(mode(2, 9.0), points), with_unit(mode(3, 8.0), points // 2)
    said = str(compare_fits({"rows": rows, "sets": sets}))
    assert (
        "they are of other units, which links tie together; .kfold(unit='row') scores rows without "
        "their links" in said
    )
    frame = compare_fits({"2": one, "draws": drawn}).frame
    assert frame.loc["2", "bic"] == 10.0
    assert np.isnan(frame.loc["draws", "bic"])


def test_modes_of_other_known_classes_are_not_compared():
    fits = {"none": mode(2, 10.0), "some": mode(3, 20.0)}
    fits["some"].tree["log_likelihood"].attrs["beside"] = json.dumps({"known classes": "3f"})
    table = compare_fits(fits)
    assert "BIC prefers" not in table.headline
    assert (
        "BIC cannot be compared between none and some: they are of other known classes; give all fits the "
        "same known classes, or compare .log_prob(x) of rows that none of them has seen, which is the "
        "density of the rows alone." in table.notes
    )


def fitted(number, x=X, engine="em", **given):
    given = {"covariance": "spherical", "engine": engine, "progress": False, **given}
    return sidebayes.fit("gmm", x, num_clusters=number, **given)


@pytest.fixture(scope="module")
def fits():
    return {f"{number}": fitted(number) for number in (1, 2, 3)}


def test_bic_of_modes_is_compared(fits):
    table = sidebayes.compare(fits)
    for name, fit in fits.items():
        assert table.frame.loc[name, "bic"] == fit.bic
    nearest = min((fits[n].bic - fits["2"].bic, n) for n in ("1", "3"))
    assert table.headline.startswith(f"BIC prefers 2, by {nearest[0]:.1f} over {nearest[1]}")
    assert f"{fits['2'].bic:.1f}" in str(table)
    assert "BIC" not in sidebayes.compare({"one": fits["2"], "other": fits["2"]}).headline


def test_a_small_difference_tells_nothing(fits):
    copies = {"2": fits["2"], "tied": fitted(2, covariance="tied")}
    gap = abs(copies["2"].bic - copies["tied"].bic)
    said = sidebayes.compare(copies).headline
    assert ("BIC does not tell" in said) == (gap < 2.0)
    same = sidebayes.compare({"em": fits["2"], "map": fitted(2, engine="map")})
    assert "BIC" not in same.headline


def test_other_data_are_not_compared(fits):
    table = sidebayes.compare({"2": fits["2"], "half": fitted(2, X[::2])})
    assert "BIC" not in table.headline
    assert (
        "BIC cannot be compared between 2 and half: they are of other data or units." in table.notes
    )


def test_draws_have_no_bic(fits):
    mode, rng = fits["2"].params, np.random.default_rng(1)
    draws = {
        name: value * rng.uniform(0.9, 1.1, (2, 20, *[1] * value.ndim))
        for name, value in mode.items()
        if name != "weights"
    }
    draws["weights"] = np.broadcast_to(mode["weights"], (2, 20, 2))
    table = sidebayes.compare({"2": fits["2"], "draws": fitted(2, engine=Told(draws))})
    assert np.isnan(table.frame.loc["draws", "bic"])
    assert table.frame.loc["2", "bic"] == fits["2"].bic
