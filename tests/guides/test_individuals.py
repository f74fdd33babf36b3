"""Monte-Carlo EM with a trajectory per individual: a model whose answers are known."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize
from sidebayes.guides.engines.samplers.hamiltonian.unit_hmc import UnitState, adapted, unit_hmc
from sidebayes.models.blocks.block import Block

import sidebayes as sb

NOISE = 0.3


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


class Rows(Block):
    """Latent rows of individuals, near their data."""

    factor, roles = "none", ("rows",)

    def __init__(self, x):
        self.x = x

    def guess(self):
        return self.x

    def schedule(self):
        return None


def flat(x, *, noise=NOISE):
    """Individuals about a mean that is zero, with a spread to be found; seen in noise."""
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    prior = dist.Normal(0.0, spread).expand(jnp.shape(x)).to_event(1)
    with numpyro.plate("rows", len(x)):
        rows = numpyro.sample("latent", prior, infer={"block": Rows(x), "role": "rows"})
        numpyro.sample("x", dist.Normal(rows, noise).to_event(1), obs=x)


def test_spread_is_that_of_the_marginal_density():
    """Check 19 of the dossier: the flat model, whose integral is known."""
    x = np.random.default_rng(0).normal(size=(200, 5)) * np.sqrt(0.25 + NOISE**2)
    fit = sb.fit(
        flat,
        x,
        engine=sb.MonteCarloEM(
            num_samples=64, max_samples=64, num_warmup=20, max_steps=25, num_final=2
        ),
        progress=False,
    )
    assert fit.run.engine.kernel == "auto"

    def loss(spread):
        deviation = np.sqrt(spread[0] ** 2 + NOISE**2)
        return (x**2).sum() / deviation**2 / 2 + x.size * np.log(deviation) + spread[0] ** 2 / 8

    exact = minimize(loss, [1.0]).x[0]
    assert fit.params["spread"] == pytest.approx(exact, abs=0.01)
    shrunk = x * exact**2 / (exact**2 + NOISE**2)
    error = NOISE / np.sqrt(1 + NOISE**2 / exact**2)  # of one draw
    assert np.abs(fit.params["latent"] - shrunk).max() < error


def test_hmc_by_unit_leaves_its_target_as_it_is():
    """Check 20 of the dossier: means and covariances of Gaussian rows, two of them one unit."""
    scale = np.array([[1.0, 0.0, 0.0], [0.8, 0.5, 0.0], [0.0, 0.1, 0.2]])
    precision = np.linalg.inv(scale @ scale.T)
    mean = np.arange(12.0).reshape(4, 3)
    owner = np.array([0, 1, 1, 2])

    def energies(shift):
        def at(free):
            apart = free["rows"] - mean - shift
            each = jnp.einsum("ia,ab,ib->i", apart, precision, apart) / 2
            return jax.ops.segment_sum(each, owner, 4)

        return at

    ready, move = unit_hmc(energies, 6)
    begin = jax.vmap(lambda key: ready({"rows": jnp.asarray(mean)}, key))
    state = begin(jax.random.split(jax.random.key(0), 4))

    @jax.jit
    def run(state):
        def step(state, _):
            state = jax.vmap(lambda one: move(one, (0.5, owner)))(state)
            return state, state.z["rows"]

        return jax.lax.scan(step, state, None, length=1500)

    for _ in range(2):
        state, draws = run(state)
        pooled = np.asarray(draws).swapaxes(0, 1).reshape(-1, 4, 3)
        state = adapted(UnitState(*state), {"rows": pooled}, 4)
    _, draws = run(state)
    pooled = np.asarray(draws).reshape(-1, 4, 3)
    apart = (pooled - mean - 0.5) @ np.linalg.inv(scale).T  # standard normal
    assert np.abs(apart.mean(axis=0)).max() < 0.1
    covariance = np.einsum("nia,nib->iab", apart, apart) / len(apart)
    assert np.abs(covariance - np.eye(3)).max() < 0.12


def test_refuses_hmc_where_the_model_declares_no_individuals():
    def plain(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([len(x)]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("x", dist.Normal(mean, scale).to_event(1), obs=x)

    engine = sb.MonteCarloEM(sampled="mean", kernel="hmc")
    with pytest.raises(ValueError, match="use kernel='nuts'"):
        sb.fit(plain, np.ones(3), engine=engine, progress=False)


def test_a_schedule_is_run_and_told():
    x = np.random.default_rng(1).normal(size=(20, 2))
    engine = sb.MonteCarloEM(
        schedule=(2.0, 1.0),
        scheduled="noise",
        num_samples=16,
        max_samples=16,
        max_steps=2,
        num_final=2,
    )
    fit = sb.fit(flat, x, engine=engine, progress=False)
    assert "after 2 with noise = 2, 1" in fit.status.message
    with pytest.raises(ValueError, match="flat has no option 'heat'"):
        sb.fit(flat, x, engine=replace(engine, scheduled="heat"), progress=False)
