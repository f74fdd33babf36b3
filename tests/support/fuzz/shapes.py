"""Public callables of shapes, with odd values in the place of their arguments."""

from __future__ import annotations

from functools import wraps

import numpy as np
from numpyro import handlers

import sidebayes as sb
from tests.support.fuzz.cards import quick
from tests.support.fuzz.cases import options
from tests.support.fuzz.odd import (
    ARRAYS,
    COLUMNS,
    FORMULAS,
    LABELS,
    NUMBERS,
    OBJECTS,
    PATHS,
    TABLES,
    TEXT,
    X,
)

PLACES = np.random.default_rng(1).normal(size=(3, 4, 2))
MARKS = sb.Landmarks.from_array(PLACES)
SQUARES = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) + PLACES / 20
FRAME = sb.register_points(sb.Landmarks.from_array(SQUARES), num_modes=2)
COVARIATES = (*TABLES, *COLUMNS)
NAMED = sb.Landmarks.from_array(PLACES, covariates={"sex": list("fmf"), "age": [1.0, 2.0, 4.0]})


def seeded(call):
    """A function that samples sites, outside of a model."""

    @wraps(call)
    def run(**given):
        with handlers.seed(rng_seed=0):
            return call(**given)

    return run


INFER = ({}, {"event_dims": ["a"]}, {3: 4}, *TEXT)

