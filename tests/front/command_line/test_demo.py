"""The demonstration: its fits, what is refused, and sentences that say what a run found."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import sidebayes
from sidebayes import demo

SEX, SPECIES = (
    sidebayes.load_dataset("crabs", label=question).labels for question in ("sex", "species")
)
NEITHER = np.arange(200) % 2


def fake(labels, truth=SEX, wrong=range(15)):
    """What the story asks of a fit."""
    links = sidebayes.simulate_links(SEX, 200, flip_rate=0.1)
    odds = np.where(np.isin(np.arange(200), list(wrong)), 0.9, 0.1)
    return SimpleNamespace(
        labels=lambda: labels,
        links=links,
        params={"flip_rate": 0.125},
        tree={"observed_data": xr.Dataset({"truth": ("points", truth)})},
        suspect_links=lambda: pd.DataFrame({"probability": odds}),
        same_cluster=lambda pairs: np.where(pairs[:, 0] == 3, 0.6, 0.99),
    )


def told(*, plain=NEITHER, learned=SEX, other=SPECIES, refused=None, **more):
    fits = {demo.PLAIN.name: fake(plain), demo.LEARNED.name: fake(learned)}
    fits |= {demo.OTHER.name: fake(other, SPECIES)} | more
    return list(demo._story(fits, refused or {}))


def test_plan():
    plan = demo.jobs()
    assert len(set(plan)) == len(plan) == 8
    assert {job.links for job in plan} == {"no", "hard", "soft", "learned"}
    assert {job.engine for job in plan} == {"em", "gibbs", "nuts"}
    assert len({job.file for job in plan}) == len({job.name for job in plan}) == 8
    for job in plan:
        assert demo._start(job) in plan


def test_wrong_links_that_are_hard_are_refused(tmp_path):
    message = demo.run_job(demo.HARD, tmp_path, 5)
    assert "contradicts must-links" in message
    assert not list(tmp_path.iterdir())
    told_so = told(refused={demo.HARD.name: message})
    assert f"200 hard links on sex are refused: {message}." in told_so


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        (NEITHER, "Without links the clusters are neither the sexes (−0.005) nor the species"),
        (SPECIES, "Without links the clusters are the species (1.000);"),
        (SEX, "Without links the clusters are the sexes (1.000);"),
    ],
)
def test_the_story_says_what_is_found_without_links(plain, text):
    assert told(plain=plain)[0].startswith(text)


def test_the_story_says_what_is_found_with_links():
    with_links = told()[0].split(";")[1]
    assert "with 200 links on sex, 20 of them wrong, they are the sexes (1.000):" in with_links
    assert "they are neither" in told(learned=NEITHER)[0].split(";")[1]


def test_the_story_says_what_hard_links_do():
    forced = told(**{demo.FORCED.name: fake(NEITHER, SPECIES)})[1]
    assert forced.startswith("60 hard links on species are all kept")
    assert "the clusters are neither" in forced
    assert forced.endswith("where the same links are soft, they are the species (1.000).")
    assert not any("hard" in sentence for sentence in told())


def test_wrong_links_are_counted():
    links = fake(SEX).links
    false = links.same != (SEX[links.pairs[:, 0]] == SEX[links.pairs[:, 1]])
    assert false.sum() == 20
    named = [*np.flatnonzero(false)[:13], *np.flatnonzero(~false)[:2]]
    fit = fake(SEX, wrong=named)
    rate, suspects = demo._doubtful(fit)
    assert "learned is 0.125; 20 of 200 links are wrong (0.100)" in rate
    assert "marks 15 links as probably wrong; 13 of them are." in suspects


def test_the_least_sure_pair_is_named():
    text = told(**{demo.GIBBS.name: fake(SEX)})[-1]
    assert "that links do not join" in text
    assert "97% of them share a cluster" in text
    assert text.endswith("least sure are crabs 3 and 4, with 0.60.")


def test_a_story_of_what_there_is():
    assert list(demo._story({}, {})) == []


@pytest.mark.slow
def test_the_demonstration(tmp_path):
    page = demo.demo(tmp_path, num_draws=20).read_text()
    assert page.count("<section") == 3 + 7
    assert "hard links</b> was refused" in page
    lead = page.split("<p class='lead'>")[1].split("</p>")[0]
    assert "200 links on sex, 20 of them wrong, they are the sexes (0.9" in lead
    assert len(page) < 3e6
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    rows = re.findall(r"^\| (?:none|\d+ on .*?) \| (.*?) \|$", readme, re.M)
    assert len(rows) == 5
    for figures in rows:
        assert figures in page or figures == "refused, as they contradict each other"
