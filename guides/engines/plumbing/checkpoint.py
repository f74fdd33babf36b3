"""Checkpoints of long runs, so that they survive being killed; each is written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sidebayes.common.files import as_path, no_folder, stale_parts, write_whole
from sidebayes.common.magnitudes import shown
from sidebayes.common.warnings import warn_user

from ..base import Engine, Keeper, Problem
from .identity import NamelessError, digest, freeze, structure, written

fcntl: types.ModuleType | None
try:
    import fcntl
except ImportError:  # not a POSIX system, where nothing is locked
    fcntl = None

__all__ = ["Checkpoint", "check_checkpoint", "keeping", "read_state", "write_state"]

_MAGIC = b"sidebayes checkpoint 1\n"
_MOST_ROWS = 10_000
"""Number of rows of an array on disk by which data sets are distinguished."""


def check_checkpoint(path: Any) -> str:
    """Return the path of a checkpoint as text, if a run may write there.

    Raises
    ------
    TypeError, ValueError
        If it is no path, its folder is missing, or it holds something other than a checkpoint.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"checkpoint = {shown(path)}; expected the path of a file")
    try:
        file = as_path(path)
        if file.is_dir():
            raise ValueError("it is a folder; name a file in it")
        if not file.parent.is_dir():
            raise no_folder(file.parent)
        _refuse_foreign(file)
    except ValueError as error:
        raise ValueError(f"checkpoint = {shown(os.fspath(path))}: {error}") from None
    return os.fspath(path)


class Checkpoint(Keeper):
    """Keeps the latest state of one run in a file, and the previous one beside it.

    Parameters
    ----------
    path : Path
    every : float
        Minimum number of seconds between two writes.
    identity : str
        Identifies the run; a file of another run is refused.

    Raises
    ------
    ValueError
        If the path, or that of the previous state, belongs to a file that no run wrote.
    """

    def __init__(self, path: Path, every: float, identity: str) -> None:
        self._path, self._every, self._identity = path, every, identity
        self._written = time.monotonic()
        self._parts: list[Checkpoint] = []
        self._warned: list[Exception] = []
        _refuse_foreign(path)

    def part(self, number: int) -> Checkpoint:
        """Return the keeper of one part of the run, in a file of its own beside the others."""
        path = self._path.with_name(f"{self._path.name}.{number}")
        self._parts.append(Checkpoint(path, self._every, self._identity))
        self._parts[-1]._warned = self._warned
        return self._parts[-1]

    def restore(self, state: Any) -> Any:
        """Return the latest state on disk, in the structure of `state`; `state` itself if there is none.

        Raises
        ------
        ValueError
            If the file belongs to another run.
        """
        found = read_state(self._path, state, self._identity)
        return state if found is None else found

    def offer(self, state: Any, *, now: bool = False) -> None:
        """Write the state if the last write is long enough ago, or in any case if `now` is true.

        If it cannot be written, the run goes on, after a single warning.
        """
        if now or time.monotonic() - self._written >= self._every:
            try:
                write_state(self._path, state, self._identity)
            except (OSError, ValueError) as error:
                self._tell(error)
            self._written = time.monotonic()

    def _tell(self, error: Exception) -> None:
        if not self._warned:
            self._warned.append(error)
            warn_user(
                f"no checkpoint is kept: {error}. The run goes on, and starts anew if it is interrupted"
            )

    def clear(self) -> None:
        """Remove the files of a run that has ended."""
        for path in (self._path, _previous(self._path), *stale_parts(self._path)):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        for part in self._parts:
            part.clear()


