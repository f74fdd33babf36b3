"""Options of a model as text, so that a saved fit can be rebuilt.

Text names classes only by short names, and reading looks them up in a closed registry: the data
classes listed here, and the distributions, transforms and constraints of NumPyro. Nothing that a file
names is imported or called.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints, transforms
from numpyro.distributions.util import lazy_property

from sidebayes.guides.engines.given import GivenDraws

from .zoo import ENGINES

__all__ = ["dump", "parse", "remedy"]

_CLASSES = (
    *(path.partition(":")[2] for path in ENGINES.values()),
    "Anchors",
    "BeliefPropagation",
    "DirectionalPrior",
    "EffectsPrior",
    "Exact",
    "GaussianPrior",
    "GibbsLabels",
    "Groups",
    "HazardPrior",
    "Links",
    "LowRankPrior",
    "MeanField",
    "PartialLabels",
    "ShiftPrior",
    "SourceMixture",
)
"""Public names of the data classes that a file may hold."""

_NUMPYRO: dict[str, tuple[Any, type]] = {
    "distribution": (dist, dist.Distribution),
    "transform": (transforms, transforms.Transform),
    "constraint": (constraints, constraints.Constraint),
}
"""Kind to the module that defines it, and what all of the kind derive from."""

_KEPT_AS = {"base_distribution": "base_dist", "transform": "_inv"}
"""Arguments of NumPyro's constructors that are kept under another name."""

_CHOSEN = dict.fromkeys(("Wishart", "InverseWishart"), ("concentration", "scale_tril"))
"""Arguments to write where a class keeps none of them itself."""

_ARRAYS = "biufU"
"""Kinds of arrays that a file may hold: truth values, numbers and text."""

_ADVICE = (
    "load a file that Fit.save wrote in this version, or read arrays with xarray.open_datatree"
)


class _Foreign(Exception):
    """A value that text cannot hold; the message names it."""


def dump(options: Mapping[str, Any]) -> str:
    """Write options as JSON; of what cannot be rebuilt (a function, say) only the name is written."""
    return json.dumps({name: _entry(value) for name, value in options.items()})


def parse(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read what `dump` wrote.

    Returns
    -------
    options : dict
    lost : dict of str to str
        Options that the text does not hold, and what they were.

    Raises
    ------
    ValueError
        If the text asks for anything that `dump` does not write.
    """
    stored = json.loads(text)
    if not isinstance(stored, dict):
        raise ValueError(f"the file names no options, but holds {text[:200]}; {_ADVICE}")
    options, lost = {}, {}
    for name, value in stored.items():
        if isinstance(value, dict) and value.keys() == {"lost"}:
            lost[name] = str(value["lost"])
        else:
            options[name] = _decode(value)
    return options, lost


def remedy(method: str, lost: Mapping[str, str], *, own_model: bool) -> str:
    """Say what the file of a fit does not hold, and how to give it again."""
    missing = ["the model"] * own_model + [f"{n} (it was {was})" for n, was in lost.items()]
    given = ["model=your_model"] * own_model + [f"{n}=..." for n in lost]
    return (
        f"{method!r} cannot be rebuilt from its file, which does not hold {' and '.join(missing)}; "
        f"load the fit with sidebayes.load(path, {', '.join(given)})"
    )


def _entry(value: Any) -> Any:
    name = type(value).__qualname__
    try:
        record = _encode(value)
        if _same(value, _decode(record)):
            return record
    except _Foreign as error:
        name = str(error)
    except Exception:  # of a class that does not keep what it was given; no reason to lose a fit
        pass
    return {"lost": name}


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, np.ndarray | jax.Array):
        return _encode_array(value)
    if type(value) is list:
        return [_encode(item) for item in value]
    if type(value) is tuple:
        return {"tuple": [_encode(item) for item in value]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(item) for name, item in value.items()}}
    for kind, (_, base) in _NUMPYRO.items():
        if isinstance(value, base):
            return _encode_object(kind, value, _arguments(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {n: getattr(value, n) for n in _fields(type(value))}
        return _encode_object("class", value, fields)
    raise _Foreign(getattr(value, "__qualname__", type(value).__qualname__))


def _encode_array(value: Any) -> dict[str, Any]:
    if not isinstance(value.dtype, np.dtype) or value.dtype.kind not in _ARRAYS:
        raise _Foreign(f"an array of {value.dtype}")
    value = np.asarray(value)
    return {"array": value.ravel().tolist(), "shape": list(value.shape), "dtype": value.dtype.str}


def _encode_object(kind: str, value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    name = type(value).__name__
    if _find(kind, name) is not type(value):
        raise _Foreign(type(value).__qualname__)
    return {kind: name, "fields": {n: _encode(v) for n, v in fields.items()}}


def _fields(kind: Any) -> list[str]:
    """Fields of a data class that its constructor takes and a file may hold."""
    return [f.name for f in dataclasses.fields(kind) if f.init]


def _arguments(value: Any) -> dict[str, Any]:
    """Arguments that NumPyro's constructor was given, as far as the object keeps them."""
    kind, found = type(value), {}
    if kind.__name__ in _CHOSEN:
        return {name: getattr(value, name) for name in _CHOSEN[kind.__name__]}
    for name in inspect.signature(kind).parameters:
        kept = _KEPT_AS.get(name, name)
        stored = [n for n in (kept, f"_{kept}") if n in vars(value)]
        derived = getattr(kind, kept, None)
        if stored and not isinstance(derived, lazy_property):
            found[name] = vars(value)[stored[0]]
        elif isinstance(derived, property):
            found[name] = getattr(value, kept)
    return found


def _decode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_decode(item) for item in value]
    match value:
        case {"tuple": list(items)} if len(value) == 1:
            return tuple(_decode(item) for item in items)
        case {"dict": dict(items)} if len(value) == 1:
            return {name: _decode(item) for name, item in items.items()}
        case {"array": list(items), "shape": list(shape), "dtype": str(dtype)} if len(value) == 3:
            return _decode_array(items, shape, dtype)
        case {"fields": dict(fields)} if len(value) == 2:
            (kind,) = value.keys() - {"fields"}
            return _build(kind, str(value[kind]), {n: _decode(v) for n, v in fields.items()})
    raise ValueError(f"the file holds {str(value)[:200]}, which Fit.save does not write; {_ADVICE}")


