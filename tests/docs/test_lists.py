"""Lists of methods and engines in the pages are those of the cards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sidebayes as sb
from sidebayes.runs.zoo import ENGINES

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(\w+)` \|.*?\|.*?\| (.*?) \|.*?\|$", re.MULTILINE)
LISTED = {
    name: tuple(engines.split(", "))
    for name, engines in ROW.findall((ROOT / "README.md").read_text())
}


def test_readme_lists_every_method():
    assert LISTED.keys() == sb.CARDS.keys()


@pytest.mark.parametrize("name", sb.CARDS)
def test_engines_and_pages_of_a_method(name):
    assert LISTED[name] == tuple(sb.CARDS[name].engines)
    assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()
    assert f"methods/{name}.md" in (ROOT / "docs" / "index.md").read_text()


@pytest.mark.parametrize(
    "page", [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")], ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [one for one in targets if not (page.parent / one).exists()] == []


ENGINE_ROW = re.compile(r"^\| \[?`(\w+)`.*\| ([^|]+) \|$", re.MULTILINE)
METHODS = dict(ENGINE_ROW.findall((ROOT / "docs" / "engines.md").read_text().split("\n\n## ")[0]))


def test_every_engine_is_listed():
    assert METHODS.keys() == {path.partition(":")[2] for path in ENGINES.values()}


@pytest.mark.parametrize("engine", ENGINES)
def test_methods_of_an_engine(engine):
    suits = [name for name, card in sb.CARDS.items() if engine in card.engines]
    lacking = [name for name in sb.CARDS if name not in suits]
    listed = METHODS[ENGINES[engine].partition(":")[2]]
    if not suits:
        assert listed == "none; models of your own"
    elif listed.startswith("all"):
        assert listed.removeprefix("all").removeprefix(" but ").split(", ") == (lacking or [""])
    else:
        assert listed.split(", ") == suits


def test_architecture_names_files_and_folders_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    files = {
        str(path.relative_to(ROOT)) for path in ROOT.glob("**/*.py") if ".venv" not in path.parts
    }
    named = set(re.findall(r"`([\w/]+\.pyi?)`", text)) - {"sidebayes/__init__.pyi"}
    assert [
        one
        for one in named
        if "NAME" not in one and not any(f.endswith(f"/{one}") or f == one for f in files)
    ] == []
    drawing = text.split("```")[1].splitlines()
    folders: list[str] = []
    for line in (line for line in drawing if re.match(r" *\w+/ ", line)):
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], line.split("/")[0].strip()]
        assert ROOT.joinpath(*folders).is_dir(), line
    drawn = {line.strip().split("/")[0] for line in drawing}
    packages = [
        path.parent
        for top in ("models", "guides", "diagnostics", "sidebayes")
        for path in (ROOT / top).rglob("__init__.py")
    ]
    assert {path.name for path in packages} <= drawn
