"""How well fits predict the classes of other rows, and whether the check of known classes tells.

Run: python -m benchmarks.known_classes [--sets 12]
The first table is of `moe` on standardised features of real data, where every tenth row has a known class.
The second counts what the verdict says of known classes on simulated data, where classes are drawn at random
and where features tell them. The third is of overlapping classes with few labels: log scores of new rows by
verdict. Files of SIDEBAYES_DATA are used where it is set.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from sklearn.datasets import load_iris, load_wine

import sidebayes as sb
from sidebayes.results.base.known_classes import recognised, told_by_known_classes


def real_sets():
    """Name, features and classes."""
    yield "iris", *load_iris(return_X_y=True)
    yield "wine", *load_wine(return_X_y=True)
    for name in ("new_thyroid", "pima") if "SIDEBAYES_DATA" in os.environ else ():
        table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / f"{name}.csv")
        x = table.drop(columns="label").to_numpy(float)
        yield name, x, pd.factorize(table["label"], sort=True)[0]


def told(x, classes, known):
    """Fit `moe`; return log scores of the other rows' classes, also under a smoother table, and the gain."""
    number = classes.max() + 1
    others = known < 0
    scores, options = [], {"num_clusters": number, "num_classes": number, "progress": False}
    for concentration in (1.3, 1.0):
        fit = sb.fit("moe", x, known, class_concentration=concentration, **options)
        prob = fit.class_probabilities()[others, classes[others]]
        scores.append(np.log(np.maximum(prob, 1e-6)).mean())
    found = recognised(fit)
    return scores[1], scores[0], np.nan if found is None else found.gain


def real_table():
    """Print the first table."""
    print(
        "| every tenth class known | log score of the others | class_concentration=1.3 | gain, nats |"
    )
    for name, x, classes in real_sets():
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        masks = [np.arange(len(x)) % 10 == 0]
        if name == "pima":
            masks = [np.random.default_rng(k).permutation(len(x)) < len(x) / 10 for k in range(3)]
        rows = [told(x, classes, np.where(mask, classes, -1)) for mask in masks]
        print(name, *(", ".join(f"{v:.2f}" for v in column) for column in zip(*rows, strict=True)))
        if name == "iris":
            mixed = [np.random.default_rng(k).permutation(classes) for k in range(8)]
            rows = [told(x, own, np.where(masks[0], own, -1)) for own in mixed]
            print("permuted", *(", ".join(f"{v:.1f}" for v in c) for c in zip(*rows, strict=True)))


def simulated(seed, apart):
    """Fits of small simulated sets by method; classes have nothing to do with them, or are `apart`."""
    rng = np.random.default_rng(seed)

    def draw(size, width):
        classes = rng.permutation(np.arange(size) % 2)
        shift = apart * classes[:, None] * (np.arange(width) == 0)
        return classes, rng.normal(size=(size, width)) + shift

    def half(classes):
        return np.where(np.arange(len(classes)) % 2 == 0, classes, -1)

    classes, x = draw(40, 12)
    around = np.hstack([np.full((40, 1), 6.0), x])
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    yield "sphere_mixture", (around,), {"known": half(classes), "num_clusters": 2}
    classes, x = draw(200, 4)
    yield "feature_saliency", (x,), {"known": half(classes), "num_clusters": 2}
    classes, x = draw(120, 2)
    known = np.where(np.arange(120) % 5 == 0, classes, -1)
    yield "moe", (x, known), {"num_clusters": 2, "num_classes": 2}


def simulated_table(sets):
    """Print the second table."""
    cautions: dict[str, list[int]] = {}
    for column, apart in enumerate((0.0, 2.5)):
        for seed in range(sets):
            for name, data, options in simulated(seed, apart):
                said = told_by_known_classes(sb.fit(name, *data, **options, progress=False))
                cautions.setdefault(name, [0, 0])[column] += any(said)
    print(f"\n| method | random classes: cautions, of {sets} | 2.5 deviations apart |")
    for name, (random, real) in cautions.items():
        print(f"| {name} | {random} | {real} |")


def overlapping_table(sets):
    """Print the third table."""
    centres = np.array([[0.0, 0.0], [2.0, 0.5], [0.0, 2.2]])
    rows = []
    for seed in range(100, 100 + 2 * sets):
        rng = np.random.default_rng(seed)
        classes = rng.integers(0, 3, 660)
        x = centres[classes] + rng.normal(size=(660, 2))
        known = np.where(np.arange(60) < 15, classes[:60], -1)
        shares = np.log(np.bincount(classes[:15], minlength=3) / 15 + 1e-6)[classes[60:]].mean()
        methods = {
            "moe": {"num_clusters": 3},
            "moe, class_concentration=1.3": {"num_clusters": 3, "class_concentration": 1.3},
            "pfgl": {"num_clusters": 1, "prototypes": ((0, 0), (0, 1), (0, 2))},
        }
        for name, options in methods.items():
            method = name.split(",")[0]
            fit = sb.fit(method, x[:60], known, num_classes=3, **options, progress=False)
            prob = fit.class_probabilities(x[60:])
            own = np.log(np.maximum(prob[np.arange(600), classes[60:]], 1e-6)).mean()
            sure = prob.max(axis=1) >= 0.95
            right = prob.argmax(axis=1) == classes[60:]
            rows.append((name, fit.verdict[0], own - shares, right[sure].sum(), sure.sum()))
    frame = pd.DataFrame(rows, columns=["method", "verdict", "beside shares", "right", "sure"])
    found = frame.groupby(["method", "verdict"]).agg(
        {"beside shares": ["count", "mean", "min"], "right": "sum", "sure": "sum"}
    )
    print("\nThree overlapping classes, 15 labels of 60 rows; log scores of 600 new rows")
    print(found.round(2))


def main(sets: int = 12) -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    real_table()
    simulated_table(sets)
    overlapping_table(sets)


if __name__ == "__main__":
    typer.run(main)
