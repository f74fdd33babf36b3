"""Whatever writes a file leaves the old one as it was when it cannot write the new."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sidebayes.diagnostics.pictures.report import write_report
from sidebayes.guides.transformers.isomap.state import write_state
from typer.testing import CliRunner

import sidebayes
from sidebayes.cli import app
from sidebayes.common.files import PAGE, check_writable

SCRIPT = """
import resource, sys
from pathlib import Path
import sidebayes as sb
from sidebayes.diagnostics.pictures.report import write_report

data = sb.load_dataset("iris")
links = sb.simulate_links(data.labels, 100)
engine = sb.EM(num_restarts=1, max_steps=2)
fit = sb.fit("gmm", data.x, num_clusters=2, engine=engine, progress=False)
writers = {
    "fit.nc": fit.save,
    "page.html": lambda path: write_report({"em": fit}, path),
    "links.csv": links.write,
}
folder = Path(sys.argv[1])
whole = {}
for name, write in writers.items():
    write(folder / name)
    whole[name] = (folder / name).read_bytes()
smallest = min(map(len, whole.values()))
resource.setrlimit(resource.RLIMIT_FSIZE, (smallest // 2, smallest // 2))
for name, write in writers.items():
    try:
        write(folder / name)
    except OSError as error:
        print(error)
    assert (folder / name).read_bytes() == whole[name]
assert sorted(path.name for path in folder.iterdir()) == sorted(whole)
"""


def test_a_full_disk_costs_no_file_and_no_process(tmp_path):
    pytest.importorskip("resource")  # of POSIX systems
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr  # HDF5 crashed the process
    for name in ("fit.nc", "page.html", "links.csv"):
        assert f"{tmp_path / name} could not be written (File too large)" in run.stdout


COMMANDS = {
    "fit": ["fit", "gmm", "no_such_data", "--out"],
    "compare": ["compare", "no_such.nc", "--csv"],
    "report": ["report", "no_such.nc", "--out"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_look_at_the_path_before_they_work(command, tmp_path):
    for target, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "a" / "b", "there is no folder"),
    ):
        result = CliRunner().invoke(app, [*COMMANDS[command], str(target)])
        assert result.exit_code == 2
        assert message in result.stderr


def test_a_fit_replaces_a_fit_and_no_other_file(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("a,b\n1,2\n")
    engine = sidebayes.EM(num_restarts=1, max_steps=2)
    x = sidebayes.load_dataset("iris").x
    fit = sidebayes.fit("gmm", x, num_clusters=2, engine=engine, progress=False)
    with pytest.raises(ValueError, match="points.csv is a file of another kind"):
        fit.save(path)
    result = CliRunner().invoke(app, ["fit", "gmm", "iris", "--out", str(path)])
    assert result.exit_code == 2
    assert "a file of another kind" in result.stderr
    assert path.read_text() == "a,b\n1,2\n"
    path = tmp_path / "fit.nc"
    path.write_bytes(b"")  # as `tempfile` makes them
    for _ in range(2):
        fit.save(path)
    assert sidebayes.load(path).params.keys() == fit.params.keys()


@pytest.mark.parametrize("command", ["compare", "report"])
def test_commands_replace_what_they_write_and_no_other_file(command, tmp_path):
    goal = tmp_path / "points.csv"
    goal.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, [*COMMANDS[command], str(goal)])
    assert result.exit_code == 2
    assert "a file of another kind" in result.stderr
    assert goal.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    ("command", "name", "told"),
    [
        ("report", "r.pdf", "is to hold a page of HTML; give a name that ends in .html or .htm"),
        ("fit", "fit.csv", "is to hold a fit, as NetCDF; give a name that ends in .nc or"),
        ("compare", "table.xlsx", "is to hold a table; give a name that ends in .csv or"),
    ],
)
def test_names_end_as_the_files_that_they_name(command, name, told, tmp_path):
    result = CliRunner().invoke(app, [*COMMANDS[command], str(tmp_path / name)])
    assert result.exit_code == 2
    assert f"{name} ends in '{name[name.index('.') :]}', and {told}" in result.stderr
    assert not list(tmp_path.iterdir())


def test_names_whose_ending_says_nothing_may_hold_any_kind(tmp_path):
    for name in ("report", "R.HTML", "report-0.1"):
        assert check_writable(tmp_path / name, PAGE) == tmp_path / name
    with pytest.raises(ValueError, match="ends in '.pdf', and is to hold a page of HTML"):
        write_report({}, tmp_path / "r.pdf")


def test_maps_and_landmarks_replace_nothing_else(tmp_path):
    marks = sidebayes.Landmarks.from_array(np.zeros((2, 3, 2)) + np.arange(3)[:, None])
    writers = {".npz": lambda path: write_state(path, {}, None, None), ".tps": marks.write_tps}
    for ending, write in writers.items():
        with pytest.raises(ValueError, match=f"ends in '.nc', .* a name that ends in {ending}"):
            write(tmp_path / "a.nc")
        taken = tmp_path / f"taken{ending}"
        taken.write_text("a,b\n1,2\n")
        with pytest.raises(ValueError, match="a file of another kind"):
            write(taken)
    with pytest.raises(ValueError, match="ends in '.tps', and is to hold a page of HTML"):
        check_writable(tmp_path / "a.tps", PAGE)
    for _ in range(2):  # of its own kind, which may be replaced
        marks.write_tps(tmp_path / "own.tps")


def test_labels_replace_labels_and_links_links(tmp_path):
    goal, links = tmp_path / "points.csv", sidebayes.Links.must_link([(0, 1)])
    goal.write_text("a,b\n1,2\n")
    command = ["fit", "gmm", "iris", "--num-clusters", "2", "--labels", str(goal)]
    result = CliRunner().invoke(app, [*command, "--engine", "no_engine"])
    assert "a file of another kind" in result.stderr  # before the fit is
    with pytest.raises(ValueError, match="a file of another kind"):
        links.write(goal)
    assert goal.read_text() == "a,b\n1,2\n"
    goal.write_text("row,cluster,cluster_0,cluster_1\n0,0,1.0,0.0\n")
    result = CliRunner().invoke(app, [*command, "--engine", "no_engine"])
    assert "no_engine" in result.stderr
    for _ in range(2):
        links.write(tmp_path / "links.csv")


def test_demo_needs_a_folder(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        result = CliRunner().invoke(app, ["demo", "--out", str(out)])
        assert result.exit_code == 2
        assert "file is a file; name a folder" in result.stderr


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "links.parquet").touch()
    with pytest.raises(ImportError, match="pip install"):
        sidebayes.Links.empty().write(tmp_path / "links.parquet")
    result = CliRunner().invoke(app, ["fit", "gmm", str(tmp_path / "links.parquet")])
    assert result.exit_code == 2
    assert "pyarrow, which is not installed" in result.stderr
