"""Checks of data, links and options before anything is run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from sidebayes.models.blocks.label_inference.approximate import Inference
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.label_inference.padding import Sizes, link_rows
from sidebayes.models.blocks.roles import Role, Signature
from sidebayes.models.blocks.side_information.groups import (
    Groups,
    check_order_of_groups,
    refuse_mixed_orders,
)
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from ..common.columns import refuse_unknown_options
from ..common.fields import check_integer
from ..common.magnitudes import shown
from ..data.tables import as_plain, check_data, shape_of
from .cards import CARDS, takes_links

__all__ = [
    "as_annotated",
    "check_dims",
    "check_given",
    "check_links",
    "check_num_clusters",
    "check_options",
    "check_order",
    "classes_as_learned",
    "no_links",
    "require_options",
    "takes_no_links",
    "wanted",
]

_TRUNCATION = 100
"""Maximum number of clusters, beyond that of the points, which truncates an infinite number."""


def as_annotated(names: Collection[str]) -> str:
    """How arguments of a model are declared as data, for messages."""
    written = ", ".join(f'{name}: Annotated[ArrayLike, "rows"]' for name in names)
    return (
        f'{written}, with typing.Annotated and jax.typing.ArrayLike. Write "rows ..." for a table with '
        "columns, Groups for the group of each row (its .codes are indices), Links, PartialLabels, and "
        "| None for what may be left out"
    )


def wanted(role: Role) -> str:
    """What to pass as an argument, in words."""
    of = role.dims[0] if role.dims else "elements"
    rows = role.dims == ("points", "features")
    example = ", e.g. sidebayes.load_dataset('iris').x" if rows else ""
    return {
        "table": f"an array of shape {shape_of(role.dims)}{example}",
        "groups": f"the group that each of the {of} belongs to",
        "labels": f"the class of each of the {of}, -1 where it is not known",
        "sets": f"sets of {of}, each a sequence of their numbers",
    }[role.kind]


def takes_no_links(method: str, signature: Signature) -> Exception:
    """Refusal of links by position, or where a method takes none."""
    ties = [role.name for role in signature.of_kind("links")]
    if ties:
        return TypeError(f"{method} takes links by name only: {ties[0]}=...")
    return no_links(method)


def no_links(method: str) -> ValueError:
    """Refusal of links by a method that takes none."""
    return ValueError(f"{method} takes no links; use {takes_links()!r}, or leave links out")


def check_given(signature: Signature, given: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Check data by role: tables, links, groups, partial labels, sets of rows.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it was and what to do.
    """
    checked: dict[str, Any] = {}
    for role in signature.data:
        if role.name not in given:
            continue
        value = given[role.name]
        if role.kind == "table":
            dims = role.dims if role.declared else (role.dims[0], "...")
            own = _without_missing(role, signature, given)
            own |= {"missing": role.missing, "whole": role.whole}
            checked[role.name] = check_data(value, role.name, dims, **own)
        elif role.kind == "links":
            checked[role.name] = _check_ties(value, role.name, method)
        elif role.kind == "groups":
            checked[role.name] = _check_groups(value, role.name)
        elif role.kind == "labels":
            checked[role.name] = _check_labels(value, role)
        else:
            checked[role.name] = _check_sets(value, role)
    for role in (*signature.of_kind("table"), *signature.of_kind("labels")):
        if role.name in checked:
            check_order(role.name, given[role.name], role.runs_over(checked), checked)
    rows: dict[str, dict[str, Any]] = {}
    for role in signature.data:
        if role.name in given:
            rows.setdefault(role.runs_over(checked), {})[role.name] = given[role.name]
    for tables in rows.values():
        refuse_mixed_orders(**tables)
    return checked


