"""Two must-links on four clouds: where labels are a function of features, and where they are not."""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.colours import INK, cluster_colours, new_figure
from sidebayes.diagnostics.scores import accuracy

import sidebayes
from sidebayes import Continuation, Links

WANTED, TOO_CHEAP = 500.0, 50.0
"""Prices of a link, in nats; the partition turns over at about 350 (Law 2006, section 5.6.1)."""


def simulate_clouds(seed=0, size=100):
    """Clouds at (+-2, +-8), the side each is on, and a must-link along each side.

    Returns
    -------
    x : ndarray, shape (4 * size, 2)
    side : ndarray of int, shape (4 * size,)
    pairs : ndarray of int, shape (2, 2)
    """
    centre = np.repeat([[-2.0, -8.0], [2.0, -8.0], [-2.0, 8.0], [2.0, 8.0]], size, axis=0)
    x = centre + np.random.default_rng(seed).normal(size=centre.shape)
    typical = [int(np.argmin(((x - c) ** 2).sum(axis=1))) for c in centre[::size]]
    return x, (centre[:, 0] > 0).astype(int), np.reshape(typical, (2, 2)).T


def fit_all(x, pairs, engine):
    """Fit the clouds with dear and cheap links, in one linear feature, and by a random field."""
    shared = {"num_clusters": 2, "progress": False}
    dear = Links.must_link(pairs, WANTED, len(x))
    return {
        f"constraint_fit, {WANTED:g} nats": sidebayes.fit(
            "constraint_fit", x, dear, engine=engine, **shared
        ),
        f"constraint_fit, {TOO_CHEAP:g} nats": sidebayes.fit(
            "constraint_fit", x, dear.with_strength(TOO_CHEAP), engine=engine, **shared
        ),
        "constraint_projection": sidebayes.fit(
            "constraint_projection", x, dear, engine=engine, **shared
        ),
        "ppc, hard links": sidebayes.fit("ppc", x, dear.hardened(), covariance="tied", **shared),
    }


def draw(x, pairs, fits, path):
    """Draw the labels of every fit, with the region of each cluster and the links."""
    figure, axes = new_figure(11.0, 4.2, ncols=len(fits), sharey=True)
    colours = cluster_colours(2)
    across, up = np.meshgrid(np.linspace(-6, 6, 121), np.linspace(-12, 12, 121))
    grid = np.stack([across.ravel(), up.ravel()], axis=1)
    for axis, (name, fit) in zip(axes, fits.items(), strict=True):
        region = fit.predict(grid).reshape(across.shape)
        axis.imshow(
            colours[region], extent=(-6, 6, -12, 12), origin="lower", alpha=0.15, aspect="auto"
        )
        axis.scatter(*x.T, s=6, color=colours[fit.labels()], linewidth=0)
        for pair in pairs:
            axis.plot(*x[pair].T, color=INK, linewidth=1.2, marker="o", markersize=4)
        axis.set_title(name, fontsize=10, color=INK, loc="left")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("constraint_fit.png"))
    parser.add_argument("--size", type=int, default=100, help="points of a cloud")
    parser.add_argument("--starts", type=int, default=8)
    options = parser.parse_args()

    x, side, pairs = simulate_clouds(size=options.size)
    fits = fit_all(x, pairs, Continuation(num_restarts=options.starts, tol=1e-6))
    for name, fit in fits.items():
        kept = int((np.diff(fit.labels()[pairs]) == 0).sum())
        print(f"{name:26} by side {accuracy(side, fit.labels()):.3f}   links kept {kept} of 2")
    draw(x, pairs, fits, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
