"""Shapes of two groups, and fits of them."""

from __future__ import annotations

import numpy as np
from sidebayes.models.blocks.manifolds import preshape
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart

import sidebayes as sb

MARKS, AXES, SIZE = 6, 2, 24
LABELS = np.repeat([0, 1], SIZE // 2)
_RNG = np.random.default_rng(0)
BASE = _RNG.normal(size=(MARKS, AXES))
APART = _RNG.normal(scale=0.25, size=(MARKS, AXES))
SHAPES = BASE + LABELS[:, None, None] * APART + _RNG.normal(scale=0.1, size=(SIZE, MARKS, AXES))
WHOLE = preshape.num_dimensions(MARKS, AXES)


def posed(shapes, seed=1):
    """Shapes moved, scaled and turned, each in its own way."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, len(shapes))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    size, place = rng.uniform(1, 9, len(shapes)), rng.normal(size=(len(shapes), 1, 2)) * 50
    return size[:, None, None] * shapes @ turn.transpose(2, 0, 1) + place


def rows(shapes):
    """Arguments of the model."""
    number, marks, axes = shapes.shape
    return {
        "x": shapes.reshape(-1, axes),
        "subjects": sb.Groups(np.repeat(np.arange(number), marks)),
        "landmarks": np.tile(np.arange(marks), number),
    }


def coordinates_of(shapes, chart):
    return np.asarray(ShapeChart.of(chart).coordinates(shapes))


def fitted(engine=None, shapes=SHAPES, **options):
    given = {"num_clusters": 2, "num_modes": WHOLE, **options}
    engine = sb.EM(num_restarts=4) if engine is None else engine
    return sb.fit("hierarchical_shape", **rows(shapes), engine=engine, progress=False, **given)
