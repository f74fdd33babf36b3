"""Without an optional library, what needs it names the command that installs it."""

from __future__ import annotations

import sys
from importlib.metadata import requires

import numpy as np
import pandas as pd
import pytest
from packaging.requirements import Requirement

import sidebayes
from tests.support.draws import at_one

TABLE = pd.DataFrame({"y": np.arange(6.0), "t": [0, 1, 2] * 2, "who": list("aaabbb")})
FORMULA = "y ~ t + (1 | who)"
POINTS = np.arange(12.0).reshape(6, 2) ** 2


def write_zarr():
    """Labels of a table on disk."""
    np.save("points.npy", POINTS)
    known = at_one({"weights": [1.0], "mean": [[55.0, 65.0]], "covariance": [np.eye(2)]})
    fit = sidebayes.fit("gmm", POINTS, num_clusters=1, engine=known, progress=False)
    fit.predict(sidebayes.scan("points.npy"), to="labels.zarr")


NEEDS = {
    "formulae": [lambda: sidebayes.design(FORMULA, TABLE)],
    "blackjax": [
        lambda: sidebayes.fit("gmm", POINTS, num_clusters=1, engine="nested", progress=False),
        lambda: sidebayes.fit("gmm", POINTS, num_clusters=1, engine="pathfinder", progress=False),
        lambda: sidebayes.fit("gmm", POINTS, num_clusters=1, engine="mclmc", progress=False),
    ],
    "trimesh": [lambda: sidebayes.read_landmarks("skull.ply")],
    "pyarrow": [
        lambda: sidebayes.load_dataset("table.parquet"),
        lambda: sidebayes.load_dataset("table.feather"),
        lambda: sidebayes.Links.must_link([(0, 1)]).write("links.parquet"),
        lambda: sidebayes.scan("table.parquet"),
    ],
    "zarr": [write_zarr],
}


def optional_libraries():
    """Libraries that a user's extras bring, and the extra of each."""
    wanted = {}
    for text in requires("sidebayes"):
        requirement = Requirement(text)
        for extra in ("formulas", "meshes", "sampling", "tables"):
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                wanted[requirement.name] = extra
    return wanted


def test_every_optional_library_is_tried():
    assert optional_libraries().keys() == NEEDS.keys()


@pytest.mark.parametrize(
    ("library", "use"), [(n, use) for n, uses in NEEDS.items() for use in uses]
)
def test_the_error_names_the_command(library, use, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("table.parquet", "table.feather", "skull.ply"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, library, None)
    extra = optional_libraries()[library]
    with pytest.raises(ImportError, match=rf"pip install 'sidebayes\[{extra}\]'"):
        use()
