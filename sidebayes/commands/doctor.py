"""Report on the installation: versions, devices, cache and a small fit."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import NamedTuple

from packaging.requirements import Requirement

__all__ = ["Finding", "examine"]

_FOR_DEVELOPERS = ("dev", "peers", "test")


class Finding(NamedTuple):
    """One line of the report: what was looked at, what was found, and whether that is well."""

    subject: str
    found: str
    is_well: bool = True


def examine() -> Iterator[Finding]:
    """Look at versions, optional extras, devices, the cache folder, and a small fit."""
    yield Finding("sidebayes", f"{version('sidebayes')}, Python {platform.python_version()}")
    yield Finding("system", f"{platform.platform()}, {os.cpu_count()} cores")
    yield from _packages()
    try:
        import jax

        yield Finding("devices", ", ".join(map(str, jax.devices())))
    except Exception as error:  # of drivers, of many kinds
        yield Finding("devices", _in_a_line(error), False)
    yield _cache()
    yield _fit()


def _packages() -> Iterator[Finding]:
    """Dependencies with their versions, then the optional extras."""
    for text in requires("sidebayes") or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            yield _package(requirement)
    for text in requires("sidebayes") or ():
        requirement = Requirement(text)
        extra = _extra_of(requirement)
        if extra and extra not in _FOR_DEVELOPERS:
            one = _package(requirement)
            remedy = "" if one.is_well else f"; pip install 'sidebayes[{extra}]'"
            yield Finding(f"{one.subject} (optional)", one.found + remedy)


def _extra_of(requirement: Requirement) -> str:
    """Name of the extra that a requirement belongs to; empty for none."""
    text = str(requirement.marker or "")
    return text.partition("extra ==")[2].strip().strip("\"'")


def _package(requirement: Requirement) -> Finding:
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return Finding(requirement.name, "not installed", False)
    if requirement.specifier.contains(found, prereleases=True):
        return Finding(requirement.name, found)
    return Finding(requirement.name, f"{found}, and {requirement.specifier} is needed", False)


def _cache() -> Finding:
    """The folder of compiled programs, and its size."""
    from sidebayes.cache import cache_folder, is_private

    folder = cache_folder()
    if folder is None:
        return Finding("cache", "off: every new process compiles anew (SIDEBAYES_CACHE)")
    if not is_private(folder):
        return Finding(
            "cache", f"{folder} is not used: others may write there; make it yours alone", False
        )
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    return Finding("cache", f"{folder}, {len(files)} files, {size:.0f} MiB")


def _fit() -> Finding:
    """A small fit by the first card."""
    try:
        import sidebayes

        card, data = next(iter(sidebayes.CARDS)), sidebayes.load_dataset("iris")
        began = time.perf_counter()
        found = sidebayes.fit(card, data.x, num_clusters=2, progress=False)
        seconds = time.perf_counter() - began
    except Exception as error:  # whatever is broken here
        return Finding("a small fit", _in_a_line(error), False)
    level, _ = found.verdict
    told = f"{card} of {data.name} by {found.engine} took {seconds:.1f} s, verdict {level!r}"
    return Finding("a small fit", told, level != "bad")


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
