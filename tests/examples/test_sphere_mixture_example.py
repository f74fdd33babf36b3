"""The example of mixtures on the sphere runs and draws its picture."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_draws_its_picture(tmp_path, monkeypatch, capsys):
    out = tmp_path / "sphere_mixture.png"
    monkeypatch.setattr(sys, "argv", ["sphere_mixture.py", "-o", str(out)])
    runpy.run_path(str(ROOT / "examples" / "sphere_mixture.py"), run_name="__main__")
    assert out.stat().st_size > 10_000
    assert "von Mises-Fisher" in capsys.readouterr().out
