"""Lu (2008), experiment 4, in small: what the example of texture segmentation claims."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sidebayes.diagnostics.trust.scores import accuracy, score_labels

import sidebayes

SCRIPT = Path(__file__).parents[2] / "examples" / "texture.py"


@pytest.fixture(scope="module")
def texture():
    spec = importlib.util.spec_from_file_location("texture", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mosaic(texture):
    return texture.simulate_mosaic(20, seed=1)


@pytest.fixture(scope="module")
def fits(texture, mosaic):
    return texture.segment(mosaic, 2.5, num_restarts=2)


def test_links_of_the_grid_beat_the_plain_mixture(mosaic, fits):
    truth = mosaic.labels.ravel()
    score = {name: score_labels(truth, fit.labels()) for name, fit in fits.items()}
    for name in ("mean_field", "gibbs_labels"):
        assert score[name]["ari"] > score["gmm"]["ari"] + 0.05
        assert score[name]["accuracy"] > score["gmm"]["accuracy"] + 0.02
        assert name in fits[name].approximate


def test_mean_field_and_gibbs_agree(fits):
    labels = [fits[name].labels() for name in ("mean_field", "gibbs_labels")]
    assert accuracy(*labels) > 0.95
    prob = [fits[name].responsibilities() for name in ("mean_field", "gibbs_labels")]
    assert np.abs(prob[0] - prob[1]).mean() < 0.03


def test_it_draws_every_panel(texture, mosaic, fits, tmp_path):
    from matplotlib.image import imread

    texture.draw(mosaic, fits, tmp_path / "texture.png")
    picture = imread(tmp_path / "texture.png")
    assert min(picture.shape[:2]) > 1000
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 100


def test_links_join_blocks_that_touch(texture, mosaic):
    links = sidebayes.Links.from_grid(mosaic.shape, 1.0)
    row, column = np.divmod(links.pairs, mosaic.shape[1])
    distance = np.abs(np.diff(row, axis=1)) + np.abs(np.diff(column, axis=1))
    assert (distance == 1).all()
    assert len(mosaic.features()) == mosaic.labels.size
    assert sidebayes.estimate_flip_rate(links.pairs, mosaic.labels.ravel()) < 0.2
