"""Bad input, drawn by type, to every public callable: it works, or the library says what is wrong."""

from __future__ import annotations

import ast
import traceback
import warnings
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sidebayes as sb
from sidebayes import GaussianPrior, Groups, LabelGraph, Links, PartialLabels
from sidebayes.zoo import ENGINES

pytestmark = pytest.mark.slow

ROOT = Path(sb.__file__).resolve().parents[1]
REFUSALS = (ValueError, TypeError, OSError, ImportError, sb.FitError)

X = np.random.default_rng(0).normal(size=(12, 2))
LABELS = np.repeat([0, 1, 2], 4)
PAIRS = [(0, 1), (2, 3), (4, 9)]
LINKS = Links.must_link(PAIRS, 2.0, num_points=12)
PRIOR = GaussianPrior(np.zeros(2), 1.0, 5.0, np.eye(2))
QUICK = sb.EM(num_restarts=1, max_steps=2)
DRAWS = sb.BlockedGibbs(num_warmup=1, num_samples=20, num_chains=1)
FIT = sb.fit("ppc", X, LINKS, num_clusters=2, engine=QUICK, progress=False)

NUMBERS = (-1, 0, 1, 2.5, 3.0, np.nan, np.inf, -np.inf, True, None, "3", "", b"1", [1], (), {}, 1j)
NUMBERS = (
    *NUMBERS,
    10**400,
    2**63,
    np.float32(0.5),
    np.int8(2),
    np.array([1, 2]),
    np.array(1.0),
    X,
)
TEXT = (None, 3, "", "no such name", b"em", ["em"], ("em",), {}, 1.5, X, object(), "a\0b")
ARRAYS = (
    *(None, "x", 3, np.nan, True, object(), [], [[]], [0], [0, 1], [-1, 5], [0.5, 1.0], ["a", 1]),
    *([np.nan, 1.0], [[0, 1], [1, 2]], [(0, 0)], [(0, 12)], [(0, 2**31)], [(0, 2**63)], [(0, -1)]),
    *(
        [[0], [1, 2]],
        [object()],
        {"a": [1]},
        {(0, 1)},
        [1j, 2],
        X,
        X[None],
        X.astype(str),
        -X[:, 0],
    ),
    *(np.full((12, 2), np.inf), np.ones((12, 2), bool), np.zeros((0, 2)), np.zeros((12, 0))),
    *(np.ma.masked_array(LABELS, LABELS == 1), np.arange(2).astype("datetime64[D]")),
    *(pd.DataFrame({"a": [0.0, 1.0], "b": ["u", "v"]}), pd.Series([1, None]), LABELS, LABELS[:5]),
)
PATHS = (None, 3, "", "/", ".", "no/such/file.nc", "no.csv", "a\0b", b"x", "x" * 5000, __file__, [])
OBJECTS = (None, 3, "x", X, [], {}, object(), sb.EM, QUICK, LINKS, FIT, PRIOR, lambda x: None)

