"""Units of the data, and remarks about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform
from numpyro.primitives import apply_stack

from sidebayes.common.columns import ColumnsError
from sidebayes.common.dependence import dependent_columns, say_dependent
from sidebayes.common.magnitudes import listed

__all__ = [
    "Rescaled",
    "data_units",
    "fitted_statistic",
    "fitted_whitening",
    "refuse_constant",
    "remark_on_dependent",
    "remark_on_units",
]

_NARROW = 1e-7
"""Scatter of a cluster, relative to that of all points, below which the prior's scale dominates."""

_WIDE = 10.0
"""Ratio of the largest standard deviation of a column to the lower quartile above which units matter."""

_NOTHING = 1e-12
"""Standard deviation of a column, relative to the largest, that is due to rounding."""

_RELATED = 1e-4
"""Cosine between two columns above which they are not orthogonal."""


def data_units(data: ArrayLike | None, num_features: int) -> tuple[Array, Array]:
    """Mean and standard deviation of each feature; zero and one without data.

    A feature that does not vary, or has values that are not numbers, has a unit of one.
    """
    if data is None:
        return jnp.zeros(num_features), jnp.ones(num_features)
    x = jnp.asarray(data)
    mean = x.mean(axis=0)
    deviation = jnp.sqrt(jnp.mean((x - mean) ** 2, axis=0))
    return jnp.where(jnp.isfinite(mean), mean, 0.0), jnp.where(deviation > 0, deviation, 1.0)


def refuse_constant(name: str, values: np.ndarray, may_be: Collection[int] = ()) -> None:
    """Refuse uninformative features: constant ones, and those with at most one known value.

    The columns in `may_be` may be constant.

    Raises
    ------
    ValueError
        If there are such features; the message names their columns.
    """
    known = np.isfinite(values)
    low = np.where(known, values, np.inf).min(axis=0)
    high = np.where(known, values, -np.inf).max(axis=0)
    constant = np.setdiff1d(np.flatnonzero(high <= low), list(may_be)) if len(values) > 1 else ()
    if len(constant):
        number = known.sum(axis=0)[constant]
        parts = {
            "constant features": constant[number > 1].tolist(),
            "features of one known value": constant[number == 1].tolist(),
            "features without any value": constant[number == 0].tolist(),
        }
        raise ColumnsError(partial(_say_constant, name, parts))


def _say_constant(
    name: str, parts: Mapping[str, Sequence[int]], columns: Sequence[str] | None
) -> str:
    """Which features say nothing, by kind of fault, and how to drop them."""
    own = {
        what: [repr(columns[n]) if columns else str(n) for n in some]
        for what, some in parts.items()
    }
    told = [f"{what}, in columns {listed(some)}" for what, some in own.items() if some]
    remedy = f"{name}[:, np.nanmax({name}, axis=0) > np.nanmin({name}, axis=0)]"
    if columns:
        remedy = f"{name}.drop(columns=[{', '.join(chain(*own.values()))}])"
    return f"{name} has {'; '.join(told)}; they say nothing about clusters: drop them, {remedy}"


def remark_on_dependent(name: str, values: np.ndarray, num_cells: int) -> str | None:
    """Say which features are functions of others, so that the prior determines their covariances.

    In directions without variation, a cluster of n points has the prior's scale divided by about n
    as its width. The density of all points together then increases with the inequality of cluster
    sizes, because n log n is convex.
    """
    found = dependent_columns(values, _NARROW * num_cells / len(values))
    if not found:
        return None
    said, them = say_dependent(name, found), "it" if len(found) == 1 else "them"
    return (
        f"{said[0].upper()}{said[1:]}: full covariances have no width there but that of their prior, "
        f"which favours clusters of unequal sizes, whatever the points say; drop {them}"
    )


