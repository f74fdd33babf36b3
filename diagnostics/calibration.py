"""Are posteriors as sure as they should be: ranks of the truth among draws, and their verdict."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrik

from .pictures.colours import CHAINS, MUTED, WARN, new_figure
from .symmetry.invariants import of_labels, of_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Calibration", "functionals", "is_told", "rank_of_truth", "uniformity"]

_NUM_TRIALS = 4000
"""Simulated sets of uniform ranks that a verdict is read from."""


def functionals(
    draws: Mapping[str, NDArray],
    dims: Mapping[str, Sequence[Hashable]],
    roles: Mapping[str, str],
    symmetries: Mapping[str, str],
    prob: NDArray | None,
    log_likelihood: NDArray,
    links: NDArray,
    num_pairs: int = 2,
) -> pd.DataFrame:
    """Label-invariant functionals, draw by draw.

    Parameters
    ----------
    draws : mapping of str to ndarray, shape (chain, draw, ...)
    dims : mapping of str to sequence of str
        Names of the axes of each site.
    roles, symmetries : mapping of str to str
        What sites are; see `of_parameters`.
    prob : ndarray, shape (chain, draw, num_points, num_clusters), or None
        Responsibilities.
    log_likelihood : ndarray, shape (chain, draw)
        Stands in for the log joint, whose Jacobian depends on the engine.
    links : ndarray of int, shape (num_links, 2)
    num_pairs : int
        Linked pairs, and as many others, whose agreement is looked at.

    Returns
    -------
    DataFrame
        One row per draw, chains one after another, with columns such as ``log_likelihood``,
        ``sorted_weights[0]`` and ``flip_rate``. Symmetric matrices have the entries of one triangle.
    """
    found = of_parameters(draws, dims, roles, symmetries)
    if prob is not None:
        found |= of_labels(prob, links, num_pairs)
    columns = {"log_likelihood": log_likelihood.ravel()}
    for name, values in found.items():
        flat = values.reshape(values.shape[0] * values.shape[1], -1).astype(float)
        many = flat.shape[1] > 1
        columns |= {f"{name}[{k}]" if many else name: flat[:, k] for k in _entries(values)}
    return pd.DataFrame(columns)


def _entries(values: NDArray) -> NDArray[np.int64]:
    """Numbers of the entries of a functional, each entry of symmetric matrices once."""
    shape = values.shape[2:]
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if len(shape) > 1 and shape[-1] == shape[-2] and np.allclose(values, values.swapaxes(-1, -2)):
        numbers = numbers[..., *np.triu_indices(shape[-1])]
    return numbers.ravel()


def is_told(truth: pd.DataFrame, draws: pd.DataFrame) -> pd.Series:
    """Whether a functional differs from the truth in any draw, so that its rank depends on the draws.

    Parameters
    ----------
    truth : DataFrame, one row
    draws : DataFrame, one row per draw

    Returns
    -------
    Series of bool
        One for each functional.
    """
    near = _near(draws.to_numpy(), truth[draws.columns].to_numpy())
    return pd.Series(~near.all(axis=0), draws.columns)


def _near(values: NDArray, real: NDArray) -> NDArray[np.bool_]:
    return np.isclose(values, real, rtol=1e-9, atol=1e-12)


def rank_of_truth(truth: pd.DataFrame, draws: pd.DataFrame, *, num_chains: int) -> pd.Series:
    r"""Share of draws below the truth, uniform on (0, 1) if the posterior is right.

    .. math:: u = \frac{\#\{s: f_s < f\} + v (1 + \#\{s: f_s = f\})}{S + 1}, \qquad v \sim U(0, 1)

    (Talts et al. 2018, theorem 1, ties broken at random). Draws are first thinned to the least
    effective sample size of all functionals, since ranks among correlated draws are not uniform.
    The draws and the truth seed v: the same draws have the same ranks, and others have numbers of
    their own.

    Parameters
    ----------
    truth : DataFrame, one row
    draws : DataFrame, one row per draw, chains one after another
    num_chains : int

    Returns
    -------
    Series
        One number for each functional.
    """
    from arviz_stats.base import array_stats

    values = draws.to_numpy()
    chains = values.reshape(num_chains, -1, values.shape[1])
    moving = chains.std(axis=(0, 1)) > 1e-10 * (1 + np.abs(chains).max(axis=(0, 1)))
    if moving.any() and chains.shape[1] >= 4:
        ess = array_stats.ess(chains[..., moving], chain_axis=0, draw_axis=1).min()
        step = max(1, round(len(values) / max(float(np.nan_to_num(ess, nan=1.0)), 1.0)))
        values = chains[:, ::step].reshape(-1, values.shape[1])
    real = truth[draws.columns].to_numpy()
    near = _near(values, real)
    below = ((values < real) & ~near).sum(axis=0)
    # in single precision, as the last digits depend on the number of threads
    seen = np.concatenate([real, values])[:, moving].astype(np.float32)
    seed = np.frombuffer(sha256(seen.tobytes()).digest(), np.uint32)
    tie = np.random.default_rng(seed).random(values.shape[1])
    return pd.Series((below + tie * (1 + near.sum(axis=0))) / (len(values) + 1), draws.columns)


def uniformity(ranks: ArrayLike) -> float:
    """P-value of uniform ranks, by the largest excursion of their ECDF.

    The statistic is the least pointwise two-sided binomial probability of the ECDF over all points
    of evaluation, compared with simulated uniform sets (Säilynoja et al. 2022, section 2.3).

    Parameters
    ----------
    ranks : array_like in [0, 1], shape (num_simulations,)
    """
    ranks = np.asarray(ranks, float)
    null = _null(len(ranks))
    return float((1 + (null <= _excursion(ranks[None])[0]).sum()) / (1 + len(null)))


def _points(size: int) -> NDArray[np.float64]:
    return np.arange(1, size) / size


def _excursion(ranks: NDArray) -> NDArray[np.float64]:
    """Least pointwise probability of each row, shape (rows,)."""
    size = ranks.shape[1]
    at = _points(size)
    cell = np.minimum((ranks * size).astype(int), size - 1)
    counts = np.stack([(cell <= k).sum(axis=1) for k in range(size - 1)], axis=1)
    below, above = bdtr(counts, size, at), 1 - np.where(counts > 0, bdtr(counts - 1, size, at), 0.0)
    return 2 * np.minimum(below, above).min(axis=1)


@lru_cache(maxsize=16)
def _null(size: int) -> NDArray[np.float64]:
    return np.sort(_excursion(np.random.default_rng(0).random((_NUM_TRIALS, size))))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Ranks of the truth in posteriors of simulated data; prints its verdict and a table.

    Attributes
    ----------
    name : str
        Model and engine that were calibrated.
    ranks : DataFrame
        One row per simulation, one column per functional; uniform on (0, 1) if the posteriors are
        right.
    failed : int
        Simulations whose fit failed; they are left out of the ranks.
    level : float
        Probability of finding fault with a sound posterior.
    untold : tuple of str
        Functionals that are left out of the ranks, as they equal the truth in every draw of every
        simulation, such as the entropy of the labels of one cluster.
    """

    name: str
    ranks: pd.DataFrame
    failed: int = 0
    level: float = 0.05
    untold: tuple[str, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """One row per functional: p-value of uniformity, mean rank, coverage of 50 % and 90 % intervals.

        A mean rank above one half means that draws are too low; coverage below its nominal value means
        that the posterior is overconfident.
        """
        away = (self.ranks - 0.5).abs()
        return pd.DataFrame(
            {
                "p_value": self.ranks.apply(uniformity),
                "mean_rank": self.ranks.mean(),
                "coverage_50": (away < 0.25).mean(),
                "coverage_90": (away < 0.45).mean(),
            }
        )

    @property
    def calibrated(self) -> bool:
        """Whether no functional is off, by Bonferroni's rule, and nine fits in ten succeeded."""
        size = self.failed + len(self.ranks)
        return bool(self.table.p_value.min() * self.ranks.shape[1] >= self.level) and (
            self.failed <= 0.1 * size
        )

    @property
    def verdict(self) -> str:
        """The finding in a sentence."""
        table, size = self.table, self.failed + len(self.ranks)
        lost = f"; {self.failed} of {size} fits failed" if self.failed else ""
        if self.calibrated:
            return f"no fault found in {len(self.ranks)} simulations{lost}"
        worst = str(table.p_value.idxmin())
        row = table.loc[worst]
        if row.p_value * len(table) >= self.level:
            return f"too many fits failed to judge{lost}"
        if abs(row.mean_rank - 0.5) < 3 / np.sqrt(12 * len(self.ranks)):
            how = f"90 % intervals hold the truth {100 * row.coverage_90:.0f} % of the time"
        else:
            how = f"the mean rank of the truth is {row.mean_rank:.2f}, not 0.50"
        return f"not calibrated: {worst} is off ({how}, p = {row.p_value:.2g}){lost}"

    def plot(self, axis: Axes | None = None) -> Figure:
        """ECDF of the ranks less the diagonal, with the simultaneous envelope; faults in red.

        Parameters
        ----------
        axis : matplotlib Axes, optional
            Axes to draw in.

        Returns
        -------
        matplotlib Figure
        """
        size = len(self.ranks)
        at = _points(size)
        tail = float(np.quantile(_null(size), self.level)) / 2
        low, high = (
            np.ceil(bdtrik(tail, size, at)) / size,
            np.ceil(bdtrik(1 - tail, size, at)) / size,
        )
        if axis is None:
            _, axis = new_figure(6.4, 3.6)
        axis.fill_between(at, low - at, high - at, color=MUTED, alpha=0.25, lw=0, step="mid")
        grid = np.linspace(0, 1, 201)
        limit = self.level / self.ranks.shape[1]
        for k, (name, ranks) in enumerate(self.ranks.items()):
            height = np.searchsorted(np.sort(ranks), grid, side="right") / size - grid
            off = self.table.p_value[str(name)] < limit
            colour, width = (WARN, 1.6) if off else (CHAINS[k % len(CHAINS)], 0.8)
            axis.plot(grid, height, color=colour, lw=width, label=str(name) if off else None)
        axis.set(xlabel="rank of the truth", ylabel="ECDF less uniform", title=self.name)
        if (self.table.p_value < limit).any():
            # beside the axis: the curves of what is off go where a legend would stand
            axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
        return cast("Figure", axis.figure)

    def __str__(self) -> str:
        """Name, verdict, table, and what is left out of it."""
        shown = self.table.round(3)
        shown["p_value"] = self.table["p_value"].map("{:.2g}".format)
        lines = [f"{self.name}: {self.verdict}", shown.to_string()]
        if self.untold:
            lines.append(f"Left out, equal to the truth in every draw: {', '.join(self.untold)}.")
        return "\n".join(lines)

    __repr__ = __str__
