"""Checks of the shapes and values of curves, their scales and their observations."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.arrays import given_array, is_traced
from sidebayes.common.magnitudes import shown
from sidebayes.common.warnings import warn_user

from ..numbers import library_of

__all__ = [
    "SCALES",
    "check_anchors",
    "check_inducing",
    "check_mean",
    "check_measured",
    "check_own",
    "check_positive",
    "check_scale_shapes",
    "count_outputs",
    "measured_mean",
    "refuse_equal",
    "refuse_equal_inputs",
    "warn_of_distance",
]

SCALES = ("length_scale", "amplitude", "noise")
"""Positive parameters of curves, in the order in which they are sampled."""

_MOST_OUTPUT_AXES = 2

_FAR = 10
"""Distance of rows from the prior mean, in amplitudes, that curves are unlikely to reach."""


def count_outputs(y: ArrayLike | None) -> int | None:
    """Number of outputs of the rows; None if rows are numbers or are simulated."""
    shape = (0,) if y is None else jnp.shape(y)
    if len(shape) > _MOST_OUTPUT_AXES:
        raise ValueError(f"y has shape {shape}; expected (rows,) or (rows, outputs)")
    return shape[1] if len(shape) > 1 else None


def check_measured(observed: Any, y: Any) -> None:
    """Refuse anything but ones and zeros, one per value, and refuse all zeros."""
    if observed is not None and y is not None and jnp.shape(observed) != jnp.shape(y):
        raise ValueError(
            f"observed has shape {jnp.shape(observed)}, y has {jnp.shape(y)}; pass a one or a zero for each "
            "value of y"
        )
    if observed is None or isinstance(observed, Tracer):
        return
    table = np.asarray(observed, float)
    if not np.isin(table, (0.0, 1.0)).all():
        bad = table[~np.isin(table, (0.0, 1.0))][0]
        raise ValueError(f"observed holds {bad:.6g}; expected one for what was measured, else zero")
    if not table.any():
        raise ValueError(
            "observed is zero everywhere, so that nothing was measured; it is one where y holds a measurement"
        )


def check_anchors(anchors: Any, inputs: Any) -> None:
    """Refuse anchors whose columns differ from those of the inputs."""
    shapes = [jnp.shape(one) for one in (anchors, inputs)]
    columns = [shape[1] if len(shape) > 1 else 1 for shape in shapes]
    if len(shapes[0]) not in (1, 2) or columns[0] != columns[1]:
        raise ValueError(
            f"anchors have shape {shapes[0]} for {columns[1]} columns of inputs; pass a row of inputs for "
            "each anchor, or leave them out"
        )


def check_inducing(inducing: Any) -> int:
    """Check and return the number of inducing points."""
    if isinstance(inducing, bool) or not isinstance(inducing, Integral) or inducing < 1:
        raise ValueError(f"inducing = {shown(inducing)}; expected a number of inducing points")
    return int(inducing)


def check_mean(mean: Any, num_outputs: int | None) -> Array | NDArray:
    """Check and return the finite prior mean of the curves: one number, or one per output."""
    value = given_array("mean", mean)
    known = not is_traced(value)
    if value.shape not in ((), (num_outputs,)) or (known and not np.isfinite(value).all()):
        raise ValueError(
            f"mean = {shown(mean)}; expected a finite number, or one for each of several outputs"
        )
    return value


def measured_mean(y: Any, observed: Any) -> Any:
    """Mean of the measurements, shape () or (num_outputs,); zero for an output without measurement."""
    xp = library_of(y, observed)
    table = xp.asarray(y)
    known = xp.ones(table.shape, bool) if observed is None else xp.asarray(observed) > 0
    return xp.where(known, table, 0.0).sum(axis=0) / xp.maximum(known.sum(axis=0), 1)


def refuse_equal(name: str, y: Any, observed: Any) -> None:
    """Refuse outcomes that are all equal, by output, and would be fitted by curves without noise."""
    table = np.asarray(y, float)
    known = np.ones(table.shape, bool) if observed is None else np.asarray(observed) > 0
    first = np.take_along_axis(table, known.argmax(axis=0)[None], axis=0)
    if known.sum() > 1 and not (known & (table != first)).any():
        raise ValueError(
            f"{name} has the same value in all rows, so that clusters cannot be told apart and no noise is "
            "left; check how it was made"
        )


def refuse_equal_inputs(inputs: Any) -> None:
    """Refuse inputs that are all equal, at which curves have no length-scale to learn."""
    table = np.asarray(inputs, float)
    if len(table) > 1 and not np.ptp(table, axis=0).any():
        raise ValueError(
            "inputs have the same value in all rows, so that curves have no length-scale to learn; check how "
            "they were made, pass length_scale, or use 'gmm', which takes no inputs"
        )


def warn_of_distance(name: str, y: Any, observed: Any, mean: Any, amplitude: Any) -> None:
    """Warn about outcomes whose mean is many amplitudes from the prior mean of the curves."""
    away = np.abs(measured_mean(np.asarray(y, float), observed) - mean).max() / np.max(amplitude)
    if away > _FAR:
        given = np.asarray(mean).tolist()
        warn_user(
            f"{name} lies {away:.3g} amplitudes from the prior mean of the curves, mean = {shown(given)}, so "
            "that clusters serve to bridge the distance; pass mean=y.mean(axis=0), or centre y"
        )


def check_own(own: Collection[str]) -> None:
    """Refuse anything but a list of names of `SCALES`."""
    listed = isinstance(own, Collection) and not isinstance(own, str | bytes)
    if not listed or not {one if isinstance(one, str) else None for one in own} <= set(SCALES):
        raise ValueError(
            f"own = {shown(own)}; expected some of 'length_scale', 'amplitude' and 'noise', in a list"
        )


def check_positive(name: str, given: Any) -> Any:
    """Check and return a positive number, or one per input (length-scales) or output (noise)."""
    value = given_array(name, given)
    valid = is_traced(value) or (np.isfinite(value) & (value > 0)).all()
    if value.ndim > (name in ("length_scale", "noise")) or not valid:
        raise ValueError(f"{name} = {shown(given)}; expected a positive number or a distribution")
    return value


def check_scale_shapes(inputs: Any, **scales: Any) -> None:
    """Refuse scales of more than one number, except length-scales with one number per input."""
    number = jnp.shape(inputs)[1] if jnp.ndim(inputs) > 1 else 1
    for name, given in scales.items():
        if given is None:
            continue
        is_prior = isinstance(given, dist.Distribution)
        shape = given.batch_shape + given.event_shape if is_prior else np.shape(given)
        if name == "length_scale" and shape not in ((), (number,)):
            raise ValueError(
                f"length_scale has shape {shape} for {number} columns of inputs; pass one number, or one "
                "for each column"
            )
        if name == "amplitude" and shape:
            raise ValueError(
                f"amplitude has shape {shape}; pass one number, or a distribution of one number"
            )
