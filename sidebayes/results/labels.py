"""What a fit says of the latent variables that were integrated out: labels and effects."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import dict_to_dataset
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.sites import name_axes
from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.problem.posterior import derive
from sidebayes.models.blocks.label_inference.approximate import Inference
from sidebayes.models.blocks.side_information.link_weights import check_pairs

from ..runs.stored import coordinates
from .predictions import check_new
from .uncertainty import check_probability, normal_interval, total_moments

__all__ = ["Latents"]


class Latents:
    """What a `Fit` is asked about labels and random effects."""

    @property
    def has_labels(self: Any) -> bool:
        """Whether the model has labels, or other latent variables and parameters only."""
        return "responsibilities" in self.tree

    @property
    def _num_points(self: Any) -> int | None:
        """Number of points that have labels."""
        return self.tree["responsibilities"].sizes["points"] if self.has_labels else None

    def _need_labels(self: Any, asked: str) -> None:
        if not self.has_labels:
            raise ValueError(
                f"{self.method} has no labels, so there are no {asked}: it observes no mixture. "
                "fit.predictive(...) draws outcomes, also of new rows; fit.summary() shows the parameters"
            )

    def responsibilities(self: Any, site: str | None = None) -> NDArray[np.float64]:
        """Posterior probabilities of the labels, averaged over relabelled draws.

        Parameters
        ----------
        site : str, optional
            Observed site, where several have labels.

        Returns
        -------
        ndarray, shape (num_points, num_clusters)
        """
        self._need_labels("responsibilities")
        return self._draws.responsibilities[self._rows_of(site)]

    def labels(self: Any, site: str | None = None) -> NDArray[np.int64]:
        """Labels of all points, shape (num_points,).

        The most probable joint labeling at `params`, which keeps every hard link, where the labels
        are summed out exactly; else the most probable label of each point.

        Parameters
        ----------
        site : str, optional
            Observed site, where several have labels.

        Raises
        ------
        ValueError
            If the model has no labels, or several sites have some and none is named.
        """
        self._need_labels("labels")
        return self.tree["responsibilities"]["labels"].to_numpy()[self._rows_of(site)]

    def _rows_of(self: Any, site: str | None) -> slice:
        slices = json.loads(self.tree["responsibilities"].attrs["label_sites"])
        if site is None and len(slices) == 1:
            site = next(iter(slices))
        if site not in slices:
            raise ValueError(
                f"site = {site!r}; expected one of {sorted(slices)}, which have labels"
            )
        return slice(*slices[site])

    def effects(self: Any, probability: float = 0.95) -> xr.Dataset:
        """Random effects that were integrated out: posterior means, deviations and intervals.

        Over draws of the parameters, the law of total variance puts both kinds of uncertainty
        together.

        Parameters
        ----------
        probability : float
            Of the normal intervals.

        Returns
        -------
        Dataset
            ``mean``, ``sd``, ``lower`` and ``upper``, by group and effect; coordinates name both
            where the data have names.

        Raises
        ------
        ValueError
            If the model has none, or the probability is no number between 0 and 1.
        """
        group = self.tree.get("latents", {})
        if "effects" not in group:
            raise ValueError(
                f"{self.method} integrates no random effects out; it observes no RandomEffects"
            )
        check_probability(probability)
        mean, spread = total_moments(group, "effects")
        lower, upper = normal_interval(mean, spread, probability)
        found = {"mean": mean, "sd": spread, "lower": lower, "upper": upper}
        stored = group["effects"]
        axes = zip(("group", "effect"), stored.dims[2:], strict=True)
        coords = {axis: stored[dim].to_numpy() for axis, dim in axes}
        return xr.Dataset({n: (("group", "effect"), v) for n, v in found.items()}, coords)

    def latents(self: Any, *data: Any, **named: Any) -> xr.Dataset:
        """Latent variables that were integrated out, labels aside: their posterior at every draw.

        Parameters
        ----------
        *data, **named
            New data, as for `predict_proba`, whose latent variables are wanted given these data alone. By
            default the data that were fitted.

        Returns
        -------
        Dataset
            By name and with named axes, of which the first two are ``chain`` and ``draw``: for the data
            that were fitted, the group ``latents`` of the tree.

        Raises
        ------
        TypeError, ValueError
            If the model has none, or for bad input.
        """
        if "latents" not in self.tree:
            raise ValueError(f"{self.method} integrates nothing out but labels, if anything")
        fitted = self.tree["latents"].to_dataset()
        if all(value is None for value in (*data, *named.values())):
            return fitted
        run = self.run.with_data(check_new(self.run, data, named))
        sites = self.tree["posterior"].to_dataset().sel(draw=fitted["draw"])
        sites = sites.drop_vars(self.run.sized_by_units)
        front = sites.sizes["chain"], sites.sizes["draw"]
        draws = {str(n): v.to_numpy().reshape(-1, *v.shape[2:]) for n, v in sites.items()}
        with run.precision:
            found = derive(run.problem, draws).latents
        values = {name: v.reshape(*front, *v.shape[1:]) for name, (_, v) in found.items()}
        dims: dict[Any, Any] = {name: axes for name, (axes, _) in found.items()}
        coords = {axis: fitted[axis].to_numpy() for axis in ("chain", "draw")}
        return name_axes(dict_to_dataset(values, dims=dims, coords=coords), coordinates(run))

    def same_cluster(self: Any, pairs: ArrayLike) -> NDArray[np.float64]:
        """Posterior probability that pairs of points share a cluster, shape (num_pairs,).

        Averages over draws; within a draw the two labels are taken as independent, which is exact
        for pairs in different connected sets.

        Parameters
        ----------
        pairs : array_like of int, shape (num_pairs, 2)
            Row numbers of different points.

        Raises
        ------
        TypeError, ValueError
            If the model has no labels, or a pair does not name two of the points.
        """
        self._need_labels("clusters to share")
        prob = self.tree["responsibilities"]["prob"].to_numpy()
        ends = check_pairs(pairs, prob.shape[2], "pairs").T
        one, other = (prob[:, :, points] for points in ends)
        return np.einsum("cdpk,cdpk->cdp", one, other).mean(axis=(0, 1))

    def suspect_links(
        self: Any, *, flip_rate: float = 0.05, inference: str | Inference | None = None
    ) -> pd.DataFrame:
        """Links by the posterior probability that they are wrong, the most suspect first.

        Parameters
        ----------
        flip_rate : float in (0, 1/2)
            Taken for hard links, which claim none; soft links carry their own.
        inference : str or inference object, optional
            By default the model's own; see `LinkedCategorical`.

        Returns
        -------
        DataFrame
            See `sidebayes.diagnostics.links.suspects.rank_suspects`; ``attrs["approximate"]`` names the
            approximation made, None where labels are summed out exactly.
        """
        from sidebayes.diagnostics.links.suspects import link_agreement, rank_suspects

        self._need_labels("links to suspect")
        with self.run.precision:
            same, weights, approximate = link_agreement(
                self.run.problem,
                pooled_draws(self.tree),
                self.links,
                flip_rate=flip_rate,
                inference=inference,
            )
        table = rank_suspects(self.links, same, weights)
        table.attrs["approximate"] = approximate
        return table
