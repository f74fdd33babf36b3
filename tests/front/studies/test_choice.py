"""A number at the edge of those that were tried is said to be so."""

import warnings

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb
from sidebayes.studies.choice import NumberChoice


def choose(scores, chosen, **given):
    path = pd.DataFrame({"bic": scores}).assign(chosen=[n == chosen for n in scores])
    return NumberChoice.of(None, path, argument="num_clusters", **given)


@pytest.mark.parametrize(
    ("scores", "chosen", "given", "said"),
    [
        ({1: 3.0, 2: 2.0, 3: 1.0}, 3, {}, "3 components are the most that were tried"),
        ({2: 1.0, 3: 2.0, 4: 3.0}, 2, {}, "2 components are the fewest that were tried"),
        ({1: 3.0, 2: 2.0, 3: np.nan}, 2, {}, "most that could be fitted, of up to 3 tried"),
        ({2: 3.0, 3: 2.0, 4: 1.0}, 3, {"reached": 4}, "4 components are the most that were tried"),
    ],
)
def test_the_edge_is_said(scores, chosen, given, said):
    with pytest.warns(sb.SideBayesWarning, match=said):
        choice = choose(scores, chosen, **given)
    assert said in choice.edge
    assert said in repr(choice)
    assert choice.number == chosen


@pytest.mark.parametrize(
    ("scores", "chosen", "given"),
    [
        ({1: 2.0, 2: 1.0, 3: 2.0}, 2, {}),
        ({1: 1.0, 2: 2.0}, 1, {}),  # there are no fewer
        ({3: 1.0}, 3, {}),  # no choice
        ({2: 1.0, 3: 2.0, 4: 3.0}, 2, {"reached": 3}),
    ],
)
def test_nothing_is_said_between_others(scores, chosen, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice = choose(scores, chosen, **given)
    assert choice.edge == ""
    assert repr(choice).startswith(f"{chosen} components chosen of {len(scores)} numbers tried")


def test_rounded_data_take_the_most_components_that_they_are_offered():
    x = np.repeat([[0.0], [1.0], [2.0], [3.0]], 30, axis=0)
    engine = sb.EM(num_restarts=3)
    with pytest.warns(sb.SideBayesWarning, match="most that were tried"):
        choice = sb.select_components(
            "gmm", x, num_clusters=range(1, 4), engine=engine, progress=False
        )
    assert choice.num_clusters == 3
