"""Decline of the elderly: who will be impaired, and what the next visits will bring.

Run: python examples/decline_detection.py [--out docs/methods/decline_detection.png]
Words that 132 subjects recall, simulated after the Oregon Brain Aging Study. Classifiers are judged on
subjects left out; one of these is followed visit by visit.
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import CHAINS, INK, MUTED, new_figure
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import sidebayes as sb

MEASURE = "delayed_recall"
SHOWN = (1, 3, 6)


def classifiers():
    """Ratios of likelihoods, and support vector machines for two prices of a missed decline."""
    fisher = {
        f"Fisher kernel, costs 1:{price}": make_pipeline(
            sb.FisherFeatures("C"), SVC(kernel="linear", C=10, class_weight={0: 1, 1: price})
        )
        for price in (1, 2)
    }
    ratios = {
        "likelihood ratio": sb.LikelihoodRatio(),
        "without random effects": sb.LikelihoodRatio(individual=False),
    }
    return ratios | fisher


def judge(table, labels, num_folds=10):
    """Scores of subjects by classifiers that have not seen them."""
    cut = StratifiedKFold(num_folds, shuffle=True, random_state=0)
    return {
        name: cross_val_predict(rule, table, labels, cv=cut, method="decision_function")
        for name, rule in classifiers().items()
    }


def follow(table, labels, subject, grid):
    """Predict a grid of ages after each visit of a subject, from what the others showed."""
    others = np.delete(np.arange(len(table)), subject)
    learned = sb.LikelihoodRatio().fit(table.take(others), labels[others])
    rows = table.codes == subject
    ages = np.concatenate([80 + 10 * table.fixed[rows, 1], grid])
    words = np.concatenate([table.y[rows], np.full(len(grid), np.nan)])  # NaN: to be predicted
    columns = np.stack([np.ones(len(ages)), (ages - 80) / 10], axis=1)
    who = np.zeros(len(ages), int)
    found = sb.forecast(learned.mixture(), words, columns, columns, who)
    return ages[: rows.sum()], table.y[rows], found[found["row"] >= rows.sum()]


def draw(scores, labels, visits, words, found, grid, out):
    """Left ROC curves, right bands for a subject after some of its visits."""
    figure, axes = new_figure(12.6, 4.8, ncols=2, width_ratios=[1, 1.35])
    for (name, score), colour in zip(scores.items(), CHAINS, strict=False):
        area = roc_auc_score(labels, score)
        axes[0].plot(*roc_curve(labels, score)[:2], color=colour, label=f"{name}, AUC {area:.2f}")
    cheap, dear = (roc_curve(labels, s) for n, s in scores.items() if n.startswith("Fisher"))
    axes[0].plot(*sb.stitch_roc(cheap, dear), ":", color=INK, lw=2, label="both, stitched")
    axes[0].plot([0, 1], [0, 1], color=MUTED, lw=0.8)
    axes[0].set(xlabel="false alarms", ylabel="declines detected", title="subjects left out")
    axes[0].legend(frameon=False, loc="lower right", fontsize=9)
    for count, colour in zip(SHOWN, CHAINS, strict=False):
        ahead = found[found["seen"] == count]
        later = grid >= visits[count - 1]
        risk = ahead["class_1"].iloc[0]
        band = grid[later], ahead["lower"].to_numpy()[later], ahead["upper"].to_numpy()[later]
        axes[1].fill_between(*band, color=colour, alpha=0.18)
        label = f"after visit {count}: impaired with probability {risk:.2f}"
        axes[1].plot(grid[later], ahead["mean"].to_numpy()[later], color=colour, label=label)
    axes[1].plot(visits, words, "o", color=INK, ms=5)
    axes[1].set(xlabel="age", ylabel="words recalled", title="one subject, 90% bands")
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(low - 0.25 * (high - low), high)  # room for the legend
    axes[1].legend(frameon=False, loc="lower left")
    for axis in axes:
        axis.tick_params(colors=MUTED)
        axis.title.set_color(INK)
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("decline_detection.png"))
    options = parser.parse_args()
    frame = sb.simulate_decline(MEASURE, seed=2)
    table = sb.LongTable.from_times(
        frame["value"], frame["age"], frame["subject"], center=80, unit=10
    )
    labels = table.by_subject(frame["impaired"])
    scores = judge(table, labels)
    ratio = scores["likelihood ratio"]
    for name, score in scores.items():
        test = sb.delong_test(labels, score, ratio)
        print(f"{name}: AUC {test.auc[0]:.3f}, against the ratio p = {test.p_value:.3f}")
    visits = np.bincount(table.codes)
    # of those who declined and were seen often, one whose score is in the middle
    often = np.flatnonzero((labels == 1) & (visits >= 10))
    subject = int(often[np.argsort(ratio[often])[len(often) // 2]])
    rows = 80 + 10 * table.fixed[table.codes == subject, 1]
    grid = np.linspace(rows[0], rows[-1] + 3, 61)
    draw(scores, labels, *follow(table, labels, subject, grid), grid, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
