"""What errors of a user's model say, and where in its file they occurred."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from sidebayes.models.blocks.roles import function_of

__all__ = ["arguments_taken", "finding_and_remedy", "on_one_line", "place_of"]


def on_one_line(error: Exception) -> str:
    """Return the text of an error on one line, of at most 300 characters."""
    return " ".join(str(error).split())[:300]


def finding_and_remedy(error: Exception, at: str = "; ") -> tuple[str, str]:
    """Return what an error says, and the remedy that follows it."""
    finding, _, remedy = on_one_line(error).rpartition(at)
    return finding, remedy


def place_of(error: Exception, model: Callable) -> str:
    """Return the line of the model's own file where the error, or its cause, occurred."""
    try:
        own = inspect.getfile(function_of(model))
    except TypeError:
        return ""
    tracebacks = [one.__traceback__ for one in (error, error.__cause__) if one is not None]
    frames = [f for one in tracebacks for f in traceback.extract_tb(one) if f.filename == own]
    if not frames:
        return ""
    return f"line {frames[-1].lineno} of {frames[-1].name}: {frames[-1].line or 'no source'}"


def arguments_taken(model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> str:
    """Return what a model takes, if these arguments are others."""
    taken = inspect.signature(model)
    try:
        taken.bind(*args, **kwargs)
    except TypeError:
        bare = [p.replace(annotation=p.empty) for p in taken.parameters.values()]
        shown = taken.replace(parameters=bare, return_annotation=taken.empty)
        return f"check the arguments against {getattr(function_of(model), '__name__', 'the model')}{shown}"
    return ""
