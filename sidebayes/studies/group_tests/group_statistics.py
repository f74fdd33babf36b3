"""Statistics that compare the mean shapes of groups, for many labelings of the individuals at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import factorial, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f

__all__ = [
    "STATISTICS",
    "GroupStatistics",
    "all_labelings",
    "needs_ridge",
    "num_labelings",
    "random_labelings",
]

STATISTICS = ("goodall", "hotelling", "james")
_BYTES = 2**26
"""Memory that the arrays of one part of the labelings may take."""
_LEAST = 1e-12
"""Share of the scatter within groups, along one direction, below which it counts as none."""

_PER_COORDINATE, _ENOUGH, _UNEQUAL = 5, 10, 3.0
"""Individuals per coordinate of the smallest group, and ratio of the variances of the groups, below and above
which "james" rejects equal means in more than 10 % of data sets at .05; individuals from which on it keeps
its level (benchmarks/group_level.py)."""
_CHANCE = 0.01
"""Probability below which groups of equal covariances do not have such variances by chance."""


class _Sums(NamedTuple):
    """Sums over the members of each group.

    Attributes
    ----------
    members : ndarray, shape (labelings, groups, individuals)
        One for a member, else 0.
    means : ndarray, shape (labelings, groups, coordinates)
    """

    members: NDArray[np.float64]
    means: NDArray[np.float64]


class GroupStatistics:
    r"""Goodall's F, Hotelling's T² and James' statistic of shapes in tangent coordinates.

    With group means :math:`m_g` of sizes :math:`n_g`, mean of all m, n individuals, G groups, and S the
    pooled covariance within groups,

    .. math:: F = \frac{\sum_g n_g |m_g - m|^2 / (G - 1)}{\mathrm{tr}\, S}, \qquad
              T^2 = \sum_g n_g (m_g - m)^\top (S + \delta I)^{-1} (m_g - m),

    which for two groups is :math:`n_1 n_2 / n \; d^\top (S + \delta I)^{-1} d`, :math:`d = m_1 - m_2`.
    James' statistic does not pool. For two groups it is :math:`d^\top (V_1 + V_2)^{-1} d`, where
    :math:`V_g = (S_g + \delta I) / n_g`; for more, the Wald statistic of all differences from the last mean.

    Scatter between and within groups sum to that of all, which no labeling changes. Hotelling's statistic
    therefore needs no covariance of a labeling.

    Parameters
    ----------
    coordinates : ndarray, shape (individuals, coordinates)
        Principal ones: orthogonal columns with mean zero.
    sizes : ndarray of int, shape (groups,)
    ridges : mapping of str to float
        The ridge :math:`\delta` of each statistic that is wanted; "goodall" has none.
    """

    def __init__(
        self, coordinates: NDArray[np.float64], sizes: NDArray[np.int64], ridges: dict[str, float]
    ) -> None:
        self.sizes, self.ridges = sizes, ridges
        self.x = coordinates
        self.scatter = np.square(coordinates).sum(axis=0)
        self.freedom = len(coordinates) - len(sizes)
        if "hotelling" in ridges:
            whole = self.scatter + self.freedom * ridges["hotelling"]
            self.whitened = coordinates / np.sqrt(whole)
        if "james" in ridges:
            self.products = coordinates[:, :, None] * coordinates[:, None, :]

    @property
    def part(self) -> int:
        """Number of labelings that are compared at once, so that memory is bounded."""
        groups, size = len(self.sizes), self.x.shape[1]
        numbers = groups * (len(self.x) + size)
        if "james" in self.ridges:
            numbers += 2 * groups * size**2 + 2 * ((groups - 1) * size) ** 2
        return max(1, int(_BYTES // (8 * numbers)))

    def doubt(self, codes: NDArray[np.integer], names: NDArray) -> str:
        """Which of the statistics need not keep their level in these groups, and why; empty if all do.

        Parameters
        ----------
        codes : ndarray of int, shape (individuals,)
            Groups of the individuals.
        names : ndarray, shape (groups,)
        """
        least, size = int(self.sizes.argmin()), self.x.shape[1]
        number = int(self.sizes[least])
        has = f"group {str(names[least])!r} has {number} individuals for {size} coordinates"
        unequal, is_clear = self._unequal(codes)
        # two groups of one size have the same "hotelling" and "james", and permutation is right for "goodall"
        is_even = len(self.sizes) == 2 and self.sizes[0] == self.sizes[1]
        parts = ((), STATISTICS[1:]) if is_even else (STATISTICS[:2], STATISTICS[2:])
        pooled, own = ([repr(n) for n in some if n in self.ridges] for some in parts)
        said = []
        if pooled and is_clear:
            said.append(
                f"the p of {' and '.join(pooled)} is for equal covariances, and not to be used here, at any "
                f"size; 'james' is valid from {_ENOUGH} individuals per coordinate, and 'hotelling' is the "
                "same for two groups of one size"
            )
        if own and unequal and number < _PER_COORDINATE * size:
            said.append(
                f"{has}, and with fewer than {_PER_COORDINATE} per coordinate equal means are rejected too "
                f"often by {' and '.join(own)}; take more individuals or fewer coordinates, or do not use "
                "its p"
            )
        if said:
            high, low = (str(names[group]) for group in unequal)
            between = (
                f"the variances of groups {high!r} and {low!r} differ more than {_UNEQUAL:.0f}-fold"
            )
            return f"{between}: {'; '.join(said)}"
        if number <= size and self.ridges.get("james") == 0:
            return (
                f"{has}, so that its own covariance is singular, and the p of 'james' holds only if "
                "covariances do not differ between groups; take more individuals or fewer coordinates, or "
                "give a ridge"
            )
        return ""

    def _unequal(self, codes: NDArray[np.integer]) -> tuple[list[int], bool]:
        """Groups of the largest and the smallest variance if these differ, and whether beyond chance."""
        some = np.flatnonzero(self.sizes > 1)
        own = [self.x[codes == group] - self.x[codes == group].mean(axis=0) for group in some]
        freedom = self.sizes[some] - 1
        variances = np.array([np.square(part).sum() for part in own]) / freedom
        high, low = int(variances.argmax()), int(variances.argmin())
        if not variances[high] > _UNEQUAL * variances[low]:
            return [], False
        # sums over coordinates have the chi-squared distribution of so many of equal variances
        values = np.square(np.linalg.svd(np.concatenate(own), compute_uv=False))
        freedom = freedom * (values.sum() ** 2 / np.square(values).sum())
        ratio = variances[high] / max(variances[low], _LEAST * variances[high])
        pairs = len(some) * (len(some) - 1)
        chance = pairs * float(f.sf(ratio, freedom[high], freedom[low]))
        return [int(some[high]), int(some[low])], chance < _CHANCE

    def __call__(self, labels: NDArray[np.integer]) -> NDArray[np.float64]:
        """Statistics of labelings.

        Parameters
        ----------
        labels : ndarray of int, shape (labelings, individuals)
            Each with groups of the sizes given.

        Returns
        -------
        ndarray, shape (labelings, statistics)
        """
        found = []
        for begin in range(0, len(labels), self.part):
            some = labels[begin : begin + self.part]
            members = (some[:, None, :] == np.arange(len(self.sizes))[:, None]).astype(float)
            sums = _Sums(members, members @ self.x / self.sizes[:, None])
            found.append(
                np.stack([getattr(self, f"_{name}")(sums) for name in self.ridges], axis=1)
            )
        return np.concatenate(found)

    def _goodall(self, sums: _Sums) -> NDArray[np.float64]:
        between = np.square(sums.means).sum(axis=2) @ self.sizes
        within = np.maximum(self.scatter.sum() - between, _LEAST * self.scatter.sum())
        found: NDArray[np.float64] = between / (len(self.sizes) - 1) / (within / self.freedom)
        return found

    def _hotelling(self, sums: _Sums) -> NDArray[np.float64]:
        # a direction of share h between groups has share 1 - h within, and adds h / (1 - h)
        roots = (sums.members @ self.whitened) / np.sqrt(self.sizes)[:, None]
        share = np.linalg.eigvalsh(roots @ roots.mT)
        return self.freedom * (share / np.maximum(1 - share, _LEAST)).sum(axis=1)

    def _james(self, sums: _Sums) -> NDArray[np.float64]:
        groups, size = len(self.sizes), self.x.shape[1]
        count = self.sizes[:, None, None]
        flat = self.products.reshape(len(self.x), -1)
        first = (sums.members[:, :-1] @ flat).reshape(-1, groups - 1, size, size)
        last = np.diag(self.scatter) - first.sum(axis=1)
        squares = np.concatenate([first, last[:, None]], axis=1)
        outer = sums.means[..., :, None] * sums.means[..., None, :]
        covariances = (squares - count * outer) / (count - 1)
        errors = (covariances + self.ridges["james"] * np.eye(size)) / count
        # of the differences from the last mean
        whole = np.repeat(errors[:, -1:, :, None, :], groups - 1, axis=1)
        whole = np.repeat(whole, groups - 1, axis=3)
        diagonal = np.arange(groups - 1)
        whole[:, diagonal, :, diagonal, :] += errors[:, :-1].swapaxes(0, 1)
        apart = (sums.means[:, :-1] - sums.means[:, -1:]).reshape(len(whole), -1)
        system = whole.reshape(len(whole), apart.shape[1], apart.shape[1])
        try:
            solved = np.linalg.solve(system, apart[..., None])[..., 0]
        except np.linalg.LinAlgError:
            solved = np.full_like(apart, np.nan)
        found: NDArray[np.float64] = (apart * solved).sum(axis=1)
        if not (found >= 0).all():  # as a quadratic form is, but for rounding of what is singular
            raise ValueError(
                "'james' has a singular covariance: along some direction individuals do not differ within "
                "their groups; leave it out of statistics, or give a ridge above 0"
            )
        return found


def needs_ridge(name: str, sizes: NDArray[np.int64], num_coordinates: int) -> bool:
    """Whether a statistic's covariance is singular for all data of these sizes.

    Parameters
    ----------
    name : {"goodall", "hotelling", "james"}
    sizes : ndarray of int, shape (groups,)
    num_coordinates : int
        Rank of the scatter of all individuals.
    """
    if name == "goodall":
        return False
    if name == "hotelling":
        return bool(sizes.sum() - len(sizes) < num_coordinates)
    ranks = np.minimum(sizes - 1, num_coordinates)
    return bool(ranks.sum() < (len(sizes) - 1) * num_coordinates)


def num_labelings(sizes: Sequence[int]) -> int:
    """Ways in which individuals may be shared out to groups of these sizes."""
    return factorial(sum(sizes)) // prod(map(factorial, sizes))


def all_labelings(sizes: Sequence[int]) -> NDArray[np.int16]:
    """Every way to share out individuals to groups, shape (num_labelings(sizes), individuals)."""
    found = np.full((1, sum(sizes)), len(sizes) - 1, np.int16)
    free = np.arange(sum(sizes))[None]
    for group, size in enumerate(sizes[:-1]):
        chosen = np.array(list(combinations(range(free.shape[1]), size)))
        is_left = np.ones((len(chosen), free.shape[1]), bool)
        np.put_along_axis(is_left, chosen, False, axis=1)
        rest = np.nonzero(is_left)[1].reshape(len(chosen), -1)
        found = np.repeat(found, len(chosen), axis=0)
        np.put_along_axis(found, free[:, chosen].reshape(len(found), -1), group, axis=1)
        free = free[:, rest].reshape(len(found), -1)
    return found


def random_labelings(
    codes: NDArray[np.integer], number: int, part: int, rng: np.random.Generator
) -> Iterator[NDArray[np.integer]]:
    """Random permutations of labels, some at a time."""
    for begin in range(0, number, part):
        yield rng.permuted(np.tile(codes, (min(part, number - begin), 1)), axis=1)
