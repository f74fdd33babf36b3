"""Densities of the components of a mixture, and priors that are set from data."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import MultivariateNormal, Normal
from scipy.optimize import root as solve
from sidebayes.models.blocks.components.gaussian_prior import (
    GaussianPrior,
    _most_probable,
    resolve_prior,
)
from sidebayes.models.blocks.components.gaussians.gaussian import Gaussian, IndependentNormals
from sidebayes.models.blocks.components.gaussians.gaussian_stats import weighted_moments
from sidebayes.models.blocks.components.kmeans_starts import kmeans_centres
from sidebayes.models.blocks.components.mixture_components import gaussian_components
from sidebayes.models.blocks.components.normal_inverse_wishart import mode, update
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sklearn.cluster import KMeans
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from tests.reference.exact_mixture import log_marginal
from tests.support.effects import derivatives


def test_evidence_of_the_degrees_of_freedom_is_highest():
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(3), [20, 30, 50])
    turns = rng.normal(size=(3, 4, 4))
    x = 20.0 * np.eye(4)[labels] + np.einsum("nij,nj->ni", turns[labels], rng.normal(size=(100, 4)))
    prior = GaussianPrior.by_evidence(x, 3)

    def evidence(df):
        scale = np.asarray(prior.scale) / (prior.df - 5) * (df - 5)
        parts = (
            log_marginal(x[labels == k], x.mean(axis=0), prior.shrinkage, df, scale)
            for k in range(3)
        )
        return sum(parts)

    best = evidence(prior.df)
    excess = prior.df - 5
    assert best > evidence(5 + 1.02 * excess)
    assert best > evidence(5 + excess / 1.02)
    assert best > evidence(6.0) + 1


def test_the_most_probable_partition_counts_in_any_units():
    x = StandardScaler().fit_transform(load_wine().data)[:, :4]
    prior, units = GaussianPrior.by_evidence(x, 3), np.array([1e3, 1.0, 1e-2, 7.0])
    moved = GaussianPrior.by_evidence(x * units + 5, 3)
    np.testing.assert_allclose(moved.df, prior.df, rtol=1e-4)
    np.testing.assert_allclose(moved.scale / np.outer(units, units), prior.scale, rtol=1e-3)
    kmeans = _most_probable(x, KMeans(3, n_init=10, random_state=0).fit_predict(x))
    centres, scales = kmeans_centres(x, 3, 0, 10)
    nearest = np.linalg.norm((x[:, None, None] - centres) / scales[:, None], axis=-1).argmin(
        axis=-1
    )
    found = [_most_probable(x, labels) for labels in nearest.T]
    assert max(found, key=lambda one: one[0])[1].df == prior.df
    assert max(found, key=lambda one: one[0])[0] > kmeans[0] + 1


def test_prior_mean_of_the_covariance_is_the_pooled_covariance():
    rng = np.random.default_rng(0)
    centre = np.array([[0.0, 0.0], [30.0, 0.0]])
    x = np.repeat(centre, 400, axis=0) + rng.normal(size=(800, 2)) * [1.0, 2.0]
    prior = GaussianPrior.by_evidence(x, 2)
    within = np.mean([np.cov(half.T, bias=True) for half in (x[:400], x[400:])], axis=0)
    np.testing.assert_allclose(np.asarray(prior.scale) / (prior.df - 3), within, atol=1e-4)
    # equal covariances share all they can; unequal ones little
    x[400:, 1] *= 5
    assert GaussianPrior.by_evidence(x, 2).df < prior.df / 10


def test_degenerate_data():
    x = np.column_stack([np.repeat([0.0, 1.0], 5), np.ones(10)])
    prior = GaussianPrior.by_evidence(x, 3)  # two distinct points, and a constant feature
    assert np.isfinite(prior.df)
    assert np.linalg.eigvalsh(prior.scale).min() > 0
    # features that are constant within clusters, but for rounding of their means
    rare = np.repeat([0.1, 0.7], [77, 3])
    noise = np.random.default_rng(0).normal(size=80)
    x = np.column_stack([rare, np.roll(rare, 3), np.roll(rare, 6), noise])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    prior = GaussianPrior.by_evidence(x, 4)
    assert np.linalg.eigvalsh(prior.scale).min() > 1e-9
    with pytest.raises(ValueError, match="2 rows, fewer than num_clusters = 3"):
        GaussianPrior.by_evidence(x[:2], 3)


@pytest.mark.parametrize("origin", [0.0, 1e6])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=["tied", "full", "classes"])
def test_products_give_the_density_that_solves_give(batch, origin):
    """Values, gradients and products with the Hessian are those of NumPyro's density."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(7, *[1] * max(len(batch), 1), 4)) + origin
        root = rng.normal(size=(*batch, 4, 4)) * [10.0, 1.0, 0.1, 0.01]
        mean = rng.normal(size=(*(batch or (3,)), 4)) + origin
        at = mean, root @ root.swapaxes(-1, -2)

        def value(kind, mean, sigma):
            return kind(mean, sigma).log_prob(x)

        found, expected, one = jax.jit(
            lambda *at: (
                value(Gaussian, *at),
                value(MultivariateNormal, *at),
                Gaussian(*at).log_prob(x[0].reshape(4)),
            )
        )(*at)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        np.testing.assert_allclose(one, expected[0], rtol=1e-9)
        weights = rng.normal(size=expected.shape)

        def slope(kind):
            return jax.grad(lambda *at: (weights * value(kind, *at)).sum(), (0, 1))

        change = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), at)

        def both(kind, at):
            return slope(kind)(*at), jax.jvp(slope(kind), at, change)[1]

        # traced at no concrete numbers: compiled as two programs, not as hundreds
        pairs = (
            jax.tree.leaves(jax.jit(partial(both, kind))(at))
            for kind in (Gaussian, MultivariateNormal)
        )
        for one, other in zip(*pairs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7 * np.abs(other).max())


