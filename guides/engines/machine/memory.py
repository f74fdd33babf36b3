"""Refuses programs that need more memory than the machine has, before they run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp

from ..base import FitError

__all__ = [
    "check_program",
    "machine_memory",
    "maps_in_use",
    "most_within",
    "program_memory",
    "refuse_beyond_memory",
]

_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""File in which Linux states how much memory a container may use."""


_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")

_needs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def machine_memory() -> int | None:
    """Return the bytes of memory of the machine or the container, or of the accelerator where there is one.

    The result is None where the system does not state it.
    """
    if jax.default_backend() != "cpu":
        return (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    found = None
    with suppress(AttributeError, OSError, ValueError):  # systems other than POSIX
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        limit = int(_LIMIT.read_text())
        return limit if found is None else min(found, limit)
    return found


def most_within(share: float, wanted: int, each: int) -> int:
    """Return how many of the `wanted` items, of `each` bytes, fit into a share of the memory."""
    have = machine_memory()
    return wanted if have is None else min(wanted, int(share * have) // max(each, 1))


def maps_in_use() -> float:
    """Return the share of this process's memory maps that is in use on Linux; zero on other systems.

    Each compiled program takes 30 to 1,400 of some 65,000 maps, and a process that has none left dies.
    """
    with suppress(OSError, ValueError):
        return _MAPS.read_bytes().count(b"\n") / int(_MOST_MAPS.read_text())
    return 0.0


def refuse_beyond_memory(what: str, need: int, sites: Mapping[str, Any]) -> None:
    """Refuse a task that needs more memory than there is.

    Parameters
    ----------
    what : str
    need : int
        Memory needed, in bytes.
    sites : mapping of str to site
        Sites of the model; the message names the largest latent one.

    Raises
    ------
    FitError
        The message states what is needed and what there is.
    """
    have = machine_memory()
    if have is None or need <= have:
        return
    shapes = {
        name: jnp.shape(site["value"])
        for name, site in sites.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    largest = max(shapes, key=lambda name: math.prod(shapes[name]), default=None)
    most = f"; most of it is for {largest!r} of shape {shapes[largest]}" if largest else ""
    raise FitError(
        f"{what} needs {need / 1e9:.3g} GB of memory, and the machine has {have / 1e9:.3g} GB{most}. "
        "Give Gaussians covariance='diagonal', reduce the features, or run fewer restarts, chains or "
        "draws at once"
    )


def program_memory(program: Any) -> int:
    """Return the bytes that a compiled program needs while it runs; 0 where they are not known."""
    if program not in _needs:  # the query takes as long as some programs run
        found = program.memory_analysis()
        _needs[program] = (
            0
            if found is None
            else (
                found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
            )
        )
    return _needs[program]


def check_program(name: str, program: Any, sites: Mapping[str, Any]) -> None:
    """Refuse a compiled program that needs more memory than there is; see `refuse_beyond_memory`."""
    refuse_beyond_memory(f"the program {name!r}", program_memory(program), sites)
