"""The one result of every engine."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.compare import verdict
from sidebayes.diagnostics.invariants import convergence
from sidebayes.diagnostics.relabel import relabel
from sidebayes.guides.engines.base import Engine, Evidence, Problem, SideBayesWarning, Status
from sidebayes.guides.engines.programs import compiled
from sidebayes.models.blocks.approximate import Inference
from sidebayes.models.blocks.components import GaussianPrior
from sidebayes.models.blocks.linked import LinkedMixture
from sidebayes.models.blocks.links import Links

from . import posterior
from .checks import check_data, check_links
from .validation import Validation
from .zoo import CARDS, Card, inference_used, links_taken

__all__ = ["Fit"]

_POOR_MATCH = 0.8
"""Score of relabelling below which averages over draws mean little."""

_LENGTH = {
    "nuts": "num_samples",
    "hmc": "num_samples",
    "gibbs": "num_samples",
    "svi": "num_steps",
    "stochastic_em": "max_epochs",
}
"""What the field is called that says how long an engine goes on."""


@dataclass(frozen=True, eq=False)
class Fit(Validation):
    """What came out of a fit: one DataTree, and what users ask of it.

    Attributes
    ----------
    tree : xarray.DataTree
        ArviZ groups; see `sidebayes.diagnostics.tree.to_datatree`.
    method : str
        Name of the card, or of the user's model.
    model : callable or None
        None after loading a user's own model without naming it again.
    options : dict
        Model options, ``num_clusters`` among them.
    config : Engine
        Configuration of the engine that ran.
    """

    tree: xr.DataTree
    method: str
    model: Callable[..., None] | None
    options: Mapping[str, Any]
    config: Engine

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
        """Seconds to compile and to run."""
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
        """The links that were used."""
        group = self.tree["constant_data"]
        return Links(
            group["links"].to_numpy().astype(int),
            group["link_weights"].to_numpy(),
            self._x.shape[0],
        )

    @property
    def _x(self) -> NDArray[np.float64]:
        return self.tree["observed_data"]["x"].to_numpy()

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
    def relabelled(self) -> tuple[xr.DataTree, float]:
        """The tree with label switching undone, and the quality score of the matching."""
        tree, score = relabel(self.tree)
        if score < _POOR_MATCH:
            warnings.warn(
                f"clusters cannot be matched across draws (score {score:.2f}); estimates by cluster "
                "are taken from the draw of highest density, and only label-invariant results, such "
                "as same_cluster, describe the whole posterior",
                SideBayesWarning,
                stacklevel=2,
            )
        return tree, score

    @cached_property
    def params(self) -> dict[str, NDArray[np.float64]]:
        """Point estimate: the mode found, or the mean over relabelled draws."""
        tree, score = self.relabelled
        values = {str(n): v.to_numpy() for n, v in tree["posterior"].data_vars.items()}
        if score >= _POOR_MATCH:
            return {name: value.mean(axis=(0, 1)) for name, value in values.items()}
        best = self._best_draw
        return {name: value[best] for name, value in values.items()}

    @property
    def _best_draw(self) -> tuple[int, int]:
        density = self.tree["sample_stats"]["lp"].to_numpy()
        chain, draw = np.unravel_index(np.argmax(density), density.shape)
        return int(chain), int(draw)

    def responsibilities(self) -> NDArray[np.float64]:
        """Posterior probabilities of the labels, averaged over relabelled draws.

        Returns
        -------
        ndarray, shape (num_points, num_clusters)
        """
        tree, score = self.relabelled
        prob = tree["responsibilities"]["prob"].to_numpy()
        if score >= _POOR_MATCH:
            return prob.mean(axis=(0, 1))
        chain, draw = self._best_draw
        kept = posterior.thin(self.tree["posterior"].sizes["draw"], prob.shape[1])
        return prob[chain, int(np.abs(kept - draw).argmin())]

    def labels(self) -> NDArray[np.int64]:
        """Labels of all points, shape (num_points,).

        The most probable joint labeling at `params`, which keeps every hard link, where the labels
        are summed out exactly; else the most probable label of each point.
        """
        return self.tree["responsibilities"]["labels"].to_numpy()

    def _find_labels(self) -> NDArray[np.int64]:
        if self.approximate is not None or self.config.name == "kmeans":
            return self.responsibilities().argmax(axis=1)
        return posterior.joint_mode(self._problem(), self.params)

    def same_cluster(self, pairs: ArrayLike) -> NDArray[np.float64]:
        """Posterior probability that pairs of points share a cluster, shape (num_pairs,).

        Averages over draws; within a draw the two labels are taken as independent, which is exact
        for pairs in different components of the links.
        """
        pairs = np.asarray(pairs)
        prob = self.tree["responsibilities"]["prob"].to_numpy()
        return np.einsum("cdpk,cdpk->cdp", prob[:, :, pairs[:, 0]], prob[:, :, pairs[:, 1]]).mean(
            axis=(0, 1)
        )

    def suspect_links(
        self, *, flip_rate: float = 0.05, inference: str | Inference | None = None
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
            See `sidebayes.diagnostics.suspects.rank_suspects`; ``attrs["approximate"]`` names the
            approximation made, None where labels are summed out exactly.
        """
        from sidebayes.diagnostics.suspects import link_agreement, rank_suspects

        with self._precision():
            same, weights, approximate = link_agreement(
                self._problem(),
                posterior.pooled_draws(self.tree),
                self.links,
                site=posterior.mixture_site,
                flip_rate=flip_rate,
                inference=inference,
            )
        table = rank_suspects(self.links, same, weights)
        table.attrs["approximate"] = approximate
        return table

    def predict_proba(self, x_new: ArrayLike, links: Links | None = None) -> NDArray[np.float64]:
        """Label probabilities of new points (Lu 2008, eq. 2.24), averaged over draws.

        Parameters
        ----------
        x_new : array_like, shape (num_new, num_features)
        links : Links, optional
            Links among the new points.

        Returns
        -------
        ndarray, shape (num_new, num_clusters)
        """

        def probabilities(fn: Any, value: Any) -> Any:
            if isinstance(fn, LinkedMixture):
                return fn.responsibilities(value)
            return jax.nn.softmax(fn.component_log_probs(value), axis=-1)

        return self._over_draws(probabilities, x_new, links).mean(axis=0)

    def predict(self, x_new: ArrayLike, links: Links | None = None) -> NDArray[np.int64]:
        """Most probable label of each new point, shape (num_new,); see `predict_proba`."""
        return self.predict_proba(x_new, links).argmax(axis=1)

    def log_prob(self, x_new: ArrayLike) -> NDArray[np.float64]:
        """Log predictive density of new points without links, shape (num_new,)."""

        def log_density(fn: Any, value: Any) -> Any:
            joint = posterior.component_log_densities(fn, value)
            return jax.nn.logsumexp(joint, axis=-1)

        per_draw = self._over_draws(log_density, x_new, None)
        return np.logaddexp.reduce(per_draw, axis=0) - np.log(len(per_draw))

    def _over_draws(
        self, function: Callable, x_new: ArrayLike, links: Links | None
    ) -> NDArray[np.float64]:
        """Apply a function of the mixture over new points to up to 200 relabelled draws."""
        x_new = check_data(x_new, gaussian=False)
        if x_new.shape[1] != self._x.shape[1]:
            raise ValueError(
                f"x_new has {x_new.shape[1]} features, the fit has {self._x.shape[1]}; pass the same "
                "columns in the same order"
            )
        tree, score = self.relabelled
        if score >= _POOR_MATCH:
            chosen = posterior.pooled_draws(tree)
        else:
            sites = tree["posterior"].data_vars.items()
            chosen = {str(n): v.to_numpy()[self._best_draw][None] for n, v in sites}
        with self._precision():
            problem = self._problem(x_new, links)

            def over_draws(bare: Problem) -> Callable:
                def one(params: dict, args: tuple) -> Any:
                    return function(*posterior.mixture_site(bare, params, args))

                return lambda draws, args: jax.lax.map(lambda p: one(p, args), draws)

            draws = {n: jnp.asarray(v) for n, v in chosen.items()}
            program, _ = compiled(function.__name__, problem, None, over_draws, draws, problem.args)
            return np.asarray(program(draws, problem.args))

    def _precision(self) -> Any:
        return jax.enable_x64(self.tree.attrs["sidebayes_dtype"] == "float64")

    @property
    def _card(self) -> Card | None:
        """The card of the model, unless it is another one that goes by the same name."""
        card = CARDS.get(self.method)
        return card if card is not None and card.model is self.model else None

    def _problem(self, x_new: NDArray | None = None, links: Links | None = None) -> Problem:
        """The model with its data, or with new data under the same prior."""
        if self.model is None:
            raise ValueError(
                f"the model {self.method!r} is not known here; load the fit with "
                "sidebayes.load(path, model=your_model)"
            )
        parameters = inspect.signature(self.model).parameters
        x = jnp.asarray(self._x if x_new is None else x_new, self.tree.attrs["sidebayes_dtype"])
        options = dict(self.options) if x_new is None else self._fixed_options()
        if "links" not in parameters:
            if links is not None:
                raise ValueError(f"{self.method} takes no links; leave links out")
            return Problem(self.model, (x,), options)
        chosen = self.links if x_new is None else links
        kind = links_taken(self._card, self.model)
        inference = inference_used(self._card, self.model, options)
        num_clusters = options.get("num_clusters")
        graph = check_links(chosen, len(x), num_clusters, kind, self.method, inference)
        return Problem(self.model, (x, graph), options)

    def _fixed_options(self) -> dict[str, Any]:
        """Options of the model for other points: the prior these data gave, nothing of their rows."""
        assert self.model is not None
        options = dict(self.options)
        default = inspect.signature(self.model).parameters.get("prior")
        prior = options.get("prior", getattr(default, "default", None))
        if isinstance(prior, str) and prior == "empirical":
            options["prior"] = GaussianPrior.empirical(self._x, options["num_clusters"])
        rows = self._card.row_options if self._card else ()
        return {name: value for name, value in options.items() if name not in rows}

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
        from .api import fit

        if isinstance(more, bool) or not isinstance(more, int | np.integer) or more < 1:
            raise ValueError(f"more = {more!r}; expected an integer >= 1")
        with self._precision():
            model = self._problem().model
        field = _LENGTH.get(self.config.name, "max_steps")
        observed, constant = self.tree["observed_data"], self.tree["constant_data"]
        return fit(
            model,
            self._x,
            self.links if len(self.links) else None,
            engine=replace(self.config, **{field: int(more)}),  # type: ignore[type-var]
            seed=int(self.tree.attrs["sidebayes_seed"]) + 1,
            init=self,
            dtype=self.tree.attrs["sidebayes_dtype"],
            truth=observed["truth"].to_numpy() if "truth" in observed else None,
            feature_names=constant["feature_names"].to_numpy().tolist(),
            **self.options,
        )

    def summary(self) -> pd.DataFrame:
        """Table of the parameters: mean, spread and diagnostics, labels matched across draws."""
        draws = self.relabelled[0]["posterior"].to_dataset()
        if draws.sizes["chain"] * draws.sizes["draw"] > 1:
            import arviz as az

            return az.summary(draws)
        rows = {}
        for name, values in draws.items():
            for index in np.ndindex(values.shape[2:]):
                label = f"{name}[{', '.join(map(str, index))}]" if index else str(name)
                rows[label] = float(values.to_numpy()[(0, 0, *index)])
        return pd.DataFrame({"estimate": rows})

    def save(self, path: str | Path) -> None:
        """Write to a NetCDF file that `sidebayes.load` reads."""
        path = Path(path)
        if not path.parent.is_dir():
            raise ValueError(f"there is no folder {path.parent}; create it first")
        self.tree.to_netcdf(path, engine="h5netcdf")

    def plot(self) -> Any:
        """Draw the data with links and soft assignments; returns the matplotlib figure."""
        from sidebayes.diagnostics.plots import plot_clusters

        return plot_clusters(self)

    def __repr__(self) -> str:
        """Say method, engine, size and verdict."""
        points, clusters = self.tree["responsibilities"]["prob"].shape[-2:]
        verdict = "" if self.status.converged else " NOT CONVERGED:"
        labels = f"\n  labels summed out by {self.approximate}" if self.approximate else ""
        return (
            f"Fit({self.method} by {self.engine}, {points} points, {clusters} clusters, "
            f"{len(self.links)} links)\n {verdict} {self.status}{labels}"
        )
