"""Isomap with a map that is updated when rows are added and removed."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from sidebayes.common.arrays import chosen_rows
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import listed, refuse_huge, refuse_tiny, shown
from sidebayes.common.warnings import warn_user

from .embedding import Embedding
from .graphs.given import stated, stated_edge
from .graphs.manifold import Manifold
from .graphs.rows import GraphRows, TableRows
from .graphs.shortcuts import most_moving
from .remarks import neighbor_rule, refuse_few, remark_on_far, remark_on_twins, remarks
from .state import read_state, write_state

__all__ = ["IncrementalIsomap"]


class IncrementalIsomap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Isometric feature mapping that is updated when rows are added and removed.

    Neighbouring rows are joined by edges whose length is their distance. Shortest paths
    :math:`g_{ij}` in this graph stand for distances along the manifold on which rows lie, and
    classical scaling finds coordinates with such distances: the leading eigenvectors of

    .. math:: B = -\tfrac12 H C H, \qquad C_{ij} = g_{ij}^2, \qquad H = I - 1 1^\top / n,

    times the square roots of their eigenvalues. `fit` gives the map of `sklearn.manifold.Isomap`.
    When rows are added or removed, edges become those of a graph built from scratch, and shortest
    paths are updated exactly, at the cost of the changed paths; coordinates take one step of
    subspace iteration per call, or converge.

    Parameters
    ----------
    n_components : int
        Number of coordinates.
    n_neighbors : int, optional
        Rows are neighbours if one is among this many nearest rows of the other; of rows at equal
        distance, the earlier ones count as nearer.
    radius : float, optional
        Rows are neighbours if they are at most this far apart. Needs ``n_neighbors=None``.
    metric : str
        "euclidean", "cityblock", "chebyshev", or "precomputed": rows are then given as their distances to
        all rows; or, as a sparse array, as the lengths of the edges of the graph, in which case
        `n_neighbors` and `radius` do not matter.
    n_landmarks : int, optional
        Keep distances from this many rows only, which lie far from one another, in n * n_landmarks
        numbers instead of n * n: for more than about 10,000 rows. Coordinates are then those of
        landmark scaling.
    neighbors : {"exact", "approximate"}
        How `fit` finds the `n_neighbors` nearest rows. "approximate", by pynndescent, is for more than
        20,000 rows of more than ten features, and Euclidean distances. Rows that are added later find
        theirs exactly.
    converge : bool
        Whether coordinates are updated until they converge whenever rows are added or removed,
        instead of by one step.

    Attributes
    ----------
    embedding_ : ndarray, shape (n, n_components)
        Coordinates of all rows, in the order in which they were given; NaN outside the largest
        connected set of the graph.
    eigenvalues_ : ndarray, shape (n_components,)
        Sums of squares of the coordinates.
    parts_ : ndarray of int, shape (n,)
        Connected set of the graph in which each row is; 0 is the largest.
    residual_ : float
        Sine of the angle by which the last update turned the space of coordinates; 0 if they converged.
    dist_matrix_ : ndarray, shape (n, n), or (n_landmarks, n)
        Geodesic distances; infinite between connected sets.
    landmarks_ : ndarray of int
        Rows from which distances are kept.

    Warns
    -----
    SideBayesWarning
        If the graph is not connected; if there are fewer positive eigenvalues than coordinates; if there
        are fewer rows than neighbours asked for; if rows are added that are there already.

    References
    ----------
    Tenenbaum, de Silva, Langford (2000), A global geometric framework for nonlinear dimensionality
    reduction. Law (2006), chapter 3, whose Algorithm 3.4, as printed, leaves wrong distances.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sidebayes.guides.transformers.isomap.incremental import IncrementalIsomap
    >>> x = load_iris().data
    >>> IncrementalIsomap(n_neighbors=40).fit(x[::2]).transform(x).shape
    (150, 2)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        n_neighbors: int | None = 5,
        radius: float | None = None,
        metric: str = "euclidean",
        n_landmarks: int | None = None,
        neighbors: Literal["exact", "approximate"] = "exact",
        converge: bool = False,
    ) -> None:
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric = metric
        self.n_landmarks = n_landmarks
        self.neighbors = neighbors
        self.converge = converge

    def __sklearn_tags__(self) -> Any:
        """Say that distances are cut along both axes, and may be a sparse graph."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        tags.input_tags.sparse = self.metric == "precomputed"
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self._embedding.number)

    @property
    def dist_matrix_(self) -> NDArray[np.float64]:
        """Geodesic distances from the landmarks to all rows."""
        return self._manifold.geodesics.rows.copy()

    @property
    def landmarks_(self) -> NDArray[np.int64]:
        """Rows from which distances are kept."""
        return self._manifold.geodesics.sources.copy()

    def fit(self, X: Any, y: object = None) -> Self:
        """Find the map of some rows; those of earlier calls are dropped.

        Parameters
        ----------
        X : array_like, shape (n, num_features), or (n, n) if the metric is "precomputed"
        y : ignored

        Raises
        ------
        ValueError
            If there are too few rows, or arguments are out of range.
        """
        rule = neighbor_rule(self.n_neighbors, self.radius, self.metric, self.neighbors)
        number = check_integer("n_components", self.n_components)
        if not isinstance(self.converge, bool | np.bool_):
            raise ValueError(f"converge = {shown(self.converge)}; expected True or False")
        if self.n_landmarks is not None:
            check_integer("n_landmarks", self.n_landmarks, number + 1)
        if self.metric == "precomputed":
            x = stated(X, None)
        else:
            x = validate_data(self, X, dtype=np.float64, copy=True)
            refuse_huge("X", x)
            refuse_tiny("X", x)
        refuse_few(x.shape[0], number, self.n_landmarks)
        self._manifold = Manifold.start(
            TableRows(x, self.metric) if self.metric != "precomputed" else x, rule, self.n_landmarks
        )
        self._embedding = Embedding(number, bool(self.converge))
        self._embed(None)
        return self

    def fit_transform(self, X: Any, y: object = None) -> NDArray[np.float64]:
        """Find the map of some rows, and return their coordinates, shape (n, n_components)."""
        return self.fit(X).embedding_.copy()

    def partial_fit(self, X: Any, y: object = None) -> Self:
        """Add rows to the map; they are kept until they are removed.

        Graph and shortest paths are those of a map from scratch. Coordinates take one step, or
        converge if `converge` is true or if the rows that are added or removed are more than a
        tenth of all.

        Parameters
        ----------
        X : array_like, shape (num_new, num_features)
            If the metric is "precomputed", distances to the earlier rows and to one another, shape
            (num_new, n + num_new).
        y : ignored

        Raises
        ------
        ValueError
            If rows do not match the earlier ones; nothing is changed then.
        ImportError
            If numba is not installed.
        """
        if not hasattr(self, "_manifold"):
            return self.fit(X)
        x, reach = self._checked(X), self._manifold.reach
        nearest = self._manifold.insert(x)
        for remark in (remark_on_twins(nearest), remark_on_far(nearest.distance, reach)):
            if remark is not None:
                warn_user(remark)
        missing = np.full((x.shape[0], self._embedding.number), np.nan)
        self._embed(np.concatenate([self.embedding_, missing]))
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Coordinates of rows that are not added, shape (num_rows, n_components).

        Rows are joined to their neighbours, and placed by least squares on the inner products that
        their geodesic distances stand for; rows of the map get the coordinates that they have, up to
        what `residual_` leaves.

        Parameters
        ----------
        X : array_like, shape (num_rows, num_features)
            Or distances to all rows of the map, if the metric is "precomputed".

        Warns
        -----
        SideBayesWarning
            If rows have no neighbour in the largest connected set, so that their coordinates are
            NaN; if rows lie far from all of the map, as in another unit.
        """
        check_is_fitted(self, "_manifold")
        reached, distance = self._manifold.reached(self._checked(X, num_new=0))
        far = remark_on_far(distance, self._manifold.reach)
        if far is not None:
            warn_user(far)
        found = self._embedding.place(self._manifold.geodesics, reached)
        lost = np.flatnonzero(np.isnan(found[:, 0]))
        if len(lost):
            rows, have = ("row", "has") if len(lost) == 1 else ("rows", "have")
            warn_user(
                f"{rows} {listed(lost)} of X {have} no neighbour in the largest connected set of the map, "
                "and coordinates NaN; raise n_neighbors or radius, or add rows between them"
            )
        return found

    def remove(self, rows: ArrayLike) -> Self:
        """Remove rows from the map; later rows are renumbered.

        Coordinates take one step, or converge as in `partial_fit`.

        Parameters
        ----------
        rows : array_like of int or bool
            Numbers of rows, or a mask over all.

        Raises
        ------
        ValueError
            If there are no such rows, or too few would stay. Nothing is changed then.
        """
        gone = self._leaving(rows)
        self._manifold.remove(gone)
        return self._after(gone)

    def contract(self, rows: ArrayLike) -> Self:
        """Remove rows, but keep the paths through them as edges, so that all other distances stay.

        What the rows have shown of the manifold is kept, while memory does not grow. Edges that
        stand for paths are kept until one of their ends is removed. Law (2006), section 3.2.3.

        Parameters
        ----------
        rows : array_like of int or bool
            Numbers of rows, or a mask over all.

        Raises
        ------
        ValueError
            See `remove`.
        """
        gone = self._leaving(rows)
        self._manifold.contract(gone)
        return self._after(gone)

    def set_edge(self, first: int, second: int, length: float | None) -> Self:
        """Insert an edge into a graph that was given, give it another length, or delete it.

        Parameters
        ----------
        first, second : int
            Numbers of the rows that it joins.
        length : float or None
            None deletes it.

        Raises
        ------
        ValueError
            If the map was not fitted to a sparse array of edges, or there can be no such edge.
        """
        check_is_fitted(self, "_manifold")
        if not isinstance(self._manifold.rows, GraphRows):
            raise ValueError(
                "edges follow from the rows of this map; only those of a sparse array that fit was given "
                "with metric='precomputed' can be changed"
            )
        self._manifold.set_edge(stated_edge(first, second, length, len(self._manifold)))
        self._embed(self.embedding_)
        return self

    def short_circuits(
        self, number: int = 10, *, of: Literal["edges", "rows"] = "edges"
    ) -> pd.DataFrame:
        """Edges, or rows, on which the map depends most: their removal changes distances most.

        An edge between parts of the manifold that are far apart along it, as noise or too large a
        neighbourhood makes them, carries many shortest paths, which all change when it is removed.
        So does an edge across a gap in the data, which is not an error. Rows are for points between
        two parts, with several edges to both.

        Parameters
        ----------
        number : int
            Number of edges or rows; fewer are returned if fewer lie on shortest paths of others.
        of : {"edges", "rows"}

        Returns
        -------
        DataFrame
            In descending order of the change. Columns "first", "second" and "length" describe the
            edge; or "row" and "degree" the row and its number of edges. "detour" is how much longer
            the way between the ends is without the edge, or at most between neighbours without the
            row. "moved" is the increase of the sum of all distances, as a share of it, "share" the
            share of the distances that increase, and "cut" that of those which become infinite.

        Raises
        ------
        ImportError
            If numba is not installed.
        """
        check_is_fitted(self, "_manifold")
        if of not in ("edges", "rows"):
            raise ValueError(f"of = {shown(of)}; expected 'edges' or 'rows'")
        return most_moving(
            self._manifold.geodesics, check_integer("number", number), of_rows=of == "rows"
        )

    def save(self, path: Any) -> None:
        """Write the map with its rows, graph and distances to one file, which `load` reads.

        Parameters
        ----------
        path : path
            Its name should end in ".npz". The file holds arrays and text, and no code.

        Raises
        ------
        TypeError, ValueError
            If `path` cannot be written to, holds a file of another kind, or ends as one does.
        """
        check_is_fitted(self, "_manifold")
        header = {
            "parameters": self.get_params(),
            "n_features_in_": int(self.n_features_in_),
            "feature_names_in_": list(map(str, getattr(self, "feature_names_in_", []))),
        }
        write_state(path, header, self._manifold, self._embedding)

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read a map that `save` wrote; it continues from the state in which it was saved.

        Parameters
        ----------
        path : path

        Raises
        ------
        ValueError
            If there is no such file, or it holds no map.
        """
        header, manifold, embedding = read_state(path)
        found = cls(**header["parameters"])
        found.n_features_in_ = header["n_features_in_"]
        if header["feature_names_in_"]:
            found.feature_names_in_ = np.array(header["feature_names_in_"], dtype=object)
        found._manifold, found._embedding = manifold, embedding
        found._show()
        return found

    def _after(self, gone: NDArray[np.int64]) -> Self:
        self._embed(np.delete(self.embedding_, gone, axis=0), len(gone))
        return self

    def _leaving(self, rows: ArrayLike) -> NDArray[np.int64]:
        check_is_fitted(self, "_manifold")
        size = len(self._manifold)
        gone = np.unique(chosen_rows("rows", rows, size))
        left, least = size - len(gone), self._embedding.number + 1
        if self.n_landmarks is not None:
            least = max(least, len(self._manifold.geodesics.sources))
        if left < least:
            raise ValueError(
                f"rows: {left} of {size} rows would be left; the map needs at least {least}. Start a new "
                "map by fit instead"
            )
        return gone

    def _embed(self, before: NDArray[np.float64] | None, num_gone: int = 0) -> None:
        """Update coordinates by the distances, and warn of what the map does not show."""
        if self.metric == "precomputed":
            self.n_features_in_ = len(self._manifold)
        self._embedding.converge = bool(self.converge)  # it may have been set since
        self._embedding.update(self._manifold.geodesics, before, num_gone)
        self._show()
        for remark in remarks(self._embedding, self._manifold):
            warn_user(remark)

    def _show(self) -> None:
        """Set the fitted attributes."""
        found = self._embedding
        self.embedding_, self.eigenvalues_ = found.coordinates, found.eigenvalues
        self.parts_, self.residual_ = found.parts, found.residual

    def _checked(self, X: Any, num_new: int | None = None) -> Any:
        """Check rows beside those of the map; `num_new` is 0 for distances only to the rows of the map."""
        if self.metric != "precomputed":
            x = validate_data(self, X, dtype=np.float64, reset=False)
            refuse_huge("X", x)
            return x
        x = stated(X, len(self._manifold), num_new)
        if scipy.sparse.issparse(x) != isinstance(self._manifold.rows, GraphRows):
            kind = "a sparse array" if scipy.sparse.issparse(x) else "an array of all distances"
            raise ValueError(
                f"X is {kind}, and the map was fitted to the other; give X as fit took it"
            )
        return x
