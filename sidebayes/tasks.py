"""Independent tasks, one after another here or side by side where joblib is told to run them."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import threading
import warnings
from collections.abc import Buffer, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import cloudpickle
import jax
import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from joblib.parallel import MultiprocessingBackend, get_active_backend
from numpy.typing import NDArray

from sidebayes.guides.engines.plumbing.identity import is_known
from sidebayes.guides.engines.plumbing.progress import progress_bar

from .common.fields import check_integer
from .common.magnitudes import shown

__all__ = ["Task", "run_tasks"]

_LARGE = 2**20
"""Bytes from which on joblib maps an array rather than send it."""
_MOST_JOBS = 2**15
"""More than any machine or cluster has workers."""

_made: WeakValueDictionary[bytes, Any] = WeakValueDictionary()
"""What was unpickled of the user's code, by the digest of its pickle; compiled programs keep it alive."""
_making = threading.Lock()


class Task(NamedTuple):
    """One of several independent tasks.

    Attributes
    ----------
    name : str
        In a few words, for the progress bar and for errors.
    given : object
        What belongs to this task alone, such as a seed.
    """

    name: str
    given: Any


def run_tasks(
    function: Callable[[Any, Any], Any],
    tasks: Iterable[Task],
    shared: Any = None,
    *,
    n_jobs: int | None,
    title: str,
    total: int | None = None,
    progress: bool = True,
) -> Generator[Any]:
    """Run independent tasks, and yield their results in order, one by one.

    With more than one job, or under ``joblib.parallel_config``, joblib's workers run them: its own
    processes, or those of Dask or Ray. What all tasks share is pickled once. Functions, classes
    and callable objects of the user are made once per process, as programs are compiled for each
    of them. Large arrays reach processes of this machine as memory maps; arrays that
    are mapped already are opened again by their path, and arrays on a device travel as NumPy
    arrays. Workers in other processes use one thread each and the program cache of their user.

    Parameters
    ----------
    function : callable
        ``function(shared, given)``. It sets the precision of JAX itself, and may not change what it is given.
    tasks : iterable of Task
        Read only as far ahead as there are workers.
    shared : object
    n_jobs : int or None
        As in joblib: None is one, or what ``joblib.parallel_config`` sets; -1 is all processors.
    title : str
        Of the progress bar.
    total : int, optional
        Number of tasks, if it is known.
    progress : bool

    Yields
    ------
    object
        What the function returned.

    Raises
    ------
    ValueError
        If `n_jobs` is no number of workers, or joblib was told to fork this process.
    TypeError
        If what a task needs cannot be pickled; it names the function that holds it.
    Exception
        Of the function, with a note that names the task. Warnings of workers are given here.
    """
    if n_jobs is not None:
        most = _MOST_JOBS if total is None else max(total, 1)
        n_jobs = min(_workers(n_jobs), most)
    # joblib would do the tasks of a single worker here too, whatever the backend
    done = _here if effective_n_jobs(n_jobs) == 1 else partial(_away, n_jobs=n_jobs)
    with progress_bar(title, total, shown=progress) as advance:
        for name, result in done(function, tasks, shared, title):
            advance(1, name)
            yield result


def _workers(n_jobs: Any) -> int:
    """Check a number of workers, which counts backwards from all processors where it is negative."""
    try:
        number = check_integer("n_jobs", n_jobs, -_MOST_JOBS, _MOST_JOBS)
    except ValueError:
        number = 0
    if not number:
        raise ValueError(
            f"n_jobs = {shown(n_jobs)}; give the number of workers, -1 for one per processor, or None"
        )
    return number


def _here(
    function: Callable[[Any, Any], Any], tasks: Iterable[Task], shared: Any, title: str
) -> Iterator[tuple[str, Any]]:
    for task in tasks:
        yield task.name, _named(function, task, shared, title)


def _named(function: Callable[[Any, Any], Any], task: Task, shared: Any, title: str) -> Any:
    try:
        return function(shared, task.given)
    except Exception as error:
        error.add_note(f"{title}: {task.name}")
        raise


def _away(
    function: Callable[[Any, Any], Any],
    tasks: Iterable[Task],
    shared: Any,
    title: str,
    n_jobs: int | None,
) -> Iterator[tuple[str, Any]]:
    backend, _ = get_active_backend()
    if type(backend) is MultiprocessingBackend:  # Ray's is derived from it
        raise ValueError(
            'joblib\'s backend "multiprocessing" forks this process, in which JAX has run, and so cannot be '
            'used; take "loky", "threading", "dask" or "ray" in joblib.parallel_config'
        )
    common = _packed((function, shared, title))
    calls = (delayed(_work)(_process(), _packed(task), *common) for task in tasks)
    if not backend.supports_return_generator:
        yield from map(_told, Parallel(n_jobs=n_jobs)(calls))
        return
    results = Parallel(n_jobs=n_jobs, return_as="generator")(calls)
    try:
        yield from map(_told, results)
    finally:
        with warnings.catch_warnings():  # who takes no more results wants no more
            warnings.filterwarnings("ignore", ".*processed by the workers have been cancelled")
            results.close()