def _decode_array(items: list, shape: list, dtype: str) -> np.ndarray:
    try:
        kind = np.dtype(dtype)
        if kind.kind in _ARRAYS:
            # text is as wide as its longest entry, whatever width the file declares
            return np.array(items, str if kind.kind == "U" else kind).reshape(shape)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"the file holds no array of shape {shape} and type {dtype!r}; {_ADVICE}")


def _find(kind: str, name: str) -> type | None:
    """Class of a kind by its name, None if there is none in the registry."""
    if kind == "class" and name == GivenDraws.__name__:  # no engine to choose, and so not public
        return GivenDraws
    if kind == "class":
        return getattr(import_module("sidebayes"), name) if name in _CLASSES else None
    module, base = _NUMPYRO.get(kind, (None, object))
    found = vars(module).get(name) if module else None
    return found if isinstance(found, type) and issubclass(found, base) else None


def _build(kind: str, name: str, fields: dict[str, Any]) -> Any:
    """Call the constructor of a class in the registry, each argument checked."""
    found = _find(kind, name)
    if found is None:
        raise ValueError(
            f"the file asks for the {kind} {name!r}, which is not among those that a saved fit may "
            f"hold; {_ADVICE}"
        )
    own = kind == "class"
    known: Iterable[str] = _fields(found) if own else inspect.signature(found).parameters
    unknown = sorted(fields.keys() - set(known))
    if unknown:
        raise ValueError(
            f"the file gives {name} the fields {unknown}, expected some of {sorted(known)}; {_ADVICE}"
        )
    for field, value in fields.items():
        fits = _suits(value, get_type_hints(found)[field]) if own else _takes(found, field, value)
        if not fits:
            raise ValueError(
                f"the file gives {name} the {field} {value!r}, of another type than {name} takes; "
                f"{_ADVICE}"
            )
    try:
        return found(**fields)
    except Exception as error:
        raise ValueError(f"the file's {name} cannot be built ({error}); {_ADVICE}") from error


def _suits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field of a data class declares."""
    kind = get_origin(hint) or hint
    kind = getattr(kind, "__value__", kind)  # of an alias, such as NDArray
    kind = get_origin(kind) or kind
    if kind in (Union, UnionType):
        return any(_suits(value, part) for part in get_args(hint))
    if kind is Literal:
        return value in get_args(hint)
    if kind in (int, float):  # constructors check ranges, and tell whole numbers
        return isinstance(value, int | float)
    if kind is tuple:
        return isinstance(value, tuple) and all(_suits(v, get_args(hint)[0]) for v in value)
    if kind is np.ndarray:
        return isinstance(value, np.ndarray | list | tuple)
    return isinstance(value, kind)


def _takes(kind: type, argument: str, value: Any) -> bool:
    """Whether an argument of NumPyro may have a value: text only where the default is text."""
    default = inspect.signature(kind).parameters[argument].default
    return isinstance(default, str) or not isinstance(value, str | dict)


def _same(old: Any, new: Any) -> bool:
    """Whether distributions that were rebuilt have the shapes and numbers of the originals."""
    if isinstance(old, list | tuple):
        return all(map(_same, old, new))
    if isinstance(old, dict):
        return all(_same(old[name], new[name]) for name in old)
    if not isinstance(old, dist.Distribution):
        return True
    if (old.batch_shape, old.event_shape) != (new.batch_shape, new.event_shape):
        return False
    pairs = list(map(jax.tree.leaves, (old, new)))
    return len(pairs[0]) == len(pairs[1]) and all(
        np.size(a) == np.size(b)
        and np.allclose(np.ravel(a), np.ravel(b), rtol=1e-5, equal_nan=True)
        for a, b in zip(*pairs, strict=True)
    )
