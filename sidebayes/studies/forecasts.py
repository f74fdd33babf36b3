"""Forecasts of a subject's later measurements after each of its visits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from sidebayes.guides.transformers.detection.population import MixPrior, Population, whitened
from sidebayes.guides.transformers.detection.table import by_output, check_columns, check_groups
from sidebayes.models.blocks.side_information.groups import Groups, refuse_mixed_orders

from ..common.fields import Range, check_number
from ..data.tables import in_order_of
from ..results.base.intervals import mixture_bands
from ..results.fit import Fit

__all__ = ["forecast"]


def forecast(
    prior: Fit | Population | MixPrior | Sequence[Population],
    y: ArrayLike,
    fixed: ArrayLike,
    random: ArrayLike,
    subjects: Groups | ArrayLike,
    outputs: ArrayLike | None = None,
    *,
    probability: float = 0.9,
) -> pd.DataFrame:
    r"""Predict the later rows of every subject, before its first visit and after each of them.

    The population is the prior of a new subject, whose coefficients are updated by every visit. The n
    rows seen so far give the best linear unbiased predictor :math:`\hat b` of its effects and its
    covariance V (Lu 2008, eq. 8.8), and a later row is predicted as

    .. math:: y_* \sim N(x_*^\top \alpha + z_*^\top \hat b,\ z_*^\top V z_* + \sigma^2).

    A subject of unknown class is predicted by a mixture of the classes' predictions, weighted by the
    class probabilities so far (eq. 8.16). The parameters of the population are taken as known;
    for fits by draws, ``fit.predictive`` adds their uncertainty.

    Parameters
    ----------
    prior : Fit, Population, MixPrior or sequence of Population
        A fit of ``mixed_effects``; several populations have equal shares. The subjects should not be
        among those that the populations were estimated from.
    y : array_like, shape (num_rows,)
        Measurements in the order of visits within each subject; NaN at rows that are only predicted.
    fixed, random : array_like, shapes (num_rows, num_terms) and (num_rows, num_effects)
        The same columns as those of the fit, by name in data frames; ``**design.at(table)`` makes them.
    subjects : Groups or array_like, shape (num_rows,)
    outputs : array_like, shape (num_rows, num_outputs), optional
    probability : float
        Probability of the bands.

    Returns
    -------
    DataFrame
        A row for each subject, number of visits seen, and later row: ``subject``, ``seen`` (0, 1,
        ...), ``row`` (position in the data given), ``mean``, ``sd``, and the ends ``lower`` and
        ``upper`` of the central interval of `probability`. For several populations there are also
        ``class_0``, ``class_1``, ..., their probabilities after the visits seen.

    Raises
    ------
    TypeError, ValueError
        For bad input, columns other than those of the populations, or pandas series and frames
        whose indices have the same rows in different orders.

    Examples
    --------
    >>> import numpy as np, sidebayes
    >>> people = sidebayes.Population([0.0], [[1.0]], 1.0)
    >>> ones = np.ones((3, 1))
    >>> found = sidebayes.forecast(people, [2.0, 2.0, np.nan], ones, ones, ["ann"] * 3)
    >>> found[["seen", "row", "mean"]].iloc[[2, 4]].round(3).to_numpy().tolist()
    [[0.0, 2.0, 0.0], [1.0, 2.0, 1.0]]
    """
    probability = check_number("probability", probability, Range(above=0, below=1))
    mixture = _as_mixture(prior)
    refuse_mixed_orders(y=y, fixed=fixed, random=random, subjects=subjects, outputs=outputs)
    groups = check_groups(subjects)
    size, one = len(groups), mixture.populations[0]
    fixed, random, outputs = (
        in_order_of(table, name, one.columns.get(name), "the population")
        for name, table in (("fixed", fixed), ("random", random), ("outputs", outputs))
    )
    seen = check_columns("y", y, (size,), missing=True)
    columns = [check_columns(n, v, (size, None)) for n, v in (("fixed", fixed), ("random", random))]
    kinds = None if outputs is None else check_columns("outputs", outputs, (size, None))
    found = columns[0].shape[1], columns[1].shape[1], 1 if kinds is None else kinds.shape[1]
    own = len(one.coefficients), len(one.root), len(one.noise)
    if found != own:
        raise ValueError(
            f"the data have {found[0]} fixed and {found[1]} random columns of {found[2]} outputs, the "
            f"population {own[0]}, {own[1]} and {own[2]}; build both from the same columns"
        )
    states = _lay_out(groups, ~np.isnan(seen))
    codes = by_output(kinds, size)
    x, z = columns
    parts = [_predict(one, states, seen, x, z, codes) for one in mixture.populations]
    mean, sd, log_density = (np.stack(part) for part in zip(*parts, strict=True))
    share = softmax(log_density + np.log(mixture.weights)[:, None], axis=0)
    center = (share * mean).sum(axis=0)
    spread = np.sqrt((share * (sd**2 + (mean - center) ** 2)).sum(axis=0))
    lower, upper = mixture_bands(mean, sd, share, probability)
    table = {
        "subject": np.asarray(groups.values)[states.row],
        "seen": states.seen,
        "row": states.row,
        "mean": center,
        "sd": spread,
        "lower": lower,
        "upper": upper,
    }
    if len(share) > 1:
        table |= {f"class_{number}": values for number, values in enumerate(share)}
    return pd.DataFrame(table)


class _States(NamedTuple):
    """Rows by subject and position, and what is predicted from where.

    Attributes
    ----------
    rows : ndarray, shape (num_subjects, most_rows)
        Row at each position, 0 where there is none.
    known : ndarray of bool, shape (num_subjects, most_rows)
        Whether there is a measurement.
    state : tuple of ndarray, shape (num_pairs,)
        Subject and number of positions passed, 0 before the first.
    row, seen : ndarray, shape (num_pairs,)
        Row predicted, and measurements seen before.
    """

    rows: NDArray
    known: NDArray
    state: tuple[NDArray, NDArray]
    row: NDArray
    seen: NDArray


def _lay_out(groups: Groups, known: NDArray) -> _States:
    order = np.argsort(groups.codes, kind="stable")
    counts = np.bincount(groups.codes, minlength=groups.num_groups)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    where = groups.codes[order], place
    shape = groups.num_groups, counts.max()
    rows, present, measured = np.zeros(shape, int), np.zeros(shape, bool), np.zeros(shape, bool)
    rows[where], present[where], measured[where] = order, True, known[order]
    begins = np.ones((shape[0], 1), bool)  # nothing was measured yet
    later = np.arange(shape[1]) >= np.arange(shape[1] + 1)[:, None]
    pairs = np.concatenate([begins, measured], axis=1)[:, :, None] & present[:, None, :] & later
    subject, passed, position = np.nonzero(pairs)
    total = np.cumsum(np.concatenate([~begins, measured], axis=1), axis=1)
    return _States(
        rows, measured, (subject, passed), rows[subject, position], total[subject, passed]
    )


def _predict(
    population: Population,
    states: _States,
    y: NDArray,
    fixed: NDArray,
    random: NDArray,
    output: NDArray,
) -> tuple[NDArray, NDArray, NDArray]:
    """Means and deviations of the rows predicted, and log densities of what was seen before."""
    noise, level = population.noise[output], fixed @ population.coefficients
    residual = np.where(np.isnan(y), 0.0, y - level) / noise
    scaled = random / noise[:, None]

    def passed(terms: NDArray) -> NDArray:
        # sums over the positions passed, from none on
        tail = (1,) * (terms.ndim - 1)
        kept = np.where(states.known.reshape(*states.known.shape, *tail), terms[states.rows], 0.0)
        return np.cumsum(np.concatenate([np.zeros_like(kept[:, :1]), kept], axis=1), axis=1)

    found = whitened(
        population.root,
        passed(scaled[:, :, None] * scaled[:, None, :]),
        passed(scaled * residual[:, None]),
        passed(residual**2),
        passed(np.log(noise) + 0.5 * np.log(2 * np.pi)),
    )
    along = random[states.row] @ population.root
    mean = level[states.row] + (along * found.mean[states.state]).sum(axis=1)
    own = np.einsum("pi,pij,pj->p", along, found.covariance[states.state], along)
    return mean, np.sqrt(own + noise[states.row] ** 2), found.log_density[states.state]


def _as_mixture(prior: Any) -> MixPrior:
    if isinstance(prior, MixPrior):
        return prior
    if isinstance(prior, list | tuple):
        return MixPrior(tuple(prior))
    return MixPrior((prior if isinstance(prior, Population) else Population.of(prior),))
