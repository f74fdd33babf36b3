"""Which fit others are measured against, and when none deserves it."""

from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.diagnostics.comparison.reference import choose_reference, log_mass
from sidebayes.diagnostics.trust.modes import same_question

import sidebayes
from sidebayes.runs.stored import _identity
from tests.diagnostics.fakes import FakeFit, make_tree
from tests.support.draws import at_one


def sampled(seed, *, draws=400, engine="nuts", evidence=None, error=np.nan, kind="estimate"):
    tree = make_tree(4, draws, min(draws, 50), seed=seed, engine=engine)[0]
    if evidence is not None:
        tree["fit_info"].attrs.update(
            log_evidence=evidence, log_evidence_error=error, log_evidence_kind=kind
        )
    return FakeFit(tree)


def with_densities(fit, prior, spread=1.0):
    """The fit with one parameter of that spread, whose log prior density is given."""
    tree = fit.tree.copy(deep=True)
    kept = tree["log_likelihood"]["draw"]
    draws = spread * np.random.default_rng(0).normal(size=(4, tree["posterior"].sizes["draw"]))
    sites = tree["posterior"].to_dataset().assign(slope=(("chain", "draw"), draws))
    tree["posterior"] = xr.DataTree(sites)
    values = np.full((4, len(kept)), float(prior))
    group = xr.Dataset({"slope": (("chain", "draw"), values)}, coords={"draw": kept})
    tree["log_prior"] = xr.DataTree(group)
    tree["log_likelihood"]["x"] = 0 * tree["log_likelihood"]["x"]
    return FakeFit(tree)


def test_a_sampler_short_of_draws_is_no_reference():
    short = sampled(1, draws=60, engine="smc", evidence=-700.0, error=0.5)
    table = compare_fits({"smc": short, "nuts": sampled(2)})
    assert table.frame.loc["smc", "ess"] < 400
    assert table.frame["trust"].to_dict() == {"smc": "agrees", "nuts": "reference"}
    assert "smc is no reference" in str(table)
    assert "of the 400 needed" in table.html()


def test_a_good_run_comes_before_one_in_doubt():
    def judged(fit, level):
        return type("Judged", (FakeFit,), {"verdict": (level, "")})(fit.tree)

    wide, nuts = sampled(1, engine="smc", evidence=-700.0, error=0.5), judged(sampled(2), "good")
    good, doubted = judged(wide, "good"), judged(wide, "caution")
    assert choose_reference({"smc": good, "nuts": nuts}).best == "smc"  # it starts at the prior
    assert choose_reference({"smc": doubted, "nuts": nuts}).best == "nuts"
    assert choose_reference({"smc": doubted}).best == "smc"


def test_a_bound_above_its_evidence_unseats_a_reference():
    low = sampled(1, engine="smc", evidence=-764.0, error=0.5)
    bound = sampled(2, engine="svi", evidence=-723.0, kind="bound")
    best, _, why = choose_reference({"smc": low, "svi": bound})
    assert best == "svi"
    assert "-723.0, a lower bound that svi found" in why["smc"]
    for value in (-766.0, -762.0):  # below it, or no more above than both errors allow
        other = sampled(2, engine="svi", evidence=value, kind="bound")
        assert choose_reference({"smc": low, "svi": other}) == ("smc", {}, {})


def test_a_mode_of_little_mass_is_no_reference():
    low = with_densities(sampled(1, engine="smc", evidence=-764.0, error=0.5), -770.0)
    moved = FakeFit(low.tree.copy(deep=True))
    moved.tree["posterior"]["flip_rate"] = 0.3 * moved.tree["posterior"]["flip_rate"]
    nuts = with_densities(sampled(2), -720.0)
    trust = compare_fits({"smc": moved, "nuts": nuts}).frame["trust"]
    assert trust.to_dict() == {"smc": "differs", "nuts": "reference"}
    best, _, why = choose_reference({"smc": low, "nuts": nuts})
    assert best == "nuts"
    assert "log mass is about 50 below that of the mode that nuts found" in why["smc"]
    # a spike is higher by 15, and holds less
    spike = with_densities(sampled(2), -755.0, spread=1e-8)
    assert choose_reference({"smc": low, "nuts": spike})[0] == "smc"


