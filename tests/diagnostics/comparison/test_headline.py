"""The headline of a comparison says which run to use, and why."""

import json

import numpy as np
import pandas as pd
import pytest
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.diagnostics.comparison.headline import headline
from sidebayes.diagnostics.names import between
from sidebayes.guides.engines.modes import MISSED_MODE

from tests.diagnostics.comparison.test_reference import sampled
from tests.diagnostics.fakes import FakeFit, make_tree
from tests.diagnostics.trust.test_verdict import SETTLED, climbed


def sound(seed, **named):
    fit = sampled(seed, **named)
    fit.tree["sample_stats"]["diverging"][:] = False
    return fit


def stuck():
    tree = make_tree(4, 400, 50, seed=1, engine="smc")[0]
    tree["posterior"]["flip_rate"][0] = 0.9
    return FakeFit(tree)


def of_another_model(seed):
    fit = sampled(seed)
    fit.tree.attrs["sidebayes_options"] = json.dumps({"num_clusters": 4})
    return fit


def moved():
    fit = sound(5)
    fit.tree["posterior"]["flip_rate"] = 0.3 * fit.tree["posterior"]["flip_rate"]
    return fit


SMC = {"engine": "smc", "evidence": -700.0, "error": 0.5}


@pytest.mark.parametrize(
    ("fits", "said"),
    [
        ({"a": sound(1, **SMC), "b": sound(2)}, "Use a, whose 4 chains agree (R-hat 1.0"),
        (
            {"a": sound(1, **SMC), "b": sound(2)},
            "and started at the prior; b agrees with it.",
        ),
        ({"a": sound(1), "b": sound(2), "c": sound(3)}, "agree with it."),
        ({"a": sound(1, **SMC), "b": moved()}, "b differs from it."),
        ({"a": stuck(), "b": stuck()}, "Trust no draws of a and b yet"),
        (
            {"a": sound(1)},
            "No other fit of the same model and data confirms a; its own verdict: converged.",
        ),
    ],
)
def test_the_headline(fits, said):
    table = compare_fits(fits)
    assert said in table.headline
    assert str(table).startswith(table.headline)
    assert table.html().startswith('<p class="headline">')
    assert table.headline.count(".") - table.headline.count("1.0") <= 2  # one sentence


def test_a_run_in_doubt_is_not_recommended_without_its_doubt():
    said = compare_fits({"a": sampled(1, **SMC), "b": sampled(2)}).headline
    doubt = "but a itself calls for caution: NUTS did what it could. See whether the answer stays."
    assert said.endswith(f"b agrees with it; {doubt}")
    fits = {"a": sampled(1), "b": of_another_model(2)}
    scores = {"a": np.zeros(100), "b": np.full(100, 0.3)}
    frame = pd.DataFrame({"trust": ""}, index=list(fits))
    assert "LOO prefers b" in headline(fits, frame, scores, {})
    assert "above that of a, though its own verdict is “with caution”" in headline(
        fits, frame, scores, {}
    )


def test_a_run_that_says_itself_that_it_missed_a_mode_is_no_reference():
    missed = sound(1)
    missed.tree["fit_info"].attrs["remarks"] = json.dumps([f"{MISSED_MODE}, 2.7 below the highest"])
    table = compare_fits({"a": missed, "b": missed})
    assert table.headline.startswith("Trust no draws of a and b yet")
    assert "a is no reference: its own verdict is that no draw came near a mode" in str(table)
    table = compare_fits({"a": missed, "b": sound(2)})
    assert table.frame["trust"].to_dict() == {"a": "agrees", "b": "reference"}


def test_several_models_have_a_part_each():
    one = {"a": sampled(1), "b": sampled(2)}
    table = compare_fits(one | {"c": of_another_model(3)})
    assert table.headline.startswith("Use ")
    assert "; no other fit of the same model and data confirms c" in table.headline
    table = compare_fits({"a": sampled(1), "c": of_another_model(3)})
    assert table.headline.startswith("LOO does not tell a and c apart")
    assert (
        "among a and c, whose posteriors are of different models, options or links, and"
        in table.headline
    )
    other = sampled(2)
    observed = other.tree["observed_data"]
    observed["x"] = observed["x"] + 1.0
    table = compare_fits({"a": sampled(1), "with 9 links": other})
    assert (
        "among a and “with 9 links”, whose posteriors are of different data, and are not"
        in table.headline
    )


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (
            0.1,
            "LOO does not tell b and a apart: the elpd of b is 10.0 ± 10.0 above that of a, and 1",
        ),
        (
            0.3,
            "LOO prefers b, whose elpd is 30.0 ± 10.0 above that of a and 130.0 ± 10.0 above that of c",
        ),
    ],
)
def test_predictions_are_told_apart_beyond_two_errors(gap, said):
    fits = {"a": sampled(1), "b": of_another_model(2)}
    noise = np.tile([1.0, -1.0], 50)
    scores = {"a": noise, "b": np.full(100, gap), "c": noise - 1.0}
    frame = pd.DataFrame({"trust": ""}, index=list(fits))
    assert said in headline(fits, frame, scores, {})


def test_gaps_of_a_few_nats_tell_nothing():
    fits = {"a": sampled(1), "b": of_another_model(2)}
    scores = {"a": np.zeros(100), "b": np.full(100, 0.03)}
    assert "does not tell" in headline(
        fits, pd.DataFrame({"trust": ""}, index=["a", "b"]), scores, {}
    )


def test_modes_whose_likelihood_was_not_computed_are_not_ranked():
    fits = {name: climbed(SETTLED, SETTLED) for name in ("a", "b")}
    assert compare_fits(fits).headline.startswith("Use a, a mode whose search")
    for fit in fits.values():
        fit.tree["sample_stats"]["lp"][:] = -150.0
    assert compare_fits(fits).headline.startswith("Nothing here ranks a and b")


def test_wide_tables_fold():
    table = compare_fits({"a": sampled(1, **SMC), "b": sampled(2)})
    lines = str(table).splitlines()
    assert max(map(len, lines[2:])) < 140 < len(table._texts().to_string().split("\n")[0])
    assert [line for line in lines if line.startswith("What it cost")]
    assert "<details><summary>What it cost</summary><table" in table.html()


def test_names_that_could_be_taken_for_several_are_quoted():
    names = {"sex, soft": sampled(1), "b": sampled(2), "this and that": of_another_model(3)}
    table = compare_fits(names)
    assert "Use b" in table.headline or "Use “sex, soft”" in table.headline
    assert "no other fit of the same model and data confirms “this and that”" in table.headline
    assert list(table.frame.index) == list(names)
    assert between([["sex, soft", "b"], ["c"]]) == "(“sex, soft” and b) and c"
    assert between([["a"], ["b"], ["c"]]) == "a, b and c"
