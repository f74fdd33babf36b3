"""Fixtures of several files about one block."""

import jax
import pytest

from tests.support.effects import small_table


@pytest.fixture(scope="module")
def x64():
    """Double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def table(x64):
    """Long table with random effects of four groups."""
    return small_table()
