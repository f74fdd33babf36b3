"""Classification of subjects into two classes by the ratio of their likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from sidebayes.common.arrays import real_array
from sidebayes.common.magnitudes import shown

from .estimation import estimated
from .population import MixPrior, Population
from .table import LongTable, check_labels

__all__ = ["LikelihoodRatio", "class_populations"]


class LikelihoodRatio(ClassifierMixin, BaseEstimator):
    r"""Classifier of subjects by their whole series (Lu 2008, chapter 9).

    Each class is a population with random effects, estimated from its own subjects by maximum
    likelihood. The score of a subject with rows y is

    .. math:: s(y) = \log N(y; X\alpha_1, \Sigma_1) - \log N(y; X\alpha_0, \Sigma_0), \qquad
              \Sigma_m = Z D_m Z^\top + \sigma_m^2 I,

    where class 1 is the second of the sorted labels. The second class is chosen where s exceeds
    :math:`\log(\pi_0 C_0) - \log(\pi_1 C_1)`, with the shares :math:`\pi` of the classes in the
    training data and the costs C of misclassifying one of their subjects. ROC curves depend on
    neither. Several outputs that are measured for the same subjects form one table with indicators;
    see `LongTable`.

    Parameters
    ----------
    individual : bool
        False for the simplified model without random effects, a baseline: rows of a subject are
        independent.
    costs : sequence of two float
        :math:`C_0, C_1`, positive.
    populations : sequence of two Population, optional
        Populations to use in place of estimates, such as ``[Population.of(fit0),
        Population.of(fit1)]``.

    Attributes
    ----------
    populations_ : list of Population
    class_prior_ : ndarray, shape (2,)
        Shares of the classes among the training subjects.
    classes_ : ndarray, shape (2,)

    Examples
    --------
    >>> import sidebayes
    >>> from sklearn.model_selection import cross_val_score
    >>> seen = sidebayes.simulate_decline("steps")
    >>> table = LongTable.from_times(seen["value"], seen["age"], seen["subject"], center=80, unit=10)
    >>> labels = table.by_subject(seen["impaired"])
    >>> scores = cross_val_score(LikelihoodRatio(), table, labels, scoring="roc_auc")
    >>> bool(scores.mean() > 0.6)
    True
    """

    def __init__(
        self,
        *,
        individual: bool = True,
        costs: Sequence[float] = (1.0, 1.0),
        populations: Sequence[Population] | None = None,
    ) -> None:
        self.individual = individual
        self.costs = costs
        self.populations = populations

    def fit(self, X: LongTable, y: ArrayLike) -> Self:
        """Estimate both populations.

        Parameters
        ----------
        X : LongTable
        y : array_like, shape (num_subjects,)
            Labels of two classes; `LongTable.by_subject` takes them from rows.

        Raises
        ------
        TypeError, ValueError
            For bad input, or a class whose rows do not determine its population.

        Warns
        -----
        SideBayesWarning
            If a class has no more subjects than there are random effects.
        """
        if not isinstance(self.individual, bool | np.bool_):
            raise ValueError(f"individual = {shown(self.individual)}; expected True or False")
        costs = real_array("costs", self.costs)
        if costs.shape != (2,) or not (np.isfinite(costs) & (costs > 0)).all():
            raise ValueError(f"costs = {shown(self.costs)}; expected two positive numbers")
        self.classes_, codes = check_labels(X, y)
        self.populations_ = class_populations(
            X, self.classes_, codes, self.populations, self.individual
        )
        self.class_prior_ = np.bincount(codes) / len(codes)
        return self

    def decision_function(self, X: LongTable) -> NDArray[np.float64]:
        """Log likelihood ratio of every subject, shape (num_subjects,); shares and costs left out."""
        check_is_fitted(self)
        zero, one = (population.log_density(X) for population in self.populations_)
        return one - zero

    def predict_proba(self, X: LongTable) -> NDArray[np.float64]:
        """Probability of both classes, given their shares, shape (num_subjects, 2)."""
        prior = np.log(self.class_prior_)
        score = self.decision_function(X) + prior[1] - prior[0]
        return np.stack([expit(-score), expit(score)], axis=1)

    def predict(self, X: LongTable) -> NDArray:
        """Class of least expected cost of every subject, shape (num_subjects,)."""
        score = self.decision_function(X)
        price = np.log(self.class_prior_) + np.log(np.asarray(self.costs, float))
        return self.classes_[(score > price[0] - price[1]).astype(int)]

    def mixture(self) -> MixPrior:
        """Both populations with their shares, which describe a subject of unknown class."""
        check_is_fitted(self)
        return MixPrior(tuple(self.populations_), self.class_prior_)


def class_populations(
    table: LongTable,
    classes: NDArray,
    codes: NDArray,
    given: Any = None,
    individual: bool = True,
) -> list[Population]:
    """Return the populations of the classes: those given, or estimates from the subjects of each."""
    if given is None:
        return [
            estimated(table.take(np.flatnonzero(codes == code)), f"class {label}", individual)
            for code, label in enumerate(classes)
        ]
    found = list(given) if isinstance(given, list | tuple) else []
    if len(found) != 2 or not all(isinstance(one, Population) for one in found):
        raise TypeError(f"populations = {shown(given)}; pass two of Population, one per class")
    return found
