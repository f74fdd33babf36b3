"""What the example of shapes claims."""

import importlib.util
from pathlib import Path

import pytest
from matplotlib.image import imread

import sidebayes as sb

SCRIPT = Path(__file__).parents[2] / "examples" / "shapes.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("shapes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reflected_one_is_found_and_the_halves_differ(example, tmp_path):
    path = tmp_path / "eights.tps"
    example.write(path)
    marks, said = example.read(path)
    assert len(said) == 2
    assert "look reflected: 224." in said[0]
    assert "another order: 482, 1583." in said[1]
    test = sb.group_test(marks, "half")  # and nothing is left to warn of
    assert test.table["p"].max() < 0.01
    example.draw(marks, test, tmp_path / "shapes.png")
    assert imread(tmp_path / "shapes.png").std() > 0.05
