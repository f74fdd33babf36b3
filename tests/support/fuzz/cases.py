"""Public callables, arguments that serve, and the odd values to put in their place."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist

import sidebayes as sb
from sidebayes import GaussianPrior, Groups, LabelGraph, Links, PartialLabels
from sidebayes.runs.zoo import ENGINES
from tests.support.fuzz.odd import (
    ARRAYS,
    COLUMNS,
    DRAWS,
    FIT,
    FORMULA,
    FORMULAS,
    LABELS,
    LINKS,
    NUMBERS,
    OBJECTS,
    PAIRS,
    PATHS,
    PRIOR,
    QUICK,
    TABLE,
    TABLES,
    TEXT,
    X,
    of_fit,
)


def plain(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(mean, 1.0).expand(np.shape(x)).to_event(np.ndim(x)), obs=x)


class Case(NamedTuple):
    """A callable, with a value for each argument that serves, and values to put in its place."""

    call: Any
    good: dict[str, Any]
    odd: dict[str, tuple]
    examples: int = 60


def options(call: Any, good: dict[str, Any], examples: int = 60, **odd: tuple) -> Case:
    return Case(call, good, odd, examples)


def of_class(kind: type) -> Case:
    """A configuration, all of whose fields take numbers, names or nothing."""
    names = [field.name for field in fields(kind)]
    return Case(kind, {}, dict.fromkeys(names, (*NUMBERS, *TEXT)), 100)


def given_fit(**arguments: Any) -> Any:
    return sb.fit("ppc", **{"engine": QUICK, "progress": False} | arguments)


CASES = {
    **{
        path.partition(":")[2]: of_class(getattr(sb, path.partition(":")[2]))
        for path in ENGINES.values()
    },
    **{
        n: of_class(getattr(sb, n))
        for n in ("Exact", "MeanField", "BeliefPropagation", "GibbsLabels")
    },
    "GaussianPrior": options(
        GaussianPrior,
        {"mean": np.zeros(2), "shrinkage": 1.0, "df": 5.0, "scale": np.eye(2)},
        150,
        mean=ARRAYS,
        shrinkage=NUMBERS,
        df=NUMBERS,
        scale=ARRAYS,
    ),
    "GaussianPrior.empirical": options(
        GaussianPrior.empirical, {"x": X, "num_clusters": 2}, x=ARRAYS, num_clusters=NUMBERS
    ),
    "GaussianPrior.by_evidence": options(
        GaussianPrior.by_evidence,
        {"x": X, "num_clusters": 2, "seed": 0},
        x=ARRAYS,
        num_clusters=NUMBERS,
        seed=NUMBERS,
    ),
    "Anchors": options(
        sb.Anchors,
        {"points": X, "classes": LABELS, "clusters": LABELS, "table": np.full((3, 3), 1 / 3)},
        points=ARRAYS,
        classes=ARRAYS,
        clusters=ARRAYS,
        table=ARRAYS,
    ),
    "PartialLabels": options(PartialLabels, {"values": LABELS}, values=ARRAYS),
    "Groups": options(Groups, {"values": LABELS}, values=ARRAYS),
    "Groups.take": options(Groups(LABELS).take, {"rows": [0]}, rows=ARRAYS),
    "Groups.subset": options(Groups(LABELS).subset, {"rows": [0]}, rows=ARRAYS),
    "Groups.codes_of": options(Groups(LABELS).codes_of, {"values": [0]}, values=ARRAYS),
    "Links": options(
        Links,
        {"pairs": PAIRS, "weights": 1.0},
        150,
        pairs=ARRAYS,
        weights=ARRAYS,
        num_points=NUMBERS,
        group=ARRAYS,
        columns=(*ARRAYS, *COLUMNS),
    ),
    **{
        f"Links.{name}": options(
            getattr(Links, name), {"pairs": PAIRS}, pairs=ARRAYS, weight=ARRAYS, num_points=NUMBERS
        )
        for name in ("must_link", "cannot_link")
    },
    "Links.empty": options(Links.empty, {}, num_points=NUMBERS),
    "Links.from_pairs": options(
        Links.from_pairs,
        {"pairs": PAIRS, "same": True},
        pairs=ARRAYS,
        same=(*ARRAYS, *NUMBERS, *TEXT),
        weight=NUMBERS,
        num_points=NUMBERS,
    ),
    "Links.from_confidence": options(
        Links.from_confidence,
        {"pairs": PAIRS, "same": True, "confidence": 0.8},
        pairs=ARRAYS,
        same=ARRAYS,
        confidence=(*ARRAYS, *NUMBERS),
    ),
    "Links.from_labels": options(Links.from_labels, {"labels": LABELS}, labels=ARRAYS),
    "Links.from_groups": options(
        Links.from_groups, {"groups": LABELS}, groups=ARRAYS, weight=NUMBERS
    ),
    "Links.from_grid": options(
        Links.from_grid,
        {"shape": (2, 3), "weight": 1.0},
        shape=(*TEXT, (0, 1), (2,), (1.5, 2), ("2", 2), [2, 2], (True, 2)),
        weight=NUMBERS,
    ),
    "Links.from_neighbors": options(
        Links.from_neighbors,
        {"x": X, "num_neighbors": 2, "weight": 1.0},
        x=ARRAYS,
        num_neighbors=NUMBERS,
        weight=NUMBERS,
    ),
    "Links.read": options(Links.read, {"path": "no.csv"}, path=PATHS, num_points=NUMBERS),
    "Links.write": options(LINKS.write, {"path": "/"}, path=PATHS[:10]),
    "Links.with_strength": options(
        LINKS.with_strength, {"weight": 1.0}, weight=(*NUMBERS, *ARRAYS)
    ),
    "Links.with_weights": options(LINKS.with_weights, {"weights": 1.0}, weights=ARRAYS),
    "Links.take": options(LINKS.take, {"links": [0]}, links=ARRAYS),
    "Links.__add__": options(LINKS.__add__, {"other": LINKS}, other=OBJECTS),
    "Links.subset": options(LINKS.subset, {"rows": [0]}, rows=ARRAYS),
    "Links.check": options(LINKS.check, {}, num_points=NUMBERS, num_clusters=NUMBERS),
    "LabelGraph": options(
        LabelGraph.build,
        {"links": LINKS, "num_points": 12},
        links=OBJECTS,
        num_points=NUMBERS,
        num_clusters=NUMBERS,
    ),
    "LinkedCategorical": options(
        sb.LinkedCategorical,
        {"log_weights": np.log([0.5, 0.5]), "graph": LabelGraph.build(LINKS, 12)},
        log_weights=ARRAYS[:20],
        graph=OBJECTS,
        reading=TEXT,
        inference=TEXT,
    ),
    "LinkedMixture": options(
        sb.LinkedMixture,
        {
            "labels": sb.LinkedCategorical(np.log([0.5, 0.5]), LabelGraph.build(LINKS, 12)),
            "components": dist.Normal(np.zeros(2), 1.0),
        },
        labels=OBJECTS,
        components=OBJECTS,
    ),
    "flip_rate_weight": options(
        sb.flip_rate_weight, {"flip_rate": 0.1}, flip_rate=(*NUMBERS, *ARRAYS)
    ),
    "estimate_flip_rate": options(
        sb.estimate_flip_rate, {"pairs": PAIRS, "labels": LABELS}, pairs=ARRAYS, labels=ARRAYS
    ),
    "certainty_weight": options(
        sb.certainty_weight,
        {"certainty": 0.8, "same": True, "weights": [0.5, 0.5]},
        certainty=(*NUMBERS, *ARRAYS),
        same=(*NUMBERS, *TEXT),
        weights=(*NUMBERS, *ARRAYS),
    ),
    "separate_pairs": options(
        sb.separate_pairs, {"links": LINKS, "num_points": 12}, num_points=NUMBERS, links=OBJECTS
    ),
    "simulate_links": options(
        sb.simulate_links,
        {"labels": LABELS, "num_pairs": 3},
        labels=ARRAYS,
        num_pairs=NUMBERS,
        flip_rate=NUMBERS,
        weight=NUMBERS,
        seed=NUMBERS,
    ),
    "LinkedKFold": options(sb.LinkedKFold, {"links": LINKS}, links=OBJECTS, n_splits=NUMBERS),
    "LinkedKFold.split": options(
        lambda **given: list(sb.LinkedKFold(LINKS, 2).split(**given)),
        {"X": X},
        X=ARRAYS,
        groups=ARRAYS,
    ),
    "EffectsPrior": options(
        sb.EffectsPrior,
        {"mean": [0.0], "scale": [1.0], "deviation": [1.0], "noise": 1.0},
        150,
        mean=ARRAYS,
        scale=ARRAYS,
        deviation=ARRAYS,
        noise=(*ARRAYS, *NUMBERS),
        concentration=(*NUMBERS, *TEXT),
    ),
    "EffectsPrior.weak": options(
        sb.EffectsPrior.weak,
        {"y": X[:, 0], "fixed": X, "random": X[:, :1]},
        150,
        y=ARRAYS,
        fixed=ARRAYS,
        random=ARRAYS,
        outputs=(*ARRAYS, np.eye(3)[LABELS]),
        width=NUMBERS,
        concentration=NUMBERS,
    ),
    "design": options(
        sb.design, {"formula": FORMULA, "table": TABLE}, formula=FORMULAS, table=TABLES
    ),
    "mixed_table": options(
        sb.mixed_table,
        {"frame": TABLE},
        frame=TABLES,
        kinds=(*OBJECTS, {"y": "count"}, {"who": "normal"}, {"z": "count"}, {"y": "ordered"}),
    ),
    "MixedTable": options(
        lambda frame: sb.mixed_table(TABLE).at(frame), {"frame": TABLE}, frame=TABLES
    ),
    "Design": options(
        sb.Design, {"formulas": [FORMULA], "table": TABLE}, formulas=FORMULAS, table=TABLES
    ),
    "Design.at": options(
        lambda **given: sb.design(FORMULA, TABLE).at(**given),
        {"table": TABLE},
        table=TABLES,
        output=TEXT,
    ),
    "load_dataset": options(
        sb.load_dataset,
        {"name": "art1", "num_points": 10},
        name=PATHS[:10],
        num_points=NUMBERS[:20],
        seed=NUMBERS,
        label=TEXT,
        drop=TEXT[1:],
    ),
    "scan": options(
        sb.scan, {"path": "no.npy"}, path=(*PATHS, [], ["a.npy", 3], {"a.npy"}), columns=OBJECTS
    ),
    "fit_each": options(
        lambda each, **given: sb.fit_each(each, X, method="gmm", engine=QUICK, **given),
        {"each": {"a": {"num_clusters": 2}}},
        20,
        each=(*OBJECTS, {}, {"a": None}, {3: {"num_clusters": 2}}, {"a/b": {"num_clusters": 2}}),
        n_jobs=(0, 1.5, "2", np.nan, None),
        folder=PATHS[:5],
    ),
    "load": options(sb.load, {"path": "no.nc"}, path=PATHS),
    "compare": options(sb.compare, {"fits": {"a": FIT}}, 20, fits=(*OBJECTS, {"a": 1}, {1: FIT})),
    "debug": options(sb.debug, {"model": plain}, 20, model=OBJECTS[:-1]),
    "register": options(sb.register, {"card": None}, 20, card=OBJECTS),
    "Card": options(
        lambda **given: sb.CARDS.pop(sb.register(sb.Card(**given)).name),
        {
            "name": "of a fuzz test",
            "title": "A mixture",
            "model_path": plain,
            "engines": ("em",),
            "links": "none",
            "reference": "",
        },
        name=TEXT,
        title=TEXT,
        model_path=OBJECTS,
        engines=TEXT,
        links=TEXT,
        routine_path=TEXT,
    ),
    "suggest_links": options(
        sb.suggest_links,
        {"fit": FIT, "num_pairs": 2},
        fit=OBJECTS,
        num_pairs=NUMBERS,
        num_candidates=NUMBERS[:20],
        seed=NUMBERS,
    ),
    "choose_strength": options(
        sb.choose_strength,
        {"x": X, "links": LINKS, "num_clusters": 2},
        x=ARRAYS[:20],
        links=OBJECTS,
        num_clusters=(0, -1, 2.5, "2", None, np.nan, 13),
        patience=(0, -1, 2.5, "2", None, np.nan),
        seed=(-1, 2.5, "2", np.nan),
    ),
    "select_clusters": options(
        sb.select_clusters,
        {"x": X, "links": LINKS, "most_components": 2, "strengths": (1.0,), "progress": False},
        x=ARRAYS[:20],
        links=OBJECTS,
        num_clusters=(0, -1, 2.5, "2", np.nan, 13),
        most_components=(0, -1, 2.5, "2", None, np.nan),
        strengths=((), (-1.0,), ("a",), None, 3.0, (np.nan,)),
        num_splits=(0, -1, 2.5, "2", None, np.nan),
        patience=(0, -1, 2.5, "2", None, np.nan),
        seed=(-1, 2.5, "2", np.nan),
        engine=OBJECTS,
    ),
    "select_components": options(
        lambda method, x, **given: sb.select_components(
            method, x, engine=QUICK, progress=False, **given
        ),
        {"method": "gmm", "x": X, "num_clusters": [1, 2]},
        x=ARRAYS[:20],
        method=(*TEXT, "nfgl", "pfgl", None, 3),
        num_clusters=((), [0], [2.5], "12", None, 3, [np.nan], range(3), [13]),
        criterion=(*TEXT, None, "evidence"),
        beyond=OBJECTS,
        seed=(-1, 2.5, "2", np.nan),
    ),
    "GraphKernel.build": options(
        sb.GraphKernel.build,
        {"x": X, "num_neighbors": 4},
        x=ARRAYS,
        kind=TEXT,
        parameter=NUMBERS,
        bandwidth=NUMBERS,
        num_neighbors=NUMBERS,
        num_eigenpairs=NUMBERS,
    ),
    "choose_graph_kernel": options(
        sb.choose_graph_kernel,
        {"x": X, "links": LINKS, "num_neighbors": 4},
        x=ARRAYS,
        links=OBJECTS,
        num_clusters=NUMBERS,
    ),
    "calibrate": options(
        sb.calibrate,
        {
            "method": "gmm",
            "engine": DRAWS,
            "num_points": 5,
            "num_clusters": 2,
            "num_simulations": 5,
        },
        num_points=(0, -1, 2.5, "2", None),
        num_clusters=(0, -1, 2.5, "2", None, 6),
        seed=(-1, 2.5, "2", None),
        method=TEXT,
        engine=TEXT,
        links=OBJECTS[1:9],
    ),
    "reference": options(
        sb.reference,
        {"method": "gmm", "num_clusters": 1, "x": X, "prior": PRIOR, "progress": False},
        10,
        # a run takes seconds, so that none of these is good
        num_clusters=(0, -1, 2.5, "2", None, np.nan, 13),
        seed=(-1, 2.5, "2", None),
        ess=(0, -1, "2", None, np.nan),
        max_draws=(0, -1, 2.5, "2", None, np.nan),
        engine=TEXT,
    ),
    "prior_predictive": options(
        sb.prior_predictive,
        {"method": "gmm", "num_clusters": 2, "num_draws": 2, "x": X, "prior": PRIOR},
        20,
        num_clusters=(0, -1, 2.5, "2", None, np.nan, 13),
        num_draws=(0, -1, 2.5, "2", None, np.nan),
        seed=(-1, 2.5, "2", None, 2**70),
        x=ARRAYS[:20],
        prior=TEXT,
    ),
    "fit": options(
        given_fit,
        {"x": X, "num_clusters": 2},
        200,
        x=ARRAYS,
        links=OBJECTS[1:],
        num_clusters=(0, -1, 2.5, "2", None, np.nan, True, 13, 10**400),
        engine=TEXT[1:],
        seed=(-1, 2.5, "2", None, np.nan, 2**70, X),
        init=(*TEXT[1:], {"mean": 0}, {"x": X}),
        dtype=TEXT,
        truth=ARRAYS[1:],
        feature_names=(*TEXT[1:], ["$x", "\\frac"], ["a", "a"], [1, 2]),
        covariance=TEXT,
        prior=TEXT,
        reading=TEXT,
        inference=TEXT,
        weight_per=TEXT,
        flip_rate=TEXT[1:],
        no_such_option=TEXT,
    ),
    "Fit.from_draws": options(
        lambda model, data, draws: sb.Fit.from_draws(
            model, data, draws.tree if isinstance(draws, sb.Fit) else draws, num_clusters=2
        ),
        {"model": "ppc", "data": {"x": X, "links": LINKS}, "draws": FIT},
        20,
        model=(*TEXT, None, 3),
        data=(*ARRAYS[:20], {}, {"x": X, "y": X}),
        draws=(*OBJECTS, {"mean": X}, {"mean": None}, *PATHS[:5]),
    ),
    "Fit.predict": options(of_fit("predict"), {"x": X}, x=ARRAYS),
    "Fit.same_cluster": options(of_fit("same_cluster"), {"pairs": PAIRS}, pairs=ARRAYS),
    "Fit.resume": options(of_fit("resume"), {"more": 1}, 20, more=NUMBERS),
    "Fit.kfold": options(
        of_fit("kfold"),
        {"num_folds": 99},
        20,
        num_folds=NUMBERS[:2] + NUMBERS[3:],
        seed=(-1, 2.5, "2", None, np.nan),
    ),
    "Fit.save": options(of_fit("save"), {"path": "/"}, 20, path=PATHS[:10]),
    "Fit.score_links": options(
        of_fit("score_links"), {"links": LINKS}, 20, links=OBJECTS, flip_rate=NUMBERS
    ),
    "Fit.suspect_links": options(
        of_fit("suspect_links"), {}, 30, flip_rate=NUMBERS, inference=TEXT
    ),
}
