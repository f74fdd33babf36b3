"""Learn a classifier by mixtures in a source domain, and judge one that was moved to another domain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import linear_sum_assignment
from sidebayes.models.blocks.classes.source_mixture import SourceMixture
from sidebayes.models.blocks.fields import check_integer, plain_array, point_table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

__all__ = ["ComponentMaps", "fit_source", "mixture_by_bic", "transformed_accuracy"]

_RIDGE = 1e-3
"""Share of the mean variance of a class that is added to the variances of its components."""


def fit_source(
    x: ArrayLike,
    labels: ArrayLike,
    *,
    num_components: int | Sequence[int] | None = None,
    most_components: int = 5,
    covariance: str = "full",
    num_restarts: int = 3,
    seed: int = 0,
) -> SourceMixture:
    """Mixture discriminant analysis: a Gaussian mixture for each class, by EM.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    labels : array_like of int, shape (num_points,)
        Classes from 0 on, each with two rows at least.
    num_components : int or sequence of int, optional
        Components of every class, or of each; by default as many as minimise BIC.
    most_components : int
        Where BIC chooses.
    covariance : {"full", "diagonal"}
    num_restarts, seed : int
        Of scikit-learn's `GaussianMixture`, which does the work; to variances a thousandth of the
        mean variance of the class is added.

    Returns
    -------
    SourceMixture

    Raises
    ------
    TypeError, ValueError
        If rows, labels or numbers of components do not fit, or a class is too small.

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
    points = point_table("x", x)
    owner = _class_numbers(labels, len(points))
    if covariance not in ("full", "diagonal"):
        raise ValueError(f"covariance = {covariance!r:.60}; expected 'full' or 'diagonal'")
    num_classes = int(owner.max()) + 1
    each = num_components if isinstance(num_components, Sequence | np.ndarray) else None
    wanted = [num_components] * num_classes if each is None else list(each)
    if len(wanted) != num_classes:
        raise ValueError(
            f"num_components has {len(wanted)} entries for {num_classes} classes; give one for each"
        )
    parts = []
    for c, number in enumerate(wanted):
        rows = points[owner == c]
        if number is not None:
            number = check_integer("num_components", number, 1, len(rows) + 1)
        parts.append(mixture_by_bic(rows, number, most_components, covariance, num_restarts, seed))
    sizes = np.bincount(owner) / len(points)
    return SourceMixture(
        np.concatenate([s * part.weights_ for s, part in zip(sizes, parts, strict=True)]),
        np.concatenate([part.means_ for part in parts]),
        np.concatenate([_matrices(part) for part in parts]),
        np.repeat(np.arange(num_classes), [part.n_components for part in parts]),
    )


def mixture_by_bic(
    x: NDArray,
    num_components: int | None,
    most_components: int = 5,
    covariance: str = "full",
    num_restarts: int = 3,
    seed: int = 0,
) -> GaussianMixture:
    """Gaussian mixture of rows, of so many components, or of as many as minimise BIC."""
    most = min(check_integer("most_components", most_components), len(x))
    numbers = range(1, most + 1) if num_components is None else [num_components]
    kind = "diag" if covariance == "diagonal" else covariance
    ridge = _RIDGE * x.var(axis=0).mean() or _RIDGE
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number in numbers:
            mixture = GaussianMixture(
                number,
                covariance_type=kind,
                reg_covar=ridge,
                n_init=num_restarts,
                random_state=seed,
            )
            found.append(mixture.fit(x))
    return min(found, key=lambda mixture: mixture.bic(x))


def _class_numbers(labels: ArrayLike, num_points: int) -> NDArray[np.int64]:
    """Classes from 0 on, none of which is missing."""
    found = plain_array("labels", labels)
    if found.dtype.kind not in "iu" or found.shape != (num_points,):
        raise TypeError(
            f"labels has shape {found.shape} and type {found.dtype}; expected {num_points} integers, the "
            "class of each row: np.unique(labels, return_inverse=True)[1] numbers names"
        )
    if found.min() < 0:
        raise ValueError("labels has negative entries; every row of the source needs a class")
    sizes = np.bincount(found)
    if (sizes < 2).any():
        c = int(np.argmax(sizes < 2))
        raise ValueError(
            f"labels name class {c} in {sizes[c]} rows; every class from 0 to {len(sizes) - 1} needs two "
            "rows at least, drop or merge it and number the others anew"
        )
    return found.astype(int)


def _matrices(mixture: GaussianMixture) -> NDArray[np.float64]:
    """Covariances as matrices."""
    given = mixture.covariances_
    return given if given.ndim == 3 else given[:, :, None] * np.eye(given.shape[1])


class ComponentMaps:
    r"""Affine maps from the components of one mixture to those of another.

    Components are matched one to one at least total squared distance of their means. With Cholesky
    factors A, component i that is matched with j has the map
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
        apart = ((source.means_[:, None] - target.means_) ** 2).sum(axis=-1)
        self.matched = np.stack(linear_sum_assignment(apart), axis=1)

    def __call__(self, x: NDArray) -> NDArray[np.float64]:
        """Images of points under the map of each matched component, (num_matched, num_points, d)."""
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
        Rows of the source and their classes.
    maps : ComponentMaps
        Between mixtures of all rows of the source, and of the target.
    predict : callable
        Classes of rows of the target.
    class_weights : array_like, shape (num_classes,)
        How frequent the classes are in the target.

    References
    ----------
    Raghuram (2014), eq. 4.19.
    """
    rows, owner = point_table("x", x), _class_numbers(labels, len(np.asarray(x)))
    shares = np.bincount(owner) / len(owner)
    ratio = np.asarray(class_weights, float) / shares
    member = maps.source.predict_proba(rows)[:, maps.matched[:, 0]]
    images = maps(rows)
    guess = np.asarray(predict(images.reshape(-1, rows.shape[1]))).reshape(images.shape[:2])
    return float((ratio[owner] * (member * np.equal(guess.T, owner[:, None])).sum(axis=1)).mean())
