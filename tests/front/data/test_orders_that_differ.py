"""Series and frames with the same rows in different orders, by their indices, are refused."""

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb
from sidebayes.runs.arguments import read_run

FRAME = sb.simulate_decline("steps", 6, 4, seed=0)
LINES = pd.DataFrame({"one": 1.0, "age": (FRAME["age"] - 80) / 10}, index=FRAME.index)
AT = "by its index, where 0 is expected; pass"


def moved(table):
    return table[::-1]


@pytest.mark.parametrize("place", [1, 2, 3])
def test_long_tables(place):
    rows = [FRAME["value"], LINES, LINES, FRAME["subject"]]
    sb.LongTable(*rows)
    rows[place] = moved(rows[place])
    name = ("y", "fixed", "random", "subjects")[place]
    last = FRAME.index[-1]
    with pytest.raises(
        ValueError, match=rf"{name} has {last} at place 0, {AT} {name}.loc\[y.index"
    ):
        sb.LongTable(*rows)
    with pytest.raises(
        ValueError, match=rf"{name} has {last} at place 0, {AT} {name}.loc\[y.index"
    ):
        sb.forecast(sb.Population([0.0, 0.0], np.eye(2), 1.0), *rows)
    rows[place] = rows[place].to_numpy()
    sb.LongTable(*rows)  # what has no index is taken by place


def test_times_and_values_by_row():
    y, subjects = FRAME["value"], FRAME["subject"]
    with pytest.raises(ValueError, match=rf"times has .*{AT} times.loc\[y.index\]"):
        sb.LongTable.from_times(y, moved(FRAME["age"]), subjects)
    table = sb.LongTable.from_times(y, FRAME["age"], subjects)
    with pytest.raises(ValueError, match=rf"values has .*{AT} values.loc\[y.index\]"):
        table.by_subject(moved(FRAME["impaired"]))
    some = table.take([3, 1])
    own = FRAME[subjects.isin(some.names)]
    with pytest.raises(ValueError, match=r"values.loc\[y.index\]"):
        some.by_subject(moved(own["impaired"]))
    expected = own.groupby("subject")["impaired"].first().loc[some.names]
    assert some.by_subject(own["impaired"]).tolist() == expected.tolist()


def test_landmarks():
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    long = sb.Landmarks.from_array(x).to_frame()
    places, who, mark = long[["x", "y"]], long["individual"], long["landmark"]
    for one in ((moved(places), who, mark), (places, moved(who), mark), (places, who, moved(mark))):
        with pytest.raises(ValueError, match=r"has .* at place 0, by its index.*\.loc\[x.index\]"):
            sb.Landmarks(*one)
    table = pd.DataFrame({"name": list("dbca"), "age": range(4)})
    with pytest.raises(ValueError, match=r"covariates.loc\[subjects.index\]"):
        sb.Landmarks.from_array(x, subjects=table["name"], covariates=moved(table))


def test_points_with_their_classes_and_weights():
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 2)))
    labels = pd.Series([0, 1] * 6)
    with pytest.raises(ValueError, match=rf"labels has 11 at place 0, {AT} labels.loc\[x.index\]"):
        sb.fit_source(x, moved(labels))
    with pytest.raises(ValueError, match=r"known.loc\[x.index\]"):
        sb.select_adaptation(x, moved(labels), source_x=x, source_labels=labels)
    with pytest.raises(ValueError, match=r"source_labels.loc\[source_x.index\]"):
        sb.select_adaptation(x, labels, source_x=x, source_labels=moved(labels))
    with pytest.raises(ValueError, match=r"sample_weight.loc\[X.index\]"):
        sb.KernelPGA().fit(x, sample_weight=moved(pd.Series(np.arange(1.0, 13))))


def test_classes_that_a_fit_is_compared_with():
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 2)))
    truth = pd.Series([0, 1] * 6)
    with pytest.raises(ValueError, match=rf"truth has 11 at place 0, {AT} truth.loc\[x.index\]"):
        read_run("gmm", (x,), {"num_clusters": 2}, "em", truth=moved(truth))
    assert read_run("gmm", (x,), {"num_clusters": 2}, "em", truth=truth).truth is not None
