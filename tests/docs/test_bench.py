"""The table of speeds in the docs is that of what was measured."""

from __future__ import annotations

import json

from benchmarks import bench


def test_the_page_has_the_table_of_the_file():
    found = json.loads(bench.FILE.read_text())
    (table,) = (part[0] for part in bench.TABLE.finditer(bench.PAGE.read_text()))
    assert bench.table(found) in table


def test_every_limit_has_a_figure():
    found = json.loads(bench.FILE.read_text())["tasks"]
    assert {limit.task for limit in bench.LIMITS} == bench.TASKS.keys() == found.keys()
    assert all(found[limit.task][limit.figure] > 0 for limit in bench.LIMITS)


def test_a_limit_is_kept_on_its_side():
    least = bench.Limit("", "", "", 20, "at least")
    assert least.met(21)
    assert not least.met(19)
    most = bench.Limit("", "", "", 1.5)
    assert most.met(1.4)
    assert not most.met(1.6)
