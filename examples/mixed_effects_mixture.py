"""Latent classes of persons by their curves, alone and with links between relatives and known classes.

Run: python examples/mixed_effects_mixture.py [--out docs/methods/mixed_effects_mixture.png]
Memory scores of persons who stay stable and of others who decline, seen a few times each. Some are
linked, because a clinician says that both decline or that only one does, and of some the class is known.
Everything is simulated. The formula needs the library formulae, `pip install 'sidebayes[formulas]'`.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from sidebayes.diagnostics.pictures.colours import CHAINS, INK, MUTED, new_figure

import sidebayes as sb

FORMULA = "score ~ years + (years | person)"
OPTIONS = {"num_clusters": 2, "shared": ("covariance", "noise")}


def measure(num_persons=90, seed=2):
    """Table of scores, and the class of each person: 0 is stable, 1 declines."""
    rng = np.random.default_rng(seed)
    visits = rng.integers(2, 7, num_persons)
    person = np.repeat(np.arange(num_persons), visits)
    years = np.concatenate([np.sort(rng.uniform(0, 10, count)) for count in visits])
    declines = (rng.random(num_persons) < 0.35).astype(int)
    own = np.array([[50.0, -0.2], [49.0, -1.5]])[declines]
    own = own + rng.normal(size=(num_persons, 2)) @ np.array([[4.0, 0.1], [0.0, 0.4]])
    score = own[person, 0] + own[person, 1] * years + rng.normal(0, 2.5, len(person))
    table = pd.DataFrame({"person": person, "years": years, "score": score})
    return table, declines


def side_information(declines, num_links=50, num_known=12, seed=5):
    """Statements on pairs of persons, one in ten wrong, and classes known of a few."""
    rng = np.random.default_rng(seed)
    pairs = np.array([rng.choice(len(declines), 2, replace=False) for _ in range(num_links)])
    same = declines[pairs[:, 0]] == declines[pairs[:, 1]]
    same ^= rng.random(num_links) < 0.1
    links = sb.Links(
        pairs, np.where(same, 2.2, -2.2)
    )  # log-odds of a statement right 9 times in 10
    known = np.full(len(declines), -1)
    some = rng.choice(len(declines), num_known, replace=False)
    known[some] = declines[some]
    return links, known


def fit_both(table, declines):
    """Fits without and with side information, the declining class second in both."""
    design = sb.design(FORMULA, table)
    links, known = side_information(declines)
    plain = sb.fit("mixed_effects_mixture", **design, **OPTIONS, progress=False)
    told = sb.fit(
        "mixed_effects_mixture", **design, links=links, known=known, reading="relation",
        **OPTIONS, progress=False,
    )  # fmt: skip
    return design, plain, told


def declining(fit):
    """Number of the class that falls faster."""
    return int(fit.params["coefficients"][:, 1].argmin())


def agreement(fit, declines):
    """Share of the persons whose class is the true one."""
    return float(((fit.labels() == declining(fit)) == declines).mean())


def mean_curve(fit, design, grid, cluster):
    """Mean score of a class over the years, and its standard error."""
    rows = pd.DataFrame({"years": grid, "person": -1})
    x = design.at(rows)["fixed"].to_numpy()
    labels = [f"coefficients[{cluster}, {term}]" for term in ("Intercept", "years")]
    spread = fit.covariance.loc[labels, labels].to_numpy()
    return x @ fit.params["coefficients"][cluster], np.sqrt(np.einsum("ij,jk,ik->i", x, spread, x))


def draw_one(axis, table, fit, design, title):
    """Lines of all persons in the mixture of the colours of their classes, and the mean curves."""
    shades = np.array([to_rgb(CHAINS[0]), to_rgb(CHAINS[1])])
    falls = declining(fit)
    share = fit.responsibilities()[:, falls].clip(0, 1)
    for number, (_, rows) in enumerate(table.groupby("person")):
        colour = share[number] * shades[1] + (1 - share[number]) * shades[0]
        axis.plot(rows["years"], rows["score"], color=colour, lw=0.8, alpha=0.6)
    grid = np.linspace(0, 10, 41)
    for colour, cluster, name in (
        (CHAINS[0], 1 - falls, "stable"),
        (CHAINS[1], falls, "declining"),
    ):
        mean, error = mean_curve(fit, design, grid, cluster)
        weight = fit.params["weights"][cluster]
        axis.fill_between(grid, mean - 1.645 * error, mean + 1.645 * error, color=colour, alpha=0.3)
        axis.plot(grid, mean, color=colour, lw=3, label=f"{name}, {weight:.0%}")
    axis.set(xlabel="years", title=title)
    axis.legend(frameon=False, loc="lower left")
    axis.tick_params(colors=MUTED)
    axis.title.set_color(INK)


def draw(table, declines, design, plain, told, out):
    """Left without side information, right with it."""
    figure, axes = new_figure(12.0, 4.6, ncols=2, sharey=True)
    for axis, fit, what in (
        (axes[0], plain, "curves alone"),
        (axes[1], told, "50 links, 12 known"),
    ):
        right = agreement(fit, declines)
        draw_one(axis, table, fit, design, f"{what}: {right:.0%} of the persons in their class")
    axes[0].set_ylabel("score")
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("mixed_effects_mixture.png"))
    options = parser.parse_args()
    table, declines = measure()
    design, plain, told = fit_both(table, declines)
    for name, fit in (("curves alone", plain), ("with side information", told)):
        print(f"{name}: {fit.status}")
        print(fit.coefficients().round(2))
        print(f"{agreement(fit, declines):.0%} of the persons are in their class")
    draw(table, declines, design, plain, told, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
