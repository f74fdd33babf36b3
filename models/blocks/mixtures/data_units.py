"""Units of the data, in which gradients and random walks move."""

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
"""Scatter of a cluster, relative to that of all points, that the scale of a prior outweighs."""

_WIDE = 10.0
"""Ratio of the widest column's deviation to that of a quarter of all columns from which on units decide."""

_NOTHING = 1e-12
"""Deviation of a column, relative to the widest, that is rounding."""

_RELATED = 1e-4
"""Cosine between two columns from which on they are not orthogonal."""


def data_units(data: ArrayLike | None, num_features: int) -> tuple[Array, Array]:
    """Mean and standard deviation of each feature; zero and one without data.

    A feature that does not vary, or has values that are no numbers, has a unit of one.
    """
    if data is None:
        return jnp.zeros(num_features), jnp.ones(num_features)
    x = jnp.asarray(data)
    mean = x.mean(axis=0)
    deviation = jnp.sqrt(jnp.mean((x - mean) ** 2, axis=0))
    return jnp.where(jnp.isfinite(mean), mean, 0.0), jnp.where(deviation > 0, deviation, 1.0)


def refuse_constant(name: str, values: np.ndarray, may_be: Collection[int] = ()) -> None:
    """Refuse constant features, which say nothing about clusters, and those of no value or of one.

    Columns of `may_be` may be constant.

    Raises
    ------
    ValueError
        Naming their columns.
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
    """Say which features depend on others, where full covariances have the width of their prior.

    Along what does not vary, a cluster of n points has the width of the prior's scale divided by about n, and
    all points together have the more density the more unequal the clusters are: n log n is convex.
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
    """Say where columns of very different spread enter distances or inner products together.

    Orthogonal columns, such as principal components or features of a kernel, have the spread that they are
    meant to have.
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
    """Record a statistic of the data, such as their mean, that stays as it was fitted at other data.

    A site of `numpyro.deterministic` is computed anew from whatever data the model is run on. What
    coefficients are measured from must not be: they mean something in the units of the fitted data only.

    Parameters
    ----------
    name : str
        Of the site, which is a deterministic one otherwise.
    value : Array

    Returns
    -------
    Array
        The value; at other data that of the fit.
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
    """Record what gives the data a mean of zero and a covariance of I, as `fitted_statistic` does.

    Sites are ``center`` and ``whitening``.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)

    Returns
    -------
    center : Array, shape (num_features,)
        Mean of the rows.
    whitening : Array, shape (num_features, num_features)
        Columns that turn centred rows into rows of covariance I.

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
    """Covariance matrices, each feature in a unit of its own.

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
        """Each unit enters the symmetric matrix as often as there are features, and once more."""
        size = len(self.unit)
        return jnp.broadcast_to((size + 1) * jnp.log(self.unit).sum(), jnp.shape(x)[:-2])

    def tree_flatten(self) -> tuple:
        """Leaves and structure, for JAX."""
        return (self.unit,), (("unit",), {})
