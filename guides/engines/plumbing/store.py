"""Compiled programs on disk, in a private folder of the user.

Loading a compiled program runs code that it holds. An entry is therefore opened only if it has an HMAC by a
secret in the same folder; programs of damaged entries, and of those from elsewhere, are compiled anew.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import pickle
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from sidebayes.common.folders import cache_folder, is_private

__all__ = ["ProgramStore", "compile_anew", "current_store", "use_program_store"]

_HEADER = b"sidebayes program 2\n"
_SEAL_BYTES = 32
_ENTRY = re.compile(r"[0-9a-f]{64}\.program")
_PARTIAL = re.compile(r"sidebayes-.*\.partial")
_SECONDS_OF_WRITING = 3600
_MOST_FILES = 1000
_MOST_BYTES = 2**30


@dataclass(frozen=True)
class ProgramStore:
    """Stores programs under their digests, which `fingerprint` computes.

    Attributes
    ----------
    folder : Path
    secret : bytes
        Key of the HMAC of entries.
    """

    folder: Path
    secret: bytes

    def fetch(self, digest: str, lowered: jax.stages.Lowered | None = None) -> Callable | None:
        """Return the program kept under a digest.

        Parameters
        ----------
        digest : str
        lowered : Lowered, optional
            The program before compilation, where it was traced; it holds the structure of inputs and
            outputs.

        Returns
        -------
        callable or None
            None if there is no entry that this store wrote and this machine can load.
        """
        path = self.folder / f"{digest}.program"
        try:
            payload = self._unseal(digest, path.read_bytes())
        except OSError:
            return None
        if payload is None:
            return None
        try:
            program = _load(payload, lowered)
        except Exception:  # whatever the reason, a program that cannot be loaded is compiled
            return None
        with suppress(OSError):
            os.utime(path)
        return program

    def keep(self, digest: str, program: jax.stages.Compiled, *, named: bool) -> None:
        """Keep a program if that is possible; the least recently used ones are removed to make room.

        Parameters
        ----------
        digest : str
        program : Compiled
            One that `compile_anew` reports as new.
        named : bool
            Whether it is to be found without being traced.
        """
        # not every program can be written, the disk may be full, others may remove files
        with suppress(Exception):
            executable, *trees = serialize_executable.serialize(program)
            payload = pickle.dumps((executable, trees if named else None))
            self._write(digest, self._seal(digest, payload))
            self._make_room()

    def _seal(self, digest: str, payload: bytes) -> bytes:
        return _HEADER + self._signature(digest, payload) + payload

    def _unseal(self, digest: str, content: bytes) -> bytes | None:
        begin = len(_HEADER) + _SEAL_BYTES
        payload = content[begin:]
        expected = _HEADER + self._signature(digest, payload)
        return payload if hmac.compare_digest(content[:begin], expected) else None

    def _signature(self, digest: str, payload: bytes) -> bytes:
        seal = hmac.new(self.secret, digest.encode(), hashlib.sha256)
        seal.update(payload)
        return seal.digest()

    def _write(self, digest: str, content: bytes) -> None:
        partial = _write_partial(self.folder, content)
        try:
            os.replace(partial, self.folder / f"{digest}.program")
        finally:
            partial.unlink(missing_ok=True)

    def _make_room(self) -> None:
        entries = []
        stale = time.time() - _SECONDS_OF_WRITING
        for path in self.folder.iterdir():
            with suppress(OSError):
                found = path.lstat()
                if _ENTRY.fullmatch(path.name):
                    entries.append((found.st_mtime, found.st_size, path))
                elif _PARTIAL.fullmatch(path.name) and found.st_mtime < stale:
                    path.unlink()
        size = 0
        for rank, (_, more, path) in enumerate(sorted(entries, reverse=True)):
            size += more
            if rank >= _MOST_FILES or size > _MOST_BYTES:
                with suppress(OSError):
                    _remove_ours(path)


def compile_anew(
    lowered: jax.stages.Lowered, *, level: int = 1, library: bool = False
) -> tuple[jax.stages.Compiled, bool]:
    """Compile a program, and return whether that was needed.

    A program from JAX's own cache, on disk or in memory, lacks its machine code when it is written again,
    and fails only when it is run. Thus a program is new only if JAX reported in this thread that it
    compiled one and did not find it.

    Parameters
    ----------
    lowered : Lowered
    level : int
        Level of XLA's optimisation: 0 compiles in two thirds of the time, and runs slower; 2 takes a sixth
        more time to compile, and runs faster where there are sums over rows.
    library : bool
        Let XLA call its library for sums and products, which is faster on a share of the rows.

    Returns
    -------
    program : Compiled
    new : bool
        Whether it may be kept.
    """
    _listen()
    _told.events = set()
    options = {}
    if jax.default_backend() == "cpu" and not jax.config.read(_UNOPTIMISED):
        options = {"xla_backend_optimization_level": level}
    try:
        program = lowered.compile(options if library else options | _WITHOUT_LIBRARY)
    except jax.errors.JaxRuntimeError:  # versions of XLA that lack the option refuse it
        program = lowered.compile(options)
    return program, _told.events & {_COMPILED, _FOUND} == {_COMPILED}


_WITHOUT_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Makes XLA use its own loops, which sum over few features several times as fast as its library."""


