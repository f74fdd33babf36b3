"""The command line, from a fit to a report."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import sidebayes
from sidebayes import demo
from sidebayes.cli import app
from sidebayes.zoo import CARDS


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list():
    text = run("list")
    assert all(name in text for name in CARDS)
    rows = json.loads(run("list", "--json"))
    assert [row["name"] for row in rows] == list(CARDS)
    assert "covariance" in rows[0]["options"]
    assert all(row["reference"] and row["engines"] for row in rows)


def test_fit_compare_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ("--setting", "num_restarts=1", "--setting", "max_steps=5")
    run("fit", "gmm", "four_gaussians", "--option", "covariance=spherical", *quick, "-o", "a.nc")
    links = sidebayes.simulate_links(sidebayes.load_dataset("four_gaussians").labels, 10)
    links.write("links.csv")
    text = run("fit", "ppc", "four_gaussians", "--links", "links.csv", *quick, "-o", "b.nc")
    assert "saved b.nc" in text
    assert sidebayes.load("b.nc").links.num_links == 10
    text = run("compare", "a.nc", "b.nc", "--csv", "table.csv")
    assert "gmm" in text
    assert (tmp_path / "table.csv").read_text().count("\n") == 3
    run("report", "a.nc", "b.nc", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "data:image/png;base64" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_bug_shows_its_traceback(monkeypatch):
    monkeypatch.setenv("SIDEBAYES_DEBUG", "1")
    result = CliRunner().invoke(app, ["compare", "nowhere.nc"])
    assert isinstance(result.exception, ValueError)


def test_demo_plan():
    plan = demo.jobs()
    assert len(set(plan)) == len(plan) == 17
    for variant in demo.VARIANTS:
        for data, engines in (("iris", ("em", "map", "gibbs")), ("wine", ("em",))):
            for engine in engines:
                assert demo.Job(data, variant, engine) in plan
    assert demo.Job("iris", "gmm", "nuts") in plan


def test_demo_says_what_is_refused(tmp_path, monkeypatch):
    contradicting = sidebayes.Links.must_link([(0, 1), (1, 2)]) + sidebayes.Links.cannot_link(
        [(0, 2)]
    )
    monkeypatch.setattr(sidebayes, "simulate_links", lambda *args, **kwargs: contradicting)
    message = demo.run_job(demo.Job("iris", "hard ppc", "em"), tmp_path, 5)
    assert "contradicts must-links 0–1–2" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_demo(tmp_path):
    report = demo.demo(tmp_path, num_draws=20)
    assert report.read_text().count("<section") >= 17 - 5
