"""The paquid cohort: latent classes of mini-mental scores, and dementia predicted from them.

Run: SIDEBAYES_DATA=folder python benchmarks/reproduce/paquid.py [-o docs/methods/paquid.png]
Left, the two-class model that R's lcmm publishes for these 500 subjects, with the curves of the classes;
its log-likelihood is printed beside ours. Right, ROC curves of subjects left out, from the visits before
the diagnosis: the ratio of likelihoods, a support vector machine on Fisher features, and the class of
the mixture, which is told no diagnosis.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from sidebayes.diagnostics.pictures.colours import CHAINS, INK, MUTED, new_figure
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import sidebayes as sb

PUBLISHED = -5414.573  # lcmm 1.8.1.1, hlme with two classes


def columns(age):
    """Intercept, decades after 65, and their square."""
    decade = (np.asarray(age, float) - 65) / 10
    return np.column_stack([np.ones(len(decade)), decade, decade**2])


def classes_of(frame):
    """Mixture of two classes with covariance and noise in common."""
    x = columns(frame["age"])
    y = frame["MMSE"].to_numpy(float)
    return sb.fit(
        "mixed_effects_mixture", y, x, x[:, :2], frame["ID"].to_numpy(), num_clusters=2,
        shared=("covariance", "noise"), engine=sb.EM(tol=1e-11, max_steps=3000), progress=False,
    )  # fmt: skip


def declining(fit):
    """Number of the class whose mean at 85 is lower."""
    return int((fit.params["coefficients"] @ columns([85.0])[0]).argmin())


def scores(frame):
    """Dementia labels, and scores of subjects by rules that have not seen them."""
    seen = frame[(frame["label"] == 0) | (frame["age"] < frame["agedem"])]
    table = sb.LongTable.from_times(seen["MMSE"], seen["age"], seen["ID"], center=75, unit=10)
    labels = table.by_subject(seen["label"])
    svm = SVC(kernel="linear", C=10, class_weight="balanced")
    rules = {
        "likelihood ratio": sb.LikelihoodRatio(),
        "Fisher kernel, design C": make_pipeline(sb.FisherFeatures("C"), svm),
    }
    cut = StratifiedKFold(10, shuffle=True, random_state=0)
    found = {
        name: cross_val_predict(rule, table, labels, cv=cut, method="decision_function")
        for name, rule in rules.items()
    }
    mixture = classes_of(seen)
    share = dict(
        zip(
            mixture.effects()["group"].to_numpy(),
            mixture.responsibilities()[:, declining(mixture)],
            strict=True,
        )
    )
    return labels, found | {"class of the mixture": np.array([share[n] for n in table.names])}


def draw(frame, fit, labels, found, out):
    figure, axes = new_figure(12.6, 4.8, ncols=2, width_ratios=[1.35, 1])
    shades = np.array([to_rgb(CHAINS[0]), to_rgb(CHAINS[1])])
    low = declining(fit)
    share = fit.responsibilities()[:, low].clip(0, 1)
    for weight, (_, rows) in zip(share, frame.groupby("ID"), strict=True):
        shade = weight * shades[1] + (1 - weight) * shades[0]
        axes[0].plot(rows["age"], rows["MMSE"], color=shade, lw=0.6, alpha=0.35)
    grid = np.linspace(65, 95, 61)
    x = columns(grid)
    for colour, cluster in ((CHAINS[0], 1 - low), (CHAINS[1], low)):
        names = [n for n in fit.covariance.index if n.startswith(f"coefficients[{cluster}")]
        spread = fit.covariance.loc[names, names].to_numpy()
        mean = x @ fit.params["coefficients"][cluster]
        error = 1.645 * np.sqrt(np.einsum("ij,jk,ik->i", x, spread, x))
        axes[0].fill_between(grid, mean - error, mean + error, color=colour, alpha=0.35)
        label = f"class of {fit.params['weights'][cluster]:.0%}"
        axes[0].plot(grid, mean, color=colour, lw=3, label=label)
    axes[0].set(xlabel="age", ylabel="MMSE", title="500 subjects, means of classes, 90% bands")
    axes[0].set_ylim(0, 31)
    axes[0].legend(frameon=False, loc="lower left")
    for (name, score), colour in zip(found.items(), CHAINS[2:], strict=False):
        area = roc_auc_score(labels, score)
        axes[1].plot(*roc_curve(labels, score)[:2], color=colour, label=f"{name}, AUC {area:.2f}")
    axes[1].plot([0, 1], [0, 1], color=MUTED, lw=0.8)
    axes[1].set(xlabel="false alarms", ylabel="dementia predicted", title="subjects left out")
    axes[1].legend(frameon=False, loc="lower right", fontsize=9)
    for axis in axes:
        axis.tick_params(colors=MUTED)
        axis.title.set_color(INK)
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("paquid.png"))
    options = parser.parse_args()
    frame = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "long_paquid.csv")
    frame = frame.dropna(subset=["MMSE"])
    fit = classes_of(frame)
    value = fit.tree["sample_stats"]["lp"].item()
    print(f"{fit.status}\nlog-likelihood {value:.4f}, lcmm {PUBLISHED}")
    print(fit.coefficients().round(3))
    labels, found = scores(frame)
    for name, score in found.items():
        test = sb.delong_test(labels, score, found["likelihood ratio"])
        print(f"{name}: AUC {test.auc[0]:.3f}, against the ratio p = {test.p_value:.2f}")
    draw(frame, fit, labels, found, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
