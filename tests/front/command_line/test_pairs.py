"""Options and settings of the command line with several values."""

import pytest

from sidebayes.commands.pairs import read_pairs
from sidebayes.runs.zoo import CARDS, make_engine

MIXTURE = CARDS["mixed_effects_mixture"].fitted_by


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("shared=covariance,noise", ["covariance", "noise"]),
        ("shared=[covariance, noise]", ["covariance", "noise"]),
        ("shared=('covariance', \"noise\")", ["covariance", "noise"]),
        ('shared=["covariance","noise"]', ["covariance", "noise"]),
        ("shared=noise", "noise"),
        ("shared_terms=1", [1]),
        ("shared_terms=0,2", [0, 2]),
        ("covariance=2,1", [2, 1]),
        ("covariance=full", "full"),
        ("weights=0.5", 0.5),
        ("prior=a,b", "a,b"),
        ("inference=null", None),
    ],
)
def test_commas_separate_the_values_of_options_that_take_several(text, value):
    name = text.partition("=")[0]
    assert read_pairs("option", [text], MIXTURE) == {name: value}


def test_options_that_are_lists_only_take_a_single_value_too():
    own = read_pairs("option", ["own=noise", "mean=0.5"], CARDS["trajectories"].fitted_by)
    assert own == {"own": ["noise"], "mean": 0.5}


def test_settings_of_every_engine_are_read():
    engines = {type(make_engine(name, card)) for card in CARDS.values() for name in card.engines}
    for engine in engines:
        assert read_pairs("setting", ["verbose=1"], engine) == {"verbose": 1}
