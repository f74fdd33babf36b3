"""Shared set-up: compiled programs are kept between runs by JAX, not by the library."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import jax
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")

from sidebayes.guides.engines.plumbing.store import use_program_store

from sidebayes.cache import use_compilation_cache

use_compilation_cache()
use_program_store(None)  # what a test changes in the library must be seen

MOST_MAPS = 20_000


@pytest.fixture(scope="module", autouse=True)
def _few_memory_maps():
    """Every compiled program maps memory, and a process may have some 65,000 maps, then it dies."""
    yield
    maps = Path("/proc/self/maps")
    if maps.is_file() and len(maps.read_text().splitlines()) > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache():
    """Processes that a test starts leave the user's cache folder alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIDEBAYES_CACHE", "off")
        yield
