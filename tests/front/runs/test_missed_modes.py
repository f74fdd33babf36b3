"""Samplers that start at one mode say so where the search for it found another one."""

from types import SimpleNamespace
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.guides.engines.base import EngineResult, Evidence, Problem, Status
from sidebayes.guides.engines.modes import Modes
from sidebayes.guides.engines.optimisers.elsewhere import mass_elsewhere

import sidebayes as sb
from sidebayes.runs import execution
from tests.reference.posteriors import EXACT
from tests.support.draws import Told


@pytest.mark.parametrize(
    "engine",
    [sb.NUTS(num_warmup=200, num_samples=200), sb.SVI(), sb.Laplace()],
    ids=lambda e: e.name,
)
def test_a_fit_of_one_of_two_modes_is_not_called_good(engine):
    known = EXACT["two_signs"]()
    fit = sb.fit(known.model, *known.data, engine=engine, progress=False)
    assert np.abs(np.sign(fit.tree["posterior"]["theta"]).mean()) == 1  # one mode
    level, why = fit.verdict
    assert level != "good"
    assert "No draw came near a mode" in why
    assert "0.4 below" in why


def test_draws_of_both_modes_are_not_warned_of():
    known = EXACT["two_signs"]()
    fit = sb.fit(known.model, *known.data, engine=sb.SMC(num_particles=500), progress=False)
    assert "No draw came near" not in fit.verdict[1]


def test_modes_that_hardly_matter_are_not_named():
    """The other sign is exp(-8) times as probable."""

    def sign(y):
        theta = numpyro.sample("theta", dist.Normal(2.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.abs(theta), 0.2), obs=y)

    y = np.random.default_rng(0).normal(2.0, 0.2, 10)
    engine = sb.HMC(num_warmup=200, num_samples=200, num_chains=2)
    fit = sb.fit(sign, y, engine=engine, progress=False)
    assert (fit.tree["posterior"]["theta"] > 0).all()
    assert "No draw came near" not in fit.verdict[1]


def test_a_mode_that_the_prior_hardly_reaches_is_found_by_a_search():
    known = EXACT["rare_mode"]()
    fit = sb.fit(known.model, *known.data, engine="laplace", progress=False, **known.options)
    level, why = fit.verdict
    assert level == "bad"
    assert "holds about 79% of the posterior" in why
    assert "theta = [3.98" in why


def test_evidence_of_draws_that_missed_a_mode_is_a_lower_bound():
    known = EXACT["rare_mode"]()
    engine = sb.Pathfinder(num_paths=2, num_draws=200)
    fit = sb.fit(known.model, *known.data, engine=engine, progress=False, **known.options)
    assert fit.log_evidence.kind == "bound"
    assert fit.log_evidence.value < known.log_evidence
    assert "a lower bound, log evidence ≥" in fit.verdict[1]


def test_draws_of_a_mode_that_is_hard_to_find_are_not_condemned():
    known = EXACT["rare_mode"]()
    rng = np.random.default_rng(0)
    narrow = rng.uniform(size=(2, 1000, 1)) < 0.783
    draws = {
        "theta": rng.normal(
            np.where(narrow, 3.982, 0.0), np.where(narrow, 0.2, 0.949), (2, 1000, 4)
        )
    }
    model, options = known.model, known.options
    assert "a search" not in sb.Fit.from_draws(model, *known.data, draws, **options).verdict[1]
    draws["theta"][~narrow[..., 0]] = draws["theta"][narrow[..., 0]][0]  # the wide mode is lost
    level, why = sb.Fit.from_draws(model, *known.data, draws, **options).verdict
    assert level == "bad"
    assert "a search" in why


def test_copies_of_a_mode_by_a_renumbering_are_not_missed():
    known = EXACT["three_components"]()
    fit = sb.fit(known.model, *known.data, engine="laplace", progress=False, **known.options)
    assert "a search" not in fit.verdict[1]


def line(x: Annotated[ArrayLike, "rows"], y: Annotated[ArrayLike, "rows"]):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(intercept + slope * x, noise), obs=y)


def missed(monkeypatch, evidence):
    """What a search that finds a mode makes of a result."""
    monkeypatch.setattr(execution, "mass_elsewhere", lambda *given: "a search found a mode")
    problem = Problem(line, (jnp.arange(3.0), jnp.ones(3)))
    run = SimpleNamespace(problem=problem, engine=sb.Pathfinder(), stream=None, seed=0)
    result = EngineResult(
        engine="pathfinder",
        draws={name: np.ones((1, 5)) for name in ("intercept", "slope", "noise")},
        sample_stats={"lp": np.zeros((1, 5))},
        objective=np.zeros((0, 0)),
        status=Status(True, "settled"),
        seconds={"compile": 0.0, "run": 0.0},
        log_evidence=evidence,
    )
    return execution._searched(run, result, SimpleNamespace(are_exchangeable=False))


def test_an_estimate_of_evidence_becomes_a_lower_bound_where_a_mode_is_missed(monkeypatch):
    found = missed(monkeypatch, Evidence(-3.0, "estimate", 0.1))
    assert not found.status.converged
    assert found.log_evidence.kind == "bound"
    assert found.log_evidence.value < -3.0
    said = "settled; a search found a mode; the estimate is no more than a lower bound, log"
    assert str(found.status).startswith(said)


def test_a_bound_on_evidence_stays_as_it_is_where_a_mode_is_missed(monkeypatch):
    bound = Evidence(-3.0, "bound", 0.1)
    found = missed(monkeypatch, bound)
    assert not found.status.converged
    assert found.log_evidence == bound
    assert "a search found a mode" in str(found.status)
    assert "log evidence" not in str(found.status)


