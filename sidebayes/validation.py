"""How well a fit foresees what it has not seen: components left out, and held-out links."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from xarray import DataArray

from sidebayes.diagnostics.link_score import LinkScore, agreement, score_statements
from sidebayes.guides.engines.base import SideBayesWarning
from sidebayes.guides.engines.progress import progress_bar
from sidebayes.models.blocks.approximate import Inference
from sidebayes.models.blocks.label_graph import as_label_graph
from sidebayes.models.blocks.links import Links

from . import posterior

__all__ = ["Validation", "deal_folds"]


class Validation:
    """What a `Fit` is asked about data that it did not see."""

    def loo(self: Any) -> Any:
        """Leave out one connected component of the links at a time, by importance sampling (PSIS).

        Returns
        -------
        arviz_stats.utils.ELPDDataLOO
            With ``elpd_i`` and ``pareto_k`` a component, the unit; lone points are components. A warning
            counts the components that the draws are too narrow for, and names `kfold`.

        Raises
        ------
        ValueError
            If the fit is a point, or gives some rows no density.

        References
        ----------
        Vehtari, Gelman and Gabry (2017), Stat. Comput. 27, 1413-1432, doi:10.1007/s11222-016-9696-4.
        """
        from arviz_stats import loo as psis

        terms = self.tree["log_likelihood"]["x"]
        if terms.sizes["chain"] * terms.sizes["draw"] < 100:
            raise ValueError(
                f"{self.engine} gave {terms.sizes['chain'] * terms.sizes['draw']} draws, too few to leave "
                "data out by their weights; use fit.kfold(), or an engine that draws"
            )
        if not np.isfinite(terms).all():
            raise ValueError("the fit gives some rows no density; there is nothing to leave out")
        with warnings.catch_warnings():  # ArviZ's is told in the terms of links below
            warnings.simplefilter("ignore")
            found = psis(self.tree, var_name="x", reff=1.0, pointwise=True)
        wide = int((found.pareto_k > found.good_k).sum())
        if wide:
            warnings.warn(
                f"Pareto k is above {found.good_k:.2f} at {wide} of {found.n_data_points} components of "
                "the links: without them the posterior is another, and the estimate is not to be trusted; "
                "fit.kfold() refits instead",
                SideBayesWarning,
                stacklevel=2,
            )
        return found

    def kfold(self: Any, num_folds: int = 10, *, seed: int = 0, progress: bool = True) -> Any:
        r"""Leave out a fold of connected components of the links at a time, and fit the rest again.

        No link is cut: a component is held out with all its points and links, and scored by

        .. math:: \log \frac1S \sum_s p(x_c, \ell_c \mid \theta_s), \qquad
                  \theta_s \sim p(\theta \mid x_{-F}, \ell_{-F}),

        labels summed out, F the fold that c is in; where links are a field, the density is of the data
        given the links. Exact up to Monte Carlo error, where `loo` relies on importance weights. The
        prior stays that of the whole fit, also where it was read off the data.

        Method, options and engine are the fit's own, without a checkpoint.

        Parameters
        ----------
        num_folds : int
            At least 2; as many as there are components leaves one out at a time.
        seed : int
            Of the dealing of components to folds, and of the engine.
        progress : bool

        Returns
        -------
        arviz_stats.utils.ELPDDataLOOKFold
            With ``elpd_i`` and ``p_kfold_i`` a component; `arviz_stats.compare` takes it.

        Raises
        ------
        ValueError
            If there are fewer components than folds, or parameters belong to single rows, so that rows
            held out have no density.
        """
        from arviz_stats.utils import ELPDDataLOOKFold

        from .api import fit as refit

        if self.engine == "kmeans":
            raise ValueError("K-means has no density of held-out data; fit with 'em' or 'map'")
        unit = self.tree["constant_data"]["unit"].to_numpy().astype(int)
        fold = deal_folds(unit, num_folds, seed)
        elpd = np.full(len(fold), np.nan)
        config = self.config
        if getattr(config, "checkpoint", None) is not None:
            config = replace(config, checkpoint=None)  # type: ignore[type-var]
        unsettled = []
        with self._precision():
            model = self._problem().model
        with progress_bar("k-fold", num_folds, shown=progress) as advance:
            for number in range(num_folds):
                held = fold[unit] == number
                some = refit(
                    model,
                    self._x[~held],
                    _subset(self.links, ~held),
                    engine=config,
                    seed=seed,
                    dtype=self.tree.attrs["sidebayes_dtype"],
                    progress=False,
                    **self._fixed_options(),
                )
                found = _held_out(some, self._x[held], _subset(self.links, held), unit[held])
                numbers, density, draws = found
                elpd[numbers] = density
                if not some.status.converged:
                    unsettled.append(number)
                advance(1, f"fold {number + 1}")
        if unsettled:
            warnings.warn(
                f"the engine did not converge on folds {unsettled}; run it longer",
                SideBayesWarning,
                stacklevel=2,
            )
        terms = self.tree["log_likelihood"]["x"].to_numpy()
        inside = _log_mean(terms.reshape(-1, terms.shape[-1]))
        return ELPDDataLOOKFold(
            elpd=float(elpd.sum()),
            se=float(np.sqrt(len(elpd) * elpd.var())),
            p=float((inside - elpd).sum()),
            n_samples=draws,
            n_data_points=len(elpd),
            scale="log",
            warning=bool(unsettled),
            good_k=None,  # type: ignore[arg-type]
            elpd_i=DataArray(elpd, dims="unit", name="elpd_i"),
            n_folds=num_folds,
            p_kfold_i=DataArray(inside - elpd, dims="unit", name="p_kfold_i"),
        )

    def score_links(
        self: Any,
        links: Links,
        *,
        flip_rate: float = 0.0,
        inference: str | Inference | None = None,
    ) -> LinkScore:
        """Log probability of links that the fit has not seen, under its draws.

        Parameters
        ----------
        links : Links
            Between the same rows; only the sign of a weight counts.
        flip_rate : float in [0, 1/2)
            Probability that a held-out link is wrong, where the experts who made it err.
        inference : str or inference object, optional
            By default the model's own; see `LinkedCategorical`.

        Returns
        -------
        LinkScore
            Prints score and baseline; ``.table`` has a row a link.

        Raises
        ------
        TypeError, ValueError
            If there are no links, one of them was used in the fit, or a row number is out of range.
        """
        if not isinstance(links, Links):
            raise TypeError(f"links is a {type(links).__name__}; pass Links, as to fit")
        if not len(links):
            raise ValueError("links is empty; pass the links that were held out")
        if not 0 <= flip_rate < 0.5:
            raise ValueError(f"flip_rate = {flip_rate!r}; expected a number in [0, 1/2)")
        num_points = len(self._x)
        if links.pairs.max() >= num_points:
            raise ValueError(f"links name row {links.pairs.max()}; the fit has {num_points} rows")
        seen = np.isin(links.pairs @ [num_points, 1], self.links.pairs @ [num_points, 1])
        if seen.any():
            raise ValueError(
                f"{seen.sum()} of the links, {tuple(map(int, links.pairs[np.argmax(seen)]))} say, join "
                "pairs that the fit was given a link for; leave these out, they are not held out"
            )
        with self._precision():
            same, chance, approximate = agreement(
                self._problem(),
                posterior.pooled_draws(self.tree),
                links.pairs,
                site=posterior.mixture_site,
                inference=inference,
            )
        return score_statements(links, same, chance, flip_rate, approximate)


def deal_folds(unit: NDArray, num_folds: int, seed: int) -> NDArray[np.int64]:
    """Fold of each component: dealt at random, the largest first, to the fold with fewest points.

    Parameters
    ----------
    unit : ndarray of int, shape (num_points,)
        Component of each point.
    num_folds, seed : int

    Returns
    -------
    ndarray of int, shape (num_components,)

    Raises
    ------
    ValueError
        If there are fewer components than folds.
    """
    size = np.bincount(unit)
    if isinstance(num_folds, bool) or not isinstance(num_folds, int | np.integer) or num_folds < 2:
        raise ValueError(f"num_folds = {num_folds!r}; expected an integer >= 2")
    if num_folds > len(size):
        raise ValueError(
            f"num_folds = {num_folds}; expected at most {len(size)}, the number of connected components "
            "of the links, which are held out whole"
        )
    order = np.random.default_rng(seed).permutation(len(size))
    order = order[np.argsort(-size[order], kind="stable")]
    fold, points = np.empty(len(size), np.int64), np.zeros(num_folds)
    for one in order:
        fold[one] = np.argmin(points)
        points[fold[one]] += size[one]
    return fold


def _subset(links: Links, rows: NDArray) -> Links | None:
    some = links.subset(rows)
    return some if len(some) else None


def _held_out(
    fit: Any, x: NDArray, links: Links | None, unit: NDArray
) -> tuple[NDArray, NDArray, int]:
    """Components of other data, numbered by `unit`, their log predictive density, and draws used."""
    with fit._precision():
        problem = fit._problem(x, links)
        own, other = map(posterior.latent_shapes, (fit._problem(), problem))
        rowwise = sorted(name for name in own if own[name] != other.get(name))
        if rowwise:
            raise ValueError(
                f"{fit.method}: sites {rowwise} change shape with the data, so that rows held out have "
                "no density given a fit to the others"
            )
        draws = posterior.pooled_draws(fit.tree, of_each_chain=True)
        terms = posterior.derive(problem, draws).log_likelihood
    numbers = np.empty(terms.shape[1], np.int64)
    numbers[np.asarray(as_label_graph(links, len(x)).component)] = unit
    return numbers, _log_mean(terms), len(terms)


def _log_mean(terms: NDArray) -> NDArray:
    return logsumexp(terms, axis=0) - np.log(len(terms))
