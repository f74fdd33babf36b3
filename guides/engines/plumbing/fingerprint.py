"""Digest that identifies a compiled program in every process.

A program of the library's own models is identified by name: by the sources, versions, options and shapes
that it is made from, so that it is found without being traced. Any other is identified by its trace.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
import time
from collections.abc import Hashable
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

import jax

from .identity import NamelessError, digest, written

__all__ = ["by_name", "by_trace", "is_portable", "settings"]

_BEGAN = time.time()
_PACKAGES = ("sidebayes", "sidebayes.models", "sidebayes.guides", "sidebayes.diagnostics")
_TRACED_WITH = ("jax", "jaxlib", "numpyro", "numpy", "scipy", "optax", "blackjax")
_CALLED = re.compile(r'custom_call\s+@"?([\w.$]+)|call_target_name\s*=\s*"([^"]*)"')
_BESIDES = (
    "jax_compilation_cache",
    "jax_debug_log",
    "jax_enable_compilation_cache",
    "jax_explain",
    "jax_log",
    "jax_persistent_cache",
    "jax_raise_persistent",
    "jax_traceback",
)
"""Settings of JAX that decide where programs are kept and what is logged, but do not change programs."""


def by_name(key: Hashable) -> str | None:
    """Digest of a key all of whose parts have a name that means the same elsewhere.

    Parameters
    ----------
    key : hashable
        As `programs.compiled` makes it, including settings of JAX.

    Returns
    -------
    str or None
        None if part of it is a user's code, or an object without such a name.
    """
    sources = _sources()
    if sources is None:
        return None
    try:
        return digest(_surroundings(), "name", sources, written(key))
    except NamelessError:
        return None


def by_trace(lowered: jax.stages.Lowered, level: int) -> str | None:
    """Digest of a program that was lowered with ``keep_unused=True``, and of its level of optimisation.

    Unused arguments would otherwise be missing from the text, and two programs that differ in which of
    their arguments they use would have the same digest.

    Returns
    -------
    str or None
        None if the program is not portable, or a setting of JAX has no name that means the same
        elsewhere.
    """
    text = _text(lowered)
    ends = jax.tree.leaves(lowered.args_info), jax.tree.leaves(lowered.out_info)
    told = repr((ends, settings(), level))
    if " at 0x" in told or not _is_whole(text):
        return None
    return digest(_surroundings(), "trace", text, told)


def is_portable(lowered: jax.stages.Lowered) -> bool:
    """Return whether a program runs in any process: it calls neither Python nor targets registered here."""
    return _is_whole(_text(lowered))


def settings() -> tuple[tuple[str, str], ...]:
    """Return settings of JAX that hold in this thread and may change what is traced or compiled."""
    held = sorted(jax.config.values.items())
    return tuple(
        (name, repr(getattr(jax.config, name, value)))
        for name, value in held
        if not name.startswith(_BESIDES)
    )


def _text(lowered: jax.stages.Lowered) -> str:
    return lowered.as_text(debug_info=False)


def _is_whole(text: str) -> bool:
    called = {name for pair in _CALLED.findall(text) for name in pair if name}
    return "__elided__" not in text and all(name.startswith("lapack_") for name in called)


@functools.cache
def _sources() -> str | None:
    """Digest of the library; None if its files changed after they may have been imported."""
    told = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted(Path(str(files(package))).rglob("*.py")):
            found = path.stat()
            if max(found.st_mtime, found.st_ctime) >= _BEGAN:
                return None
            told.update(path.read_bytes())
    return told.hexdigest()


@functools.cache
def _surroundings() -> str:
    """Everything else that determines a program: versions, processor, compiler flags."""
    cpu = Path("/proc/cpuinfo")
    told = cpu.read_text().splitlines() if cpu.is_file() else []
    told = [line for line in told if line.startswith(("flags", "Features", "model name"))]
    versions = [(name, _version(name)) for name in _TRACED_WITH]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    return repr((sys.version, versions, platform.platform(), sorted(set(told)), flags))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
