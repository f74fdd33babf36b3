"""Turns of phrase that are not plain English, or that use a word of the glossary for another thing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sidebayes", "models", "guides", "diagnostics")
TEXTS = {
    str(path.relative_to(ROOT)): " ".join(path.read_text(encoding="utf-8").split())
    for path in [
        *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))),
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
}
"""Sources and pages, each in one line, so that a phrase is found whatever its line breaks."""

PLURALS = "seconds|s|nats|Gaussians|points|pairs|gradients|sweeps|edges|lines|rows|ones|columns"
UNITS = (
    "class|cluster|pair|point|step|link|fit|chain|iteration|run|node|subject|group|component|year"
)
BANNED = {
    r"in time that \w+ take": "in O(number of groups) per evaluation",
    rf"\b({PLURALS}) an? ({UNITS})\b": "write 'per': 'points per class'",
    r"\b(one|a) (name|line|entry|term) a (feature|fact|row|rung|cluster|class)\b": "write 'per'",
    r"\bonce an? (class|pair|row|step|draw|subject|group)\b": "write 'per'",
    r"\bstart a draw\b|\ba link over\b|\bDraws of .{0,20} a chain\b": "write 'per'",
    r"[Ss]ingle component a\b": "one component per cluster",
    r"what (is|was) told": "what is logged",
    r"\bbeing told\b|\bare told by\b|\bis told by\b": "determined by, matched by",
    r"nothing tells\b": "nothing determines",
    r"[Ww]hat numbers must be": "validates values against supports",
    r"\bfore(see|sees|seen|saw|tell|tells|told)\b": "predicts",
    r"near enough to that of": "is close to",
    r"not told (apart )?from": "not distinguishable from",
    r"\buse nothing else\b": "say what it is built on",
    r"any model by any engine": "name the engines that suit it",
    r"(say|says|know|knows|known) nothing of\b": "says nothing about",
    r"\bMost (gradients|sweeps|steps|rounds)\b": "maximum number of steps",
    r"\b(Steps|Gradients|Replacements|Temperatures) at most\b": "maximum number of steps",
    r"\bhas not the\b|\bhave not the\b": "lacks",
    r"\(asked: \d|\b(was|were) asked\.": "measurements stand for themselves",
    r"[Cc]onnected components?\b": "connected set",
    r"[Ll]oopy components?\b|components? of (the )?links": "connected set",
    r"all (other )?evidence\b|side evidence": "evidence is the log evidence of a model",
}
"""Regular expression, and what to write in its place."""


@pytest.mark.parametrize(("turn", "better"), BANNED.items(), ids=BANNED)
def test_no_page_and_no_docstring_has_this_turn(turn, better):
    found = {name: match[0] for name, text in TEXTS.items() if (match := re.search(turn, text))}
    assert not found, f"write: {better}"


def test_the_turns_are_found_where_they_stand():
    assert all(re.search(turn, text) for turn, text in SEEN.items())
    assert SEEN.keys() <= BANNED.keys()


SEEN = {
    r"in time that \w+ take": "sums in time that groups take and not rows",
    rf"\b({PLURALS}) an? ({UNITS})\b": "two Gaussians a class",
    r"\bfore(see|sees|seen|saw|tell|tells|told)\b": "the bands foreseen for new subjects",
    r"[Cc]onnected components?\b": "a connected component of the links",
}
"""Examples that the expressions must find."""
