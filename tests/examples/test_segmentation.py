"""Minimal cut of the segmentation example: Yu (2016), acceptance check 35."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "segmentation.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("segmentation", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def energy(unary, labels, penalty):
    own = np.take_along_axis(unary, labels[..., None], axis=2).sum()
    apart = np.sum(labels[1:] != labels[:-1]) + np.sum(labels[:, 1:] != labels[:, :-1])
    return own + penalty * apart


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
def test_cut_has_the_least_energy_of_all_labelings(example, penalty):
    every = [np.reshape(z, (3, 3)) for z in itertools.product((0, 1), repeat=9)]
    for draw in range(20):
        unary = 2.0 * np.random.default_rng(draw).normal(size=(3, 3, 2))
        least = min(energy(unary, labels, penalty) for labels in every)
        found = energy(unary, example.graph_cut(unary, penalty), penalty)
        np.testing.assert_allclose(found, least, atol=1e-4)


def test_no_penalty_leaves_every_pixel_its_best_label(example):
    unary = np.random.default_rng(0).normal(size=(12, 17, 2))
    np.testing.assert_array_equal(example.graph_cut(unary, 0.0), unary.argmin(axis=2))
    with pytest.raises(ValueError, match="penalty = -1"):
        example.graph_cut(unary, -1)


def test_overlap_does_not_depend_on_numbering(example):
    _, truth = example.simulate_image(24, 36, 0)
    assert 0.1 < truth.mean() < 0.9
    assert example.overlap(truth, truth) == example.overlap(truth, 1 - truth) == 1.0
    assert example.overlap(truth, np.zeros_like(truth)) == pytest.approx(truth.mean())
