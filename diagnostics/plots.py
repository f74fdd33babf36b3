"""Pictures of a fit. Matplotlib is imported only when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .colours import CHAINS, INK, MUTED, WARN, as_label, cluster_colours, new_figure
from .invariants import invariants
from .scores import violated
from .sites import labelled_table, site_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_clusters", "plot_coclustering", "plot_objective", "plot_parameters", "plot_traces"]

_MOST_LINKS = 400
_MOST_POINTS = 5000
_TRUSTED_MATCH = 0.8
"""Score of relabelling from which parameters by cluster are shown over draws."""


def plot_clusters(fit: Any) -> Figure:
    """Data with links and soft assignments, with the components' 90 % ellipses.

    A point's colour mixes its clusters' colours by responsibility. Must-links are solid,
    cannot-links dashed; links that the labels violate are red. Data of more than two features are
    shown on their first two principal axes; at most 5000 points and 400 links are drawn.

    Parameters
    ----------
    fit : Fit
    """
    x = labelled_table(fit.tree)
    prob = fit.responsibilities()
    where, centre, axes, names = _plane(x, _feature_names(fit))
    figure, axis = new_figure(6.4, 4.9)
    num_violated = _draw_links(axis, fit, where)
    colour = cluster_colours(prob.shape[1])
    shown = np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(int)
    axis.scatter(
        *where[shown].T,
        c=np.clip(prob[shown] @ colour, 0, 1),
        s=26 if len(shown) < 1000 else 8,
        edgecolor="white",
        lw=0.5,
        zorder=2,
    )
    _draw_components(axis, fit, centre, axes, colour)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.autoscale_view()
    num_links = fit.tree["constant_data"].sizes.get("link", 0)
    if num_links:
        some = f"{_MOST_LINKS} of {num_links} links drawn" if num_links > _MOST_LINKS else None
        _link_legend(axis, num_violated, some)
    return figure


def plot_parameters(fit: Any) -> Figure:
    """Mixing weights, and cluster means by feature in standard deviations of the data.

    Thick bars are 89 % intervals over draws (relabelled, or those of one numbering where clusters
    cannot be matched); thin lines reach one standard deviation of the component to either side.

    Parameters
    ----------
    fit : Fit
        Whose components have locations.

    Raises
    ------
    ValueError
        If they have none.
    """
    draws = _label_draws(fit)
    where, share = site_of(fit.tree, "location"), site_of(fit.tree, "mixing_weights")
    if where is None:
        raise ValueError(f"{fit.method} has no locations of components to draw")
    x = labelled_table(fit.tree)
    names = _feature_names(fit)
    middle, low, high = (v.reshape(-1, x.shape[1]) for v in _interval(draws[where]))
    num_clusters, (num_cells, num_features) = draws[where].shape[1], middle.shape
    scale = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    covariance = _covariances(fit, num_features)
    colour = cluster_colours(num_clusters)
    step = 0.7 / num_cells
    height = float(np.clip(1.1 + 0.13 * num_features * (num_cells + 1), 2.6, 9.0))
    figure, (left, right) = new_figure(6.4, height, ncols=2, width_ratios=(1, 2.6))
    if share is not None:
        centre, lowest, highest = _interval(draws[share])
        place = np.arange(num_clusters)
        left.barh(place, centre, color=colour, height=0.62)
        left.hlines(place, lowest, highest, color=INK, lw=1.6)
        left.set(xlabel="weight", yticks=place, yticklabels=place, ylabel="cluster")
        left.invert_yaxis()
    else:
        left.set_axis_off()
    colour = np.repeat(colour, num_cells // num_clusters, axis=0)
    for k in range(num_cells):
        row = np.arange(num_features) + step * (k - (num_cells - 1) / 2)
        at, start, stop = ((v[k] - x.mean(axis=0)) / scale for v in (middle, low, high))
        if covariance is not None:
            wide = np.sqrt(np.diagonal(covariance[k])) / scale
            right.hlines(row, at - wide, at + wide, color=colour[k], lw=1, alpha=0.7)
        right.hlines(row, start, stop, color=colour[k], lw=4)
        right.scatter(at, row, color=colour[k], s=24, edgecolor="white", lw=0.6, zorder=3)
    right.axvline(0, color=MUTED, lw=0.8, ls=":")
    short = [name if len(name) <= 18 else name[:17] + "…" for name in names]
    right.set(yticks=np.arange(num_features), yticklabels=short)
    right.set(xlabel="cluster mean, in sd of the data", ylim=(num_features - 0.5, -0.5))
    return figure


def plot_objective(fit: Any) -> Figure:
    """Log joint density by step, one line per start; the best one stands out.

    Parameters
    ----------
    fit : Fit
        By an engine that climbs.

    Raises
    ------
    ValueError
        If the engine recorded no objective.
    """
    history = np.asarray(fit.objective, float)
    if not np.isfinite(history).any():
        raise ValueError(f"{fit.engine} recorded no objective; draw plot_traces instead")
    last = np.where(np.isfinite(history), np.arange(history.shape[1]), -1).max(axis=1)
    final = np.where(last >= 0, history[np.arange(len(history)), last], -np.inf)
    best = int(final.argmax())
    figure, axis = new_figure(6.4, 2.7)
    for number, row in enumerate(history):
        colour, width, size = (CHAINS[0], 2.2, 5) if number == best else ("0.72", 0.9, 3.5)
        order = 4 if number == best else 2
        axis.plot(row, color=colour, lw=width, zorder=order)
        axis.plot(last[number], final[number], "o", color=colour, ms=size, zorder=order)
    finite = final[np.isfinite(final)]
    low = min(finite.min(), np.nanpercentile(history[best], 20))
    margin = 0.06 * (finite.max() - low) + 1e-6
    axis.set(ylim=(low - margin, finite.max() + margin))
    axis.set(xlabel="step", ylabel="log joint density")
    same = int(np.sum(finite > finite.max() - 0.01))
    axis.set_title(
        f"{same} of {len(history)} starts came within 0.01 of the best", fontsize=9, loc="left"
    )
    return figure


def plot_coclustering(fit: Any, most: int = 400) -> Figure:
    """Probability that two points share a cluster, points ordered by label.

    Parameters
    ----------
    fit : Fit
    most : int
        Points shown, evenly chosen along that order.
    """
    prob = fit.tree["responsibilities"]["prob"].to_numpy()
    labels = fit.labels()
    order = np.lexsort((-fit.responsibilities().max(axis=1), labels))
    order = order[np.linspace(0, len(order) - 1, min(most, len(order))).astype(int)]
    chosen = prob[:, :, order].reshape(-1, len(order), prob.shape[-1])
    flat = chosen.transpose(1, 0, 2).reshape(len(order), -1)
    together = flat @ flat.T / len(chosen)
    figure, axis = new_figure(5.0, 4.4)
    image = axis.imshow(together, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    colour = cluster_colours(prob.shape[-1])
    strips = [("cluster", colour[labels[order]])]
    if "truth" in fit.tree["observed_data"]:
        truth = fit.tree["observed_data"]["truth"].to_numpy()[order]
        grey = np.linspace(0.15, 0.85, max(truth.max(), 0) + 1)[truth, None] * np.ones(3)
        grey[truth < 0] = 1.0  # not known
        strips.append(("truth", grey))
    for number, (name, colours) in enumerate(strips):
        strip = axis.inset_axes((0, 1.015 + 0.045 * number, 1, 0.035))
        strip.imshow(colours[None], aspect="auto", interpolation="nearest")
        strip.set(xticks=[], yticks=[0], yticklabels=[name])
        strip.tick_params(length=0, labelsize=8)
        strip.spines[:].set_visible(False)
    axis.set(xticks=[], yticks=[], xlabel="points, ordered by cluster")
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axis, shrink=0.7, aspect=30)
    bar.set_label("P(same cluster)", size=9, color=INK)
    bar.ax.tick_params(labelsize=8.5)
    bar.outline.set_visible(False)
    return figure


def plot_traces(fit: Any) -> Figure:
    """Trace and rank plots, one colour per chain.

    Label-invariant functionals first; then, where clusters can be matched across draws, the
    relabelled weights. Chains that agree have flat rank plots, near the dotted line.

    Parameters
    ----------
    fit : Fit
        By a sampler.

    Raises
    ------
    ValueError
        If there is a single draw.
    """
    if fit.tree["posterior"].sizes["draw"] < 2:
        raise ValueError(f"{fit.engine} made a single draw; draw plot_objective instead")
    data = invariants(fit.tree)
    columns = {"log density": data["lp"]}
    if "entropy" in data:
        columns["label entropy"] = data["entropy"]
    rate, weight = (site_of(fit.tree, role) for role in ("reliability", "mixing_weights"))
    if rate is not None:
        columns["flip rate"] = data[rate].mean(set(data[rate].dims) - {"chain", "draw"})
    if "sorted_weights" in data:
        columns["largest weight"] = data["sorted_weights"][..., 0]
    tree, score = fit.relabelled
    if score >= _TRUSTED_MATCH and weight is not None:
        columns["weight 0,\nrelabelled"] = tree["posterior"][weight][..., 0]
    figure, axes = new_figure(
        10.6,
        1.55 * len(columns) + 0.5,
        nrows=len(columns),
        ncols=2,
        sharex="col",
        width_ratios=(1.7, 1),
    )
    for (name, series), (left, right) in zip(columns.items(), axes, strict=True):
        values = series.to_numpy()
        num_bins = int(np.clip(values.shape[1] // 10, 5, 20))
        ranks = values.ravel().argsort().argsort().reshape(values.shape) / values.size
        edges = np.linspace(0, 1, num_bins + 1)
        for chain, row in enumerate(values):
            colour = CHAINS[chain % len(CHAINS)]
            left.plot(series["draw"], row, lw=0.7, color=colour)
            counts = np.histogram(ranks[chain], edges)[0]
            right.stairs(counts, edges, color=colour, lw=1.5, baseline=None)
        right.axhline(values.shape[1] / num_bins, color=MUTED, lw=1, ls=":")
        right.set(yticks=[], ylim=(0, None))
        left.set_ylabel(name)
        left.margins(x=0.01)
    axes[-1, 0].set_xlabel("draw")
    axes[-1, 1].set_xlabel("relative rank among all chains")
    return figure


def _feature_names(fit: Any) -> list[str]:
    constant = fit.tree["constant_data"]
    if "feature_names" in constant:
        return list(map(as_label, constant["feature_names"].to_numpy()))
    return [f"feature {i}" for i in range(fit.tree["observed_data"].sizes["features"])]


def _plane(x: NDArray, names: list[str]) -> tuple[NDArray, NDArray, NDArray, list[str]]:
    """Project to the first two principal axes of the standardised data, or keep two features."""
    centre = x.mean(axis=0)
    if x.shape[1] <= 2:
        axes = np.eye(x.shape[1], 2)
        return x @ axes, np.zeros(x.shape[1]), axes, [*names, ""][:2]
    spread = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    _, vectors = np.linalg.eigh(np.cov((x - centre).T / spread[:, None]))
    axes = vectors[:, [-1, -2]]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]]) / spread[:, None]
    return (x - centre) @ axes, centre, axes, ["principal axis 1", "principal axis 2"]


def _draw_links(axis: Axes, fit: Any, where: NDArray) -> int:
    from matplotlib.collections import LineCollection

    group = fit.tree["constant_data"]
    pairs = group["links"].to_numpy().reshape(-1, 2).astype(int)
    weights = group["link_weights"].to_numpy()
    broken = violated(fit.labels(), pairs, weights)
    shown = np.zeros(len(pairs), bool)
    shown[np.argsort(~broken, kind="stable")[:_MOST_LINKS]] = True  # violated ones first
    for must, style in ((True, "solid"), (False, (0, (3.5, 2.5)))):
        for bad in (False, True):
            chosen = pairs[shown & ((weights > 0) == must) & (broken == bad)]
            lines = LineCollection(
                list(where[chosen]),
                linestyles=[style],
                colors=WARN if bad else "0.45",
                alpha=0.95 if bad else 0.45,
                linewidths=1.5 if bad else 0.8,
                zorder=1.5 if bad else 1,
            )
            axis.add_collection(lines)
    return int(broken.sum())


def _link_legend(axis: Axes, num_violated: int, title: str | None) -> None:
    from matplotlib.lines import Line2D

    kinds = [("solid", "0.45", "must-link"), ((0, (3.5, 2.5)), "0.45", "cannot-link")]
    if num_violated:
        kinds.append(("solid", WARN, f"violated ({num_violated})"))
    lines = [Line2D([], [], ls=style, color=c, lw=1.4, label=name) for style, c, name in kinds]
    axis.legend(
        handles=lines,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        title=title,
        title_fontsize=8.5,
        alignment="left",
    )


def _draw_components(axis: Axes, fit: Any, centre: NDArray, axes: NDArray, colour: NDArray) -> None:
    from matplotlib.patches import Ellipse

    where = site_of(fit.tree, "location")
    if where is None:
        return
    covariance = _covariances(fit, len(centre))
    means = np.reshape(fit.params[where], (-1, len(centre)))
    owner = site_of(fit.tree, "component_clusters")
    if owner is None:
        colour = np.repeat(colour, max(len(means) // len(colour), 1), axis=0)
    else:
        colour = colour[fit.params[owner].argmax(axis=1)]
    for k, mean in enumerate(means):
        spot = (mean - centre) @ axes
        axis.scatter(
            spot[0], spot[1], marker="X", s=75, color=colour[k], edgecolor=INK, lw=0.9, zorder=4
        )
        if covariance is not None:
            values, vectors = np.linalg.eigh(axes.T @ covariance[k] @ axes)
            size = 2 * np.sqrt(4.605 * np.maximum(values, 0))  # 90 % of a normal in the plane
            angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
            shape = Ellipse(spot, size[1], size[0], angle=angle, zorder=3, lw=1.6)
            shape.set(facecolor=(*colour[k], 0.07), edgecolor=(*colour[k], 0.9))
            axis.add_patch(shape)


def _covariances(fit: Any, num_features: int) -> NDArray | None:
    """Covariance of every Gaussian, the components of a cluster one after the other."""
    where, spread = (site_of(fit.tree, role) for role in ("location", "spread"))
    if where is None or spread is None:
        return None
    num_cells = np.size(fit.params[where]) // num_features
    given = np.asarray(fit.params[spread])
    if given.shape[-2:] == (num_features, num_features) and _is_matrix(fit, spread):
        matrices = np.reshape(given, (-1, num_features, num_features))
        return np.broadcast_to(matrices, (num_cells, num_features, num_features))
    variance = np.broadcast_to(given.reshape(num_cells, -1), (num_cells, num_features))
    return variance[:, :, None] * np.eye(num_features)


def _is_matrix(fit: Any, site: str) -> bool:
    """Whether the last two axes of a site are features."""
    return fit.tree["posterior"][site].dims[-2:] == ("features", "features_1")


def _label_draws(fit: Any) -> dict[str, NDArray]:
    """Draws of the label sites in one numbering; the point estimate where they cannot be matched."""
    tree, score = fit.relabelled
    if score < _TRUSTED_MATCH:
        return {name: np.asarray(value)[None] for name, value in fit.params.items()}
    sites = tree["posterior"].data_vars.items()
    return {str(name): v.to_numpy().reshape(-1, *v.shape[2:]) for name, v in sites}


def _interval(draws: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    low, middle, high = np.quantile(draws, [0.055, 0.5, 0.945], axis=0)
    return middle, low, high