def test_the_mass_of_a_normal_posterior_is_its_evidence():
    fit = with_densities(sampled(1, draws=4000), 0.0, spread=0.5)
    tree = fit.tree
    kept = tree["log_prior"]["draw"].to_numpy()
    theta = tree["posterior"]["slope"].to_numpy()[:, kept]
    tree["log_prior"]["slope"][:] = (
        -7.0 - 0.5 * (theta / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    )
    # 200 draws: the mean of a chi-square and the log of a variance err by some 0.07 each
    assert log_mass(fit)[0] == pytest.approx(-7.0, abs=0.3)


def test_no_row_agrees_with_a_failed_reference():
    apart = make_tree(4, 400, 50, seed=1, engine="smc")[0]
    apart["posterior"]["flip_rate"][0] = 0.9
    laplace = FakeFit(make_tree(1, 400, 50, seed=2, engine="laplace")[0])
    table = compare_fits({"smc": FakeFit(apart), "laplace": laplace})
    assert table.frame["trust"].to_dict() == {"smc": "no", "laplace": "no reference"}
    assert "shift" not in table.frame


def test_few_draws_of_its_own_are_no_agreement():
    few = sampled(1, draws=40)
    few.tree["posterior"]["flip_rate"][:] *= 1.1
    table = compare_fits({"many": sampled(2), "few": few})
    assert table.frame.loc["few", "trust"] == "too noisy to say"
    assert table.frame.loc["few", "shift"] > 0.1


def test_draws_that_were_resampled_count_by_what_they_are_worth():
    copies = sampled(1)
    copies.tree["posterior"]["flip_rate"][:] *= 1.1
    fits = {"nuts": sampled(2), "copies": copies}
    assert compare_fits(fits).frame.loc["copies", "trust"] == "differs"
    copies = FakeFit(copies.tree.copy(deep=True))
    copies.tree["fit_info"].attrs["effective_draws"] = 60.0
    told = compare_fits(fits | {"copies": copies}).frame.loc["copies"]
    assert told["ess"] == 60.0
    assert told["trust"] == "too noisy to say"


def test_a_start_at_the_prior_that_differs_unseats_one_at_a_mode():
    wide = sampled(1, draws=60, engine="smc", evidence=-700.0, error=0.5)
    wide.tree["posterior"]["flip_rate"] = 3 * wide.tree["posterior"]["flip_rate"]
    table = compare_fits({"smc": wide, "nuts": sampled(2), "hmc": sampled(3)})
    assert table.frame["trust"].to_dict() == {"smc": "differs", "nuts": "differs", "hmc": "agrees"}
    assert "nuts started at a mode, smc at the prior" in str(table)


def make_model(scale):
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, scale))
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1.0).expand([x.shape[1]]).to_event(1), obs=x)

    return model


def test_two_models_of_one_name_are_two_questions(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 1))
    narrow, wide = make_model(0.1), make_model(10.0)
    given = {"engine": at_one({"mean": 0.1}), "progress": False}
    one, other = (sidebayes.fit(m, x, **given) for m in (narrow, wide))
    again = sidebayes.fit(make_model(0.1), x, **given)
    assert one.method == other.method
    assert same_question(one) != same_question(other)
    assert same_question(one) == same_question(again)
    one.save(tmp_path / "one.nc")
    assert same_question(
        sidebayes.load(tmp_path / "one.nc", engine=given["engine"])
    ) == same_question(one)
    assert compare_fits({"narrow": one, "wide": other}).notes == ()


def normal_of_scale(x, *, scale=1.0, dof=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, scale))
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0).expand([x.shape[1]]).to_event(1), obs=x)


def test_an_option_at_its_default_asks_the_same_as_without_it(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 1))
    engine = at_one({"mean": 0.1})

    def asked(**options):
        return sidebayes.fit(normal_of_scale, x, engine=engine, progress=False, **options)

    bare, given = asked(), asked(scale=1, dof=None)
    assert given.options == {"scale": 1, "dof": None}
    for same in (given, asked(scale=1.0), asked(scale=np.float64(1.0))):
        assert same_question(same) == same_question(bare)
    assert same_question(asked(scale=2)) == same_question(asked(scale=np.float32(2.0)))
    assert same_question(asked(scale=2)) != same_question(bare)
    # as files of earlier versions have it, and where an option has no name in another process
    given.tree.attrs["sidebayes_identity"] = _identity(given.run, given.options)
    assert same_question(given) != same_question(bare)
    given.save(tmp_path / "given.nc")
    loaded = sidebayes.load(tmp_path / "given.nc", normal_of_scale, engine=engine)
    assert same_question(loaded) == same_question(bare)
    for fit in (loaded, bare):
        fit.tree.attrs["sidebayes_identity"] = ""
    assert same_question(loaded) == same_question(bare)


def test_a_mode_that_all_may_have_missed_is_spoken_of():
    def small(seed, **given):
        fit = sampled(seed, **given)
        kept = fit.tree["posterior"].to_dataset()[["flip_rate"]]
        fit.tree["posterior"] = xr.DataTree(kept)
        return fit

    missed = "No fit here started at draws of the prior"
    said = str(compare_fits({"nuts": small(1), "hmc": small(2)}))
    assert missed in said
    assert "add one by SMC, or where the prior is improper a second run from" in said
    one, two = small(1), small(2)
    one.run.card = two.run.card = SimpleNamespace(engines=("nuts", "hmc"))
    assert "a mode: add a second run from" in str(compare_fits({"nuts": one, "hmc": two}))
    other = small(3, engine="smc", evidence=-700.0, error=0.5)
    other.tree.attrs["sidebayes_identity"] = "another model"
    both = compare_fits({"nuts": small(1), "hmc": small(2), "smc": other})
    assert "No fit of nuts or hmc started at draws of the prior" in str(both)
    prior = small(3, engine="smc", evidence=-700.0, error=0.5)
    assert missed not in str(compare_fits({"nuts": small(1), "smc": prior}))
    scaled = small(3, engine="smc")  # where handlers.scale leaves no evidence
    scaled.config = sidebayes.SMC()
    assert missed not in str(compare_fits({"nuts": small(1), "smc": scaled}))
    long_run = small(1)
    long_run.tree["fit_info"].attrs["reference"] = "NUTS and SMC agree"
    assert missed not in str(compare_fits({"long": long_run, "hmc": small(2)}))
    # what differs from a long run is wrong itself, wherever it started
    wide = small(3, engine="smc", evidence=-700.0, error=0.5)
    wide.tree["posterior"]["flip_rate"] = 3 * wide.tree["posterior"]["flip_rate"]
    trust = compare_fits({"long": long_run, "smc": wide}).frame["trust"].to_dict()
    assert trust == {"long": "reference", "smc": "differs"}