def _without_missing(role: Role, signature: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """How to leave missing values of a table out, with what else runs over its rows."""
    of = role.runs_over(given)
    beside = [
        f"{one.name}.subset(rows)" if hasattr(given[one.name], "subset") else f"{one.name}[rows]"
        for one in signature.data
        if one is not role and given.get(one.name) is not None and one.runs_over(given) == of
    ]
    found: dict[str, Any] = {"beside": beside}
    if role is signature.data[0] and any(r.name == "observed" for r in signature.data):
        measured = f"pass observed = np.isfinite({role.name}) and"
        found["otherwise"] = f"{measured} {role.name} = np.where(observed, {role.name}, 0)"
    return found


def check_order(name: str, values: Any, dim: str, data: Mapping[str, Any]) -> None:
    """Refuse or warn of values with an entry for each group that may be in another order than the groups."""
    owner = data.get(dim)
    if isinstance(owner, Groups):
        check_order_of_groups(name, values, owner)


def _check_labels(value: Any, role: Role) -> PartialLabels:
    try:
        if isinstance(value, PartialLabels):
            return value
        return PartialLabels(as_plain(value, role.name))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{role.name}: {error}; pass {wanted(role)}") from None


def _check_sets(value: Any, role: Role) -> tuple:
    if isinstance(value, str | Mapping) or not np.iterable(value):
        raise TypeError(f"{role.name} = {shown(value)}; pass {wanted(role)}")
    return tuple(value)


def _check_ties(links: Any, name: str, method: str) -> Links:
    if not isinstance(links, Links | LabelGraph):
        raise TypeError(
            f"{name} is a {type(links).__name__}, expected sidebayes.Links; build them with "
            "Links.from_pairs(pairs, same) or read them with Links.read(path)"
        )
    return links.links if isinstance(links, LabelGraph) else links


def _check_groups(value: Any, name: str) -> Groups:
    try:
        groups = value if isinstance(value, Groups) else Groups(as_plain(value, name))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}; pass the group of each row") from None
    without = np.flatnonzero(np.asarray(groups.codes) < 0)
    if len(without):
        raise ValueError(
            f"{name} says no group for row {without[0]}"
            f"{f' and {len(without) - 1} others' if len(without) > 1 else ''}; drop what has none, or "
            "give it a group of its own"
        )
    return groups


