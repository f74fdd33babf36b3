"""scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClusterMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sidebayes.diagnostics.trust.known_classes import at_no_row
from sidebayes.guides.engines.base import Engine
from sidebayes.models.blocks.roles import signature_of
from sidebayes.models.blocks.side_information.groups import refuse_mixed_orders
from sidebayes.models.blocks.side_information.links import Links

from .api import fit
from .common.arrays import name_array
from .common.class_names import class_codes, warn_of_marks
from .common.magnitudes import counted
from .common.warnings import warn_user
from .estimator_arguments import (
    CLASSIFIERS,
    check_size,
    clustering_model,
    cut_links,
    model_options,
    refuse_side_information,
    row_weights,
)
from .results.base.known_classes import unpredicted_classes
from .runs.checks import check_num_clusters
from .runs.zoo import find_card

__all__ = ["LinkedMixtureClusterer", "MixtureClassifier"]

_BUILT = "Links(pairs, weights), Links.from_pairs(pairs, same) or Links.read(path)"
_IGNORED = (
    "which a clusterer ignores; pass links=links by name, and groups or known classes as "
    "links=Links.from_groups(groups) or links=Links.from_labels(classes)"
)


class LinkedMixtureClusterer(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Clusterer with links, for pipelines and searches of scikit-learn.

    Links refer to rows of the training data. In a pipeline pass them by the name of the step,
    ``pipe.fit(x, linkedmixtureclusterer__links=links)``, or with metadata routing after
    ``set_fit_request(links=True)``. Splits of cross-validation renumber rows, so pass the number of
    each row as ``rows``, which scikit-learn splits along with the data, and split by `LinkedKFold`.

    Parameters
    ----------
    n_clusters : int
    method : str
        Name of a card that finds clusters of the rows of a table; see ``sidebayes list``.
    engine : str or engine, optional
        By default the first engine of the card.
    links : Links, optional
        Links to use where `fit` is given none.
    options : mapping, optional
        Options of the model, such as ``{"covariance": "tied"}``.
    random_state : int, RandomState or None

    Attributes
    ----------
    result_ : Fit
        The fit, with everything that it offers.
    labels_ : ndarray of int, shape (n_samples,)
        Labels of the training data, links respected.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Names of the columns; only if the training data had any.

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

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        links: Links | None = None,
        rows: ArrayLike | None = None,
    ) -> Self:
        """Fit to data with links.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
        y : ignored
            For labels that are known, pass ``links=Links.from_labels(y)``. Links are refused here.
        links : Links, optional
            Links to use in place of those given at construction.
        rows : array_like of int, shape (n_samples,), optional
            Number, in the data that the links refer to, of each row of `X`. Links to rows that are not
            in `X` are left out. By default `X` is all of these data, in their order.

        Returns
        -------
        LinkedMixtureClusterer

        Raises
        ------
        TypeError, ValueError
            For bad input, such as links to more rows than `X` has without `rows`, or a method that
            needs more than a table and links.
        """
        refuse_side_information(y, _IGNORED)
        x = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        model = clustering_model(self.method, self.options)
        truncates = signature_of(model).truncates
        check_num_clusters(self.n_clusters, len(x), "n_clusters", truncates=truncates)
        if links is not None and self.links is not None and links is not self.links:
            raise ValueError(
                "links are given to fit, and others to the constructor; give them in one place, "
                "both together as one + other"
            )
        given = self.links if links is None else links
        if given is not None and not isinstance(given, Links):
            raise TypeError(f"links is a {type(given).__name__}; pass Links, such as {_BUILT}")
        if links is None and given is not None and rows is None and given.num_points is None:
            warn_user(
                "links at construction do not say to how many rows they refer: where X is cut, as by "
                "cross-validation, they would be applied to other rows; give num_points, as in "
                "Links.must_link(pairs, num_points=150)"
            )
        own = {"n_clusters": "num_clusters", "engine": "engine", "random_state": "seed"}
        self.result_ = fit(
            self.method,
            x,
            links=None if given is None else cut_links(given, len(x), rows),
            num_clusters=self.n_clusters,
            engine=self.engine,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            feature_names=getattr(self, "feature_names_in_", None),
            progress=False,
            **model_options(self.options, own, ("links", "feature_names", "progress")),
        )
        self.labels_ = self.result_.labels()
        return self

    def fit_predict(self, X: ArrayLike, y: object = None, **given: Any) -> NDArray[np.int64]:
        """Labels of the training data, links respected; arguments are those of `fit`."""
        return self.fit(X, y, **given).labels_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Most probable label of each row, without links, shape (n_samples,)."""
        x = self._checked(X)
        return self.result_.predict(x)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Label probabilities, without links, shape (n_samples, n_clusters)."""
        x = self._checked(X)
        return self.result_.predict_proba(x)

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Log predictive density of each row, shape (n_samples,)."""
        x = self._checked(X)
        return self.result_.log_prob(x)

    def score(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Weighted mean log predictive density of the rows, without links; `y` is ignored."""
        refuse_side_information(y, "and rows are scored without links; leave it out")
        refuse_mixed_orders(X=X, sample_weight=sample_weight)
        found = self.score_samples(X)
        return float(np.average(found, weights=row_weights(sample_weight, found)))

    def _checked(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self)
        x: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, reset=False)
        return x


class MixtureClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Classifier that learns from labelled and unlabelled rows, by mixtures whose components have classes.

    As for scikit-learn's semi-supervised classifiers, ``y`` holds -1 where a class is not known.

    Parameters
    ----------
    n_components : int
        Components of the mixture; the number of classes if None.
    method : {"moe", "pfgl", "nfgl"}
        How components get classes: by class probabilities, by prototypes within them, or by votes of
        labelled rows nearby. For the latter two, standardise the features:
        ``make_pipeline(StandardScaler(), MixtureClassifier(...))``.
    engine : str or engine, optional
        By default the first engine of the card.
    options : mapping, optional
        Options of the model, such as ``{"covariance": "diagonal"}``, and ``"label_noise": 0.05``
        for "moe" and "pfgl".
    random_state : int, RandomState or None

    Attributes
    ----------
    result_ : Fit
        The fit, with everything that it offers.
    classes_ : ndarray, shape (n_classes,)
    transduction_ : ndarray, shape (n_samples,)
        Classes of the training data, known ones respected.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> import sidebayes
    >>> data = sidebayes.load_dataset("iris")
    >>> y = np.where(np.arange(150) % 10 == 0, data.labels, -1)
    >>> model = MixtureClassifier(3, method="moe", random_state=0).fit(data.x, y)
    >>> model.predict(data.x[[0, 60, 140]])
    array([0, 1, 2])
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        method: str = "moe",
        engine: str | Engine | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.engine = engine
        self.options = options
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows of which some have a known class.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
        y : array_like, shape (n_samples,)
            Names or whole numbers; -1, NaN, None or blank text where the class is not known.

        Returns
        -------
        MixtureClassifier

        Raises
        ------
        TypeError, ValueError
            For bad input, or if fewer than two classes are known.
        """
        if self.method not in CLASSIFIERS:
            raise ValueError(f"method = {self.method!r}; expected one of {sorted(CLASSIFIERS)}")
        self._refuse_links(y)
        if isinstance(self.options, Mapping) and self.options.get("links") is not None:
            raise TypeError(f"options has 'links', and {self._of_links}")
        refuse_mixed_orders(X=X, y=y)
        x = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        codes = class_codes(y, "y")
        check_size("y", codes, x)
        if self.n_components is not None:
            check_num_clusters(self.n_components, len(x), "n_components")
        first = np.unique(codes, return_index=True)[1][int((codes < 0).any()) :]
        self.classes_ = np.asarray([np.asarray(y)[row] for row in first])
        warn_of_marks("y", codes, self.classes_.tolist())
        number = len(first)
        if number == 1:
            raise ValueError(
                f"y names one class, {self.classes_.tolist()[0]!r}, so that every row would be of it; "
                "label rows of another class as well, or find groups without classes by "
                "LinkedMixtureClusterer"
            )
        own = {"n_components": "num_clusters", "engine": "engine", "random_state": "seed"}
        self.result_ = find_card(self.method).routine(
            x,
            codes,
            num_clusters=number if self.n_components is None else self.n_components,
            num_classes=number,
            engine=self.engine,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            progress=False,
            **model_options(self.options, own, ("num_classes", "known", "progress")),
        )
        self.transduction_ = self.classes_[self.result_.classes()["class"].to_numpy()]
        self._warn_of_unpredicted()
        return self

    def predict(self, X: ArrayLike) -> NDArray:
        """Most probable class of each row, shape (n_samples,)."""
        prob = self.predict_proba(X)
        return self.classes_[prob.argmax(axis=1)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities, shape (n_samples, n_classes)."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        prob: NDArray[np.float64] = self.result_.class_probabilities(x)
        return prob

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of the rows with a known class whose class is predicted correctly.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
        y : array_like, shape (n_samples,)
            As for `fit`; rows whose class is not known are left out.
        sample_weight : array_like, shape (n_samples,), optional
            Weights of at least zero.

        Raises
        ------
        TypeError, ValueError
            For bad input, or if no class is known.
        """
        self._refuse_links(y)
        refuse_mixed_orders(X=X, y=y, sample_weight=sample_weight)
        found = self.predict_proba(X).argmax(axis=1)
        column: Any = y
        if isinstance(column, np.ma.MaskedArray):
            masked = np.ma.getmaskarray(column)
            column = column.data.astype(object)
            column[masked] = None
        given = name_array("y", column)
        check_size("y", given, found)
        # beside the classes that were learned, a fold of 1 and -1 is not ambiguous
        fitted = self.classes_.tolist()
        try:
            codes = class_codes([*given.tolist(), *fitted], "y")
        except TypeError:
            class_codes(given, "y")  # says what is wrong with y by itself
            raise TypeError(
                f"y names classes otherwise than at fit, where they were {fitted[:5]}: text and numbers "
                "are never equal; give y as it was given to fit"
            ) from None
        truth, learned = np.split(codes, [len(found)])
        known = truth >= 0
        if not known.any():
            raise ValueError(
                "y names no class of any row, so that nothing can be scored; name some"
            )
        if (strange := known & ~np.isin(truth, learned)).any():
            names = sorted(set(given[strange].tolist()))
            warn_user(
                f"y names classes that were not learned, {names[:5]}, in {counted(strange.sum(), 'row')}; "
                f"these count as errors; the classes are {fitted[:5]}"
            )
        weight = row_weights(sample_weight, found, known, " where y names a class")
        return float(accuracy_score(truth[known], learned[found[known]], sample_weight=weight))

    @property
    def _of_links(self) -> str:
        """What to do with links."""
        return (
            f"{type(self).__name__} learns from the class of each row in y, -1 where it is not known; links "
            "are for LinkedMixtureClusterer(...).fit(x, links=links)"
        )

    def _refuse_links(self, y: object) -> None:
        refuse_side_information(y, f"and {self._of_links}")

    def _warn_of_unpredicted(self) -> None:
        """Warn of known classes that no row is predicted to have."""
        missed = unpredicted_classes(self.result_)
        if missed:
            said = at_no_row(
                " or ".join(repr(name) for name in self.classes_[list(missed)].tolist()),
                list(missed.values()),
                len(self.classes_),
                self.result_.options["num_clusters"],
                size="n_components",
                hard=self.method == "moe" and self.result_.engine != "hard_classes",
            )
            warn_user(said)
