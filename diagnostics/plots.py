"""Pictures of a fit. Matplotlib is imported only when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .invariants import invariants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_clusters", "plot_coclustering", "plot_objective", "plot_parameters", "plot_traces"]

_PALETTE = np.array(
    [
        [0.00, 0.45, 0.70], [0.90, 0.62, 0.00], [0.00, 0.62, 0.45], [0.80, 0.47, 0.65],
        [0.34, 0.71, 0.91], [0.84, 0.37, 0.00], [0.94, 0.89, 0.26], [0.45, 0.45, 0.45],
    ]
)  # fmt: skip
"""Okabe and Ito's colours, which the colour-blind can tell apart."""


def _figure(width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(**options)
    for axis in np.ravel(axes):
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def cluster_colours(num_clusters: int) -> NDArray[np.float64]:
    """One colour a cluster, shape (num_clusters, 3)."""
    return _PALETTE[np.arange(num_clusters) % len(_PALETTE)]


def _plane(x: NDArray) -> tuple[NDArray, NDArray, NDArray, tuple[str, str]]:
    """Project to the first two principal axes of the standardised data (or keep two features)."""
    centre = x.mean(axis=0)
    if x.shape[1] <= 2:
        axes = np.eye(x.shape[1], 2)
        names = ("feature 0", "feature 1")
    else:
        spread = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
        _, _, vt = np.linalg.svd((x - centre) / spread, full_matrices=False)
        axes = vt[:2].T / spread[:, None]
        names = ("principal axis 1", "principal axis 2")
    return (x - centre) @ axes, centre, axes, names


def plot_clusters(fit: Any) -> Figure:
    """Data with links and soft assignments, with the components' 90 % ellipses.

    A point's colour mixes its clusters' colours by responsibility. Must-links are solid,
    cannot-links dashed; links that the labels violate are red.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Ellipse

    x = fit.tree["observed_data"]["x"].to_numpy()
    prob = fit.responsibilities()
    where, centre, axes, names = _plane(x)
    figure, axis = _figure(6.4, 4.8)
    group = fit.tree["constant_data"]
    pairs = group["links"].to_numpy().reshape(-1, 2).astype(int)
    must = group["link_weights"].to_numpy() > 0
    labels = prob.argmax(axis=1)
    violated = (labels[pairs[:, 0]] == labels[pairs[:, 1]]) != must
    shown = np.arange(len(pairs))[:400]
    for kind, style in ((must, "solid"), (~must, (0, (3, 3)))):
        chosen = shown[kind[shown]]
        colours = np.where(violated[chosen, None], [[0.8, 0.1, 0.1, 0.9]], [[0.3, 0.3, 0.3, 0.35]])
        axis.add_collection(
            LineCollection(
                list(where[pairs[chosen]]), linestyles=[style], colors=colours, linewidths=0.8, zorder=1
            )
        )
    colour = cluster_colours(prob.shape[1])
    axis.scatter(*where.T, c=np.clip(prob @ colour, 0, 1), s=18, edgecolor="white", lw=0.4, zorder=2)
    params = fit.params
    covariance = _covariances(params, x.shape[1])
    for k, mean in enumerate(params.get("mean", [])):
        spot = (mean - centre) @ axes
        axis.scatter(*spot, marker="X", s=70, color=colour[k], edgecolor="black", zorder=4)
        if covariance is not None:
            values, vectors = np.linalg.eigh(axes.T @ covariance[k] @ axes)
            size = 2 * np.sqrt(4.605 * np.maximum(values, 0))  # 90 % of a normal in the plane
            angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
            axis.add_patch(
                Ellipse(spot, size[1], size[0], angle=angle, fill=False, color=colour[k], lw=1.6, zorder=3)
            )
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.set_title(f"{len(pairs)} links, {int(violated.sum())} violated", fontsize=10)
    return figure


def _covariances(params: dict[str, NDArray], num_features: int) -> NDArray | None:
    if "mean" not in params:
        return None
    num_clusters = len(params["mean"])
    shape = (num_clusters, num_features, num_features)
    if "covariance" in params:
        return np.broadcast_to(params["covariance"], shape)
    if "variance" in params:
        variance = params["variance"].reshape(num_clusters, -1)
        return np.broadcast_to(variance, (num_clusters, num_features))[:, :, None] * np.eye(num_features)
    return None


def plot_objective(fit: Any) -> Figure:
    """Log joint density by step, one line a start; the best is drawn strong."""
    figure, axis = _figure(6.4, 2.8)
    history = fit.objective
    final = np.array([row[~np.isnan(row)][-1] if (~np.isnan(row)).any() else -np.inf for row in history])
    for number, row in enumerate(history):
        best = number == int(final.argmax())
        axis.plot(row, color=_PALETTE[0] if best else "0.7", lw=2 if best else 0.8, zorder=2 + best)
    finite = final[np.isfinite(final)]
    low = np.nanpercentile(history, 10)
    axis.set_ylim(low, finite.max() + 0.05 * (finite.max() - low) + 1e-6)
    axis.set(xlabel="step", ylabel="log joint density")
    return figure


def plot_parameters(fit: Any) -> Figure:
    """Cluster means by feature, with 89 % intervals where there are draws."""
    mean = fit.relabelled[0]["posterior"]["mean"].to_numpy()
    flat = mean.reshape(-1, *mean.shape[2:])
    middle = np.median(flat, axis=0)
    low, high = np.quantile(flat, [0.055, 0.945], axis=0)
    x = fit.tree["observed_data"]["x"].to_numpy()
    centre, spread = x.mean(axis=0), np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    figure, axis = _figure(6.4, 2.8)
    place = np.arange(middle.shape[1])
    for k, colour in enumerate(cluster_colours(len(middle))):
        scaled = [(value[k] - centre) / spread for value in (middle, low, high)]
        axis.errorbar(
            place + 0.08 * (k - (len(middle) - 1) / 2), scaled[0],
            yerr=[scaled[0] - scaled[1], scaled[2] - scaled[0]], fmt="o", color=colour, capsize=2, ms=5,
        )
    axis.set_xticks(place)
    axis.set(xlabel="feature", ylabel="cluster mean (in data sd)")
    return figure


def plot_coclustering(fit: Any, most: int = 400) -> Figure:
    """Probability that two points share a cluster, points ordered by label.

    At most `most` points, evenly chosen, are shown.
    """
    prob = fit.tree["responsibilities"]["prob"].to_numpy()
    labels = fit.responsibilities().argmax(axis=1)
    order = np.argsort(labels, kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(most, len(order))).astype(int)]
    chosen = prob[:, :, order].reshape(-1, len(order), prob.shape[-1])
    together = np.einsum("spk,sqk->pq", chosen, chosen) / len(chosen)
    figure, axis = _figure(4.2, 3.6)
    image = axis.imshow(together, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    axis.set(xlabel="points, by cluster", ylabel="points, by cluster", xticks=[], yticks=[])
    figure.colorbar(image, ax=axis, label="P(same cluster)")
    return figure


def plot_traces(fit: Any) -> Figure:
    """Trace and rank plots of label-invariant functionals, one colour a chain."""
    data = invariants(fit.tree)
    columns = {
        "log density": data["lp"].to_numpy(),
        "assignment entropy": data["entropy"].to_numpy(),
    }
    if "flip_rate" in data:
        columns["flip rate"] = data["flip_rate"].to_numpy()
    elif "sorted_weights" in data:
        columns["largest weight"] = data["sorted_weights"].to_numpy()[..., -1]
    figure, axes = _figure(8.6, 1.9 * len(columns), nrows=len(columns), ncols=2, squeeze=False)
    for (name, values), (left, right) in zip(columns.items(), axes, strict=True):
        ranks = values.ravel().argsort().argsort().reshape(values.shape)
        bins = np.linspace(0, values.size, 21)
        for chain, row in enumerate(values):
            colour = _PALETTE[chain % len(_PALETTE)]
            left.plot(row, lw=0.6, color=colour)
            right.stairs(np.histogram(ranks[chain], bins)[0], bins, color=colour)
        right.axhline(values.shape[1] / 20, color="0.5", lw=0.8, ls=":")
        left.set_ylabel(name)
        right.set_yticks([])
    axes[-1, 0].set_xlabel("draw")
    axes[-1, 1].set_xlabel("rank over all chains (level where chains agree)")
    return figure
