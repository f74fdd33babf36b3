"""The facts of a fit, which all that is asked of it builds on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sidebayes.diagnostics.fitted import Fitted
from sidebayes.diagnostics.sites import has_labels
from sidebayes.diagnostics.symmetry.invariants import convergence
from sidebayes.diagnostics.symmetry.matched import MatchedDraws
from sidebayes.diagnostics.trust.verdict import verdict
from sidebayes.guides.engines.base import Engine, Evidence, Status
from sidebayes.models.blocks.side_information.links import Links

from ...runs.execution import execute
from ...runs.run import Run
from .information import covariance_of_sites

__all__ = ["FitBase", "need_labels"]


@dataclass(frozen=True, eq=False)
class FitBase:
    """The facts of a fit: one DataTree, the run it came from, and its draws matched.

    Attributes
    ----------
    tree : xarray.DataTree
        ArviZ groups; see `sidebayes.diagnostics.tree.to_datatree`.
    run : Run
        Model, data, options and engine.
    """

    tree: xr.DataTree
    run: Run
    _described: MatchedDraws | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, run: Run, init: Mapping[str, Any] | Fitted | None = None, *, progress: bool = True
    ) -> Self:
        """Execute a run.

        Parameters
        ----------
        run : Run
        init : mapping or Fit, optional
            Where to start.
        progress : bool
        """
        draws = execute(run, init, progress=progress)
        return cls(draws.tree, run, draws)

    @property
    def method(self) -> str:
        """Name of the card, or of the user's model."""
        return self.run.method

    @property
    def model(self) -> Callable[..., None] | None:
        """The model; None if a loaded fit lacks a user's model, or an option that no file holds."""
        return self.run.model

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the model, ``num_clusters`` among them."""
        return self.run.options

    @property
    def config(self) -> Engine:
        """Configuration of the engine that ran."""
        return self.run.engine

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return str(self.tree["fit_info"].attrs["engine"])

    @property
    def status(self) -> Status:
        """Whether the run can be trusted, with advice in a sentence or two.

        A sampler whose chains disagree on label-invariant functionals has not converged.
        """
        level, message = self.verdict
        return Status(level != "bad", message)

    @cached_property
    def verdict(self) -> tuple[str, str]:
        """How far to trust the fit: "good", "caution" or "bad", and why."""
        return verdict(self)

    @cached_property
    def convergence(self) -> dict[str, float]:
        """Worst ``rhat`` and ``ess`` over label-invariant functionals; NaN for a single draw."""
        return convergence(self.tree)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that the fit took, by part and in ``total``.

        ``compile`` and ``run`` are the times of the engine. ``search`` is the time of the search
        for the mode at which a sampler starts, compilation included. ``other`` is the time of
        everything else: checks, starting values, and the description of the result. The parts add
        up to ``total``.
        """
        return dict(json.loads(self.tree["fit_info"].attrs["seconds"]))

    @property
    def objective(self) -> NDArray[np.float64]:
        """Log joint density by start and step; NaN after a start has ended."""
        return self.tree["fit_info"]["objective"].to_numpy()

    @property
    def approximate(self) -> str | None:
        """Approximation used to sum out labels; None if the sum is exact."""
        return self.tree["fit_info"].attrs["approximate"] or None

    @property
    def links(self) -> Links:
        """The links that were used; if the model takes several sets of them, those that tie labels.

        The others are in ``fit.run.links``, by name of the argument.
        """
        return next(iter(self.run.links.values()), Links.empty(_num_points(self.tree)))

    @property
    def log_evidence(self) -> Evidence | None:
        """Log marginal likelihood; None for engines that do not estimate it, see `with_evidence`."""
        info = self.tree["fit_info"].attrs
        if "log_evidence" not in info:
            return None
        error = float(info["log_evidence_error"])
        return Evidence(
            float(info["log_evidence"]),
            info["log_evidence_kind"],
            None if np.isnan(error) else error,
        )

    @cached_property
    def _draws(self) -> MatchedDraws:
        """The draws, matched when first used, or by the run itself."""
        return self._described or MatchedDraws(self.tree, self.run.computed)

    @property
    def relabelled(self) -> tuple[xr.DataTree, float]:
        """The tree with label switching undone, and the quality score of the matching."""
        return self._draws.relabelled

    @property
    def aligned(self) -> tuple[xr.DataTree, float]:
        """The relabelled tree with rotations undone as well, and the lower of both quality scores."""
        return self._draws.aligned

    @property
    def params(self) -> dict[str, NDArray[np.float64]]:
        """Point estimate: the mode found, or the mean over relabelled and aligned draws.

        Of angles, and of the rows of Cholesky factors of correlations, whose length is 1, it is the mean
        direction: plain means, which `summary` gives for such rows, are no values of these sites.
        """
        return self._draws.params

    @property
    def thinned(self) -> xr.DataTree:
        """The tree at the draws for which labels and densities are stored, with clusters matched.

        Functions that combine draws and densities, such as `arviz_stats.psense_summary`, need both
        at the same draws. Chains of more than 200 draws, or one of more than 800, store densities at some
        of them only.
        """
        return self.relabelled[0].sel(draw=self.tree["log_likelihood"]["draw"])

    @property
    def has_labels(self) -> bool:
        """Whether the model has labels, and not only parameters and other latent variables."""
        return has_labels(self.tree)

    @cached_property
    def covariance(self) -> pd.DataFrame:
        r"""Covariance of the parameters, with a row and a column for each entry.

        For a point estimate it follows from the observed information: the inverse of the negative
        Hessian of the log joint density in unconstrained coordinates, without Jacobian, is carried
        over to latent and deterministic sites by their derivatives,

        .. math:: \mathrm{Cov}[f(\theta)] \approx J H^{-1} J^\top.

        With flat priors the diagonal holds the squared standard errors of maximum likelihood. An
        entry whose derivative vanishes at the point, or that lies on the boundary of its range, has
        no standard error and is NaN; so are the entries of a singular covariance of random effects,
        and sites that only describe an approximate posterior, which follow the parameters. For
        draws it is the covariance of the relabelled and aligned draws.

        Returns
        -------
        DataFrame

        Raises
        ------
        ValueError
            If the log joint is flat or curves upwards where the fit ended, or has no second
            derivatives, or the model has more than 500 coordinates.
        """
        return covariance_of_sites(self.run, self.aligned[0], self.params)


def need_labels(fit: FitBase, asked: str) -> None:
    """Refuse what only models with labels have."""
    if not fit.has_labels:
        raise ValueError(
            f"{fit.method} has no labels, so there are no {asked}: it observes no mixture. "
            "fit.predictive(...) draws outcomes, also of new rows; fit.summary() shows the parameters"
        )


def _num_points(tree: xr.DataTree) -> int | None:
    """Number of points that have labels."""
    return tree["responsibilities"].sizes["points"] if has_labels(tree) else None
