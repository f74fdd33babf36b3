"""Options of a model that change while it is fitted."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from ..base import Problem
from .units import Named, model_of

__all__ = ["with_option"]


def with_option(problem: Problem, name: str, value: float) -> Problem:
    """Return the problem with another value of an option, as an argument: all values share compiled code.

    Raises
    ------
    ValueError
        If the model has no such option.
    """
    model = model_of(problem)
    if name not in inspect.signature(model).parameters:
        raise ValueError(
            f"{getattr(model, '__name__', 'the model')} has no option {name!r} that could change from step "
            "to step; name another, or leave the schedule out"
        )
    if isinstance(problem.model, Named) and name in problem.model.names:
        place = problem.model.names.index(name)
        args = (*problem.args[:place], jnp.asarray(value), *problem.args[place + 1 :])
        return replace(problem, args=args)
    options = {key: given for key, given in problem.kwargs.items() if key != name}
    given = functools.partial(_given, name, problem.model)
    return Problem(given, (*problem.args, jnp.asarray(value)), options)


def _given(name: str, model: Callable[..., None], *args: Any, **options: Any) -> None:
    *data, value = args
    model(*data, **{name: value}, **options)
