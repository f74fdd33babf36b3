"""The rolls of the example, and of its page, have graphs whose map is the sheet."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import procrustes
from sidebayes.models.blocks.embedding.geodesics import choose_distances, choose_landmarks
from sidebayes.models.blocks.embedding.positions import landmark_scaling
from sklearn.datasets import make_swiss_roll

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "geodesic_embedding.py"))


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (EXAMPLE["rolled"](EXAMPLE["NUMBER"]), EXAMPLE["GRAPH"]),
        (make_swiss_roll(300, random_state=0)[0], {"num_neighbors": 5}),
    ],
    ids=["picture", "page"],
)
def test_maps_start_at_the_sheet(x, options):
    turn = np.hypot(x[:, 0], x[:, 2])
    along = (turn * np.sqrt(1 + turn**2) + np.arcsinh(turn)) / 2
    data = {"x": x, "landmarks": choose_landmarks({"x": x}, options)}
    start = landmark_scaling(choose_distances(data, options), 2)
    assert procrustes(np.column_stack([along, x[:, 1]]), start)[2] < 0.02
