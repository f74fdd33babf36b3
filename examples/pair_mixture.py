"""Two moons: one or two Gaussians per class, with no links and with four.

After Yu (2016), section 4.5.3.1, figure 4.8, on moons of our own.
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import INK, cluster_colours, new_figure
from sidebayes.diagnostics.trust.scores import accuracy, purity
from sklearn.datasets import make_moons

import sidebayes


def four_links(labels, seed):
    """Two must-links and two cannot-links between eight points."""
    rng = np.random.default_rng(seed)
    first, second = (rng.permutation(np.flatnonzero(labels == c))[:4] for c in (0, 1))
    must = sidebayes.Links.must_link([first[:2], second[:2]])
    return must + sidebayes.Links.cannot_link(np.stack([first[2:], second[2:]], axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("pair_mixture.png"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    x, labels = make_moons(200, noise=0.06, random_state=options.seed)
    links = four_links(labels, options.seed)
    figure, axes = new_figure(10.5, 3.4, ncols=3, sharex=True, sharey=True)
    colours = cluster_colours(2)
    for axis, (title, given, num_components) in zip(
        axes,
        (
            ("no links, one Gaussian per class", None, 1),
            ("four links, one Gaussian per class", links, 1),
            ("four links, two Gaussians per class", links, 2),
        ),
        strict=True,
    ):
        fit = sidebayes.fit(
            "pair_mixture", x, given, num_clusters=2, num_components=num_components, truth=labels
        )
        found = fit.labels()
        found = found if np.mean(found == labels) > 0.5 else 1 - found
        score = purity(labels, found)
        print(f"{title:36} purity {score:.3f}, accuracy {accuracy(labels, found):.3f}")
        axis.scatter(*x.T, c=colours[found], s=9)
        for (i, j), same in zip(links.pairs, links.same, strict=True):
            if given is not None:
                axis.plot(*x[[i, j]].T, color=INK, lw=1.2, ls="-" if same else ":")
        axis.plot(*fit.params["mean"].reshape(-1, 2).T, "+", color=INK, ms=11, mew=2)
        axis.set_title(f"{title}: purity {score:.2f}", fontsize=10, color=INK, loc="left")
    figure.savefig(options.output, dpi=110)


if __name__ == "__main__":
    main()
