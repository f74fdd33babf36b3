"""The one result of every engine."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.compare import verdict
from sidebayes.diagnostics.invariants import convergence
from sidebayes.diagnostics.orthogonal import align
from sidebayes.diagnostics.relabel import relabel
from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines import posterior
from sidebayes.guides.engines.base import Engine, Evidence, Problem, SideBayesWarning, Status
from sidebayes.guides.engines.density import collapsed_sites, trace_model
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.units import lay_out_units, log_terms
from sidebayes.models.blocks.files import check_writable, write_whole
from sidebayes.models.blocks.label_inference.approximate import Inference
from sidebayes.models.blocks.side_information.link_weights import check_pairs
from sidebayes.models.blocks.side_information.links import Links

from . import checks
from .run import Run
from .tables import in_order_of
from .validation import Validation

__all__ = ["Fit"]

_POOR_MATCH = 0.8
"""Score of relabelling below which averages over draws mean little."""


@dataclass(frozen=True, eq=False)
class Fit(Validation):
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
        values = init.params if isinstance(init, Fit) else init
        found = cls(run.execute(values, progress=progress), run)
        if found.has_labels:
            group = found.tree["responsibilities"].to_dataset()
            if "labels" not in group:
                group = group.assign(labels=("points", found._find_labels()))
                found.tree["responsibilities"] = xr.DataTree(group)
        return found

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
    def has_labels(self) -> bool:
        """Whether the model has labels, or other latent variables and parameters only."""
        return "responsibilities" in self.tree

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
        pairs = group["links"].to_numpy().astype(int)
        return Links(pairs, group["link_weights"].to_numpy(), self._num_points)

    @property
    def _num_points(self) -> int | None:
        """Number of points that have labels."""
        return self.tree["responsibilities"].sizes["points"] if self.has_labels else None

    def _need_labels(self, asked: str) -> None:
        if not self.has_labels:
            raise ValueError(
                f"{self.method} has no labels, so there are no {asked}: it observes no mixture"
            )

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
        if not self.has_labels:
            return self.tree, 1.0
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
    def aligned(self) -> tuple[xr.DataTree, float]:
        """The relabelled tree with rotations undone as well, and the lower of both quality scores."""
        tree, score = self.relabelled
        tree, turned = align(tree)
        if turned < _POOR_MATCH:
            warnings.warn(
                f"draws cannot be turned to agree (score {turned:.2f}); estimates of sites that are known "
                "up to an orthogonal transform are taken from the draw of highest density, and only "
                "what no transform changes, such as their inner products, describes the whole posterior",
                SideBayesWarning,
                stacklevel=2,
            )
        return tree, min(score, turned)

    @cached_property
    def params(self) -> dict[str, NDArray[np.float64]]:
        """Point estimate: the mode found, or the mean over relabelled and aligned draws."""
        tree, score = self.aligned
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

    def responsibilities(self, site: str | None = None) -> NDArray[np.float64]:
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
        tree, score = self.relabelled
        prob = tree["responsibilities"]["prob"].to_numpy()
        rows = self._rows_of(site)
        if score >= _POOR_MATCH:
            return prob.mean(axis=(0, 1))[rows]
        chain, draw = self._best_draw
        kept = posterior.thin(self.tree["posterior"].sizes["draw"], prob.shape[1])
        return prob[chain, int(np.abs(kept - draw).argmin())][rows]

    def labels(self, site: str | None = None) -> NDArray[np.int64]:
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

    def _rows_of(self, site: str | None) -> slice:
        slices = json.loads(self.tree["responsibilities"].attrs["label_sites"])
        if site is None and len(slices) == 1:
            site = next(iter(slices))
        if site not in slices:
            raise ValueError(
                f"site = {site!r}; expected one of {sorted(slices)}, which have labels"
            )
        return slice(*slices[site])

    def effects(self) -> xr.Dataset:
        """Random effects that were integrated out: posterior mean and standard deviation.

        Over draws of the parameters, the law of total variance puts both kinds of uncertainty
        together.

        Returns
        -------
        Dataset
            ``mean`` and ``sd``, by group and effect.

        Raises
        ------
        ValueError
            If the model has none.
        """
        if "effects" not in self.tree:
            raise ValueError(
                f"{self.method} integrates no random effects out; it observes no RandomEffects"
            )
        group = self.tree["effects"]
        mean = group["effects"].to_numpy()
        own = np.diagonal(group["effects_covariance"].to_numpy(), axis1=-2, axis2=-1)
        spread = np.sqrt(own.mean(axis=(0, 1)) + mean.var(axis=(0, 1)))
        dims = ("group", "effect")
        return xr.Dataset({"mean": (dims, mean.mean(axis=(0, 1))), "sd": (dims, spread)})

    def _find_labels(self) -> NDArray[np.int64]:
        if self.approximate is not None or self.config.hard_labels:
            tree, _ = self.relabelled
            return tree["responsibilities"]["prob"].to_numpy().mean(axis=(0, 1)).argmax(axis=1)
        with self.run.precision:
            return posterior.joint_mode(self.run.problem, self.params)

    def same_cluster(self, pairs: ArrayLike) -> NDArray[np.float64]:
        """Posterior probability that pairs of points share a cluster, shape (num_pairs,).

        Averages over draws; within a draw the two labels are taken as independent, which is exact
        for pairs in different components of the links.

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

    def predict_proba(self, *data: Any, **named: Any) -> NDArray[np.float64]:
        """Label probabilities of new points (Lu 2008, eq. 2.24), averaged over draws.

        Parameters
        ----------
        *data, **named
            New data in the roles of the model's arguments, such as ``x_new`` and `Links` among the
            new points. Links, and what else may be left out of the model, may be left out here.

        Returns
        -------
        ndarray, shape (num_new, num_clusters)
        """
        self._need_labels("labels to predict")

        def probabilities(trace: dict, layout: Any, owners: dict) -> Any:
            sources = collapsed_sites(trace).values()
            found = [fn.posterior(value) for fn, value in sources if fn.latent == "labels"]
            return jnp.concatenate([one["responsibilities"] for one in found])

        return self._over_draws(probabilities, self._anew(data, named)).mean(axis=0)

    def predict(self, *data: Any, **named: Any) -> NDArray[np.int64]:
        """Most probable label of each new point, shape (num_new,); see `predict_proba`."""
        return self.predict_proba(*data, **named).argmax(axis=1)

    def log_prob(self, *data: Any, **named: Any) -> NDArray[np.float64]:
        """Log predictive density of new data by unit, links left out; shape (num_new,).

        Parameters are those of `predict_proba`.
        """

        def log_density(trace: dict, layout: Any, owners: dict) -> Any:
            terms, _ = log_terms(trace, layout, owners)
            by_dim: dict[Any, Any] = {}
            for name, term in terms.items():
                dim = layout.site_dims[name]
                term = term[: layout.num_units(name)]
                by_dim[dim] = by_dim[dim] + term if dim in by_dim else term
            return jnp.concatenate(list(by_dim.values()))

        run = self._anew(data, named)
        unlinked = {n: v for n, v in run.data.items() if not isinstance(v, Links)}
        per_draw = self._over_draws(log_density, replace(run, data=unlinked))
        return np.logaddexp.reduce(per_draw, axis=0) - np.log(len(per_draw))

    def _anew(self, data: tuple, named: Mapping[str, Any]) -> Run:
        """The run on new data."""
        self.run.problem  # noqa: B018  a model that is not known refuses
        signature = self.run.signature
        given, surplus = checks.sort_arguments(signature, data, named, self.method)
        if surplus:
            raise TypeError(f"{sorted(surplus)} are options; new data are all that can be given")
        for role in signature.of_kind("table"):
            if role.name in given:
                columns = self.run.columns.get(role.name)
                given[role.name] = in_order_of(given[role.name], role.name, columns)
        checked = checks.check_given(signature, given, self.method)
        checks.check_dims(signature, checked)
        for role in signature.of_kind("table"):
            old, new = self.run.data.get(role.name), checked.get(role.name)
            if old is not None and new is not None and old.shape[1:] != new.shape[1:]:
                what = f"{new.shape[1:]} columns, the fit has {old.shape[1:]}"
                if old.ndim == 2:
                    what = f"{new.shape[1]} features, the fit has {old.shape[1]}"
                raise ValueError(
                    f"{role.name}_new has {what}; pass the same columns in the same order"
                )
        return self.run.with_data(checked)

    def _over_draws(self, function: Callable, run: Run) -> NDArray[np.float64]:
        """Apply a function of the model's trace on other data to up to 200 relabelled draws."""
        tree, score = self.relabelled
        if score >= _POOR_MATCH:
            chosen = pooled_draws(tree)
        else:
            sites = tree["posterior"].data_vars.items()
            chosen = {str(n): v.to_numpy()[self._best_draw][None] for n, v in sites}
        with run.precision:
            problem = run.problem
            layout = lay_out_units(problem)
            owners = {n: None if o is None else jnp.asarray(o) for n, o in layout.owners.items()}

            def over_draws(bare: Problem) -> Callable:
                def one(params: dict, args: tuple, owners: dict) -> Any:
                    return function(trace_model(bare, params, args), layout, owners)

                return lambda draws, *rest: jax.lax.map(
                    partial(one, args=rest[0], owners=rest[1]), draws
                )

            draws = {n: jnp.asarray(v) for n, v in chosen.items()}
            inputs = draws, problem.args, owners
            units = tuple((name, layout.num_units(name)) for name in layout.site_dims)
            program, _ = compiled(function.__name__, problem, units, over_draws, *inputs)
            return np.asarray(program(*inputs))

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
        if isinstance(more, bool) or not isinstance(more, int | np.integer) or more < 1:
            raise ValueError(f"more = {more!r}; expected an integer >= 1")
        config = replace(self.config, **{self.config.length: int(more)})  # type: ignore[type-var]
        self.run.problem  # noqa: B018  a model that is not known refuses
        return self.of(replace(self.run, engine=config, seed=self.run.seed + 1), self)

    def summary(self) -> pd.DataFrame:
        """Table of the parameters: mean, spread and diagnostics, of relabelled and aligned draws.

        Sites that an engine gives a point, where others have draws, have no spread; the column
        ``point`` tells which they are.
        """
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
        write_whole(path, self.tree.to_netcdf(engine="h5netcdf"))

    def plot(self) -> Any:
        """Draw the data with links and soft assignments; returns the matplotlib figure."""
        from sidebayes.diagnostics.plots import plot_clusters

        self._need_labels("clusters to draw")
        return plot_clusters(self)

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


def _entries(draws: xr.Dataset) -> dict[str, float]:
    """Numbers of the first draw by name, as ArviZ names them."""
    rows = {}
    for name, values in draws.items():
        for index in np.ndindex(values.shape[2:]):
            label = f"{name}[{', '.join(map(str, index))}]" if index else str(name)
            rows[label] = float(values.to_numpy()[(0, 0, *index)])
    return rows
