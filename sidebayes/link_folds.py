"""scikit-learn's folds, for rows with links."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import GroupKFold

from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.hard_links import connected_sets
from sidebayes.models.blocks.side_information.links import Links

from .common.fields import check_integer
from .common.magnitudes import counted, shown
from .estimator_arguments import cut_links, refuse_side_information

__all__ = ["LinkedKFold"]


class LinkedKFold(GroupKFold):  # type: ignore[misc]  # scikit-learn has no types
    """Folds for cross-validation that no link crosses.

    Rows of a connected set are held out together, so that a fit to the other rows has no
    information about them. The sizes of the folds are as even as the connected sets allow.

    Parameters
    ----------
    links : Links
        Links among the rows of all data.
    n_splits : int
        Number of folds: at least 2, and at most the number of connected sets, of which a row without
        links is one.
    shuffle : bool
        Assign connected sets to folds at random, rather than by size.
    random_state : int, RandomState or None
        Randomness of the shuffling.

    Raises
    ------
    TypeError, ValueError
        If `links` are not Links, or `n_splits` is not an integer of at least 2.

    Examples
    --------
    Searches take the folds as ``cv=``, and ``rows=np.arange(len(x))`` in `fit`.

    >>> import numpy as np
    >>> from sidebayes import LinkedKFold, Links
    >>> folds = LinkedKFold(Links.must_link([[0, 4], [1, 2]]), n_splits=2)
    >>> [held_out.tolist() for _, held_out in folds.split(np.zeros((6, 1)))]
    [[1, 2, 5], [0, 3, 4]]
    """

    def __init__(
        self,
        links: Links,
        n_splits: int = 5,
        *,
        shuffle: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        if not isinstance(links, Links):
            raise TypeError(f"links is a {type(links).__name__}; pass Links, whose rows are split")
        n_splits = check_integer("n_splits", n_splits, 2)
        super().__init__(n_splits, shuffle=shuffle, random_state=random_state)
        self.links = links

    def split(
        self, X: ArrayLike, y: object = None, groups: ArrayLike | None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows to fit and rows to hold out, for each fold.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
            All rows that the links refer to.
        y : ignored
            Groups are refused here.
        groups : array_like, shape (n_samples,), optional
            Rows of a group are kept together as well; -1 or a missing value belongs to none.

        Raises
        ------
        TypeError, ValueError
            If `X` lacks rows that the links refer to, or there are fewer connected sets than folds.
        """
        refuse_side_information(
            y, "which folds ignore; pass groups=groups by name, and links to LinkedKFold(links)"
        )
        try:
            size = len(X)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"X = {shown(X)}; pass the table whose rows are split") from None
        pairs = cut_links(self.links, size, None, "pass all rows that they refer to as X").pairs
        if groups is not None:
            known = Groups(groups)  # type: ignore[arg-type]
            if len(known) != size:
                raise ValueError(
                    f"groups has {len(known)} entries, X has {size} rows; give one each"
                )
            pairs = np.concatenate([pairs, Links.from_groups(known).pairs])
        number, connected_set = connected_sets(pairs, size)
        if number < self.n_splits:
            raise ValueError(
                f"links and groups connect the rows into {counted(number, 'set')}, too few for "
                f"n_splits = {self.n_splits} folds that no link crosses; use fewer folds, or fewer links"
            )
        yield from super().split(X, y, connected_set)
