"""Bad input, drawn by type, to every public callable: it works, or the library says what is wrong."""

from __future__ import annotations

import ast
import traceback
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sidebayes as sb
from tests import support_fuzz
from tests.support_fuzz_cards import CARD_CASES
from tests.support_fuzz_series import SERIES_CASES
from tests.support_odd import with_fit

ROOT = Path(sb.__file__).resolve().parents[1]
CASES = {**support_fuzz.CASES, **SERIES_CASES, **CARD_CASES}
REFUSALS = (ValueError, TypeError, OSError, ImportError, sb.FitError)


@cache
def refusing_lines(file: str) -> set[int]:
    """Lines of a file that belong to statements that raise."""
    tree = ast.parse(Path(file).read_text())
    spans = (
        (n.lineno, n.end_lineno or n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Raise)
    )
    return {line for first, last in spans for line in range(first, last + 1)}


def is_ours(error: Exception) -> bool:
    """Whether an error was raised by the library, in words of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(last.filename).resolve()
    inside = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests")
    return inside and last.lineno in refusing_lines(str(path))


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sb.SideBayesWarning)
            try:
                case.call(**{name: with_fit(value) for name, value in arguments.items()})
            except REFUSALS as error:
                if not is_ours(error):
                    raise

    draw()


def test_nothing_public_is_left_out():
    tried = {name.partition(".")[0] for name in CASES}
    others = {"CARDS", "Fit", "FitError", "SideBayesWarning", "datasets", "LinkedMixtureClusterer"}
    others |= {"MixtureClassifier", "fit_nfgl", "grow_prototypes"}  # a fit each; see tests/models
    assert set(sb.__all__) - tried <= others
