"""Angles whose posterior lies about half a turn, where the interval of their values ends."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro.distributions import biject_to, constraints
from scipy.special import expit
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import circular_sites, place
from sidebayes.models.blocks.manifolds.circles import Wound, unwound, wound

import sidebayes as sb
from sidebayes.runs.stored import other_densities

Y = np.array([3.1, -3.0, 2.9])
ANGLES = ("both", "mean")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def circle(y):
    mean = numpyro.sample("mean", dist.VonMises(np.pi, 20.0))
    with numpyro.plate("rows", 3):
        numpyro.sample("y", dist.VonMises(mean, 10.0), obs=y)


def pair(y):
    numpyro.sample("both", dist.SineBivariateVonMises(0.0, 0.0, 1.0, 1.0, 0.5))
    with numpyro.plate("rows", 3):
        numpyro.sample("mean", dist.VonMises(y, 2.0))


def test_places_that_stand_for_one_angle_have_weights_of_sum_one():
    """Of five angles; where places lie changes nothing but these weights."""
    problem = Problem(pair, (jnp.asarray(Y),))

    @jax.jit
    def at(both, mean, turns):
        free = wound({"both": both, "mean": mean}, ANGLES)
        moved = {name: x + 2 * jnp.pi * turns for name, x in free.items()}
        trace, log_det = place(problem, moved)
        places = jnp.concatenate(list(free.values())) + 2 * jnp.pi * jnp.arange(-40, 41)
        angles = jnp.concatenate([trace[name]["value"] for name in ANGLES])
        gain = unwound(moved, circular_sites(trace))
        sums = logsumexp(Wound().log_abs_det_jacobian(places[..., None], None), axis=1)
        return angles, log_det + gain, sums

    start = np.array([0.3, -4.0]), np.array([9.0, 0.0, -9.0])
    angles, log_det, sums = at(*start, 0)
    np.testing.assert_allclose(angles, 2 * np.pi * expit(np.concatenate(start)) - np.pi)
    there = at(*start, 3)
    np.testing.assert_allclose(there[0], angles, atol=1e-12)
    # where angles have NumPyro's coordinates
    by_interval = biject_to(constraints.circular).log_abs_det_jacobian
    flat = np.concatenate(start)
    np.testing.assert_allclose(log_det, np.sum(by_interval(flat, angles)))
    np.testing.assert_allclose(there[1], log_det)
    np.testing.assert_allclose(sums, 0.0, atol=1e-10)


def test_chains_pass_half_a_turn():
    fit = sb.fit(circle, Y, engine=sb.NUTS(num_warmup=200, num_samples=400), progress=False)
    draws = fit.tree["posterior"]["mean"].to_numpy()
    assert fit.verdict[0] == "good"
    fit.tree.attrs["sidebayes_identity"] = ""  # as of another process: densities are compared
    assert other_densities(fit.tree, fit.run) is None
    total = 20 * np.exp(1j * np.pi) + 10 * np.exp(1j * Y).sum()  # a von Mises posterior
    apart = np.angle(np.exp(1j * (draws - np.angle(total))))
    assert abs(apart.mean()) < 0.25 * abs(total) ** -0.5
    np.testing.assert_allclose(apart.std(), abs(total) ** -0.5, rtol=0.15)
    ahead = (draws > 0).mean(axis=1)
    assert ((ahead > 0.3) & (ahead < 0.8)).all()
