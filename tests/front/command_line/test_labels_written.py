"""What `sidebayes fit --labels` writes of clusters that known classes name."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from sidebayes.commands.fitting import Outcome, write_labels

PROB = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]])


@pytest.mark.parametrize(
    ("class_names", "written"),
    [
        (("tired", "awake"), ["class", "class_tired", "class_awake", "class_2"]),
        ((), []),  # classes that are known for the score alone
    ],
)
def test_clusters_that_known_classes_name_are_written_by_name(tmp_path, class_names, written):
    found = SimpleNamespace(
        has_labels=True,
        has_classes=False,
        class_names=class_names,
        labels=lambda: PROB.argmax(axis=1),
        responsibilities=lambda: PROB,
    )
    units = pd.Series(["ann", "bob", "cid"], name="who")
    write_labels(tmp_path / "l.csv", Outcome(found, ["tired", "awake"], units))
    table = pd.read_csv(tmp_path / "l.csv")
    assert list(table) == ["who", "cluster", "cluster_0", "cluster_1", "cluster_2", *written]
    if written:
        assert table["class"].tolist() == ["tired", "awake", "2"]
        np.testing.assert_allclose(table[written[1:]], PROB)
