"""Suggest pairs to ask an expert about."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from sidebayes.diagnostics.links.selection import select_pairs

from ..common.fields import check_integer, check_seed
from ..results.base.fit_base import need_labels
from ..results.fit import Fit

__all__ = ["suggest_links"]


def suggest_links(
    fit: Fit | Sequence[Fit], num_pairs: int, *, num_candidates: int = 20_000, seed: int = 0
) -> pd.DataFrame:
    """Suggest pairs of points whose link would be most informative, for an expert to answer.

    A pair is scored by the expected information of its answer about the labels: the entropy of the
    answer under the posterior. Fit by an engine that draws (BlockedGibbs, NUTS), or pass several
    fits: a point estimate has no uncertainty of its own, so it finds borders but not a missing
    cluster.

    Parameters
    ----------
    fit : Fit or sequence of Fit
        Several fits to the same rows in the same order (other seeds, engines, features, numbers of
        clusters) are pooled, whatever the numbering of their clusters; pairs on which they disagree
        come first.
    num_pairs : int
        Size of the batch, which is spread over points and over the questions on which draws disagree.
    num_candidates : int
        Maximum number of pairs that are scored. If there are more, some are drawn at random, so that
        memory is never quadratic.
    seed : int
        Seed of the candidates.

    Returns
    -------
    DataFrame
        Columns ``i``, ``j``, ``same`` (probability that they share a cluster) and ``information``
        (nats), best first. Given a draw, labels of one connected set are treated as independent here;
        ``fit.same_cluster`` is exact.

    Raises
    ------
    TypeError, ValueError
        If there is no fit, a fit has no labels or other rows than the first, or too few pairs are left.

    Examples
    --------
    >>> import sidebayes
    >>> data = sidebayes.load_dataset("iris")
    >>> ask = sidebayes.suggest_links(sidebayes.fit("gmm", data.x, num_clusters=3), 5)
    >>> answers = data.labels[ask.i] == data.labels[ask.j]
    >>> sidebayes.Links.from_pairs(ask[["i", "j"]], answers, num_points=150).num_links
    5
    """
    if not isinstance(fit, Fit | Sequence):
        raise TypeError(f"fit is a {type(fit).__name__}; pass a Fit, or a list of fits")
    fits = [fit] if isinstance(fit, Fit) else list(fit)
    for one in fits:
        if not isinstance(one, Fit):
            raise TypeError(f"fit holds a {type(one).__name__}; pass a Fit, or a list of fits")
        need_labels(one, "pairs to ask about")
    if not fits:
        raise ValueError("fit is an empty list; pass a Fit, or several to the same rows")
    return select_pairs(
        [one.tree for one in fits],
        check_integer("num_pairs", num_pairs),
        num_candidates=check_integer("num_candidates", num_candidates),
        seed=check_seed(seed),
    )
