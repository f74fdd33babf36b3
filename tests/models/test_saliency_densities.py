"""Densities with feature saliencies by enumeration, passes over rows, and steps at given moments."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sidebayes.models.blocks.saliency.passes as passes
from scipy.special import softmax
from scipy.stats import norm
from sidebayes.guides.feature_saliency_updates import saliency_updated, weight_updated
from sidebayes.models.blocks.saliency.layout import Used
from sidebayes.models.blocks.saliency.message_length import structure_length
from sidebayes.models.blocks.saliency.passes import (
    Salient,
    SalientMoments,
    salient_densities,
    salient_moments,
)
from sidebayes.models.blocks.saliency.salient_normal import SalientNormal


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


log_prob = jax.jit(lambda own, x: SalientNormal(own).log_prob(x[:, None]))
relevance = jax.jit(lambda own, x, labels: SalientNormal(own).relevance(x, labels))
reweighed = jax.jit(weight_updated)


def random_features(num_clusters, num_features, seed=0, saliency=None):
    rng = np.random.default_rng(seed)
    shape = (num_clusters, num_features)
    return Salient(
        jnp.asarray(rng.normal(size=shape)),
        jnp.asarray(rng.uniform(0.3, 2.0, shape)),
        jnp.asarray(rng.normal(size=num_features)),
        jnp.asarray(rng.uniform(0.5, 2.0, num_features)),
        jnp.asarray(rng.uniform(size=num_features) if saliency is None else saliency),
    )


def test_density_sums_over_which_features_are_relevant():
    own = random_features(2, 3)
    x = np.random.default_rng(1).normal(size=(5, 3))
    x[2, 1] = np.nan
    within = norm(np.asarray(own.mean), np.sqrt(own.variance)).pdf(x[:, None])
    common = norm(np.asarray(own.common_mean), np.sqrt(own.common_variance)).pdf(x)
    within[2, :, 1] = common[2, 1] = 1.0  # a missing value is integrated out
    expected = np.zeros((5, 2))
    for relevant in product((0, 1), repeat=3):
        chance = np.prod(np.where(relevant, own.saliency, 1 - own.saliency))
        expected += chance * np.where(relevant, within, common[:, None]).prod(axis=2)
    np.testing.assert_allclose(log_prob(own, x), np.log(expected), atol=1e-12)


@pytest.mark.parametrize("chunk", [4, 16, 4096])
def test_passes_over_chunks_are_the_sums(monkeypatch, chunk):
    monkeypatch.setattr(passes, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    saliency = rng.uniform(size=11)
    saliency[[1, 3]], saliency[7] = 0.0, 1.0
    own = random_features(4, 11, saliency=saliency)
    x = rng.normal(size=(37, 11))
    x[3, 2], x[5] = np.nan, np.nan
    found = np.asarray(salient_densities(x, own))
    np.testing.assert_allclose(found, np.asarray(log_prob(own, x)).T, atol=1e-12)

    share = softmax(found, axis=0)
    moments = salient_moments(x, share, own, np.ones(11))
    chance = np.stack([relevance(own, x, np.full(37, k)) for k in range(4)])
    known = ~np.isnan(x)
    deviation = np.where(known, x - 1.0, 0.0)
    relevant = share[:, :, None] * chance * known
    others = (share[:, :, None] * (1 - chance) * known).sum(axis=0)
    for power, part in zip(
        (np.ones_like(deviation), deviation, deviation**2), moments, strict=False
    ):
        own_part, common_part = np.split(np.asarray(part), [4])
        np.testing.assert_allclose(own_part, (relevant * power).sum(axis=1), atol=1e-11)
        np.testing.assert_allclose(common_part[0], (others * power).sum(axis=0), atol=1e-11)
    total = (share[:, :, None] * chance**2 * known).sum(axis=(0, 1))
    np.testing.assert_allclose(moments.certainty, total, atol=1e-11)


def test_clusters_that_are_not_used_are_skipped():
    own = random_features(4, 5)
    x = np.random.default_rng(0).normal(size=(9, 5))
    used = Used(np.array([2, 0, 1, 3]), 2)
    whole, part = (np.asarray(salient_densities(x, own, one)) for one in (None, used))
    np.testing.assert_array_equal(part[[0, 2]], whole[[0, 2]])
    np.testing.assert_array_equal(part[[1, 3]], 0.0)


def test_message_length_of_parameters_on_bounds():
    saliency = np.array([0.0, 0.3, 1.0])
    weights = np.array([0.25, 0.0, 0.75])
    n = 50
    expected = 0.5 * (2 + 1) * np.log(n)  # two clusters, one saliency between its bounds
    for rho in (0.3, 1.0):
        expected += np.log(n * rho * np.array([0.25, 0.75])).sum()
    expected += np.log(n * np.array([1.0, 0.7])).sum()
    found = jax.jit(structure_length, static_argnums=2)(weights, saliency, n)
    assert float(found) == pytest.approx(expected)


def test_support_below_the_price_takes_out():
    weights = np.array([0.5, 0.3, 0.2])
    counts = np.array([12.0, 6.0, 2.0])
    new = np.asarray(reweighed(weights, 2, counts, 3.0, False, 1))
    assert new[2] == 0.0
    np.testing.assert_allclose(new, [0.625, 0.375, 0.0])
    kept = np.asarray(reweighed(weights, 2, counts, 3.0, False, 3))
    assert kept[2] > 0
    held = np.asarray(reweighed(weights, 2, counts, 3.0, True, 1))
    assert held[2] > 0

    on = np.array([[1.0, 12.0, 13.6], [0.5, 5.0, 6.0]])
    off = np.array([18.5, 3.0, 0.4])
    zero = np.zeros((3, 3))
    moments = SalientMoments(np.concatenate([on, off[None]]), zero, zero, on.sum(axis=0) ** 2 / 20)
    found = jax.jit(saliency_updated)(np.array([0.1, 0.8, 0.95]), moments, 2, True)
    np.testing.assert_allclose(found, [0.0, 15.0 / 17.0, 1.0])


def test_exact_weights_maximise_the_penalised_objective():
    counts, price = np.array([12.0, 9.0, 9.0]), 2.0
    weights = np.array([0.2, 0.5, 0.3])

    def objective(w):
        return (counts - price) @ np.log(w)

    new = np.asarray(reweighed(weights, 0, counts, price, False, 1))
    for other in np.linspace(0.01, 0.99, 99):
        tried = np.array([other, *weights[1:] * (1 - other) / 0.8])
        assert objective(new) >= objective(tried) - 1e-12


def test_longer_steps_of_saliencies_have_a_bound():
    """The log likelihood given labels is above the bound wherever a saliency is not more than halved."""
    rng = np.random.default_rng(0)
    p, q, w = rng.exponential(size=(3, 200))
    for rho in (0.02, 0.4, 0.9):
        r = rho * p / (rho * p + (1 - rho) * q)
        slope = (w * (r - rho)).sum() / (rho * (1 - rho))
        bend = (w * (r - rho) ** 2).sum() / (rho * (1 - rho)) ** 2
        for tried in np.linspace(rho / 2, (1 + rho) / 2, 21):
            gain = (w * np.log((tried * p + (1 - tried) * q) / (rho * p + (1 - rho) * q))).sum()
            assert gain >= (tried - rho) * slope - (tried - rho) ** 2 * bend - 1e-9