SERIES = {"y": X[:, 0], "fixed": X, "random": X, "subjects": LABELS}
TABLE = sb.LongTable.from_times(X[:, 0], np.tile([0.0, 1.0, 2.0, 3.0], 3), LABELS)
PEOPLE = sb.Population([0.0, 1.0], np.eye(2), 1.0)


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
    "PartialLabels": options(PartialLabels, {"values": LABELS}, values=ARRAYS),
    "Groups": options(Groups, {"values": LABELS}, values=ARRAYS),
    "Groups.subset": options(Groups(LABELS).subset, {"rows": [0]}, rows=ARRAYS),
    "Groups.codes_of": options(Groups(LABELS).codes_of, {"values": [0]}, values=ARRAYS),
    "Links": options(
        Links,
        {"pairs": PAIRS, "weights": 1.0},
        150,
        pairs=ARRAYS,
        weights=ARRAYS,
        num_points=NUMBERS,
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
    "load_dataset": options(
        sb.load_dataset,
        {"name": "art1", "num_points": 10},
        name=PATHS[:10],
        num_points=NUMBERS[:20],
        seed=NUMBERS,
        label=TEXT,
        drop=TEXT[1:],
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
    "LongTable.take": options(TABLE.take, {"subjects": [0]}, subjects=ARRAYS),
    "LongTable.by_subject": options(TABLE.by_subject, {"values": LABELS}, values=ARRAYS),
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
        sb.estimate_population, {"table": TABLE}, 30, table=OBJECTS, max_steps=NUMBERS
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
        {"table": TABLE, "labels": [0, 1, 0], "populations": [PEOPLE] * 2},
        table=OBJECTS,
        labels=ARRAYS,
        costs=ARRAYS,
        populations=OBJECTS[:-1],
    ),
    "FisherFeatures": options(
        lambda table, labels, **given: sb.FisherFeatures(**given).fit(table, labels),
        {"table": TABLE, "labels": [0, 1, 0], "populations": [PEOPLE] * 2, "design": "A"},
        table=OBJECTS,
        labels=ARRAYS,
        design=TEXT,
        populations=OBJECTS[1:],
        num_draws=NUMBERS[:15],
    ),
    "LeastSquaresFeatures": options(
        lambda table: sb.LeastSquaresFeatures().fit(table), {"table": TABLE}, 20, table=OBJECTS
    ),
    "SeriesKernel": options(
        lambda table, **given: sb.SeriesKernel(**given).fit(table),
        {"table": TABLE, "length": 1.0, "noise": 0.5},
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
    "Fit.predict": options(FIT.predict, {"x": X}, x=ARRAYS),
    "Fit.same_cluster": options(FIT.same_cluster, {"pairs": PAIRS}, pairs=ARRAYS),
    "Fit.resume": options(FIT.resume, {"more": 1}, 20, more=NUMBERS),
    "Fit.kfold": options(
        FIT.kfold,
        {"num_folds": 99},
        20,
        num_folds=NUMBERS[:2] + NUMBERS[3:],
        seed=(-1, 2.5, "2", None, np.nan),
    ),
    "Fit.save": options(FIT.save, {"path": "/"}, 20, path=PATHS[:10]),
    "Fit.score_links": options(
        FIT.score_links, {"links": LINKS}, 20, links=OBJECTS, flip_rate=NUMBERS
    ),
    "Fit.suspect_links": options(FIT.suspect_links, {}, 30, flip_rate=NUMBERS, inference=TEXT),
}


@cache
def refusing_lines(file: str) -> set[int]:
    """Lines of a file that belong to statements that raise."""
    tree = ast.parse(Path(file).read_text())
    spans = (
        (n.lineno, n.end_lineno or n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Raise)
    )
    return {line for first, last in spans for line in range(first, last + 1)}


def is_ours(error: Exception) -> bool:
    """Whether an error was raised by the library, in words of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(last.filename).resolve()
    inside = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests")
    return inside and last.lineno in refusing_lines(str(path))


def no_network(*_: Any, **__: Any) -> None:
    raise OSError("tests ask no network")


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name, tmp_path_factory, monkeypatch):
    case = CASES[name]
    monkeypatch.chdir(tmp_path_factory.mktemp("fuzz"))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", no_network)

    @settings(
        max_examples=case.examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def draw(data):
        changed = data.draw(st.lists(st.sampled_from(sorted(case.odd)), min_size=1, max_size=2))
        arguments = case.good | {
            one: case.odd[one][data.draw(st.integers(0, len(case.odd[one]) - 1))] for one in changed
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sb.SideBayesWarning)
            try:
                case.call(**arguments)
            except REFUSALS as error:
                if not is_ours(error):
                    raise

    draw()


def test_nothing_public_is_left_out():
    tried = {name.partition(".")[0] for name in CASES}
    others = {"CARDS", "Fit", "FitError", "SideBayesWarning", "datasets", "LinkedMixtureClusterer"}
    assert set(sb.__all__) - tried <= others
