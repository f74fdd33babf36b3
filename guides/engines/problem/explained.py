"""Errors of a model that fails in JAX or NumPy, in words for whoever wrote the model."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from sidebayes.common.magnitudes import shown

__all__ = [
    "IntegersNeededError",
    "explaining_integers",
    "explaining_numbers",
    "naming_site",
    "naming_text",
]

_ELSEWHERE = tuple({*map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))})
"""Folders of code that is not the user's."""


class IntegersNeededError(TypeError):
    """A model uses floats as indices."""


@contextmanager
def explaining_numbers() -> Iterator[None]:
    """Explain errors of JAX where a model takes sampled values for numbers of Python, or sizes differ."""
    try:
        with explaining_integers():
            yield
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise TypeError(
            f"{_own_line(error)}, needs a number, and neither sampled values nor data have one yet while a "
            "program is compiled: choose by jnp.where or jax.lax.cond instead of if and while, and compute "
            "with jax.numpy instead of numpy and math. What depends on data alone can be computed before the "
            "fit and passed as an option"
        ) from error
    except jax.errors.UnexpectedTracerError as error:
        raise TypeError(
            "the model uses an array of JAX that was made in another run of it, and kept in a cache or a "
            "global variable; keep NumPy arrays there"
        ) from error
    except (TypeError, ValueError) as error:
        if "ncompatible shapes" not in str(error):
            raise
        raise ValueError(
            f"{_own_line(error)}: {_first_line(error)}; the sizes of plates, distributions and data must "
            "agree there"
        ) from error


def _own_line(error: Exception) -> str:
    """Name the last line of the user's code that led to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((f for f in reversed(frames) if not f.filename.startswith(_ELSEWHERE)), frames[-1])
    return f"line {own.lineno} of {Path(own.filename).name}, {own.line!r}"


@contextmanager
def explaining_integers() -> Iterator[None]:
    """Explain errors of JAX where a model takes floats or truth values for integers, or numbers for truth."""
    try:
        yield
    except (TypeError, IndexError, ValueError) as error:
        said, where = _first_line(error), f"{_own_line(error)}: {_first_line(error)}"
        if "oolean ind" in said:
            raise TypeError(
                f"{where}; an index of truth values picks as many rows as are true, and sizes have to be "
                "known while a program is compiled: compute with all rows and choose by jnp.where, or look "
                "up by integers, values.astype(int)"
            ) from error
        if "not accept dtype bool" in said:
            raise TypeError(
                f"{where}; truth values are no numbers there: pass values.astype(float), or compute with "
                "~, & and |"
            ) from error
        if said.startswith("not does not accept") or "should be a bool array" in said:
            raise TypeError(
                f"{where}; pass truth values there, values.astype(bool), also in place of the integers 0 "
                "and 1"
            ) from error
        if isinstance(error, ValueError) or "integer" not in said or "float" not in said:
            raise
        raise IntegersNeededError(
            f"the model needs integers where it is given floats ({said}): pass data that are "
            "categories, indices or numbers of trials as integers, such as values.astype(int)"
        ) from error


@contextmanager
def naming_site(site: str) -> Iterator[None]:
    """Name the site whose distribution refuses its parameters."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"site {site!r}: {error}") from error


@contextmanager
def naming_text(options: Mapping[str, Any]) -> Iterator[None]:
    """Name the options that are text, where NumPy fails to compute with text."""
    try:
        yield
    except TypeError as error:
        text = {n: v for n, v in options.items() if isinstance(v, str)}
        if not text or "UFunc" not in type(error).__name__:
            raise
        named = ", ".join(f"{name} = {shown(value)}" for name, value in text.items())
        raise TypeError(
            f"the model computes with text where it needs numbers; of its options {named} is text: "
            "pass a number"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
