"""Public callables for series of subjects, and odd values for their arguments; see `cases`."""

from __future__ import annotations

import numpy as np

import sidebayes as sb
from tests.support.fuzz.cases import options
from tests.support.fuzz.odd import (
    ARRAYS,
    FORMULA,
    FORMULAS,
    LABELS,
    NUMBERS,
    OBJECTS,
    PATHS,
    PERSONS,
    TABLE,
    TABLES,
    TEXT,
    X,
)

SERIES = {"y": X[:, 0], "fixed": X, "random": X, "subjects": LABELS}
SUBJECTS = sb.LongTable.from_times(X[:, 0], np.tile([0.0, 1.0, 2.0, 3.0], 3), LABELS)
PEOPLE = sb.Population([0.0, 1.0], np.eye(2), 1.0)

SERIES_CASES = {
    "HazardPrior": options(
        sb.HazardPrior,
        {"cuts": [1.0], "level": 0.0},
        150,
        cuts=ARRAYS,
        level=(*NUMBERS, *TEXT),
        level_scale=NUMBERS,
        step=NUMBERS,
        covariates=(*ARRAYS, *NUMBERS),
        association=(*ARRAYS, *NUMBERS),
    ),
    "HazardPrior.weak": options(
        sb.HazardPrior.weak,
        {"time": X[:, 0], "event": LABELS > 0},
        150,
        time=ARRAYS,
        event=ARRAYS,
        num_intervals=NUMBERS,
    ),
    "Design.survival": options(
        lambda **given: sb.design(FORMULA, TABLE).survival(**given),
        {"formula": "Surv(days, died) ~ 1", "table": PERSONS},
        formula=(*FORMULAS, "Surv(days) ~ 1", "Surv(days, died) ~ who", "Surv(died, days) ~ 1"),
        table=(*TABLES, PERSONS.iloc[1:], PERSONS.assign(died=0), PERSONS.assign(days=-1.0)),
        num_intervals=NUMBERS,
    ),
    "LongTable": options(
        sb.LongTable,
        SERIES | {"outputs": None},
        150,
        y=ARRAYS,
        fixed=ARRAYS,
        random=ARRAYS,
        subjects=ARRAYS,
        outputs=ARRAYS,
        times=ARRAYS,
    ),
    "LongTable.from_times": options(
        sb.LongTable.from_times,
        {"y": X[:, 0], "times": X[:, 1], "subjects": LABELS},
        y=ARRAYS,
        times=ARRAYS,
        subjects=ARRAYS,
        degree=NUMBERS,
        center=NUMBERS,
        unit=NUMBERS,
    ),
    "LongTable.take": options(SUBJECTS.take, {"subjects": [0]}, subjects=ARRAYS),
    "LongTable.by_subject": options(SUBJECTS.by_subject, {"values": LABELS}, values=ARRAYS),
    "Population": options(
        sb.Population,
        {"coefficients": [0.0, 1.0], "covariance": np.eye(2), "noise": 1.0},
        100,
        coefficients=ARRAYS,
        covariance=ARRAYS,
        noise=(*NUMBERS, *ARRAYS),
    ),
    "Population.of": options(sb.Population.of, {"fit": None}, 20, fit=OBJECTS),
    "Population.expected_error": options(
        PEOPLE.expected_error, {"seen": X, "new": X}, seen=ARRAYS, new=ARRAYS, coefficients=ARRAYS
    ),
    "MixPrior": options(
        sb.MixPrior, {"populations": [PEOPLE] * 2}, populations=OBJECTS, weights=ARRAYS
    ),
    "estimate_population": options(
        sb.estimate_population, {"table": SUBJECTS}, 30, table=OBJECTS, max_steps=NUMBERS
    ),
    "forecast": options(
        sb.forecast,
        {"prior": PEOPLE} | SERIES,
        150,
        prior=OBJECTS,
        y=ARRAYS,
        fixed=ARRAYS,
        random=ARRAYS,
        subjects=ARRAYS,
        outputs=ARRAYS,
        probability=NUMBERS,
    ),
    "LikelihoodRatio": options(
        lambda table, labels, **given: sb.LikelihoodRatio(**given).fit(table, labels),
        {"table": SUBJECTS, "labels": [0, 1, 0], "populations": [PEOPLE] * 2},
        table=OBJECTS,
        labels=ARRAYS,
        costs=ARRAYS,
        populations=OBJECTS[:-1],
    ),
    "FisherFeatures": options(
        lambda table, labels, **given: sb.FisherFeatures(**given).fit(table, labels),
        {"table": SUBJECTS, "labels": [0, 1, 0], "populations": [PEOPLE] * 2, "design": "A"},
        table=OBJECTS,
        labels=ARRAYS,
        design=TEXT,
        populations=OBJECTS[1:],
        num_draws=NUMBERS[:15],
    ),
    "LeastSquaresFeatures": options(
        lambda table: sb.LeastSquaresFeatures().fit(table), {"table": SUBJECTS}, 20, table=OBJECTS
    ),
    "KernelPGA": options(
        lambda X, sample_weight=None, **given: sb.KernelPGA(**given).fit(X, None, sample_weight),
        {"X": X, "n_components": 1},
        sample_weight=ARRAYS,
        n_components=NUMBERS,
        kernel=TEXT,
        gamma=NUMBERS,
        rank=NUMBERS,
        tol=NUMBERS,
        max_iter=NUMBERS,
    ),
    "IncrementalIsomap": options(
        lambda X, **given: sb.IncrementalIsomap(**given).fit(X),
        {"X": X, "n_components": 1, "n_neighbors": 2},
        n_components=NUMBERS,
        n_neighbors=NUMBERS,
        radius=NUMBERS,
        metric=TEXT,
        n_landmarks=NUMBERS,
        neighbors=TEXT,
        converge=NUMBERS,
    ),
    "IncrementalIsomap.load": options(sb.IncrementalIsomap.load, {"path": "no.npz"}, path=PATHS),
    "co_ranking_quality": options(
        sb.co_ranking_quality,
        {"distances": np.eye(3), "embedded": 1 - np.eye(3)},
        distances=ARRAYS,
        embedded=ARRAYS,
    ),
    "SeriesKernel": options(
        lambda table, **given: sb.SeriesKernel(**given).fit(table),
        {"table": SUBJECTS, "length": 1.0, "noise": 0.5},
        table=OBJECTS,
        length=NUMBERS,
        noise=NUMBERS,
        bandwidth=NUMBERS,
    ),
    "delong_test": options(
        sb.delong_test,
        {"labels": LABELS > 0, "scores": X[:, 0], "others": X[:, 1]},
        labels=ARRAYS,
        scores=ARRAYS,
        others=ARRAYS,
    ),
    "stitch_roc": options(
        sb.stitch_roc,
        {"low": ([0, 1], [0, 1]), "high": ([0, 1], [0, 1])},
        low=(*OBJECTS, *((a, a) for a in ARRAYS)),
        high=OBJECTS,
        at=NUMBERS,
    ),
    **{
        name: options(
            getattr(sb, name), {key: value, "labels": [0, 1]}, labels=ARRAYS, **{key: odd}
        )
        for name, key, value, odd in (
            ("align_kernels", "grams", [np.eye(2)], (*ARRAYS, *OBJECTS)),
            ("kernel_alignment", "gram", np.eye(2), ARRAYS),
        )
    },
    "simulate_decline": options(
        sb.simulate_decline,
        {"num_normal": 3, "num_impaired": 2},
        measure=TEXT,
        num_normal=(*NUMBERS[:8], "3"),
        num_impaired=(*NUMBERS[:8], "3"),
        df=NUMBERS,
        seed=NUMBERS,
    ),
    "simulate_sinusoids": options(
        sb.simulate_sinusoids,
        {"num_points": 3},
        num_points=(*NUMBERS[:8], "3"),
        noise=NUMBERS,
        seed=NUMBERS,
    ),
    "simulate_helices": options(
        sb.simulate_helices,
        {"num_points": 3},
        num_points=(*NUMBERS[:8], "3"),
        noise=NUMBERS,
        seed=NUMBERS,
    ),
    "simulate_walkers": options(
        sb.simulate_walkers,
        {"num_walkers": 2, "num_frames": 12},
        num_walkers=(*NUMBERS[:8], "3"),
        num_frames=(*NUMBERS[:8], "3"),
        noise=NUMBERS,
        seed=NUMBERS,
    ),
}
