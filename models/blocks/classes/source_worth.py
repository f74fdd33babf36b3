"""Worth of a source in points of a target domain, from the distance that the target has moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import logsumexp

from ..side_information.partial_labels import PartialLabels, as_partial_labels
from .source_mixture import SourceMixture
from .stated import noise_of_strength

__all__ = ["SourceWorth", "chosen_weights_worth", "chosen_worth", "source_worth", "trusted"]

_DOUBT = 3.0
"""Difference of log evidences below which neither of two explanations is preferred."""

_MOVE = 6.0
"""Log evidence needed for components to move: a chance move costs more than a small one gains."""

_MOST = 100.0
"""Worth per component of a source from which the target has not moved, in sizes of the target."""

_STEPS = 4
"""Number of worths tried per decade."""

_CLIMB = 200
"""Maximum number of EM steps for the comparison of two explanations by likelihood."""

_CLOSE = 0.01
"""Increase of the log likelihood, in nats, below which EM stops."""

_NOISE = 0.001
"""Probability of an error from which on stated classes are not used for the means of classes."""


class SourceWorth(NamedTuple):
    """Worth of a source in points of a target, and the evidence for it.

    Attributes
    ----------
    means : ndarray, shape (num_components,)
        Worth of the means and covariances, by component; the same for all.
    weights : ndarray, shape ()
        Worth of the weights, for all components together.
    reweighted, moved : float
        Log evidence, relative to no change, that only the frequencies of classes have changed, and
        that only components have moved; zero inside compiled programs.
    is_doubtful : bool
        Whether something has changed, and neither of the two alone is preferred.
    """

    means: NDArray[np.float64] | Array
    weights: NDArray[np.float64] | Array
    reweighted: float = 0.0
    moved: float = 0.0
    is_doubtful: bool = False


def source_worth(
    source: SourceMixture, x: ArrayLike, known: PartialLabels | None = None
) -> SourceWorth:
    r"""Worth of the means and of the weights of a source, by their evidence in moments of the target.

    Frequencies of classes may have changed, and components may have moved. Both change the mean of
    the target, but they change its spread differently. With whitened rows z, in which the whole
    source has mean zero and covariance one, and discriminant directions U, the span of the means of
    the classes, let t be the mean over the rows of z and :math:`(U^\top z)^2`, and the mean over
    rows of known class of :math:`U^\top (z - m_y)`, :math:`m_c` being the means of the classes. If
    the weights of the source have the prior Dirichlet(:math:`a\, w^s`), and means
    :math:`\mathcal{N}(\mu^s_k, \Sigma^s_k / \kappa)`, independently, then the deviation of t from
    its expectation under the source is, to first order in the moves,

    .. math:: \Delta \sim \mathcal{N}\Bigl(0,\; S + \tfrac{1}{a + 1} G^\top (\text{diag}\, \pi - \pi
              \pi^\top) G + \tfrac1\kappa \sum_k H_k \Sigma^s_k H_k^\top + R\Bigr).

    :math:`\pi` are the frequencies of the classes in the source. Row c of G is the expectation of t
    in class c, and zero for rows of known class, whose distances from the means of classes do not
    depend on frequencies. :math:`H_k` are the derivatives with respect to the mean of component k.
    R is the variance of the squares if covariances move as well, by :math:`\kappa + 2d + 1` points.
    S is the sampling covariance: that of the rows, shrunk towards that of normal rows with a weight
    of as many rows as t has entries, and doubled, as if the source had been learned from as many
    rows.

    The worths :math:`\kappa` and a maximise the density, with a at most :math:`K \kappa` for K
    components. Means are held fixed, by a worth of a hundred times all rows of the target, unless
    their move adds six nats to what frequencies explain. Poorly fitting components mislead a
    likelihood, but not these moments: a mixture that was fitted by maximum likelihood reproduces
    the mean and the covariance of the rows of each class in any case, whatever their frequencies.
    Only if a move alone is also within three nats of the largest density, two models with equal
    numbers of parameters are compared by their likelihoods: other frequencies of the classes, and
    one translation of all components along U. If the translation is ahead, frequencies are held
    fixed, and components move if the density of a move is six nats above that of no change. If all
    covariances are diagonal, the features replace U, because products of features then differ from
    those of the rows. (Own derivation. If a is small and means are held fixed, the fit is that of
    Saerens, Latinne and Decaestecker 2002, Neural Computation 14, 21-41: EM of the frequencies.)

    Parameters
    ----------
    source : SourceMixture
    x : array_like, shape (num_points, num_features)
    known : PartialLabels, optional
        Classes of the rows, which distinguish a move of the means from a change of frequencies.

    Returns
    -------
    SourceWorth
    """
    given = source.weights, source.mean, source.covariance, x
    told = None if known is None else as_partial_labels(known).values
    if np.shape(x)[1] != source.num_features:  # refused where the components are made
        return SourceWorth(np.ones(source.num_components), np.array(1.0))
    if not any(isinstance(one, Tracer) for one in (*given, told)):
        return _worth(source.table, told, *map(np.asarray, given))

    def called(told: Any, *given: Any) -> tuple[NDArray, NDArray]:
        found = _worth(source.table, told, *(np.asarray(one, float) for one in given))
        return np.asarray(found[0], dtype), np.asarray(found[1], dtype)

    dtype = jnp.result_type(float)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((source.num_components,), ())]
    return SourceWorth(*jax.pure_callback(called, tuple(shapes), told, *given))


class _Whitened(NamedTuple):
    """A target and its source, in coordinates where the whole source has mean zero and covariance one."""

    rows: NDArray
    centre: NDArray
    spread: NDArray
    weights: NDArray
    table: NDArray
    owner: NDArray
    """Class of each row; -1 if it is unknown."""
    axes: NDArray
    """Directions in which frequencies of classes change the spread, in columns."""


class _Moments(NamedTuple):
    """Differences of the target's moments from the source, and their sources of variation."""

    off: NDArray
    noise: NDArray
    frequencies: NDArray
    """Root of their covariance under a flat prior of the frequencies."""
    moves: NDArray
    """Their covariance if means move by one point each."""
    spreads: NDArray
    """Their covariance if covariances move by one point each."""


