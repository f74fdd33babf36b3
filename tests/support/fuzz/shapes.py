"""Public callables of shapes, with odd values in the place of their arguments."""

from __future__ import annotations

import numpy as np

import sidebayes as sb
from tests.support.fuzz.cases import options
from tests.support.fuzz.odd import ARRAYS, COLUMNS, LABELS, NUMBERS, PATHS, TABLES, TEXT, X

PLACES = np.random.default_rng(1).normal(size=(3, 4, 2))
MARKS = sb.Landmarks.from_array(PLACES)
COVARIATES = (*TABLES, *COLUMNS)

SHAPE_CASES = {
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
