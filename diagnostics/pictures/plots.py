"""Pictures of a fit. Matplotlib is imported only when a picture is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..features import salient_features
from ..fitted import AskedFit, Fitted
from ..sites import TRUSTED_MATCH, labelled_table, site_of
from ..trust.scores import learned_classes, violated
from .colours import (
    CHAINS,
    FAINT,
    INK,
    MOST_LINKS,
    MOST_SHAPES,
    MUTED,
    as_label,
    cluster_colours,
    draw_pairs,
    legend_above,
    link_legend,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "MOST_POINTS",
    "draw_links",
    "plot_clusters",
    "plot_coclustering",
    "plot_parameters",
]

MOST_POINTS = 5000
"""Maximum number of points that are drawn."""
_MOST_AXES = 6
"""Number of leading principal axes from which a picture chooses two."""
_MOST_NAMED = 12
"""Maximum number of classes in a legend, the first ones."""
_MOST_FEATURES = 60
"""Maximum number of features that are drawn, those of largest saliency."""

_LONGEST = 22
_TINY = 1e-12


def plot_clusters(fit: AskedFit) -> Figure:
    """Data with links and soft assignments, with the components' 90 % ellipses.

    A point's colour mixes its clusters' colours by responsibility, or those of its classes by their
    probabilities where the model has classes; crosses are prototypes of classes. Must-links are solid,
    cannot-links dashed; links that the labels violate are red. Data of more than two features are shown
    on the two principal axes that separate the clusters best, after features were standardised unless
    they share a unit (directions, spherical covariances); at most 5000 points and 400 links are drawn.

    Parameters
    ----------
    fit : Fit
    """
    from matplotlib.colors import to_rgb

    x = labelled_table(fit.tree)
    prob = fit.responsibilities()
    where, centre, axes, names = _plane(x, _feature_names(fit), prob, one_unit=_has_one_unit(fit))
    figure, axis = new_figure(6.4, 4.9)
    num_violated = draw_links(axis, fit, where)
    classes = learned_classes(fit)
    mixed = prob if classes is None else classes
    colour = cluster_colours(mixed.shape[1])
    shown = np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int)
    axis.scatter(
        *where[shown].T,
        c=np.clip(mixed[shown] @ colour, 0, 1),
        s=26 if len(shown) < 1000 else 8,
        edgecolor="white",
        lw=0.5,
        zorder=2,
        rasterized=len(shown) > MOST_SHAPES,
    )
    inks = colour if classes is None else np.tile(to_rgb(MUTED), (prob.shape[1], 1))
    _draw_components(axis, fit, centre, axes, inks)
    if classes is not None:
        _draw_prototypes(axis, fit, centre, axes)
        _class_legend(axis, fit.class_names, colour)
    axis.set(xlabel=names[0], ylabel=names[1])
    if not names[1]:  # a single feature, along a line
        axis.set_yticks([])
    axis.autoscale_view()
    num_links = fit.tree["constant_data"].sizes.get("link", 0)
    if num_links:
        some = f"{MOST_LINKS} of {num_links} links drawn" if num_links > MOST_LINKS else None
        link_legend(axis, num_violated, some)
    return figure


def _draw_prototypes(axis: Axes, fit: Fitted, centre: NDArray, axes: NDArray) -> None:
    name = site_of(fit.tree, "prototype")
    if name is not None:
        across, up = ((np.asarray(fit.params[name]) - centre) @ axes).T
        axis.scatter(across, up, marker="+", s=110, color=INK, lw=2, zorder=5, label="prototype")


def _class_legend(axis: Axes, names: Sequence[str | int], colour: NDArray) -> None:
    from matplotlib.lines import Line2D

    points = [
        Line2D([], [], ls="", marker="o", color=c, label=f"class {as_label(name)}")
        for name, c in zip(names[:_MOST_NAMED], colour, strict=False)
    ]
    others, _ = axis.get_legend_handles_labels()
    legend_above(axis, [*points, *others])


def plot_parameters(fit: Fitted) -> Figure:
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
    scale = np.where(np.nanstd(x, axis=0) > 0, np.nanstd(x, axis=0), 1.0)
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
        at, start, stop = ((v[k] - np.nanmean(x, axis=0)) / scale for v in (middle, low, high))
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


def plot_features(fit: Fitted) -> Figure:
    """Bars of saliencies with 95 % intervals, and the probability of each number of clusters.

    At most 60 features are drawn, those of largest saliency. Features whose saliency is zero or one of a
    point estimate were taken out, or are relevant throughout.

    Parameters
    ----------
    fit : Fit
        Whose model has saliencies.
    """
    found = salient_features(fit.tree)
    frame, number = found.frame, found.num_clusters
    if len(frame) > _MOST_FEATURES:
        frame = frame.loc[frame["saliency"].nlargest(_MOST_FEATURES).index]
    several = len(number) > 1
    height = float(np.clip(1.1 + 0.2 * len(frame), 2.4, 10.0))
    figure, axes = new_figure(
        7.4 if several else 5.6,
        height,
        ncols=1 + several,
        squeeze=False,
        width_ratios=(2.6, 1) if several else (1,),
    )
    left, place = axes[0, 0], np.arange(len(frame))
    left.barh(place, frame["saliency"], color=CHAINS[0], height=0.66, alpha=0.85)
    known = frame["lower"].notna().to_numpy()
    left.hlines(place[known], frame["lower"][known], frame["upper"][known], color=INK, lw=1.6)
    left.axvline(0.5, color=MUTED, lw=0.8, ls=":")
    names = [str(name) for name in frame.index]
    short = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
    left.set(yticks=place, yticklabels=[as_label(name) for name in short], xlim=(0, 1.02))
    left.set(xlabel="saliency", ylim=(len(frame) - 0.4, -0.6))
    if several:
        right = axes[0, 1]
        right.bar(number.index.to_numpy(), number.to_numpy(), color=FAINT, width=0.7)
        right.set(xlabel="number of clusters", ylabel="probability", ylim=(0, 1))
        right.set_xticks(number.index.to_numpy())
    else:
        one = "1 cluster: saliencies say nothing"
        title = f"{found.likeliest} clusters" if found.likeliest > 1 else one
        left.set_title(title, fontsize=9, loc="left")
    return figure


def plot_coclustering(fit: AskedFit, most: int = 400) -> Figure:
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
        grey[truth < 0] = 1.0  # the class is not known
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


def _feature_names(fit: Fitted) -> list[str]:
    constant = fit.tree["constant_data"]
    if "feature_names" in constant:
        return list(map(as_label, constant["feature_names"].to_numpy()))
    return [f"feature {i}" for i in range(fit.tree["observed_data"].sizes["features"])]


def _has_one_unit(fit: Fitted) -> bool:
    """Return whether features are coordinates of directions, or have one variance in each cluster."""
    if site_of(fit.tree, "vector") is not None:
        return True
    spread, where = (site_of(fit.tree, role) for role in ("spread", "location"))
    if spread is None or where is None:
        return False
    sites = fit.tree["posterior"]
    return bool(sites[spread].dims == sites[where].dims[:-1])


def _plane(
    x: NDArray, names: list[str], prob: NDArray, *, one_unit: bool
) -> tuple[NDArray, NDArray, NDArray, list[str]]:
    """Project to two principal axes of the standardised data, or keep two features.

    Of the leading axes, those are taken along which the share of variance between clusters is largest. On
    the first two, size alone may hide what distinguishes the clusters. With one unit, standardising would
    make noise as large as what is to be seen.
    """
    centre = x.mean(axis=0)
    if x.shape[1] <= 2:
        axes = np.eye(x.shape[1], 2)
        return x @ axes, np.zeros(x.shape[1]), axes, [*names, ""][:2]
    spread = np.where((x.std(axis=0) > 0) & (not one_unit), x.std(axis=0), 1.0)
    variance, vectors = np.linalg.eigh(np.cov((x - centre).T / spread[:, None]))
    vectors = vectors[:, ::-1][:, :_MOST_AXES]
    where = (x - centre) / spread @ vectors
    means = prob.T @ where / np.maximum(prob.sum(axis=0), _TINY)[:, None]
    between = prob.mean(axis=0) @ means**2 / np.maximum(variance[::-1][:_MOST_AXES], _TINY)
    chosen = np.sort(np.argsort(-between, kind="stable")[:2])
    axes = vectors[:, chosen]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]]) / spread[:, None]
    return (x - centre) @ axes, centre, axes, [f"principal axis {k + 1}" for k in chosen]


def draw_links(axis: Axes, fit: AskedFit, where: NDArray) -> int:
    """Draw at most 400 links, violated ones first; return how many the labels violate.

    Parameters
    ----------
    axis : Axes
    fit : Fit
    where : ndarray, shape (num_points, 2)
    """
    group = fit.tree["constant_data"]
    pairs = group["links"].to_numpy().reshape(-1, 2).astype(int)
    weights = group["link_weights"].to_numpy()
    broken = violated(fit.labels(), pairs, weights)
    draw_pairs(axis, where, pairs, weights, broken)
    return int(broken.sum())


def _draw_components(
    axis: Axes, fit: Fitted, centre: NDArray, axes: NDArray, colour: NDArray
) -> None:
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


def _covariances(fit: Fitted, num_features: int) -> NDArray | None:
    """Return the covariance of every Gaussian, with the components of a cluster in succession."""
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


def _is_matrix(fit: Fitted, site: str) -> bool:
    """Return whether the last two axes of a site are features."""
    return fit.tree["posterior"][site].dims[-2:] == ("features", "features_1")


def _label_draws(fit: Fitted) -> dict[str, NDArray]:
    """Return draws of the label sites in one numbering; the point estimate where they cannot be matched."""
    tree, score = fit.relabelled
    if score < TRUSTED_MATCH:
        return {name: np.asarray(value)[None] for name, value in fit.params.items()}
    sites = tree["posterior"].data_vars.items()
    return {str(name): v.to_numpy().reshape(-1, *v.shape[2:]) for name, v in sites}


def _interval(draws: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    low, middle, high = np.quantile(draws, [0.055, 0.5, 0.945], axis=0)
    return middle, low, high