def somewhere(y):
    place = numpyro.sample("place", dist.Normal(0.0, 1000.0))
    numpyro.sample("y", dist.Cauchy(place, 1.0).expand(y.shape).to_event(1), obs=y)


def test_a_search_begins_at_modes_that_were_found_before():
    """Points from a vague prior do not come near the other half of the posterior."""
    near, far = np.array([0.0, 0.6, 0.2, -0.3, 0.1]), np.array([25.0, 24.6, 24.9, 25.2, 25.4])
    problem = Problem(somewhere, (jnp.concatenate([near, far]),))
    draws = {"place": np.random.default_rng(0).normal(24.9, 0.4, (2, 500))}
    assert mass_elsewhere(problem, draws, 0) is None
    modes = Modes(np.zeros(2), {"place": np.array([24.9, 0.2])}, 10)
    found = mass_elsewhere(problem, draws, 0, modes)
    assert found.share == pytest.approx(0.49, abs=0.03)
    assert found.sites["place"] == pytest.approx(0.16, abs=0.05)


def far_from_zero():
    """Data that are not centred: intercept and slope all but determine each other."""
    rng = np.random.default_rng(0)
    x = rng.normal(66.0, 4.0, 150)
    return x, 3.0 + 0.5 * x + rng.normal(size=150)


def test_given_draws_of_sites_that_depend_on_each_other_miss_no_mode():
    """They are of the posterior, but for the prior of the noise, which hardly counts."""
    x, y = far_from_zero()
    rng, table = np.random.default_rng(1), np.column_stack([np.ones(150), x])
    rest = np.square(y - table @ np.linalg.lstsq(table, y)[0]).sum()
    noise = np.sqrt(rest / rng.chisquare(148, (2, 500)))
    square = noise[..., None, None] ** 2
    precision = table.T @ table / square + np.eye(2) / 100
    mean = np.linalg.solve(precision, (table.T @ y)[:, None] / square)
    across = np.linalg.cholesky(precision).swapaxes(-1, -2)
    both = (mean + np.linalg.solve(across, rng.normal(size=(2, 500, 2, 1))))[..., 0]
    assert abs(np.corrcoef(both.reshape(-1, 2).T)[0, 1]) > 0.99
    draws = {"intercept": both[..., 0], "slope": both[..., 1], "noise": noise}
    fit = sb.fit(line, x, y, engine=Told(draws), progress=False)
    assert "found a mode that draws missed" not in fit.status.message
    draws["slope"] = draws["slope"] + 1.0  # and where they do miss it, that is said
    fit = sb.fit(line, x, y, engine=Told(draws), progress=False)
    assert "found a mode that draws missed" in fit.status.message


@pytest.mark.parametrize("seed", range(3))
def test_sites_that_depend_on_each_other_are_no_missed_mode(seed):
    """Values of one site beside those of another draw have a density far below that of draws."""
    x, y = far_from_zero()
    engine = sb.NUTS(num_warmup=300, num_samples=500, num_chains=2, dense_mass="low_rank")
    fit = sb.fit(line, x, y, engine=engine, seed=seed, progress=False)
    assert "found a mode that draws missed" not in fit.status.message


@pytest.mark.parametrize("seed", range(2))
def test_em_without_labels_ends_at_the_mode(seed):
    """Fifteen gradients along a ridge, begun anew at each step, gain less than rounding."""
    rng = np.random.default_rng(0)
    x = rng.normal(66.0, 4.0, 150)
    y = 3.0 + 0.5 * x + rng.normal(size=150)
    by_em, by_map = (sb.fit(line, x, y, engine=e, seed=seed, progress=False) for e in ("em", "map"))
    heights = [fit.tree["sample_stats"]["lp"].item() for fit in (by_em, by_map)]
    np.testing.assert_allclose(*heights, atol=1e-4)
    assert "1 distinct mode from 10 starts" in by_em.status.message


def test_a_lower_bound_stays_one_where_a_mode_is_missed():
    known = EXACT["rare_mode"]()
    engine = sb.SVI(num_restarts=2)
    fit = sb.fit(known.model, *known.data, engine=engine, progress=False, **known.options)
    weights = fit.tree["sample_stats"]["log_weight"].to_numpy()
    assert "found a mode that draws missed" in fit.status.message
    assert fit.log_evidence.kind == "bound"
    assert fit.log_evidence.value == weights.mean()
    assert fit.log_evidence.standard_error > 0
    assert fit.status.message.count("log evidence") == 1
    assert "estimate" not in fit.status.message


def loadings(x):
    """A factor whose sign is free."""
    row = numpyro.sample("row", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2))
    law = dist.LowRankMultivariateNormal(jnp.zeros(2), row, 0.1 * jnp.ones(2))
    numpyro.sample("x", law.expand([len(x)]).to_event(1), obs=x)


def test_a_mode_that_mirrors_the_draws_is_named_with_the_cure():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1)) * np.array([1.5, -1.0]) + 0.3 * rng.normal(size=(40, 2))
    draws = np.array([[1.5], [-1.0]]) * (1 + 0.1 * rng.normal(size=(2, 500, 1, 1)))
    draws += 0.05 * rng.normal(size=draws.shape)
    found = mass_elsewhere(Problem(loadings, (jnp.asarray(x),)), {"row": draws}, 0)
    assert found.turned == ("row",)
    text = str(found)
    assert "\n" not in text
    assert (
        'by the signs of row: declare there that signs along an axis may change, infer={"symm'
        in text
    )
