"""What is asked of data, links and options before anything is run."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidebayes.models.blocks.approximate import Inference
from sidebayes.models.blocks.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.links import Links
from sidebayes.models.blocks.padding import link_rows

__all__ = [
    "check_data",
    "check_init",
    "check_links",
    "check_names",
    "check_num_clusters",
    "check_options",
    "check_seed",
    "check_truth",
]


def check_data(x: Any, *, gaussian: bool = True) -> NDArray[np.float64]:
    """Check a data matrix.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    gaussian : bool
        Whether a constant feature makes no sense.

    Raises
    ------
    TypeError
        If it does not hold numbers.
    ValueError
        On a wrong shape, missing or infinite entries (rows are named) or constant features.
    """
    if x is None or isinstance(x, str | Mapping):
        raise TypeError(
            f"x = {x!r:.40} is not a data matrix; pass an array of shape (points, features), e.g. "
            "sidebayes.load_dataset('iris').x"
        )
    if hasattr(x, "toarray"):
        raise TypeError("x is a sparse matrix; pass x.toarray() if it fits, or reduce it first")
    values = np.asarray(x)
    if values.dtype.kind == "O":
        with contextlib.suppress(TypeError, ValueError):
            values = values.astype(float)
    if values.dtype.kind not in "fiub":
        raise TypeError(
            f"x holds {values.dtype}, expected real numbers; encode or drop the columns that are not "
            "numeric"
        )
    if values.ndim != 2:
        advice = "for one feature pass x[:, None]" if values.ndim == 1 else "one row a point"
        raise ValueError(f"x has shape {values.shape}, expected (points, features); {advice}")
    values = values.astype(float)
    if values.shape[0] == 0 or values.shape[1] == 0:
        raise ValueError(
            f"x has shape {values.shape}: there is nothing to fit; check how it was filtered"
        )
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise ValueError(
            f"x has missing or infinite values in {len(bad)} of {len(values)} rows: {rows}; keep "
            "the complete ones, rows = np.isfinite(x).all(axis=1), with x[rows] and "
            "links.subset(rows), or impute"
        )
    constant = np.flatnonzero(np.ptp(values, axis=0) == 0)
    if gaussian and len(values) > 1 and len(constant):
        raise ValueError(
            f"x has constant features, in columns {', '.join(map(str, constant[:5]))}"
            f"{', ...' if len(constant) > 5 else ''}; they say nothing about clusters: drop them, "
            "x[:, np.ptp(x, axis=0) > 0]"
        )
    return values


def check_num_clusters(num_clusters: Any, num_points: int) -> int:
    """Check a number of clusters against the number of points."""
    if num_clusters is None:
        raise TypeError("num_clusters is missing; say how many clusters to fit, num_clusters=3")
    whole = isinstance(num_clusters, int | np.integer) and not isinstance(num_clusters, bool)
    if not whole or num_clusters < 1:
        raise ValueError(f"num_clusters = {num_clusters!r}; expected an integer >= 1")
    if num_clusters > num_points:
        raise ValueError(
            f"num_clusters = {num_clusters} for {num_points} points; give no more clusters than points"
        )
    return int(num_clusters)


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
        raise ValueError(f"{method} takes no links; use 'ppc', or leave links out")
    weights = np.asarray(links.weights if isinstance(links, Links) else links.pair_weights)
    if kind == "hard" and np.isfinite(weights).any():
        raise ValueError(
            f"{method} takes hard links only and {int(np.isfinite(weights).sum())} are soft; pass "
            "links.hardened(), or use 'soft_kmeans'"
        )
    known = "exact" if inference is None else inference
    if isinstance(links, Links) and inference is not None and kind == "any":
        rows = link_rows(len(links))
        graph = LabelGraph.build(links, num_points, num_clusters, known, rows)
    else:
        graph = as_label_graph(links, num_points, num_clusters, known)
    if kind == "priced":
        return graph.untied()
    return graph if num_clusters is None else graph.suited(known, num_clusters)


def check_options(model: Callable, options: Mapping[str, Any], method: str) -> None:
    """Refuse options that the model does not have, naming the nearest."""
    parameters = inspect.signature(model).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = [n for n in parameters if n not in ("x", "links", "num_points", "num_clusters")]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise TypeError(f"{method} has no option {name!r}{hint}; its options: {sorted(known)}")


def check_seed(seed: Any) -> int:
    """Check a seed of random numbers."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed!r}; expected an integer >= 0")
    return int(seed)


def check_init(
    init: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray]:
    """Check starting values against the shapes of the latent sites.

    Raises
    ------
    ValueError
        If a site is missing, unknown, of another shape, or not finite.
    """
    missing = sorted(set(shapes) - set(init))
    if missing:
        raise ValueError(f"init lacks {missing}; it must hold every latent site: {sorted(shapes)}")
    out = {}
    for name, shape in shapes.items():
        value = np.asarray(init[name], float)
        if value.shape != shape:
            raise ValueError(f"init[{name!r}] has shape {value.shape}, expected {shape}")
        if not np.isfinite(value).all():
            raise ValueError(f"init[{name!r}] is not finite; check the values to start from")
        out[name] = value
    return out


def check_truth(truth: Any, num_points: int) -> NDArray[np.int64] | None:
    """Check known classes, used only to score a fit; returns them numbered from 0."""
    if truth is None:
        return None
    classes = np.asarray(truth)
    if classes.shape != (num_points,):
        raise ValueError(
            f"truth has shape {classes.shape}, expected ({num_points},), one class a point"
        )
    return np.unique(classes, return_inverse=True)[1].astype(np.int64)


def check_names(names: Sequence[str] | None, num_features: int) -> list[str]:
    """Check names of features; numbers stand in where there are none."""
    if names is None:
        return [f"x{number}" for number in range(num_features)]
    if isinstance(names, str) or len(names) != num_features:
        count = 1 if isinstance(names, str) else len(names)
        raise ValueError(
            f"feature_names has {count} names for {num_features} features; give one each"
        )
    return list(map(str, names))
