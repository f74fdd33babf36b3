"""Verdicts on approximations: by moments, where k-hat alone is wrong in either direction."""

from __future__ import annotations

import re
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from scipy.special import ndtri
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.optimisers.moments import judge_moments

import sidebayes as sb

GROUPS = np.repeat(np.arange(4), 2)
EIGHT = np.array([-0.44, 0.46, 1.2, 0.84, -0.19, -0.75, -0.54, 0.13])


def groups(y: Annotated[ArrayLike, "rows"]):
    """Eight rows in four groups, whose effects are integrated out."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    between = numpyro.sample("between", dist.HalfNormal(2.0))
    within = numpyro.sample("within", dist.HalfNormal(2.0))
    cover = between**2 * jnp.asarray(GROUPS[:, None] == GROUPS) + within**2 * jnp.eye(len(GROUPS))
    numpyro.sample("y", dist.MultivariateNormal(mean, cover), obs=y)


def counts(y: Annotated[ArrayLike, "rows"]):
    gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)


@pytest.mark.parametrize("engine", [sb.Laplace(), sb.SVI()])
def test_weak_variance_components_are_not_good(engine):
    """Their sds are a third too small, which k-hat does not see (0.5 for Laplace)."""
    fit = sb.fit(groups, EIGHT, engine=engine, progress=False)
    grade, why = fit.verdict
    assert grade == "bad"
    assert "standard deviation of" in why


def test_moments_from_farther_out_are_those_of_the_posterior():
    """The sd that the verdict names, against a grid."""
    with jax.enable_x64(True):
        said = sb.Laplace().run(Problem(groups, (jnp.asarray(EIGHT),))).status.message
    found = re.search(r"standard deviation of (\w+) is \S+, where .* about ([\d.]+):", said)
    # of some hundred effective draws, and the largest of several differences
    assert float(found.group(2)) == pytest.approx(exact_sds()[found.group(1)], rel=0.25)


def test_a_copy_by_signs_hides_no_tail_of_a_variance_component():
    """Six batches of five: the sd between them has one of 41 by a grid, that of the fit is 22."""
    rng = np.random.default_rng(2)
    batches = np.repeat(np.arange(6), 5)
    y = 1527.5 + rng.normal(0, 37.6, 6)[batches] + rng.normal(0, 49.5, 30)
    ones = np.ones((30, 1))
    fit = sb.fit("mixed_effects", y, ones, ones, batches, engine="svi", progress=False)
    assert fit.tree["posterior"]["factor"].std() < 30
    grade, why = fit.verdict
    assert grade == "bad"
    assert "standard deviation of factor" in why


def exact_sds():
    """By a grid of both standard deviations; the mean is normal given these."""
    axis = np.exp(np.linspace(-7.0, 2.5, 120))
    between, within = np.meshgrid(axis, axis, indexing="ij")
    same = GROUPS[:, None] == GROUPS
    cover = between[..., None, None] ** 2 * same + within[..., None, None] ** 2 * np.eye(8)
    inverse = np.linalg.inv(cover)
    precision = 1 / 25 + inverse.sum(axis=(-1, -2))
    centre = (inverse @ EIGHT).sum(axis=-1) / precision
    log_density = -np.linalg.slogdet(cover)[1] / 2 - np.log(precision) / 2
    log_density += (precision * centre**2 - (inverse @ EIGHT) @ EIGHT) / 2
    log_density += np.log(between * within) - (between**2 + within**2) / 8
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()

    def sd(value, variance=0.0):
        return np.sqrt((mass * (value**2 + variance)).sum() - (mass * value).sum() ** 2)

    return {"between": sd(between), "within": sd(within), "mean": sd(centre, 1 / precision)}


@pytest.mark.parametrize("seed", range(3))
def test_a_heavy_tail_that_holds_nothing_is_no_failure(seed):
    """k-hat is above 0.7, where nearly all draws are effective and moments are right."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(60) < 0.3, 0, rng.poisson(3.0, 60)).astype(float)
    fit = sb.fit(counts, y, engine=sb.SVI(), seed=seed, progress=False)
    assert fit.verdict[0] == "good", fit.verdict


def test_differences_within_monte_carlo_error_do_not_count():
    rng = np.random.default_rng(0)
    even = np.full(2000, 1 / 2000)
    for _ in range(20):
        first, second = rng.normal(size=(1000, 10)), rng.normal(size=(2000, 10))
        assert judge_moments({"x": first}, {"x": second}, even, 1000) is None
    off = judge_moments({"x": first}, {"x": second + 0.4}, even, 1000)
    assert off.size == pytest.approx(0.4, abs=0.15)
    gap = judge_moments({"x": first}, {"x": 1.5 * second}, even, 1000)
    assert gap.size == pytest.approx(0.5, abs=0.2)
    assert "standard deviation of x" in gap.what


def test_copies_among_resampled_draws_do_not_shrink_the_error():
    few, many = (ndtri((np.arange(n) + 0.5) / n)[:, None] for n in (100, 2000))
    copies, even = {"x": np.repeat(few + 0.25, 10, axis=0)}, np.full(2000, 1 / 2000)
    assert judge_moments(copies, {"x": many}, even, 1000) is not None
    assert judge_moments(copies, {"x": many}, even, 100) is None


def unpriored(y: Annotated[ArrayLike, "rows"]):
    """A value of each row without a prior, which the third row alone observes."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", len(y)):
        own = numpyro.sample("own", dist.Normal(mu, 1.0).mask(False))
        seen = jnp.arange(len(y)) != 2
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.where(seen, y, own))


@pytest.mark.parametrize("engine", [sb.SVI(num_restarts=1), sb.Laplace(num_restarts=1)])
def test_a_flat_direction_names_its_site(engine):
    with pytest.raises(sb.FitError, match=r"flat.*'own'|'own'.*flat"):
        sb.fit(unpriored, np.array([0.1, 0.7, 0.0, -0.4]), engine=engine, progress=False)
