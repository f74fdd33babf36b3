"""A method is its model and its card: a toy one goes through all that takes a method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from sidebayes.diagnostics.pictures.report import write_report
from typer.testing import CliRunner

import sidebayes as sb
from sidebayes.cli import app
from sidebayes.commands.complete import engines, methods
from sidebayes.runs.arguments import read_run

RNG = np.random.default_rng(0)
LABELS = np.repeat([0, 1], 12)
X = RNG.poisson(np.array([[2.0, 20.0], [20.0, 2.0]])[LABELS]).astype(float)
LINKS = sb.simulate_links(LABELS, 6, weight=2.0)
QUICK = sb.EM(num_restarts=1, max_steps=20)


def toy(x, links=None, *, num_clusters, concentration=2.0, num_points=None, num_features=2):
    """Counts whose rates differ between clusters; links tie the labels."""
    size, width = (num_points, num_features) if x is None else x.shape
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.full(num_clusters, concentration)))
    with numpyro.plate("clusters", num_clusters):
        rate = numpyro.sample("rate", dist.Gamma(jnp.full(width, 2.0), 0.5).to_event(1))
    graph = sb.LabelGraph.build(sb.Links.empty(), size) if links is None else links
    labels = sb.LinkedCategorical(jnp.log(shares), graph)
    numpyro.sample("x", sb.LinkedMixture(labels, dist.Poisson(rate).to_event(1)), obs=x)


@pytest.fixture(scope="module")
def card():
    found = sb.register(
        sb.Card(
            "toy",
            "Counts in clusters",
            toy,
            engines=("em", "map", "laplace"),
            links="any",
            reference="none",
        )
    )
    yield found
    del sb.CARDS["toy"]


@pytest.fixture(scope="module")
def fit(card):
    start = {"shares": [0.5, 0.5], "rate": [[3.0, 15.0], [15.0, 3.0]]}
    return sb.fit("toy", X, LINKS, num_clusters=2, engine=QUICK, truth=LABELS, init=start)


def test_a_fit_answers(card, fit, tmp_path):
    assert (fit.method, fit.run.card) == ("toy", card)
    assert read_run(toy, (X, LINKS), {"num_clusters": 2}, QUICK).card is card
    np.testing.assert_array_equal(fit.labels() == fit.labels()[0], LABELS == 0)
    assert fit.predict(X[:3]).shape == (3,)
    fit.save(tmp_path / "toy.nc")
    again = sb.load(tmp_path / "toy.nc")  # the card knows the model
    np.testing.assert_array_equal(again.predict(X[:3]), fit.predict(X[:3]))
    assert np.isfinite(fit.resume(5).log_prob(X[:3])).all()


def test_it_is_compared_and_reported(fit, tmp_path):
    other = sb.fit("toy", X, num_clusters=2, engine=sb.MAP(num_restarts=1, max_steps=20))
    assert list(sb.compare({"linked": fit, "alone": other}).frame.index) == ["linked", "alone"]
    page = write_report({"linked": fit, "alone": other}, tmp_path / "report.html")
    assert "toy" in page.read_text("utf-8")


def test_it_is_simulated_and_calibrated(card):
    drawn = sb.prior_predictive("toy", X, num_clusters=2, num_draws=3)
    assert drawn["prior_predictive"]["x"].shape == (1, 3, *X.shape)
    laplace = sb.Laplace(num_restarts=1, num_draws=100)
    found = sb.calibrate(
        "toy", laplace, num_points=6, num_clusters=2, num_simulations=10, progress=False
    )
    assert len(found.ranks) + found.failed == 10


def test_it_is_debugged(card):
    assert "fail" not in str(sb.debug(toy, X, LINKS, num_clusters=2))


def test_the_command_line_knows_it(card, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(X, columns=["a", "b"]).assign(kind=LABELS).to_csv("counts.csv", index=False)

    def run(*words):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "Counts in clusters" in run("list")
    (row,) = [one for one in json.loads(run("list", "--json")) if one["name"] == "toy"]
    assert (row["engines"], row["options"]) == (
        ["em", "map", "laplace"],
        ["concentration", "num_features"],
    )
    quick = ("--setting", "max_steps=5", "--option", "concentration=1.5")
    side = ("--label", "kind", "--num-links", "6", "--num-clusters", "2")
    run("fit", "toy", "counts.csv", *side, *quick, "-o", "toy.nc")
    assert "toy" in run("compare", "toy.nc")
    run("report", "toy.nc", "-o", "report.html")
    assert Path("report.html").is_file()


def test_a_shell_completes_it(card):
    class Context:
        params = {"method": "toy"}  # noqa: RUF012

    assert methods("to") == ["toy"]
    assert engines(Context, "") == ["em", "map", "laplace"]


OWN = """
import sys, numpy as np, sidebayes as sb, numpyro, numpyro.distributions as dist
def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(mean, 1.0).expand([*x.shape]).to_event(2), obs=x)
fit = sb.fit(model, np.eye(4), engine=sb.MAP(num_restarts=1, max_steps=3), progress=False)
from sidebayes.models.gmm import gmm
from sidebayes.runs.arguments import find_method
print(fit.run.card, find_method(gmm)[0].name)
print(*sorted(n for n in sys.modules if n.count(".") == 2 and n.startswith("sidebayes.models.")))
"""


def test_the_card_of_a_model_is_found_without_importing_the_other_models():
    out = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == [
        "None gmm",
        "sidebayes.models.blocks sidebayes.models.gmm",
    ]


def test_what_serves_every_method_names_none():
    rooms = [Path(sb.__file__).parent / "runs", Path(sb.__file__).parent / "commands"]
    for path in (path for room in rooms for path in room.glob("*.py") if path.name != "cards.py"):
        text = path.read_text("utf-8").replace("sidebayes.fit(", "")
        named = [n for n in sb.CARDS if f"'{n}'" in text or f'"{n}"' in text]
        assert named == [], path
