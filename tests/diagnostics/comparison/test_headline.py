"""The headline of a comparison says which run to use, and why."""

import json

import pytest
from sidebayes.diagnostics.comparison.compare import compare_fits

from tests.diagnostics.comparison.test_reference import sampled
from tests.diagnostics.fakes import FakeFit, make_tree


def stuck():
    tree = make_tree(4, 400, 50, seed=1, engine="smc")[0]
    tree["posterior"]["flip_rate"][0] = 0.9
    return FakeFit(tree)


def of_another_model(seed):
    fit = sampled(seed)
    fit.tree.attrs["sidebayes_options"] = json.dumps({"num_clusters": 4})
    return fit


def moved():
    fit = sampled(5)
    fit.tree["posterior"]["flip_rate"] = 0.3 * fit.tree["posterior"]["flip_rate"]
    return fit


SMC = {"engine": "smc", "evidence": -700.0, "error": 0.5}


@pytest.mark.parametrize(
    ("fits", "said"),
    [
        ({"a": sampled(1, **SMC), "b": sampled(2)}, "Use a, whose 4 chains agree (R-hat 1.0"),
        (
            {"a": sampled(1, **SMC), "b": sampled(2)},
            "and started at the prior; b agrees with it.",
        ),
        ({"a": sampled(1), "b": sampled(2), "c": sampled(3)}, "agree with it."),
        ({"a": sampled(1, **SMC), "b": moved()}, "b differs from it."),
        ({"a": stuck(), "b": stuck()}, "Trust no draws of a and b yet"),
        ({"a": sampled(1)}, "Nothing here can be measured against a, by itself: "),
    ],
)
def test_the_headline(fits, said):
    table = compare_fits(fits)
    assert said in table.headline
    assert str(table).startswith(table.headline)
    assert table.html().startswith('<p class="headline">')
    assert table.headline.count(".") - table.headline.count("1.0") <= 2  # one sentence


def test_several_models_have_a_part_each():
    one = {"a": sampled(1), "b": sampled(2)}
    table = compare_fits(one | {"c": of_another_model(3)})
    assert table.headline.startswith("Use ")
    assert "; nothing here can be measured against c" in table.headline


def test_wide_tables_fold():
    table = compare_fits({"a": sampled(1, **SMC), "b": sampled(2)})
    lines = str(table).splitlines()
    assert max(map(len, lines[2:])) < 140 < len(table._texts().to_string().split("\n")[0])
    assert [line for line in lines if line.startswith("What it cost")]
    assert "<details><summary>What it cost</summary><table" in table.html()
