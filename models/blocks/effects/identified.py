"""Linear mixed models whose data determine no parameters or leave no noise, and singular estimates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr
from scipy.sparse import csr_array

from .densities.basis import lower_basis
from .densities.structure import Structure

__all__ = [
    "ONE_SUBJECT",
    "PRIOR_ALONE",
    "SINGULAR",
    "UNDETERMINED",
    "covariance_is_determined",
    "exact_fit",
    "independent_columns",
    "is_singular",
]

UNDETERMINED = (
    "The data leave the covariance of the random effects and the noise undetermined: many values are "
    "equally likely, and the fit ends at any of them. Columns of random depend on each other, or subjects "
    "have too few rows or times, or fixed effects of their own; give fewer columns, covariance='diagonal', "
    "or a prior"
)
"""Message about a flat prior if `covariance_is_determined` is false."""

PRIOR_ALONE = (
    "The outcomes leave the covariance of the random effects and the noise undetermined, so that the prior "
    "decides between them, and this mode is one of many points that are nearly as probable. Columns of "
    "random depend on each other, or subjects have too few rows or times; give fewer columns, "
    "covariance='diagonal', or an engine that draws, such as 'nuts'"
)
"""Message about a mode under any other prior in that case."""

ONE_SUBJECT = (
    "There is one subject, and the covariance of the random effects, by which subjects differ, needs "
    "several; give more subjects"
)
"""Message about the data of one subject, whether or not its rows pass `covariance_is_determined`."""

SINGULAR = (
    "This is a singular fit: the covariance of the random effects is on the boundary, a variance of 0 or "
    "effects that determine each other, and has no standard errors; intervals of effects() are too narrow. "
    "Take fewer random effects, covariance='diagonal', or a prior"
)
"""Message about an estimate that `is_singular`."""

_DEPENDENT = 1e-9
"""Share of a column's length outside the span of the others below which it counts as dependent."""

_EXACT = 1e-13
"""Share of the outcomes outside the span of their columns below which noise counts as zero."""

_NO_SPREAD = 5e-3
"""Standard deviation of outcomes due to random effects, relative to the noise, that counts as zero."""

_SINGULAR = 1e-12
"""Least eigenvalue below which directions of unit length count as dependent."""


def independent_columns(columns: ArrayLike) -> tuple[NDArray[np.float64], list[int]]:
    """Orthonormal basis of columns, shape (num_rows, rank), and the numbers of dependent columns.

    Parameters
    ----------
    columns : array_like, shape (num_rows, num_columns)
    """
    columns = np.asarray(columns, float)
    length = np.abs(columns).max(axis=0, initial=0.0)
    columns = columns / np.where(
        length > 0, length, 1.0
    )  # their squares neither over- nor underflow
    columns = columns / np.where(length > 0, np.linalg.norm(columns, axis=0), 1.0)
    basis, root, order = qr(columns, mode="economic", pivoting=True)
    rank = int((np.abs(np.diag(root)) >= _DEPENDENT).sum())
    return basis[:, :rank], sorted(map(int, order[rank:]))


def exact_fit(
    name: str,
    y: ArrayLike,
    fixed: ArrayLike,
    random: ArrayLike,
    codes: NDArray | None,
    outputs: ArrayLike | None,
) -> str | None:
    """Return a sentence on outcomes that the columns fit without error; None if they leave noise.

    The likelihood then grows without bound as the noise vanishes, unless there are as many columns,
    those of every subject among them, as rows. Other columns of random, as of slopes, do not prevent
    this, since their variances may vanish as well. A prior whose density is positive where the noise is
    zero does not change this. Each output has a noise of its own, and may be fitted without error alone.

    Parameters
    ----------
    name : str
        Of the outcomes, for messages.
    y : array_like, shape (num_rows,)
    fixed : array_like, shape (num_rows, num_terms)
    random : array_like, shape (num_rows, num_effects)
    codes : ndarray of int, shape (num_rows,), or None
        Subject of each row; None if only the fixed columns are to be looked at.
    outputs : array_like, shape (num_rows, num_outputs), or None
    """
    y, fixed, random = (np.asarray(own, float) for own in (y, fixed, random))
    parts = [("", np.ones(len(y), bool))]
    if outputs is not None and np.shape(outputs)[1] > 1:
        parts += [
            (f" in the rows of output {n}", o > 0) for n, o in enumerate(np.asarray(outputs).T)
        ]
    for where, own in parts:
        subjects = None if codes is None else np.asarray(codes)[own]
        if said := _exact_part(name, y[own], fixed[own], random[own], subjects):
            return f"{name}{where} {said}"
    return None


