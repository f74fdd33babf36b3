"""Generalised Procrustes analysis: closed forms, invariances, missing landmarks, what R's shapes finds."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.spatial.transform import Rotation
from sidebayes.models.blocks.manifolds import preshape
from sidebayes.models.blocks.manifolds.procrustes import procrustes

shape_angle, align = jax.jit(preshape.shape_angle), jax.jit(preshape.align)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def configurations(axes, individuals=12, landmarks=7, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(landmarks, axes))
    return mean + noise * rng.normal(size=(individuals, landmarks, axes))


def moved(x, rng, sizes=True):
    """Every configuration shifted, turned and scaled by its own."""
    count, _, axes = x.shape
    turns = Rotation.random(count, rng=rng).as_matrix()
    if axes == 2:
        angle = rng.uniform(0, 2 * np.pi, count)
        turns = np.moveaxis(
            np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]), 2, 0
        )
    scale = rng.uniform(0.2, 5, count)[:, None, None] if sizes else 1.0
    return scale * x @ turns + rng.normal(size=(count, 1, axes))


def sum_of_squares(found):
    return float((jnp.sin(shape_angle(found.mean, found.shapes)) ** 2).sum())


def test_mean_in_the_plane_is_an_eigenvector():
    """The full Procrustes mean of complex preshapes z is the leading eigenvector of the sum of z z*."""
    x = configurations(2, noise=0.5)
    z = np.asarray(preshape.to_preshape(jnp.asarray(x)).shape) @ [1, 1j]
    values, vectors = np.linalg.eigh(z.T @ z.conj())
    mean = np.stack([vectors[:, -1].real, vectors[:, -1].imag], axis=1)
    found = procrustes(jnp.asarray(x))
    np.testing.assert_allclose(shape_angle(found.mean, jnp.asarray(mean)), 0, atol=1e-10)
    np.testing.assert_allclose(sum_of_squares(found), len(x) - values[-1], rtol=1e-10)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("scale", [True, False])
def test_similarities_of_each_individual_change_nothing(axes, scale):
    rng = np.random.default_rng(axes)
    x = configurations(axes)
    x[3, 1] = x[5, 2] = x[5, 6] = np.nan
    one = procrustes(jnp.asarray(x), scale=scale)
    two = procrustes(jnp.asarray(moved(x, rng, sizes=scale)), scale=scale)
    np.testing.assert_allclose(shape_angle(one.mean, two.mean), 0, atol=1e-9)
    again = align(two.shapes, jnp.broadcast_to(one.mean, two.shapes.shape))
    np.testing.assert_allclose(again, one.shapes, atol=1e-9)
    if not scale:
        np.testing.assert_allclose(one.sizes, two.sizes, rtol=1e-9)
        np.testing.assert_allclose(one.mean_size, two.mean_size, rtol=1e-9)


@pytest.mark.parametrize("scale", [True, False])
def test_shapes_are_preshapes_turned_onto_the_mean(scale):
    x = configurations(3)
    found = procrustes(jnp.asarray(x), scale=scale)
    np.testing.assert_allclose(found.shapes.mean(axis=1), 0, atol=1e-14)
    np.testing.assert_allclose(jnp.linalg.norm(found.shapes, axis=(1, 2)), 1, rtol=1e-14)
    cross = jnp.swapaxes(found.shapes, 1, 2) @ found.mean
    np.testing.assert_allclose(cross, jnp.swapaxes(cross, 1, 2), atol=1e-12)
    np.testing.assert_allclose(found.sizes, preshape.to_preshape(jnp.asarray(x)).size, rtol=1e-12)


@pytest.mark.parametrize("scale", [True, False])
def test_the_mean_is_a_minimum(scale):
    """No other mean has a smaller sum of squares, missing landmarks left out."""
    x = configurations(2, noise=0.3)
    x[0, 0] = x[4, 3] = x[4, 5] = np.nan
    found = procrustes(jnp.asarray(x), scale=scale)

    def objective(mean):
        total = 0.0
        for one in x:
            there = np.isfinite(one[:, 0])
            own, target = one[there], mean[there]
            own, target = own - own.mean(axis=0), target - target.mean(axis=0)
            turned = align(jnp.asarray(own), jnp.asarray(target))
            factor = (turned * target).sum() / (turned**2).sum() if scale else 1.0
            total += float(((factor * turned - target) ** 2).sum())
        return total

    best = np.asarray(found.mean) * (1.0 if scale else float(found.mean_size))
    least = objective(best)
    rng = np.random.default_rng(0)
    for length in (1e-3, 1e-2):
        for _ in range(10):
            other = best + length * rng.normal(size=best.shape)
            other = other / np.linalg.norm(other - other.mean(axis=0)) if scale else other
            assert objective(other) > least


def test_reflections_are_not_used():
    x = configurations(2, noise=0.01)
    x[0] *= [-1, 1]
    found = procrustes(jnp.asarray(x))
    angles = np.asarray(shape_angle(found.mean, found.shapes))
    assert angles[0] > 10 * angles[1:].max()


def test_sets_of_configurations_are_a_batch():
    x = np.stack([configurations(3, seed=seed) for seed in range(3)])
    x[1, 2, 3] = np.nan
    batch = jax.vmap(procrustes)(jnp.asarray(x))
    for number, one in enumerate(x):
        alone = procrustes(jnp.asarray(one))
        np.testing.assert_allclose(batch.mean[number], alone.mean, atol=1e-11)
        assert batch.steps[number] == alone.steps


@pytest.mark.data
def test_gorillas_as_in_r():
    """`procGPA(gorf.dat)` and `resampletest(gorf.dat, gorm.dat)` of shapes 1.2.7 in R."""
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "shape_apes.csv")
    x = table.drop(columns="label").to_numpy(float).reshape(len(table), -1, 2)
    females = procrustes(jnp.asarray(x[table["label"] == "gorf"]))
    males = procrustes(jnp.asarray(x[table["label"] == "gorm"]))
    cosines = jnp.cos(shape_angle(females.mean, females.shapes))
    laid = np.asarray(cosines[:, None, None] * females.shapes)
    variances = np.linalg.svd((laid - laid.mean(axis=0)).reshape(len(laid), -1))[1] ** 2
    np.testing.assert_allclose(
        100 * variances[:4] / variances.sum(), [34.8, 22.9, 11.3, 8.8], atol=0.05
    )
    np.testing.assert_allclose(np.sqrt(sum_of_squares(females) / 30), 0.04371, atol=1e-5)
    between = float(shape_angle(females.mean, males.mean))
    np.testing.assert_allclose(between, 0.05866, atol=1e-5)
    within = sum_of_squares(females) + sum_of_squares(males)
    np.testing.assert_allclose(
        57 / (1 / 30 + 1 / 29) * np.sin(between) ** 2 / within, 22.2857, atol=1e-4
    )
