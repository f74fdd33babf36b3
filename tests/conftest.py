"""Shared set-up: compiled programs are kept between runs by JAX, not by the library."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from pathlib import Path

# workers use all cores as it is, and threads for small matrices wait for one another by spinning
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")
# most programs run for milliseconds and compile for seconds; processes that tests start do as well
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

from sidebayes.guides.engines.machine.memory import maps_in_use
from sidebayes.guides.engines.plumbing.store import use_program_store

from sidebayes.cache import use_compilation_cache
from tests.support.programs import forget

use_compilation_cache()
# small programs by the thousand, which both workers need
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
use_program_store(None)  # what a test changes in the library must be seen

# processes that tests start need not compile the library's source again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MOST_MAPS = 0.35
"""Share of its memory maps that a process has used after a file, beyond which its programs are let go.

The library lets go at a half, within a test, and what is compiled again there is compiled for it alone.
"""

DEAR = dict(
    line.split("|") for line in Path(__file__).with_name("dear.txt").read_text("utf-8").splitlines()
)
"""Tests that take long, and what stands for them by default: others reach nearly all the same lines."""


def pytest_collection_modifyitems(items):
    """Run these with the slow ones."""
    for item in items:
        if item.nodeid.removeprefix("tests/") in DEAR:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session):
    """What was imported stays to the end, so the collector need not look at it again, nor often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def _few_memory_maps():
    """Every compiled program maps memory, and a process may have some 65,000 maps, then it dies."""
    yield
    if maps_in_use() > MOST_MAPS:
        forget()
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _optimised(request):
    """Files of long runs, marked ``optimised``, have their programs optimised."""
    quick = request.node.get_closest_marker("optimised") is None
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request, monkeypatch):
    """What a test draws does not depend on which tests of its file ran before."""
    if hasattr(request.module, "RNG"):
        seed = zlib.crc32(request.node.name.encode())
        monkeypatch.setattr(request.module, "RNG", np.random.default_rng(seed))


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache():
    """Processes that a test starts leave the user's cache folder alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIDEBAYES_CACHE", "off")
        yield
