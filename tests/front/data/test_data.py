"""Data sets and simulated links."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from sidebayes import SideBayesWarning, load_dataset, simulate_links
from sidebayes.data.datasets import names
from sidebayes.data.frames import no_numbers


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("iris", (150, 4), 3),
        ("wine", (178, 13), 3),
        ("breast_cancer", (569, 30), 2),
        ("digits", (1797, 64), 10),
    ],
)
def test_built_in(name, shape, classes):
    data = load_dataset(name)
    assert data.x.shape == shape
    assert data.num_classes == classes
    assert len(data.feature_names) == shape[1]


@pytest.mark.parametrize(
    "name",
    ["art1", "art2", "art3", "doughnut", "four_gaussians", "noisy_xor", "two_spirals"],
)
def test_simulated(name):
    first, again, other = (load_dataset(name, num_points=60, seed=s) for s in (1, 1, 2))
    assert first.x.shape == (60, 2)
    assert np.bincount(first.labels).tolist() == [30, 30]
    np.testing.assert_array_equal(first.x, again.x)
    assert np.abs(first.x - other.x).max() > 0.1


def test_generators_have_the_shape_they_claim():
    doughnut = load_dataset("doughnut", num_points=400)
    radius = np.linalg.norm(doughnut.x, axis=1)
    assert radius[doughnut.labels == 0].max() <= 1.0
    assert radius[doughnut.labels == 1].mean() == pytest.approx(3.0, abs=0.1)
    xor = load_dataset("noisy_xor", num_points=2000)
    agreement = np.mean((xor.x.prod(axis=1) > 0) == (xor.labels == 1))
    assert agreement > 0.9
    four = load_dataset("four_gaussians", num_points=400)
    assert np.mean((four.x[:, 0] > 0) == (four.labels == 1)) > 0.98
    art1 = load_dataset("art1", num_points=2000)
    means = [art1.x[art1.labels == k].mean(axis=0)[1] for k in (0, 1)]
    np.testing.assert_allclose(means, [1.2, -1.2], atol=0.1)


def test_crabs_have_two_kinds_of_classes():
    species, sex = load_dataset("crabs"), load_dataset("crabs", label="sex")
    assert "crabs" in names()
    np.testing.assert_array_equal(species.x, sex.x)
    assert species.x.shape == (200, 5)
    assert species.feature_names[0] == "frontal lobe (mm)"
    # fifty of each sex of each species, and neither tells the other
    assert (np.bincount(2 * species.labels + sex.labels) == 50).all()
    # facts of the table in MASS: the first animal, and the smallest and largest carapace
    np.testing.assert_array_equal(species.x[0], [8.1, 6.7, 16.1, 19.0, 7.0])
    assert (species.x[:, 2].min(), species.x[:, 2].max()) == (14.7, 47.6)
    assert load_dataset("crabs", drop=["body depth (mm)"]).x.shape == (200, 4)
    with pytest.raises(ValueError, match="no column 'colour'"):
        load_dataset("crabs", label="colour")


def test_folder_and_files(tmp_path, monkeypatch):
    table = pd.DataFrame({"a": [1.0, 2, 3], "b": [3.0, 1, 2], "label": ["u", "v", "u"]})
    table.to_csv(tmp_path / "mine.csv", index=False)
    table.drop(columns="label").to_csv(tmp_path / "plain.csv.gz", index=False)
    monkeypatch.setenv("SIDEBAYES_DATA", str(tmp_path))
    assert {"mine", "plain", "iris"} <= set(names())
    mine = load_dataset("mine")
    assert mine.labels.tolist() == [0, 1, 0]
    assert mine.feature_names == ["a", "b"]
    assert load_dataset("plain").labels is None
    assert load_dataset(str(tmp_path / "mine.csv")).x.shape == (3, 2)
    monkeypatch.setenv("SIDEBAYES_DATA", str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="is no folder"):
        load_dataset("mine")


def test_standardized():
    x = load_dataset("wine").standardized().x
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x.std(axis=0), 1)


@pytest.mark.parametrize("disjoint", [False, True])
def test_links_are_true_but_for_the_flips(disjoint):
    labels = load_dataset("iris").labels
    links = simulate_links(labels, 60, flip_rate=0.1, weight=1.5, disjoint=disjoint, seed=3)
    assert links.num_links == 60
    assert (np.abs(links.weights) == 1.5).all()
    truth = labels[links.pairs[:, 0]] == labels[links.pairs[:, 1]]
    assert np.sum(truth != links.same) == 6
    if disjoint:
        assert len(np.unique(links.pairs)) == 120


def test_links_cover_all_pairs_evenly():
    labels = np.zeros(6, int)
    every = simulate_links(labels, 15)
    assert len({tuple(p) for p in every.pairs.tolist()}) == 15
    count = np.zeros((6, 6))
    for seed in range(600):
        (i, j), *_ = simulate_links(labels, 1, seed=seed).pairs.tolist()
        count[i, j] += 1
    drawn = count[np.triu_indices(6, 1)]
    chi_squared = np.sum((drawn - 40) ** 2 / 40)
    assert chi_squared < 36.1  # 0.999 quantile with 14 degrees of freedom


def test_a_first_column_that_counts_few_rows_is_left_out_too(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(",a,b\n0,1.5,2\n1,2.5,1\n2,0.5,3\n")
    with pytest.warns(SideBayesWarning, match="has no name and counts the rows"):
        assert load_dataset(str(path)).feature_names == ["a", "b"]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_entries_that_are_no_numbers_are_shown_with_their_line(ending, tmp_path):
    path = tmp_path / f"table{ending}"
    opened = gzip.open if ending.endswith("gz") else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        file.write('note,u,kind\n"two\nlines",1,a\n\nx,"1,234",b\ny,.,b\n')
    said = r"columns \['u'\] are not numbers \('u' holds '1,234' in line 5\)\. If one holds the classes"
    with pytest.raises(ValueError, match=said):
        load_dataset(str(path), label="kind", drop=["note"])


def test_rows_of_tables_without_lines_are_counted(tmp_path):
    table = pd.DataFrame({"u": [None, "1.5", "5%"], "day": pd.to_datetime(["2024-01-01"] * 3)})
    assert no_numbers(table, tmp_path / "a.parquet") == " ('u' holds '5%' in row 2 (from 0 on))"
    assert no_numbers(table[["day"]], None) == ""


def test_numbers_that_repeat_in_the_first_line_are_no_names(tmp_path):
    (tmp_path / "table.csv").write_text("0,0,2\n3,4,5\n")
    with pytest.raises(
        ValueError, match="is taken for the names of columns, and these are numbers"
    ):
        load_dataset(str(tmp_path / "table.csv"))
