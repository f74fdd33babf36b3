"""The one result of every engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.relabel import relabel
from sidebayes.guides.engines.base import Problem, Status
from sidebayes.guides.engines.density import linked_site
from sidebayes.models.blocks.label_graph import LabelGraph
from sidebayes.models.blocks.links import Links

from .validate import check_data

__all__ = ["Fit"]


@dataclass(frozen=True, eq=False)
class Fit:
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
    takes_links : bool
    """

    tree: xr.DataTree
    method: str
    model: Callable[..., None] | None
    options: Mapping[str, Any]
    takes_links: bool
    _relabelled: list = field(default_factory=list, repr=False)

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self.tree["fit_info"].attrs["engine"]

    @property
    def status(self) -> Status:
        """Verdict, in a sentence that advises."""
        info = self.tree["fit_info"].attrs
        return Status(bool(info["converged"]), info["status"])

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
            group["links"].to_numpy().astype(int), group["link_weights"].to_numpy(), self._x.shape[0]
        )

    @property
    def _x(self) -> NDArray[np.float64]:
        return self.tree["observed_data"]["x"].to_numpy()

    @property
    def relabelled(self) -> tuple[xr.DataTree, float]:
        """The tree with label switching undone, and the quality score of the matching."""
        if not self._relabelled:
            self._relabelled.append(relabel(self.tree))
        return self._relabelled[0]

    @property
    def params(self) -> dict[str, NDArray[np.float64]]:
        """Point estimate: the mode found, or the draw of highest density."""
        density = self.tree["sample_stats"]["lp"].to_numpy()
        chain, draw = np.unravel_index(np.argmax(density), density.shape)
        return {
            str(name): values.to_numpy()[chain, draw]
            for name, values in self.tree["posterior"].data_vars.items()
        }

    def responsibilities(self) -> NDArray[np.float64]:
        """Posterior probabilities of the labels, averaged over relabelled draws.

        Returns
        -------
        ndarray, shape (num_points, num_clusters)
        """
        return self.relabelled[0]["responsibilities"]["prob"].mean(("chain", "draw")).to_numpy()

    def labels(self) -> NDArray[np.int64]:
        """Most probable label of each point, shape (num_points,)."""
        return self.responsibilities().argmax(axis=1)

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

    def predict_proba(self, x_new: ArrayLike) -> NDArray[np.float64]:
        """Label probabilities of new points without links (Lu 2008, eq. 2.24).

        Parameters
        ----------
        x_new : array_like, shape (num_new, num_features)

        Returns
        -------
        ndarray, shape (num_new, num_clusters)
        """
        joint = self._log_density(x_new)
        return np.asarray(jax.nn.softmax(joint, axis=-1)).mean(axis=0)

    def predict(self, x_new: ArrayLike) -> NDArray[np.int64]:
        """Most probable label of new points, shape (num_new,)."""
        return self.predict_proba(x_new).argmax(axis=1)

    def log_prob(self, x_new: ArrayLike) -> NDArray[np.float64]:
        """Log predictive density of new points, shape (num_new,)."""
        joint = self._log_density(x_new)
        per_draw = jax.nn.logsumexp(joint, axis=-1)
        return np.asarray(jax.nn.logsumexp(per_draw, axis=0)) - math.log(joint.shape[0])

    def _log_density(self, x_new: ArrayLike) -> NDArray[np.float64]:
        """Log joint of label and data for up to 200 relabelled draws, (draw, new, cluster)."""
        if self.model is None:
            raise ValueError("the model is unknown; load the fit with load(path, model=your_model)")
        x_new = check_data(x_new, "x_new")
        if x_new.shape[1] != self._x.shape[1]:
            raise ValueError(
                f"x_new has {x_new.shape[1]} features; the fit has {self._x.shape[1]}"
            )
        posterior = self.relabelled[0]["posterior"].to_dataset()
        stacked = {str(n): v.to_numpy().reshape(-1, *v.shape[2:]) for n, v in posterior.items()}
        total = len(next(iter(stacked.values())))
        keep = np.linspace(0, total - 1, min(total, 200)).astype(int)
        model, options, takes_links = self.model, dict(self.options), self.takes_links
        with jax.enable_x64(True):
            graph = LabelGraph.build(None, len(x_new))
            args = (jnp.asarray(x_new), graph) if takes_links else (jnp.asarray(x_new),)
            if "flip_rate" in options:
                options["flip_rate"] = None

            def one(params: dict) -> Any:
                site = linked_site(Problem(model, args, options), params)
                assert site is not None
                factors = site[0].log_factors(site[1])
                return factors["unary"] + factors["log_weights"]

            return np.asarray(jax.jit(jax.vmap(one))({n: v[keep] for n, v in stacked.items()}))

    def summary(self) -> pd.DataFrame:
        """Table of the parameters: mean, spread and diagnostics, labels matched across draws."""
        tree = self.relabelled[0]
        posterior = tree["posterior"].to_dataset()
        if posterior.sizes["draw"] == 1:
            frame = posterior.squeeze(("chain", "draw")).to_array().to_series
            rows = {}
            for name, values in posterior.items():
                for index in np.ndindex(values.shape[2:]):
                    label = f"{name}[{', '.join(map(str, index))}]" if index else str(name)
                    rows[label] = float(values.to_numpy()[(0, 0, *index)])
            del frame
            return pd.DataFrame({"estimate": rows})
        import arviz as az

        return az.summary(posterior)

    def save(self, path: str | Path) -> None:
        """Write to a NetCDF file that `sidebayes.load` reads."""
        self.tree.to_netcdf(path, engine="h5netcdf")

    def plot(self) -> Any:
        """Draw the data with links and soft assignments; returns the matplotlib figure."""
        from sidebayes.diagnostics.plots import plot_clusters

        return plot_clusters(self)

    def __repr__(self) -> str:
        """Method, engine, verdict."""
        exact = f"; labels: {self.approximate}" if self.approximate else ""
        return f"Fit({self.method} by {self.engine}: {self.status.message}{exact})"
