"""A number at the edge of those that were tried is said to be so."""

import re
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sidebayes.diagnostics.comparison import headline

import sidebayes as sb
from sidebayes.studies.choice import NumberChoice, read_numbers


def choose(scores, chosen, **given):
    path = pd.DataFrame({"bic": scores}).assign(chosen=[n == chosen for n in scores])
    return NumberChoice.of(None, path, argument="num_clusters", **given)


@pytest.mark.parametrize(
    ("scores", "chosen", "given", "said"),
    [
        ({1: 30.0, 2: 20.0, 3: 10.0}, 3, {}, "3 components are the most that were tried"),
        ({2: 10.0, 3: 20.0, 4: 30.0}, 2, {}, "2 components are the fewest that were tried"),
        ({1: np.nan, 2: 20.0, 3: 30.0}, 2, {}, "fewest that could be fitted, of 1 or more tried"),
        ({1: 30.0, 2: 20.0, 3: np.nan}, 2, {}, "most that could be fitted, of up to 3 tried"),
        (
            {1: 20.0, 2: np.nan},
            1,
            {},
            "1 component is the most that could be fitted, of up to 2 tried",
        ),
        ({3: 1.0}, 3, {}, "3 is the only number of components that was tried: try others (num_"),
        ({2: 3.0, 3: 2.0, 4: 1.0}, 3, {"reached": 4}, "4 components are the most that were tried"),
    ],
)
def test_the_edge_is_said(scores, chosen, given, said):
    with pytest.warns(sb.SideBayesWarning, match=re.escape(said)):
        choice = choose(scores, chosen, **given)
    assert said in choice.edge
    assert said in repr(choice)
    assert choice.number == chosen


@pytest.mark.parametrize(
    ("scores", "chosen", "given"),
    [
        ({1: 20.0, 2: 10.0, 3: 20.0}, 2, {}),
        ({1: 10.0, 2: 20.0}, 1, {}),  # there are no fewer
        ({2: 10.0, 3: 20.0}, 2, {"is_least": True}),
        ({2: 1.0, 3: 2.0, 4: 3.0}, 2, {"reached": 3}),
    ],
)
def test_nothing_is_said_between_others(scores, chosen, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice = choose(scores, chosen, **given)
    assert choice.edge == ""
    components = "component" if chosen == 1 else "components"
    assert repr(choice).startswith(f"{chosen} {components} chosen of {len(scores)} numbers tried")


def test_one_is_one():
    path = pd.DataFrame({"bic": [1.0], "chosen": [True]}, index=[1])
    assert repr(NumberChoice(None, path)).startswith("1 component chosen of 1 number tried\n")
    with pytest.raises(
        TypeError, match="num_clusters = <generator>; pass several numbers, such as"
    ):
        read_numbers("num_clusters", (one for one in (1, 2)), "range(1, 7)")


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


def test_where_a_rule_ended_growth_there_is_no_edge_and_a_bad_fit_is_said():
    fit = SimpleNamespace(verdict=("bad", "It made no step."))
    path = pd.DataFrame({"bic": {1: 2.0, 2: 1.99}}).assign(chosen=[False, True])
    with pytest.warns(sb.SideBayesWarning, match="not to be trusted"):
        choice = NumberChoice.of(fit, path, argument=None, reached=2)
    assert not choice.edge
    assert choice.doubts == "the fit of 2 components is not to be trusted: It made no step."


def by_evidence(values, errors, kinds=("estimate",) * 3):
    path = pd.DataFrame({"log_evidence": values, "standard_error": errors, "evidence": kinds})
    path = path.assign(chosen=[True, False, False]).set_axis([1, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NumberChoice.of(None, path, argument="num_clusters").doubts


@pytest.mark.parametrize(
    ("scores", "chosen", "tied"),
    [
        ({1: 10.0, 2: 9.5, 3: 30.0}, 2, "2 and 1"),
        ({1: 10.0, 2: 9.5, 3: 9.0, 4: 30.0}, 3, "3, 1 and 2"),
        ({1: 12.0, 2: 10.0, 3: np.nan, 4: 30.0}, 2, ""),
    ],
)
def test_numbers_of_equal_bic_are_said(scores, chosen, tied):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        choice = choose(scores, chosen)
    assert choice.doubts == (f"BIC does not tell {tied} apart" if tied else "")
    assert [str(one.message) for one in told] == [choice.doubts] * bool(tied)


@pytest.mark.parametrize("gap", [1.5, 2.5])
def test_a_comparison_and_a_choice_have_one_rule(gap):
    bics = {"2": 10.0, "1": 10.0 + gap}
    fits = {name: SimpleNamespace(verdict=("good", "")) for name in bics}
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setattr(headline, "same_question", id)
        compared = headline._criterion(bics, fits)
        chosen = choose({1: 10.0 + gap, 2: 10.0}, 2).doubts
    assert chosen == (compared if gap < 2 else "")
    assert ("does not tell" in compared) == (gap < 2)


def test_every_number_is_looked_at_by_its_evidence():
    said = by_evidence([-10.0, -11.5, -11.6], [0.01, 0.01, 1.0])
    assert said == (
        "the log evidence of 1 is 1.6 ± 1 above that of 3, which does not tell them apart"
    )
    both = by_evidence([-10.0, -10.5, -10.6], [0.01, 0.01, 1.0])
    assert "0.5 ± 0.014 above that of 2 and 0.6 ± 1 above that of 3" in both
    assert by_evidence([-10.0, -11.5, -14.6], [0.01, 0.01, 1.0]) == ""


def test_evidence_of_unknown_error_must_be_strong():
    unknown = [np.nan] * 3
    said = by_evidence([-10.0, -12.5, -13.5], unknown)
    assert said.startswith("the log evidence of 1 is 2.5 (of unknown error) above that of 2, which")
    assert by_evidence([-10.0, -13.5, -14.0], unknown) == ""
    assert "2.5 (of unknown error)" in by_evidence([-10.0, -12.5, -20.0], [0.1, np.nan, 0.1])


def test_bounds_are_not_compared_as_if_they_were_estimates():
    said = by_evidence([-10.0, -10.2, -20.0], [0.1, 0.1, 0.1], ["estimate", "bound", "estimate"])
    assert said.startswith("of 2 components there is only a lower bound")
    assert "tell them apart" not in said