def _worth(
    table: NDArray,
    told: ArrayLike | None,
    weights: NDArray,
    mean: NDArray,
    cov: NDArray,
    x: NDArray,
) -> SourceWorth:
    """See `source_worth`; no array is traced."""
    owner = np.full(len(x), -1) if told is None else as_partial_labels(np.asarray(told)).classes
    white = _whitened(table, owner, weights, mean, cov, x)
    size, still = len(weights), _MOST * len(x)
    kappa, spare = (
        np.append(10.0 ** np.arange(low, np.log10(still), 1 / _STEPS), np.inf)
        for low in (-2.0, -1.0)
    )
    evidence = _evidence(_moments(white), kappa, spare, 2 * x.shape[1] + 1)
    best, reweighted, moved = evidence.max(), evidence[:, -1].max(), evidence[-1].max()
    a, k, doubtful = int(evidence[:, -1].argmax()), len(kappa) - 1, False
    if best - reweighted >= _MOVE:
        a, k = divmod(int(evidence.argmax()), len(kappa))
    elif reweighted > 0 and best - moved < _DOUBT:
        ahead = _ahead(white)
        doubtful = bool(best > _DOUBT and abs(ahead) < _DOUBT)
        if ahead < 0:
            a, k = len(spare) - 1, int(evidence[-1].argmax()) if moved >= _MOVE else k
    worth = min(kappa[k], still)
    return SourceWorth(
        np.full(size, worth),
        np.array(min(spare[a], size * worth)),
        float(reweighted),
        float(moved),
        doubtful,
    )


