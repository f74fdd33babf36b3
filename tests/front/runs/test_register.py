"""A method of one's own in the zoo: fitted by name, listed, saved, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sidebayes.models.gmm import gmm
from typer.testing import CliRunner

import sidebayes
from sidebayes import CARDS, EM, Card
from sidebayes.cli import app
from tests.probes.models import growth

X = np.random.default_rng(0).normal(size=(12, 2))
QUICK = EM(num_restarts=1, max_steps=3)


def tied(x, *, num_clusters):
    gmm(x, num_clusters=num_clusters, covariance="tied")


def card(name="tied", model=tied, engines=("em", "nuts")):
    return Card(name, "A mixture of mine", model, engines=engines, links="none", reference="none")


@pytest.fixture
def mine():
    found = sidebayes.register(card())
    yield found
    del CARDS["tied"]


def test_a_method_is_fitted_by_its_name(mine, tmp_path):
    found = sidebayes.fit("tied", X, num_clusters=2, engine=QUICK)
    expected = sidebayes.fit("gmm", X, num_clusters=2, engine=QUICK, covariance="tied")
    np.testing.assert_array_equal(found.params["covariance"], expected.params["covariance"])
    assert (found.method, found.run.card) == ("tied", mine)
    found.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc")  # a card knows its model
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
    assert sidebayes.fit("tied", X, num_clusters=2).engine == "em"  # the first that it names


def test_a_method_is_listed(mine):
    result = CliRunner().invoke(app, ["list", "--json"])
    (row,) = [one for one in json.loads(result.stdout) if one["name"] == "tied"]
    assert row["engines"] == ["em", "nuts"]
    assert "A mixture of mine" in CliRunner().invoke(app, ["list"]).stdout


def test_engines_that_advise_another_are_listed_with_it():
    """Their messages are the same for all methods."""
    for one in CARDS.values():
        draws = {"cavi", "gibbs", "laplace", "pathfinder", "smc", "svi"} & {*one.engines}
        assert not draws or "nuts" in one.engines, one.name
        assert "nested" not in one.engines or "smc" in one.engines, one.name


def test_a_method_is_held_to_its_engines_and_links(mine):
    with pytest.raises(ValueError, match="engine 'map' does not suit tied"):
        sidebayes.fit("tied", X, num_clusters=2, engine="map")
    with pytest.raises(ValueError, match="tied takes no links"):
        sidebayes.fit("tied", X, sidebayes.Links.must_link([(0, 1)]), num_clusters=2)
    with pytest.raises(TypeError, match="num_clusters is missing"):
        sidebayes.fit("tied", X)


def test_a_method_without_clusters_is_asked_for_none():
    sidebayes.register(card("growing", growth, engines=("map",)))
    try:
        y, times = np.arange(8.0), np.tile([0.0, 1.0, 2.0, 3.0], 2)
        engine = sidebayes.MAP(num_restarts=1, max_steps=3)
        found = sidebayes.fit("growing", y, times, np.repeat([0, 1], 4), engine=engine)
        assert not found.has_labels
        with pytest.raises(TypeError, match="no parameter num_clusters"):
            sidebayes.fit("growing", y, times, np.repeat([0, 1], 4), num_clusters=2)
    finally:
        del CARDS["growing"]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: card("ppc"), ValueError, "there is a method 'ppc' already"),
        (lambda: card(engines=("em", "vi")), ValueError, r"\('em', 'vi'\); expected some of"),
        (lambda: card(engines=()), ValueError, "expected some of"),
        (
            lambda: replace(card(), routine_path="growing"),
            ValueError,
            "routine_path = 'growing'; say where the function is",
        ),
        (lambda: tied, TypeError, "card is a function; pass a sidebayes.Card"),
    ],
)
def test_what_is_no_card_is_refused(wrong, error, message):
    before = dict(CARDS)
    with pytest.raises(error, match=message):
        sidebayes.register(wrong())
    assert before == CARDS


def test_a_card_knows_the_routine_that_fits_it(mine):
    found = mine.routine(X, num_clusters=2, engine=QUICK)
    assert found.method == "tied"
    assert CARDS["pfgl"].routine is sidebayes.grow_prototypes
    assert CARDS["nfgl"].routine is sidebayes.fit_nfgl


def test_a_name_is_given_once(mine):
    with pytest.raises(ValueError, match="there is a method 'tied' already"):
        sidebayes.register(card(model=gmm))
    assert CARDS["tied"] is mine
