"""Two must-links on four clouds: where labels are a function of features, and where they are not.

After Law (2006), sections 5.1 and 5.6.1. A random field of labels, here by mean field, keeps the same
links by labelling four points against their neighbours; points held out know nothing of the links.
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import INK, cluster_colours, new_figure
from sidebayes.diagnostics.trust.scores import accuracy

import sidebayes
from sidebayes import Continuation, Links

DEAR, CHEAP = 500.0, 50.0
"""Prices of a link, in nats; the partition turns over at about 350."""


def simulate_clouds(size=100, seed=0):
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
    dear, cheap = (Links.must_link(pairs, price, len(x)) for price in (DEAR, CHEAP))
    return {
        f"constraint_fit, {CHEAP:g} nats": sidebayes.fit(
            "constraint_fit", x, cheap, engine=engine, **shared
        ),
        f"constraint_fit, {DEAR:g} nats": sidebayes.fit(
            "constraint_fit", x, dear, engine=engine, **shared
        ),
        "constraint_projection": sidebayes.fit(
            "constraint_projection", x, dear, engine=engine, **shared
        ),
        "ppc, mean field": sidebayes.fit(
            "ppc", x, dear, covariance="tied", inference="mean_field", **shared
        ),
    }


def draw(x, pairs, fits, path):
    """Draw the labels of every fit, the region of each cluster, and the links."""
    figure, axes = new_figure(11.0, 4.2, ncols=len(fits), sharey=True)
    colours = cluster_colours(2)
    across, up = np.meshgrid(np.linspace(-6, 6, 121), np.linspace(-12, 12, 121))
    grid = np.stack([across.ravel(), up.ravel()], axis=1)
    for axis, (name, fit) in zip(axes, fits.items(), strict=True):
        region = colours[fit.predict(grid)].reshape(*across.shape, 3)
        axis.imshow(region, extent=(-6, 6, -12, 12), origin="lower", alpha=0.15, aspect="auto")
        axis.scatter(*x.T, s=6, color=colours[fit.labels()], linewidth=0)
        for pair in pairs:
            axis.plot(*x[pair].T, color=INK, linewidth=1.0)
            axis.scatter(
                *x[pair].T, s=45, color=colours[fit.labels()[pair]], edgecolor=INK, zorder=3
            )
        axis.set_title(name, fontsize=10, color=INK, loc="left")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("constraint_fit.png"))
    parser.add_argument("--size", type=int, default=100, help="points of a cloud")
    parser.add_argument("--starts", type=int, default=8)
    options = parser.parse_args()

    x, side, pairs = simulate_clouds(options.size)
    x_new, side_new, _ = simulate_clouds(options.size, seed=1)
    fits = fit_all(x, pairs, Continuation(num_restarts=options.starts, tol=1e-6))
    for name, fit in fits.items():
        kept = int((np.diff(fit.labels()[pairs]) == 0).sum())
        told, predicted = accuracy(side, fit.labels()), accuracy(side_new, fit.predict(x_new))
        print(f"{name:24} links kept {kept} of 2, by side {told:.3f}, held out {predicted:.3f}")
    draw(x, pairs, fits, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
