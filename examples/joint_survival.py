"""A measure over the years and the time to a diagnosis, together: association, survival curves.

Run: python examples/joint_survival.py [--out docs/methods/joint_survival.png]
Memory scores of persons, seen every year or so until a diagnosis or the end of the study. The lower
and the steeper the own line of a person, the sooner the diagnosis. Everything is simulated. The
formulas need the library formulae, `pip install 'sidebayes[formulas]'`.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sidebayes.diagnostics.pictures.colours import CHAINS, INK, MUTED, new_figure

import sidebayes as sb

SHOWN = 3
GRID = np.linspace(0, 12, 61)


def measure(num_persons=120, seed=2):
    """Scores and diagnoses; the log hazard rises by .12 per point of level, by 1.5 per point a year."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(num_persons, 2)) @ np.array([[5.0, 0.3], [0.0, 0.6]])
    carrier = rng.integers(0, 2, num_persons)
    hazard = 0.06 * np.exp(own @ np.array([-0.12, -1.5]) + 0.6 * carrier)
    diagnosis, end = rng.exponential(1 / hazard), rng.uniform(4, 12, num_persons)
    until = np.minimum(diagnosis, end)
    planned = [
        np.concatenate([[0.0], np.arange(1, t) + rng.uniform(-0.3, 0.3, len(np.arange(1, t)))])
        for t in until
    ]
    visits = [v[v <= t] for v, t in zip(planned, until, strict=True)]
    person = np.repeat(np.arange(num_persons), [len(v) for v in visits])
    years = np.concatenate(visits)
    score = 50 + own[person, 0] + (own[person, 1] - 0.8) * years + rng.normal(0, 2.0, len(person))
    scores = pd.DataFrame({"person": person, "years": years, "score": score})
    persons = pd.DataFrame({"person": np.arange(num_persons), "carrier": carrier, "until": until})
    return scores, persons.assign(diagnosed=(diagnosis <= end).astype(int))


def draw(scores, persons, fit, out):
    """Left the scores, right the survival curves of some persons who were not diagnosed."""
    figure, axes = new_figure(12.6, 4.6, ncols=2)
    diagnosed = persons.set_index("person")["diagnosed"]
    for person, rows in scores.groupby("person"):
        shade = CHAINS[3] if diagnosed[person] else MUTED
        axes[0].plot(rows["years"], rows["score"], color=shade, lw=0.8, alpha=0.6)
    for shade, label in ((CHAINS[3], "diagnosed in the end"), (MUTED, "not diagnosed")):
        axes[0].plot([], [], color=shade, label=label)
    axes[0].set(xlabel="years", ylabel="score", title="all persons", ylim=(28, None))
    axes[0].legend(frameon=False, ncols=2, loc="lower left")
    curves = fit.survival(GRID, since=persons["until"].to_numpy())
    free = persons[(persons["diagnosed"] == 0) & (persons["until"] < 7)]["person"].to_numpy()
    risk = curves["mean"].sel(subject=free).isel(time=-1).to_numpy()
    some = free[np.argsort(risk)[np.linspace(0, len(free) - 1, SHOWN).astype(int)]]
    for number, person in enumerate(some):
        shade, one = CHAINS[number], curves.sel(subject=person)
        seen = scores[scores["person"] == person]
        axes[0].plot(seen["years"], seen["score"], "o-", color=shade, ms=4, lw=1.5)
        axes[1].fill_between(GRID, one["lower"], one["upper"], color=shade, alpha=0.2)
        axes[1].plot(GRID, one["mean"], color=shade, label=f"person {person}")
    axes[1].set(xlabel="years", ylabel="probability", ylim=(0, 1.03))
    axes[1].set_title("no diagnosis until then, given the scores, with 90% bands")
    axes[1].legend(frameon=False, loc="lower left")
    for axis in axes:
        axis.tick_params(colors=MUTED)
        axis.title.set_color(INK)
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("joint_survival.png"))
    options = parser.parse_args()
    scores, persons = measure()
    design = sb.design("score ~ years + (years | person)", scores)
    data = design.survival("Surv(until, diagnosed) ~ carrier", persons, num_intervals=3)
    fit = sb.fit("joint_survival", **data, engine=sb.NUTS(target_accept=0.95), progress=False)
    print(fit.status)
    print(fit.summary())
    draw(scores, persons, fit, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
