"""Stationary kernels of Gaussian processes, and functions represented by values at anchors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.magnitudes import shown

__all__ = ["KERNELS", "as_columns", "check_kernel", "choose_anchors", "features", "gram"]

_JITTER = 500.0
"""Jitter on the diagonal of a unit Gram matrix of M anchors, in multiples of M units of rounding."""

_EXACT = 1e-12
"""Share of a variance that anchors may leave unexplained if functions count as exact."""


def _rbf(square: Any, xp: Any) -> Any:
    return xp.exp(-0.5 * square)


def _matern32(square: Any, xp: Any) -> Any:
    apart = _root(3.0 * square, xp)
    return (1.0 + apart) * xp.exp(-apart)


def _matern52(square: Any, xp: Any) -> Any:
    apart = _root(5.0 * square, xp)
    return (1.0 + apart + apart**2 / 3.0) * xp.exp(-apart)


def _root(square: Any, xp: Any) -> Any:
    """Square root with a gradient of zero at zero."""
    positive = square > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, square, 1.0)), 0.0)


KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "rbf": _rbf,
    "matern32": _matern32,
    "matern52": _matern52,
}
"""Correlation at a squared distance in length-scales (Rasmussen and Williams 2006, section 4.2)."""


def check_kernel(kernel: Any) -> None:
    """Refuse anything but the name of a kernel."""
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(f"kernel = {shown(kernel)}; expected one of {sorted(KERNELS)}")


def as_columns(inputs: Any) -> Any:
    """Inputs as a table, shape (num_rows, num_inputs); a vector is one column."""
    return inputs[:, None] if inputs.ndim == 1 else inputs


def gram(kernel: str, first: Any, second: Any, length_scale: Any, xp: Any = jnp) -> Any:
    """Correlations of the values of a function at two sets of inputs.

    Parameters
    ----------
    kernel : {"rbf", "matern32", "matern52"}
    first, second : arrays, shapes (num_first, num_inputs) and (num_second, num_inputs)
    length_scale : float or array, shape (num_inputs,)
        In units of the inputs.
    xp : module
        ``jax.numpy`` or ``numpy``.
    """
    apart = (first / length_scale)[:, None] - (second / length_scale)[None]
    return KERNELS[kernel](xp.sum(apart**2, axis=-1), xp)


def features(
    kernel: str, inputs: ArrayLike, anchors: ArrayLike, length_scale: ArrayLike
) -> tuple[Array, Array]:
    r"""Features of a Gaussian process of unit variance with whitened values at anchors.

    With :math:`L L^\top = K_{AA}` and white weights w the values at the anchors are :math:`L w`, and

    .. math:: f(x) \mid w \sim N(\phi(x)^\top w,\; 1 - |\phi(x)|^2), \qquad
              \phi(x) = L^{-1} k(A, x).

    At the anchors the variance, which they leave unexplained, is zero.

    Parameters
    ----------
    kernel : str
    inputs : array_like, shape (num_rows, num_inputs)
    anchors : array_like, shape (num_anchors, num_inputs)
    length_scale : array_like, shape () or (num_inputs,)

    Returns
    -------
    features : Array, shape (num_rows, num_anchors)
    unexplained : Array, shape (num_rows,)
    """
    inputs, anchors = jnp.asarray(inputs), jnp.asarray(anchors)
    size = len(anchors)
    jitter = _JITTER * size * jnp.finfo(jnp.result_type(float)).eps
    root = jnp.linalg.cholesky(
        gram(kernel, anchors, anchors, length_scale) + jitter * jnp.eye(size)
    )
    cross = gram(kernel, anchors, inputs, length_scale)
    found = solve_triangular(root, cross, lower=True).T
    return found, jnp.maximum(1.0 - jnp.sum(found**2, axis=1), 0.0)


def choose_anchors(
    kernel: str, inputs: NDArray, length_scale: Any, most: int, tolerance: float = _EXACT
) -> tuple[NDArray, float]:
    """Choose one input after another, each time the one that the previous ones explain least.

    This is the pivoted Cholesky factorisation of the Gram matrix, stopped early (Fine and
    Scheinberg 2001, J. Mach. Learn. Res. 2, 243-264). It takes ``num_rows * num_anchors**2`` steps.

    Parameters
    ----------
    kernel : str
    inputs : ndarray, shape (num_rows, num_inputs)
    length_scale : float or ndarray, shape (num_inputs,)
    most : int
        Maximum number of anchors.
    tolerance : float
        Stop once no value has a larger share of its variance unexplained.

    Returns
    -------
    anchors : ndarray, shape (num_anchors, num_inputs)
    unexplained : float
        Largest share of a variance that the anchors leave unexplained.
    """
    distinct = np.unique(inputs, axis=0)
    most = min(most, len(distinct))
    rows = np.zeros((most, len(distinct)))
    left = np.ones(len(distinct))
    chosen: list[int] = []
    while len(chosen) < most and (worst := int(left.argmax())) >= 0 and left[worst] > tolerance:
        own = gram(kernel, distinct, distinct[worst : worst + 1], length_scale, np)[:, 0]
        own -= rows[: len(chosen), worst] @ rows[: len(chosen)]
        row = own / np.sqrt(left[worst])
        rows[len(chosen)] = row
        left = np.maximum(left - row**2, 0.0)
        left[worst] = 0.0
        chosen.append(worst)
    return distinct[chosen], float(left.max(initial=0.0))