SHAPE_CASES = {
    "sample_direction": options(
        seeded(sb.sample_direction),
        {"name": "point", "dimension": 3},
        name=TEXT,
        dimension=NUMBERS,
        infer=INFER,
    ),
    "sample_preshape": options(
        seeded(sb.sample_preshape),
        {"name": "shape", "num_landmarks": 4, "num_coordinates": 2},
        name=TEXT,
        num_landmarks=NUMBERS,
        num_coordinates=NUMBERS,
        infer=INFER,
    ),
    "shape_chart": options(
        sb.shape_chart,
        {"shapes": PLACES},
        shapes=(*ARRAYS, PLACES[:1], PLACES[0], np.where(PLACES > 1, np.nan, PLACES), 0 * PLACES),
        num_modes=NUMBERS,
    ),
    "LowRankPrior": options(sb.LowRankPrior, {"radius": 0.2}, radius=(*NUMBERS, *ARRAYS)),
    "register_points": options(
        sb.register_points,
        {
            "x": PLACES.reshape(-1, 2),
            "subjects": np.repeat(np.arange(len(PLACES)), 4),
            "num_points": 3,
        },
        x=ARRAYS,
        subjects=ARRAYS,
        num_points=NUMBERS,
        num_modes=NUMBERS,
        reference=ARRAYS,
    ),
    "fit.latent_shape": options(
        quick("latent_shape"),
        {
            "x": FRAME.x,
            "subjects": FRAME.subjects,
            "landmarks": FRAME.landmarks,
            "num_clusters": 1,
            "rank": 1,
        },
        60,
        x=ARRAYS,
        subjects=ARRAYS,
        landmarks=(*ARRAYS, np.tile([0, 1, 2, 1e9], 3)),
        links=OBJECTS[1:],
        known=ARRAYS,
        chart=ARRAYS,
        num_clusters=NUMBERS,
        rank=NUMBERS,
        observation=TEXT,
        width=NUMBERS,
        temperature=NUMBERS,
    ),
    "fit.hierarchical_shape": options(
        quick("hierarchical_shape"),
        {
            "x": MARKS.x,
            "subjects": MARKS.subjects,
            "landmarks": MARKS.landmarks,
            "num_clusters": 1,
        },
        60,
        x=ARRAYS,
        subjects=ARRAYS,
        landmarks=(*ARRAYS, np.tile([0, 1, 2, 2], 3), np.tile([0, 1, 2, 1e9], 3)),
        links=OBJECTS[1:],
        known=ARRAYS,
        chart=ARRAYS,
        num_clusters=NUMBERS,
        num_modes=NUMBERS,
        size=(*NUMBERS[:6], "yes"),
        covariance=TEXT,
        population=TEXT,
        covariates=ARRAYS,
    ),
    "ShapeDesign": options(
        sb.ShapeDesign,
        {"formula": "~ sex", "landmarks": NAMED},
        formula=TEXT,
    ),
    "shape_design": options(
        sb.shape_design,
        {"formula": "~ sex", "landmarks": NAMED},
        formula=(*FORMULAS, "~ log_size", "~ age"),
        landmarks=(*OBJECTS, *TABLES, MARKS),
    ),
    "ShapeDesign.at": options(
        lambda **given: sb.shape_design("~ sex + log_size", NAMED).at(**given),
        {"landmarks": NAMED},
        landmarks=(*OBJECTS, *TABLES, MARKS),
    ),
    "group_test": options(
        sb.group_test,
        {"shapes": X, "groups": LABELS, "num_permutations": 9},
        150,
        shapes=(*ARRAYS, MARKS, PLACES, lambda labels: None, lambda labels: PLACES),
        groups=(*ARRAYS, "sex"),
        statistics=(*TEXT, ["goodall"], "james", ["goodall", 3], []),
        mode=TEXT,
        num_permutations=NUMBERS[:16],
        ridge=NUMBERS,
        seed=NUMBERS,
    ),
    "pairwise_tests": options(
        sb.pairwise_tests,
        {"shapes": X, "groups": LABELS, "num_permutations": 9},
        60,
        shapes=(*ARRAYS, MARKS, PLACES, lambda labels: None),
        groups=(*ARRAYS, "sex"),
        statistics=(*TEXT, ["goodall"], "james", ["goodall", 3], []),
        adjustment=(*TEXT, "fdr", "none"),
        num_permutations=NUMBERS[:16],
        ridge=NUMBERS,
        seed=NUMBERS,
    ),
    "digit_outlines": options(
        sb.digit_outlines, {"num_each": 2}, digits=ARRAYS, num_points=NUMBERS[:16], num_each=NUMBERS
    ),
    "Landmarks": options(
        sb.Landmarks,
        {"x": X, "subjects": LABELS, "landmarks": np.tile(range(4), 3)},
        200,
        x=ARRAYS,
        subjects=ARRAYS,
        landmarks=ARRAYS,
        landmark_names=(*TEXT, list("abcd"), list("abca")),
        covariates=COVARIATES,
        units=TEXT,
    ),
    "Landmarks.from_array": options(
        sb.Landmarks.from_array,
        {"x": PLACES, "subjects": [0, 1, 2]},
        150,
        x=(*ARRAYS, PLACES[0], np.where(PLACES > 0, PLACES, np.nan), PLACES[:, :, :1]),
        subjects=ARRAYS,
        landmark_names=(*TEXT, list("abcd")),
        covariates=COVARIATES,
    ),
    "Landmarks.take": options(MARKS.take, {"individuals": [0]}, individuals=ARRAYS),
    "Landmarks.aligned": options(MARKS.aligned, {}, scale=(*NUMBERS, *TEXT)),
    "Landmarks.write_tps": options(MARKS.write_tps, {"path": "/"}, path=PATHS[:10]),
    "simulate_box_bumps": options(
        sb.simulate_box_bumps, {}, noise=NUMBERS, is_shifted=(True, False), seed=NUMBERS
    ),
    "simulate_ellipsoids": options(
        sb.simulate_ellipsoids,
        {"num_individuals": 2},
        num_individuals=(*NUMBERS[:8], "3"),
        num_points=(*NUMBERS[:8], "3"),
        noise=NUMBERS,
        seed=NUMBERS,
    ),
    "simulate_leaves": options(
        sb.simulate_leaves,
        {"num_individuals": 2},
        num_individuals=(*NUMBERS[:8], "3"),
        asymmetry=NUMBERS,
        width_deviation=NUMBERS,
        noise=NUMBERS,
        seed=NUMBERS,
    ),
    "simulate_tubes": options(
        sb.simulate_tubes,
        {},
        num_controls=(*NUMBERS[:8], "3"),
        num_cases=(*NUMBERS[:8], "3"),
        noise=NUMBERS,
        seed=NUMBERS,
    ),
    "read_landmarks": options(
        sb.read_landmarks,
        {"path": "no.tps"},
        path=(*PATHS, ["no.tps"], [3], [b"x", "no.csv"], [__file__]),
        corresponding=(*NUMBERS, *TEXT),
        scale=(*NUMBERS, *TEXT),
        missing=NUMBERS,
        individual=TEXT,
        units=TEXT,
    ),
}
