"""Sentences about samplers that have not converged."""

from html import escape

import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.comparison import doubts as module
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.diagnostics.comparison.doubts import converged, doubts
from sidebayes.diagnostics.pictures.report import render_report

from tests.diagnostics.fakes import TRUTH, WEIGHTS, FakeFit, make_tree, soft_labels

OTHER = soft_labels(np.roll(TRUTH, 13))


def sampler(first, second, draws=200):
    """Two chains, each of which stays at one matrix of responsibilities; then no R-hat is good."""
    rng = np.random.default_rng(3)
    prob = np.stack([np.tile(one, (draws, 1, 1)) for one in (first, second)])
    prob *= np.exp(0.02 * rng.normal(size=prob.shape))
    tree = make_tree(2, draws, prob=prob / prob.sum(axis=-1, keepdims=True))[0]
    tree["sample_stats"]["lp"][0] += 7.0
    return FakeFit(tree)


@pytest.fixture(scope="module")
def sound():
    fit = FakeFit(make_tree(8, 200)[0])
    assert converged(fit)
    return fit


def test_modes_are_named_with_their_share(sound):
    fits = {"stuck": sampler(soft_labels(), OTHER), "long": sound, "point": FakeFit(make_tree()[0])}
    said = doubts(fits)
    assert list(said) == ["stuck"]
    densities = fits["stuck"].tree["sample_stats"]["lp"].to_numpy().mean(axis=1)
    for text in (
        "several modes",
        "trust long instead",
        "of the trusted draws 100% are like those of the first",
        f"{densities[0]:.1f} and {densities[1]:.1f}",
    ):
        assert text in said["stuck"]
    assert said["stuck"].count(". ") == 0  # one sentence


def test_two_stuck_runs_do_not_vouch_for_each_other():
    first, second = sampler(soft_labels(), OTHER), sampler(OTHER, soft_labels())
    said = doubts({"a": first, "b": second})
    assert list(said) == ["a", "b"]
    assert all("trust none" in text and "trusted draws" not in text for text in said.values())


def test_slow_chains_of_one_mode_are_no_modes(sound):
    said = doubts({"short": sampler(soft_labels(), soft_labels(), draws=20), "long": sound})
    assert "several modes" not in said["short"]
    assert "too few draws" in said["short"]
    assert "trust long instead" in said["short"]


def test_the_page_carries_the_sentence(sound):
    fits = {"stuck": sampler(soft_labels(), OTHER), "long": sound}
    assert (
        render_report(fits).count(escape(doubts(fits)["stuck"])) == 2
    )  # in the list and its section
    assert "has not converged" not in render_report({"long": sound})


def test_fits_are_measured_once_for_a_page(sound, monkeypatch):
    fits = {"stuck": sampler(soft_labels(), OTHER), "long": sound}
    comparison = compare_fits(fits)
    said = doubts(fits)
    monkeypatch.setattr(module, "measure", None)
    assert doubts(fits, comparison) == said
    assert escape(said["stuck"]) in render_report(fits)


def test_another_model_is_no_advice(sound):
    other = FakeFit(sound.tree, method="gmm")
    assert "trust none" in doubts({"stuck": sampler(soft_labels(), OTHER), "gmm": other})["stuck"]


def nearly(shift):
    """Two chains that a comparison takes as its reference, with an R-hat of a little above 1.01."""
    tree = make_tree(2, 300)[0]
    tree["posterior"]["weights"][0] *= 1 + shift * np.array([1, -1, 0])
    tree["posterior"]["mean"][0] += shift
    fit = FakeFit(tree)
    assert not converged(fit)
    assert fit.verdict[0] == "caution"
    return fit


def test_the_reference_of_a_comparison_is_not_distrusted():
    point = FakeFit(make_tree()[0])
    fits = {"nuts": nearly(0.01), "point": point}
    assert compare_fits(fits).frame.loc["nuts", "trust"] == "reference"
    said = doubts(fits)["nuts"]
    assert said.startswith("It is the best reference here, but short of convergence (R-hat 1.0")
    assert said.endswith(
        "no other sampler with several chains converged on this model, so let one run longer."
    )
    two = {"one": nearly(0.01), "two": nearly(0.008)}
    trust = compare_fits(two).frame["trust"]
    lead, other = sorted(two, key=lambda name: trust[name] != "reference")
    assert f"trust {lead} instead" in doubts(two)[other]
    assert "It is the best reference" in doubts(two)[lead]


def test_a_run_without_fault_is_not_distrusted_for_chains_that_disagree():
    fits = {"stuck": sampler(soft_labels(), OTHER), "point": FakeFit(make_tree()[0])}
    assert fits["point"].verdict[0] == "good"
    assert "trust none" not in (said := doubts(fits)["stuck"])
    assert "no other sampler with several chains converged on this model" in said
    assert "trust none" in doubts({"stuck": fits["stuck"]})["stuck"]


def linked(weights, labels=TRUTH):
    """A fit of these labels, whose last link is probably wrong."""
    tree = make_tree()[0]
    tree["constant_data"]["link_weights"] = xr.DataArray(weights, dims="link")
    tree["responsibilities"]["labels"][:] = labels
    return FakeFit(tree)


def test_a_hard_link_that_is_probably_wrong_is_no_green_light():
    forced = linked(WEIGHTS * np.array([1, 1, 1, 1, np.inf]))
    assert forced.verdict[0] == "good"
    said = doubts({"forced": forced})
    assert "1 of its hard links is probably wrong" in said["forced"]
    page = render_report({"forced": forced})
    assert "class='badge caution'" in page
    assert "class='badge good'" not in page


def test_a_hard_link_that_lowers_the_score_is_no_green_light():
    forced, free = linked(WEIGHTS, np.roll(TRUTH, 5)), linked(np.clip(WEIGHTS, -2, 2))
    said = doubts({"forced": forced, "free": free})
    assert list(said) == ["forced"]
    assert "(1.000), which has no hard links" in said["forced"]
    assert "agrees less" not in doubts({"forced": linked(WEIGHTS), "free": free}).get("forced", "")
    page = render_report({"forced": forced, "free": free})
    assert page.count("class='badge caution'") == page.count("class='badge good'") == 1
    assert escape(said["forced"]) in page


def test_chains_without_labels_are_judged():
    fit = sampler(soft_labels(), OTHER)
    fit.has_labels = False
    assert "its chains move slowly or stay apart" in doubts({"regression": fit})["regression"]
