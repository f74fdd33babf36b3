"""Adjusted Rand index of Gaussian mixtures by the prior of their components, beside scikit-learn's.

Run: python -m benchmarks.default_prior [--seeds 4] [--sets ecoli,...] [--new-rows | --apart | --coin]
`--sets` are CSV files of the folder SIDEBAYES_DATA, in place of the sets of the library. Features are
standardised. "few rows" are three Gaussians of unit covariance, 40 rows each in six features, whose centres
lie 3.5 standard deviations from the origin along different axes, or at it. scikit-learn has ten starts. The
columns of `rank` are EM by "likelihood", the default, and by "joint" density; "points" is how many there are
for each number of a full covariance and its mean, and "said" whether the verdict says that they are few.
`--new-rows` prints the mean log density of the two thirds of the rows that were not fitted, by form of
the covariances. "noise" are 75 rows of 49 standard normal features, as one cluster. `--apart` prints by what
factor deviations are too large where three Gaussians of 40 rows in the plane are some standard deviations
apart: by prior, and whether the verdict says so. `--coin` adds a column of few different values.
"""

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import sidebayes as sb


def settings(seeds: int, sets: list[str]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Names, data and true labels."""
    for name in sets:
        table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"], f"{name}.csv"))
        x = table.drop(columns="label").to_numpy(float)
        x = x[:, x.std(axis=0) > 0]
        yield name, (x - x.mean(axis=0)) / x.std(axis=0), table["label"].to_numpy()
    if sets:
        return
    for name in ("iris", "wine", "breast_cancer"):
        data = sb.load_dataset(name)
        yield name, (data.x - data.x.mean(axis=0)) / data.x.std(axis=0), data.labels
    labels = np.repeat([0, 1, 2], 40)
    for seed in range(seeds):
        x = np.random.default_rng(200 + seed).normal(size=(120, 6))
        x[:, :2] += 3.5 * (labels[:, None] == [1, 2])
        yield "few rows", x, labels


def with_coins(seed: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Data with a column that has nothing to do with the labels."""
    rng = np.random.default_rng(seed)
    clouds = rng.normal(size=(400, 2))
    clouds[200:] += 6
    iris, wine = sb.load_dataset("iris"), sb.load_dataset("wine")
    labels = np.repeat([0, 1], 200)
    yield "clouds, coin", np.column_stack([clouds, rng.integers(0, 2, 400)]), labels
    yield "clouds, count", np.column_stack([clouds, rng.poisson(1.0, 400)]), labels
    yield (
        "clouds, half zero",
        np.column_stack([clouds, rng.integers(0, 2, 400) * rng.gamma(1.0, size=400)]),
        labels,
    )
    for name, data in (("iris", iris), ("wine", wine)):
        own = (data.x - data.x.mean(axis=0)) / data.x.std(axis=0)
        yield f"{name}, coin", np.column_stack([own, rng.integers(0, 2, len(own))]), data.labels


def new_rows(x: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, float]:
    """Mean log density of rows that were left out, under the default prior and by scikit-learn."""
    number, found = len(np.unique(labels)), {}
    order = np.random.default_rng(seed).permutation(len(x))
    own, left = x[order[: len(x) // 3]], x[order[len(x) // 3 :]]
    for form, theirs in {
        "full": "full",
        "tied": "tied",
        "diagonal": "diag",
        "spherical": "spherical",
    }.items():
        fit = sb.fit("gmm", own, num_clusters=number, covariance=form, seed=seed, progress=False)
        peer = GaussianMixture(number, covariance_type=theirs, n_init=10, random_state=seed).fit(
            own
        )
        found[form] = float(np.mean(fit.log_prob(left)))
        found[f"{form}, scikit-learn"] = peer.score(left)
    return found


def indices(x: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, float]:
    """Adjusted Rand index by prior, and scikit-learn's."""
    number = len(np.unique(labels))
    evidence = sb.GaussianPrior.by_evidence(x, number)
    asked = {
        "default": {},
        "rank='joint'": {"engine": sb.EM(rank="joint")},
        "flat": {"prior": "flat"},
        "by_evidence": {"prior": evidence},
        "tied": {"covariance": "tied"},
    }
    peer = GaussianMixture(number, n_init=10, random_state=seed).fit_predict(x)
    width = x.shape[1]
    found = {
        "points": len(x) / number / (width * (width + 3) / 2),
        "scikit-learn": adjusted_rand_score(labels, peer),
    }
    for name, options in asked.items():
        try:
            fit = sb.fit("gmm", x, num_clusters=number, seed=seed, progress=False, **options)
        except sb.FitError:  # every start collapsed, which only a flat prior lets happen
            found[name] = np.nan
            continue
        found[name] = adjusted_rand_score(labels, fit.labels())
        if name == "default":
            found["said"] = "points are few" in fit.verdict[1]
    return found


def widths(seeds: int) -> pd.DataFrame:
    """Estimated by true deviations of clusters, by their distance in true deviations."""
    rows = []
    for seed in range(seeds):
        for distance in (5, 10, 20, 40, 100):
            centres = distance * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
            x = np.random.default_rng(seed).normal(size=(120, 2)) + np.repeat(centres, 40, axis=0)
            row: dict[str, float] = {"distance": distance}
            asked = {"default": "empirical", "flat": "flat"} | {
                "by_evidence": sb.GaussianPrior.by_evidence(x, 3)
            }
            for name, prior in asked.items():
                fit = sb.fit("gmm", x, num_clusters=3, prior=prior, seed=seed, progress=False)
                variance = np.linalg.det(fit.params["covariance"]) ** 0.5
                row[name] = float(np.sqrt(variance).mean())
                if name == "default":
                    row["said"] = "twice as wide" in fit.verdict[1]
            rows.append(row)
    return pd.DataFrame(rows).groupby("distance").mean().round(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--sets", default="", help="CSV files, comma-separated")
    parser.add_argument("--new-rows", action="store_true", help="log density of rows left out")
    parser.add_argument("--apart", action="store_true", help="widths of clusters far apart")
    parser.add_argument("--coin", action="store_true", help="a column of few different values")
    given = parser.parse_args()
    seeds, sets = given.seeds, [name for name in given.sets.split(",") if name]
    warnings.simplefilter("ignore", sb.SideBayesWarning)
    if given.apart:
        print(widths(seeds).to_string())
        return
    noise = [("noise", np.random.default_rng(0).normal(size=(75, 49)), np.zeros(75))]
    measure, more = (new_rows, noise) if given.new_rows else (indices, [])
    rows = [
        {"data": name, **measure(x, labels, seed)}
        for seed in range(seeds)
        for name, x, labels in (with_coins(seed) if given.coin else [*settings(seeds, sets), *more])
    ]
    print(pd.DataFrame(rows).groupby("data", sort=False).mean().round(3).to_string())


if __name__ == "__main__":
    main()
