"""Which features matter to the clusters, with uncertainty, and how many clusters there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from sidebayes.models.blocks.saliency.saliency_mixture import OF_ONE_CLUSTER, RELEVANT

from .sites import site_of

__all__ = ["SalientFeatures", "has_features", "salient_features", "write_features"]

_INTERVAL = 0.95
_BATCHES = 20
"""Number of batches of draws whose means give the Monte Carlo error of a probability."""


@dataclass(frozen=True)
class SalientFeatures:
    """Saliencies of the features together with the number of clusters.

    Attributes
    ----------
    frame : DataFrame
        A row for each feature: its ``saliency``, the probability that a value of it is relevant to
        the cluster (posterior mean, or the point estimate); ``lower`` and ``upper``, the ends of
        its central 95 % posterior interval; ``probability``, the posterior probability that more
        than half of the feature's values are relevant; and ``error``, the Monte Carlo standard
        error of that by batch means. For a point estimate, interval, probability and error are not
        known, and NaN.
    num_clusters : Series
        Posterior probability of each number of clusters that hold a point, by expected numbers of
        points; for a point estimate, one number.
    """

    frame: pd.DataFrame
    num_clusters: pd.Series

    @property
    def likeliest(self) -> int:
        """Most probable number of clusters."""
        return int(self.num_clusters.index.to_numpy()[self.num_clusters.to_numpy().argmax()])

    def __str__(self) -> str:
        """Format the table, and the number of clusters as a sentence."""
        return f"{self.frame.round(3)}\n{self.sentence}"

    @property
    def sentence(self) -> str:
        """Return a sentence with the numbers of features and clusters."""
        relevant = int((self.frame["saliency"] > RELEVANT).sum())
        found = f"{relevant} of {len(self.frame)} features have a saliency above {RELEVANT:g}"
        if self.likeliest == 1:
            found = OF_ONE_CLUSTER
        if len(self.num_clusters) == 1:
            return found if self.likeliest == 1 else f"{found}; {self.likeliest} clusters"
        shown = [f"{k} ({p:.2f})" for k, p in self.num_clusters.items() if p >= 0.01]
        return f"{found}; numbers of clusters by probability: {', '.join(shown)}"

    def _repr_html_(self) -> str:
        return f"{self.frame.to_html(float_format='{:.3f}'.format)}<p>{self.sentence}</p>"


def has_features(tree: xr.DataTree) -> bool:
    """Return whether the model has saliencies of features."""
    return site_of(tree, "saliency") is not None


def write_features(tree: xr.DataTree) -> None:
    """Write the summary of the saliencies to the group ``features`` of a tree, if it has saliencies.

    None of it depends on how clusters are numbered.
    """
    name = site_of(tree, "saliency")
    if name is None:
        return
    site = tree["posterior"][name]
    draws = site.to_numpy().reshape(-1, site.shape[-1])
    sizes = tree["responsibilities"]["prob"].sum("points").to_numpy()
    number, counts = np.unique((sizes >= 1.0).sum(axis=-1), return_counts=True)
    several = len(draws) > 1
    ends = (1 - _INTERVAL) / 2 * np.array([1.0, -1.0]) + [0.0, 1.0]
    lower, upper = (
        np.quantile(draws, ends, axis=0) if several else np.full((2, *draws[0].shape), np.nan)
    )
    relevant = site.to_numpy() > RELEVANT
    columns = {
        "saliency": draws.mean(axis=0),
        "lower": lower,
        "upper": upper,
        "probability": relevant.mean(axis=(0, 1)) if several else lower,
        "error": _batch_error(relevant) if several else lower,
    }
    found = xr.Dataset({key: ("features", values) for key, values in columns.items()})
    found["num_clusters"] = ("number", counts / counts.sum())
    names = site.coords.get("features")
    found = (
        found.assign_coords(number=number)
        if names is None
        else found.assign_coords(number=number, features=names.to_numpy())
    )
    tree["features"] = xr.DataTree(found)


def _batch_error(relevant: NDArray) -> NDArray[np.float64]:
    """Return the standard error of the share of draws, shape (chain, draw, feature), by batch means."""
    chains, draws, _ = relevant.shape
    number = max(1, min(draws, _BATCHES // chains))
    length = draws // number
    batches = relevant[:, : number * length].reshape(chains * number, length, -1).mean(axis=1)
    if len(batches) < 2:
        return np.full(relevant.shape[-1], np.nan)
    return batches.std(axis=0, ddof=1) / np.sqrt(len(batches))


def salient_features(tree: xr.DataTree) -> SalientFeatures:
    """Read the summary that `write_features` wrote.

    Raises
    ------
    ValueError
        If the model has no saliencies.
    """
    if "features" not in tree:
        raise ValueError(
            "the model has no saliencies of features; fit 'feature_saliency', or a model whose block is "
            "SalientFeatures"
        )
    data = tree["features"].to_dataset()
    frame = data.drop_dims("number").to_dataframe()
    return SalientFeatures(frame, data["num_clusters"].to_series())
