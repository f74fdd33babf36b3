"""Points on two crossing curves: what they are taken for without links, and with some.

Run: python examples/trajectories.py [--out docs/methods/trajectories.png]
The two sinusoids of Ross and Dy (2013). Where they cross, no measurement tells points apart, and links do. A
single start without links may end in another explanation.
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import new_figure
from sidebayes.diagnostics.pictures.curves import draw_curves
from sklearn.metrics import normalized_mutual_info_score

import sidebayes as sb

SCALES = {"length_scale": 0.005**-0.5, "amplitude": 1.0, "noise": 0.02**0.5}
GRID = np.linspace(0, 50, 101)


def fit(table, links=None, num_restarts=10):
    """Curves of the points."""
    engine = sb.CoordinateAscent(num_restarts=num_restarts, max_steps=100, num_draws=99)
    return sb.fit(
        "trajectories", table["y"], table["x"], links=links, num_clusters=20, engine=engine,
        progress=False, **SCALES,
    )  # fmt: skip


def score(table, found):
    """Normalised mutual information of labels and curves."""
    labels = table["curve"], found.labels()
    return normalized_mutual_info_score(*labels, average_method="geometric")


def draw(table, fits, out):
    """A panel for each fit."""
    figure, axes = new_figure(12.6, 3.9, ncols=len(fits), sharey=True)
    for axis, (name, found) in zip(axes, fits.items(), strict=True):
        inputs, y = table["x"].to_numpy(), table["y"].to_numpy()
        draw_curves(axis, inputs, y, found.responsibilities(), GRID, found.curves(inputs=GRID))
        links = found.links
        for (i, j), weight in zip(links.pairs, links.weights, strict=True):
            style = "solid" if weight > 0 else (0, (3.5, 2.5))
            axis.plot(
                inputs[[i, j]], y[[i, j]], color="0.45", lw=0.6, ls=style, alpha=0.6, zorder=1
            )
        axis.set(xlabel="x", title=f"{name}: NMI {score(table, found):.2f}")
    axes[0].set_ylabel("y")
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("trajectories.png"))
    options = parser.parse_args()
    table = sb.simulate_sinusoids(seed=0)
    weak, strong = (sb.simulate_links(table["curve"], 60, weight=w, seed=1) for w in (1.0, 10.0))
    fits = {
        "no links, one start": fit(table, num_restarts=1),
        "60 links of log-odds 1": fit(table, weak),
        "60 links of log-odds 10": fit(table, strong),
    }
    for name, found in fits.items():
        print(name, f"{score(table, found):.3f}", found.status)
    draw(table, fits, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
