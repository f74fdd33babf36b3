"""What the example of predictions claims."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import sidebayes as sb

SCRIPT = Path(__file__).parents[2] / "examples" / "predicting.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("predicting", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(example):
    engine = sb.NUTS(num_warmup=200, num_samples=200, num_chains=2)
    return example.fit(example.measure(), engine)


def test_a_known_child_is_predicted_better(example, found):
    known, new = (
        example.predict(found, name, [10.0])[:, 0] for name in ("Ada", "a child not seen")
    )
    assert known.std() < 0.75 * new.std()
    truth = 122.0 + 6.9 * 4
    assert abs(known.mean() - truth) < 2.5 * known.std()
    assert known.mean() > new.mean() + 3  # she is tall


def test_the_picture_is_drawn(example, found, tmp_path):
    example.draw(found, example.measure(), tmp_path / "picture.png")
    picture = imread(tmp_path / "picture.png")
    assert min(picture.shape[:2]) > 300
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50
