"""Files of landmarks: what was written is read, and what is malformed is named by its line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sidebayes import Landmarks, SideBayesWarning, read_landmarks

RNG = np.random.default_rng(0)
FLAT = RNG.normal(size=(3, 4, 2))
SOLID = RNG.normal(size=(3, 4, 3))


def written(folder, text, name="marks.txt"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("x", [FLAT, SOLID], ids=["2-D", "3-D"])
def test_tps_there_and_back(x, tmp_path):
    path = tmp_path / "wings.tps"
    Landmarks.from_array(x, subjects=[9, 10, 11]).write_tps(path)
    found = read_landmarks(path, units="mm")
    np.testing.assert_array_equal(found.to_array(), x)
    assert found.names.tolist() == [9, 10, 11]  # as numbers, else 10 would be first
    assert found.units == "mm"


def test_tps_of_tpsdig(tmp_path):
    text = "LM=3\n1 2\n3,4\n5.5 -6e0\nIMAGE=a.b.jpg\nSCALE=0.5\n\n"
    text += "lm=3\n1 2\nNA NA\n5 6\nIMAGE=c.JPG\nScale=2\nCOMMENT=none\n"
    found = read_landmarks(written(tmp_path, text))
    assert found.names.tolist() == ["a.b", "c"]
    np.testing.assert_array_equal(found.to_array()[0], [[0.5, 1], [1.5, 2], [2.75, -3]])
    assert found.present.tolist() == [[True] * 3, [True, False, True]]
    whole = read_landmarks(written(tmp_path, text), scale=False, missing=5)
    np.testing.assert_array_equal(whole.to_array()[0, :2], [[1, 2], [3, 4]])
    assert whole.present.sum(axis=1).tolist() == [3, 1]


def test_curves_are_left_out(tmp_path):
    text = "LM=2\n1 2\n3 4\nCURVES=1\nPOINTS=2\n9 9\n9 9\nID=7\nLM=2\n1 2\n3 4\nID=3\n"
    with pytest.warns(SideBayesWarning, match="curves of 1 individuals are left out"):
        found = read_landmarks(written(tmp_path, text))
    assert found.names.tolist() == [3, 7]


def nts(x, head, rows=("",) * 3, labels=""):
    table = [
        " ".join([row, *map(repr, one.ravel().tolist())]) for row, one in zip(rows, x, strict=True)
    ]
    body = "\n".join(table)
    return f'"a comment\n{head}\n{labels}{body}\n'


@pytest.mark.parametrize("x", [FLAT, SOLID], ids=["2-D", "3-D"])
@pytest.mark.parametrize("kind", ["", "L", "B"])
def test_nts(x, kind, tmp_path):
    axes = x.shape[2]
    names = ["b", "c", "d"]
    head = f"1 3{kind} {4 * axes} 0 dim={axes}"
    text = nts(x, head, names if kind == "B" else [""] * 3, "b c d\n" if kind == "L" else "")
    found = read_landmarks(written(tmp_path, text))
    np.testing.assert_allclose(found.to_array(), x)
    assert found.names.tolist() == (names if kind else [0, 1, 2])


def test_nts_of_landmark_editor(tmp_path):
    """Names of several words, one per line, and comments that begin with a single quote."""
    text = nts(FLAT, "1 3L 8 1 9999 Dim=2", labels="left wing 1\nleft wing 2\nright wing\n")
    found = read_landmarks(written(tmp_path, "'from Landmark\n" + text))
    assert found.names.tolist() == ["left wing 1", "left wing 2", "right wing"]
    np.testing.assert_allclose(found.to_array(), FLAT)


def test_nts_of_one_individual_each(tmp_path):
    paths = []
    for number, one in enumerate(SOLID):
        one = one.copy()
        one[number] = -99
        text = nts(one, "1 4 3 1 -99 DIM=3", [""] * 4)
        paths.append(written(tmp_path, text, f"skull{number}.nts"))
    found = read_landmarks(paths)
    assert found.names.tolist() == ["skull0", "skull1", "skull2"]
    np.testing.assert_array_equal(found.present, ~np.eye(3, 4, dtype=bool))


def morphologika(x, extra=""):
    count, landmarks, axes = x.shape
    rows = "\n".join(
        f"'{n}\n" + "\n".join(" ".join(map(repr, mark)) for mark in one.tolist())
        for n, one in enumerate(x)
    )
    return (
        f"[individuals]\n{count}\n[landmarks]\n{landmarks}\n[dimensions]\n{axes}\n[names]\nu\nv\nw\n"
        f"[labels]\nsex age\n[labelvalues]\nf 3\nm 4\nf 5\n{extra}[rawpoints]\n{rows}\n"
    )


@pytest.mark.parametrize("x", [FLAT, SOLID], ids=["2-D", "3-D"])
def test_morphologika(x, tmp_path):
    text = morphologika(x, "[groups]\nape 2 man 1\n")
    found = read_landmarks(written(tmp_path, text + "[wireframe]\n1 2\n2 3\n"))
    np.testing.assert_array_equal(found.to_array(), x)
    assert found.names.tolist() == ["u", "v", "w"]
    assert found.covariates["sex"].tolist() == ["f", "m", "f"]
    assert found.covariates["age"].tolist() == [3, 4, 5]
    assert found.covariates["group"].tolist() == ["ape", "ape", "man"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_long_table(kind, tmp_path):
    x = SOLID.copy()
    x[1, 2] = np.nan
    marks = Landmarks.from_array(x, subjects=list("cab"), covariates={"sex": list("mfm")})
    path = tmp_path / f"marks.{kind}"
    frame = marks.to_frame().sample(frac=1.0, random_state=1)  # in any order of rows
    frame = frame.assign(landmark=frame["landmark"].astype(int))
    (frame.to_csv if kind == "csv" else frame.to_parquet)(path, index=False)
    found = read_landmarks(path)
    np.testing.assert_array_equal(found.to_array(), marks.to_array())
    assert found.covariates.equals(marks.covariates)
    points = read_landmarks(path, corresponding=False)
    assert points.landmarks is None
    assert len(points.x) == 11


def test_named_landmarks_of_a_long_table(tmp_path):
    text = "Specimen,Landmark,X,Y\n1,tip,0,0\n1,eye,1,0\n2,tip,5,5\n2,eye,,\n"
    found = read_landmarks(written(tmp_path, text, "a.csv"), individual="Specimen")
    assert found.landmark_names == ("tip", "eye")
    assert found.present.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("x", [FLAT, SOLID], ids=["2-D", "3-D"])
def test_wide_table(x, tmp_path):
    names = [f"{axis}{n + 1}" for n in range(4) for axis in "xyz"[: x.shape[2]]]
    table = pd.DataFrame(x.reshape(3, -1), columns=names).assign(label=list("uvu"))
    table.loc[2, "y3"] = np.nan
    table.to_csv(tmp_path / "a.csv", index=False)
    found = read_landmarks(tmp_path / "a.csv")
    expected = x.copy()
    expected[2, 2] = np.nan
    np.testing.assert_allclose(found.to_array(), expected)
    assert found.covariates["label"].tolist() == ["u", "v", "u"]
    assert found.landmark_names == ("1", "2", "3", "4")


BAD = {
    "no key": ("LM=2\n1 2\n3 4\n5 6\n", "line 4: expected KEY=value"),
    "too few rows": ("LM=3\n1 2\n3 4\n", "line 1: 3 landmarks are announced, and 2 follow"),
    "a row short": ("LM=2\n1 2\n3\n", "line 3: expected 2 coordinates.*line 1; found '3'"),
    "next too early": (
        "LM=2\n1 2\nID=1\n",
        "line 3: expected 2 coordinates|line 3: 'ID=1' is no number",
    ),
    "no number": ("\nLM=2\n1 2\n3 4x\n", "line 4: '4x' is no number"),
    "no count": ("LM=two\n", "line 1: the number of landmarks, LM=, is 'two'"),
    "bad scale": ("LM=2\n1 2\n3 4\nSCALE=0\n", "line 4: SCALE=0; expected a number above 0"),
    "twice": (
        "LM=1\n1 2\nID=a\nLM=1\n1 2\nID=a\n",
        "line 4: the name 'a' occurs again, first in line 1",
    ),
    "other number": ("LM=1\n1 2\nID=a\nLM=2\n1 2\n3 4\n", "line 4: .*2 landmarks, the first 1"),
    "other axes": ("LM=1\n1 2\nLM3=1\n1 2 3\n", "line 3: .*3 coordinates, the first 2"),
    "one scale": ("LM=1\n1 2\nSCALE=2\nLM=1\n1 2\n", "line 4: .*no SCALE=, and others do"),
    "no landmarks": (
        "LM=0\nOUTLINES=1\nPOINTS=1\n1 2\nID=a\n",
        "line 1: .* has no landmarks; give some",
    ),
    "nts header": ("1 2 dim=2\n1 2\n", "line 1: expected a header"),
    "nts width": ("1 2 5 0 dim=2\n", "line 1: 5 columns are no whole number"),
    "nts end": (
        "1 2 4 0 dim=2\n1 2 3 4\n5 6 7\n",
        "line 3: the file ends after 7 entries.*2 rows of 4",
    ),
    "nts word": ("1 2 4 0 dim=2\n1 2 3 4\n5 6 z 8\n", "line 3: 'z' is no number"),
    "morphologika size": ("[individuals]\n3\n[landmarks]\nx\n", r"line 4: \[landmarks\] is 'x'"),
    "morphologika none": ("[individuals]\n3\n", r"section \[landmarks\] is missing"),
    "morphologika end": (
        "[individuals]\n1\n[landmarks]\n2\n[dimensions]\n2\n[rawpoints]\n'a\n1 2\n",
        "line 7: 2 landmarks are announced, and 1 follow",
    ),
    "empty": ("", "no file of landmarks that is known"),
    "something else": ("hello\n", "no file of landmarks that is known"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_files(name, tmp_path):
    text, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        read_landmarks(written(tmp_path, text))


BAD_TABLES = {
    "no number": (
        "individual,landmark,x,y\na,1,0,0\na,2,0,zero\n",
        "line 3: y = 'zero' is no number",
    ),
    "covariate": ("individual,landmark,x,y,sex\na,1,0,0,f\na,2,0,1,m\n", "line 3: 'sex' differs"),
    "individual": ("who,landmark,x,y\na,1,0,0\n", "no column 'individual'"),
    "unnamed": (
        "individual,landmark,x,y\na,1,0,0\n,2,0,1\n",
        "line 3: column 'individual' is empty",
    ),
    "twice": ("individual,landmark,x,y\na,1,0,0\na,1,0,1\n", "'a' has landmark 0 twice"),
    "lost": ("individual,landmark,x,y\na,1,0,0\nb,1,,1\n", "'b' has no landmark at all"),
    "wide gap": ("x1,y1,x2\n1,2,3\n", "lacks column 'y2'"),
    "neither": ("a,b\n1,2\n", "expected individual, landmark"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_malformed_tables(name, tmp_path):
    text, match = BAD_TABLES[name]
    with pytest.raises(ValueError, match=match):
        read_landmarks(written(tmp_path, text, "marks.csv"))


def test_paths(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_landmarks(tmp_path / "no.tps")
    with pytest.raises(ValueError, match="names no file"):
        read_landmarks([])
    one = written(tmp_path, "LM=1\n1 2\nID=0\n", "a.tps")
    two = written(tmp_path, "LM=1\n1 2\nID=0\n", "b.tps")
    assert read_landmarks([one, two]).names.tolist() == ["a: 0", "b: 0"]


def test_points_of_tps_without_correspondence(tmp_path):
    path = written(tmp_path, "LM=1\n1 2\nID=a\nLM=2\n1 2\n3 4\nID=b\n")
    assert len(read_landmarks(path, corresponding=False).x) == 3


@pytest.mark.parametrize("kind", ["ply", "obj"])
def test_meshes(kind, tmp_path):
    trimesh = pytest.importorskip("trimesh")
    for number in range(2):
        mesh = trimesh.creation.icosahedron()
        mesh.vertices = (1 + number) * np.asarray(mesh.vertices)
        mesh.export(tmp_path / f"skull{number}.{kind}")
    paths = sorted(tmp_path.glob(f"*.{kind}"))
    found = read_landmarks(paths)
    assert found.landmarks is None
    assert found.names.tolist() == ["skull0", "skull1"]
    x = read_landmarks(paths, corresponding=True).to_array()
    np.testing.assert_allclose(x[1], 2 * x[0], atol=1e-6)
    (tmp_path / f"broken.{kind}").write_text("nothing")
    with pytest.raises(ValueError, match="could not be read as a mesh|has no vertices"):
        read_landmarks(tmp_path / f"broken.{kind}")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "covariates"),
    [
        ("apes", (167, 8, 2), ["label"]),
        ("brains3d", (58, 24, 3), ["age", "handed", "grp", "label"]),
        ("rats_growth", (144, 8, 2), ["id", "time"]),
    ],
)
def test_folder_of_data(name, shape, covariates):
    marks = read_landmarks(Path(os.environ["SIDEBAYES_DATA"]) / f"shape_{name}.csv")
    assert marks.to_array().shape == shape
    assert list(marks.covariates) == covariates
    assert marks.aligned().distances.max() < 0.4