def remark_on_units(name: str, values: np.ndarray) -> str | None:
    """Say that columns of very different spread enter distances or inner products together.

    Orthogonal columns, such as principal components or kernel features, are exempt: their spread is
    intended.
    """
    deviation = values.std(axis=0)
    vary = np.flatnonzero(deviation > _NOTHING * deviation.max(initial=0.0))
    if len(vary) < 2:
        return None
    spread = deviation[vary]
    widest, narrow = spread.max(), np.quantile(spread, 0.25, method="lower")
    if widest <= _WIDE * narrow:
        return None
    if any(
        _are_orthogonal(values[:, vary] - middle) for middle in (0, values[:, vary].mean(axis=0))
    ):
        return None
    column, share = vary[spread.argmax()], widest**2 / np.square(spread).sum()
    few = int((spread * _WIDE < widest).sum())
    return (
        f"The result depends on the units of the columns of {name}: column {column} has {share:.0%} of the "
        f"sum of their variances, and {few} of {len(vary)} spread less than a tenth as wide. Unless all "
        "columns are measured in one unit, divide each by its standard deviation"
    )


def _are_orthogonal(columns: np.ndarray) -> bool:
    gram = columns.T @ columns
    length = np.sqrt(np.diagonal(gram))
    return bool((np.abs(np.triu(gram, 1)) < _RELATED * np.outer(length, length)).all())


def fitted_statistic(name: str, value: Array) -> Array:
    """Record a statistic of the data, such as their mean, that keeps its fitted value at other data.

    A site of `numpyro.deterministic` is recomputed from whatever data the model is run on. This
    must not happen to the origin and units of coefficients, which have a meaning only in the units
    of the fitted data.

    Parameters
    ----------
    name : str
        Name of the site, which is otherwise deterministic.
    value : Array

    Returns
    -------
    Array
        The value; at other data, the value of the fit.
    """
    message = {
        "type": "deterministic",
        "name": name,
        "value": value,
        "cond_indep_stack": [],
        "is_fitted": True,
    }
    return apply_stack(message)["value"]


def fitted_whitening(x: ArrayLike) -> tuple[Array, Array]:
    """Record the transformation of the data to mean zero and covariance I; see `fitted_statistic`.

    The sites are ``center`` and ``whitening``.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)

    Returns
    -------
    center : Array, shape (num_features,)
        Mean of the rows.
    whitening : Array, shape (num_features, num_features)
        Matrix that maps centred rows to rows of covariance I.

    Raises
    ------
    ValueError
        If the covariance of x is singular.
    """
    _refuse_singular(x)
    x = jnp.asarray(x)
    num_features = x.shape[1]
    with numpyro.plate("features", num_features):
        center = fitted_statistic("center", x.mean(axis=0))
    deviation = x - x.mean(axis=0)
    root = jnp.linalg.cholesky(deviation.T @ deviation / len(x))
    rows = numpyro.plate("features", num_features, dim=-2)
    with rows, numpyro.plate("features_1", num_features):
        return center, fitted_statistic("whitening", jnp.linalg.inv(root).T)


def _refuse_singular(x: ArrayLike) -> None:
    """Refuse features that are linear functions of others."""
    if isinstance(x, Tracer):
        return
    values = np.asarray(x, float)
    size, width = values.shape
    found = dependent_columns(values)
    if found or size <= width:
        why = (
            f"{say_dependent('x', found)}; drop {'it' if len(found) == 1 else 'them'}"
            if found
            else f"x has {size} rows for {width} features; keep its leading principal components"
        )
        raise ValueError(f"the covariance of x is singular and cannot be whitened: {why}")


class Rescaled(Transform):
    """Rescaling of covariance matrices, each feature in a unit of its own.

    Parameters
    ----------
    unit : Array, shape (num_features,)
    """

    domain = constraints.positive_definite
    codomain = constraints.positive_definite

    def __init__(self, unit: Array) -> None:
        self.unit = unit

    def __call__(self, x: Array) -> Array:
        """Multiply rows and columns by the units."""
        return x * self.unit[:, None] * self.unit

    def _inverse(self, y: Array) -> Array:
        return y / self.unit[:, None] / self.unit

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Log determinant; each unit enters a symmetric matrix of d features d + 1 times."""
        size = len(self.unit)
        return jnp.broadcast_to((size + 1) * jnp.log(self.unit).sum(), jnp.shape(x)[:-2])

    def tree_flatten(self) -> tuple:
        """Leaves and structure, for JAX."""
        return (self.unit,), (("unit",), {})
