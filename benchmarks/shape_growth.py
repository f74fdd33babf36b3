"""Growth of rats' skulls: shares of variance by age and rat, beside a Procrustes analysis of variance.

Reads ``shape_rats_growth.csv`` in the folder that the environment variable SIDEBAYES_DATA names. Beside the
shares are those of sequential least squares in the tangent space. A test of the groups of
``shape_apes.csv`` by pairs comes last.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import sidebayes

FORMULAS = ("~ np.log(age) + rat", "~ poly(np.log(age), 2) + rat", "~ log_size + rat")
ENGINE = sidebayes.BlockedGibbs(num_chains=2, num_warmup=500, num_samples=1000)


def read(name: str) -> tuple[NDArray, pd.DataFrame]:
    """Landmarks, shape (individuals, landmarks, 2), and the other columns."""
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / f"shape_{name}.csv")
    columns = [one for one in table.columns if one[0] in "xy" and one[1:].isdigit()]
    return table[columns].to_numpy(float).reshape(len(table), -1, 2), table.drop(columns=columns)


def rats() -> sidebayes.Landmarks:
    """Eight landmarks of 18 rats at eight ages, with age in days and the rat as covariates."""
    x, table = read("rats_growth")
    names = [f"{rat} at {age}" for rat, age in table[["id", "time"]].to_numpy()]
    covariates = {"age": table["time"].to_numpy(float), "rat": table["id"].astype(str).to_numpy()}
    return sidebayes.Landmarks.from_array(x, subjects=names, covariates=covariates)


def least_squares(marks: sidebayes.Landmarks, columns: pd.DataFrame) -> NDArray:
    """Sequential shares of the first term and of the rat, in the tangent space at the mean."""
    shapes = marks.aligned().coordinates
    shapes = shapes - shapes.mean(axis=0)
    first = [name for name in columns if not name.startswith("rat")]
    left = [(shapes**2).sum()]
    for design in (columns[first], columns):
        table = design - design.mean()
        fitted = table @ np.linalg.lstsq(table.to_numpy(), shapes, rcond=None)[0]
        left.append(((shapes - fitted.to_numpy()) ** 2).sum())
    return -np.diff(left) / left[0]


def main() -> None:
    marks = rats()
    print("formula, term: least squares, posterior mean and 90 % interval; seconds, verdict")
    for formula in FORMULAS:
        design = sidebayes.shape_design(formula, marks)
        began = time.perf_counter()
        fit = sidebayes.fit(
            "hierarchical_shape", **design, num_modes=12, engine=ENGINE, progress=False
        )
        seconds = time.perf_counter() - began
        mode = sidebayes.fit(
            "hierarchical_shape", **design, num_modes=12, engine="em", progress=False
        )
        shares = mode.shape_effects()["share"].to_numpy().round(4)
        print(f"{formula}, mode by EM: shares {shares}; {mode.status}")
        found = fit.shape_effects()
        by_term = zip(
            found["term"].to_numpy(), least_squares(marks, design["covariates"]), strict=True
        )
        for number, (term, peer) in enumerate(by_term):
            mean, low, high = (
                float(found[name][number]) for name in ("share", "share_lower", "share_upper")
            )
            print(f"{formula}, {term}: {peer:.4f}, {mean:.4f} [{low:.4f}, {high:.4f}]; ", end="")
            print(f"{seconds:.0f} s, {fit.verdict[0]}")
    x, table = read("apes")
    pairs = sidebayes.pairwise_tests(x, table["label"].to_numpy(), statistics=["goodall", "james"])
    print(pairs.round(4).to_string())


if __name__ == "__main__":
    main()
