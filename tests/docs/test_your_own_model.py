"""The code of docs/your_own_model.md runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "your_own_model.md"


def test_the_page_runs(capsys):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(code) == 10
    exec(compile("\n".join(code), str(PAGE), "exec"), {"__name__": "page"})
    said = capsys.readouterr().out
    assert "contradicts the model's density" in said
    assert float(re.search(r"([0-9.]+) of the species", said).group(1)) > 0.8
    assert "EM converged" in said
