"""Fits of cards with data of their own, and odd values for their arguments; see `support_fuzz`."""

from __future__ import annotations

import numpy as np

import sidebayes as sb
from tests.support_fuzz import options
from tests.support_odd import ARRAYS, LABELS, LINKS, NUMBERS, OBJECTS, QUICK, TEXT, X

SIZES = (0, -1, 2.5, "2", None, np.nan, True, 13, 10**400)
KNOWN = np.where(np.arange(12) % 3, -1, LABELS % 2)


def quick(method, engine=QUICK):
    return lambda **given: sb.fit(method, engine=engine, progress=False, **given)


CARD_CASES = {
    "fit.moe": options(
        quick("moe"),
        {"x": X, "known": KNOWN, "num_clusters": 2, "num_classes": 2},
        60,
        x=ARRAYS,
        known=(*ARRAYS, *OBJECTS[:7]),
        num_clusters=SIZES,
        num_classes=SIZES,
        class_concentration=NUMBERS,
        label_noise=NUMBERS,
    ),
    "fit.pfgl": options(
        quick("pfgl"),
        {
            "x": X,
            "known": KNOWN,
            "num_clusters": 2,
            "num_classes": 2,
            "prototypes": [(0, 0), (1, 1)],
        },
        60,
        known=ARRAYS,
        num_clusters=SIZES,
        num_classes=SIZES,
        prototypes=(*ARRAYS, [(0, 0)], [(0, 5), (1, 0)], [(0, 0), (9, 1)], [(0, 0, 1), (1, 1, 1)]),
        label_noise=NUMBERS,
    ),
    "fit.mcp": options(
        quick("mcp"),
        {"x": X, "links": LINKS, "num_clusters": 2},
        60,
        x=ARRAYS,
        links=OBJECTS[1:],
        num_clusters=SIZES,
        num_components=SIZES,
        strength=NUMBERS,
        posterior=TEXT,
        keep_all=(*NUMBERS[:6], "yes"),
    ),
    "fit.trajectories": options(
        quick("trajectories", sb.CoordinateAscent(num_restarts=1, max_steps=2, num_draws=2)),
        {
            "y": X[:, 0],
            "inputs": X[:, 1],
            "num_clusters": 2,
            "length_scale": 1.0,
            "amplitude": 1.0,
            "noise": 1.0,
        },
        80,
        y=ARRAYS,
        inputs=ARRAYS,
        subjects=(*ARRAYS, *OBJECTS[:7]),
        links=OBJECTS[1:],
        anchors=ARRAYS,
        num_clusters=SIZES,
        kernel=TEXT,
        length_scale=NUMBERS,
        noise=NUMBERS,
        mean=NUMBERS,
        own=TEXT,
        concentration=NUMBERS,
        truncation=TEXT,
        reading=TEXT,
        inducing=NUMBERS,
    ),
}
