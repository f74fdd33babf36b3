"""Names, codes and missing landmarks in files of landmarks stay what the files say."""

import warnings

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb

X = np.random.default_rng(0).normal(size=(3, 4, 2))


def rows(places):
    return "\n".join(f"{a!r} {b!r}" for a, b in places.tolist())


def tps(path, names, after=""):
    blocks = (f"LM=4\n{rows(x)}\nID={n}\n{after}" for x, n in zip(X, names, strict=True))
    path.write_text("".join(blocks))
    return path


def morphologika(path, names, codes):
    labels = "\n".join(f"m {code}" for code in codes)
    head = "[individuals]\n3\n[landmarks]\n4\n[dimensions]\n2\n[names]\n" + "\n".join(names)
    body = (
        f"\n[labels]\nsex code\n[labelvalues]\n{labels}\n[rawpoints]\n{rows(np.concatenate(X))}\n"
    )
    path.write_text(head + body)
    return path


@pytest.mark.parametrize("names", [["001", "002", "010"], ["1", "01", "2"], ["00", "0", "1"]])
def test_names_with_zeros_before_them_stay(tmp_path, names):
    marks = sb.read_landmarks(tps(tmp_path / "a.tps", names))
    assert list(marks.names) == sorted(names)
    np.testing.assert_array_equal(marks.to_array(), X[np.argsort(names)])
    marks.write_tps(tmp_path / "b.tps")
    assert list(sb.read_landmarks(tmp_path / "b.tps").names) == sorted(names)
    found = sb.read_landmarks(morphologika(tmp_path / "c.txt", names, names))
    assert list(found.names) == sorted(names)
    assert found.covariates["code"].tolist() == sorted(names)


def test_names_that_are_numbers_are_numbers(tmp_path):
    assert sb.read_landmarks(tps(tmp_path / "a.tps", ["10", "0", "9"])).names.tolist() == [0, 9, 10]
    found = sb.read_landmarks(morphologika(tmp_path / "c.txt", "abc", ["0.5", "0", "10"]))
    assert found.covariates["code"].tolist() == [0.5, 0.0, 10.0]


@pytest.mark.parametrize("wide", [False, True])
def test_codes_in_tables_stay(tmp_path, wide):
    places = X.reshape(3, 8) if wide else X.reshape(12, 2)
    columns = [f"{axis}{n}" for n in range(1, 5) for axis in "xy"] if wide else ["x", "y"]
    table = pd.DataFrame(places, columns=columns)
    each = 1 if wide else 4
    own = {"individual": list("abc"), "code": ["01", "02", "10"], "number": [3, 1, 2]}
    own |= {"old": [True, False, True], "age": [1.5, 2.0, 3.0]}
    table = table.assign(**{name: np.repeat(values, each) for name, values in own.items()})
    if not wide:
        table["landmark"] = np.tile(np.arange(4), 3)
    table.to_csv(tmp_path / "t.csv", index=False)
    found = sb.read_landmarks(tmp_path / "t.csv").covariates
    for name in ("code", "number", "old", "age"):
        assert found[name].tolist() == own[name]


def test_no_curves_are_left_out_where_there_are_none(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb.read_landmarks(tps(tmp_path / "a.tps", "abc", "CURVES=0\nOUTLINES=0\n"))
    with pytest.warns(sb.SideBayesWarning, match="curves of 3 individuals are left out"):
        sb.read_landmarks(tps(tmp_path / "b.tps", "abc", "CURVES=1\nPOINTS=2\n0 0\n1 1\n"))
    with pytest.raises(ValueError, match=r"line 7: the number of curves, CURVES=, is 'two'"):
        sb.read_landmarks(tps(tmp_path / "c.tps", "abc", "CURVES=two\n"))


def test_missing_landmarks_are_written_as_NA(tmp_path):
    x = np.concatenate([X, X], axis=2)[..., :3]
    for own in (X.copy(), x):
        own[1, 2] = np.nan
        sb.Landmarks.from_array(own, subjects=list("abc")).write_tps(tmp_path / "a.tps")
        np.testing.assert_array_equal(sb.read_landmarks(tmp_path / "a.tps").to_array(), own)
