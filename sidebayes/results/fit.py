"""The one result of every engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sidebayes.diagnostics.sites import entry_names
from sidebayes.diagnostics.symmetry.invariants import convergence
from sidebayes.diagnostics.symmetry.matched import MatchedDraws
from sidebayes.diagnostics.trust.verdict import verdict
from sidebayes.guides.engines.base import Engine, Evidence, Status
from sidebayes.models.blocks.side_information.links import Links

from ..common.fields import check_integer
from ..common.files import check_writable, sealed, write_whole
from ..runs.execution import execute
from ..runs.run import Run
from .classes import Classes
from .curves import CurvesOfFit
from .labels import Latents
from .predictions import Predictions
from .survival import Survival
from .uncertainty import Uncertainty, summarised
from .validation import Validation

__all__ = ["Fit"]


@dataclass(frozen=True, eq=False)
class Fit(Classes, CurvesOfFit, Latents, Predictions, Survival, Uncertainty, Validation):
    """What came out of a fit: one DataTree, and what users ask of it.

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
        cls, run: Run, init: Mapping[str, Any] | Fit | None = None, *, progress: bool = True
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
        """The model; None after loading without a user's own, or an option that files cannot hold."""
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
        return self.tree["fit_info"].attrs["engine"]

    @property
    def status(self) -> Status:
        """Verdict on the run, in sentences that advise.

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
        """Worst ``rhat`` and least ``ess`` over label-invariant functionals; NaN for one draw."""
        return convergence(self.tree)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds waited for the fit, in parts and in ``total``.

        ``compile`` and ``run`` are of the engine, ``search`` of the search for the mode that a sampler
        starts at, its compiling included, and ``other`` of all else: checks, starting values, and
        describing what was found. The parts add up to ``total``.
        """
        return json.loads(self.tree["fit_info"].attrs["seconds"])

    @property
    def objective(self) -> NDArray[np.float64]:
        """Log joint density by restart and step, NaN after a start ended."""
        return self.tree["fit_info"]["objective"].to_numpy()

    @property
    def approximate(self) -> str | None:
        """Approximation made in summing out labels, None if exact."""
        return self.tree["fit_info"].attrs["approximate"] or None

    @property
    def links(self) -> Links:
        """The links that were used; where a model takes several, those that tie labels.

        The others are in ``fit.run.links``, by name of the argument.
        """
        return next(iter(self.run.links.values()), Links.empty(self._num_points))

    @property
    def log_evidence(self) -> Evidence | None:
        """Log marginal likelihood; None for engines that do not estimate it."""
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
        return self._described or MatchedDraws(self.tree)

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
        """Point estimate: the mode found, or the mean over relabelled and aligned draws."""
        return self._draws.params

    @property
    def thinned(self) -> xr.DataTree:
        """The tree at the draws that labels and densities are stored at, clusters matched.

        What sets draws beside densities, such as `arviz_stats.psense_summary`, needs both at the
        same draws: chains of more than 200 store densities at some only.
        """
        return self.relabelled[0].sel(draw=self.tree["log_likelihood"]["draw"])

    def resume(self, more: int) -> Fit:
        """Go on from where this fit ended.

        Parameters
        ----------
        more : int
            Steps at most, or draws of every chain for a sampler. A sampler adapts again, from
            `params`, and its draws stand alone: the earlier ones are not mixed in. SVI fits its guide
            anew, around the mode near `params`; only its `checkpoint` goes on from the guide reached.

        Returns
        -------
        Fit
        """
        config = replace(self.config, **{self.config.length: check_integer("more", more)})  # type: ignore[type-var]
        self.run.problem  # noqa: B018  a model that is not known refuses
        return self.of(replace(self.run, engine=config, seed=self.run.seed + 1), self)

    def summary(self, group: str = "posterior") -> pd.DataFrame:
        """Table of the parameters: mean, spread and diagnostics, of relabelled and aligned draws.

        Sites that an engine gives a point, where others have draws, have no spread; the column
        ``point`` tells which they are.

        Parameters
        ----------
        group : {"posterior", "latents"}
            Parameters, or latent variables that were integrated out, labels aside: their means and
            standard deviations, by the law of total variance.

        Raises
        ------
        ValueError
            For another group, or a model without such latent variables.
        """
        if group not in ("posterior", "latents"):
            raise ValueError(f"group = {group!r:.60}; expected 'posterior' or 'latents'")
        if group == "latents":
            return summarised(self.latents())
        draws = self.aligned[0]["posterior"].to_dataset()
        if draws.sizes["chain"] * draws.sizes["draw"] == 1:
            return pd.DataFrame({"estimate": _entries(draws)})
        import arviz as az

        still = [n for n, v in draws.items() if (v == v[:1, :1].to_numpy()).all()]
        table = az.summary(draws.drop_vars(still))
        if still:
            table = pd.concat([table, pd.DataFrame({"mean": _entries(draws[still])})])
        if json.loads(self.tree["fit_info"].attrs.get("points", "[]")):
            table["point"] = table["sd"].isna()
        return table

    def save(self, path: str | Path) -> None:
        """Write to a NetCDF file that `sidebayes.load` reads.

        An option that no file can hold, such as a function, is named there, and `load` asks for it.
        The file is written whole or not at all; one of that name is replaced only by all of the new.

        Raises
        ------
        TypeError, ValueError
            If nothing can be written to `path`.
        OSError
            If the disk is full, fails, or refuses; what was there is as before.
        """
        path = check_writable(path)
        # built in memory: HDF5 crashes the process when it cannot write what it has begun
        write_whole(path, sealed(self.tree.to_netcdf(engine="h5netcdf")))

    @property
    def picture(self) -> str | None:
        """What `plot` draws: "subjects", "curves" or "clusters"; None where the model has none of these."""
        from sidebayes.diagnostics.pictures.subjects import has_subjects

        if has_subjects(self):
            return "subjects"
        if not self.has_labels:
            return None
        return "clusters" if self._input_of_curves is None else "curves"

    def plot(self) -> Any:
        """Draw the data with what the model says of them; returns the matplotlib figure.

        Points with links and soft assignments (`plot_clusters`), the rows of a long table with bands
        (`plot_subjects`), or the curves of clusters along one input.

        Raises
        ------
        ValueError
            If the model has neither labels nor random effects that are integrated out.
        """
        from sidebayes.diagnostics.pictures.plots import plot_clusters
        from sidebayes.diagnostics.pictures.subjects import plot_subjects

        picture = self.picture
        if picture == "subjects":
            return plot_subjects(self)
        self._need_labels("clusters to draw")
        return self._plot_curves() if picture == "curves" else plot_clusters(self)

    def __repr__(self) -> str:
        """Say method, engine, size and verdict."""
        verdict = "" if self.status.converged else " NOT CONVERGED:"
        labels = f"\n  labels summed out by {self.approximate}" if self.approximate else ""
        if self.has_labels:
            points, clusters = self.tree["responsibilities"]["prob"].shape[-2:]
            size = f"{points} points, {clusters} clusters, {len(self.links)} links"
        else:
            tables = self.tree["observed_data"].data_vars.items()
            shapes = [f"{name} {v.shape}" for name, v in tables if name != "truth"]
            size = ", ".join(shapes)
        return f"Fit({self.method} by {self.engine}, {size})\n {verdict} {self.status}{labels}"

    def _repr_html_(self) -> str:
        from sidebayes.diagnostics.trust.notebook import fit_cell

        return fit_cell(self)


def _entries(draws: xr.Dataset) -> dict[str, float]:
    """Numbers of the first draw by name, as ArviZ names them."""
    rows: dict[str, float] = {}
    for name, site in draws.items():
        names = entry_names(str(name), site, site.dims[2:])
        rows |= zip(names, site.to_numpy()[0, 0].ravel().tolist(), strict=True)
    return rows
