"""Compiled programs on disk, found again by what they are, so that nothing is traced anew.

JAX's own cache spares the compiler but not the tracing of the model, which is most of what a small
fit costs once that cache is warm. Only programs of the library's own models on the CPU are kept: their
code is known by the files it comes from, a user's is not.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import platform
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

__all__ = ["compile_and_keep", "fetch", "use_program_store"]

_MOST_FILES = 500
_PACKAGES = ("sidebayes", "sidebayes.models", "sidebayes.guides", "sidebayes.diagnostics")
_KNOWN = ("sidebayes", "numpyro", "jax", "jaxlib", "numpy", "builtins")
_folder: Path | None = None


def use_program_store(folder: Path | None) -> None:
    """Keep programs in a folder from now on; None stops it. What lies there is trusted."""
    global _folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    _folder = folder


def fetch(key: Hashable) -> Callable | None:
    """Program kept under a key, None if there is none that can be used here."""
    path = _path(key)
    if path is None or not path.is_file():
        return None
    _register_lapack()
    try:
        program = serialize_executable.deserialize_and_load(*pickle.loads(path.read_bytes()))
    except Exception:  # half written, or from another machine: compile it again
        path.unlink(missing_ok=True)
        return None
    path.touch()
    return program


def compile_and_keep(key: Hashable, lowered: jax.stages.Lowered) -> Callable:
    """Compile a program and keep it; the ones longest out of use make room."""
    path = _path(key)
    if path is None:
        return lowered.compile()
    with _without_cache():  # a program that comes from JAX's cache cannot be written once more
        program = lowered.compile()
    # it may call back to Python, the disk may be full, another process may remove files
    with suppress(ValueError, TypeError, pickle.PickleError, OSError):
        content = pickle.dumps(serialize_executable.serialize(program))
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
        others = sorted(path.parent.glob("*.program"), key=lambda p: p.stat().st_mtime)
        for old in others[:-_MOST_FILES]:
            old.unlink(missing_ok=True)
    return program


@contextmanager
def _without_cache() -> Iterator[None]:
    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it looks at the setting once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def _path(key: Hashable) -> Path | None:
    if _folder is None or jax.default_backend() != "cpu":
        return None
    try:
        text = _describe(key)
    except _UnknownError:
        return None
    return _folder / f"{hashlib.sha256((_surroundings() + text).encode()).hexdigest()}.program"


class _UnknownError(Exception):
    """Part of a key has no name that means the same in another process."""


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        if value[:1] == ("object",):
            raise _UnknownError
        return f"({','.join(map(_describe, value))})"
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return repr(value)
    if isinstance(value, np.dtype | jax.core.ShapedArray):
        return str(value)
    if isinstance(value, jax.tree_util.PyTreeDef):
        text = str(value)
        if " at 0x" in text:
            raise _UnknownError
        return text
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<locals>")
    if module is None or "<locals>" in name or module.split(".")[0] not in _KNOWN:
        raise _UnknownError
    return f"{module}.{name}"


@functools.cache
def _surroundings() -> str:
    """Whatever else decides what a program is: sources, versions, processor, compiler's flags."""
    sources = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted(Path(str(files(package))).rglob("*.py")):
            sources.update(path.read_bytes())
    cpu = Path("/proc/cpuinfo")
    told = cpu.read_text().splitlines() if cpu.is_file() else [platform.processor()]
    features = next((line for line in told if line.startswith(("flags", "Features"))), told[0])
    versions = [version(name) for name in ("jax", "jaxlib", "numpyro", "numpy")]
    flags = os.environ.get("XLA_FLAGS", "")
    return repr((sources.hexdigest(), versions, platform.platform(), features, flags))


@functools.cache
def _register_lapack() -> None:
    """Lowering a factorisation makes LAPACK known to programs that come from disk."""
    jax.jit(jnp.linalg.cholesky).lower(np.eye(1))
