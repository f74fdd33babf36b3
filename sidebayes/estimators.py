"""scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sidebayes.guides.engines.base import Engine
from sidebayes.models.blocks.side_information.links import Links

from .api import fit

__all__ = ["LinkedMixtureClusterer"]


class LinkedMixtureClusterer(ClusterMixin, BaseEstimator):
    """Clusterer with links, for pipelines and searches of scikit-learn.

    Links refer to rows of the training data. In a pipeline pass them by the name of the step,
    ``pipe.fit(x, linkedmixtureclusterer__links=links)``, or with metadata routing after
    ``set_fit_request(links=True)``. Splits of cross-validation renumber rows and know nothing of
    links; cut them with `Links.subset`.

    Parameters
    ----------
    n_clusters : int
    method : str
        Name of a card; see ``sidebayes list``.
    engine : str or engine, optional
        By default that of the card.
    links : Links, optional
        Used where `fit` is given none.
    options : mapping, optional
        Options of the model, such as ``{"covariance": "tied"}``.
    random_state : int, RandomState or None

    Attributes
    ----------
    result_ : Fit
        All that is known after fitting.
    labels_ : ndarray of int, shape (n_samples,)
        Labels of the training data, links respected.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if the training data had names of columns.

    Examples
    --------
    >>> import sidebayes
    >>> data = sidebayes.load_dataset("iris")
    >>> links = sidebayes.simulate_links(data.labels, 20, weight=3.0)
    >>> model = LinkedMixtureClusterer(n_clusters=3, random_state=0).fit(data.x, links=links)
    >>> model.predict(data.x[:5]).shape
    (5,)
    """

    def __init__(
        self,
        n_clusters: int = 2,
        *,
        method: str = "ppc",
        engine: str | Engine | None = None,
        links: Links | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.method = method
        self.engine = engine
        self.links = links
        self.options = options
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None, links: Links | None = None) -> Self:
        """Fit to data with links.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
        y : ignored
            For labels that are known, pass ``links=Links.from_labels(y)``.
        links : Links, optional
            In place of those given at construction.

        Returns
        -------
        LinkedMixtureClusterer
        """
        x = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self.result_ = fit(
            self.method,
            x,
            self.links if links is None else links,
            num_clusters=self.n_clusters,
            engine=self.engine,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            feature_names=getattr(self, "feature_names_in_", None),
            progress=False,
            **(self.options or {}),
        )
        self.labels_ = self.result_.labels()
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Most probable label of each row, links left out, shape (n_samples,)."""
        x = self._checked(X)
        return self.result_.predict(x)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Label probabilities, links left out, shape (n_samples, n_clusters)."""
        x = self._checked(X)
        return self.result_.predict_proba(x)

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Log predictive density of each row, shape (n_samples,)."""
        x = self._checked(X)
        return self.result_.log_prob(x)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Mean log predictive density of the rows; `y` is ignored."""
        return float(self.score_samples(X).mean())

    def _checked(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)
