"""Check 17 of the dossier: laws of shapes in the plane whose constants are known, and draws of them."""

from __future__ import annotations

import arviz_stats as azs
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import Predictive
from scipy.linalg import expm
from scipy.special import hyp1f1
from sidebayes.guides.engines.base import Problem
from sidebayes.models.blocks.manifolds import preshape

from sidebayes import GeodesicHMC, sample_preshape

BINGHAM = np.array([0.0, -3.0, -5.5, -9.0])
WATSON = np.array([3.0, 0.0, 0.0, 0.0])


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def constant(values):
    """Integral of exp(u* A u) under the uniform law, for a Hermitian A with these eigenvalues.

    It is (k - 1)! times the divided difference of the exponential at them, an entry of the exponential of a
    matrix (Opitz 1964), which does not mind equal eigenvalues.
    """
    return expm(np.diag(values) + np.diag(np.arange(1.0, len(values)), 1))[0, -1]


def moments(values):
    """Means of the squared moduli of the coordinates along the eigenvectors: slopes of the log constant."""
    step = 1e-5 * np.eye(len(values))
    up, down = ([np.log(constant(values + one)) for one in sign * step] for sign in (1, -1))
    return np.subtract(up, down) / 2e-5


def squares(shape, vectors):
    """Squared moduli of the complex coordinates of preshapes along unit vectors; norms are one."""
    flat = preshape.to_helmert(shape)
    return abs((flat[..., 0] + 1j * flat[..., 1]) @ vectors.conj()) ** 2


def eigenvectors(seed=0):
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.normal(size=(4, 4)) + 1j * rng.normal(size=(4, 4)))[0]


def law(values, vectors):
    shape = sample_preshape("shape", 5, 2)
    numpyro.factor("law", squares(shape, vectors) @ values)


def test_constants_are_those_of_the_literature():
    gaps = BINGHAM[:, None] - BINGHAM + np.eye(4)
    distinct = 6 * np.sum(np.exp(BINGHAM) / np.prod(gaps, axis=1))  # Kent (1994)
    np.testing.assert_allclose(constant(BINGHAM), distinct, rtol=1e-12)
    np.testing.assert_allclose(constant(BINGHAM), 0.03427, rtol=2e-4)
    np.testing.assert_allclose(constant(WATSON), hyp1f1(1, 4, 3), rtol=1e-12)
    np.testing.assert_allclose(constant(WATSON), 2.5746, rtol=2e-5)


@pytest.mark.parametrize("values", [BINGHAM, WATSON])
def test_preshapes_are_uniform(values):
    number = 40_000
    draws = Predictive(lambda: sample_preshape("shape", 5, 2), num_samples=number)
    shape = draws(jax.random.key(0))["shape"]
    density = np.exp(squares(shape, eigenvectors()) @ values)
    error = density.std() / np.sqrt(number)
    assert error < 0.01 * constant(values)
    assert abs(density.mean() - constant(values)) < 5 * error


@pytest.mark.parametrize("values", [BINGHAM, WATSON])
def test_moments_of_draws_are_slopes_of_the_constant(values):
    vectors = eigenvectors()
    problem = Problem(law, (jnp.asarray(values), jnp.asarray(vectors)))
    engine = GeodesicHMC(num_warmup=300, num_samples=500)
    shape = engine.run(problem, seed=2).draws["shape"]
    expected = moments(values)
    np.testing.assert_allclose(expected.sum(), 1, rtol=1e-6)
    found = np.asarray(squares(shape, vectors))
    for number in range(4):
        own = found[..., number]
        error = own.std() / np.sqrt(float(azs.ess(own, method="mean")))
        assert error < 0.01
        assert abs(own.mean() - expected[number]) < 5 * error
