"""Arguments of a call: the method, its data by role, and its options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from sidebayes.models.blocks.roles import signature_of

from ..data.tables import column_names
from . import checks
from .zoo import CARDS, Card, find_card

__all__ = ["Arguments", "find_method", "read_arguments"]


class Arguments(NamedTuple):
    """Arguments of a model, checked.

    Attributes
    ----------
    given : dict of str to object
        Data as they were passed.
    data : dict of str to object
        Data by name of the argument.
    sizes : dict of str to int
        Of the named dimensions.
    options : dict of str to object
    columns : dict of str to tuple of str
        Names of the columns of tables that were given with names.
    """

    given: dict[str, Any]
    data: dict[str, Any]
    sizes: dict[str, int]
    options: dict[str, Any]
    columns: dict[str, tuple[str, ...]]


def find_method(method: str | Callable[..., None]) -> tuple[Card | None, Callable[..., None], str]:
    """Card, if there is one, model and name of what was asked for."""
    if isinstance(method, str):
        card = find_card(method)
        return card, card.model, card.name
    if not callable(method):
        raise TypeError(
            f"method is a {type(method).__name__}; pass a name, one of {sorted(CARDS)}, or a NumPyro "
            "model function"
        )
    own = next((c for c in CARDS.values() if c.is_of(method)), None)
    return own, method, own.name if own else getattr(method, "__name__", "model")


def read_arguments(
    model: Callable[..., None],
    name: str,
    data: tuple,
    arguments: Mapping[str, Any],
    optional: Collection[str] = ("links",),
) -> Arguments:
    """Tell data from options and check both; `optional` kinds of data may be missing.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it was and what to do.
    """
    signature = signature_of(model)
    given, options = checks.sort_arguments(signature, data, arguments, name, optional)
    checked = checks.check_given(signature, given, name)
    sizes = checks.check_dims(signature, checked)
    checks.check_options(signature, options, name)
    if "num_clusters" in signature.options:
        first = next((checked[r.name] for r in signature.of_kind("table") if r.name in checked), ())
        default = inspect.signature(model).parameters["num_clusters"].default
        asked = options.get("num_clusters", None if default is inspect.Parameter.empty else default)
        points = (
            sizes.get(signature.unit_of(checked) or "", len(first)) or sys.maxsize
        )  # if data may be missing
        points = sys.maxsize if signature.truncates else points
        options = {**options, "num_clusters": checks.check_num_clusters(asked, points)}
    checks.require_options(signature, model, options, name)
    checks.check_named_classes(signature, checked, options)
    for role in signature.data:
        role.check(checked)
        if role.chosen is None or role.name in checked:
            continue
        if (found := role.chosen.choose(checked, options)) is not None:
            checked[role.name] = found
    columns = {
        role.name: names
        for role in signature.of_kind("table")
        if (names := column_names(given.get(role.name), role.name)) is not None
    }
    return Arguments(given, checked, checks.check_dims(signature, checked), options, columns)