@contextmanager
def keeping(
    checkpoint: str, every: float, engine: Engine, problem: Problem, seed: int, init: Any
) -> Iterator[Checkpoint]:
    """Keep the state of an engine's run in a file.

    A run is identified by engine, model, data, seed and starting values. The files are removed when the
    block ends without an exception. While it lasts, they are locked against other runs.

    Parameters
    ----------
    checkpoint : str
        Path of the file.
    every : float
        Minimum number of seconds between two writes.
    engine : Engine
    problem : Problem
    seed : int
    init : mapping, sequence of mappings or None

    Yields
    ------
    Checkpoint

    Raises
    ------
    ValueError
        If the file is no checkpoint, belongs to another run, or is in use by another run; or if part of
        this run has no name that means the same in another process.
    """
    init = getattr(init, "params", init)
    given = freeze((engine, tuple(map(_sampled, problem.args)), seed, init))
    try:
        identity = digest(written((structure(problem), given), own_code=True))
    except NamelessError as unknown:
        raise ValueError(
            f"checkpoint = {checkpoint!r}: another process could not recognise this run, "
            f"for {unknown} has no name there; use functions and data classes in the model's options, "
            "or leave checkpoint out"
        ) from None
    with _alone(Path(checkpoint)):
        keeper = Checkpoint(Path(checkpoint), every, identity)
        yield keeper
        keeper.clear()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock beside a checkpoint; the system frees it however the process ends."""
    handle = None
    if fcntl is not None:
        lock = path.with_name(f".{path.name}.sidebayes-lock")
        try:
            handle = _lock(lock)
        except BlockingIOError:
            raise ValueError(
                f"another run is using the checkpoint {path}; wait until it has ended, or name another "
                "file"
            ) from None
        except OSError:  # the folder is not writable, which is reported later, or cannot be locked
            pass
    try:
        yield
    finally:
        if handle is not None:
            with suppress(OSError):
                lock.unlink()
            os.close(handle)


def _lock(path: Path) -> int:
    """Lock a file, which is created if it is missing."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[union-attr]
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the process that held it has just removed it


def write_state(path: Path, state: Any, identity: str) -> None:
    """Write a pytree of arrays, whole or not at all; the previous file becomes ``path.previous``.

    Parameters
    ----------
    path : Path
    state : pytree of arrays
    identity : str
    """
    arrays = {f"leaf_{n}": _bare(leaf) for n, leaf in enumerate(jax.tree.leaves(state))}
    buffer = io.BytesIO()
    np.savez(buffer, identity=np.asarray(identity), **arrays)  # type: ignore[arg-type]
    body = buffer.getvalue()
    content = _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    write_whole(path, content, aside=_previous(path))


def read_state(path: Path, like: Any, identity: str) -> Any | None:
    """Read the file of `write_state`, or the previous one if that is damaged.

    Parameters
    ----------
    path : Path
    like : pytree of arrays
        Has the structure that is read.
    identity : str

    Returns
    -------
    pytree of arrays, or None
        None if there is no intact file.

    Raises
    ------
    ValueError
        If the file belongs to another run.
    """
    for candidate in (path, _previous(path)):
        if not candidate.is_file():
            continue
        arrays = _parse(candidate.read_bytes())
        if arrays is None:
            warn_user(
                f"checkpoint {candidate} is damaged; going back to the one before, or to the start"
            )
            continue
        leaves, tree = jax.tree.flatten(like)
        if str(arrays["identity"]) != identity or len(arrays) != len(leaves) + 1:
            raise ValueError(
                f"checkpoint {candidate} is of another run: data, links, model, options, engine, seed or "
                "init differ; delete it, or name another file"
            )
        read = [_dressed(arrays[f"leaf_{n}"], leaf) for n, leaf in enumerate(leaves)]
        return jax.tree.unflatten(tree, read)
    return None


def _previous(path: Path) -> Path:
    return path.with_name(path.name + ".previous")


def _refuse_foreign(path: Path) -> None:
    """Refuse a path with files that no run wrote, since a run overwrites and removes the files there."""
    for candidate in (path, _previous(path)):
        if not candidate.exists():
            continue
        ours = candidate.is_file()
        if ours:
            with candidate.open("rb") as file:
                begin = file.read(len(_MAGIC))
            ours = begin in (b"", _MAGIC)
        if not ours:
            raise ValueError(
                f"checkpoint {candidate} is no file that a run has written, and a run would overwrite "
                "and remove it; name another file"
            )


def _parse(content: bytes) -> dict[str, np.ndarray] | None:
    """Return the arrays of a file; None if it is not whole."""
    head, body = content[: len(_MAGIC) + 65], content[len(_MAGIC) + 65 :]
    if head != _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n":
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as stored:
        return dict(stored)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _bare(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _dressed(array: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=jax.random.key_impl(like))
    return jax.numpy.asarray(array) if isinstance(like, jax.Array) else array


def _sampled(value: Any) -> Any:
    """Return some rows of an array on disk, which distinguish data sets, and any other value as it is."""
    if not isinstance(value, np.memmap):
        return value
    rows = np.linspace(0, len(value) - 1, min(len(value), _MOST_ROWS)).astype(int)
    return value.shape, np.asarray(value[rows])
