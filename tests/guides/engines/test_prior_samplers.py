"""SMC and nested sampling against evidence known in closed form or by enumeration."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats
from sidebayes.guides.engines.base import FitError, Problem, SideBayesWarning
from sidebayes.guides.engines.samplers import smc
from sidebayes.guides.engines.samplers.nested import NestedSlice
from sidebayes.guides.engines.samplers.particles import pool_evidence
from sidebayes.guides.engines.samplers.smc import SMC
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.links import Links

pytest.importorskip("blackjax")

Y = np.array([0.3, 1.2, 0.8, 2.0])
ENGINES = {
    "hmc": SMC(num_particles=400, num_runs=6, num_mutations=3),
    "random_walk": SMC(num_particles=400, num_runs=6, num_mutations=8, kernel="random_walk"),
    "nested": NestedSlice(num_live=150, num_delete=30, num_runs=6, num_samples=400),
}
PEAKS, SHARES = np.array([-4.0, 4.0]), np.array([0.3, 0.7])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def two_peaks(y):
    """A conjugate normal mean, and beside it a parameter with two separated modes."""
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 5.0))
    numpyro.deterministic("twice", 2 * mu)
    numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)
    parts = jnp.log(SHARES) + dist.Normal(theta, 0.3).log_prob(jnp.asarray(PEAKS))
    numpyro.factor("peaks", jax.nn.logsumexp(parts))


def peaks_problem():
    return Problem(two_peaks, (jnp.asarray(Y),))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def peaks(engine):
    with jax.enable_x64(True):
        return engine.run(peaks_problem(), seed=3)


def assert_runs_agree_with(values, expected):
    """Mean over runs within four of its standard errors, which must not be large."""
    means = values.mean(axis=1)
    error = means.std(ddof=1) / np.sqrt(len(means))
    assert error < 0.1
    assert abs(means.mean() - expected) < 4 * error


def test_evidence_and_moments_in_closed_form(peaks):
    cover = 0.25 * np.eye(4) + 4 * np.ones((4, 4))
    expected = stats.multivariate_normal(np.ones(4), cover).logpdf(Y)
    densities = SHARES * stats.norm(0, np.hypot(5, 0.3)).pdf(PEAKS)
    expected += np.log(densities.sum())
    found = peaks.log_evidence
    assert found.kind == "estimate"
    assert 0 < found.standard_error < 0.3
    assert abs(found.value - expected) < 4 * found.standard_error
    assert_runs_agree_with(peaks.draws["mu"], (0.25 + Y.sum() / 0.25) / 16.25)


def test_both_modes_have_their_masses(peaks):
    above = (peaks.draws["theta"] > 0).astype(float)
    assert_runs_agree_with(above, 0.7)  # the peaks lie symmetric in the prior
    near = np.abs(np.abs(peaks.draws["theta"]) - 4 * 25 / 25.09)
    assert near.max() < 2


def test_shapes_and_status(peaks):
    assert {n: v.shape for n, v in peaks.draws.items()} == dict.fromkeys(
        ("mu", "theta", "twice"), (6, 400)
    )
    np.testing.assert_allclose(peaks.draws["twice"], 2 * peaks.draws["mu"])
    assert peaks.sample_stats["lp"].shape == (6, 400)
    assert peaks.status.converged, peaks.status
    assert str(peaks.log_evidence) in peaks.status.message
    assert peaks.density_space == "unconstrained"


def test_seed_decides(engine, peaks):
    again, other = (engine.run(peaks_problem(), seed=seed) for seed in (3, 4))
    np.testing.assert_array_equal(again.draws["mu"], peaks.draws["mu"])
    assert again.log_evidence == peaks.log_evidence
    assert other.log_evidence != peaks.log_evidence


def test_stopped_short_is_said():
    result = replace(ENGINES["hmc"], max_steps=1).run(peaks_problem(), seed=3)
    assert not result.status.converged
    assert "not draws of the posterior" in result.status.message
    assert result.log_evidence is None


X = np.array([-1.3, -0.7, 0.4, 1.6, 1.1])
LINKS = Links([[0, 1], [1, 3], [2, 4]], [1.5, -2.0, np.inf], len(X))


def linked(x, graph):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("clusters", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    labels = LinkedCategorical(jnp.log(weights), graph)
    numpyro.sample("x", LinkedMixture(labels, dist.Normal(mean, 0.5)), obs=x)


def linked_evidence():
    """Sum over all labelings, cluster means integrated out, then quadrature over the weights."""
    labelings = np.array(list(itertools.product((0, 1), repeat=len(X))))
    same = labelings[:, LINKS.pairs[:, 0]] == labelings[:, LINKS.pairs[:, 1]]
    potential = np.where(same, np.where(np.isinf(LINKS.weights), 0.0, LINKS.weights), 0.0)
    potential = np.exp(potential.sum(axis=1)) * (same | ~np.isinf(LINKS.weights)).all(axis=1)

    def cluster(members):
        size = len(members)
        if size == 0:
            return 1.0
        cover = 0.25 * np.eye(size) + 4 * np.ones((size, size))
        return stats.multivariate_normal(np.zeros(size), cover).pdf(members)

    data = np.array([cluster(X[z == 0]) * cluster(X[z == 1]) for z in labelings])
    ones = labelings.sum(axis=1)

    def given(share):
        prior = potential * share**ones * (1 - share) ** (len(X) - ones)
        return prior @ data / prior.sum()

    return np.log(integrate.quad(given, 0, 1)[0])


@pytest.mark.parametrize("name", ["hmc", "nested"])
def test_linked_mixture_against_enumeration(name):
    problem = Problem(linked, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    result = ENGINES[name].run(problem, seed=5)
    found = result.log_evidence
    assert found.standard_error < 0.3
    assert abs(found.value - linked_evidence()) < 4 * found.standard_error
    first = result.draws["mean"][..., 0] < result.draws["mean"][..., 1]
    assert_runs_agree_with(first.astype(float), 0.5)  # both numberings of the clusters


def improper(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def impossible(y):
    mu = numpyro.sample("mu", dist.Normal())
    numpyro.factor("never", -jnp.inf * jnp.exp(mu))


@pytest.mark.parametrize("name", ["hmc", "nested"])
def test_refusals(name):
    engine, data = ENGINES[name], (jnp.asarray(Y),)
    with pytest.raises(ValueError, match="site 'mu' is improper"):
        engine.run(Problem(improper, data))
    with pytest.raises(ValueError, match="leave init out"):
        engine.run(peaks_problem(), init={"mu": 0.0, "theta": 0.0})
    with pytest.raises(FitError, match="site 'never' has log density -inf"):
        engine.run(Problem(impossible, data))


@pytest.mark.parametrize("name", ["hmc", "nested"])
def test_says_how_to_install_blackjax(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ImportError, match=r"pip install 'sidebayes\[sampling\]'"):
        ENGINES[name].run(peaks_problem())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SMC(num_runs=1), r"SMC\(num_runs=1\): expected a number >= 2"),
        (lambda: SMC(kernel="nuts"), "expected one of"),
        (lambda: SMC(target_ess=1.0), "between 0 and 1"),
        (lambda: NestedSlice(num_delete=500), "less than num_live=500"),
        (lambda: NestedSlice(num_slices=0), "num_slices=0"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_pooled_evidence():
    found = pool_evidence(np.log([1.0, 3.0]))
    np.testing.assert_allclose(found.value, np.log(2.0))
    np.testing.assert_allclose(found.standard_error, np.log(3.0) / 2)
    assert pool_evidence(np.log([1.0, 3.0]), 2.0).standard_error == 1.0


def test_a_long_run_is_foretold(monkeypatch):
    """After the first temperature, by how many more a normal posterior needs."""

    def ten(y):
        centre = numpyro.sample("centre", dist.Normal(0.0, 10.0).expand([10]).to_event(1))
        numpyro.sample("y", dist.Normal(centre, 1.0).to_event(1), obs=y)

    monkeypatch.setattr(smc, "_LONG", 0.0)
    problem = Problem(ten, (jnp.ones((20, 10)),))
    with pytest.warns(SideBayesWarning, match="SMC will take about") as said:
        found = SMC(num_particles=200, num_runs=2, num_mutations=2).run(problem)
    told = int(re.search(r"(\d+) temperatures", str(said[0].message)).group(1))
    took = int(re.search(r"over (\d+) temperatures", found.status.message).group(1))
    assert 0.6 < told / took < 1.6
