"""Two spirals from pairs, a tenth of them stated wrongly: a graph kernel carries them to all points."""

import argparse
import time
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from sidebayes.diagnostics.pictures.colours import INK, cluster_colours, new_figure
from sidebayes.diagnostics.trust.scores import accuracy

import sidebayes

FLIP_RATE = 0.1
GRID = 90
"""Points along an edge of the map of probabilities."""


def fit_both(x, links, truth):
    """The classifier in the features of the kernel that the links choose, and a mixture."""
    began = time.perf_counter()
    kernel = sidebayes.choose_graph_kernel(x, links)
    middle = time.perf_counter()
    features = kernel.features()
    fit = sidebayes.fit("pairwise_gp", features, links, num_clusters=2, truth=truth)
    print(
        f"{len(x)} points, {len(links)} links: kernel {middle - began:.1f} s "
        f"({kernel.kind}, parameter {kernel.parameter:g}, {features.shape[1]} features), "
        f"fit {time.perf_counter() - middle:.1f} s"
    )
    mixture = sidebayes.fit(
        "ppc", x, links, num_clusters=2, truth=truth, reading="relation", inference="mean_field"
    )
    return kernel, fit, mixture


def draw(x, labels, links, kernel, fit, mixture, path):
    """Points with links, the mixture's clusters, and the classifier's probabilities over the plane."""
    figure, axes = new_figure(12.6, 4.4, ncols=3, sharex=True, sharey=True)
    right = links.same == (labels[links.pairs[:, 0]] == labels[links.pairs[:, 1]])
    colours = cluster_colours(2)
    shown = {
        "statements: alike —, different ··, wrong in red": np.zeros(len(x), int),
        "ppc": mixture.labels(),
        "pairwise_gp, and probabilities of new points": fit.labels(),
    }
    for axis, (title, label) in zip(axes, shown.items(), strict=True):
        known = axis is not axes[0]
        axis.scatter(*x.T, s=9, c=colours[label] if known else "#b8c0c8", zorder=2)
        score = f" ({accuracy(labels, label):.3f} right)" if known else ""
        axis.set_title(title + score, fontsize=10, color=INK)
        axis.set(xticks=[], yticks=[], aspect="equal")
    axes[0].add_collection(
        LineCollection(
            list(x[links.pairs]),
            colors=np.where(right, INK, "#d1242f"),
            linestyles=np.where(links.same, "-", ":"),
            linewidths=1.1,
            zorder=3,
        )
    )
    low, high = x.min(axis=0) - 0.3, x.max(axis=0) + 0.3
    side = [np.linspace(a, b, GRID) for a, b in zip(low, high, strict=True)]
    plane = np.stack(np.meshgrid(*side), axis=-1).reshape(-1, 2)
    prob = fit.predict_proba(kernel.features(plane))
    field = (0.45 + 0.55 * prob @ colours).clip(0, 1).reshape(GRID, GRID, 3)
    axes[2].imshow(
        field, extent=(low[0], high[0], low[1], high[1]), origin="lower", aspect="equal", zorder=0
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("-o", "--output", type=Path, default=Path("pairwise_gp.png"))
    options = parser.parse_args()
    data = sidebayes.load_dataset("two_spirals", num_points=options.points)
    links = sidebayes.simulate_links(
        data.labels,
        options.pairs,
        flip_rate=FLIP_RATE,
        weight=float(sidebayes.flip_rate_weight(FLIP_RATE)),
        seed=1,
    )
    kernel, fit, mixture = fit_both(data.x, links, data.labels)
    fresh = sidebayes.load_dataset("two_spirals", num_points=options.points, seed=1)
    found = fit.predict(kernel.features(fresh.x))
    print(f"pairwise_gp {accuracy(data.labels, fit.labels()):.3f} right on these points, ", end="")
    print(f"{accuracy(fresh.labels, found):.3f} on as many new ones; ", end="")
    print(f"ppc {accuracy(data.labels, mixture.labels()):.3f}")
    draw(data.x, data.labels, links, kernel, fit, mixture, options.output)


if __name__ == "__main__":
    main()
