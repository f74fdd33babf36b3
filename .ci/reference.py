"""Write the page of all public names, and the page of the engines' options, from their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import sidebayes
from sidebayes.runs.zoo import ENGINES

ROOT = Path(__file__).resolve().parents[1]

SECTIONS = {
    "Fit and compare": (
        "api",
        "results",
        "diagnostics",
        "many",
        "runs",
        "studies.reference",
        "guides.engines.base",
    ),
    "Data": ("data",),
    "Links, groups and classes": (
        "models.blocks.side_information",
        "models.blocks.label_inference",
        "models.blocks.classes",
    ),
    "Engines": ("guides.engines",),
    "Studies of several fits": ("studies", "guides.constraint_fit", "guides.domain_adaptation"),
    "scikit-learn": ("estimators", "link_folds"),
    "Transformers and detection": ("guides.transformers",),
    "Blocks, priors and kernels": ("models.blocks",),
}
"""Beginnings of the modules, in the library, whose names a section lists; the longest one counts."""

OPTIONS = """# Options of the engines

`sidebayes.EM(num_restarts=20)` is `EM` with another number of starts. Each option has the default
that stands beside it; `make lists` writes this page from the docstrings, which say more:
`help(sidebayes.EM)`. [Which engine does what](../engines.md).
"""

NAMES = """# Public names

What `import sidebayes` offers. `make lists` writes this page from the docstrings, which say more:
`help(sidebayes.fit)`.
"""


def exported() -> dict[str, str]:
    """Public names, and the module in the library that defines each."""
    listed = Path(sidebayes.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    pairs = re.findall(r"from \.([\w.]+) import \(?\s*(\w+) as", listed)
    return {name: module for module, name in pairs}


def summary(documented: Any) -> str:
    """First sentence of a docstring, fit for a cell of a table."""
    if documented is sidebayes.CARDS:
        return "Methods of the zoo by name, each with its `Card`."
    return cell((inspect.getdoc(documented) or "").split("\n\n")[0])


def cell(text: str) -> str:
    """Text on one line, without what a table would take as its own."""
    text = re.sub(r":\w+:`([^`]*)`", r"$\1$", " ".join(text.split()))
    return text.replace("``", "`").replace("|", r"\|")


def described(documented: type) -> dict[str, str]:
    """What docstrings, of the class and of those it inherits from, say of each parameter."""
    found = {}
    for base in reversed(documented.__mro__):
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        section = re.search(r"Parameters\n-+\n(.*?)(?=\n\n[A-Z][a-z]+\n-+\n|\Z)", text, re.DOTALL)
        entries = re.split(r"(?m)^(?=\w)", section[1]) if section else []
        for head, _, body in (entry.partition("\n") for entry in entries if entry):
            listed, _, kind = head.partition(" : ")
            choices = re.match(r"{[^}]*}", kind)
            for name in listed.split(", "):
                found[name] = cell(f"``{choices[0]}``: {body}" if choices else body)
    return found


def default(field: dataclasses.Field) -> str:
    """Default of an option as one would write it."""
    value = field.default
    if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return "" if value is dataclasses.MISSING else f"`{value!r}`"


def table(
    title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], about: str = ""
) -> str:
    """Section of a page: a title, perhaps a sentence, and a table."""
    lines = [columns, ("---",) * len(columns), *rows]
    drawn = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"\n## {title}\n\n{about}{drawn}"


def options() -> str:
    """Page with the options of every engine."""
    page = OPTIONS
    for path in ENGINES.values():
        engine = getattr(sidebayes, path.partition(":")[2])
        known = described(engine)
        rows = [(f"`{of.name}`", default(of), known[of.name]) for of in dataclasses.fields(engine)]
        columns = ("option", "default", "what it is")
        page += table(engine.__name__, columns, rows, f"{summary(engine)}\n\n")
    return page


def names() -> str:
    """Page with every public name."""
    rows: dict[str, list[tuple[str, ...]]] = {title: [] for title in SECTIONS}
    engines = {path.partition(":")[2] for path in ENGINES.values()}
    beginnings = {start: title for title, starts in SECTIONS.items() for start in starts}
    for name, module in sorted(exported().items(), key=lambda pair: pair[0].lower()):
        module = "guides.engines" if name in engines else module  # some stand beside their method
        start = max((one for one in beginnings if f"{module}.".startswith(f"{one}.")), key=len)
        rows[beginnings[start]].append((f"`{name}`", summary(getattr(sidebayes, name))))
    columns = ("name", "what it is")
    return NAMES + "".join(table(title, columns, of) for title, of in rows.items())


PAGES = {"docs/names.md": names, "docs/engines/options.md": options}


def main() -> None:
    """Write both pages."""
    for name, made in PAGES.items():
        (ROOT / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
