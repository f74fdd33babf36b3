from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.sites import site_of
from sidebayes.diagnostics.tree import to_datatree
from sidebayes.guides.engines.base import EngineResult, Status

from .fakes import ROLES, make_tree


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


def build(result, responsibilities=None, log_likelihood=None, **given):
    """A tree of one observed site, or of those in a mapping."""
    if not isinstance(log_likelihood, dict):
        log_likelihood = {"x": log_likelihood}
    given = {"observed": {}, "constant": {}, "dims": {}, "attrs": {}} | given
    units = given.pop("unit_dims", dict.fromkeys(log_likelihood, "unit"))
    return to_datatree(
        result,
        responsibilities=responsibilities,
        log_likelihood=log_likelihood,
        unit_dims=units,
        **given,
    )


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
    build(result, **given)
    with pytest.raises(ValueError, match=rf"{name} '.*' has shape .*expected"):
        build(result, **(given | {name: np.ones(shape)}))
    few = replace(result, sample_stats={"lp": np.zeros((2, 1))})
    with pytest.raises(ValueError, match="at most the 1 draws"):
        build(few, **given)


def test_each_observed_site_has_units_of_its_own_and_sites_say_what_they_are():
    """Also of a model without labels, whose other latent variables have summaries."""
    result = EngineResult(
        "nuts", {"weights": np.ones((2, 3, 2)), "a": np.ones((2, 3))}, {"lp": np.zeros((2, 3))},
        np.empty((0, 0)), Status(True, "done"), {"compile": 0.0, "run": 0.0},
    )  # fmt: skip
    terms = {"x": np.ones((2, 2, 4)), "y": np.zeros((2, 2, 7))}
    tree = build(
        result,
        log_likelihood=terms,
        unit_dims={"x": "unit_rows", "y": "unit_people"},
        latents={"effects": (("people", "effect"), np.ones((2, 2, 5, 1)))},
        roles={"weights": "mixing_weights"},
    )
    assert dict(tree["log_likelihood"].sizes) == {
        "chain": 2, "draw": 2, "unit_rows": 4, "unit_people": 7,
    }  # fmt: skip
    np.testing.assert_array_equal(tree["log_likelihood"]["y"], terms["y"])
    np.testing.assert_array_equal(tree["latents"]["draw"], [0, 2])
    assert dict(tree["latents"].sizes) == {"chain": 2, "draw": 2, "people": 5, "effect": 1}
    assert "responsibilities" not in tree
    assert site_of(tree, "mixing_weights") == "weights"
    assert site_of(tree, "location") is None
    assert "role" not in tree["posterior"]["a"].attrs


def test_roles_survive_a_file(tmp_path):
    tree, _ = make_tree(2, 5)
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "fit.nc", engine="h5netcdf") as opened:
        back = opened.load()
    assert {role: site_of(back, role) for role in ROLES.values()} == {
        role: name for name, role in ROLES.items()
    }