def _exact_part(
    name: str, y: NDArray, fixed: NDArray, random: NDArray, codes: NDArray | None
) -> str | None:
    """Return how the columns fit rows without error, and what to do about it; see `exact_fit`."""
    unbounded = "no noise is left, and the likelihood grows without bound as the noise vanishes"
    basis, _ = independent_columns(fixed)
    if len(y) > basis.shape[1] and _is_rounding(y - basis @ (basis.T @ y), y):
        return f"is a linear function of the columns of fixed: {unbounded}. Check how it was made"
    if codes is None or not _leaves_no_noise(y, fixed, _own_bases(random, codes), codes):
        return None
    mean = np.bincount(codes, y) / np.maximum(np.bincount(codes), 1)
    if _is_rounding(y - mean[codes], y):
        return (
            f"does not vary within any subject: {unbounded}, under any prior. Keep one row of each subject, "
            "and regress its outcome without random effects"
        )
    fewer = "Give fewer columns of random, or check" if random.shape[1] > 1 else "Check"
    return (
        f"is a linear function of the columns of fixed and of each subject's own columns of random: "
        f"{unbounded}, under any prior. {fewer} how {name} was made"
    )


def _leaves_no_noise(y: NDArray, fixed: NDArray, own: Sequence[NDArray], codes: NDArray) -> bool:
    """Whether columns, of each subject all or the first ones, are fewer than rows and fit them exactly."""
    for number in range(1, len(own) + 1):
        among = _outside(fixed, own[:number], codes)
        basis, _ = independent_columns(np.where(_is_rounding(among, fixed, _DEPENDENT), 0.0, among))
        left = _outside(y[:, None], own[:number], codes)[:, 0]
        used = basis.shape[1] + round(sum((column**2).sum() for column in own[:number]))
        if len(y) > used and _is_rounding(left - basis @ (basis.T @ left), y):
            return True
    return False


def _is_rounding(left: NDArray, whole: NDArray, share: float = _EXACT) -> NDArray[np.bool_]:
    """Whether what is left of a vector, or of each column, is a rounding error."""
    return np.linalg.norm(left, axis=0) <= share * np.linalg.norm(whole, axis=0)


def _own_bases(random: NDArray, codes: NDArray) -> list[NDArray]:
    """Columns that are orthonormal within each subject, of unit length or zero, and span its own."""
    found: list[NDArray] = []
    for column in (random / np.maximum(np.abs(random).max(axis=0), np.finfo(float).tiny)).T:
        left = _outside(column[:, None], found, codes)[:, 0]
        whole, size = (np.sqrt(np.bincount(codes, own**2)) for own in (column, left))
        unit = np.divide(1.0, size, out=np.zeros(len(size)), where=size > _DEPENDENT * whole)
        found.append(left * unit[codes])
    return found


def _outside(table: NDArray, own: Sequence[NDArray], codes: NDArray) -> NDArray:
    """Residuals of the columns of a table from the columns of `_own_bases`, within each subject."""
    member = csr_array((np.ones(len(codes)), (codes, np.arange(len(codes)))))
    for _ in range(2):  # the second pass takes out the rounding errors of the first
        for column in own:
            table = table - column[:, None] * (member @ (column[:, None] * table))[codes]
    return table


def covariance_is_determined(
    fixed: NDArray,
    random: ArrayLike,
    codes: NDArray,
    outputs: ArrayLike | None,
    structure: Structure,
) -> bool:
    r"""Whether the likelihood has a unique maximum in the covariance of the effects and the noises.

    The residuals of the outcomes from the fixed effects have the covariance :math:`P (Z D Z^\top +
    \sum_o \sigma_o^2 I_o) P` with :math:`P = 1 - Q Q^\top`, linear in D and the :math:`\sigma_o^2`.
    These are determined if and only if its derivatives are linearly independent, that is if the
    matrix of their inner products :math:`\operatorname{tr}(P \dot V_a P \dot V_b)` is regular.
    Columns of each block of D are taken in an orthonormal basis, so that units and origins do not
    matter.

    Parameters
    ----------
    fixed : ndarray, shape (num_rows, num_terms)
        Orthonormal basis Q of the columns of fixed effects.
    random : array_like, shape (num_rows, num_effects)
    codes : ndarray of int, shape (num_rows,)
        Subject of each row.
    outputs : array_like, shape (num_rows, num_outputs), or None
    structure : Structure
    """
    random = np.asarray(random, float)
    blocks = [independent_columns(random[:, own]) for own in structure.slices]
    if any(dependent for _, dependent in blocks):
        return False
    columns = np.concatenate([basis for basis, _ in blocks], axis=1)
    kinds = np.ones((len(random), 1)) if outputs is None else np.asarray(outputs, float)
    inner, plain = _inner_products(fixed, columns, np.asarray(codes), kinds, structure)
    return bool(np.linalg.eigvalsh(inner / np.outer(plain, plain))[0] >= _SINGULAR)


