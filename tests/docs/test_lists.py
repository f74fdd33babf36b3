"""Lists of methods and engines in the pages are those of the cards."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import sidebayes as sb
from sidebayes.runs.transformers import TRANSFORMERS
from sidebayes.runs.zoo import ENGINES

ROOT = Path(__file__).resolve().parents[2]
LISTS = runpy.run_path(str(ROOT / ".ci" / "lists.py"))
REFERENCE = runpy.run_path(str(ROOT / ".ci" / "reference.py"))
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


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_are_exported_and_have_a_page(name):
    assert getattr(sb, name) is TRANSFORMERS[name].transformer
    pages = [page.read_text() for page in (ROOT / "docs" / "methods").glob("*.md")]
    assert any(f"`{name}`" in page for page in pages)


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


@pytest.mark.parametrize("page", LISTS["PAGES"])
def test_lists_are_those_of_the_cards(page):
    """`make lists` writes them; a method touches nothing by hand but its own files."""
    text = (ROOT / page).read_text()
    assert LISTS["PAGES"][page](text) == text


@pytest.mark.parametrize("page", REFERENCE["PAGES"])
def test_pages_of_names_and_options_are_those_of_the_docstrings(page):
    """`make lists` writes them; no name and no option is left out, nor without a sentence."""
    text = (ROOT / page).read_text()
    assert REFERENCE["PAGES"][page]() == text
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| `")]
    assert all(len(row[-1]) > 8 for row in rows), rows
    names = {row[0].strip("`") for row in rows}
    if page == "docs/names.md":
        assert names == {name for name in dir(sb) if not name.startswith("_")}


def test_a_method_enters_every_list(monkeypatch):
    card = replace(sb.CARDS["gmm"], name="toy", title="Counts in clusters", engines=("newton",))
    monkeypatch.setitem(sb.CARDS, "toy", card)
    for page, made in LISTS["PAGES"].items():
        assert "toy" in made((ROOT / page).read_text()), page


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


def test_dear_tests_exist_and_tests_that_run_stand_for_them():
    lines = [line.split("|") for line in (ROOT / "tests" / "dear.txt").read_text().splitlines()]
    dear = [name for name, _ in lines]
    assert len(dear) == len(set(dear))
    for name, stand_in in lines:
        file, _, test = name.partition("::")
        called = test.partition("[")[0].rpartition("::")[2]
        assert f"def {called}(" in (ROOT / "tests" / file).read_text(), name
        assert stand_in, name
        assert stand_in not in dear, name
