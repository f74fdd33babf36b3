"""Sites on spheres: the law of the vectors that carry them, and what a model sees of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import chi2, kstest
from sidebayes.models.blocks.manifolds import preshape
from sidebayes.models.blocks.manifolds.directions import (
    Direction,
    sample_direction,
    sample_preshape,
)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def on_axis(size, radius):
    return np.eye(1, size)[0] * radius


@pytest.mark.parametrize("size", [2, 3, 30])
def test_density_integrates_to_one(size):
    log_area = np.log(2) + size / 2 * np.log(np.pi) - gammaln(size / 2)
    fn = Direction(size)

    def shell(radius):
        log_prob = float(fn.log_prob(on_axis(size, radius)))
        return np.exp(log_prob + log_area + (size - 1) * np.log(radius))

    np.testing.assert_allclose(quad(shell, 1e-9, 6)[0], 1, rtol=1e-8)


def test_mode_is_on_the_sphere_and_flat_along_it():
    """Otherwise the Laplace approximation would not see the curvature that data have on the sphere."""
    fn, point = Direction(3), jnp.asarray(on_axis(3, 1.0))
    slope, hessian = jax.jit(lambda at: (jax.grad(fn.log_prob)(at), jax.hessian(fn.log_prob)(at)))(
        point
    )
    np.testing.assert_allclose(slope, 0, atol=1e-14)
    curvature = np.diag(hessian)
    assert curvature[0] < 0
    np.testing.assert_allclose(curvature[1:], 0, atol=1e-13)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_samples(size):
    """Lengths by their law, directions uniform, both independent."""
    draws = np.asarray(Direction(size).sample(jax.random.key(size), (20_000,)))
    length = np.linalg.norm(draws, axis=-1)
    assert kstest(10 * length**2, chi2(10 + size).cdf).pvalue > 1e-4
    # the square of a coordinate of a uniform point has a beta law with mean 1 / size
    points = draws / length[:, None]
    for axis in range(size):
        law = kstest(points[:, axis] ** 2, "beta", args=(1 / 2, (size - 1) / 2))
        assert law.pvalue > 1e-4
        assert abs(np.corrcoef(points[:, axis] ** 2, length)[0, 1]) < 5 / np.sqrt(len(draws))
        assert abs(np.mean(points[:, axis])) < 5 / np.sqrt(size * len(draws))


def test_batches_are_independent_vectors():
    fn = Direction(3).expand((2, 4))
    draws = fn.sample(jax.random.key(0), (5,))
    assert draws.shape == (5, 2, 4, 3)
    assert len(np.unique(draws)) == draws.size
    np.testing.assert_allclose(fn.log_prob(draws), Direction(3).log_prob(draws))


def test_sites_in_plates():
    def model():
        with numpyro.plate("components", 3):
            point = sample_direction("mean", 4, infer={"event_dims": ["features"]})
            shape = sample_preshape("shape", 5, 2)
            numpyro.sample("near", dist.Normal(point[:, 0], 1), obs=jnp.zeros(3))
        assert point.shape == (3, 4)
        assert shape.shape == (3, 5, 2)

    trace = {}

    @jax.jit
    def drawn(key):
        trace.update(handlers.trace(handlers.seed(model, key)).get_trace())
        return {name: trace[name]["value"] for name in ("mean_vector", "mean", "shape")}

    value = jax.device_get(drawn(jax.random.key(0)))
    declared = trace["mean_vector"]["infer"]
    assert declared == {"event_dims": ["features"], "manifold": "sphere"}
    vector = value["mean_vector"]
    expected = vector / np.linalg.norm(vector, axis=-1, keepdims=True)
    np.testing.assert_allclose(value["mean"], expected, rtol=1e-14)
    assert trace["mean_vector"]["fn"].log_prob(vector).shape == (3,)
    np.testing.assert_allclose(value["shape"].sum(axis=1), 0, atol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(value["shape"], axis=(1, 2)), 1)


def test_helmert_coordinates():
    landmarks = np.random.default_rng(0).normal(size=(3, 6, 2))
    coordinates = preshape.to_helmert(landmarks)
    assert coordinates.shape == (3, 5, 2)
    centred = landmarks - landmarks.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(preshape.from_helmert(coordinates), centred, atol=1e-14)


@pytest.mark.parametrize("dimension", [1, 0, 2.5, "3"])
def test_refused(dimension):
    with pytest.raises(ValueError, match="dimension"):
        Direction(dimension)


def test_names_and_declarations_are_checked():
    with pytest.raises(TypeError, match="name = 3"):
        sample_direction(3, 2)
    with pytest.raises(TypeError, match="infer = 'sphere'"):
        sample_direction("point", 2, infer="sphere")
