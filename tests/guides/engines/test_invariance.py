"""Draws of exact posteriors pass the test by reversible steps; draws of anything else do not."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, trace
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.given import effective_of_copies
from sidebayes.guides.engines.invariance import Untested, contradiction

from tests.guides.engines.test_bridge import X, exact_line, exact_mixture, line, two_means

Y = np.random.default_rng(0).normal(2.0, 1.0, 20)
TIMES = 5


def mean_of(y):
    m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def normal(rng, width=1.0, shift=0.0):
    variance = 1 / (len(Y) + 0.01)
    draws = variance * Y.sum() + np.sqrt(variance) * (shift + width * rng.normal(size=(4, 1000)))
    return Problem(mean_of, (Y,)), {"m": draws}


def groups(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        mean = numpyro.sample("mean", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def hierarchical(rng, width=1.0):
    """The scale by its marginal density on a fine grid, the means given the scale."""
    y, grid = Y[:6] - 2, np.linspace(1e-4, 6, 20001)
    spread = 1 + grid**2
    density = -(grid**2) / 2 - 3 * np.log(spread) - np.square(y).sum() / (2 * spread)
    weight = np.exp(density - density.max())
    step = grid[1] - grid[0]
    scale = rng.choice(grid, 4000, p=weight / weight.sum()) + rng.uniform(-0.5, 0.5, 4000) * step
    shrunk = (scale**2 / (1 + scale**2))[:, None]
    mean = shrunk * y + width * np.sqrt(shrunk) * rng.normal(size=(4000, 6))
    draws = {"scale": np.abs(scale).reshape(4, 1000), "mean": mean.reshape(4, 1000, 6)}
    return Problem(groups, (y,)), draws


def mixture(rng, shift=0.0, numbered=False):
    draws = exact_mixture(2, 20000)[1][rng.permutation(20000)[:4000]] + shift
    draws = np.sort(draws, axis=1) if numbered else draws
    return Problem(two_means, (X,), {"num_clusters": 2}), {"mean": draws.reshape(4, 1000, 2)}


def sorted_mixture(rng):
    return mixture(rng, numbered=True)


def regression(rng, width=1.0, swap=False):
    (x, y), _, draws = exact_line(6, 20000)
    draws = draws[rng.permutation(20000)[:4000]].reshape(4, 1000, 6)
    draws[..., 3] = draws[..., 3].mean() + width * (draws[..., 3] - draws[..., 3].mean())
    return Problem(line, (x, y[::-1].copy() if swap else y)), {"slope": draws}


def prior(sites: Callable[[], None]) -> Callable:
    """Draws of a prior, of which the data say nothing."""

    def model(y):
        sites()
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    def one(key):
        found = trace(seed(sites, key)).get_trace()
        return {name: site["value"] for name, site in found.items()}

    draw = jax.jit(jax.vmap(one))

    def drawn(rng):
        found = draw(jax.random.split(jax.random.key(rng.integers(2**31)), 4000))
        return Problem(model, (0.3,)), {
            name: np.asarray(v, float).reshape(4, 1000, *v.shape[1:]) for name, v in found.items()
        }

    return drawn


def funnel():
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([4]).to_event(1))


def bounded():
    numpyro.sample("p", dist.Beta(0.4, 0.4))
    a = numpyro.sample("a", dist.Uniform(0.0, 1.0))
    numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("w", dist.Dirichlet(jnp.array([0.5, 1.0, 3.0])))
    numpyro.sample("c", dist.HalfCauchy(1.0))


def jumping():
    """A density that has no slope where it jumps."""
    u = numpyro.sample("u", dist.Normal(0.0, 1.0))
    numpyro.sample("z", dist.Normal(jnp.where(u < 0.3, -3.0, 3.0), jnp.where(u < 0.3, 0.2, 2.0)))


TRUE = {
    "normal": normal,
    "hierarchical": hierarchical,
    "mixture": mixture,
    "mixture in one numbering": sorted_mixture,
    "regression": regression,
    "funnel": prior(funnel),
    "bounded": prior(bounded),
    "jumping": prior(jumping),
}


@pytest.mark.parametrize("drawn", TRUE.values(), ids=TRUE)
def test_draws_of_the_posterior_are_not_contradicted(drawn):
    for number in range(TIMES):
        assert not contradiction(*drawn(np.random.default_rng(number)), number)


@pytest.mark.parametrize(
    ("drawn", "wrong", "said"),
    [
        (normal, {"width": 0.7}, "m further apart"),
        (normal, {"width": 2.0}, "m closer together"),
        (normal, {"width": 100.0}, "m closer together"),
        (normal, {"shift": 1.0}, "m down"),
        (normal, {"shift": 1e4}, "m down"),
        (hierarchical, {"width": 0.7}, "scale down"),
        (mixture, {"shift": 0.5}, "mean down"),
        (regression, {"width": 0.7}, "slope further apart"),
        (regression, {"swap": True}, "slope"),
    ],
)
def test_other_draws_are(drawn, wrong, said):
    for number in range(3):
        found = contradiction(*drawn(np.random.default_rng(number), **wrong), number)
        assert found.startswith(said)


@pytest.mark.parametrize("times", [1, 3])
def test_one_absurd_draw_is_found(times):
    problem, draws = normal(np.random.default_rng(0))
    m = np.tile(draws["m"], (1, times))
    m[2, 501] = 1e9
    assert contradiction(problem, {"m": m}, among=501).startswith(
        "draw 501 of chain 2 towards the others"
    )


def test_draws_that_resemble_one_another_say_little():
    problem, draws = normal(np.random.default_rng(0))
    few = np.repeat(draws["m"][:, ::100], 100, axis=1)
    with pytest.raises(Untested, match="are effective"):
        contradiction(problem, {"m": few})
    with pytest.raises(Untested, match="are too few"):
        contradiction(problem, {"m": draws["m"][:, :10]})
    with pytest.raises(Untested, match="does not vary"):
        contradiction(problem, {"m": np.ones((4, 100))})


def test_only_draws_that_come_back_are_resampled_ones():
    """A proposal that was rejected repeats a draw at once; copies in random order cost the others."""
    rng = np.random.default_rng(0)
    rejected = np.repeat(rng.normal(size=(2, 100, 3)), 3, axis=1)
    assert effective_of_copies({"m": rejected}) is None
    assert effective_of_copies({"k": rng.integers(3, size=(2, 300))}) is None  # discrete by nature
    copies = rng.permutation(np.repeat(rng.normal(size=(50, 3)), 8, axis=0))[None]
    assert effective_of_copies({"m": copies, "s": copies[..., 0]}) == pytest.approx(50, rel=0.05)
