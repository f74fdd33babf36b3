"""The library's own warning, and how it is given."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec

__all__ = ["SideBayesWarning", "told_once", "warn_user"]

_OTHERS = "jax", "numpyro"
"""Libraries that call this one's code from within its own calls."""


class SideBayesWarning(UserWarning):
    """Something a user should know about data or a result."""


def warn_user(message: str) -> None:
    """Give a `SideBayesWarning` that names the line of the user's own code, however deep it is found."""
    warnings.warn(message, SideBayesWarning, skip_file_prefixes=_folders())


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Give the warnings of many fits at the end; of those that differ only in numbers, give the first."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SideBayesWarning)
            yield
    finally:
        first: dict[str, warnings.WarningMessage] = {}
        for one in caught:
            first.setdefault(re.sub(r"[\d.]+", "", str(one.message)), one)
        for one in first.values():
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@functools.cache
def _folders() -> tuple[str, ...]:
    """Folders whose lines are not the user's."""
    found: list[str] = []
    for name in (
        "sidebayes",
        "sidebayes.models",
        "sidebayes.guides",
        "sidebayes.diagnostics",
        *_OTHERS,
    ):
        spec = find_spec(name)
        if spec is not None:
            found += [folder + os.sep for folder in spec.submodule_search_locations or ()]
    # of properties computed once, and of blocks that are entered; a whole name is no prefix of itself
    found += [str(made.__file__).removesuffix("py") for made in (functools, contextlib)]
    return tuple(found)
