"""Tables of landmarks on the command line are read as `read_landmarks` reads them."""

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb
from sidebayes.commands.columns import NamedTable
from sidebayes.commands.given import Arguments, from_columns
from sidebayes.runs.zoo import find_card

ROWS = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["x", "y"])
ROWS.insert(0, "individual", np.repeat(list("dbca"), 5))
MARKS = {
    "from 0": [0, 1, 2, 3, 4],
    "from 1": [1, 2, 3, 4, 5],
    "by ten": [100, 90, 80, 70, 60],
    "names": ["tip", "base", "left", "right", "eye"],
}


def given(path):
    table = NamedTable.read(str(path), None, (), ["individual"])
    columns = {"x": ["x", "y"], "landmarks": ["landmark"]}
    to = Arguments(find_card("hierarchical_shape"))
    return from_columns(to, table, columns, "individual", ()).data


@pytest.mark.parametrize("kind", MARKS)
@pytest.mark.parametrize("mixed", [False, True])
def test_landmarks_are_numbered_as_read_landmarks_does(tmp_path, kind, mixed):
    table = ROWS.assign(landmark=np.tile(MARKS[kind], 4))
    table = table.sample(frac=1, random_state=0) if mixed else table
    table.to_csv(tmp_path / "long.csv", index=False)
    found, wanted = given(tmp_path / "long.csv"), sb.read_landmarks(tmp_path / "long.csv")
    numbers = np.asarray(found["landmarks"])
    np.testing.assert_array_equal(numbers, wanted.landmarks)
    np.testing.assert_array_equal(found["x"], wanted.x)
    assert sorted(set(numbers.tolist())) == [0, 1, 2, 3, 4]


def test_names_that_are_missing_or_occur_twice_are_named(tmp_path):
    names = np.tile(np.array(MARKS["names"], object), 4)
    names[7] = None
    ROWS.assign(landmark=names).to_csv(tmp_path / "gap.csv", index=False)
    with pytest.raises(ValueError, match=r"\['landmark'\] have missing .* the first is row 7"):
        given(tmp_path / "gap.csv")
    names[7] = "tip"
    ROWS.assign(landmark=names).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(ValueError, match="individual 'b' has 'tip' twice, again in row 7"):
        given(tmp_path / "twice.csv")


def test_files_of_landmarks_say_how_they_become_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marks = sb.Landmarks.from_array(np.random.default_rng(0).normal(size=(3, 4, 2)))
    marks.write_tps("a.tps")
    with pytest.raises(ValueError, match="no table that is read") as refused:
        NamedTable.read("a.tps", None, ())
    remedy = str(refused.value).partition("such as that of ")[2]
    exec(remedy, {"sidebayes": sb})
    found = given("landmarks.csv")
    np.testing.assert_array_equal(found["landmarks"], marks.landmarks)
    np.testing.assert_allclose(found["x"], marks.x)
