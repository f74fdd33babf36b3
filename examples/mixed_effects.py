"""Linear mixed effects of a table by a formula: estimates, curves of persons, a forecast.

Run: python examples/mixed_effects.py [--out docs/methods/mixed_effects.png]
Memory scores of two groups of persons, seen a few times each at times of their own. Everything is
simulated. The formula needs the library formulae, `pip install 'sidebayes[formulas]'`.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sidebayes.diagnostics.pictures.colours import CHAINS, INK, MUTED, new_figure

import sidebayes as sb

FORMULA = "score ~ years * group + (years | person)"
SHOWN = 4


def measure(num_persons=60, seed=4):
    """Scores that fall over the years, in one of the groups twice as fast."""
    rng = np.random.default_rng(seed)
    visits = rng.integers(2, 9, num_persons)
    person = np.repeat(np.arange(num_persons), visits)
    years = np.concatenate([np.sort(rng.uniform(0, 10, count)) for count in visits])
    slow = rng.permutation(num_persons) % 2 == 0
    own = rng.normal(size=(num_persons, 2)) @ np.array([[6.0, 0.3], [0.0, 0.5]])
    own += np.column_stack([np.full(num_persons, 50.0), np.where(slow, -0.6, -1.4)])
    score = own[person, 0] + own[person, 1] * years + rng.normal(0, 2.0, len(person))
    return pd.DataFrame(
        {
            "person": np.char.add("P", np.char.zfill(person.astype(str), 2)),
            "group": np.where(slow, "others", "carriers")[person],
            "years": years,
            "score": score,
        }
    )


def predict(fit, design, rows):
    """Mean and 90% band of the scores of rows."""
    drawn = fit.predictive(**design.at(rows))["predictions"]["y"]
    draws = drawn.stack(sample=("chain", "draw")).transpose("sample", ...).to_numpy()
    return draws.mean(axis=0), *np.quantile(draws, [0.05, 0.95], axis=0)


def draw(table, fit, design, out):
    """Left the lines of all persons with those of the groups, right single persons with bands."""
    figure, axes = new_figure(12.6, 4.6, ncols=2, width_ratios=[1, 1.35], sharey=True)
    grid = np.linspace(0, 12, 41)
    groups = sorted(table["group"].unique())
    colour = dict(zip(groups, CHAINS[:2], strict=True))
    for _, rows in table.groupby("person"):
        shade = colour[rows["group"].iloc[0]]
        axes[0].plot(rows["years"], rows["score"], color=shade, lw=0.7, alpha=0.5)
    beta, covariance = fit.coefficients()["estimate"].to_numpy(), coefficient_covariance(fit)
    for group in groups:
        rows = pd.DataFrame({"years": grid, "group": group, "person": "nobody"})
        x = design.at(rows)["fixed"].to_numpy()
        mean, sd = x @ beta, np.sqrt(np.einsum("ij,jk,ik->i", x, covariance, x))
        axes[0].plot(grid, mean, color=colour[group], lw=2.5, label=group)
        axes[0].fill_between(
            grid, mean - 1.645 * sd, mean + 1.645 * sd, color=colour[group], alpha=0.25
        )
    axes[0].set(xlabel="years", ylabel="score", title="all persons, groups with 90% bands")
    axes[0].legend(frameon=False)
    counts = table["person"].value_counts()
    some = [*counts.index[-SHOWN // 2 :], *counts.index[: SHOWN // 2]]
    for number, person in enumerate(some):
        seen = table[table["person"] == person]
        rows = pd.DataFrame({"years": grid, "group": seen["group"].iloc[0], "person": person})
        mean, low, high = predict(fit, design, rows)
        shade = CHAINS[number % len(CHAINS)]
        axes[1].fill_between(grid, low, high, color=shade, alpha=0.15)
        axes[1].plot(grid, mean, color=shade, label=f"{person}, seen {len(seen)} times")
        axes[1].plot(seen["years"], seen["score"], "o", color=shade, ms=5)
    axes[1].set(xlabel="years", title="single persons, 90% bands of what will be measured")
    axes[1].legend(frameon=False, loc="lower left")
    for axis in axes:
        axis.tick_params(colors=MUTED)
        axis.title.set_color(INK)
    figure.savefig(out, dpi=110)


def coefficient_covariance(fit):
    """Covariance of the fixed effects, of restricted maximum likelihood."""
    return fit.tree["latents"]["coefficients_covariance"].to_numpy()[0, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("mixed_effects.png"))
    options = parser.parse_args()
    table = measure()
    design = sb.design(FORMULA, table)
    fit = sb.fit("mixed_effects", **design, progress=False)
    print(fit.status)
    print(fit.coefficients().round(3))
    errors = np.sqrt(np.diag(fit.covariance))
    known = {"estimate": fit.summary()["estimate"].to_numpy(), "standard_error": errors}
    print(pd.DataFrame(known, index=fit.covariance.index).round(3))
    draw(table, fit, design, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
