"""Under an improper prior there is no evidence, and where weights are not to be trusted only a bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.bridge import bridge_evidence
from sidebayes.guides.engines.optimisers.moments import Judgement
from sidebayes.guides.engines.problem.importance import no_evidence
from sidebayes.guides.engines.variational import pathfinder
from sidebayes.models.geodesic_embedding import geodesic_embedding
from sidebayes.models.nfgl import nfgl

import sidebayes as sb

Y = np.random.default_rng(5).normal(2, 1, 12)


def improper(y):
    m = numpyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
    s = numpyro.sample("s", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def proper(y):
    m = numpyro.sample("m", dist.Normal(0, 5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def powered(y):
    """The mean of y by a prior that is 30 times as strong as it is written."""
    with numpyro.handlers.scale(scale=30.0):
        m = numpyro.sample("m", dist.Normal(0, 5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def likely(y):
    m = numpyro.sample("m", dist.Normal(0, 5))
    with numpyro.plate("rows", len(y)), numpyro.handlers.scale(scale=0.5):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def in_batches(y):
    m = numpyro.sample("m", dist.Normal(0, 5))
    with numpyro.plate("rows", len(y), subsample_size=4) as rows:
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y[rows])


def spread(y):
    a = numpyro.sample("a", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(0, a), obs=y)


def drawn(model, prior=1.0, likelihood=1.0):
    """Fit of exact draws of the mean, whose prior and likelihood have these powers."""
    precision = prior / 25 + likelihood * len(Y)
    rng = np.random.default_rng(0)
    m = rng.normal(likelihood * Y.sum() / precision, precision**-0.5, (4, 500))
    return sb.Fit.from_draws(model, Y, {"m": m})


def run(engine, model):
    """The engine's own answer, of which a fit computes more than is asked for here."""
    with jax.enable_x64(True):
        return ENGINES[engine].run(Problem(model, (jnp.asarray(Y),)), progress=False)


ENGINES = {
    "laplace": sb.Laplace(),
    "importance": sb.Laplace(importance=True),
    "svi": sb.SVI(num_restarts=1),
    "pathfinder": sb.Pathfinder(num_paths=2),
    "smc": sb.SMC(num_particles=500),
    "nested": sb.NestedSlice(num_live=300),
}


@pytest.mark.parametrize("engine", ["svi", "pathfinder"])
def test_the_status_states_none(engine):
    if engine == "pathfinder":
        pytest.importorskip("blackjax")
    found = run(engine, improper)
    assert found.log_evidence is None
    assert "no evidence, as a prior is improper" in found.status.message
    assert "log evidence" not in found.status.message


@pytest.mark.parametrize("engine", ENGINES)
def test_powers_have_no_evidence_in_any_engine(engine):
    if engine in ("pathfinder", "smc", "nested"):
        pytest.importorskip("blackjax")
    found = run(engine, powered)
    assert found.log_evidence is None
    assert r"no evidence, as handlers.scale raises the densities of ['m']" in found.status.message
    assert "log evidence" not in found.status.message
    precision = 30 / 25 + len(Y)
    draws = found.draws["m"]
    assert float(draws.mean()) == pytest.approx(Y.sum() / precision, abs=0.04)
    assert float(draws.std()) == pytest.approx(precision**-0.5, rel=0.1)


@pytest.mark.parametrize(("model", "site"), [(powered, "m"), (likely, "y")])
def test_a_bridge_refuses_powers_with_the_same_reason(model, site):
    found = drawn(model, prior=30.0) if model is powered else drawn(model, likelihood=0.5)
    with pytest.raises(ValueError, match=rf"no evidence, as handlers.scale raises .*'{site}'"):
        found.with_evidence()


def test_the_power_of_a_method_is_its_own():
    """Numbers of dimensions are compared under it; a power around the method is not its own."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(25, 3)))
    options = {"num_neighbors": 5, "num_dimensions": 2}
    assert not no_evidence(Problem(geodesic_embedding, (x,), options))
    twice = numpyro.handlers.scale(geodesic_embedding, 2.0)
    assert "'distances'" in no_evidence(Problem(twice, (x,), options))


def test_a_composite_likelihood_has_none():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(15, 2)), rng.normal(size=(15, 2)) + 6])
    rows, classes = np.arange(0, 30, 5), np.arange(0, 30, 5) // 15
    anchors = sb.Anchors(x[rows], classes, classes, np.array([[0.9, 0.1], [0.1, 0.9]]))
    options = {"anchors": anchors, "num_clusters": 2, "num_classes": 2}
    assert "composite" in no_evidence(Problem(nfgl, (jnp.asarray(x),), options))


def test_a_bridge_takes_factors_alone():
    def factors(y):
        m = numpyro.sample("m", dist.Normal(0, 5))
        numpyro.factor("y", dist.Normal(m, 1.0).log_prob(y).sum())

    cover = np.eye(len(Y)) + 25.0
    exact = stats.multivariate_normal(np.zeros(len(Y)), cover).logpdf(Y)
    assert float(drawn(factors).with_evidence().log_evidence) == pytest.approx(exact, abs=0.02)


def test_batches_of_a_plate_are_all_rows():
    found = [run("laplace", model).log_evidence.value for model in (in_batches, proper)]
    assert found[0] == pytest.approx(found[1], abs=1e-9)


def test_weights_of_a_heavy_tail_give_a_bound(monkeypatch):
    pytest.importorskip("blackjax")
    heavy = Judgement(True, "moments are right", even=False)
    monkeypatch.setattr(pathfinder, "judge_draws", lambda *_, **__: heavy)
    found = run("pathfinder", proper)
    assert found.log_evidence.kind == "bound"


def test_laplace_says_that_there_is_no_mode():
    with pytest.raises(FitError, match="grows without bound towards a = 0"):
        sb.fit(spread, np.zeros(6), engine=sb.Laplace(num_restarts=1), progress=False)


def test_a_bridge_names_the_sites_that_draws_lack():
    """As of a file that holds a site under the name that an older model gave it."""
    draws = {"mean": np.random.default_rng(0).normal(size=(2, 50))}
    with pytest.raises(ValueError, match=r"latent sites without a value: \['m'\]"):
        bridge_evidence(Problem(proper, (jnp.asarray(Y),)), draws)
