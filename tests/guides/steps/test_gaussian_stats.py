"""Gaussian passes over chunks, against plain NumPy in double precision."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sidebayes.models.blocks.components.gaussians.gaussian_stats import (
    gaussian_log_prob,
    gaussian_pass,
    weighted_moments,
)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def mixture(num_points=301, num_features=4, num_clusters=3, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(num_clusters, num_features, num_features + 2))
    covariance = root @ root.transpose(0, 2, 1) / num_features
    mean = 3 * rng.normal(size=(num_clusters, num_features)) + offset
    weights = rng.dirichlet(np.full(num_clusters, 3.0))
    label = rng.integers(num_clusters, size=num_points)
    noise = rng.normal(size=(num_points, num_features, 1))
    x = mean[label] + (np.linalg.cholesky(covariance)[label] @ noise)[..., 0]
    return x, weights, mean, covariance


def densities(x, mean, covariance):
    columns = [
        multivariate_normal(m, c).logpdf(x).reshape(-1)
        for m, c in zip(mean, covariance, strict=True)
    ]
    return np.stack(columns, axis=1)


def e_step(x, weights, mean, covariance):
    with np.errstate(divide="ignore"):
        joint = densities(x, mean, covariance) + np.log(weights)
    total = logsumexp(joint, axis=1, keepdims=True)
    return total.sum(), np.exp(joint - total)


def estimates(x, prob):
    count = prob.sum(axis=0)
    mean = (prob.T @ x) / count[:, None]
    apart = x[:, None] - mean
    return mean, np.einsum("nk,nki,nkj->kij", prob, apart, apart) / count[:, None, None]


def run_pass(x, weights, mean, covariance, dtype=np.float64, **options):
    root = np.linalg.cholesky(covariance)
    with np.errstate(divide="ignore"):
        arguments = (np.asarray(v, dtype) for v in (x, np.log(weights), mean, root))
    return jax.jit(partial(gaussian_pass, **options))(*arguments)


@pytest.mark.parametrize(
    ("num_points", "num_features", "num_clusters", "chunk_size"),
    [
        (301, 4, 3, 64),  # the last chunk overlaps the one before
        (256, 4, 3, 64),
        (301, 4, 3, 1024),
        (301, 4, 1, 100),
        (301, 1, 3, 7),
        (120, 30, 2, 50),  # too many features to write out
        (1, 2, 2, 10),
    ],
)
def test_pass_equals_textbook_e_step_and_m_step(num_points, num_features, num_clusters, chunk_size):
    data = mixture(num_points, num_features, num_clusters)
    step = run_pass(*data, chunk_size=chunk_size)
    value, prob = e_step(*data)
    mean, covariance = estimates(data[0], prob)
    found_mean, found_covariance = step.moments.estimates(data[2])
    np.testing.assert_allclose(step.log_likelihood, value, rtol=1e-12)
    np.testing.assert_allclose(step.moments.total, prob.sum(axis=0), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found_covariance, covariance, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(
        found_covariance, np.swapaxes(found_covariance, 1, 2), err_msg="not symmetric"
    )


def test_single_precision_serves_narrow_clusters_far_from_the_origin():
    """Expanding the square would lose every digit: a mean of 1e3, standard deviations near 0.1."""
    x, weights, mean, covariance = mixture(20_001, offset=1e3)
    x = (mean + 0.1 * (x[:, None] - mean))[np.arange(len(x)), np.arange(len(x)) % 3]
    covariance = covariance / 100
    rounded = x.astype(np.float32).astype(float), weights, mean.astype(np.float32), covariance
    step = run_pass(*rounded, dtype=np.float32)
    value, prob = e_step(*rounded)
    want_mean, want_covariance = estimates(rounded[0], prob)
    found_mean, found_covariance = step.moments.estimates(jnp.asarray(rounded[2]))
    assert step.log_likelihood.dtype == found_covariance.dtype == jnp.float32
    np.testing.assert_allclose(step.log_likelihood, value, rtol=1e-6)
    np.testing.assert_allclose(found_mean, want_mean, rtol=1e-6)
    scale = np.sqrt(np.diagonal(want_covariance, axis1=1, axis2=2))
    error = (found_covariance - want_covariance) / scale[:, :, None] / scale[:, None, :]
    assert np.abs(error).max() < 1e-4


def test_a_cluster_of_weight_zero_keeps_its_mean():
    x, _, mean, covariance = mixture()
    step = run_pass(x, np.array([0.4, 0.6, 0.0]), mean, covariance)
    value, _ = e_step(x, np.array([0.4, 0.6]), mean[:2], covariance[:2])
    found_mean, found_covariance = step.moments.estimates(mean)
    np.testing.assert_allclose(step.log_likelihood, value, rtol=1e-12)
    np.testing.assert_array_equal(found_mean[2], mean[2])
    np.testing.assert_array_equal(found_covariance[2], 0.0)


@pytest.mark.parametrize("chunk_size", [50, 301, 1024])
@pytest.mark.parametrize("given", [True, False])
def test_weighted_moments(chunk_size, given):
    x, _, about, _ = mixture()
    prob = np.random.default_rng(1).gamma(1.0, size=(301, 3))
    moments = jax.jit(partial(weighted_moments, chunk_size=chunk_size))(
        x, prob, about if given else None
    )
    about = about if given else np.broadcast_to(x.mean(axis=0), about.shape)
    apart = x[:, None] - about
    np.testing.assert_allclose(moments.total, prob.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.first, np.einsum("nk,nki->ki", prob, apart), atol=1e-9)
    second = np.einsum("nk,nki,nkj->kij", prob, apart, apart)
    np.testing.assert_allclose(moments.second, second, rtol=1e-9, atol=1e-9)
    mean, covariance = estimates(x, prob)
    found_mean, found_covariance = moments.estimates(about)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found_covariance, covariance, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_features", [4, 30])
def test_log_prob(num_features):
    x, _, mean, covariance = mixture(101, num_features)
    root = np.linalg.cholesky(covariance)
    found = jax.jit(partial(gaussian_log_prob, chunk_size=20))(x, mean, root)
    np.testing.assert_allclose(found, densities(x, mean, covariance), rtol=1e-10)


def test_log_prob_has_the_gradients_of_the_density():
    x, _, mean, covariance = mixture(53)
    root = np.linalg.cholesky(covariance)
    weight = np.random.default_rng(2).normal(size=(53, 3))

    def chunked(mean, root):
        return jnp.sum(weight * gaussian_log_prob(x, mean, root, chunk_size=20))

    def plain(mean, root):
        density = jax.vmap(
            lambda m, r: jax.scipy.stats.multivariate_normal.logpdf(jnp.asarray(x), m, r @ r.T)
        )
        return jnp.sum(weight * density(mean, root).T)

    found, want = (jax.jit(jax.grad(f, argnums=(0, 1)))(mean, root) for f in (chunked, plain))
    np.testing.assert_allclose(found[0], want[0], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(np.tril(found[1]), np.tril(want[1]), rtol=1e-8, atol=1e-8)


def test_no_array_of_points_by_clusters_by_features():
    shapes = [(100_000, 8), (5,), (5, 8), (5, 8, 8)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
    memory = jax.jit(gaussian_pass).lower(*arguments).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * 100_000 * 5 * 8 * 8


def test_passes_over_several_starts_at_once():
    x, weights, mean, covariance = mixture()
    starts = np.stack([mean, mean + 0.5])
    root = np.linalg.cholesky(covariance)
    one = partial(gaussian_pass, x, np.log(weights), chunk_size=64)
    both = jax.jit(jax.vmap(lambda mean: one(mean, root)))(starts)
    for number, start in enumerate(starts):
        value, prob = e_step(x, weights, start, covariance)
        np.testing.assert_allclose(both.log_likelihood[number], value, rtol=1e-12)
        np.testing.assert_allclose(both.moments.total[number], prob.sum(axis=0), rtol=1e-10)


@pytest.mark.parametrize(
    ("x", "mean", "root"),
    [
        (np.zeros(4), np.zeros((2, 4)), np.zeros((2, 4, 4))),
        (np.zeros((5, 4)), np.zeros((2, 3)), np.zeros((2, 3, 3))),
        (np.zeros((5, 4)), np.zeros((2, 4)), np.zeros((3, 4, 4))),
        (np.zeros((0, 4)), np.zeros((2, 4)), np.zeros((2, 4, 4))),
    ],
)
def test_shapes_that_disagree_are_refused(x, mean, root):
    with pytest.raises(ValueError, match="expected"):
        gaussian_pass(x, np.zeros(2), mean, root)
    with pytest.raises(ValueError, match="expected"):
        gaussian_log_prob(x, mean, root)


def test_moments_refuse_shapes_that_disagree():
    x = np.zeros((5, 4))
    with pytest.raises(ValueError, match="responsibilities"):
        weighted_moments(x, np.ones((6, 2)))
    with pytest.raises(ValueError, match="mean has shape"):
        weighted_moments(x, np.ones((5, 2)), np.zeros((3, 4)))
    with pytest.raises(ValueError, match="chunk_size"):
        weighted_moments(x, np.ones((5, 2)), chunk_size=0)


def test_spare_rows_do_not_count_and_moments_move():
    rng = np.random.default_rng(3)
    x, mean = rng.normal(size=(50, 2)), rng.normal(size=(3, 2))
    root = np.linalg.cholesky(np.stack([np.cov(x.T) * (k + 1) for k in range(3)]))
    log_weights = np.log([0.2, 0.3, 0.5])
    in_chunks = jax.jit(partial(gaussian_pass, chunk_size=20))
    all_rows = in_chunks(x[:37], log_weights, mean, root)
    some = in_chunks(x, log_weights, mean, root, num_real=37)
    for one, other in zip(jax.tree.leaves(some), jax.tree.leaves(all_rows), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    _, prob = e_step(x[:37], np.exp(log_weights), mean, root @ root.transpose(0, 2, 1))
    about = rng.normal(size=(3, 2)) + 2
    expected = jax.jit(weighted_moments)(x[:37], prob, about)
    for one, other in zip(some.moments.moved(mean, about), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