def _whitened(
    table: NDArray, owner: NDArray, weights: NDArray, mean: NDArray, cov: NDArray, x: NDArray
) -> _Whitened:
    """Whiten a target by its source, and find the axes."""
    middle = weights @ mean
    total = np.einsum("k,kij->ij", weights, cov) + (weights * (mean - middle).T) @ (mean - middle)
    unit = np.sqrt(total.diagonal())
    root = np.linalg.cholesky(total / (unit[:, None] * unit))
    white = lambda rows: np.linalg.solve(root, (rows / unit).T).T  # noqa: E731
    centre = white(mean - middle)
    spread = np.stack([white(white(one).T) for one in cov])
    if (cov == cov * np.eye(len(unit))).all():
        axes = root.T
    else:
        shares = weights @ table
        classes = (table * weights[:, None]).T @ centre / np.sqrt(shares)[:, None]
        _, values, rows = np.linalg.svd(classes, full_matrices=False)
        axes = rows[: len(shares) - 1][values[: len(shares) - 1] > 1e-6].T
    return _Whitened(white(x - middle), centre, spread, weights, table, owner, axes)


def _moments(white: _Whitened) -> _Moments:
    """Moments of a target, in units of their deviations."""
    z, centre, spread, weights, table, owner, axes = white
    number, width = z.shape
    shares = weights @ table
    within = table * weights[:, None] / shares  # of components in classes
    place, seen = centre @ axes, np.einsum("iq,kij,jr->kqr", axes, spread, axes)
    expected = np.hstack([centre, place**2 + seen.diagonal(axis1=1, axis2=2)])
    found = np.hstack([z, (z @ axes) ** 2])
    size = found.shape[1]
    normal = np.diag(np.repeat([1.0, 2.0], [width, axes.shape[1]]))
    own = np.cov(found.T, bias=True) if number > 1 else normal
    off = found.mean(axis=0) - weights @ expected
    noise = 2.0 * (size * normal + number * own) / (size + number) / number
    slopes = [
        np.vstack([w * np.eye(width), 2 * w * at[:, None] * axes.T])
        for w, at in zip(weights, place, strict=True)
    ]
    known = owner >= 0
    if known.any():
        classes = within.T @ centre
        of = np.bincount(owner[known], minlength=len(shares)) / known.sum()
        inner = centre - table @ classes
        each = np.einsum("c,kc,kij->ij", of, within, spread)
        each += np.einsum("c,kc,ki,kj->ij", of, within, inner, inner)
        wide = axes.T @ each @ axes * (1 / known.sum() + 1 / number)
        off = np.append(off, ((z - classes[owner])[known] @ axes).mean(axis=0))
        noise = block_diag(noise, wide)
        slopes = [np.vstack([h, w * axes.T]) for h, w in zip(slopes, within @ of, strict=True)]
    moves = sum(h @ one @ h.T for h, one in zip(slopes, spread, strict=True))
    spreads = np.zeros_like(noise)
    spreads[width:size, width:size] = np.einsum("k,kqr->qr", 2 * weights**2, seen**2)
    frequencies = np.zeros((len(off), len(shares)))
    flat = np.sqrt(shares)[:, None] * (np.eye(len(shares)) - np.sqrt(np.outer(shares, shares)))
    frequencies[:size] = expected.T @ within @ flat
    scale = np.sqrt(noise.diagonal())
    both = scale[:, None] * scale
    noise = noise / both + 1e-10 * np.eye(len(scale))  # squares of far rows are one with the rows
    return _Moments(off / scale, noise, frequencies / scale[:, None], moves / both, spreads / both)


def _evidence(
    moments: _Moments, kappa: NDArray, spare: NDArray, fewest: int
) -> NDArray[np.float64]:
    """Log densities of moments by worth of weights and of means, relative to the last worths."""
    off, noise, frequencies, moves, spreads = moments
    points, total = kappa[:, None, None], spare[:, None, None] + 1
    root = np.linalg.cholesky(noise + moves / points + spreads / (points + fewest))
    apart = np.linalg.solve(root, np.column_stack([off, frequencies]))
    off, bent = apart[..., 0], apart[..., 1:]
    values, turn = np.linalg.eigh(np.einsum("jpc,jpd->jcd", bent, bent))
    along = np.einsum("jce,jpc,jp->je", turn, bent, off) ** 2
    values = np.maximum(values, 0.0)
    fit = (off**2).sum(axis=1) - (along / (total + values)).sum(axis=2)
    found = -0.5 * (fit + np.log1p(values / total).sum(axis=2))
    found -= np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return found - found[-1, -1]


