"""Fits of cards with data of their own, and odd values for their arguments; see `cases`."""

from __future__ import annotations

import numpy as np

import sidebayes as sb
from tests.support.fuzz.cases import of_class, options
from tests.support.fuzz.odd import ARRAYS, LABELS, LINKS, NUMBERS, OBJECTS, QUICK, TEXT, X

SIZES = (0, -1, 2.5, "2", None, np.nan, True, 13, 10**400)
UNIT = np.column_stack([np.cos(X[:, 0]), np.sin(X[:, 0])])
KNOWN = np.where(np.arange(12) % 3, -1, LABELS % 2)
SOURCE = sb.SourceMixture(np.ones(2) / 2, np.eye(2), np.stack([np.eye(2)] * 2), np.arange(2))


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
    "fit.feature_saliency": options(
        quick("feature_saliency", sb.ComponentwiseEM(num_restarts=1, max_steps=3)),
        {"x": X, "links": LINKS, "num_clusters": 2},
        60,
        x=ARRAYS,
        links=OBJECTS[1:],
        known=(*ARRAYS, *OBJECTS[:7]),
        num_clusters=SIZES,
        selection=TEXT,
        prior=TEXT,
        concentration=NUMBERS,
        saliency_prior=(*NUMBERS[:6], (0.5,), (0, 1), (-1.0, 1.0), "ab", (np.nan, 1.0)),
        kinds=(
            *TEXT,
            (),
            ("normal",),
            ("normal", "gamma"),
            ("count", "count"),
            ("category:1",) * 2,
        ),
        reading=TEXT,
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
        observed=ARRAYS,
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
    "fit.geodesic_embedding": options(
        quick("geodesic_embedding", sb.MAP(num_restarts=1, max_steps=3)),
        {"x": X, "links": LINKS, "num_neighbors": 6},
        80,
        x=ARRAYS,
        links=OBJECTS[1:],
        known=(*ARRAYS, *OBJECTS[:7]),
        landmarks=ARRAYS,
        distances=ARRAYS,
        num_dimensions=SIZES,
        num_neighbors=SIZES,
        num_landmarks=SIZES,
        noise=TEXT,
        noise_level=NUMBERS,
        power=NUMBERS,
        scale=NUMBERS,
        reach=NUMBERS,
        num_classes=SIZES,
    ),
    "select_dimensions": options(
        lambda **given: sb.select_dimensions(**given, num_neighbors=6, progress=False),
        {"x": X, "num_dimensions": (1,), "engine": sb.Laplace(num_restarts=1, max_steps=3)},
        15,
        x=ARRAYS,
        num_dimensions=(*SIZES, (0,), (2.5,), (1, 40), ()),
        criterion=TEXT,
        seed=NUMBERS,
    ),
    "ShiftPrior": of_class(sb.ShiftPrior),
    "DirectionalPrior": options(
        sb.DirectionalPrior, {"df": 5.0, "scale": 0.3}, 100, df=NUMBERS, scale=(*NUMBERS, *ARRAYS)
    ),
    "DirectionalPrior.empirical": options(
        sb.DirectionalPrior.empirical,
        {"x": UNIT, "num_clusters": 2},
        x=ARRAYS,
        num_clusters=NUMBERS,
    ),
    "fit.sphere_mixture": options(
        quick("sphere_mixture"),
        {"x": UNIT, "num_clusters": 2},
        80,
        x=ARRAYS,
        links=OBJECTS[1:],
        known=(*ARRAYS, *OBJECTS[:7]),
        num_clusters=SIZES,
        family=TEXT,
        covariance=TEXT,
        rank=SIZES,
        prior=(*TEXT, *OBJECTS[:7]),
        dimension=SIZES,
    ),
    "SourceMixture": options(
        sb.SourceMixture,
        {
            "weights": np.ones(2) / 2,
            "mean": np.eye(2),
            "covariance": np.stack([np.eye(2)] * 2),
            "component_class": np.arange(2),
        },
        150,
        weights=ARRAYS,
        mean=ARRAYS,
        covariance=ARRAYS,
        component_class=ARRAYS,
    ),
    "fit_source": options(
        sb.fit_source,
        {"x": X, "labels": LABELS, "num_components": 1},
        60,
        x=ARRAYS,
        labels=ARRAYS,
        num_components=(*SIZES, [1, 1, 1], [1], "11"),
        most_components=SIZES,
        covariance=TEXT,
        num_restarts=SIZES,
        seed=NUMBERS,
    ),
    "simulate_domains": options(
        sb.simulate_domains,
        {"kind": "shift", "num_source": 20, "num_target": 20},
        60,
        kind=TEXT,
        num_source=NUMBERS[:9],
        num_target=NUMBERS[:9],
        strength=NUMBERS,
        seed=NUMBERS,
    ),
    "select_adaptation": options(
        lambda **given: sb.select_adaptation(
            **given, strengths=(1.0,), num_starts=1, engine=QUICK, source=SOURCE
        ),
        {"x": X, "known": KNOWN, "source_x": X, "source_labels": LABELS % 2},
        20,
        x=ARRAYS,
        known=ARRAYS,
        source_x=ARRAYS,
        source_labels=ARRAYS,
        seed=NUMBERS,
    ),
    "fit.domain_adaptation": options(
        quick("domain_adaptation"),
        {"x": X, "known": KNOWN, "source": SOURCE},
        60,
        x=ARRAYS,
        known=ARRAYS,
        source=OBJECTS,
        shift=(*TEXT, *NUMBERS),
        weights_worth=NUMBERS,
        strength=NUMBERS,
        posterior=TEXT,
        covariance=TEXT,
    ),
}
