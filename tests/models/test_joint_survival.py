"""The card `joint_survival` against brute-force integrals, its own other forms, and simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy.integrate import quad
from sidebayes.guides.engines.problem.causes import remedy
from sidebayes.models.blocks.effects.identified import PRIOR_ALONE
from sidebayes.models.blocks.event_times import HazardPrior, PiecewiseHazard
from sidebayes.models.joint_survival import joint_survival

import sidebayes as sb
from sidebayes.runs.problems import remarks
from tests.support.draws import Asked, Asking, at_one, told
from tests.support.effects import simulate_joint

CUTS = np.array([1.0, 2.5])
RATES = np.array([0.2, 0.1, 0.5])


@pytest.fixture(scope="module")
def data():
    table, persons = simulate_joint()
    design = sb.design("y ~ year + (year || who)", table)  # correlated effects are those of `tiny`
    return design.survival("Surv(years, died) ~ drug", persons, num_intervals=1)


@pytest.fixture(scope="module")
def fitted(data):
    return sb.fit("joint_survival", **data, engine=sb.Laplace(), progress=False)


@jax.jit
def hazard_density(time, log_ratio, event, frailty=None):
    """Log densities of times, given hazard ratios, under the rates above."""
    return PiecewiseHazard(np.log(RATES), CUTS, log_ratio, event, frailty=frailty).log_prob(time)


def hazard_at(time):
    """Hazard at one time by hand."""
    return RATES[np.searchsorted(CUTS, time)]


@pytest.mark.parametrize("time", [0.4, 1.0, 2.2, 7.0])
def test_density_and_survival_are_those_of_the_integrated_hazard(time):
    ratio = 1.7
    with jax.enable_x64(True):
        found = hazard_density(np.full(2, time), np.log([ratio, ratio]), np.array([1.0, 0.0]))
    total = ratio * quad(hazard_at, 0, time, points=[c for c in CUTS if c < time] or None)[0]
    expected = [np.log(ratio * hazard_at(time)) - total, -total]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_draws_follow_the_distribution_function():
    with jax.enable_x64(True):
        fn = PiecewiseHazard(np.log(RATES), CUTS, np.zeros(1), frailty=np.ones(1))
        drawn = np.asarray(jax.jit(lambda key: fn.sample(key, (40_000,)))(jax.random.key(0)))[:, 0]
        times = np.array([0.5, 1.5, 4.0])
        shares = np.exp(hazard_density(times, np.zeros(3), np.zeros(3), np.ones(3)))
        for time, share in zip(times, shares, strict=True):
            error = np.sqrt(share * (1 - share) / len(drawn))
            assert abs((drawn > time).mean() - share) < 4 * error


@jax.jit
def with_frailty(frailty, log_ratio, event, time):
    """Slopes of log densities in the frailties; log densities, and moments of the frailties."""
    log_rates, cuts = np.log(RATES).astype(time.dtype), CUTS.astype(time.dtype)

    def density(frailty):
        fn = PiecewiseHazard(log_rates, cuts, log_ratio, event, frailty=frailty)
        found = fn.log_prob(time)
        return found.sum(), (found, fn.frailty_moments(time))

    return jax.grad(density, has_aux=True)(frailty)


@pytest.mark.parametrize("event", [0.0, 1.0])
@pytest.mark.parametrize(("frailty", "tolerance"), [(1e-6, 1e-11), (1.0, 1e-10), (2.0, 1e-6)])
def test_frailty_is_integrated_out(event, frailty, tolerance):
    """Density, its slope and moments against a fine grid, over hazards from small to large."""
    grid = np.linspace(-20, 20, 80_001)
    ratios = np.log([1e-3, 0.3, 5.0, 200.0])
    time = np.full(4, 2.0)

    with jax.enable_x64(True):
        slope, (found, (mean, variance)) = with_frailty(
            np.full(4, frailty), ratios, np.full(4, event), time
        )
    total = (0.2 + 0.1) * np.exp(ratios)[:, None]

    def log_integrand(frailty):
        s = frailty * grid
        return event * (np.log(0.1) + ratios[:, None] + s) - total * np.exp(s) - grid**2 / 2

    log_weight = log_integrand(frailty)
    shift = log_weight.max(axis=1, keepdims=True)
    weight = np.exp(log_weight - shift)
    mass = weight.sum(axis=1) * (grid[1] - grid[0]) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(found, np.log(mass) + shift[:, 0], atol=tolerance)
    weight /= weight.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mean, weight @ grid, atol=10 * tolerance)
    spread = (weight * (grid - (weight @ grid)[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(variance, spread, atol=100 * tolerance)
    s = frailty * grid
    by_frailty = (weight * (event - total * np.exp(s)) * grid).sum(axis=1)
    np.testing.assert_allclose(slope, by_frailty, atol=100 * tolerance, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_no_frailty_and_no_time_in_single_precision():
    """Nodes are placed where frailties or hazards are zero, in either precision."""

    frailty, time = np.array([0.0, 1.0, 0.0, 1.0]), np.array([2.0, 2.0, 0.0, 0.0])
    given = frailty, np.zeros(4), np.ones(4), time
    with jax.enable_x64(False):
        slope, (single, moments) = with_frailty(*map(np.float32, given))
    with jax.enable_x64(True):
        double = with_frailty(*given)[1][0]
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, atol=1e-5)
    np.testing.assert_allclose(moments[0][2:], [0.0, 1.0], atol=1e-6)
    assert np.isfinite(slope).all()


def tiny(seed=3):
    """Three subjects with one, two and three rows."""
    rng = np.random.default_rng(seed)
    who = np.array([0, 1, 1, 2, 2, 2])
    design = np.column_stack([np.ones(6), rng.normal(size=6)])
    options = {
        "prior": sb.EffectsPrior([0.0, 0.0], [2.0, 2.0], [1.0, 1.0], 1.0),
        "hazard": HazardPrior([1.0], -1.0),
    }
    time, event = np.array([0.7, 1.8, 2.4]), np.array([1.0, 0.0, 1.0])
    drug = np.array([[0.0], [1.0], [0.0]])
    return (rng.normal(size=6), design, design, sb.Groups(who), time, event, drug), options


PARAMS = {
    "coefficients": np.array([0.3, -0.2]),
    "deviation": np.array([1.1, 0.6]),
    "correlation_cholesky": np.array([[1.0, 0.0], [0.4, np.sqrt(1 - 0.16)]]),
    "noise": np.array(0.5),
    "level": np.array(-1.0),
    "step_scale": np.array(0.7),
    "steps": np.array([0.9]),
    "association": np.array([0.8, -0.5]),
    "log_hazard_ratios": np.array([0.6]),
}


def test_marginal_density_and_posterior_are_those_of_two_dimensional_integrals():
    data, options = tiny()
    y, design, _, groups, time, event, drug = data

    @jax.jit
    def described():
        model = handlers.substitute(joint_survival, PARAMS)
        trace = handlers.trace(model).get_trace(*data, **options)
        fn = trace["y"]["fn"]
        keys = jax.random.split(jax.random.key(1), 20_000)
        drawn = jax.vmap(lambda key: fn.draw_known(key, y))(keys)
        terms = fn.by_unit(y) + trace["time"]["fn"].log_prob(time)
        return terms, fn.posterior(y), drawn

    with jax.enable_x64(True):
        by_subject, posterior, drawn = described()
    factor = PARAMS["deviation"][:, None] * PARAMS["correlation_cholesky"]
    grid = np.linspace(-8, 8, 201)
    white = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    effects = white @ factor.T
    prior = np.exp(-(white**2).sum(axis=1) / 2) * (grid[1] - grid[0]) ** 2 / (2 * np.pi)
    for subject in range(3):
        rows = groups.codes == subject
        center = design[rows] @ (PARAMS["coefficients"] + effects[:, :]).T
        noise = np.sum(-0.5 * ((y[rows][:, None] - center) / 0.5) ** 2, axis=0)
        noise -= rows.sum() * (np.log(0.5) + 0.5 * np.log(2 * np.pi))
        ratio = np.exp(effects @ PARAMS["association"] + 0.6 * drug[subject])
        rates = np.exp([-1.0, -1.0 + 0.7 * 0.9])
        total = rates[0] * min(time[subject], 1) + rates[1] * max(time[subject] - 1, 0)
        log_hazard = np.log(rates[int(time[subject] > 1)] * ratio)
        weight = prior * np.exp(noise + event[subject] * log_hazard - total * ratio)
        np.testing.assert_allclose(by_subject[subject], np.log(weight.sum()), atol=1e-9)
        weight /= weight.sum()
        mean = weight @ effects
        covariance = (weight[:, None] * (effects - mean)).T @ (effects - mean)
        np.testing.assert_allclose(posterior["effects"].values[subject], mean, atol=1e-8)
        np.testing.assert_allclose(
            posterior["effects_covariance"].values[subject], covariance, atol=1e-8
        )
        own = np.asarray(drawn)[:, subject] @ factor.T
        error = np.sqrt(np.diag(covariance) / len(own))
        assert (abs(own.mean(axis=0) - mean) < 4 * error).all()
        np.testing.assert_allclose(np.cov(own.T), covariance, atol=0.03)


def test_without_association_it_is_mixed_effects_and_survival_apart():
    data, options = tiny()
    y, _, _, _, time, event, drug = data
    apart = PARAMS | {"association": np.zeros(2)}

    def density(association):
        model = handlers.substitute(joint_survival, PARAMS | {"association": association})
        trace = handlers.trace(model).get_trace(*data, **options)
        return trace["time"]["fn"].log_prob(time).sum(), trace["y"]["fn"].log_prob(y)

    @jax.jit
    def described():
        plain = handlers.substitute(sb.CARDS["mixed_effects"].model, apart)
        alone = handlers.trace(plain).get_trace(*data[:4], form="marginal", prior=options["prior"])
        logs = np.array([-1.0, -1.0 + 0.63])
        times = PiecewiseHazard(logs, np.array([1.0]), 0.6 * drug[:, 0], event)
        expected = times.log_prob(time).sum(), alone["y"]["fn"].log_prob(y)
        return jax.value_and_grad(density, has_aux=True)(jnp.zeros(2)), expected

    with jax.enable_x64(True):
        (found, slope), expected = described()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isfinite(slope).all()


def test_events_are_seen_where_nothing_is_said():
    data, options = tiny()
    with jax.enable_x64(True):
        model = handlers.substitute(joint_survival, PARAMS)
        y, fixed, random, subjects, time, _, drug = data
        given = {"covariates": drug, **options}

        @jax.jit
        def laws():
            traces = (
                handlers.trace(model).get_trace(y, fixed, random, subjects, time, seen, **given)
                for seen in (None, np.ones(3))
            )
            return [one["time"]["fn"] for one in traces]

        silent, told = map(jax.tree.leaves, laws())
    assert len(silent) == len(told) == 20  # all that density and draws depend on but the times
    for one, other in zip(silent, told, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@pytest.mark.filterwarnings("ignore:.* have measures after since")
@pytest.mark.slow
def test_single_precision_after_double(fitted, data):
    """The same process fits in both, and has curves from the origin in both."""
    single = sb.fit("joint_survival", **data, dtype="float32", progress=False)
    np.testing.assert_allclose(single.params["association"], fitted.params["association"], rtol=0.3)
    curves = single.survival([0.0, 1.0], since=0.0)["mean"]
    assert ((curves > 0) & (curves <= 1)).all()


def test_finds_what_was_simulated(fitted):
    assert fitted.status.converged
    draws = fitted.tree["posterior"]["association"].to_numpy().reshape(-1, 2)
    truth, error = np.array([0.8, 0.5]), draws.std(axis=0)
    assert (abs(draws.mean(axis=0) - truth) < 3 * error).all()
    assert (error < 0.6).all()
    alone = fitted.effects()
    assert alone["mean"].shape == (80, 2)


def test_terms_of_subjects_hold_outcomes_and_times(fitted, data):
    """Leave-one-out and k-fold go by these."""
    terms = fitted.unit_terms
    assert terms.shape[-1] == 80
    first = {n: v.to_numpy()[0, 0] for n, v in fitted.tree["posterior"].data_vars.items()}
    roles = ("y", "fixed", "random", "subjects", "time", "event", "covariates")
    given = [np.asarray(data[n]) for n in roles]
    given[3] = sb.Groups(data["subjects"])
    with jax.enable_x64(True):
        model = handlers.substitute(joint_survival, first)

        @jax.jit
        def by_subject():
            options = {name: data[name] for name in ("prior", "hazard", "covariance")}
            trace = handlers.trace(model).get_trace(*given, **options)
            times = trace["time"]["fn"].log_prob(given[4])
            return trace["y"]["fn"].by_unit(given[0]) + times

        own = by_subject()
    np.testing.assert_allclose(terms[0, 0], own, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.* have measures after since")
def test_survival_curves(fitted, data):
    at = np.linspace(0.0, 8.0, 9)
    origin = fitted.survival(at, since=0.0)
    assert (origin["mean"][:, 0] == 1).all()
    assert (np.diff(origin["mean"], axis=1) <= 0).all()
    assert (origin["lower"] <= origin["upper"]).all()
    later = fitted.survival(at, since=2.0)
    kept = (
        origin["mean"].to_numpy()[:, at > 2] < later["mean"].to_numpy()[:, at > 2] + 1e-12
    ).all()
    assert kept
    assert (later["mean"].sel(time=2.0) == 1).all()
    # a new subject with the data of a fitted one has its curve
    rows = np.asarray(data["subjects"]) == 3
    new = {n: np.asarray(data[n])[rows] for n in ("y", "fixed", "random", "subjects")}
    covariates = data["covariates"].iloc[[3]]
    again = fitted.survival(at, **new, covariates=covariates, since=0.0)
    np.testing.assert_allclose(again["mean"][0], origin["mean"][3], atol=1e-12)
    with pytest.raises(TypeError, match="depends on: pass covariates, an array"):
        fitted.survival(at, **new, since=0.0)
    since = pd.Series(np.asarray(data["time"]))
    with pytest.raises(ValueError, match="since has 79 at place 0, by its index, where 0 is"):
        fitted.survival(at, since=since[::-1])
    with pytest.raises(ValueError, match="since has shape"):
        fitted.survival(at, since=[1.0, 2.0])
    with pytest.raises(ValueError, match="times from 0 on"):
        fitted.survival([-1.0], since=0.0)


def test_curves_need_effects_integrated_out():
    """Effects that are sites were drawn given the times."""
    data, options = tiny()
    params = PARAMS | {"white_effects": np.zeros((3, 2))}
    known = told(joint_survival, data, params, form="non_centred", **options)
    with pytest.raises(ValueError, match="white_effects.* form='marginal' for survival curves"):
        known.survival([1.0], since=0.0)


def test_replicates_share_the_effects_of_subjects(fitted, data):
    """Levels and times that are drawn again go with the effects of their subjects."""
    drawn = fitted.predictive()["posterior_predictive"]
    effects = fitted.effects()["mean"].to_numpy()
    time = np.log(drawn["time"].to_numpy()).mean(axis=(0, 1))
    risk = effects @ fitted.params["association"]
    assert np.corrcoef(time, risk)[0, 1] < -0.5
    level = drawn["y"].to_numpy().mean(axis=(0, 1))
    assert np.corrcoef(level, data["y"])[0, 1] > 0.9


def test_simulates_and_fits_saved(fitted, tmp_path):
    data, options = tiny()

    @jax.jit
    def drawn():
        model = handlers.seed(joint_survival, 0)
        trace = handlers.trace(model).get_trace(None, *data[1:4], None, **options)
        return trace["y"]["value"], trace["time"]["value"]

    y, time = drawn()
    assert y.shape == (6,)
    assert (time > 0).all()
    fitted.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again.effects()["mean"], fitted.effects()["mean"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "wide"}, "form = 'wide'; expected one of"),
        ({"time": np.zeros(80)}, r"time\[0\] = 0.0; expected a positive time"),
        ({"event": np.full(80, 2)}, r"event\[0\] = 2.0; expected 1 where"),
        ({"time": np.ones(79)}, "subjects"),
        (
            {"time": pd.Series(np.ones(80))[::-1]},
            "time has 79 at place 0, by its index, where 0 is",
        ),
    ],
)
def test_bad_input_is_named(data, change, message):
    with pytest.raises(ValueError, match=message):
        sb.fit("joint_survival", **{**data, **change}, progress=False)


def test_origins_of_covariates_and_time_do_not_matter():
    """With weak priors the log joint is the same at the parameters that mean the same."""
    table, persons = simulate_joint(12)

    def given(table, persons):
        design = sb.design("y ~ year + (year | who)", table)
        data = design.survival("Surv(years, died) ~ drug", persons, num_intervals=2)
        names = ("y", "fixed", "random", "subjects", "time", "event", "covariates")
        arrays = [np.asarray(data[name]) for name in names]
        arrays[3] = sb.Groups(arrays[3])
        return arrays, {name: data[name] for name in ("prior", "hazard")}

    usual = given(table, persons)
    moved = table.assign(year=table.year + 50), persons.assign(drug=persons.drug + 2010)
    changed = {
        "coefficients": PARAMS["coefficients"] - [50 * PARAMS["coefficients"][1], 0],
        "association": PARAMS["association"] + [0, 50 * PARAMS["association"][0]],
    }
    pairs = (usual, PARAMS), (given(*moved), PARAMS | changed)

    @jax.jit
    def log_joints():
        return [log_density(joint_survival, *data, params)[0] for data, params in pairs]

    with jax.enable_x64(True):
        np.testing.assert_allclose(*log_joints(), rtol=1e-9)


def test_one_visit_each_leaves_the_noise_to_the_prior():
    """Said of a mode; EM, which has no update of hazards, is no remedy."""
    table, persons = simulate_joint()
    at = {"coefficients": [2.0, -0.3], "deviation": [1.0], "covariance": [[1.0]], "noise": 0.3}
    at |= {"level": -1.4, "log_hazards": [-1.4], "association": [0.8], "log_hazard_ratios": [-0.7]}
    for rows, said in ((table, False), (table.groupby("who").head(1), True)):
        design = sb.design("y ~ year + (1 | who)", rows)
        given = design.survival("Surv(years, died) ~ drug", persons, num_intervals=1)
        with pytest.raises(Asked) as asked:
            sb.fit("joint_survival", **given, engine=Asking(), progress=False)
        problem = asked.value.problem
        with jax.enable_x64(True):
            found = " ".join(remarks(problem, at_one(at).draws))
        assert (PRIOR_ALONE in found) == said
        assert "EM" not in found + remedy(problem)
