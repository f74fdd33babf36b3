"""The example of partitioned mixtures says what its docstring says."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "mcp.py"))


@pytest.mark.slow
def test_shared_rule_turns_the_classes(tmp_path, monkeypatch, capsys):
    out = tmp_path / "mcp.png"
    monkeypatch.setattr("sys.argv", ["mcp.py", "-o", str(out)])
    EXAMPLE["main"]()
    printed = [line for line in capsys.readouterr().out.splitlines() if "held out" in line]
    field, rule, found = (float(line.split()[-1]) for line in printed)
    assert field < 0.6
    assert min(rule, found) > 0.95
    assert out.stat().st_size > 10_000
