"""Kernel distance of point clouds: its identities (check 13), brute force over pairs, its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.spatial.distance import cdist
from sidebayes.models.blocks.manifolds.kernel_distance import kernel_distance, self_similarity

WIDTH = 0.4
distance = jax.jit(kernel_distance)
similarity = jax.jit(self_similarity, static_argnums=2)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def clouds(seed=0, size=2):
    """Individuals with 5, 1 and 8 points in mixed order, one without, two points of nobody."""
    rng = np.random.default_rng(seed)
    subjects = rng.permutation(np.repeat([0, 1, 2, -1], [5, 1, 8, 2]))
    return rng.normal(size=(16, size)), subjects, rng.normal(size=(4, 6, size))


def brute(x, shape, width=WIDTH):
    first, second, both = (cdist(a, b) for a, b in ((x, x), (shape, shape), (x, shape)))
    return sum(
        sign * np.exp(-(d**2) / 2 / width**2).mean()
        for sign, d in ((1, first), (1, second), (-2, both))
    )


@pytest.mark.parametrize("size", [2, 3])
def test_sums_over_all_pairs(size):
    x, subjects, shapes = clouds(1, size)
    found = distance(x, subjects, shapes, WIDTH)
    expected = [brute(x[subjects == i], shapes[i]) for i in range(3)]
    np.testing.assert_allclose(found, [*expected, 0.0], rtol=1e-12, atol=1e-15)
    own = similarity(x, subjects, 4, WIDTH)
    known = distance(x, subjects, shapes, WIDTH, own=own)
    np.testing.assert_allclose(known, found, rtol=1e-12, atol=1e-15)


def test_identities():
    x, subjects, shapes = clouds(2)
    found = np.asarray(distance(x, subjects, shapes, WIDTH))
    assert (found[:3] > 0).all()
    rng = np.random.default_rng(0)
    rows, points = rng.permutation(16), rng.permutation(6)
    turn = np.array([[np.cos(1.0), -np.sin(1.0)], [np.sin(1.0), np.cos(1.0)]])
    renumbered = distance(x[rows], subjects[rows], shapes[:, points], WIDTH)
    np.testing.assert_allclose(renumbered, found, rtol=1e-12)
    moved = distance(x @ turn + 3, subjects, shapes @ turn + 3, WIDTH)
    np.testing.assert_allclose(moved, found, rtol=1e-12)
    equal = distance(shapes.reshape(-1, 2), np.repeat(np.arange(4), 6), shapes, WIDTH)
    np.testing.assert_allclose(equal, 0, atol=1e-15)


def test_gradient():
    """The closed form of the dossier's H.3, with the weights 1 / N and 1 / T; zero between equal clouds."""
    x, subjects, shapes = clouds(3)

    @jax.jit
    def slope_at(x, subjects, shapes):
        own = self_similarity(x, subjects, 4, WIDTH)
        return jax.grad(lambda u: kernel_distance(x, subjects, u, WIDTH, own=own).sum())(shapes)

    slope = slope_at(x, subjects, shapes)
    for i in range(3):
        points, shape = x[subjects == i], shapes[i]
        size = len(shape)
        apart, across = shape[:, None] - shape, shape[:, None] - points
        inner = np.exp(-np.square(apart).sum(axis=-1) / 2 / WIDTH**2)
        outer = np.exp(-np.square(across).sum(axis=-1) / 2 / WIDTH**2)
        repelled = np.einsum("ts,tsd->td", inner, apart) / size**2
        attracted = np.einsum("tn,tnd->td", outer, across) / size / len(points)
        expected = 2 / WIDTH**2 * (attracted - repelled)
        np.testing.assert_allclose(slope[i], expected, atol=1e-12)
    np.testing.assert_array_equal(slope[3], 0)
    rows, who = shapes.reshape(-1, 2), np.repeat(np.arange(4), 6)
    np.testing.assert_allclose(slope_at(rows, who, shapes), 0, atol=1e-14)


def test_slopes_in_every_argument():
    """Slopes are our own; those of points and of the width too, and their slopes in turn."""
    x, subjects, shapes = map(jnp.asarray, clouds(5))
    own = similarity(x, subjects, 4, WIDTH)

    @jax.jit
    def total(x, shapes, width):
        found = kernel_distance(x, subjects, shapes, width, own=own)
        return found @ jnp.arange(1.0, 5.0)

    check_grads(total, (x, shapes, jnp.asarray(WIDTH)), 1, modes=["rev"])
    curvature = jax.jit(jax.hessian(total, argnums=2))(x, shapes, jnp.asarray(WIDTH))
    step = 1e-4
    ends = (total(x, shapes, WIDTH + sign * step) for sign in (-1, 0, 1))
    expected = np.diff(list(ends), 2)[0] / step**2
    np.testing.assert_allclose(curvature, expected, rtol=1e-4)


def test_numbers_of_points_on_a_curve_do_not_matter():
    def circle(number):
        turn = 2 * np.pi * np.arange(number) / number
        return np.stack([np.cos(turn), np.sin(turn)], axis=1)

    edge = 2 * np.sin(np.pi / 64)
    found = kernel_distance(circle(400), np.zeros(400, int), circle(64)[None], edge)
    assert abs(float(found[0])) < 1e-6
    assert (
        float(kernel_distance(circle(400), np.zeros(400, int), 0.9 * circle(64)[None], edge)[0])
        > 1e-3
    )


def test_no_pairs_of_different_individuals():
    """Memory grows with rows, not with their square."""
    number, size = 300, 7
    x, subjects = jnp.zeros((number * size, 2)), jnp.repeat(jnp.arange(number), size)
    shapes = jnp.zeros((number, 5, 2))
    slopes = jax.grad(lambda u, own: kernel_distance(x, subjects, u, 1.0, own=own).sum())
    for program in (
        jax.jit(kernel_distance).lower(x, subjects, shapes, 1.0),
        jax.jit(slopes).lower(shapes, jnp.zeros(number)),
    ):
        assert program.compile().memory_analysis().temp_size_in_bytes < 100 * 8 * len(x)
