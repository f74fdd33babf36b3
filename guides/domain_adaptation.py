"""Mixture classifiers in a source domain, and the assessment of classifiers moved to another domain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp
from sidebayes.models.blocks.classes.source_mixture import SourceMixture
from sidebayes.models.blocks.side_information.groups import refuse_mixed_orders
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels, as_partial_labels
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from sidebayes.common.arrays import point_table
from sidebayes.common.columns import column_names
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import counted, shown

from .engines.machine.algebra import one_thread_each
from .engines.plumbing.progress import progress_bar

__all__ = ["ComponentMaps", "fit_source", "mixture_by_bic", "transformed_accuracy"]

_RIDGE = 1e-3
"""Share of the variance of each feature in a class that is added to the variances of its components."""

_FOLDS = 5
"""Number of folds of rows by which one tests whether several components predict classes better."""

_FEWEST = 2
"""Minimum number of rows of a class that are never left out, as a mixture needs two."""


def fit_source(
    x: ArrayLike,
    labels: ArrayLike | PartialLabels,
    *,
    num_components: int | Sequence[int] | None = None,
    most_components: int = 5,
    covariance: str = "full",
    num_restarts: int = 3,
    seed: int = 0,
    progress: bool = True,
) -> SourceMixture:
    """Mixture discriminant analysis: a Gaussian mixture for each class, by EM.

    Parameters
    ----------
    x : array_like or data frame, shape (num_points, num_features)
        The source keeps the names of a data frame's columns, by which those of a target are matched.
    labels : array_like or PartialLabels, shape (num_points,)
        Classes by name, or by number from 0 on, each with at least two rows. The source keeps the names
        in sorted order, or in that of the labels, and known classes of a target are matched by them.
    num_components : int or sequence of int, optional
        Number of components of every class, or of each one. By default it minimises BIC among
        numbers for which the class has as many rows as there are parameters, and each component
        half as many. Every class has a single component instead if that predicts the classes of
        held-out rows better (by log probability, in five folds).
    most_components : int
        Maximum number of components per class that BIC may choose.
    covariance : {"full", "diagonal"}
    num_restarts, seed : int
        Parameters of scikit-learn's `GaussianMixture`, which does the work. A thousandth of the
        variance of each feature in the class is added to its variance, so that units do not matter.
    progress : bool

    Returns
    -------
    SourceMixture

    Raises
    ------
    TypeError, ValueError
        If rows, labels or numbers of components do not match, or a class is too small.

    References
    ----------
    Hastie and Tibshirani (1996), J. R. Stat. Soc. B 58, 155-176. Raghuram (2014), section 4.2.1.

    Examples
    --------
    >>> import sidebayes
    >>> iris = sidebayes.load_dataset("iris")
    >>> sidebayes.fit_source(iris.x, iris.labels, num_components=1)
    SourceMixture(4 features, [1, 1, 1] components by class)
    """
    refuse_mixed_orders(x=x, labels=labels)
    names = column_names(x)
    points = point_table("x", x)
    owner, class_names = _class_numbers(labels, len(points))
    if not isinstance(covariance, str) or covariance not in ("full", "diagonal"):
        raise ValueError(f"covariance = {shown(covariance)}; expected 'full' or 'diagonal'")
    num_classes = int(owner.max()) + 1
    each = num_components if isinstance(num_components, Sequence | np.ndarray) else None
    wanted: list[Any] = [num_components] * num_classes if each is None else list(each)
    if len(wanted) != num_classes:
        raise ValueError(
            f"num_components has {len(wanted)} entries for {num_classes} classes; give one for each"
        )
    for number, size in zip(wanted, np.bincount(owner), strict=True):
        if number is not None:
            check_integer("num_components", number, 1, int(size) + 1)
    steps = num_classes * (2 * _FOLDS + 1 if None in wanted else 1)
    with progress_bar("source", steps, shown=progress) as advance:

        def mixture(rows: NDArray, number: int | None, unit: NDArray) -> GaussianMixture:
            given = most_components, covariance, num_restarts, seed, unit
            found = mixture_by_bic(rows, number, *given)
            advance(1, f"{found.n_components} components of {len(rows)} rows")
            return found

        best = _by_class(points, owner, wanted, mixture)
        found = [part.n_components for part in best.parts]
        plain = [1 if number is None else number for number in wanted]
        if plain != found:
            scores = [_held_out(points, owner, numbers, mixture) for numbers in (plain, found)]
            best = best if scores[1] > scores[0] else _by_class(points, owner, plain, mixture)
    return SourceMixture(
        np.concatenate([s * part.weights_ for s, part in zip(*best, strict=True)]),
        np.concatenate([part.means_ for part in best.parts]),
        np.concatenate([_matrices(part) for part in best.parts]),
        np.repeat(np.arange(num_classes), [part.n_components for part in best.parts]),
        feature_names=names,
        class_names=class_names,
    )


class _Classes(NamedTuple):
    """Shares of classes among the rows, and a mixture for the rows of each class."""

    shares: NDArray
    parts: list[GaussianMixture]


def _by_class(
    points: NDArray,
    owner: NDArray,
    numbers: Sequence[int | None],
    mixture: Callable[..., GaussianMixture],
) -> _Classes:
    """Fit a mixture to the rows of each class, by `mixture_by_bic`."""
    sizes = np.bincount(owner) / len(points)
    spreads = np.stack([_spread(points[owner == c]) for c in range(len(numbers))])
    typical = np.sqrt(sizes @ spreads**2)
    parts = [
        mixture(points[owner == c], number, _units(spreads[c], typical))
        for c, number in enumerate(numbers)
    ]
    return _Classes(sizes, parts)


def _held_out(
    points: NDArray, owner: NDArray, numbers: Sequence[int], mixture: Callable[..., GaussianMixture]
) -> float:
    """Return the log probability of the classes of held-out rows, in five folds of each class."""
    fold = np.full(len(points), -1)
    rng = np.random.default_rng(0)
    for rows in (np.flatnonzero(owner == c) for c in range(len(numbers))):
        if len(rows) > _FEWEST:
            fold[rng.permutation(rows)] = np.arange(len(rows)) % _FOLDS
    total = 0.0
    for held in (fold == f for f in range(_FOLDS)):
        if held.any():
            shares, parts = _by_class(points[~held], owner[~held], numbers, mixture)
            joint = np.log(shares) + np.stack([p.score_samples(points[held]) for p in parts], 1)
            own = np.take_along_axis(joint, owner[held][:, None], axis=1)
            total += (own - logsumexp(joint, axis=1, keepdims=True)).sum()
    return total


def mixture_by_bic(
    x: NDArray,
    num_components: int | None,
    most_components: int = 5,
    covariance: str = "full",
    num_restarts: int = 3,
    seed: int = 0,
    unit: NDArray | None = None,
) -> GaussianMixture:
    """Fit a Gaussian mixture with a given number of components, or with the number that minimises BIC.

    BIC presumes that every component has enough rows to learn it from. Numbers of components are left out
    if there are fewer rows than parameters, or one component has fewer than half as many.

    Parameters
    ----------
    x : ndarray, shape (num_points, num_features)
    num_components : int or None
    most_components, covariance, num_restarts, seed
        See `fit_source`.
    unit : ndarray, shape (num_features,), optional
        Standard deviations of the features; a thousandth of their squares is added to variances.
    """
    most = min(check_integer("most_components", most_components), len(x))
    numbers = range(1, most + 1) if num_components is None else [num_components]
    kind = "diag" if covariance == "diagonal" else covariance
    held = _parameters(x.shape[1], kind)
    centre, unit = x.mean(axis=0), _units(_spread(x), 0.0) if unit is None else unit
    found: list[GaussianMixture] = []
    with one_thread_each(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number in numbers:
            if found and number * held > len(x):
                break
            mixture = GaussianMixture(
                number,
                covariance_type=kind,
                reg_covar=_RIDGE,
                n_init=check_integer("num_restarts", num_restarts),
                random_state=check_integer("seed", seed, 0, 2**32),
            )
            mixture.fit((x - centre) / unit)
            if found and mixture.weights_.min() * len(x) < held / 2:
                continue
            found.append(mixture)
    best = min(found, key=lambda mixture: mixture.bic((x - centre) / unit))
    return _rescaled(best, centre, unit)


def _parameters(num_features: int, kind: str) -> int:
    """Number of free parameters of the mean and covariance of one component."""
    spread = num_features if kind == "diag" else num_features * (num_features + 1) // 2
    return num_features + spread


def _spread(x: NDArray) -> NDArray[np.float64]:
    """Return standard deviations of features, exactly zero where one is constant."""
    return (x - x[0]).std(axis=0)


def _units(spread: NDArray, typical: ArrayLike) -> NDArray[np.float64]:
    """Return standard deviations of features, at least a tenth of typical ones; one where all are zero."""
    found = np.maximum(spread, 0.1 * np.asarray(typical))
    return np.where(found > 0, found, 1.0)


def _rescaled(mixture: GaussianMixture, centre: NDArray, unit: NDArray) -> GaussianMixture:
    """Return the mixture of the rows themselves, from that of rows in other units."""
    if mixture.covariance_type == "full":
        mixture.covariances_ = mixture.covariances_ * (unit[:, None] * unit)
        mixture.precisions_ = mixture.precisions_ / (unit[:, None] * unit)
        mixture.precisions_cholesky_ = mixture.precisions_cholesky_ / unit[:, None]
    else:
        mixture.covariances_ = mixture.covariances_ * unit**2
        mixture.precisions_ = mixture.precisions_ / unit**2
        mixture.precisions_cholesky_ = mixture.precisions_cholesky_ / unit
    mixture.means_ = mixture.means_ * unit + centre
    return mixture


def _class_numbers(
    labels: ArrayLike | PartialLabels, num_points: int
) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Return classes from 0 on, none of them missing, and their names, if they have names."""
    told = as_partial_labels(labels)
    found, names = told.values, told.names
    if found.shape != (num_points,):
        raise ValueError(
            f"labels has shape {found.shape}; expected ({num_points},), the class of each row"
        )
    if (found < 0).any():
        raise ValueError(
            f"labels[{int(np.argmin(found))}] is no class; every row of the source needs one"
        )
    sizes = np.bincount(found, minlength=0 if names is None else len(names))
    if len(sizes) < 2:
        raise ValueError(
            "labels name one class alone, which leaves nothing to classify; give rows of two classes at least"
        )
    if (sizes < 2).any():
        c = int(np.argmax(sizes < 2))
        which = f"{c}" if names is None else repr(names[c])
        every = f"from 0 to {len(sizes) - 1}" if names is None else f"of {list(names)}"
        raise ValueError(
            f"labels name class {which} in {counted(sizes[c], 'row')}; every class {every} needs two "
            f"rows at least, drop or merge it{' and number the others anew' if names is None else ''}"
        )
    return found.astype(int), names