@pytest.mark.parametrize("origin", [0.0, 1e6])
@pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=["clusters", "classes"])
def test_features_apart_have_the_density_of_normals(batch, origin):
    """Values, slopes in points, means and scales, and products with the Hessian."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(7, *[1] * len(batch), 4)) + origin
        at = x, rng.normal(size=(*batch, 4)) + origin, rng.uniform(0.1, 2.0, size=(*batch, 4))
        weights, change = rng.normal(size=(7, *batch)), tuple(rng.normal(size=a.shape) for a in at)

        def apart(x, mean, sd):
            return Normal(mean, sd).to_event(1).log_prob(x)

        def at_once(x, mean, sd):
            return IndependentNormals(mean, sd).log_prob(x)

        def all_of(density):
            slope = jax.grad(lambda *at: (weights * density(*at)).sum(), (0, 1, 2))
            return density(*at), slope(*at), jax.jvp(slope, at, change)[1]

        found, expected = (jax.tree.leaves(all_of(density)) for density in (at_once, apart))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7 * np.abs(other).max())
        one = IndependentNormals(*at[1:]).log_prob(x[0].reshape(4))
        np.testing.assert_allclose(one, expected[0][0], rtol=1e-9)


@pytest.mark.parametrize("num_points", [3, 1024, 2500])
def test_blocks_of_rows_give_the_density_of_all(num_points):
    """Values and gradients, whether or not rows fill their blocks; rows may be arrays."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(num_points, 2, 3)))
        graph = LabelGraph.build(None, num_points)

        def in_blocks(mean):
            labels = LinkedCategorical(jnp.log(jnp.array([0.3, 0.7])), graph)
            components = Normal(mean[:, None, None]).expand([2, 2, 3]).to_event(2)
            return LinkedMixture(labels, components).log_prob(x)

        def at_once(mean):
            each = -0.5 * ((x[:, None] - mean[:, None, None]) ** 2).sum((2, 3))
            each += jnp.log(jnp.array([0.3, 0.7])) - 3 * jnp.log(2 * jnp.pi)
            return jax.nn.logsumexp(each, axis=1).sum()

        mean = jnp.array([-0.5, 1.0])
        for found, expected in zip(
            *(jax.jit(jax.value_and_grad(f))(mean) for f in (in_blocks, at_once)), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("option", [np.ones(2), ["full"], None], ids=str)
def test_options_that_are_no_text(option):
    with pytest.raises(ValueError, match="covariance = "):
        gaussian_components(2, 2, option, None)
    with pytest.raises(ValueError, match="prior = "):
        resolve_prior(option, np.ones((3, 2)), 2)


@pytest.mark.parametrize("weight_per", ["cluster", np.ones(2), None], ids=str)
def test_weight_per_is_a_point_or_a_chunklet(weight_per):
    with pytest.raises(ValueError, match="weight_per = .*expected 'point' or 'chunklet'"):
        LinkedCategorical(np.log([0.5, 0.5]), LabelGraph.build(None, 2), weight_per=weight_per)


ROWS, COLUMNS = np.tril_indices(3)


def root(free):
    """Cholesky factor whose diagonal is given in logarithms."""
    matrix = np.zeros((3, 3), free.dtype)
    matrix[ROWS, COLUMNS] = np.where(ROWS == COLUMNS, np.exp(free), free)
    return matrix


def most_probable(scatter, weight):
    """Where the slope of (2.29) in a Cholesky factor vanishes."""

    def loss(free):
        """(2.29) with its sign changed, of one component."""
        inner = np.linalg.solve(root(free), scatter)
        quadratic = np.trace(np.linalg.solve(root(free), inner.T))
        return weight * free[ROWS == COLUMNS].sum() + quadratic / 2

    start = np.where(ROWS == COLUMNS, np.log(np.trace(scatter) / weight / 3) / 2, 0.0)
    found = solve(lambda free: derivatives(loss, free), start, jac=True, tol=1e-12)
    assert np.linalg.eigvalsh(derivatives(loss, found.x)[1]).min() > 0
    return root(found.x) @ root(found.x).T


def test_covariances_are_most_probable_under_their_prior():
    """Raghuram (2014), check R12: (2.30) is the maximiser of (2.29), between the data and the prior.

    The prior of the mean counts as one point more than the thesis', which has none: N_0 = df + d + 2.
    """
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, member = rng.normal(size=(30, 3)), rng.dirichlet(np.ones(2), 30)
        means = member.T @ x / member.sum(axis=0)[:, None]
        apart = x[:, None] - means
        scatter = np.einsum("nk,nki,nkj->kij", member, apart, apart)
        counts, target = member.sum(axis=0), np.diag([1.0, 2.0, 3.0])

        def covariances(prior):
            about = jnp.asarray(means)
            moments = weighted_moments(x, member, about)
            return mode(update(moments, about, prior))[1]

        def prior(weight):
            return GaussianPrior(np.zeros(3), 1e-12, weight - 5.0, weight * target)

        priors = [prior(8.0), prior(50.0), prior(1e9), None]
        *both, strong, free = jax.jit(lambda: [covariances(one) for one in priors])()
        for weight, found in zip((8.0, 50.0), both, strict=True):
            for k in range(2):
                best = most_probable(scatter[k] + weight * target, counts[k] + weight)
                np.testing.assert_allclose(found[k], best, atol=1e-8)
        np.testing.assert_allclose(free, scatter / counts[:, None, None], atol=1e-12)
        np.testing.assert_allclose(strong, [target] * 2, atol=1e-6)


def test_one_row_has_no_empirical_prior():
    with pytest.raises(ValueError, match="x has one row, which has no covariance"):
        GaussianPrior.empirical(np.ones((1, 2)), 1)