def check_dims(signature: Signature, data: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of the named dimensions, which all data must agree on.

    Raises
    ------
    ValueError
        If two arguments disagree, naming both.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for role in signature.data:
        value = data.get(role.name)
        if value is None or role.kind in ("links", "sets"):
            continue
        if role.kind == "groups":
            shape, dims = (len(value.codes),), role.dims
            sizes[role.name] = value.num_groups, role.name
        else:
            shape = value.values.shape if role.kind == "labels" else value.shape
            dims = role.dims
        for dim, size in zip(dims, shape, strict=False):
            if dim == "...":
                break
            known, owner = sizes.setdefault(dim, (size, role.name))
            if known != size:
                raise ValueError(
                    f"{role.name} has {size} {dim} and {owner} has {known}; pass data of the same {dim}"
                )
    return {dim: size for dim, (size, _) in sizes.items()}


def check_num_clusters(
    num_clusters: Any, num_points: int, name: str = "num_clusters", *, truncates: bool = False
) -> int:
    """Check a number of clusters against the number of points; `name` is that of the argument.

    A number that `truncates` an infinite one may exceed that of the points, as long as it is small.
    """
    what = name.partition("_")[2]
    if num_clusters is None:
        raise TypeError(f"{name} is missing; say how many {what} to fit, {name}=3")
    number = check_integer(name, num_clusters)
    if number <= num_points or (truncates and number <= _TRUNCATION):
        return number
    few = truncates and num_points < _TRUNCATION
    limit = f"at most {_TRUNCATION} {what}" if few else f"no more {what} than points"
    raise ValueError(f"{name} = {number} for {num_points} points; give {limit}")


def check_links(
    links: Any,
    num_points: int,
    num_clusters: int | None,
    kind: str,
    method: str,
    inference: str | Inference | None = None,
) -> LabelGraph | None:
    """Check links against the data and compile them.

    Parameters
    ----------
    links : Links, LabelGraph or None
    num_points : int
    num_clusters : int or None
    kind : {"none", "any", "hard", "priced"}
        What the method takes; see `Card`.
    method : str
    inference : str or inference object, optional
        By which labels will be summed out, if that is known.

    Raises
    ------
    TypeError, ValueError
        If these are no links, are for other points, contradict each other, or do not suit the
        method.
    """
    if links is None:
        return None if kind == "none" else as_label_graph(None, num_points, num_clusters)
    if not isinstance(links, Links | LabelGraph):
        raise TypeError(
            f"links is a {type(links).__name__}, expected sidebayes.Links; build them with "
            "Links.from_pairs(pairs, same) or read them with Links.read(path)"
        )
    if kind == "none":
        raise no_links(method)
    weights = np.asarray(links.weights if isinstance(links, Links) else links.pair_weights)
    soft = np.isfinite(weights) & (weights != 0.0)  # weights of zero state nothing
    if kind == "hard" and soft.any():
        raise ValueError(
            f"{method} takes hard links only and {int(soft.sum())} are soft; pass "
            f"links.hardened(), or use {takes_links(CARDS[method].default_engine)!r}"
        )
    known = "exact" if inference is None else inference
    if isinstance(links, Links) and inference is not None and kind == "any":
        room = Sizes(links=link_rows(len(links)))
        graph = LabelGraph.build(links, num_points, num_clusters, known, room)
    else:
        graph = as_label_graph(links, num_points, num_clusters, known)
    if kind == "priced":
        return graph.untied()
    return graph if num_clusters is None else graph.suited(known, num_clusters)


def check_options(
    signature: Signature, options: Mapping[str, Any], method: str, engine: Any = None
) -> None:
    """Refuse options that the model does not have, naming the nearest one, and settings of the engine."""
    if signature.open:
        return
    known = [name for name in signature.options if name != "num_points"]
    for name in options:
        if name not in known:
            if name == "num_clusters":
                raise TypeError(f"{method} has no parameter num_clusters; leave it out")
            if name == "links":
                raise takes_no_links(method, signature)
            if name in getattr(engine, "__dataclass_fields__", ()):
                raise TypeError(
                    f"{method} has no option {name!r}, which is a setting of the engine; pass "
                    f"engine={type(engine).__name__}({name}={shown(options[name])})"
                )
            refuse_unknown_options(method, [name], known, [role.name for role in signature.data])


def require_options(
    signature: Signature, model: Callable[..., None], options: Mapping[str, Any], method: str
) -> None:
    """Refuse a call without an option that has no default, and say what the option is."""
    for name, parameter in inspect.signature(model).parameters.items():
        required = name in signature.options and parameter.default is parameter.empty
        if required and options.get(name) is None:
            raise TypeError(
                f"{method} needs {name}=..., which has no default{_documented(model, name)}"
            )


def _documented(model: Callable[..., None], name: str) -> str:
    """What the docstring of a model says of an argument, to follow a message."""
    entry = rf"^ *(?:\w+, )*{name}(?:, \w+)* : (.+)\n((?: {{4,}}.+\n)*)"
    found = re.search(entry, (inspect.getdoc(model) or "") + "\n", re.MULTILINE)
    if found is None:
        return ""
    kind, text = found.groups()
    first = re.split(r"\.(?: |$)", " ".join(text.split()))[0].replace("`", "")
    return f" ({'; '.join(filter(None, (kind, first[:1].lower() + first[1:])))})"


def classes_as_learned(
    signature: Signature, data: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, PartialLabels]:
    """Known classes with the numbers that they have in an option, such as a source; see `Like`."""
    found = {}
    for role in signature.of_kind("labels"):
        value: Any = options.get(role.like)
        if role.name in data and hasattr(value, "numbered"):
            found[role.name] = value.numbered(data[role.name], role.name)
    return found