def _matrices(mixture: GaussianMixture) -> NDArray[np.float64]:
    """Return the covariances as matrices."""
    given = mixture.covariances_
    return given if given.ndim == 3 else given[:, :, None] * np.eye(given.shape[1])


class ComponentMaps:
    r"""Affine maps from the components of one mixture to those of another.

    Components are matched one to one at least total squared distance of their means, each feature in
    deviations of the source. With Cholesky factors A, component i that is matched with j has the map
    :math:`T_i(x) = A_j A_i^{-1} (x - m_i) + m_j`, which takes one Gaussian to the other (any
    orthogonal matrix between the factors would do so as well).

    Parameters
    ----------
    source, target : GaussianMixture
        Fitted, of full covariances.

    Attributes
    ----------
    matched : ndarray of int, shape (num_matched, 2)
        Components of the source, and of the target.

    References
    ----------
    Raghuram (2014), section 4.3.1, eq. 4.18.
    """

    def __init__(self, source: GaussianMixture, target: GaussianMixture) -> None:
        self.source, self.target = source, target
        middle = source.weights_ @ source.means_
        spread = source.weights_ @ (
            (source.means_ - middle) ** 2 + np.diagonal(source.covariances_, axis1=1, axis2=2)
        )
        apart = ((source.means_[:, None] - target.means_) ** 2 / spread).sum(axis=-1)
        self.matched = np.stack(linear_sum_assignment(apart), axis=1)

    def __call__(self, x: NDArray) -> NDArray[np.float64]:
        """Return images of points under the map of each matched component, (num_matched, num_points, d)."""
        here, there = self.source, self.target
        before, after = (np.linalg.cholesky(one.covariances_) for one in (here, there))
        images = []
        for i, j in self.matched:
            white = solve_triangular(before[i], (x - here.means_[i]).T, lower=True)
            images.append((after[j] @ white).T + there.means_[j])
        return np.stack(images)


