"""Warnings name a line of the user's own code."""

from pathlib import Path

import pytest

import sidebayes
from sidebayes.common.warnings import warn_user

LAZY = """
from functools import cached_property

class Lazy:
    @cached_property
    def value(self):
        warn_user("said")
"""


def test_a_property_that_is_computed_once_names_who_asked():
    made = {"warn_user": warn_user}
    exec(compile(LAZY, str(Path(sidebayes.__file__).with_name("made.py")), "exec"), made)
    with pytest.warns(sidebayes.SideBayesWarning) as told:
        made["Lazy"]().value  # noqa: B018
    assert told[0].filename == __file__
