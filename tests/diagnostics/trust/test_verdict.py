"""What a verdict refuses to call good, and how lower modes are told apart."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.diagnostics.trust.modes import lower_modes, same_data
from sidebayes.diagnostics.trust.verdict import verdict
from sidebayes.guides.engines.modes import WITHOUT_PRIOR

from sidebayes import (
    EM,
    MAP,
    NUTS,
    SMC,
    SVI,
    CoordinateAscent,
    Laplace,
    MonteCarloEM,
    NestedSlice,
    PartialLabels,
    Pathfinder,
)
from tests.diagnostics.fakes import TRUTH, FakeFit, make_tree


def climbed(*histories, config=None, noted=None, began_at=""):
    """A fit by EM whose starts went so; the best end is its log joint density."""
    tree = make_tree()[0]
    longest = max(map(len, histories))
    rows = [
        np.pad(np.asarray(h, float), (0, longest - len(h)), constant_values=np.nan)
        for h in histories
    ]
    info = tree["fit_info"].to_dataset().drop_vars("objective")
    info = info.assign(objective=(("restart", "step"), np.stack(rows)))
    info.attrs["density_space"] = "constrained"
    if noted is not None:
        info.attrs |= {"starts_at_best": noted, "began_at": began_at}
    tree["fit_info"] = xr.DataTree(info)
    tree["sample_stats"]["lp"][:] = max(h[-1] for h in histories)
    return FakeFit(tree, config=config or EM())


def sampled(chains, draws):
    tree = make_tree(chains, draws, engine="nuts")[0]
    info = tree["fit_info"].to_dataset().drop_vars("objective")
    info = info.assign(objective=(("restart", "step"), np.zeros((0, 0))))
    tree["fit_info"] = xr.DataTree(info)
    tree["sample_stats"] = xr.DataTree(tree["sample_stats"].to_dataset()[["lp"]])
    return FakeFit(tree, config=NUTS())


SETTLED = [-210.0, -200.001, -200.0005]


def test_what_is_good():
    assert verdict(climbed(SETTLED, SETTLED))[0] == "good"
    assert verdict(climbed(SETTLED))[0] == "good"  # ten equal starts, of which one is run
    assert verdict(sampled(4, 300))[0] == "good"


@pytest.mark.parametrize(
    ("points", "said"), [(["b", "s"], "b, s are points"), (["tau"], "tau is a point")]
)
def test_points_beside_draws_are_a_caution(points, said):
    found = sampled(4, 300)
    assert verdict(found)[0] == "good"
    found.tree["fit_info"].attrs["points"] = json.dumps(points)
    still = {name: (("chain", "draw"), np.ones((4, 300))) for name in points}
    found.tree["posterior"] = xr.DataTree(found.tree["posterior"].to_dataset().assign(still))
    level, why = verdict(found)
    assert level == "caution"
    assert f"{said}: the result says nothing about the uncertainty there" in why


def test_empty_clusters_of_a_mode_are_told():
    fit = climbed(SETTLED, SETTLED)
    prob = fit.tree["responsibilities"]["prob"]
    prob[..., 1] += prob[..., 2]
    prob[..., 2] = 0.0
    level, said = verdict(fit)
    assert level == "caution"
    assert "Cluster 2 holds no point: take fewer clusters, or see whether" in said
    fit.run.options["source"] = "a classifier whose components are fixed"
    assert "Cluster 2 holds no point: see whether another start" in verdict(fit)[1]


def test_clusters_of_a_sample_are_told_by_rows_of_the_table():
    """Other rows may be in clusters that hold none of the sample."""
    fit = climbed(SETTLED, SETTLED)
    found = fit.tree["responsibilities"].to_dataset()
    kept = found.sizes["points"]
    found = found.assign_coords(points=10 * np.arange(kept))
    found["labels"][:], found["labels"][7] = 0, 1
    found["prob"][:] = np.eye(3)[found["labels"].to_numpy()]
    fit.tree["responsibilities"] = xr.DataTree(found)
    assert "Cluster 2 holds no point" in verdict(fit)[1]
    assert f"Cluster 1 holds a single point of {kept}, number 70: " in verdict(fit)[1]
    fit.tree.attrs["sidebayes_sample_of"] = 900
    level, said = verdict(fit)
    assert level == "caution"
    assert f"Cluster 2 holds none of the {kept} rows sampled from 900: see by fit.predict" in said
    assert f"Cluster 1 holds one of the {kept} rows sampled from 900, row 70: look" in said


def test_clusters_that_label_no_point_are_told():
    """Small probabilities at many points add up, as those of a softmax do, and fill no cluster."""
    fit = climbed(SETTLED, SETTLED)
    found = fit.tree["responsibilities"]
    found["prob"][..., 1] += 0.9 * found["prob"][..., 2]
    found["prob"][..., 2] *= 0.1
    found["labels"][:] = found["prob"][0, 0].argmax("clusters")
    assert found["prob"][..., 2].sum() > 0.5
    level, said = verdict(fit)
    assert level == "caution"
    assert "Cluster 2 labels no point" in said
    found["labels"][:] = 0
    assert "Clusters 1, 2 label no point" in verdict(fit)[1]


def test_labels_of_equal_probabilities_are_arbitrary():
    fit = climbed(SETTLED, SETTLED)
    prob = fit.tree["responsibilities"]["prob"]
    prob[:] = 1 / 3 + 1e-7 * prob
    level, said = verdict(fit)
    assert level == "caution"
    assert "labels are arbitrary" in said
    prob[:] = [1.0, 0.0, 0.0]  # all are in one cluster
    assert "arbitrary" not in verdict(fit)[1]


def test_clusters_are_the_same_beside_the_size_of_parameters():
    fit = climbed(SETTLED, SETTLED)
    mean = fit.tree["posterior"]["mean"]
    fit.tree["posterior"].dataset = (
        fit.tree["posterior"]
        .to_dataset()
        .assign(
            {
                name: value * 0 + 1
                for name, value in fit.tree["posterior"].data_vars.items()
                if name != "mean"
            }
        )
    )
    mean = fit.tree["posterior"]["mean"]
    mean[..., 0, :] = mean[..., 1, :] + 1e-9  # of which the first entry was zero
    assert "are the same" in verdict(fit)[1]


@pytest.mark.parametrize(("classes", "level"), [([0, 1, -1], "caution"), ([0, 1, 1], "good")])
def test_a_routine_of_one_start_vouches_for_known_labels_alone(classes, level):
    fit = climbed(SETTLED, config=MonteCarloEM())
    fit.run.data = {"known": PartialLabels(np.array(classes))}
    assert verdict(fit)[0] == level
    assert ("try other seeds" in verdict(fit)[1]) == (level == "caution")


@pytest.mark.parametrize(
    ("engine", "drift", "said"),
    [
        (NUTS(), 0.0, "each agrees with itself: they are in modes of their own"),
        (NUTS(), 2.0, "they found different answers; run longer"),
        (
            SMC(),
            0.0,
            "they found different answers; raise num_particles or num_mutations, or tighten",
        ),
        (
            NestedSlice(),
            0.0,
            "they found different answers; raise num_live or num_slices, or tighten",
        ),
    ],
)
def test_chains_in_modes_of_their_own_are_told_from_short_ones(engine, drift, said):
    fit = sampled(4, 300)
    rate = fit.tree["posterior"]["flip_rate"]
    rate[:] = np.random.default_rng(0).normal(size=(4, 300)) + drift * np.linspace(0, 1, 300)
    rate[2:] += 6.0
    fit.config = engine
    level, sentence = verdict(fit)
    assert level == "bad"
    assert said in sentence


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        (("nuts", "smc"), "is unknown; take SMC, which"),
        (("nuts",), "is unknown; tighten the prior."),
    ],
)
def test_smc_is_advised_where_the_method_has_it(engines, said):
    fit = sampled(4, 300)
    fit.tree["posterior"]["flip_rate"][2:] += 6.0
    fit.run.card = SimpleNamespace(engines=engines)
    assert said in verdict(fit)[1]


@pytest.mark.parametrize("engines", [("svi", "nuts"), ("svi",)])
def test_nuts_is_advised_where_the_method_has_it(engines):
    fit = climbed(SETTLED, SETTLED)
    fit.tree["fit_info"].attrs["points"] = '["flip_rate"]'
    fit.run.card = SimpleNamespace(engines=engines)
    assert ("is too small; use NUTS" in verdict(fit)[1]) == ("nuts" in engines)


@pytest.mark.parametrize("engine", [SVI(), Pathfinder()])
def test_independent_draws_are_counted(engine):
    """Whatever their autocorrelations are by chance."""
    assert CoordinateAscent.independent_draws
    assert Laplace.independent_draws
    fit = sampled(2, 150)
    fit.config = engine
    assert "enough draws" not in verdict(fit)[1]
    few = sampled(1, 60)
    few.config = engine
    assert "60 draws are few; raise num_draws" in verdict(few)[1]
    copies = sampled(1, 150)
    copies.config = engine
    copies.tree["fit_info"].attrs["effective_draws"] = 40.0
    assert "150 draws of 40 effective ones are few" in verdict(copies)[1]


@pytest.mark.parametrize(
    ("fit", "level", "says"),
    [
        (sampled(1, 1), "bad", "cannot be judged"),
        (sampled(2, 3), "bad", "cannot be judged"),
        (sampled(1, 400), "caution", "One chain"),
        (sampled(2, 150), "caution", "Not yet enough draws"),
        (climbed([-200.0], [-200.0]), "bad", "no step"),
        (climbed([-230.0, -200.0], [-230.0, -200.0]), "caution", "still rose by 30"),
        (climbed(SETTLED, [-250.0, -249.999]), "caution", "No other start"),
        (climbed(SETTLED, *[[-250.0, -249.999]] * 60), "caution", "No other of 61 starts"),
        (
            climbed(SETTLED, config=EM(num_restarts=1)),
            "caution",
            "higher; add starts (num_restarts).",
        ),
        (climbed(SETTLED, noted=1), "caution", "higher; leave init out."),
        (
            climbed(SETTLED, noted=1, began_at="moe"),
            "caution",
            "a fit of moe ended, to which one start",
        ),
    ],
)
def test_what_is_not(fit, level, says):
    found = verdict(fit)
    assert found[0] == level
    assert says in found[1]


def test_a_fit_that_goes_on_keeps_its_starts():
    assert verdict(climbed(SETTLED, noted=4))[0] == "good"


def test_lower_modes_are_named_with_the_gap_and_the_starts():
    high = climbed([-190.0, -178.5001, -178.5], [-190.0, -182.8, -182.8], config=MAP())
    fits = {"em": climbed([-190.0, -182.8001, -182.8]), "map": high, "same": high}
    said, preferred = lower_modes(fits)
    assert not preferred
    assert list(said) == ["em"]
    for text in ("em holds a lower mode", "-182.8", "4.3 below", "-178.5", "1 of 2 starts of map"):
        assert text in said["em"]
    table = compare_fits(fits)
    assert table.frame["trust"].to_dict() == {"em": "lower mode", "map": "", "same": ""}
    for text in (str(table), table.html()):
        assert "4.3 below" in text


def test_only_modes_of_one_posterior_are_compared():
    low, high = climbed([-190.0, -182.8]), climbed([-190.0, -178.5])
    other_prior = FakeFit(high.tree.copy(deep=True), config=EM())
    other_prior.tree.attrs["sidebayes_options"] = "flat"
    other_space = FakeFit(high.tree.copy(deep=True), config=EM())
    other_space.tree["fit_info"].attrs["density_space"] = "unconstrained"
    bound = FakeFit(high.tree.copy(deep=True), config=EM())
    bound.tree["sample_stats"]["lp"][:] = -100.0  # not what was climbed
    for fit in (other_prior, other_space, bound, sampled(4, 100)):
        assert lower_modes({"low": low, "other": fit}) == ({}, [])


def test_known_classes_are_the_same_however_they_are_numbered():
    fits = {}
    for name, codes in {"sorted": [0, 1, 2], "learned": [7, 3, 2], "fewer": [-1, 1, 2]}.items():
        fits[name] = climbed([-190.0, -182.8])
        fits[name].tree["observed_data"]["truth"] = xr.DataArray(
            np.array(codes)[TRUTH], dims="points"
        )
    assert same_data(fits["sorted"]) == same_data(fits["learned"]) != same_data(fits["fewer"])


def test_a_mode_that_only_a_prior_read_off_the_data_prefers_is_not_higher():
    likely, preferred = climbed([-190.0, -182.8]), climbed([-190.0, -178.5], config=MAP())
    likely.tree["sample_stats"][WITHOUT_PRIOR] = likely.tree["sample_stats"]["lp"] - 10.0
    preferred.tree["sample_stats"][WITHOUT_PRIOR] = preferred.tree["sample_stats"]["lp"] - 30.0
    fits = {"em": likely, "map": preferred}
    notes = " ".join(compare_fits(fits).notes)
    assert "lower mode" not in notes
    assert (
        "em and map hold different modes: the log joint of map is higher by 4.3, and without"
        in notes
    )
    assert "that of em by 15.7" in notes
    likely.tree["sample_stats"][WITHOUT_PRIOR] -= 16.0  # lower by either
    assert list(lower_modes(fits)[0]) == ["em"]
