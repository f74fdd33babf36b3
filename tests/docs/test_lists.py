"""Lists of methods and engines in the pages are those of the cards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sidebayes as sb

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
