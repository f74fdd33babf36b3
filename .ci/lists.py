"""Write the lists of methods in README.md and docs from the cards of the zoo.

Run with the Python of the development environment, or by `make lists`; `tests/docs/test_lists.py`
compares.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from sidebayes.runs.zoo import CARDS, ENGINES, Card

ROOT = Path(__file__).resolve().parents[1]
LINKS = {
    "any": "hard, soft, mixed",
    "hard": "hard",
    "priced": "priced pairs",
}


def source(card: Card) -> str:
    """Authors and year, three authors or more as "et al."."""
    authors, year = re.match(r"(.+?) \((\d{4})\)", card.reference).groups()
    first, *others = re.split(r", | and ", authors)
    names = f"{first} et al." if len(others) > 1 else authors
    return f"{names} {year}"


def side(card: Card) -> str:
    """Links that a method takes, and whether some classes may be known."""
    links = [LINKS[card.links]] if card.links != "none" else []
    links += ["groups"] if card.signature.of_kind("sets") else []
    classes = ["known classes"] if card.signature.of_kind("labels") else []
    return "; ".join([", ".join(links)] * bool(links) + classes) or "none"


def methods(text: str) -> str:
    """README with its table of methods."""
    rows = [
        f"| `{card.name}` | {card.title} | {side(card)} | {', '.join(card.engines)} | {source(card)} |"
        for card in CARDS.values()
    ]
    head = (
        "| method | what it assumes | links | engines | source |\n| --- | --- | --- | --- | --- |\n"
    )
    return re.sub(re.escape(head) + r"(\|.*\n)+", lambda _: head + "\n".join(rows) + "\n", text)


def suited(engine: str) -> str:
    """Methods that an engine suits."""
    suits = [name for name, card in CARDS.items() if engine in card.engines]
    lacking = [name for name in CARDS if name not in suits]
    if not suits:
        return "none; models of your own"
    if not lacking:
        return "all"
    return f"all but {', '.join(lacking)}" if len(lacking) < 6 else ", ".join(suits)


def engines(text: str) -> str:
    """Page on engines, with the methods that each suits."""
    for engine, path in ENGINES.items():
        row = rf"(?m)^(\| \[?`{path.partition(':')[2]}`.*\| )[^|]+ \|$"
        text = re.sub(row, lambda found, name=engine: f"{found[1]}{suited(name)} |", text)
    return text


def index(text: str) -> str:
    """Front page of the documentation, with the pages of all methods."""
    pages = ", ".join(f"[{name}](methods/{name}.md)" for name in CARDS)
    line = textwrap.fill(
        f"- Methods: {pages};", 120, subsequent_indent="  ", break_on_hyphens=False
    )
    return re.sub(r"(?s)- Methods: .*?;\n", lambda _: line + "\n", text)


PAGES: dict[str, Callable[[str], str]] = {
    "README.md": methods,
    "docs/engines.md": engines,
    "docs/index.md": index,
}


def main() -> None:
    """Write all pages."""
    for name, made in PAGES.items():
        page = ROOT / name
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
