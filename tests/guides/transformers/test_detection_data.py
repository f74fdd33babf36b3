"""Dementia in the paquid cohort is predicted from the scores before it."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from sidebayes import FisherFeatures, LikelihoodRatio, LongTable


@pytest.mark.data
def test_fisher_kernel_predicts_dementia_better_than_the_ratio():
    frame = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "long_paquid.csv")
    before = (frame["label"] == 0) | (frame["age"] < frame["agedem"])
    frame = frame[before].dropna(subset=["MMSE"])
    table = LongTable.from_times(frame["MMSE"], frame["age"], frame["ID"], center=75, unit=10)
    labels = table.by_subject(frame["label"])
    svm = SVC(kernel="linear", C=10, class_weight="balanced")
    rules = (make_pipeline(FisherFeatures("C"), svm), LikelihoodRatio())
    areas = []
    for seed in range(3):
        cut = StratifiedKFold(10, shuffle=True, random_state=seed)
        found = (
            cross_val_predict(one, table, labels, cv=cut, method="decision_function")
            for one in rules
        )
        areas.append([roc_auc_score(labels, score) for score in found])
    kernel, ratio = np.mean(areas, axis=0)
    assert kernel > 0.64
    assert kernel > ratio


def test_text_is_no_time():
    for times in (np.array(["76.7", "78"], object), pd.Series(["76.7", "78"])):
        with pytest.raises(TypeError, match=r"times = .*'76.7', '78'.*expected real numbers"):
            LongTable.from_times([3.0, 2.5], times, ["ann", "ann"])
