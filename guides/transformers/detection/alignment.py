"""Combination of the kernels of several measures by their alignment with the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from sidebayes.common.arrays import real_array, refuse_gaps
from sidebayes.common.magnitudes import shown

from .table import two_classes

__all__ = ["align_kernels", "kernel_alignment"]


def kernel_alignment(gram: ArrayLike, labels: ArrayLike) -> float:
    r"""Cosine between a centred kernel matrix and that of the labels (Cortes et al. 2012).

    .. math:: \hat A = \frac{\langle HKH, H y y^\top H \rangle_F}{\|HKH\|_F \|H y y^\top H\|_F},
              \qquad H = I - \tfrac1n 1 1^\top

    Parameters
    ----------
    gram : array_like, shape (num_subjects, num_subjects)
    labels : array_like, shape (num_subjects,)
        Two classes.

    Returns
    -------
    float
        In [0, 1] for kernels; 0 where the kernel does not vary.

    Raises
    ------
    TypeError, ValueError
        If the matrix is not symmetric, or there are not two classes.
    """
    (kernel,), target = _centred({"gram": gram}, labels)
    return float(kernel @ target / (np.linalg.norm(kernel) or 1.0))


def align_kernels(grams: Any, labels: ArrayLike) -> NDArray[np.float64]:
    r"""Weights of the convex combination of kernels that agrees best with the labels.

    Maximises the alignment of :math:`\sum_l \lambda_l K_l` over :math:`\lambda \geq 0`,
    :math:`\sum_l \lambda_l = 1` (Lu 2008, eq. 11.1), with centred matrices (Cortes et al. 2012): the
    direction of the best :math:`\lambda` is that of the nonnegative least-squares fit of the kernels to the
    kernel of the labels. Scale each kernel first, say to a mean diagonal of 1.

    Parameters
    ----------
    grams : sequence of array_like, shape (num_kernels, num_subjects, num_subjects)
        Kernel matrices of the training subjects.
    labels : array_like, shape (num_subjects,)
        Two classes.

    Returns
    -------
    ndarray, shape (num_kernels,)
        Weights that add up to 1. Equal ones where no kernel agrees with the labels at all.

    Raises
    ------
    TypeError, ValueError
        If a matrix is not symmetric, or there are not two classes.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([0, 0, 1, 1])
    >>> own = np.outer(2 * y - 1, 2 * y - 1)
    >>> align_kernels([own, np.eye(4)], y).round(6).tolist()
    [1.0, 0.0]
    """
    several = isinstance(grams, list | tuple) or (isinstance(grams, np.ndarray) and grams.ndim == 3)
    if not several or not len(grams):
        raise TypeError(f"grams = {shown(grams)}; pass a list of kernel matrices")
    columns, target = _centred({f"grams[{n}]": one for n, one in enumerate(grams)}, labels)
    weights = nnls(columns.T, target)[0]
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def _centred(grams: dict[str, Any], labels: Any) -> tuple[NDArray, NDArray]:
    """Return centred kernel matrices, and the target of norm 1, each as a vector."""
    _, codes = two_classes(labels)
    size = len(codes)
    columns = []
    for name, gram in grams.items():
        found = real_array(name, gram)
        if found.shape != (size, size):
            raise ValueError(
                f"{name} has shape {found.shape}; expected {(size, size)}, a kernel of the subjects of labels"
            )
        refuse_gaps(name, found, "leave such subjects out, or compute their kernel anew")
        apart = np.abs(found - found.T)
        if not np.allclose(found, found.T, atol=1e-8 * np.abs(found).max()):
            row, column = map(int, np.unravel_index(np.argmax(apart), apart.shape))
            raise ValueError(
                f"{name}[{row}, {column}] = {found[row, column]:.6g} and [{column}, {row}] = "
                f"{found[column, row]:.6g}; expected a symmetric matrix"
            )
        side = found - found.mean(axis=0)
        columns.append((side - side.mean(axis=1, keepdims=True)).ravel())
    label = codes - codes.mean()
    return np.stack(columns), np.outer(label, label).ravel() / (label @ label)
