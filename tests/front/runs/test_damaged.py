"""Files of fits that were damaged, cut or changed: one error, which names the file."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import xarray as xr

import sidebayes as sb
from sidebayes.runs.record import parse

X = np.random.default_rng(0).normal(size=(12, 2))


@pytest.fixture(scope="module")
def fit():
    engine = sb.EM(num_restarts=1, max_steps=3)
    links = sb.Links.must_link([(0, 1)])
    given = {"num_clusters": 2, "covariance": "spherical", "engine": engine}
    return sb.fit("ppc", X, links, progress=False, **given)


@pytest.fixture(scope="module")
def saved(fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "fit.nc"
    fit.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def plain(fit):
    """The file written by xarray, without a checksum."""
    return bytes(fit.tree.to_netcdf(engine="h5netcdf"))


@pytest.fixture
def path(tmp_path, saved):
    (tmp_path / "fit.nc").write_bytes(saved)
    return tmp_path / "fit.nc"


def changed(path, plain, change):
    """The file without a checksum, after a change by h5py."""
    path.write_bytes(plain)
    with h5py.File(path, "a") as file:
        change(file)
    return path


def test_a_whole_file_is_read(path, fit, plain):
    np.testing.assert_array_equal(sb.load(path).labels(), fit.labels())
    tree = xr.open_datatree(path, engine="h5netcdf")
    assert tree["posterior"]["mean"].shape == (1, 1, 2, 2)
    tree.close()
    assert sb.load(changed(path, plain, lambda file: None)).labels().shape == (12,)


def test_every_changed_byte_shows(path):
    content = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(content) - 100, 40).tolist():
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"fit\.nc is damaged: its checksum"):
            sb.load(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.99])
def test_cut_files(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"fit\.nc is no NetCDF file, or is damaged"):
        sb.load(path)


LOST = [
    "posterior",
    "sample_stats",
    "sample_stats/lp",
    "posterior/chain",
    "observed_data",
    "observed_data/x",
    "constant_data/links",
    "responsibilities/prob",
    "fit_info/objective",
]


@pytest.mark.parametrize("name", LOST)
def test_what_is_missing(path, plain, name):
    with pytest.raises(
        ValueError, match=r"fit\.nc (cannot be used|is no NetCDF file, or is damaged)"
    ):
        sb.load(changed(path, plain, lambda file: file.__delitem__(name)))


ATTRIBUTES = {
    "sidebayes_method": ("junk", 5),
    "sidebayes_options": ("", "junk", 5, "[1]", '{"x": 1}'),
    "sidebayes_engine": ("", "junk", 5, "[1]", "{}"),
    "sidebayes_sets": ("", "junk", 5),
    "sidebayes_columns": ("", "junk", 5, "[1]", "null", '{"x": 1}'),
    "sidebayes_seed": ("", "junk", "[1]"),
    "sidebayes_dtype": ("", "junk", "float16"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_that_were_changed(path, saved, plain, name):
    for value in ATTRIBUTES[name]:
        path.write_bytes(saved)
        with pytest.raises(ValueError, match=r"fit\.nc cannot be used"):
            sb.load(changed(path, plain, lambda f, value=value: f.attrs.__setitem__(name, value)))
    if name not in ("sidebayes_method", "sidebayes_columns"):
        path.write_bytes(saved)
        with pytest.raises(ValueError, match=rf"fit\.nc cannot be used.*{name}"):
            sb.load(changed(path, plain, lambda file: file.attrs.__delitem__(name)))


def test_other_paths(tmp_path):
    for given, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "none.nc", "there is no file"),
        ("", "names no file"),
        ("a\0b", "names no file"),
    ):
        with pytest.raises(ValueError, match=message):
            sb.load(given)
    with pytest.raises(TypeError, match="is no path"):
        sb.load(3)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((10**12,), "f8"), ((10**6, 10**6), "i4"), ((50,), "S500000000")]
)
def test_no_room_is_made_for_what_a_file_only_declares(path, plain, shape, dtype):
    def declare(file):
        file["posterior"].create_dataset("huge", shape, dtype)

    with pytest.raises(ValueError, match=r"fit\.nc is no NetCDF.*declares arrays far larger"):
        sb.load(changed(path, plain, declare))


def test_text_is_as_wide_as_its_longest_entry():
    text = '{"names": {"array": ["a", "bcd"], "shape": [2], "dtype": "<U500000000"}}'
    names = parse(text)[0]["names"]
    assert names.tolist() == ["a", "bcd"]
    assert names.dtype == "<U3"
