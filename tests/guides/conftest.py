"""A program store of a test's own."""

from __future__ import annotations

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from sidebayes.guides.engines.plumbing import store

from tests.support.programs import forget


@pytest.fixture(scope="module")
def without_jax_cache():
    """A program that comes from JAX's own cache is not kept."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()


@pytest.fixture
def folder(tmp_path, without_jax_cache):
    forget()
    store.use_program_store(tmp_path / "programs")
    yield tmp_path / "programs"
    store.use_program_store(None)


@pytest.fixture
def unopened(tmp_path, monkeypatch, without_jax_cache):
    """A process that has not looked for its cache folder yet; `tmp_path` is the user's."""
    forget()
    monkeypatch.setattr(store, "_is_open", False)
    monkeypatch.setattr(store, "_store", None)
    monkeypatch.delenv("SIDEBAYES_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "sidebayes"
    store.use_program_store(None)


@pytest.fixture
def jax_cache(tmp_path):
    """JAX's own compilation cache in a folder of the test."""
    names = [
        "jax_enable_compilation_cache",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    ]
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (True, str(tmp_path / "jax"), 0, -1), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "jax"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