def _told(found: tuple[str, Any, list | None]) -> tuple[str, Any]:
    """Name and result of a task, whose warnings are given here."""
    name, result, told = found
    if told is None:
        return name, result
    for category, text, file, line in told:
        warnings.warn_explicit(text, category, file, line)
    return name, _unpacked(result)


def _work(
    home: tuple[str, int], packed: list[NDArray], *common: NDArray
) -> tuple[str, Any, list | None]:
    """Do one task; its name and what it gave; in another process packed, with the warnings of it."""
    is_away = home != _process()
    if is_away:
        os.environ["NPROC"] = "1"  # read by XLA when it starts, and by the library
    task, (function, shared, title) = _unpacked(packed), _unpacked(common)
    if not is_away:  # a thread of the user's own process, whose settings and warnings are his
        return task.name, _named(function, task, shared, title), None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            result = _named(function, task, shared, title)
        except Exception as error:
            raise _portable(error) from None
    told = [(one.category, str(one.message), one.filename, one.lineno) for one in caught]
    return task.name, _packed(result, "the results"), told


def _process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _portable(error: Exception) -> Exception:
    """An error that another process can read."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever it holds
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__notes__ = [*getattr(error, "__notes__", ())]
        return told
    return error


class _Pickler(cloudpickle.Pickler):
    """Pickles functions of the user too; mapped arrays by their path, those of a device by their values.

    Attributes
    ----------
    functions : list of function
        Those met, in order.
    """

    def __init__(
        self, file: BytesIO, within: list[FunctionType] | None = None, **settings: Any
    ) -> None:
        super().__init__(file, protocol=5, **settings)
        self.functions = [] if within is None else within
        self._is_within = within is not None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            self.functions.append(value)
        if not self._is_within and _is_own_code(value):
            file = BytesIO()
            _Pickler(file, self.functions).dump(value)
            code = file.getvalue()
            return _once, (hashlib.sha256(code).digest(), pickle.PickleBuffer(code))
        if isinstance(value, jax.Array) and not jax.dtypes.issubdtype(
            value.dtype, jax.dtypes.prng_key
        ):
            return np.asarray, (np.asarray(value),)
        if isinstance(value, np.memmap) and value.flags.c_contiguous and value.filename:
            return _mapped, _place(value)
        return super().reducer_override(value)


def _is_own_code(value: Any) -> bool:
    """Whether a value is code of the user, which is the same to a program only if it is the same object."""
    kind = value if isinstance(value, type | FunctionType) else type(value)
    return callable(value) and not is_known(kind)


def _once(digest: bytes, code: Buffer) -> Any:
    """Unpickle code of the user, or return what this process made of the same pickle before."""
    with _making:
        found = _made.get(digest)
        if found is None:
            found = pickle.loads(code)
            with suppress(TypeError):  # objects with slots
                _made[digest] = found
        return found


def _place(table: np.memmap) -> tuple[str, np.dtype, int, tuple[int, ...]]:
    """Where a mapped array, or a part of it in one piece, lies in its file."""
    whole = table
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    begin = table.ctypes.data - whole.ctypes.data
    return str(table.filename), table.dtype, whole.offset + begin, table.shape


def _mapped(path: str, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> np.memmap:
    return np.memmap(path, dtype, "r", offset, shape)


def _packed(value: Any, name: str = "the arguments") -> list[NDArray[np.uint8]]:
    """A pickle and the arrays it refers to, as arrays of bytes: joblib maps and shares large ones."""
    buffers: list[memoryview] = []

    def stays_inside(found: pickle.PickleBuffer) -> bool:
        raw = found.raw()
        if raw.nbytes >= _LARGE:
            buffers.append(raw)
        return raw.nbytes < _LARGE

    file = BytesIO()
    pickler = _Pickler(file, buffer_callback=stays_inside)
    try:
        pickler.dump(value)
    except Exception as error:  # of whatever object, by its own way to be pickled
        within = [one.__name__ for one in reversed(pickler.functions) if not _is_portable(one)]
        what = f"the function {within[0]!r} uses" if within else f"{name} hold"
        raise TypeError(
            f"n_jobs sends the tasks to other processes, and {what} what cannot be sent: {error}. Leave "
            "n_jobs and joblib.parallel_config out, or make that object inside the function"
        ) from error
    whole: list[Buffer] = [file.getvalue(), *buffers]
    return [np.frombuffer(one, np.uint8) for one in whole]


def _is_portable(function: FunctionType) -> bool:
    try:
        cloudpickle.dumps(function)
    except Exception:  # of whatever object it uses
        return False
    return True


def _unpacked(packed: Iterable[NDArray[np.uint8]]) -> Any:
    first, *buffers = packed
    return pickle.loads(first, buffers=buffers)
