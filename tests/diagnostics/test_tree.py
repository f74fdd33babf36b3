from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.tree import to_datatree
from sidebayes.guides.engines.base import EngineResult, Status

from .fakes import make_tree


@pytest.mark.parametrize(("chains", "draws", "stored"), [(1, 1, 1), (2, 30, 7)])
def test_a_tree_survives_netcdf(tmp_path, chains, draws, stored):
    tree, _ = make_tree(chains, draws, stored)
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "fit.nc", engine="h5netcdf") as opened:
        back = opened.load()
    assert set(back.children) == {
        "posterior",
        "sample_stats",
        "log_likelihood",
        "responsibilities",
        "observed_data",
        "constant_data",
        "fit_info",
    }
    for name, group in tree.children.items():
        xr.testing.assert_equal(group.to_dataset(), back[name].to_dataset())
    assert back["fit_info"].attrs["status"] == tree["fit_info"].attrs["status"]
    assert back["posterior"].attrs["point_estimate"] == (draws == 1)


def test_stored_draws_say_which_they_are():
    tree, _ = make_tree(2, 31, 4)
    assert tree["posterior"].sizes["draw"] == 31
    for group in ("responsibilities", "log_likelihood"):
        np.testing.assert_array_equal(tree[group]["draw"], [0, 10, 20, 30])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("responsibilities", (1, 3, 5, 2)),
        ("responsibilities", (2, 5, 2)),
        ("log_likelihood", (2, 3, 4)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name, shape):
    result = EngineResult(
        "nuts", {"weights": np.ones((2, 3, 2))}, {"lp": np.zeros((2, 3))}, np.empty((0, 0)),
        Status(True, "done"), {"compile": 0.0, "run": 0.0},
    )  # fmt: skip
    given = {"responsibilities": np.ones((2, 2, 5, 2)), "log_likelihood": np.ones((2, 2, 4))}
    rest = {"observed": {}, "constant": {}, "dims": {}, "attrs": {}}
    to_datatree(result, **given, **rest)
    with pytest.raises(ValueError, match=rf"{name} has shape .*expected"):
        to_datatree(result, **(given | {name: np.ones(shape)}), **rest)
    few = replace(result, sample_stats={"lp": np.zeros((2, 1))})
    with pytest.raises(ValueError, match="at most the 1 draws"):
        to_datatree(few, **given, **rest)
