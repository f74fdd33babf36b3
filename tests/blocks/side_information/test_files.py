"""Files are written whole or not at all, and refusals name the path."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from sidebayes.common import files
from sidebayes.common.files import (
    TABLES,
    check_writable,
    read_table,
    write_table,
    write_whole,
)

LIMITED = """
import resource, sys
from sidebayes.common.files import write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_whole(sys.argv[1], bytes(5000))
except OSError as error:
    print(error.errno, error)
"""


def test_disk_that_takes_no_more_leaves_the_old_file(tmp_path):
    pytest.importorskip("resource")  # of POSIX systems
    path = tmp_path / "old"
    path.write_bytes(b"worth keeping")
    command = [sys.executable, "-c", LIMITED, str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.startswith(f"{errno.EFBIG} ")
    assert f"{path} could not be written" in out
    assert "as before" in out
    assert path.read_bytes() == b"worth keeping"
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_every_step_may_fail(tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "new"
    monkeypatch.setattr(files.os, step, full)
    with pytest.raises(OSError, match="new could not be written .No space left.*nothing was left"):
        write_whole(path, b"1")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    assert write_whole(str(path), b"2").read_bytes() == b"2"


def test_the_new_file_takes_mode_and_place_of_the_old(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, b"new", aside=tmp_path / "before")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (tmp_path / "before").read_bytes() == b"old"
    write_whole("/dev/null", b"gone")  # a device is written to, not replaced
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_refusals(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for bad, error, message in (
        (3, TypeError, "path = 3 is no path"),
        ("", ValueError, "names no file"),
        ("a\0b", ValueError, "names no file"),
        ("x" * 5000, ValueError, "too long"),
        (tmp_path, ValueError, "is a folder; name a file in it"),
        (tmp_path / "no" / "a", ValueError, "there is no folder .*no; create it first"),
        (tmp_path / "file" / "a" / "b", ValueError, "file is a file; name a folder in its place"),
    ):
        with pytest.raises(error, match=message):
            check_writable(bad)
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="may not be written to"):
        check_writable(tmp_path / "a")


def test_tables_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "empty.csv").touch()
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1,2,3,4\n")
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "cut.csv.gz").write_bytes(b"\x1f\x8b\x08\x00")
    for name in ("empty.csv", "ragged.csv", "bytes.csv", "cut.csv.gz"):
        with pytest.raises(ValueError, match=f"{name} could not be read as a table"):
            read_table(tmp_path / name)
    with pytest.raises(ValueError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(ValueError, match="there is no file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"a.parquet needs pyarrow.*sidebayes\[tables\]"):
        read_table(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("größe,b\n1,2\n".encode("latin-1"), "it is not in UTF-8.; save it as CSV in UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "it is not in UTF-8.; save it as CSV in UTF-8"),
        (b"a,b\n1,2\n1,2,3,4\n", "line 3 has 4 entries, and the lines before it 2.; correct that"),
        (b"# made by X\na,b\n1,2\n", "first line of .* is a comment, # made by X; delete it"),
        (b"a,b, a\n1,2,3\n", r"the columns of table.csv repeat \['a'\]; give every one a name"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(content, message, tmp_path):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "table.csv")


@pytest.mark.parametrize("ending", TABLES)
def test_tables_come_back(tmp_path, ending):
    table = pd.DataFrame({"i": [0, 1], "weight": [1.5, np.inf]})
    write_table(tmp_path / f"a{ending}", table)
    pd.testing.assert_frame_equal(read_table(tmp_path / f"a{ending}"), table)
    named = table.set_axis(["u", "v"])
    write_table(tmp_path / f"b{ending}", named, index_label="fit")
    assert read_table(tmp_path / f"b{ending}")["fit"].tolist() == ["u", "v"]
