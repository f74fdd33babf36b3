"""Examples in docstrings run as printed, and print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ["sidebayes", "models", "guides", "diagnostics"]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
EXAMPLES = [name for name, text in MODULES.items() if ">>> " in text]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = name if name.startswith("sidebayes") else f"sidebayes.{name}"
    result = doctest.testmod(importlib.import_module(own))
    assert result.attempted
    assert not result.failed, capsys.readouterr().out


def test_no_example_is_skipped():
    assert [name for name in EXAMPLES if "+SKIP" in MODULES[name]] == []
