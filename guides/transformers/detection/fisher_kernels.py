"""Fisher kernels on random effects: series of subjects as points of a vector space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown

from .likelihood_ratio import class_populations
from .population import MixPrior, Population, Whitened, triangular_root
from .table import LongTable, check_labels

__all__ = ["FisherFeatures", "expected_score"]

_FLAT = 1e-10
"""Information, relative to the largest, below which a direction counts as having none."""

_JITTER = 1e-8
"""Share of the variances that is added to the covariances in design A, whose effects need a density."""


class FisherFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Features whose inner products are a Fisher kernel (Lu 2008, chapter 10).

    The kernel compares how two subjects would move the parameters :math:`\Theta` of the law of random
    effects (Jaakkola and Haussler 1999):

    .. math:: K(y, y') = g(y)^\top I^{-1} g(y'), \qquad g(y) = E[\nabla_\Theta \log p(v; \Theta) \mid y],
              \qquad I = E[\nabla_\Theta \log p(v; \Theta) \nabla_\Theta \log p(v; \Theta)^\top],

    where v are the latent variables of a subject; the distribution of what is observed given them
    is held fixed. By Fisher's identity g(y) is also the score
    :math:`\nabla_\Theta \log p(y; \Theta)`. For one population with effects :math:`b = L u`, in
    coordinates with I = 1, it is

    .. math:: \psi(y) = \big( E[u_i],\ (E[u_i^2] - 1) / \sqrt 2,\ E[u_i u_j]_{i<j} \mid y \big).

    Let :math:`r_m(y)` be the probability of class m, and :math:`\pi_m` its share. The designs are

    ``"C"``
        v = b in one population, the second class: features :math:`\psi_1` (eq. 10.24). With the labels
        exchanged it is the first class.
    ``"B"``
        v = (b, class): features :math:`r_m / \sqrt{\pi_m}\, \psi_m` of both classes, and the score of the
        share, :math:`(r_1 - \pi_1) / \sqrt{\pi_0 \pi_1}` (eq. 10.18). The kernel is that of the thesis
        less 1, as shares add up to one; support vector machines see no difference.
    ``"A"``
        v = b in the mixture of both populations (eq. 10.12), whose information is found by Monte Carlo.
        The score is that of design B, exact if the noise of both classes is the same. Where one
        covariance is singular, effects determine the classes, and the design is that of B.
    ``"marginalised"``
        :math:`\sum_m r_m r_m' \psi_m^\top \psi_m'` (eq. 10.21), without the score of the share.

    The kernels do not depend on units or origin of the columns, except for Monte Carlo error in
    design A, whose draws change with the origin. A subject without information has features zero in
    design C. Scaled so that the training subjects have mean squared length 1, they suit
    ``SVC(kernel="linear", C=10)``.

    Parameters
    ----------
    design : {"A", "B", "C", "marginalised"}
    populations : sequence of two Population, optional
        Populations to use in place of maximum likelihood estimates from the subjects of each class.
    num_draws : int
        Number of Monte Carlo draws of design A.
    random_state : int, RandomState or None
        Randomness of the draws of design A.

    Attributes
    ----------
    populations_ : list of Population
    class_prior_ : ndarray, shape (2,)
    scale_ : float
        Divisor of the features.
    whitening_ : ndarray, shape (num_scores, num_features)
        Factor W of the inverse information W W', design A only. Directions that no effect tells
        apart, such as a shift between equal populations, are left out.

    Examples
    --------
    >>> import sidebayes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.svm import SVC
    >>> seen = sidebayes.simulate_decline("steps")
    >>> table = LongTable.from_times(seen["value"], seen["age"], seen["subject"], center=80, unit=10)
    >>> labels = table.by_subject(seen["impaired"])
    >>> machine = make_pipeline(FisherFeatures("C"), SVC(kernel="linear", C=10)).fit(table, labels)
    >>> machine.decision_function(table).shape
    (143,)
    """

    def __init__(
        self,
        design: Literal["A", "B", "C", "marginalised"] = "C",
        *,
        populations: Sequence[Population] | None = None,
        num_draws: int = 200_000,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.design = design
        self.populations = populations
        self.num_draws = num_draws
        self.random_state = random_state

    def fit(self, X: LongTable, y: ArrayLike) -> Self:
        """Estimate both populations, and the information of design A.

        Parameters
        ----------
        X : LongTable
        y : array_like, shape (num_subjects,)
            Labels of two classes.

        Raises
        ------
        TypeError, ValueError
            For bad input; for design A also if fixed and random columns differ.
        """
        known = ("A", "B", "C", "marginalised")
        if not isinstance(self.design, str) or self.design not in known:
            raise ValueError(
                f"design = {shown(self.design)}; expected 'A', 'B', 'C' or 'marginalised'"
            )
        check_integer("num_draws", self.num_draws)
        self.classes_, codes = check_labels(X, y)
        self.populations_ = class_populations(X, self.classes_, codes, self.populations)
        self.class_prior_ = np.bincount(codes) / len(codes)
        if self.design == "A":
            self.whitening_ = self._whitening(X)
        scores = self._scores(X)
        length = np.sqrt(np.square(scores).sum(axis=1).mean())
        self.scale_ = float(length) if length > 0 else 1.0
        self._n_features_out = scores.shape[1]
        return self

    def transform(self, X: LongTable) -> NDArray[np.float64]:
        """Features of every subject, shape (num_subjects, num_features)."""
        check_is_fitted(self)
        return self._scores(X) / self.scale_

    def _scores(self, X: LongTable) -> NDArray[np.float64]:
        """Return the features before scaling."""
        if self.design == "C":
            return expected_score(self.populations_[1].moments(X))
        found = [one.moments(X) for one in self.populations_]
        prior = np.log(self.class_prior_)
        prob = softmax(np.stack([one.log_density for one in found], axis=1) + prior, axis=1)
        scores = [expected_score(one) for one in found]
        if self.design == "marginalised":
            return np.concatenate([*(prob.T[:, :, None] * scores)], axis=1)
        joint = _mixture_score(prob, scores, self.class_prior_)
        return joint if self.design == "B" else joint @ self.whitening_

    def _whitening(self, table: LongTable) -> NDArray[np.float64]:
        """Return the root of the inverse information of the mixture of effects with unobserved classes."""
        MixPrior(tuple(self.populations_)).coefficients(table)  # refuses columns that differ
        variance = np.max([np.diag(one.covariance) for one in self.populations_], axis=0)
        widened = _JITTER * np.diag(np.where(variance > 0, variance, 1.0))
        roots = [triangular_root(one.covariance + widened) for one in self.populations_]
        means = [one.coefficients for one in self.populations_]
        rng = check_random_state(self.random_state)
        counts = np.round(check_integer("num_draws", self.num_draws, 100) * self.class_prior_)
        size = len(roots[0])
        drawn = [
            mean + rng.standard_normal((int(count), size)) @ root.T
            for mean, root, count in zip(means, roots, counts, strict=True)
        ]
        effects = np.concatenate(drawn)
        white = [
            np.linalg.solve(root, (effects - mean).T).T
            for mean, root in zip(means, roots, strict=True)
        ]
        log_density = [
            -0.5 * (u**2).sum(axis=1) - np.log(np.diag(root)).sum()
            for u, root in zip(white, roots, strict=True)
        ]
        prob = softmax(np.stack(log_density, axis=1) + np.log(self.class_prior_), axis=1)
        known = np.zeros((size, size))
        scores = [expected_score(Whitened(u, known, np.zeros(()))) for u in white]
        score = _mixture_score(prob, scores, self.class_prior_)
        values, axes = np.linalg.eigh(score.T @ score / len(score))
        kept = values > _FLAT * values[-1]
        return axes[:, kept] / np.sqrt(values[kept])

    def __sklearn_tags__(self) -> Any:
        """Declare that labels are required."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def expected_score(found: Whitened) -> NDArray[np.float64]:
    r"""Return the expected score of mean and covariance of the effects, in coordinates of unit information.

    With :math:`b = \alpha + L u`, the coordinates are the shift a and the symmetric S in
    :math:`\alpha + L a` and :math:`L (I + S) L^\top`; diagonal entries of S are divided by :math:`\sqrt 2`.

    Parameters
    ----------
    found : Whitened
        Posterior moments of u.

    Returns
    -------
    ndarray, shape (num_subjects, num_effects * (num_effects + 3) / 2)
    """
    mean = found.mean
    second = found.covariance + mean[:, :, None] * mean[:, None, :]
    size = mean.shape[1]
    diagonal = (np.diagonal(second, axis1=1, axis2=2) - 1) / np.sqrt(2)
    above = np.triu_indices(size, 1)
    return np.concatenate([mean, diagonal, second[:, *above]], axis=1)


def _mixture_score(prob: NDArray, scores: list[NDArray], share: NDArray) -> NDArray[np.float64]:
    """Return the score of shares and populations of a mixture, in unit information of labels and effects."""
    weighted = prob.T[:, :, None] / np.sqrt(share)[:, None, None] * np.stack(scores)
    own = (prob[:, 1:] - share[1]) / np.sqrt(share[0] * share[1])
    return np.concatenate([own, *weighted], axis=1)
