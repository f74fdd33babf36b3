"""The one result of every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sidebayes.diagnostics.features import has_features
from sidebayes.diagnostics.sites import (
    clusters_of,
    entry_names,
    has_labelled_table,
    point_sites,
    tables_of,
    unwrapped,
)
from sidebayes.diagnostics.symmetry.invariants import is_still
from sidebayes.diagnostics.trust.verdict import verdict
from sidebayes.models.blocks.side_information.groups import Groups

from ..common.fields import check_integer
from ..common.files import FIT, check_writable, sealed, write_whole
from ..common.magnitudes import counted, shown
from . import curves as of_curves
from . import effects as of_effects
from . import features as of_features
from . import given_draws as of_given
from . import latent_shapes as of_latent
from . import positions as of_positions
from . import shape_effects as of_covariates
from . import shape_modes as of_modes
from . import shapes as of_shapes
from . import survival as of_survival
from .base import labels as of_labels
from .base import predictions as of_new_data
from .base.fit_base import FitBase, need_labels
from .base.known_classes import told_by_known_classes
from .base.links_left_out import told_by_links_left_out, told_with_weaker_links
from .scores import evidence as of_evidence
from .scores import information as of_information
from .scores import leave_one_out as of_loo
from .scores import validation as of_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Fit"]


@dataclass(frozen=True, eq=False)
class Fit(FitBase):
    """Result of a fit: a DataTree, and methods that answer questions about it.

    Attributes
    ----------
    tree : xarray.DataTree
        ArviZ groups; see `sidebayes.diagnostics.tree.to_datatree`.
    run : Run
        Model, data, options and engine.
    """

    labels = of_labels.labels
    responsibilities = of_labels.responsibilities
    same_cluster = of_labels.same_cluster
    suspect_links = of_labels.suspect_links
    score_links = of_labels.score_links
    classes = of_labels.classes
    class_probabilities = of_labels.class_probabilities

    latents = of_effects.latents
    effects = of_effects.effects
    coefficients = of_effects.coefficients

    features = of_features.features
    imputed = of_features.imputed
    contrast_saliencies = of_features.contrast_saliencies
    contrast = of_features.contrast

    predict = of_new_data.predict
    predict_proba = of_new_data.predict_proba
    log_prob = of_new_data.log_prob
    predictive = of_new_data.predictive
    curves = of_curves.curves
    forecast = of_curves.forecast
    survival = of_survival.survival

    group_log_likelihood = of_latent.group_log_likelihood
    shapes = of_shapes.shapes
    modes = of_modes.modes
    shape_at = of_shapes.shape_at
    shape_difference = of_shapes.shape_difference
    shape_effects = of_covariates.shape_effects
    shape_quality = of_modes.shape_quality

    positions = of_positions.positions
    place = of_positions.place
    loo_points = of_positions.loo_points

    loo = of_loo.loo
    kfold = of_scores.kfold
    with_evidence = of_evidence.with_evidence

    @classmethod
    def from_draws(
        cls, model: str | Callable[..., None], data: Any, draws: Any, **arguments: Any
    ) -> Fit:
        """Make a fit from draws made elsewhere, with all that the model says about them.

        Labels, predictions, leave-one-out scores and convergence are available as for a fit by an
        engine. Methods that run the engine again (`resume`, `kfold`, ``loo(refit=True)``) are
        refused.

        The draws are tested by steps of Hamiltonian Monte Carlo, which leave the posterior
        invariant. If the steps change the distribution of the draws, for example because these
        belong to other data, the verdict is "bad". If the draws cannot be tested, it is "caution".

        Parameters
        ----------
        model : str or callable
            The NumPyro model that the draws are of, or the name of a card.
        data : array_like, tuple or mapping
            The first argument of the model; several in their order; or data by name of the argument.
        draws : DataTree, Dataset, InferenceData, MCMC, mapping or path
            Draws of every latent site under its name, shape (chain, draw, ...), in its support: what ArviZ
            reads from NumPyro, nutpie, PyMC or CmdStan, NumPyro's `MCMC` itself, a mapping of arrays, or a
            file.
        **arguments
            Options of the model.

        Returns
        -------
        Fit

        Raises
        ------
        TypeError, ValueError
            If draws of a site are missing or of another shape, or the model gives draws no density.

        Warns
        -----
        SideBayesWarning
            If draws hold variables that the model does not have, or values of deterministic sites
            that differ from those that the model computes.
        """
        run, found = of_given.described(model, data, draws, arguments)
        return cls(found.tree, run, found)

    @property
    def has_classes(self) -> bool:
        """Whether points have classes in addition to their labels."""
        return of_labels.has_classes(self)

    @property
    def class_names(self) -> tuple[str | int, ...]:
        """Names of the classes in their order; numbers for those without a name."""
        return of_labels.class_names(self)

    @property
    def event_times(self) -> str | None:
        """Site of the observed times to an event; None if the model has none."""
        return of_survival.event_times(self)

    @property
    def unit_terms(self) -> NDArray[np.float64]:
        """Log-likelihood terms by unit, summed over observed sites, shape (chain, draw, unit)."""
        return of_scores.unit_terms(self)

    @property
    def bic(self) -> float:
        r"""Bayesian information criterion of a mode; smaller is better.

        .. math:: -2 \log p(x \mid \hat\theta) + \sum_s d_s \log n

        Here n is the number of units, without those of which nothing is observed, such as masked
        rows, and site s has :math:`d_s` degrees of freedom; see `code_length` for sites that are
        charged otherwise. Half of the criterion is a code length in nats. The prior enters through
        the mode alone.

        Raises
        ------
        ValueError
            If the fit has draws instead of a mode, or its density is not a likelihood.

        References
        ----------
        Schwarz (1978), Ann. Stat. 6, 461-464, doi:10.1214/aos/1176344136.
        """
        return of_information.bic(self)

    def resume(self, more: int) -> Fit:
        """Continue from where this fit ended.

        Parameters
        ----------
        more : int
            Maximum number of steps, or the number of draws per chain for a sampler. A sampler
            adapts again, starting from `params`, and the result holds its new draws only. SVI fits
            its guide anew, around the mode near `params`; only its `checkpoint` continues from the
            guide that was reached.

        Returns
        -------
        Fit
        """
        config = replace(self.config, **{self.config.length: check_integer("more", more)})  # type: ignore[type-var]
        self.run.problem  # noqa: B018  a model that is not known refuses
        return self.of(replace(self.run, engine=config, seed=self.run.seed + 1), self)

    def summary(self, group: str = "posterior") -> pd.DataFrame:
        """Table of means, spreads and diagnostics of parameters, over relabelled and aligned draws.

        Sites for which the engine gives a point estimate, beside draws of other sites, have no
        spread; the column ``point`` marks them. Angles are taken within half a turn of their mean
        direction, so that means and intervals may lie beyond π. Truth values count as 0 and 1.
        Deterministic sites that depend on the numbers of clusters are computed anew from the
        relabelled draws; they are NaN if these differ from the stored draws and the model is not
        known.

        Parameters
        ----------
        group : {"posterior", "latents"}
            "posterior" is the table of the parameters. "latents" is that of the latent variables
            that were integrated out, other than labels: their means and standard deviations, by the
            law of total variance.

        Raises
        ------
        ValueError
            For another group, or a model without such latent variables.
        """
        if group not in ("posterior", "latents"):
            raise ValueError(f"group = {shown(group)}; expected 'posterior' or 'latents'")
        if group == "latents":
            return of_effects.summary_of_latents(self)
        draws = unwrapped(self.aligned[0])
        if draws.sizes["chain"] * draws.sizes["draw"] == 1:
            return pd.DataFrame({"estimate": _entries(draws)})
        import arviz as az

        still = [n for n, v in draws.items() if is_still(v.to_numpy())]
        table = pd.DataFrame({"mean": _entries(draws[still])})
        if len(still) < len(draws):
            with np.errstate(invalid="ignore"):  # of entries that are constant, as in a correlation
                moving = az.summary(draws.drop_vars(still), round_to="none")
            table = pd.concat([moving, table]) if still else moving
        else:
            table["sd"] = np.nan
        if point_sites(self.tree):
            table["point"] = table["sd"].isna()
        return table

    def save(self, path: str | Path) -> None:
        """Write the fit to a NetCDF file that `sidebayes.load` reads.

        The file names any option that it cannot hold, such as a function, and `load` asks for it.
        The file is written completely or not at all; an existing file is replaced only once the new
        one is complete.

        Raises
        ------
        TypeError, ValueError
            If `path` cannot be written to, holds a file of another kind, such as a table, or ends as one
            does.
        OSError
            If the disk is full or fails; an existing file is then unchanged.
        """
        path = check_writable(path, FIT)
        # built in memory: HDF5 crashes the process when it cannot write what it has begun
        write_whole(path, sealed(self.tree.to_netcdf(engine="h5netcdf")))

    @property
    def picture(self) -> str | None:
        """Kind of picture that `plot` draws; None if there is none.

        One of "map", "features", "subjects", "shapes", "sphere", "curves" and "clusters".
        """
        from sidebayes.diagnostics.pictures.spheres import has_sphere
        from sidebayes.diagnostics.pictures.subjects import has_subjects
        from sidebayes.diagnostics.positions import has_positions

        if has_subjects(self):
            return "subjects"
        if has_positions(self.tree):
            return "map"
        if not self.has_labels:
            return None
        if has_features(self.tree):
            return "features"
        if of_shapes.has_shapes(self):
            return "shapes"
        if has_sphere(self):
            return "sphere"
        if of_curves.input_of_curves(self) is not None:
            return "curves"
        return "clusters" if has_labelled_table(self.tree) else None

    def plot(self) -> Figure:
        """Draw the data with the model's description of them; returns the matplotlib figure.

        Depending on the model, these are points with links and soft assignments (`plot_clusters`),
        the rows of a long table with bands (`plot_subjects`), saliencies of features
        (`plot_features`), shapes of groups with deformations and modes (`plot_shapes`), positions
        on a map (`plot_positions`), points on a circle or a sphere (`plot_sphere`), or the curves
        of clusters along one input.

        Raises
        ------
        ValueError
            If the model has neither labels of the rows of a table, nor random effects that are integrated
            out.
        """
        from sidebayes.diagnostics.pictures.plots import plot_clusters, plot_features
        from sidebayes.diagnostics.pictures.shapes import plot_shapes
        from sidebayes.diagnostics.pictures.spheres import plot_sphere
        from sidebayes.diagnostics.pictures.subjects import plot_subjects
        from sidebayes.diagnostics.positions import plot_positions

        if self.picture == "subjects":
            return plot_subjects(self)
        if self.picture == "map":
            return plot_positions(self.aligned[0])
        need_labels(self, "clusters to draw")
        if self.picture == "features":
            return plot_features(self)
        if self.picture == "shapes":
            apart = of_shapes.farthest_apart(self)
            difference = None if apart is None else self.shape_difference(*apart)
            return plot_shapes(self.shapes(), self.modes(), self.responsibilities(), difference)
        if self.picture == "sphere":
            return plot_sphere(self)
        along = of_curves.input_of_curves(self)
        return plot_clusters(self) if along is None else of_curves.plot_fit_curves(self, along)

    @cached_property
    def verdict(self) -> tuple[str, str]:
        """How far to trust the fit: "good", "caution" or "bad", and why."""
        by_links = told_by_links_left_out(self), told_with_weaker_links(self)
        return verdict(self, *told_by_known_classes(self), *by_links)

    def __repr__(self) -> str:
        """Say method, engine, size and verdict."""
        verdict = "" if self.status.converged else " BAD:"
        labels = f"\n  labels summed out by {self.approximate}" if self.approximate else ""
        if self.has_labels:
            points, clusters = self.tree["responsibilities"]["prob"].shape[-2:]
            seen = f"{points} of {self.run.sample_of}" if self.run.sample_of else points
            what = f"{clusters_of(self.tree)} cluster{'s' * (clusters != 1)}"
            of = next(
                (
                    f"{len(groups)} rows of {seen} {name}"
                    for name, groups in self.run.data.items()
                    if isinstance(groups, Groups) and groups.num_groups == points < len(groups)
                ),
                f"{seen} points",
            )
            size = f"{of}, {what}, {counted(len(self.links), 'link')}"
        else:
            tables = tables_of(self.tree, "observed_data").items()
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
