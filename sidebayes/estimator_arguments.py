"""Checks of what the estimators for scikit-learn are given, under the names that they have there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.roles import signature_of
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from .common.arrays import real_array
from .common.magnitudes import shown
from .runs.arguments import find_method

__all__ = [
    "CLASSIFIERS",
    "check_size",
    "clustering_model",
    "cut_links",
    "model_options",
    "refuse_side_information",
    "row_weights",
]

CLASSIFIERS = ("moe", "nfgl", "pfgl")
"""Methods that learn classes of rows."""


def refuse_side_information(y: object, why: str) -> None:
    """Refuse links and other data by role in the place of `y`, where nobody would miss them."""
    if isinstance(y, Links | LabelGraph | Groups | PartialLabels | Mapping):
        raise TypeError(f"y is a {type(y).__name__}, {why}")


def check_size(name: str, values: NDArray, x: NDArray) -> None:
    """Refuse classes or weights that are not one for each row."""
    if values.shape != (len(x),):
        size = f"{len(values)} entries" if values.ndim == 1 else f"shape {values.shape}"
        raise ValueError(f"{name} has {size}, X has {len(x)} rows; give one each")


def row_weights(
    sample_weight: ArrayLike | None,
    rows: NDArray,
    chosen: NDArray[np.bool_] | None = None,
    where: str = "",
) -> NDArray[np.float64] | None:
    """Weights of rows, or of those that were chosen, checked; None if there are none."""
    if sample_weight is None:
        return None
    weight: NDArray[np.float64] = real_array("sample_weight", sample_weight)
    check_size("sample_weight", weight, rows)
    weight = weight if chosen is None else weight[chosen]
    if not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise ValueError(
            f"sample_weight: expected finite numbers of at least zero, one of them positive{where}; they are "
            f"from {weight.min():.4g} to {weight.max():.4g}"
        )
    return weight


def clustering_model(method: Any, options: Any) -> Callable[..., None]:
    """Model of a method, if a table, a number of clusters and these options are all that it needs.

    Raises
    ------
    TypeError, ValueError
        If there is no such method, it finds no clusters of rows, or needs more.
    """
    card, model, name = find_method(method)
    if card is None:
        return model
    signature = signature_of(model)
    table, *others = signature.data
    of_groups = any(role.kind == "groups" and role.required for role in others)
    if "num_clusters" not in signature.options or len(table.dims) < 2 or of_groups:
        raise ValueError(
            f"method = {name!r} does not find clusters of the rows of one table; use "
            f"sidebayes.fit({name!r}, ...) with its data, or the estimator with another method, such as 'ppc'"
        )
    arguments = inspect.signature(model).parameters.values()
    needed = [one.name for one in arguments if one.default is one.empty]
    given = {table.name, "num_clusters", *(options if isinstance(options, Mapping) else ())}
    lacking = [argument for argument in needed if argument not in given]
    if lacking and name in CLASSIFIERS:
        raise ValueError(
            f"method = {name!r} learns classes of rows; use MixtureClassifier(method={name!r}).fit(x, y), "
            "with -1 in y where the class is not known"
        )
    if lacking:
        raise ValueError(
            f"method = {name!r} needs {' and '.join(lacking)} too; give the estimator "
            f"options={{{', '.join(f'{one!r}: ...' for one in lacking)}}}, or use "
            f"sidebayes.fit({name!r}, ...)"
        )
    return model


def model_options(
    options: Mapping[str, Any] | None, own: Mapping[str, str], given: tuple[str, ...]
) -> dict[str, Any]:
    """Options of a model, among which none is what the estimator says itself.

    Parameters
    ----------
    options : mapping or None
    own : mapping of str to str
        Argument of `sidebayes.fit` by the parameter of the estimator that says it.
    given : tuple of str
        Arguments that the estimator gives by itself.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options = {shown(options)}; pass a mapping, {{'covariance': 'tied'}}")
    found = dict(options or {})
    for parameter, name in own.items():
        if name in found:
            raise TypeError(
                f"options has {name!r}, which the estimator's own {parameter} says; set that"
            )
    for name in given:
        if name in found:
            raise TypeError(
                f"options has {name!r}, which the estimator gives by itself; leave it out"
            )
    return found


_BY_ROWS = (
    "pass rows, the number of each row of X in the data that the links refer to, such as rows = "
    "np.arange(len(X)) for the whole table: search.fit(X, rows=rows), or cross_val_score(..., "
    "params={'rows': rows}); in a pipeline both call it linkedmixtureclusterer__rows"
)


def cut_links(links: Links, size: int, rows: ArrayLike | None, remedy: str = _BY_ROWS) -> Links:
    """Links among the rows given, numbered as these are; the remedy is for links of other rows."""
    if rows is not None:
        some = links.subset(rows)
        if some.num_points != size:
            raise ValueError(
                f"rows has {some.num_points} entries, X has {size} rows; pass one for each"
            )
        return some
    refers = links.num_points or int(links.pairs.max(initial=-1)) + 1
    if refers > size or links.num_points not in (None, size):
        raise ValueError(f"links refer to {refers} rows, X has {size}; {remedy}")
    return links
