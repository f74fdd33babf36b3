"""Two classes side by side in one component: a class table, prototypes, and votes of labelled rows.

After Raghuram (2014), figure 2.1, on rows of our own.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from sidebayes.diagnostics.pictures.colours import INK, cluster_colours, new_figure

import sidebayes


def rows(number, seed):
    """Two components; the left one has two classes, one above the other."""
    rng = np.random.default_rng(seed)
    z, right = rng.normal(size=(2 * number, 2)), np.repeat([0, 1], number)
    classes = np.where(right == 0, (z[:, 1] > 0) * 1, 1)
    known = np.full(len(z), -1)
    told = rng.choice(len(z), 24, replace=False)
    known[told] = classes[told]
    return z + np.outer(right, [7.0, 0.0]), classes, known


def fits(x, known):
    """The three methods of chapter 2."""
    sizes = {"num_clusters": 2, "num_classes": 2, "progress": False}
    base = sidebayes.fit("moe", x, known, **sizes)
    return {
        "moe: a table": base,
        "pfgl: prototypes": sidebayes.grow_prototypes(x, known, base=base, **sizes),
        "nfgl: votes": sidebayes.fit_nfgl(x, known, base=base, **sizes),
    }


def draw(x, known, found, output):
    """Probability of the second class over the plane, rows, known classes, prototypes."""
    figure, axes = new_figure(10.5, 3.2, ncols=3, sharex=True, sharey=True)
    first, second = np.linspace(-4, 11, 80), np.linspace(-4, 4, 60)
    grid = np.stack(np.meshgrid(first, second), axis=-1).reshape(-1, 2)
    colours = np.asarray(cluster_colours(2))
    shades = LinearSegmentedColormap.from_list("classes", [colours[0], "w", colours[1]])
    for axis, (title, fit) in zip(axes, found.items(), strict=True):
        prob = fit.class_probabilities(grid)[:, 1].reshape(len(second), len(first))
        extent = (first[0], first[-1], second[0], second[-1])
        place = {"extent": extent, "origin": "lower", "aspect": "auto"}
        axis.imshow(prob, cmap=shades, vmin=0, vmax=1, alpha=0.5, **place)
        axis.contour(first, second, prob, levels=[0.5], colors=INK, linewidths=1)
        axis.scatter(*x[known < 0].T, color="0.6", s=3)
        for one in (0, 1):
            axis.scatter(*x[known == one].T, color=colours[one], edgecolor="w", s=36)
        if "prototype" in fit.params:
            axis.plot(*fit.params["prototype"].T, "+", color=INK, ms=10, mew=2)
        axis.set(xlim=extent[:2], ylim=extent[2:])
        axis.set_title(title, fontsize=10, color=INK, loc="left")
    figure.savefig(output, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("pfgl.png"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    x, _, known = rows(200, options.seed)
    new, classes, _ = rows(1000, options.seed + 1)
    found = fits(x, known)
    for title, fit in found.items():
        wrong = (fit.classes(new)["class"] != classes).mean()
        print(f"{title:18} {wrong:.3f} of new rows get the wrong class")
    draw(x, known, found, options.output)


if __name__ == "__main__":
    main()
