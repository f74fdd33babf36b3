"""Soft weights that floats cannot carry beside log densities count as hard, and are named."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.link_weights import MOST_SOFT

from sidebayes import Links, SideBayesWarning
from tests.support.inference import LOOPY, inferred

PAIRS = [(0, 1), (1, 2), (2, 0), (2, 3), (4, 5)]
SIGNS = np.array([1, 1, 1, -1, 1])


@pytest.mark.parametrize("weight", [MOST_SOFT, 1e12, 1e300])
def test_they_count_as_hard(weight):
    with pytest.warns(
        SideBayesWarning,
        match=r"finite weights of 1e\+08 or more count as hard.*2 links, .*weights\[1\] = -",
    ):
        links = Links([(0, 1), (1, 2), (2, 3)], [1.0, -weight, weight])
    np.testing.assert_array_equal(links.weights, [1.0, -np.inf, np.inf])


def test_what_stays_soft_keeps_its_digits():
    """Up to the limit responsibilities are those of hard links, and the data keep seven digits."""
    unary = 3 * np.random.default_rng(0).normal(size=(7, 3))
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        found, hard = (
            inferred(unary, LabelGraph.build(Links(PAIRS, w, 7), 7, 3, room=LOOPY)).responsibilities
            for w in (SIGNS * 0.99 * MOST_SOFT, SIGNS * np.inf)
        )
    np.testing.assert_allclose(found, hard, atol=1e-6)