_UNOPTIMISED = "jax_disable_most_optimizations"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_FOUND = "/jax/compilation_cache/cache_hits"
_told = threading.local()


@functools.cache
def _listen() -> None:
    def hear(event: str, **_: str | int) -> None:
        if hasattr(_told, "events"):
            _told.events.add(event)

    def hear_duration(event: str, duration_secs: float, **_: str | int) -> None:
        hear(event)

    jax.monitoring.register_event_listener(hear)
    jax.monitoring.register_event_duration_secs_listener(hear_duration)


_lock = threading.Lock()
_store: ProgramStore | None = None
_is_open = False


def use_program_store(folder: Path | None) -> None:
    """Keep programs in a folder from now on, in place of the user's cache folder; None stops it."""
    global _store, _is_open
    with _lock:
        _is_open = True
        _store = None if folder is None else _open(folder)


def current_store() -> ProgramStore | None:
    """Return the store of programs; None if the user has turned it off, or has no private folder.

    Only programs for a single CPU device are kept.
    """
    global _store, _is_open
    if not _is_open:
        with _lock:
            if not _is_open:
                try:
                    folder = cache_folder()
                    if folder is not None and is_private(folder):
                        _store = _open(folder / "programs")
                finally:  # warn only once, even if the user turns the warning into an error
                    _is_open = True
    if _store is None or jax.default_backend() != "cpu" or jax.device_count() != 1:
        return None
    return _store


def _open(folder: Path) -> ProgramStore | None:
    if not is_private(folder):
        return None
    try:
        return ProgramStore(folder, _read_secret(folder / "secret"))
    except OSError:
        return None


def _read_secret(path: Path) -> bytes:
    """Return the secret of a folder; it is created if there is none, and replaced if it is damaged."""
    with suppress(FileNotFoundError):
        secret = path.read_bytes()
        if len(secret) == _SEAL_BYTES:
            return secret
        path.unlink()
    partial = _write_partial(path.parent, secrets.token_bytes(_SEAL_BYTES))
    try:
        os.link(partial, path)
    except FileExistsError:  # another process was first
        pass
    except OSError:  # this file system has no links
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path.read_bytes()


def _write_partial(folder: Path, content: bytes) -> Path:
    """Write a new file that only the user can read, complete or not at all."""
    handle, name = tempfile.mkstemp(dir=folder, prefix="sidebayes-", suffix=".partial")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def _remove_ours(path: Path) -> None:
    with path.open("rb") as file:
        ours = file.read(len(_HEADER)) == _HEADER
    if ours:
        path.unlink()


def _load(payload: bytes, lowered: jax.stages.Lowered | None) -> Callable:
    executable, trees = pickle.loads(payload)
    _register_lapack()
    if lowered is not None:
        trees = lowered.in_tree, lowered.out_tree
    return serialize_executable.deserialize_and_load(executable, *trees)


@functools.cache
def _register_lapack() -> None:
    """Register LAPACK for programs that come from disk, as lowering a factorisation does."""
    try:
        from jaxlib import lapack

        lapack.prepare_lapack_call("potrf_ffi", np.float64)
    except (ImportError, AttributeError):  # no public name; lowering takes 0.2 s
        one: Any = np.eye(1)
        jax.jit(jax.lax.linalg.cholesky).lower(one)
