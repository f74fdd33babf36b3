"""Longitudinal and tracking experiments after Ross and Dy (2013), on public and simulated data.

``SIDEBAYES_DATA=folder python benchmarks/reproduce/trajectories_subjects.py`` prints two tables. The paper's
Normative Aging data are private: here are 40 girls of the Topeka study of lung growth. Its tracking scene is
not named: here are simulated walkers.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import normalized_mutual_info_score

import sidebayes as sb

PAPER = {
    "prediction equation": (0.492, np.nan),
    "linked": (0.204, 0.846),
    "no links": (0.328, 0.590),
}
"""Means of the five folds of the paper's Table 1: squared error in litres squared, share matched."""


STARTS = 20


def children(seed: int) -> pd.DataFrame:
    """Forty girls with seven visits or more: who, age in years, height in m, FEV1 in litres."""
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "long_fev1_topeka.csv")
    count = table.groupby("id")["age"].transform("size")
    table = table[count >= 7]
    chosen = np.random.default_rng(seed).choice(table["id"].unique(), 40, replace=False)
    table = table[table["id"].isin(chosen)].reset_index(drop=True)
    return table.assign(fev=np.exp(table["logfev1"]))


def folds(table: pd.DataFrame, seed: int) -> list[np.ndarray]:
    """Five sets of rows, each with one visit of every child, no visit in two."""
    rng = np.random.default_rng(seed)
    order = table.groupby("id", sort=False).indices.values()
    return list(np.stack([rng.permutation(rows)[:5] for rows in order]).T)


def hankinson(table: pd.DataFrame) -> np.ndarray:
    """Reference equation of white girls under 18 (Hankinson 1999, Table 4): age in years, height in cm."""
    age, square = table["age"].to_numpy(), (100 * table["ht"].to_numpy()) ** 2
    return -0.8710 + 0.06537 * age + 0.00011496 * square


def mixed_model(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Random intercept and slope about a cubic of age, by restricted maximum likelihood."""
    import statsmodels.formula.api as smf

    centred = [one.assign(t=(one["age"] - 12) / 5) for one in (train, test)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = smf.mixedlm(
            "fev ~ t + I(t**2) + I(t**3)", centred[0], groups="id", re_formula="~t"
        ).fit()
    effects = found.random_effects
    own = [
        effects[one].to_numpy() @ [1.0, t]
        for one, t in zip(centred[1]["id"], centred[1]["t"], strict=True)
    ]
    return found.predict(centred[1]).to_numpy() + np.array(own)


def lung(num_sets: int = 1) -> None:
    """The five-fold protocol: one visit of each child is predicted from her others."""
    scales = {"length_scale": 0.02**-0.5, "amplitude": 1.0, "noise": 0.15}
    anchors = np.linspace(5.0, 20.0, 25)  # the same in all folds, so that one program serves them
    rows: dict[str, list[tuple[float, float]]] = {}
    for seed in range(num_sets):
        table = children(seed)
        for held in folds(table, seed):
            test = table.iloc[held]
            train = table.drop(index=table.index[held]).reset_index(drop=True)
            truth, mean = test["fev"].to_numpy(), train["fev"].mean()
            engine = sb.CoordinateAscent(num_restarts=STARTS, max_steps=50, tol=0.0, num_draws=20)
            given = train["fev"].to_numpy() - mean, train["age"].to_numpy()
            for name in ("linked", "no links"):
                subjects = {"subjects": train["id"].to_numpy()} if name == "linked" else {}
                fit = sb.fit(
                    "trajectories", *given, **subjects, num_clusters=20, engine=engine,
                    anchors=anchors, progress=False, **scales,
                )  # fmt: skip
                label = fit.labels()
                if name == "linked":
                    names = np.unique(train["id"])
                    label = label[np.searchsorted(names, train["id"])]
                # the paper's rule: the curve that most rows of a child are on
                counts = pd.crosstab(train["id"], label)
                best, share = counts.idxmax(axis=1), counts.max(axis=1) / counts.sum(axis=1)
                curve = fit.curves(inputs=test["age"].to_numpy()).set_index(["row", "cluster"])[
                    "mean"
                ]
                guess = mean + np.array(
                    [curve[row, best[who]] for row, who in enumerate(test["id"])]
                )
                rows.setdefault(name, []).append((np.mean((guess - truth) ** 2), share.mean()))
            for name, guess in {
                "prediction equation": hankinson(test),
                "mixed effects": mixed_model(train, test),
            }.items():
                rows.setdefault(name, []).append((np.mean((guess - truth) ** 2), np.nan))
    print("Lung function, five folds          squared error (paper)   rows matched (paper)")
    for name in ("prediction equation", "mixed effects", "no links", "linked"):
        error, match = np.mean(rows[name], axis=0)
        there = PAPER.get(name, (np.nan, np.nan))
        print(
            f"{name:30} {error:12.3f} ({there[0]:.3f}) {match:16.3f} ({there[1]:.3f})", flush=True
        )


def walkers() -> None:
    """Mutual information of labels and walkers against the number of links, which all starts share."""
    table = sb.simulate_walkers(seed=0)
    y, frame, who = table[["x", "y"]].to_numpy(), table["frame"].to_numpy(float), table["walker"]
    engine = sb.CoordinateAscent(num_restarts=1, max_steps=50, tol=0.0, num_draws=1)
    print(
        f"\nWalkers, {len(table)} detections, {STARTS} starts; the paper's Fig. 7 has no numbers, and rises\n"
        "links   NMI (sd)   curves   of the best bound: NMI, curves"
    )
    for number in (0, 100, 300, 600):
        links = sb.simulate_links(who, number, weight=10.0) if number else None
        found = []
        for seed in range(STARTS):
            fit = sb.fit(
                "trajectories", y, frame, links=links, num_clusters=20, engine=engine, seed=seed,
                length_scale=0.0005**-0.5, amplitude=100.0, noise=2.0**0.5, concentration=0.03,
                mean=y.mean(axis=0), progress=False,
            )  # fmt: skip
            label = fit.labels()
            score = normalized_mutual_info_score(who, label, average_method="geometric")
            occupied = np.sum(np.bincount(label) > 0.02 * len(label))
            found.append((fit.log_evidence.value, score, occupied))
        _, score, occupied = np.array(found).T
        _, *best = max(found)
        print(
            f"{number:5d}   {score.mean():.3f} ({score.std():.2f}) {occupied.mean():8.1f}   "
            f"{best[0]:.3f}, {best[1]}",
            flush=True,
        )


if __name__ == "__main__":
    if os.environ.get("SIDEBAYES_DATA"):
        lung()
    else:
        print("SIDEBAYES_DATA is not set: no lung function")
    if "--lung" not in sys.argv:
        walkers()