def is_singular(random: ArrayLike, root: NDArray, noise: NDArray, structure: Structure) -> np.bool_:
    """Whether random effects have negligible spread along some direction of their columns.

    Parameters
    ----------
    random : array_like, shape (num_rows, num_effects)
    root : ndarray, shape (..., num_effects, num_effects)
        Factors of their covariance.
    noise : ndarray
    structure : Structure
    """
    basis = lower_basis(np, np.asarray(random, float), structure.blocks)
    spread = np.linalg.svd(np.linalg.solve(basis, root), compute_uv=False)
    return spread.min() <= _NO_SPREAD * noise.min()


def _inner_products(
    fixed: NDArray, random: NDArray, codes: NDArray, kinds: NDArray, structure: Structure
) -> tuple[NDArray, NDArray]:
    """Inner products of the derivatives by entries of D and the noises, and their lengths for P = 1.

    With the directions A of D, and for each subject s :math:`W_s = Z_s' Z_s`, :math:`C_s = Z_s' Q` and,
    of the rows of an output, :math:`W_{so}` and :math:`C_{so}`; :math:`T_o = Q' I_o Q`.
    """
    size, num_terms = random.shape[1], fixed.shape[1]
    rows, others = structure.entries
    turned = np.zeros((len(rows), size, size))
    turned[np.arange(len(rows)), rows, others] = turned[np.arange(len(rows)), others, rows] = 1.0

    columns = codes[:, None] * size + np.arange(size)
    places = np.repeat(np.arange(len(codes)), size), columns.ravel()
    spread = csr_array((random.ravel(), places), (len(codes), (codes.max() + 1) * size))
    order = np.argsort(codes, kind="stable")
    first = np.flatnonzero(np.diff(codes[order], prepend=-1))
    squares = (random[:, :, None] * random[:, None, :])[order]
    own = np.add.reduceat(squares, first, axis=0)
    cross = (spread.T @ fixed).reshape(-1, size, num_terms)[codes[order[first]]]
    taken = cross @ cross.mT
    seen = np.einsum("sip,aij,sjq->apq", cross, turned, cross, optimize=True)

    def traces(left: NDArray, right: NDArray) -> NDArray:
        """Sums over subjects of tr(A left B right)."""
        pairs = np.einsum("sjk,sli->jkli", left, right, optimize=True)
        return np.einsum("aij,jkli,bkl->ab", turned, pairs, turned, optimize=True)

    plain = traces(own, own)
    effects = plain - 2 * traces(own, taken) + np.einsum("apq,bqp->ab", seen, seen)
    between = [fixed.T @ (kind[:, None] * fixed) for kind in kinds.T]
    mixed = []
    for kind, inside in zip(kinds.T, between, strict=True):
        part = (spread.T @ (kind[:, None] * fixed)).reshape(-1, size, num_terms)[
            codes[order[first]]
        ]
        left = np.einsum("rij,r->ij", squares, kind[order])
        left = left - 2 * np.einsum("sip,sjp->ij", part, cross)
        left = left + np.einsum("sip,pq,sjq->ij", cross, inside, cross, optimize=True)
        mixed.append(np.einsum("aij,ij->a", turned, left))
    noises = np.einsum("opq,kqp->ok", between, between)
    count = kinds.sum(axis=0)
    noises = noises + np.diag(count - 2 * np.trace(between, axis1=1, axis2=2))
    inner = np.block([[effects, np.transpose(mixed)], [np.array(mixed), noises]])
    return inner, np.sqrt(np.concatenate([np.diag(plain), count]))
