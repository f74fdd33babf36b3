"""Leaves that are seen as points without order: mean shapes of two groups, and groups of new leaves.

Run: python examples/latent_shape.py [--out docs/methods/latent_shape.png]
"""

import argparse

import numpy as np
from sidebayes.diagnostics.pictures.colours import FAINT, cluster_colours, new_figure

import sidebayes as sb

SEEN, NAMES = 6, ("pointed", "even")


def main(out):
    """Learn the shapes of twelve leaves of two groups, and name the groups of twelve others."""
    data = sb.simulate_leaves(12)
    individual = data.subjects.codes  # of each row
    is_seen = np.arange(24) % 12 < SEEN
    old, new = is_seen[individual], ~is_seen[individual]

    laid = sb.register_points(data.x[old], individual[old], num_points=16)
    print(laid)
    fit = sb.fit(
        "latent_shape", laid.x, laid.subjects, chart=laid.chart, num_clusters=2, rank=2,
        known=sb.PartialLabels(np.array(NAMES)[data.classes[is_seen]]),
        engine=sb.MonteCarloEM(num_samples=40, max_samples=80, max_steps=30),
        progress=False,
    )  # fmt: skip
    print("variance along the leading modes:", fit.modes()["share"].to_numpy().round(2).tolist())

    others = laid.register(data.x[new], individual[new])
    found = fit.group_log_likelihood(others.x, others.subjects)
    told = found["group"].to_numpy()[found["probability"].to_numpy().argmax(axis=1)]
    right = np.mean(told == np.array(NAMES)[data.classes[~is_seen]])
    print(f"{100 * right:.0f} % of {len(told)} new leaves are put in their group")

    shapes = fit.shapes()
    figure, (left, middle) = new_figure(8.0, 3.4, ncols=2)
    own = laid.subjects.codes == 0
    left.scatter(*laid.x[own].T, s=4, color=FAINT)
    left.scatter(*shapes["individuals"].to_numpy()[0].T, s=12, color=cluster_colours(2)[0])
    left.set_title("a leaf: its points, and its latent shape", size=9)
    for group, colour in zip(shapes["group"].to_numpy(), cluster_colours(2), strict=True):
        middle.scatter(*shapes["mean"].sel(group=group).T, s=12, color=colour, label=group)
    middle.legend(fontsize=8, frameon=False, loc="center")
    middle.set_title("mean shapes of the groups", size=9)
    for axis in (left, middle):
        axis.set_aspect("equal")
        axis.set_axis_off()
    figure.savefig(out, dpi=120)
    print(f"picture: {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="latent_shape.png")
    main(parser.parse_args().out)
