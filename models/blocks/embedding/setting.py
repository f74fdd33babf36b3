"""What an embedding is of, and options that must fit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from sidebayes.common.fields import Range, check_integer, check_number

from .distances import NOISES
from .geodesics import choose_distances, choose_landmarks

__all__ = ["check_setting", "distance_power", "tables_of"]


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
        raise ValueError(f"noise = {noise!r:.60}; expected one of {NOISES}")
    check_number("noise_level", noise_level, Range(above=0))
    if known is not None:
        if num_classes is None:
            raise ValueError("known is given without num_classes; say how many classes there are")
        check_integer("num_classes", num_classes)


def tables_of(
    x: ArrayLike | None,
    landmarks: ArrayLike | None,
    distances: ArrayLike | None,
    options: Mapping[str, Any],
) -> tuple[int, Array, Array | None]:
    """Number of points, landmarks, and distances from them, None to simulate.

    Raises
    ------
    ValueError
        If nothing says how many points there are, or there are too few landmarks for the dimensions.
    """
    number, width = options["num_dimensions"], options["num_landmarks"]
    data: dict[str, Any] = {"x": x, "landmarks": landmarks, "distances": distances}
    data = {name: value for name, value in data.items() if value is not None}
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


def distance_power(
    power: float | None, x: ArrayLike | None, num_neighbors: int, num_points: int, width: int
) -> float:
    """Power of the density of the distances; by default the share of edges in those along a graph."""
    if power is not None:
        return check_number("power", power, Range(above=0, most=1))
    if x is None:
        return 1.0
    num_pairs = num_points * width - width * (width + 1) / 2
    return min(1.0, num_points * num_neighbors / 2 / num_pairs)
