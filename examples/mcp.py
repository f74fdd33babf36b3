"""Four clouds, two classes: where links move space, where they move points, and how many classes there are.

After Raghuram (2014), figure 3.1. With one component per class, factors of single points keep all links and
leave the other points in the wrong classes; a rule that all points share has to turn the classes.
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import INK, cluster_colours, new_figure
from sidebayes.diagnostics.trust.scores import purity, violated

import sidebayes
from sidebayes import EM


def simulate_clouds(size=100, seed=0):
    """Clouds at (+-1.5, +-2.5), whose class is the side they are on: the nearer clouds differ.

    Returns
    -------
    x : ndarray, shape (4 * size, 2)
    side : ndarray of int, shape (4 * size,)
    """
    centre = np.repeat([[-1.5, -2.5], [-1.5, 2.5], [1.5, -2.5], [1.5, 2.5]], size, axis=0)
    x = centre + 0.7 * np.random.default_rng(seed).normal(size=centre.shape)
    return x, (centre[:, 0] > 0).astype(int)


def fit_all(x, links, starts):
    """One component per class by either posterior; several, their number and that of classes by links."""
    engine = EM(num_restarts=starts, num_inner_steps=30)
    shared = {"num_clusters": 2, "engine": engine, "progress": False}
    chosen = sidebayes.select_clusters(
        x,
        links,
        strengths=(1.0, 10.0),
        most_components=6,
        engine=engine,
        patience=2,
        progress=False,
    )
    print(chosen.path.drop(columns=["misfit", "log_likelihood"]).to_string())
    return {
        "scp, mean field": sidebayes.fit("scp", x, links, posterior="mean_field", **shared),
        "scp, shared rule": sidebayes.fit("scp", x, links, **shared),
        f"mcp, {chosen.num_clusters} classes found": chosen.fit,
    }


def draw(x, links, fits, path):
    """Draw regions of the classes, paler where they are uncertain, with points and links."""
    figure, axes = new_figure(11.0, 4.2, ncols=len(fits), sharey=True)
    across, up = np.meshgrid(np.linspace(-4, 4, 161), np.linspace(-5, 5, 161))
    grid = np.stack([across.ravel(), up.ravel()], axis=1)
    for axis, (name, fit) in zip(axes, fits.items(), strict=True):
        prob = fit.predict_proba(grid)
        colours = cluster_colours(prob.shape[1])
        sure = (prob.max(axis=1) * prob.shape[1] - 1) / (prob.shape[1] - 1)
        region = np.concatenate([prob @ colours, 0.35 * sure[:, None]], axis=1)
        axis.imshow(
            region.reshape(*across.shape, 4), extent=(-4, 4, -5, 5), origin="lower", aspect="auto"
        )
        labels = fit.labels()
        axis.scatter(*x.T, s=5, color=colours[labels], linewidth=0)
        broken = violated(labels, links.pairs, np.where(links.same, 1.0, -1.0))
        for pair, same, bad in zip(links.pairs, links.same, broken, strict=True):
            axis.plot(
                *x[pair].T, color="crimson" if bad else INK, ls="-" if same else ":", linewidth=0.9
            )
            axis.scatter(*x[pair].T, s=28, color=colours[labels[pair]], edgecolor=INK, zorder=3)
        axis.set_title(name, fontsize=10, color=INK, loc="left")
        axis.set(xlim=(-4, 4), ylim=(-5, 5))
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("mcp.png"))
    parser.add_argument("--size", type=int, default=100, help="points of a cloud")
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()

    x, side = simulate_clouds(options.size)
    x_new, side_new = simulate_clouds(options.size, seed=1)
    links = sidebayes.simulate_links(side, 20, seed=4)
    fits = fit_all(x, links, options.starts)
    for name, fit in fits.items():
        broken = int(violated(fit.labels(), links.pairs, np.where(links.same, 1.0, -1.0)).sum())
        told, predicted = purity(side, fit.labels()), purity(side_new, fit.predict(x_new))
        print(f"{name:22} links broken {broken} of 20, purity {told:.3f}, held out {predicted:.3f}")
    draw(x, links, fits, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
