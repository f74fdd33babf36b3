"""Supports that depend on parameters: values outside have no density, in every engine."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import integrate, stats
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.plumbing.indicators import kept_indicators
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.density import abstract_trace, log_joint
from sidebayes.guides.engines.problem.values import check_values, may_vanish, moving_sites
from sidebayes.guides.engines.samplers.hamiltonian.paths import of_one_length, until_turning
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.gmm import gmm

import sidebayes as sb
from tests.support.draws import at_one

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RNG = np.random.default_rng(0)
LATE = 2.0 + RNG.exponential(size=20)
UP = RNG.uniform(0.0, 3.0, size=12)
BELOW = np.array([-0.5, 0.2, 0.9, 1.3, 0.4, 1.1, -0.1, 0.7])


def late_exponential(a):
    return dist.TransformedDistribution(
        dist.Exponential(1.0), dist.transforms.AffineTransform(a, 1.0)
    )


def shifted(y):
    a = numpyro.sample("a", dist.Uniform(0.0, 5.0))
    law = late_exponential(a)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", law, obs=y)


def shifted_by_factor(y):
    a = numpyro.sample("a", dist.Uniform(0.0, 5.0))
    law = late_exponential(a)
    numpyro.factor("likelihood", law.log_prob(y).sum())


def bounded(y):
    high = numpyro.sample("high", dist.Pareto(1.0, 1.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Uniform(0.0, high), obs=y)


def cut_off(y):
    high = numpyro.sample("high", dist.Normal(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.TruncatedNormal(0.5, 1.0, high=high), obs=y)


def mixed(y):
    a = numpyro.sample("a", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    parts = [late_exponential(at) for at in a]
    weights = dist.Categorical(probs=jnp.array([0.3, 0.7]))
    with numpyro.plate("rows", len(y)):
        law = dist.MixtureGeneral(weights, parts, support=dist.constraints.real)
        numpyro.sample("y", law, obs=y)


def linked(y):
    a = numpyro.sample("a", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    parts = dist.TransformedDistribution(
        dist.Exponential(jnp.ones(2)), dist.transforms.AffineTransform(a, 1.0)
    )
    weights = jnp.log(jnp.array([0.3, 0.7]))
    labels = sb.LinkedCategorical(weights, as_label_graph(None, len(y)))
    numpyro.sample("y", sb.LinkedMixture(labels, parts), obs=y)


def uniform_parts(y):
    weight = numpyro.sample("weight", dist.Beta(1.0, 1.0))
    parts = [dist.Uniform(0.0, 1.0), dist.Uniform(0.5, 2.0)]
    weights = dist.Categorical(probs=jnp.stack([weight, 1 - weight]))
    with numpyro.plate("rows", len(y)):
        law = dist.MixtureGeneral(weights, parts, support=dist.constraints.interval(0.0, 2.0))
        numpyro.sample("y", law, obs=y)


BRIEF = sb.NUTS(num_warmup=300, num_samples=500)


def draws(fit, name):
    return np.asarray(fit.tree["posterior"][name]).ravel()


@pytest.mark.parametrize("engine", [sb.NUTS(), sb.SMC(), sb.NestedSlice()])
def test_shifted_exponential(engine):
    """The posterior of the shift is an exponential distribution below the least datum."""
    fit = sb.fit(shifted, LATE, engine=engine, progress=False)
    found, edge = draws(fit, "a"), LATE.min()
    assert found.max() <= edge
    assert found.mean() == pytest.approx(edge - 1 / 20, abs=0.008)
    assert found.std() == pytest.approx(1 / 20, rel=0.2)
    assert fit.verdict[0] == "good"
    if fit.log_evidence is not None:
        exact = np.log(1 / 5) + 20 * edge - LATE.sum() - np.log(20)
        assert fit.log_evidence.value == pytest.approx(exact, abs=0.2)


SHAPE, SCALE = 1.5 + len(UP), max(1.0, UP.max())
"""Uniform data under a Pareto prior of their bound have a Pareto posterior."""


def test_bound_with_its_conjugate_prior():
    with jax.enable_x64(True):
        found = sb.SMC(num_particles=500).run(Problem(bounded, (jnp.asarray(UP),)))
    shape, scale = SHAPE, SCALE
    exact = np.log(1.5) - np.log(shape) - shape * np.log(scale)
    assert found.log_evidence.value == pytest.approx(exact, abs=0.25)
    assert found.draws["high"].mean() == pytest.approx(shape * scale / (shape - 1), abs=0.03)
    assert found.draws["high"].min() >= scale


def test_bound_by_steps():
    sampled = draws(sb.fit(bounded, UP, engine=sb.NUTS(), progress=False), "high")
    assert sampled.mean() == pytest.approx(SHAPE * SCALE / (SHAPE - 1), abs=0.04)


def test_truncated_normal_with_a_latent_bound():
    def density(high):
        law = stats.truncnorm(-np.inf, high - 0.5, 0.5, 1.0)
        return np.exp(law.logpdf(BELOW).sum()) * stats.norm.pdf(high, 1.0, 1.0)

    mass, mean = (
        integrate.quad(lambda h, k=k: density(h) * h**k, BELOW.max(), 9.0)[0] for k in (0, 1)
    )
    for engine in (sb.NUTS(), sb.SMC()):
        found = draws(sb.fit(cut_off, BELOW, engine=engine, progress=False), "high")
        assert found.min() >= BELOW.max()
        assert found.mean() == pytest.approx(mean / mass, abs=0.05)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (mixed, LATE - 1.0),
        (linked, LATE - 1.0),
        (shifted_by_factor, LATE),
        (uniform_parts, np.array([0.2, 0.7, 1.5])),
        (bounded, UP),
    ],
)
def test_densities_are_those_of_numpyro(model, data):
    """At random points, inside supports and outside, as NumPyro has them with its validation."""
    with jax.enable_x64(True):
        problem = Problem(model, (jnp.asarray(data),))
        rng = np.random.default_rng(1)
        site = next(iter(n for n, s in abstract_trace(problem).items() if s["type"] == "sample"))
        points = {
            "a": rng.uniform(0.1, 4.0, (200, 2) if model in (mixed, linked) else 200),
            "high": rng.uniform(1.0, 5.0, 200),
            "weight": rng.uniform(size=200),
        }[site]

        def build(bare):
            return lambda points, args: jax.lax.map(
                lambda at: jax.value_and_grad(lambda v: log_joint(bare, {site: v}, args))(at),
                points,
            )

        program, _ = compiled("compared", problem, None, build, points, problem.args)
        ours, slopes = map(np.asarray, program(points, problem.args))
        with numpyro.validation_enabled():
            theirs = jax.jit(
                lambda points: jax.lax.map(
                    lambda at: log_density(model, problem.args, {}, {site: at})[0], points
                )
            )(points)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    inside = np.isfinite(ours)
    assert np.isfinite(slopes[inside]).all()
    assert inside.any()
    assert inside.all() == (model is uniform_parts)


def counted(n, k):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(k)):
        numpyro.sample("k", dist.Binomial(n.astype(int), p), obs=k)


def test_supports_that_stay_have_no_indicator_that_moves():
    """Bounds that come from data do not depend on parameters, and most supports have none."""
    n, k = jnp.array([4, 5, 6]), jnp.array([1, 2, 3])
    assert not moving_sites(Problem(counted, (n, k)))
    with pytest.raises(ValueError, match="2 of 3 values of 'k' are missing or outside"):
        check_values(Problem(counted, (n, jnp.array([5, 2, 9]))))
    mixture = Problem(gmm, (jnp.zeros((5, 2)),), {"num_clusters": 2})
    sites = [s for s in abstract_trace(mixture).values() if s["type"] == "sample"]
    assert sites
    assert not any(kept_indicators(site["fn"]) for site in sites)
    assert not may_vanish(mixture)
    for model in (shifted, bounded, cut_off, mixed, linked):
        assert moving_sites(Problem(model, (jnp.asarray(UP),))) == {"y"}


def test_data_are_not_refused_for_one_arbitrary_bound():
    check_values(Problem(bounded, (jnp.asarray(UP),)))
    with pytest.raises(ValueError, match="1 of 12 values of 'y' are missing or outside"):
        check_values(Problem(bounded, (jnp.asarray(UP).at[3].set(jnp.nan),)))


def test_new_data_outside_a_support_have_no_density():
    def waiting(y, *, high=3.0):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Exponential(rate), obs=y)

    def below(y, *, high):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.TruncatedNormal(loc, 1.0, low=0.0, high=high), obs=y)

    rate = 0.5
    fit = sb.fit(waiting, LATE, engine=at_one({"rate": rate}), progress=False)
    np.testing.assert_allclose(
        fit.log_prob(np.array([-1.0, 2.0])), [-np.inf, np.log(rate) - 2 * rate], rtol=1e-6
    )
    fit = sb.fit(below, UP, high=3.0, engine=at_one({"loc": 1.0}), progress=False)
    found = fit.log_prob(np.array([5.0, 1.0]))
    assert found[0] == -np.inf
    assert np.isfinite(found[1])
    fit = sb.fit(shifted, LATE, engine=at_one({"a": 2.0}), progress=False)
    found = fit.log_prob(np.array([0.1, 3.0]))
    assert found[0] == -np.inf
    assert np.isfinite(found[1])


def above(y):
    loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
    numpyro.factor("above", jnp.where(loc > 1.2, 0.0, -jnp.inf))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def test_a_start_is_searched_where_a_factor_is_finite():
    found = draws(sb.fit(above, BELOW, engine=BRIEF, progress=False), "loc")
    mean, variance = BELOW.sum() / (len(BELOW) + 0.25), 1 / (len(BELOW) + 0.25)
    law = stats.truncnorm((1.2 - mean) / variance**0.5, np.inf, mean, variance**0.5)
    assert found.min() > 1.2
    assert found.mean() == pytest.approx(law.mean(), abs=0.03)


@pytest.mark.parametrize("engine", ["nuts", "smc", "map"])
def test_messages_name_the_datum_or_the_factor(engine):
    def late(y):
        a = numpyro.sample("a", dist.Uniform(3.0, 5.0))
        law = late_exponential(a)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", law, obs=y)

    def never(y):
        loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
        numpyro.factor("never", jnp.where(loc > 1e9, 0.0, -jnp.inf))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    data = np.array([6.0, 2.5, 7.0])
    with pytest.raises(FitError, match=r"site 'y' .* 1 of its 3 values .* at \(1,\): 2.5"):
        sb.fit(late, data, engine=engine, progress=False)
    with pytest.raises(FitError, match="'never' .* is a factor.*check that factor") as caught:
        sb.fit(never, data, engine=engine, progress=False)
    assert "data" not in str(caught.value)


@pytest.mark.parametrize("engine", ["map", "em"])
def test_a_mode_at_an_edge_is_not_good(engine):
    fit = sb.fit(shifted, LATE, engine=engine, progress=False)
    assert fit.verdict[0] != "good"
    assert "beyond the edge of a support" in fit.verdict[1]


@pytest.mark.parametrize("engine", ["laplace", "svi"])
def test_no_approximation_is_made_at_an_edge(engine):
    with pytest.raises(FitError, match="beyond the edge of a support"):
        sb.fit(shifted, LATE, engine=engine, progress=False)


def test_draws_made_elsewhere_are_judged_by_the_support():
    rng = np.random.default_rng(2)
    right = LATE.min() - rng.exponential(1 / 20, (4, 1000))
    assert sb.Fit.from_draws(shifted, LATE, {"a": right}).verdict[0] == "good"
    wrong = 4.95 + 0.01 * rng.normal(size=(4, 1000))
    with pytest.raises(ValueError, match="4000 of 4000 no density"):
        sb.Fit.from_draws(shifted, LATE, {"a": wrong})


def test_debug_says_one_thing():
    report = sb.debug(shifted, LATE)
    assert report.ok
    assert report["support"].verdict == report["density"].verdict == "ok"
    assert sb.debug(bounded, UP).ok


@pytest.mark.parametrize(("make", "reach"), [(until_turning, 6), (of_one_length, 1.5)])
def test_an_energy_that_overflows_is_a_fault_of_the_steps(make, reach):
    """Where a density is zero nowhere; with `walls` it is an edge."""

    def energy(unit):
        return jnp.exp(40.0 * jnp.square(unit)).sum()

    here = jnp.full(1, 0.1)
    value, slope = jax.value_and_grad(energy)(here)
    given = lambda unit: energy(here + unit), value, slope, jnp.asarray(1.4), jax.random.key(1)
    assert make(reach)(*given).diverging
    assert not make(reach, walls=True)(*given).diverging
