"""Groups of held-out individuals, by shape: the model beside linear discriminant analysis in the same chart.

Reads ``shape_*.csv`` in the folder that the environment variable SIDEBAYES_DATA names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

import sidebayes

SETS = {"mice_t2": 2, "apes": 2, "schizophrenia": 2, "brains3d": 3, "hands3d": 3}


def read(name: str, num_axes: int) -> tuple[NDArray, NDArray]:
    """Landmarks, shape (individuals, landmarks, axes), and groups."""
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / f"shape_{name}.csv")
    columns = [one for one in table.columns if one[0] in "xyz" and one[1:].isdigit()]
    return table[columns].to_numpy().reshape(len(table), -1, num_axes), table["label"].to_numpy()


def main() -> None:
    print(
        "set, individuals, modes, share of the variance that they hold: discriminant analysis, tied, full; "
        "index without labels; seconds"
    )
    for name, num_axes in SETS.items():
        shapes, names = read(name, num_axes)
        marks = sidebayes.Landmarks.from_array(shapes)
        given = marks.x, marks.subjects, marks.landmarks
        groups, labels = np.unique(names, return_inverse=True)
        chart = sidebayes.shape_chart(shapes)
        table = np.asarray(ShapeChart.of(chart).coordinates(shapes))
        folds = StratifiedKFold(10, shuffle=True, random_state=0)
        peer = cross_val_predict(LinearDiscriminantAnalysis(), table, labels, cv=folds)
        right = [np.mean(peer == labels)]
        began = time.perf_counter()
        for covariance in ("tied", "full"):
            options = {"num_clusters": len(groups), "covariance": covariance, "progress": False}
            found = np.zeros(len(labels), int)
            for _, test in folds.split(table, labels):
                known = labels.copy()
                known[test] = -1
                fit = sidebayes.fit("hierarchical_shape", *given, known=known, **options)
                found[test] = fit.labels()[test]
            right.append(np.mean(found == labels))
        seconds = time.perf_counter() - began
        fit = sidebayes.fit("hierarchical_shape", *given, num_clusters=len(groups), progress=False)
        index = adjusted_rand_score(labels, fit.labels())
        held = fit.shape_quality()["compactness"][table.shape[1]]
        shown = ", ".join(f"{one:.3f}" for one in right)
        print(
            f"{name}, {len(shapes)}, {table.shape[1]}, {held:.3f}: {shown}; {index:.3f}; {seconds:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
