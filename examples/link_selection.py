"""Which links to doubt, and which pairs to ask about: iris, forty links, a fifth of them wrong.

Run: python examples/link_selection.py [--out docs/link_selection.png]
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import INK, MUTED, WARN, cluster_colours
from sklearn.decomposition import PCA

import sidebayes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("link_selection.png"))
    out = parser.parse_args().out
    data = sidebayes.load_dataset("iris")
    links = sidebayes.simulate_links(
        data.labels, 40, flip_rate=0.2, weight=sidebayes.flip_rate_weight(0.2), seed=3
    )
    fit = sidebayes.fit("ppc", data.x, links, num_clusters=3, reading="relation")
    doubts = fit.suspect_links()
    wrong = (data.labels[doubts.i] == data.labels[doubts.j]) != (doubts.sign > 0)
    print(doubts.head(10).round(3).to_string())
    print(f"of the {wrong.sum()} links most in doubt, {wrong[: wrong.sum()].sum()} are wrong")
    ask = sidebayes.suggest_links(fit, 12)
    print(ask.round(3).to_string())
    draw(data, fit, doubts, wrong.to_numpy(), ask).savefig(out, dpi=130)
    print(f"wrote {out}")


def draw(data, fit, doubts, wrong, ask):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    where = PCA(2).fit_transform(data.x)
    left.scatter(*where.T, c=cluster_colours(3)[fit.labels()], s=18, edgecolor="white", lw=0.4)
    for i, j in ask[["i", "j"]].to_numpy():
        left.plot(*where[[i, j]].T, color=INK, lw=1, zorder=0)
    left.set(title="twelve pairs to ask about", xlabel="first axis", ylabel="second axis")
    place = np.arange(len(doubts))
    right.bar(place, doubts.probability, color=np.where(wrong, WARN, MUTED))
    right.set(
        title="posterior probability that a link is wrong (red: it is)",
        xlabel="links, most suspect first",
        ylabel="probability",
    )
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
