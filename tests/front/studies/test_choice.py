"""A number at the edge of those that were tried is said to be so."""

import warnings
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            0.5,
            "estimate",
            "the log evidence of 2 is 1 ± 0.71 above that of 3, which does not tell them",
        ),
        (np.nan, "bound", "of 1, 2, 3 components there is only a lower bound of the log evidence"),
        (0.1, "estimate", ""),
    ],
)
def test_evidence_that_does_not_tell_is_said(error, kind, said):
    path = pd.DataFrame({"log_evidence": {1: -9.0, 2: -5.0, 3: -6.0}})
    path = path.assign(standard_error=error, evidence=kind, chosen=[False, True, False])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        choice = NumberChoice.of(None, path, argument="num_clusters")
    assert choice.doubts.startswith(said)
    assert [str(one.message) for one in told] == [choice.doubts] * bool(said)
    assert said in repr(choice)


def test_a_bad_fit_is_said():
    fit = SimpleNamespace(verdict=("bad", "It made no step."))
    path = pd.DataFrame({"bic": {1: 2.0, 2: 1.0, 3: 2.0}}).assign(chosen=[False, True, False])
    with pytest.warns(
        sb.SideBayesWarning, match="fit of 2 components is not to be trusted: It made"
    ):
        NumberChoice.of(fit, path, argument="num_clusters")
