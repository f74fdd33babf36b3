"""Options of a model as text, so that a saved fit can be rebuilt."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import jax
import numpy as np

__all__ = ["dump", "parse"]


def dump(options: Mapping[str, Any]) -> str:
    """Write options as JSON; what cannot be rebuilt (a function, say) is written by its name."""
    return json.dumps({name: _encode(value) for name, value in options.items()})


def parse(text: str) -> tuple[dict[str, Any], list[str]]:
    """Read what `dump` wrote.

    Returns
    -------
    options : dict
    lost : list of str
        Options that could not be rebuilt.
    """
    stored = json.loads(text)
    lost = [n for n, v in stored.items() if isinstance(v, dict) and "lost" in v]
    return {n: _decode(v) for n, v in stored.items() if n not in lost}, lost


def _encode(value: Any) -> Any:
    from numpyro.distributions import Distribution

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, np.ndarray | jax.Array):
        return {"array": np.asarray(value).tolist()}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    kind = type(value)
    if isinstance(value, Distribution) and kind.__module__.startswith("numpyro.distributions."):
        fields = {n: _encode(getattr(value, n)) for n in kind.arg_constraints}
        return {"type": f"numpyro.distributions:{kind.__name__}", "fields": fields}
    if dataclasses.is_dataclass(value) and kind.__module__.startswith("sidebayes."):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": f"{kind.__module__}:{kind.__name__}", "fields": fields}
    return {"lost": getattr(value, "__qualname__", repr(value))}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.asarray(value["array"])
    module, _, name = value["type"].partition(":")
    if module != "numpyro.distributions" and not module.startswith("sidebayes."):
        raise ValueError(f"the file asks for {module}.{name}, which is no part of sidebayes")
    return getattr(import_module(module), name)(
        **{n: _decode(v) for n, v in value["fields"].items()}
    )
