"""Shared set-up: compiled programs are kept between runs by JAX, not by the library."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")

from sidebayes.guides.engines.store import use_program_store

from sidebayes.cache import use_compilation_cache

use_compilation_cache()
use_program_store(None)  # what a test changes in the library must be seen


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache():
    """Processes that a test starts leave the user's cache folder alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIDEBAYES_CACHE", "off")
        yield
