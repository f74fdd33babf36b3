"""The code of docs/your_own_model.md runs as it stands, and its blocks are what the page says."""

import re
from pathlib import Path

from sidebayes.models.blocks import block, block_facts

PAGE = Path(__file__).parents[2] / "docs" / "your_own_model.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROTOCOLS = {
    name: getattr(file, name)
    for file in (block, block_facts)
    for name in file.__all__
    if name not in ("Block", "Observation")
}


def test_every_protocol_is_in_the_table():
    assert set(re.findall(r"^\| `(\w+)` \| (?:`|none)", TEXT, re.M)) == PROTOCOLS.keys()


def test_the_page_runs(capsys):
    code = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(code) == 16
    names = {"__name__": "page"}
    exec(compile("\n".join(code), str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    assert "contradicts the model's density" in said
    assert "[ True  True  True  True]" in said
    assert float(re.search(r"([0-9.]+) of the species", said).group(1)) > 0.8
    assert "[2. 9.]" in said
    assert "EM converged" in said
    assert "rates[0, 0]" in said
    assert "x has negative counts" in said
    for kind in ("Fused EM", "Empirical stochastic EM", "Followed coordinate ascent", "Choice EM"):
        assert f"{kind} converged" in said
    shown = re.findall(r"^class (\w+)\(.*\):  # (.*)$", "\n".join(code), re.M)
    said_to_be = [(one, name) for one, told in shown for name in words(told) if name in PROTOCOLS]
    assert len(said_to_be) >= 7
    for one, name in said_to_be:
        assert issubclass(names[one], PROTOCOLS[name]), (one, name)


def words(text):
    return re.findall(r"\w+", text)
