"""References: two samplers that start apart have to agree."""

from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sidebayes as sb
from sidebayes.studies import reference as module
from tests.reference.posteriors import EXACT


def moments(fit):
    theta = fit.tree["posterior"]["theta"].to_numpy()
    return theta.mean(), theta.std(), 4 / np.sqrt(fit.convergence["ess"])


def flat_location(y):
    theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(theta, 2.0), obs=y)


def found(engine, *, rhat=1.0, ess=1e6, diverging=False):
    """What `reference` looks at in a fit."""
    return SimpleNamespace(
        config=engine,
        engine=engine.name,
        params={},
        convergence={"rhat": rhat, "ess": ess},
        tree={
            "sample_stats": {"diverging": np.array([[diverging]])},
            "fit_info": SimpleNamespace(attrs={}),
        },
    )


def length(engine):
    return engine.num_particles if isinstance(engine, sb.SMC) else engine.num_samples


@pytest.fixture
def runs(monkeypatch):
    """The engines that `reference` ran, by fits that are made up; NUTS alone disagrees."""
    ran = []
    monkeypatch.setattr(module, "_has_proper_prior", lambda fit: True)
    monkeypatch.setattr(
        module, "_difference", lambda fits: "unlike" * any("NUTS" in name for name in fits)
    )

    def use(answer):
        def fit(*given, engine, **rest):
            ran.append(engine)
            return answer(engine)

        monkeypatch.setattr(module, "fit", fit)
        return ran

    return use


def test_chains_that_do_not_mix_are_left_for_particles(runs):
    def answer(engine):
        apart = isinstance(engine, sb.NUTS)
        # particles enough for a witness, and not for a reference
        return found(engine, rhat=1.5 if apart else 1.0, ess=7 if apart else 1.1 * length(engine))

    ran = runs(answer)
    known = sb.reference("model", ess=2000)
    asked = [(engine.name, length(engine)) for engine in ran]
    assert asked[:4] == [("nuts", 2000), ("nuts", 4000), ("smc", 1000), ("nested", 1000)]
    assert {name for name, _ in asked[4:]} == {"smc"}
    assert known.config.num_particles > 1500
    assert known.tree["fit_info"].attrs["reference"].startswith("SMC and nested sampling")


def test_chains_that_come_closer_are_lengthened_and_no_run_is_longer_than_asked(runs):
    ran = runs(lambda engine: found(engine, rhat=1 + 400 / length(engine)))
    with pytest.raises(sb.FitError, match=r"R-hat 1.040 .* from max_draws = 10000 per chain"):
        sb.reference("model", ess=2000, max_draws=10_000)
    assert [length(engine) for engine in ran] == [2000, 4000, 8000, 10_000]
    ran = runs(lambda engine: found(engine, ess=1100))
    ran.clear()
    with pytest.raises(sb.FitError, match="nuts has .* from max_draws = 1000 per chain"):
        sb.reference("model", ess=1e7, max_draws=1000)
    assert [length(engine) for engine in ran] == [1000]


def test_draws_that_diverge_are_drawn_anew_with_smaller_steps(runs, monkeypatch):
    monkeypatch.setattr(module, "_difference", lambda fits: "")
    ran = runs(lambda engine: found(engine, diverging=getattr(engine, "target_accept", 1.0) < 0.9))
    known = sb.reference("model", ess=2000)
    assert [getattr(engine, "target_accept", None) for engine in ran] == [0.8, 0.95, None]
    assert known.tree["fit_info"].attrs["reference"] == (
        "NUTS from a mode at target_accept = 0.95 and SMC from the prior agree"
    )
    ran = runs(lambda engine: found(engine, diverging=True))
    ran.clear()
    known = sb.reference("model", ess=2000)
    assert known.config.target_accept == 0.99
    assert len(ran) == 4


@pytest.mark.slow
def test_two_modes_are_found_from_the_prior(tmp_path):
    known = EXACT["two_signs"]()
    given = {"progress": False, **known.options}
    found = sb.reference(known.model, *known.data, ess=2000, seed=1, **given)
    assert found.tree["fit_info"].attrs["reference"] == (
        "SMC and nested sampling from the prior agree"
    )
    assert found.convergence["ess"] >= 2000
    (mean, sd), (ours, spread, error) = known.truth["theta"], moments(found)
    assert abs(ours - mean) < error * sd
    assert spread == pytest.approx(sd, rel=error)
    # fits are measured against it, also once it is stored
    found.save(tmp_path / "known.nc")
    stored = sb.load(tmp_path / "known.nc", model=known.model)
    nuts = sb.fit(known.model, *known.data, engine=sb.NUTS(num_samples=500), **given)
    assert nuts.verdict[0] == "bad"  # its chains are in two modes
    trust = sb.compare({"nuts": nuts, "known": stored}).frame["trust"]
    assert trust.to_dict() == {"nuts": "no", "known": "reference"}


def test_an_improper_prior_is_started_from_points_spread_out():
    y = np.array([[1.0], [3.0], [2.5], [0.5]])
    found = sb.reference(flat_location, y, ess=2000, seed=2, progress=False)
    assert "spread starts" in found.tree["fit_info"].attrs["reference"]
    mean, sd, error = moments(found)
    assert abs(mean - y.mean()) < error
    assert sd == pytest.approx(1.0, rel=error)


def test_a_reference_that_is_not_reached_is_refused():
    y = np.zeros((3, 1))
    with pytest.raises(sb.FitError, match=r"max_draws = 1000; 1.005 and 1e\+06|1000000 are asked"):
        sb.reference(flat_location, y, ess=1e6, max_draws=1000, progress=False)
    with pytest.raises(TypeError, match="engine cannot be given"):
        sb.reference(flat_location, y, engine="nuts")
    with pytest.raises(ValueError, match="ess"):
        sb.reference(flat_location, y, ess=0)
