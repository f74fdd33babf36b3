"""Which groups differ in mean shape: a test of each pair, adjusted for their number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control

from sidebayes.models.blocks.side_information.groups import Groups

from ...common.arrays import real_array
from ...common.magnitudes import shown
from ...common.warnings import warn_user
from ...data.shapes.landmarks import Landmarks
from .group_test import check_groups, group_test, usual_statistics

__all__ = ["pairwise_tests"]

_ADJUSTMENTS = ("holm", "fdr", "none")


def pairwise_tests(
    shapes: Landmarks | ArrayLike,
    groups: str | Groups | ArrayLike,
    *,
    statistics: Sequence[str] | None = None,
    adjustment: Literal["holm", "fdr", "none"] = "holm",
    num_permutations: int = 9999,
    ridge: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Test each pair of groups for the same mean shape, as `group_test` does, with adjusted p-values.

    The individuals of a pair are aligned with their own mean, and their labels are permuted among
    them, so each test is valid whatever the other groups are. P-values are adjusted over the pairs,
    separately for each statistic. No p-value adjusted by Holm's method is below the number of pairs
    divided by the number of labelings: use more permutations if there are many groups.

    Parameters
    ----------
    shapes : Landmarks or array_like
        As in `group_test`, as they were measured.
    groups : str, Groups or array_like, shape (individuals,)
        As in `group_test`.
    statistics : sequence of {"goodall", "hotelling", "james"}, optional
    adjustment : {"holm", "fdr", "none"}
        "holm" controls the probability of any false rejection (Holm 1979), and "fdr" the expected
        share of false rejections among all (Benjamini and Yekutieli 2001). Both allow for dependent
        tests.
    num_permutations, ridge, seed
        As in `group_test`, of each pair.

    Returns
    -------
    DataFrame
        A row per pair and statistic, indexed by ``first``, ``second`` and ``statistic``: ``value``, ``p``,
        its Monte-Carlo standard ``error``, and ``adjusted``.

    Raises
    ------
    TypeError, ValueError
        For bad input, as in `group_test`; if several groups have one individual.

    Warns
    -----
    SideBayesWarning
        As in `group_test`; if "james" is left out of the pairs of a group of one individual.

    Examples
    --------
    >>> import numpy as np, sidebayes
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(6, 2)) + 0.1 * rng.normal(size=(30, 6, 2))
    >>> x[:10, 0] += 0.3
    >>> found = sidebayes.pairwise_tests(x, np.repeat(["a", "b", "c"], 10), statistics=["goodall"])
    >>> (found["adjusted"] < 0.05).tolist()
    [True, True, False]
    """
    if not isinstance(adjustment, str) or adjustment not in _ADJUSTMENTS:
        raise ValueError(f"adjustment = {shown(adjustment)}; expected one of {list(_ADJUSTMENTS)}")
    if callable(shapes):
        raise TypeError(
            "shapes is a function; pass shapes as they were measured, or call group_test for each pair"
        )
    labels = check_groups(groups, shapes)
    given = shapes if isinstance(shapes, Landmarks) else real_array("shapes", shapes)
    if len(labels.alone) > 1:
        raise ValueError(
            f"groups {labels.alone} have one individual each, so that nobody sees how shapes vary within a "
            "pair of them; leave all but one of these groups out"
        )
    if statistics is None and labels.alone:
        own, others = len(labels.names) - 1, comb(len(labels.names) - 1, 2)
        warn_user(
            f"group {labels.alone[0]!r} has one individual, and no covariance of its own: 'james' is left "
            f"out of its {own} pairs, and its p-values are adjusted over the other {others}, those of other "
            f"statistics over all {own + others}"
        )
    tables = {}
    for first, second in combinations(range(len(labels.names)), 2):
        rows = np.flatnonzero(np.isin(labels.codes, (first, second)))
        part = given.take(rows) if isinstance(given, Landmarks) else given[rows]
        names = np.asarray(labels.names)[labels.codes[rows]]
        asked = usual_statistics(check_groups(names, part)) if statistics is None else statistics
        test = group_test(
            part,
            names,
            statistics=asked,
            num_permutations=num_permutations,
            ridge=ridge,
            seed=seed,
        )
        tables[labels.names[first], labels.names[second]] = test.table.drop(columns="ridge")
    found = pd.concat(tables, names=["first", "second"])
    adjusted = found.groupby("statistic")["p"].transform(
        lambda p: _adjusted(p.to_numpy(), adjustment)
    )
    return found.assign(adjusted=adjusted)


def _adjusted(p: NDArray[np.float64], adjustment: str) -> NDArray[np.float64]:
    """P-values of several tests, each to be compared with the level that all should have."""
    if adjustment == "none":
        return p
    if adjustment == "fdr":
        return np.asarray(false_discovery_control(p, method="by"))
    order = np.argsort(p)
    stepped = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    found = np.empty_like(p)
    found[order] = np.minimum(stepped, 1.0)
    return found
