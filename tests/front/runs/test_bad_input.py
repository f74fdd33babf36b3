"""Every way to misuse the front door ends in a message that says what to do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import sidebayes
from sidebayes import Links, fit, load, load_dataset, simulate_links
from sidebayes.cli import app
from tests.support.draws import at_one

X = np.random.default_rng(0).normal(size=(12, 2))
LABELS = np.repeat([0, 1, 2], 4)
LINKS = Links.must_link([(0, 1), (2, 3)])
QUICK = sidebayes.EM(num_restarts=1, max_steps=3)
TOLD = at_one({"weights": [0.5, 0.5], "mean": X[[0, 4]], "covariance": [np.eye(2)] * 2})


def with_nan():
    x = X.copy()
    x[[3, 7], 0] = np.nan
    return x


def constant():
    return np.column_stack([X, np.ones(len(X))])


def ppc(x=X, links=None, num_clusters=2, **options):
    return fit("ppc", x, links, num_clusters=num_clusters, **options)


def no_mixture(x):
    import numpyro
    import numpyro.distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("x", dist.Normal(mean, 1).expand(x.shape).to_event(2), obs=x)


def discrete(x, links):
    import numpyro
    import numpyro.distributions as dist

    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("x", dist.Normal(z, 1).expand(x.shape).to_event(2), obs=x)


def nothing_latent(x):
    import numpyro
    import numpyro.distributions as dist

    numpyro.sample("x", dist.Normal(0, 1).expand(x.shape).to_event(2), obs=x)


CASES = {
    "nothing latent": (
        lambda: fit(nothing_latent, X),
        ValueError,
        "no latent site.*numpyro.sample",
    ),
    "nothing latent for chains": (
        lambda: fit(nothing_latent, X, engine="nuts"),
        ValueError,
        "no latent site",
    ),
    "data missing": (lambda: ppc(None), TypeError, "pass an array of shape"),
    "data of xarray": (
        lambda: ppc(xr.Dataset({"a": ("row", X[:, 0])})),
        TypeError,
        r"x is a Dataset of several variables; pass x\.to_dataframe\(\)",
    ),
    "data a name": (lambda: ppc("iris"), TypeError, "load_dataset"),
    "one axis": (lambda: ppc(X[:, 0]), ValueError, r"for one column pass x\[:, None\]"),
    "three axes": (lambda: ppc(X[None]), ValueError, r"expected \(points, features\)"),
    "no rows": (lambda: ppc(X[:0]), ValueError, "holds no value"),
    "no columns": (lambda: ppc(X[:, :0]), ValueError, "holds no value"),
    "text": (lambda: ppc(np.full((5, 2), "a")), TypeError, "encode or drop"),
    "complex": (lambda: ppc(X.astype(complex)), (TypeError, ValueError), "real numbers"),
    "NaN rows": (lambda: ppc(with_nan()), ValueError, "2 of 12 rows: 3, 7; keep"),
    "infinite": (lambda: ppc(np.where(X > 1, np.inf, X)), ValueError, "missing or infinite"),
    "constant feature": (lambda: ppc(constant()), ValueError, "constant features, in columns 2"),
    "clusters missing": (lambda: ppc(num_clusters=None), TypeError, "num_clusters is missing"),
    "clusters zero": (lambda: ppc(num_clusters=0), ValueError, "expected an integer >= 1"),
    "clusters fraction": (lambda: ppc(num_clusters=2.5), ValueError, "expected an integer >= 1"),
    "clusters bool": (lambda: ppc(num_clusters=True), ValueError, "expected an integer >= 1"),
    "more clusters than points": (lambda: ppc(num_clusters=13), ValueError, "for 12 points"),
    "unknown method": (lambda: fit("pcc", X, num_clusters=2), ValueError, "did you mean 'ppc'"),
    "method a number": (lambda: fit(3, X, num_clusters=2), TypeError, "NumPyro model function"),
    "unknown engine": (
        lambda: ppc(engine="emm"),
        ValueError,
        r"\['cavi', 'componentwise_em', 'continuation', 'em', 'geodesic', 'gibbs'",
    ),
    "unsuited engine": (lambda: ppc(engine="kmeans"), ValueError, "does not suit ppc"),
    "engine without the base class": (
        lambda: ppc(engine=SimpleNamespace(name="own", run=print)),
        TypeError,
        "guides.engines.base.Engine",
    ),
    "engine class": (lambda: ppc(engine=sidebayes.EM), TypeError, r"EM\(num_restarts=20\)"),
    "engine steps": (lambda: sidebayes.EM(max_steps=0), ValueError, "expected a number >= 1"),
    "engine restarts": (lambda: sidebayes.MAP(num_restarts="5"), ValueError, "expected a number"),
    "engine accept": (lambda: sidebayes.NUTS(target_accept=1.0), ValueError, "between 0 and 1"),
    "unknown option": (lambda: ppc(covarience="full"), TypeError, "did you mean 'covariance'"),
    "covariance": (lambda: ppc(covariance="round"), ValueError, "'full', 'tied'"),
    "prior": (lambda: ppc(prior="strong"), ValueError, "'empirical', 'flat' or a GaussianPrior"),
    "reading": (
        lambda: ppc(links=LINKS, reading="prior"),
        ValueError,
        "expected one of .'field', 'relation'",
    ),
    "weight_per": (lambda: ppc(links=LINKS, weight_per="all"), ValueError, "'point' or 'chunklet'"),
    "inference": (lambda: ppc(links=LINKS, inference="magic"), ValueError, "mean_field"),
    "reliability of a field": (
        lambda: ppc(links=LINKS.with_strength(1.0), flip_rate="learned"),
        ValueError,
        "reading='relation'",
    ),
    "seed": (lambda: ppc(seed=-1), ValueError, "expected an integer >= 0"),
    "dtype": (lambda: ppc(dtype="float16"), ValueError, "'float64' or 'float32'"),
    "truth": (lambda: ppc(truth=[0, 1]), ValueError, r"expected \(12,\)"),
    "names": (lambda: ppc(feature_names=["a"]), ValueError, "1 name for 2 features"),
    "init kind": (lambda: ppc(init="em"), TypeError, "another Fit"),
    "init sites": (lambda: ppc(init={"mean": X[:2]}), ValueError, "covariance"),
    "links as list": (lambda: ppc(links=[(0, 1)]), TypeError, "Links.from_pairs"),
    "links for the plain mixture": (
        lambda: fit("gmm", X, LINKS, num_clusters=2),
        ValueError,
        "takes no links",
    ),
    "links for other points": (
        lambda: ppc(links=Links.must_link([(0, 1)], num_points=20)),
        ValueError,
        r"links.subset\(rows\)",
    ),
    "links out of range": (
        lambda: ppc(links=Links.must_link([(0, 12)])),
        ValueError,
        "out of range",
    ),
    "soft links for hard K-means": (
        lambda: fit("constrained_kmeans", X, LINKS.with_strength(1.0), num_clusters=2),
        ValueError,
        "links.hardened",
    ),
    "self link": (lambda: Links.must_link([(7, 7)]), ValueError, "joins a point to itself"),
    "negative index": (lambda: Links.must_link([(-1, 2)]), ValueError, "rows count from 0"),
    "indices not integers": (lambda: Links.must_link([(0.5, 2)]), TypeError, "integer row numbers"),
    "links shape": (lambda: Links.must_link([(0, 1, 2)]), ValueError, r"shape \(links, 2\)"),
    "weight NaN": (lambda: Links.must_link([(0, 1)], np.nan), ValueError, "is NaN"),
    "weight negative": (lambda: Links.must_link([(0, 1)], -1.0), ValueError, "number >= 0"),
    "confidence": (
        lambda: Links.from_confidence([(0, 1)], True, 1.2),
        ValueError,
        "is not a probability",
    ),
    "must and cannot": (
        lambda: LINKS + Links.cannot_link([(0, 1)]),
        ValueError,
        "both as a hard must-link",
    ),
    "contradiction names its path": (
        lambda: ppc(links=Links.must_link([(0, 1), (1, 2)]) + Links.cannot_link([(0, 2)])),
        ValueError,
        r"cannot-link \(0, 2\) contradicts must-links 0–1–2",
    ),
    "too few clusters for cannot-links": (
        lambda: ppc(links=Links.cannot_link([(0, 1), (1, 2), (0, 2)])),
        ValueError,
        "cluster",
    ),
    "no labels": (
        lambda: fit(no_mixture, X, engine=QUICK).labels(),
        ValueError,
        "no_mixture has no labels.* it observes no mixture",
    ),
    "clusters for a model without": (
        lambda: fit(no_mixture, X, num_clusters=2),
        TypeError,
        "no parameter num_clusters",
    ),
    "constant feature of another model": (
        lambda: fit("gmm", constant(), num_clusters=2),
        ValueError,
        r"drop them, x\[:, np.nanmax\(x, axis=0\) > np.nanmin\(x, axis=0\)\]",
    ),
    "discrete site": (lambda: fit(discrete, X), TypeError, "discrete latent"),
    "links for a model without": (lambda: fit(no_mixture, X, LINKS), ValueError, "takes no links"),
    "named links for a model without": (
        lambda: fit(no_mixture, X, links=LINKS),
        ValueError,
        "takes no links",
    ),
    "unknown data": (lambda: load_dataset("irsi"), ValueError, "did you mean 'iris'"),
    "size of real data": (lambda: load_dataset("iris", num_points=5), ValueError, "simulated"),
    "too many pairs": (lambda: simulate_links(LABELS, 67), ValueError, "at most 66 pairs"),
    "disjoint pairs": (lambda: simulate_links(LABELS, 7, disjoint=True), ValueError, "at most 6"),
    "flip rate": (lambda: simulate_links(LABELS, 2, flip_rate=2), ValueError, r"in \[0, 1\]"),
    "no such file": (lambda: load("nowhere.nc"), ValueError, "there is no file nowhere.nc"),
    "not a fit": (lambda: load(__file__), ValueError, "give one that Fit.save wrote"),
    "a folder of links": (lambda: Links.read("."), ValueError, "is a folder; name a table in it"),
    "no file of links": (lambda: Links.read("no.csv"), ValueError, "there is no file no.csv"),
    "a folder of fits": (lambda: load("."), ValueError, "is a folder"),
    "truth of lists": (lambda: ppc(truth=[[0], [1, 2]] * 6), TypeError, "truth = .*one length"),
    "truth complex": (lambda: ppc(truth=[1j] * 12), TypeError, "truth holds complex numbers"),
    "prior of text": (
        lambda: sidebayes.GaussianPrior("ab", 1.0, 5.0, np.eye(2)),
        TypeError,
        "mean = 'ab'; expected real numbers",
    ),
    "prior shrinkage": (
        lambda: sidebayes.GaussianPrior(X[0], "1", 5.0, np.eye(2)),
        ValueError,
        r"shrinkage='1'\): expected a number > 0",
    ),
    "seed of folds": (
        lambda: ppc(engine=TOLD).kfold(2, seed=-1, progress=False),
        ValueError,
        "seed = -1; expected an integer >= 0",
    ),
    "seed of a calibration": (
        lambda: sidebayes.calibrate("gmm", "nuts", num_points=5, num_clusters=2, seed=1.5),
        ValueError,
        "seed = 1.5; expected an integer",
    ),
    "neighbours": (
        lambda: Links.from_neighbors(X, 2.5, 1.0),
        ValueError,
        "num_neighbors = 2.5; expected an integer",
    ),
    "a kernel of text": (
        lambda: sidebayes.GraphKernel.build(X, parameter="much"),
        ValueError,
        "parameter = 'much'; expected a (finite )?number > 0",
    ),
    "weights of text": (
        lambda: Links.must_link([(0, 1)], "strong"),
        TypeError,
        "weight = 'strong'; expected real numbers",
    ),
    "points of text": (
        lambda: Links.must_link([(0, 1)], num_points="12"),
        ValueError,
        "num_points = '12'; expected an integer",
    ),
    "groups of all sorts": (
        lambda: sidebayes.Groups([1, None, "a", object()]),
        TypeError,
        "groups mixes names",
    ),
    "labels for log weights": (
        lambda: sidebayes.LinkedCategorical([0.5, 0.5], None),
        TypeError,
        r"expected an array of shape \(num_clusters,\)",
    ),
    "nothing to compare": (lambda: sidebayes.compare({}), ValueError, "fits is empty"),
    "compare a list": (lambda: sidebayes.compare([1]), TypeError, "pass a mapping"),
    "compare numbers": (lambda: sidebayes.compare({"a": 1}), TypeError, "expected a Fit"),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case):
    call, error, message = CASES[case]
    with pytest.raises(error, match=message):
        call()


COMMANDS = {
    "method": (["fit", "kmeanz", "iris"], "there is no method 'kmeanz'"),
    "engine": (["fit", "ppc", "iris", "--engine", "vi"], "there is no engine 'vi'"),
    "data": (["fit", "ppc", "wines"], "did you mean 'wine'"),
    "data file": (["fit", "ppc", "nowhere.csv"], "there is no file nowhere.csv"),
    "links file": (["fit", "ppc", "iris", "--links", "no.csv"], "there is no file no.csv"),
    "both links": (
        ["fit", "ppc", "iris", "--links", "a.csv", "--num-links", "3"],
        "choose one",
    ),
    "links for gmm": (["fit", "gmm", "iris", "--num-links", "5"], "has no use for --num-links"),
    "flip rate": (["fit", "ppc", "iris", "--num-links", "5", "--flip-rate", "1.5"], "probability"),
    "option": (["fit", "ppc", "iris", "--option", "covariance"], "expected name=value"),
    "setting": (["fit", "ppc", "iris", "--setting", "steps=3"], "has no such setting"),
    "setting that is near": (
        ["fit", "ppc", "iris", "--setting", "tool=3"],
        "no such setting (did you mean 'tol'?); it has ['tol', 'max_steps'",
    ),
    "clusters": (["fit", "ppc", "iris", "--num-clusters", "0"], "expected an integer >= 1"),
    "compare": (["compare", "nowhere.nc"], "there is no file nowhere.nc"),
    "report": (["report", "nowhere.nc"], "there is no file nowhere.nc"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_command(case, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments, message = COMMANDS[case]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_table_is_long_enough():
    assert len(CASES) + len(COMMANDS) >= 40


@pytest.mark.parametrize(
    "x",
    [
        np.repeat(X[:3], 4, axis=0),
        X[:4] @ np.eye(2, 6) + 1e-3 * np.random.default_rng(1).normal(size=(4, 6)),
    ],
    ids=["duplicated points", "fewer points than features"],
)
def test_hard_but_legitimate_data(x):
    found = ppc(x, engine=sidebayes.EM(num_restarts=2, max_steps=20))
    assert found.responsibilities().shape == (len(x), 2)
    assert np.isfinite(found.params["covariance"]).all()


def test_one_cluster_and_no_links():
    found = ppc(links=Links.empty(), num_clusters=1, engine=sidebayes.EM(num_restarts=1))
    assert set(found.labels()) == {0}
    np.testing.assert_allclose(found.params["weights"], 1.0)


def test_links_after_filtering_rows():
    rows = np.array([0, 1, 4, 5, 6])
    found = ppc(X[rows], LINKS.subset(rows), engine=TOLD)
    assert len(found.links) == 1
    assert found.labels()[0] == found.labels()[1]


def test_all_options_of_a_model_are_listed():
    def model(x, *, num_clusters=2):
        """Refused before it is traced."""

    with pytest.raises(TypeError, match=r"'num_clusters'\?\); its options: \['num_clusters'\]"):
        fit(model, np.eye(3), num_cluster=2)
    with pytest.raises(TypeError, match="lacks data: x is missing .*It has no argument 'y'$"):
        fit(model, y=np.eye(3))


def table_of_visits():
    return pd.DataFrame({"y": X[:, 0], "time": np.tile(np.arange(4.0), 3), "who": LABELS})


@pytest.mark.parametrize(
    ("method", "data", "message"),
    [
        ("mixed_effects", (table_of_visits(),), r"\*\*sidebayes.design\(.*, table\) gives them"),
        ("joint_survival", (X[:, 0],), r"\*\*sidebayes.design\(.*, table\).survival\(...\) gives"),
        ("mixed_effects", ({"y": X[:, 0], "fixed": X},), r"a dict by position; .*\*\*design"),
        ("gmm", ({"x": X},), r"gmm is given a dict by position"),
        ("gmm", ({"height": X[:, 0], "width": X[:, 1]},), r"e.g. pandas.DataFrame\(x\)"),
        ("latent_shape", (X,), "lacks data: subjects is missing or None, pass the group"),
        ("hierarchical_shape", (X,), "sidebayes.Landmarks holds them"),
    ],
)
def test_lacking_data_are_said_with_what_makes_them(method, data, message):
    with pytest.raises(TypeError, match=message) as caught:
        fit(method, *data)
    assert "iris" not in str(caught.value)  # which has no subjects, and no landmarks