def transformed_accuracy(
    x: ArrayLike,
    labels: ArrayLike,
    maps: ComponentMaps,
    predict: Callable[[NDArray], NDArray],
    class_weights: ArrayLike,
) -> float:
    r"""Accuracy of a target's classifier at source points that are moved to the target.

    .. math:: \text{TSA} = \frac{1}{N} \sum_{(x, c)} \frac{\pi^t_c}{\pi^s_c}
              \sum_i P_s(i | x)\, [\hat{C}(T_i(x)) = c]

    over matched components i. In [0, 1], and below one where components of the source have no match.

    Parameters
    ----------
    x, labels : array_like
        Rows of the source and the numbers of their classes.
    maps : ComponentMaps
        Between mixtures of all rows of the source, and of the target.
    predict : callable
        Numbers of the classes of rows of the target.
    class_weights : array_like, shape (num_classes,)
        How frequent the classes are in the target.

    References
    ----------
    Raghuram (2014), eq. 4.19.
    """
    rows = point_table("x", x)
    owner, names = _class_numbers(labels, len(rows))
    if names is not None:
        raise TypeError(f"labels name the classes {list(names)}; give their numbers")
    shares = np.bincount(owner) / len(owner)
    ratio = np.asarray(class_weights, float) / shares
    member = maps.source.predict_proba(rows)[:, maps.matched[:, 0]]
    images = maps(rows)
    guess = np.asarray(predict(images.reshape(-1, rows.shape[1]))).reshape(images.shape[:2])
    return float((ratio[owner] * (member * np.equal(guess.T, owner[:, None])).sum(axis=1)).mean())
