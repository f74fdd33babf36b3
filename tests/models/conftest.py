"""Fixtures of several files about one model."""

import jax
import pytest

from sidebayes import PartialLabels
from tests.support.two_groups import LABELS, fitted


@pytest.fixture
def double():
    """Double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def known_groups():
    """Fit of shapes whose groups are known, without a prior."""
    return fitted(known=PartialLabels(LABELS), prior="flat")
