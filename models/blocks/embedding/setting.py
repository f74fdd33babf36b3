"""Data of an embedding, and options that must agree with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from sidebayes.common.fields import Range, check_integer, check_number
from sidebayes.common.magnitudes import shown

from .distances import NOISES
from .geodesics import NUM_NEIGHBORS, choose_distances, choose_landmarks, landmark_number

__all__ = ["check_setting", "choose_power", "distance_power", "tables_of"]


def check_setting(
    num_dimensions: Any, noise: Any, noise_level: Any, known: Any, num_classes: Any
) -> None:
    """Refuse options that are out of range.

    Raises
    ------
    TypeError, ValueError
    """
    check_integer("num_dimensions", num_dimensions)
    if not isinstance(noise, str) or noise not in NOISES:
        raise ValueError(f"noise = {shown(noise)}; expected one of {NOISES}")
    check_number("noise_level", noise_level, Range(above=0))
    if known is not None:
        if num_classes is None:
            raise ValueError("known is given without num_classes; say how many classes there are")
        check_integer("num_classes", num_classes)


def tables_of(
    given: Mapping[str, ArrayLike | None], options: Mapping[str, Any]
) -> tuple[int, Array, Array | None]:
    """Number of points, landmarks, and distances from them (None to simulate).

    Raises
    ------
    ValueError
        If the number of points is not determined, or there are too few landmarks for the
        dimensions.
    """
    number, width = options["num_dimensions"], options["num_landmarks"]
    data: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "landmarks" not in data and (found := choose_landmarks(data, options)) is not None:
        data["landmarks"] = found
    if "distances" not in data and (found := choose_distances(data, options)) is not None:
        data["distances"] = found
    table = data.get("distances")
    size = options["num_points"] if table is None else len(table)
    if size is None:
        raise ValueError(
            "geodesic_embedding lacks data; pass x, a table of points, or distances, or num_points to "
            "simulate"
        )
    size = check_integer("num_points", size)
    sources = data.get("landmarks", np.arange(size if width is None else width))
    if len(sources) <= number:
        raise ValueError(
            f"{len(sources)} landmarks cannot tell positions in num_dimensions = {number}; at least "
            f"{number + 1} are needed: lower num_dimensions, or give more points"
        )
    return size, jnp.asarray(sources).astype(int), None if table is None else jnp.asarray(table)


def choose_power(data: Mapping[str, Any], options: Mapping[str, Any]) -> float | None:
    """Share of edges in distances along the graph of `x`; None where distances are given.

    The edges are at least so many as nearest neighbours, each of two points.
    """
    x, landmarks = data.get("x"), data.get("landmarks")
    if x is None or data.get("distances") is not None:
        return None
    size = len(x)
    width = landmark_number(size, options) if landmarks is None else len(landmarks)
    num_pairs = size * width - width * (width + 1) / 2
    return min(1.0, size * options.get("num_neighbors", NUM_NEIGHBORS) / 2 / num_pairs)


def distance_power(
    power: float | None, data: Mapping[str, Any], options: Mapping[str, Any]
) -> float:
    """Power of the density of the distances, as given or by `choose_power`."""
    share = choose_power(data, options) if power is None else power
    return 1.0 if share is None else check_number("power", share, Range(above=0, most=1))