def _ahead(white: _Whitened) -> float:
    """Log likelihood of other frequencies minus that of one translation along the axes, both by EM."""
    z, centre, spread, weights, table, owner, axes = white
    roots = np.linalg.cholesky(spread)
    apart = np.linalg.solve(roots, (z - centre[:, None]).transpose(0, 2, 1))
    along = np.linalg.solve(roots, np.broadcast_to(axes, (len(roots), *axes.shape)))
    slope = np.einsum("kdq,kdn->nkq", along, apart)
    curve = np.einsum("kdq,kdr->kqr", along, along)
    held = -0.5 * (apart**2).sum(axis=1).T - np.log(roots.diagonal(axis1=1, axis2=2)).sum(axis=1)
    held = np.where((owner >= 0)[:, None] & (table.T[owner] == 0), -np.inf, held)
    within = weights / (table @ (weights @ table))

    def climbed(update: Any, step: Any, joint: Any) -> float:
        before, now = -np.inf, -1e300
        for _ in range(_CLIMB):
            log_joint = joint(step)
            rows = logsumexp(log_joint, axis=1, keepdims=True)
            before, now = now, rows.sum()
            if now - before < _CLOSE:
                break
            step = update(np.exp(log_joint - rows))
        return now

    def reweighted(member: NDArray) -> NDArray:
        return within * (table @ (member.mean(axis=0) @ table))

    def translated(member: NDArray) -> NDArray:
        return np.linalg.solve(
            np.einsum("k,kqr->qr", member.sum(axis=0), curve), np.einsum("nk,nkq->q", member, slope)
        )

    def with_weights(step: NDArray) -> NDArray:
        return held + np.log(np.maximum(step, np.finfo(float).tiny))

    def with_translation(step: NDArray) -> NDArray:
        return (
            held + np.log(weights) + slope @ step - 0.5 * np.einsum("q,kqr,r->k", step, curve, step)
        )

    return climbed(reweighted, weights, with_weights) - climbed(
        translated, np.zeros(axes.shape[1]), with_translation
    )


def trusted(
    known: PartialLabels | None, strength: float, source: SourceMixture
) -> PartialLabels | None:
    """Known classes if the probability of an error is small, else None."""
    return known if noise_of_strength(strength, source.num_classes) < _NOISE else None


def _chosen(data: Mapping[str, Any], options: Mapping[str, Any]) -> SourceWorth | None:
    """Worth of the source if the prior depends on it, from the arguments of a model."""
    source, shift, x = options.get("source"), options.get("shift", "source"), data.get("x")
    if (
        x is None
        or not isinstance(source, SourceMixture)
        or not (isinstance(shift, str) and shift == "source")
    ):
        return None
    strength = options.get("strength", 100.0)
    return source_worth(source, x, trusted(data.get("known"), strength, source))


def chosen_worth(
    data: Mapping[str, Any], options: Mapping[str, Any]
) -> NDArray[np.float64] | Array | None:
    """Worth of the means if the prior depends on it and none is given, from a model's arguments.

    Parameters
    ----------
    data : mapping
        Data by name, of which ``x`` and ``known`` are used.
    options : mapping
        Options by name: ``source``, ``shift`` and ``strength``.
    """
    found = _chosen(data, options)
    return None if found is None else found.means


def chosen_weights_worth(
    data: Mapping[str, Any], options: Mapping[str, Any]
) -> NDArray[np.float64] | Array | None:
    """Worth of the weights; None if the worth of the means is given, which then applies to both.

    Parameters
    ----------
    data, options : mapping
        See `chosen_worth`.
    """
    found = None if data.get("worth") is not None else _chosen(data, options)
    return None if found is None else found.weights
