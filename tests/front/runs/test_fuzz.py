"""Bad input, drawn by type, to every public callable: it works, or the library says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sidebayes as sb
from tests.support.fuzz import cases as plain_cases
from tests.support.fuzz.cards import CARD_CASES
from tests.support.fuzz.outcomes import outcome
from tests.support.fuzz.series import SERIES_CASES
from tests.support.fuzz.shapes import SHAPE_CASES

CASES = {**plain_cases.CASES, **SERIES_CASES, **SHAPE_CASES, **CARD_CASES}


def no_network(*_: Any, **__: Any) -> None:
    raise OSError("tests ask no network")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name, tmp_path_factory, monkeypatch):
    case = CASES[name]
    monkeypatch.chdir(tmp_path_factory.mktemp("fuzz"))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", no_network)

    @settings(
        max_examples=case.examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def draw(data):
        changed = data.draw(st.lists(st.sampled_from(sorted(case.odd)), min_size=1, max_size=2))
        arguments = case.good | {
            one: case.odd[one][data.draw(st.integers(0, len(case.odd[one]) - 1))] for one in changed
        }
        assert outcome(name, case.call, arguments) in ("clear", "handled")

    draw()


def test_nothing_public_is_left_out():
    tried = {name.partition(".")[0] for name in CASES}
    others = {"CARDS", "Fit", "FitError", "SideBayesWarning", "datasets", "LinkedMixtureClusterer"}
    others |= {"RegisteredPoints", "Scan"}  # what register_points and scan give
    others |= {"MixtureClassifier", "fit_nfgl", "grow_prototypes"}  # a fit each; see tests/models
    assert set(sb.__all__) - tried <= others
