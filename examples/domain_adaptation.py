"""Packet flows of another site: a classifier that was learned elsewhere, ported as it is and moved.

After Raghuram (2014), section 4.4, on simulated flows of four classes. Twenty-five flows of the new site
have a class; the other ones say where the components of the old site have gone.
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import INK, cluster_colours, new_figure

import sidebayes
from sidebayes import EM

NAMES = ("web", "mail", "bulk", "peer to peer")


def fit_all(source, x, known):
    """The source as it is, and moved: probabilities of the classes by name."""
    found = {"ported": source.predict_proba(x)}
    for name, options in {"moved": {}, "moved, one rule": {"posterior": "partition"}}.items():
        fit = sidebayes.fit(
            "domain_adaptation",
            x,
            known,
            source=source,
            engine=EM(num_restarts=1, num_inner_steps=30, tol=1e-6),
            progress=False,
            **options,
        )
        found[name] = fit.class_probabilities()
    return found


def draw(x, truth, known, found, path):
    """Flows by the class that each classifier gives; wrong ones are ringed, known ones are squares."""
    figure, axes = new_figure(11.0, 4.7, ncols=len(found), sharey=True)
    colours = cluster_colours(len(NAMES))
    for axis, (name, prob) in zip(axes, found.items(), strict=True):
        guess = prob.argmax(axis=1)
        wrong = guess != truth
        axis.scatter(x[:, 0], x[:, 2], s=5, color=colours[guess], linewidth=0)
        axis.scatter(
            x[wrong, 0], x[wrong, 2], s=22, facecolor="none", edgecolor="crimson", linewidth=0.6
        )
        told = known >= 0
        axis.scatter(
            x[told, 0], x[told, 2], s=34, marker="s", color=colours[known[told]], edgecolor=INK
        )
        axis.set_title(f"{name}: {wrong.mean():.1%} wrong", fontsize=10, color=INK, loc="left")
        axis.set(xlabel="least segment, standardised")
    axes[0].set(ylabel="median bytes, standardised")
    for c, name in enumerate(NAMES):
        axes[0].scatter([], [], s=20, color=colours[c], label=name)
    axes[0].scatter([], [], s=34, marker="s", color="white", edgecolor=INK, label="known")
    axes[0].scatter([], [], s=22, facecolor="none", edgecolor="crimson", label="wrong")
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=len(NAMES) + 2)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("domain_adaptation.png"))
    parser.add_argument("--size", type=int, default=2500, help="flows of the new site")
    parser.add_argument("--labels", type=int, default=25)
    options = parser.parse_args()

    old, new = sidebayes.simulate_domains("traffic", 4000, options.size)
    known = np.full(options.size, -1)
    rows = np.random.default_rng(0).choice(options.size, options.labels, replace=False)
    known[rows] = new.labels[rows]
    source = sidebayes.fit_source(old.x, old.labels)
    found = fit_all(source, new.x, known)
    free = known < 0
    for name, prob in found.items():
        right = prob.argmax(axis=1) == new.labels
        peers = new.labels == 3
        print(
            f"{name:16} {right[free].mean():.3f} right, peer to peer {right[free & peers].mean():.2f}"
        )
    draw(new.x, new.labels, known, found, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
