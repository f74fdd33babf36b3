"""The example of decline draws its picture, and its classifiers see something."""

import runpy
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

import sidebayes as sb

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "decline_detection.py"))


def test_classifiers_and_picture(tmp_path):
    frame = sb.simulate_decline(EXAMPLE["MEASURE"], 40, 30, seed=2)
    table = sb.LongTable.from_times(
        frame["value"], frame["age"], frame["subject"], center=80, unit=10
    )
    labels = table.by_subject(frame["impaired"])
    scores = EXAMPLE["judge"](table, labels, num_folds=3)
    assert all(roc_auc_score(labels, score) > 0.6 for score in scores.values())
    subject = int(np.argmax(np.bincount(table.codes)))
    ages = 80 + 10 * table.fixed[table.codes == subject, 1]
    grid = np.linspace(ages[0], ages[-1] + 3, 31)
    visits, words, found = EXAMPLE["follow"](table, labels, subject, grid)
    assert len(visits) == len(words) == found["seen"].max()
    out = tmp_path / "picture.png"
    EXAMPLE["draw"](scores, labels, visits, words, found, grid, out)
    assert out.stat().st_size > 10_000
