"""Arrays as users give them: numbers, names and rows, checked and read as NumPy's."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .columns import of_times
from .magnitudes import shown

__all__ = [
    "chosen_rows",
    "given_array",
    "is_traced",
    "name_array",
    "no_array",
    "plain_array",
    "point_table",
    "real_array",
    "refuse_gaps",
    "refuse_unwritable",
]


def is_traced(value: Any) -> bool:
    """Whether a value, or one of a list, is sampled or computed by a model, so that no number is known yet.

    JAX is not imported for it: where it was not, there are no such values.
    """
    jax = sys.modules.get("jax")
    each = value if isinstance(value, list | tuple) else (value,)
    return jax is not None and any(isinstance(one, jax.core.Tracer) for one in each)


def real_array(name: str, values: Any) -> NDArray[np.float64]:
    """Real numbers as an array of floats.

    Raises
    ------
    TypeError
        For text, complex numbers, rows of different lengths and other things, and for what a model samples
        or computes.
    ValueError
        If entries are masked.
    """
    if is_traced(values):
        raise TypeError(
            f"{name} is a value that the model samples or computes, or of an option annotated Held(), and "
            "has to be known before; pass numbers, or leave Held() out of the annotation"
        )
    found = plain_array(name, values)
    text = found.dtype == object and any(isinstance(one, str | bytes) for one in found.flat)
    if found.dtype.kind in "fiubO" and not text:
        with suppress(TypeError, ValueError, OverflowError):
            return found.astype(float)
    if said := of_times(found, name):
        raise TypeError(said)
    given = found.tolist() if isinstance(values, _PANDAS) else values
    raise TypeError(f"{name} = {shown(given)}; expected real numbers")


def given_array(name: str, values: Any) -> Any:
    """Real numbers as an array of floats, or as an array of JAX what a model samples or computes.

    Of the latter neither type nor range can be checked. Else see `real_array`.
    """
    if is_traced(values):
        return sys.modules["jax.numpy"].asarray(values, float)
    return real_array(name, values)


def point_table(name: str, values: Any) -> NDArray[np.float64]:
    """Finite numbers of shape (points, features), some of both; see `real_array` and `refuse_gaps`."""
    found = real_array(name, values)
    if found.ndim != 2 or not found.size:
        raise ValueError(
            f"{name} has shape {found.shape}; expected (points, features), at least one of both"
        )
    refuse_gaps(name, found)
    return found


def refuse_gaps(
    name: str,
    values: NDArray,
    advice: str = "drop such rows, or fill them",
    *,
    infinite: bool = False,
) -> None:
    """Refuse numbers that are missing or infinite.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    values : ndarray of float
    advice : str
        What to do about them.
    infinite : bool
        Whether infinite numbers may be among them.

    Raises
    ------
    ValueError
        Naming the place of the first one, and how many there are.
    """
    gaps = np.isnan(values) if infinite else ~np.isfinite(values)
    if gaps.any():
        where = tuple(map(int, np.argwhere(gaps)[0]))
        what = "missing" if infinite else "missing or infinite"
        raise ValueError(
            f"{name}{list(where)} = {values[where]}, the first of {gaps.sum()} numbers that are {what}; "
            f"{advice}"
        )


_PANDAS = (pd.DataFrame, pd.Series, pd.Index, pd.api.extensions.ExtensionArray)


def plain_array(name: str, values: Any) -> NDArray:
    """Values as an array, of which nothing is masked; numbers of pandas that are nullable as NumPy's.

    Raises
    ------
    TypeError
        If rows are of different lengths, or it is a set, an iterator or a sparse matrix.
    ValueError
        If entries are masked.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        where = tuple(map(int, np.argwhere(np.ma.getmaskarray(values))[0]))
        raise ValueError(f"{name} is masked at {where}; drop what is masked, or fill it")
    try:
        found = np.asarray(values)
    except ValueError:
        raise TypeError(f"{name} = {shown(values)}; expected rows of one length") from None
    if found.shape == () and found.dtype == object and isinstance(values, Iterable):
        raise no_array(name, values)
    if found.dtype == object and isinstance(values, _PANDAS):
        return pd.Series(found.ravel()).infer_objects().to_numpy().reshape(found.shape)
    return found


def no_array(name: str, values: Any) -> TypeError:
    """Refusal of sets, iterators, sparse matrices and the like, of which NumPy makes a single object."""
    remedy = f"list({name})" if isinstance(values, Iterable) else "an array"
    remedy = f"{name}.toarray()" if hasattr(values, "toarray") else remedy
    return TypeError(f"{name} is a {type(values).__name__}, which is no array; pass {remedy}")


def name_array(name: str, values: Any) -> NDArray:
    """Names or numbers as an array; those in a list stay apart, where NumPy would make text of all.

    Raises
    ------
    TypeError, ValueError
        See `plain_array`.
    """
    found = plain_array(name, values)
    if found.shape == () and found.dtype == object and values is not None:
        raise no_array(name, values)
    if found.dtype.kind in "SU" and not hasattr(values, "dtype"):
        return np.asarray(values, object)
    return found


def chosen_rows(name: str, rows: Any, size: int) -> NDArray[np.int64]:
    """Numbers of the rows that are chosen among `size`.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    rows : array_like of int or bool, or slice
        Row numbers from 0 on, or a mask over all rows.
    size : int

    Raises
    ------
    ValueError
        For everything else, a mask of another length, and numbers out of range, negative ones among them.
    """
    found = rows if isinstance(rows, slice) else plain_array(name, rows)
    if isinstance(found, np.ndarray) and not found.size:
        found = found.astype(int)
    backward = isinstance(found, np.ndarray) and found.dtype.kind in "if" and (found < 0).any()
    with suppress(IndexError, TypeError):
        places = np.arange(size)[found]
        if places.ndim == 1 and not backward:
            return places
    raise ValueError(
        f"{name} = {shown(rows)}; expected row numbers from 0 on and below {size}, or a mask over all "
        f"{size} rows"
    )


def refuse_unwritable(name: str, values: Iterable[str]) -> None:
    """Refuse text that files cannot hold: with a null character, or with half a surrogate pair.

    Raises
    ------
    ValueError
        Naming the first such text.
    """
    for value in values:
        if "\0" in value or any("\ud800" <= one <= "\udfff" for one in value):
            raise ValueError(
                f"{name} holds {shown(str(value))}, with a character that files cannot hold; replace it"
            )
