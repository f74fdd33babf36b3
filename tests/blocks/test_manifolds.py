"""Spheres and spaces of shapes: geometry that every point must obey, closed forms, and slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.optimize import minimize
from sidebayes.models.blocks.manifolds import preshape, sphere

exp, log, angle, basis_at = map(
    jax.jit, (sphere.exp, sphere.log, sphere.angle, sphere.tangent_basis)
)
ANGLES = (0.0, 1e-6, 1e-3, 0.0999, 0.1001, 0.7, np.pi / 2, 2.0, 3.1, np.pi - 1e-5)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def unit(rng, *shape):
    values = rng.normal(size=shape)
    return jnp.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))


@pytest.mark.parametrize("size", [2, 3, 6])
def test_basis_of_the_tangent_space(size):
    points = unit(np.random.default_rng(size), 20, size)
    basis = sphere.tangent_basis(points)
    identity = np.broadcast_to(np.eye(size - 1), (20, size - 1, size - 1))
    np.testing.assert_allclose(jnp.swapaxes(basis, 1, 2) @ basis, identity, atol=1e-14)
    np.testing.assert_allclose(jnp.einsum("ni,nij->nj", points, basis), 0, atol=1e-14)


@pytest.mark.parametrize("length", ANGLES)
def test_exp_and_log_are_inverse(length):
    rng = np.random.default_rng(3)
    point, direction = unit(rng, 50, 4), unit(rng, 50, 3)
    tangent = length * np.einsum("nij,nj->ni", basis_at(point), direction)
    end = exp(point, tangent)
    np.testing.assert_allclose(np.linalg.norm(end, axis=-1), 1, atol=1e-14)
    np.testing.assert_allclose(angle(point, end), length, rtol=1e-9, atol=1e-15)
    # rounding of the end moves the direction by its distance to the cut locus
    np.testing.assert_allclose(log(point, end), tangent, atol=1e-9, rtol=1e-9)


def test_series_meet_the_closed_forms():
    """Values and slopes on both sides of where the series end."""
    point, apart = np.array([1.0, 0.0, 0.0]), 1e-5 * np.eye(3)

    def with_slopes(function):
        slope = jax.jacrev(function, 1)
        return jax.jit(lambda *at: (function(*at), slope(*at), jax.jacrev(slope, 1)(*at)))

    there, back = with_slopes(exp), with_slopes(log)
    for length in (0.0999999, 0.1000001):
        tangent = np.array([0.0, length, 0.0])
        end = there(point, tangent)[0]
        np.testing.assert_allclose(end, [np.cos(length), np.sin(length), 0], rtol=1e-15)
        np.testing.assert_allclose(back(point, end)[0], tangent, rtol=1e-14)
        for both, at in ((there, tangent), (back, end)):
            _, *slopes = both(point, at)
            pairs = [(both(point, at + by), both(point, at - by)) for by in apart]
            for order, slope in enumerate(slopes):
                steps = [(up[order] - down[order]) / 2e-5 for up, down in pairs]
                np.testing.assert_allclose(slope, np.stack(steps, axis=-1), atol=1e-7)


def test_flow_along_great_circles():
    """Check 14: it keeps norm and speed, is the geodesic of `exp`, and goes back when it is reversed."""
    rng = np.random.default_rng(4)
    landmarks = jnp.asarray(rng.normal(size=(20, 6, 2)))

    @jax.jit
    def beginning(landmarks, velocity):
        start = preshape.to_helmert(preshape.to_preshape(landmarks).shape).reshape(20, -1)
        return start, sphere.tangent(start, velocity)

    @jax.jit
    def there_and_back(start, velocity, time):
        (end, moving), (slope, _) = jax.jvp(
            lambda time: sphere.flow(start, velocity, time), (time,), (1.0,)
        )
        shape = preshape.from_helmert(end.reshape(20, 5, 2))
        return end, moving, slope, shape, *sphere.flow(end, -moving, time)

    start, velocity = map(np.asarray, beginning(landmarks, rng.normal(size=(20, 10))))
    np.testing.assert_allclose((start * velocity).sum(axis=-1), 0, atol=1e-14)
    for time in (1e-3, 0.7, 20.0):
        found = map(np.asarray, there_and_back(start, velocity, time))
        end, moving, slope, shape, back, stopped = found
        np.testing.assert_allclose(end, exp(start, time * velocity), atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(end, axis=-1), 1, atol=1e-12)
        speed = np.linalg.norm(velocity, axis=-1)
        np.testing.assert_allclose(np.linalg.norm(moving, axis=-1), speed, rtol=1e-12)
        np.testing.assert_allclose((end * moving).sum(axis=-1), 0, atol=1e-12)
        np.testing.assert_allclose(shape.sum(axis=-2), 0, atol=1e-14)
        np.testing.assert_allclose(back, start, atol=1e-10)
        np.testing.assert_allclose(stopped, -velocity, atol=1e-10)
        np.testing.assert_allclose(slope, moving, atol=1e-12)


def test_slopes_at_the_point_itself():
    point = unit(np.random.default_rng(0), 4)
    slope = jax.jit(jax.grad(lambda other: sphere.angle(point, other)))(point)
    np.testing.assert_array_equal(slope, np.zeros(4))
    jacobian = jax.jit(jax.jacobian(lambda tangent: sphere.exp(point, tangent)))(jnp.zeros(4))
    np.testing.assert_allclose(jacobian, np.eye(4), atol=1e-15)
    tangents = np.eye(4) - np.outer(point, point)
    jacobian = jax.jit(jax.jacobian(lambda other: sphere.log(point, other)))(point)
    np.testing.assert_allclose(jacobian @ tangents, tangents, atol=1e-14)


def test_opposite_points_have_no_logarithm():
    point = unit(np.random.default_rng(1), 3)
    assert np.isnan(sphere.log(point, -point)).all()
    np.testing.assert_allclose(sphere.angle(point, -point), np.pi, rtol=1e-15)


def test_transport_on_the_sphere():
    rng = np.random.default_rng(2)
    start, end = unit(rng, 5), unit(rng, 5)
    way = log(start, end)
    carried = jnp.concatenate([basis_at(start).T, way[None]])
    carry = jax.jit(jax.vmap(sphere.transport, in_axes=(None, None, 0)))
    *moved, last = np.asarray(carry(start, end, carried))
    moved = np.stack(moved)
    np.testing.assert_allclose(moved @ end, 0, atol=1e-14)
    np.testing.assert_allclose(moved @ moved.T, np.eye(4), atol=1e-14)
    np.testing.assert_allclose(last, -log(end, start), atol=1e-14)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_karcher_mean(scale):
    rng = np.random.default_rng(5)
    points = unit(rng, 40, 4) + np.array([1.0, 0, 0, 0])
    points = np.asarray(points) / np.linalg.norm(points, axis=-1, keepdims=True)
    weights = scale * rng.uniform(0.2, 2, size=40)
    found = jax.device_get(jax.jit(sphere.karcher_mean)(points, weights))
    assert found.slope < 1e-9
    np.testing.assert_allclose(np.linalg.norm(found.mean), 1, rtol=1e-14)
    np.testing.assert_allclose(weights @ found.tangents / weights.sum(), 0, atol=1e-9)
    assert np.linalg.norm(found.tangents.mean(axis=0)) > 1e-3  # weights count

    def cost(free):
        nearest = free / np.linalg.norm(free)
        return float(weights @ np.arccos(np.clip(points @ nearest, -1, 1)) ** 2)

    best = minimize(cost, np.asarray(points.mean(axis=0)), method="BFGS").x
    np.testing.assert_allclose(found.mean, best / np.linalg.norm(best), atol=1e-5)


def test_karcher_mean_never_ascends():
    """Points of more than a hemisphere, at which whole steps overshoot."""
    points = unit(np.random.default_rng(9), 30, 3)
    mean = jax.jit(lambda steps: sphere.karcher_mean(points, max_steps=steps))
    variances = [float(mean(steps).variance) for steps in range(30)]
    assert np.all(np.diff(variances) <= 1e-14)
    assert mean(500).slope < 1e-10


@pytest.fixture(params=[2, 3])
def shapes(request):
    rng = np.random.default_rng(request.param)
    first = preshape.to_preshape(jnp.asarray(rng.normal(size=(7, request.param)))).shape
    second = preshape.to_preshape(first + 0.4 * rng.normal(size=first.shape)).shape
    return first, second, jnp.asarray(rng.normal(size=first.shape))


def test_place_size_and_rotation_do_not_count(shapes):
    first, second, _ = shapes
    rng = np.random.default_rng(0)
    size = first.shape[1]
    turn, _ = np.linalg.qr(rng.normal(size=(size, size)))
    turn[:, 0] *= np.sign(np.linalg.det(turn))
    moved = preshape.to_preshape(3.5 * second @ turn + rng.normal(size=size))
    np.testing.assert_allclose(moved.size, 3.5, rtol=1e-13)
    np.testing.assert_allclose(
        preshape.shape_angle(first, moved.shape), preshape.shape_angle(first, second), rtol=1e-12
    )
    assert preshape.shape_angle(first, first.at[:, 0].multiply(-1)) > 0.1  # but reflections do


def test_alignment_is_the_best_of_all_rotations():
    rng = np.random.default_rng(4)
    first, second = (preshape.to_preshape(rng.normal(size=(5, 2))).shape for _ in range(2))
    angle = np.linspace(0, 2 * np.pi, 20001)
    turns = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    costs = np.square(second @ np.moveaxis(turns, -1, 0) - first).sum(axis=(1, 2))
    best = np.square(preshape.align(second, first) - first).sum()
    assert 0 <= costs.min() - best < 1e-7


def test_shapes_by_exp_and_log(shapes):
    first, second, _ = shapes
    way = preshape.log(first, second)
    np.testing.assert_allclose(first.T @ way, (first.T @ way).T, atol=1e-14)
    np.testing.assert_allclose(way.sum(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(
        jnp.linalg.norm(way), preshape.shape_angle(first, second), rtol=1e-13
    )
    end = preshape.exp(first, way)
    np.testing.assert_allclose(preshape.shape_angle(end, second), 0, atol=1e-7)
    np.testing.assert_allclose(end.sum(axis=0), 0, atol=1e-14)


def test_horizontal_vectors_and_their_chart(shapes):
    """Check 16 of the dossier: the columns, orthonormal, bar translations, growth and rotations."""
    first, _, vector = shapes
    basis = preshape.horizontal_basis(first)
    num_columns = preshape.num_dimensions(*first.shape)
    assert basis.shape == (first.size, num_columns)
    np.testing.assert_allclose(basis.T @ basis, np.eye(num_columns), atol=1e-14)
    projected = basis @ basis.T @ np.asarray(vector).ravel()
    np.testing.assert_allclose(preshape.horizontal(first, vector).ravel(), projected, atol=1e-13)
    end = preshape.exp(first, (basis @ np.full(num_columns, 0.1)).reshape(first.shape))
    np.testing.assert_allclose(first.T @ end, (first.T @ end).T, atol=1e-14)


@pytest.mark.parametrize(("landmarks", "count"), [((64, 2), 124), ((64, 3), 185), ((128, 3), 377)])
def test_number_of_dimensions(landmarks, count):
    assert preshape.num_dimensions(*landmarks) == count


def test_a_line_has_no_chart():
    line = preshape.to_preshape(np.outer(np.arange(5.0), [1.0, 2.0, 0.0])).shape
    with pytest.raises(ValueError, match="lie on a line"):
        preshape.horizontal_basis(line)
    # in the plane it has one
    assert preshape.horizontal_basis(line[:, :2]).shape == (10, 6)


def test_transport_of_shapes(shapes):
    """Lengths and angles stay, the geodesic's own direction too, and errors fall with the fourth power."""
    first, second, vector = shapes
    way, vector = preshape.log(first, second), preshape.horizontal(first, vector)
    end = preshape.exp(first, way)
    moved = preshape.transport(first, way, vector)
    np.testing.assert_allclose(end.T @ moved, (end.T @ moved).T, atol=1e-8)
    np.testing.assert_allclose(jnp.linalg.norm(moved), jnp.linalg.norm(vector), rtol=1e-9)
    speed = preshape.transport(first, way, way)
    np.testing.assert_allclose(speed, -preshape.log(end, first), atol=1e-9)
    exact = preshape.transport(first, way, vector, num_steps=512)
    errors = [
        np.abs(preshape.transport(first, way, vector, num_steps=n) - exact).max() for n in (8, 16)
    ]
    assert 12 < errors[0] / errors[1] < 20


def test_transport_in_the_plane_is_that_of_complex_space():
    """Shapes in the plane: i times the velocity stays i times the velocity."""
    rng = np.random.default_rng(8)
    first, second = (preshape.to_preshape(jnp.asarray(rng.normal(size=(6, 2)))).shape for _ in "ab")
    turn = jnp.asarray([[0.0, 1.0], [-1.0, 0.0]])

    @jax.jit
    def moved_and_turned(first, second):
        way = preshape.log(first, second)
        moved = preshape.transport(first, way, way @ turn, num_steps=128)
        return moved, -preshape.log(preshape.exp(first, way), first) @ turn

    np.testing.assert_allclose(*moved_and_turned(first, second), atol=1e-9)


def test_slopes_of_the_alignment_where_moments_agree():
    """A regular triangle has equal moments, at which slopes of singular vectors are not finite."""
    angle = 2 * np.pi * np.arange(3) / 3
    triangle = jnp.asarray(np.stack([np.cos(angle), np.sin(angle)], axis=1) / np.sqrt(3))
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))
    check_grads(lambda u: (preshape.align(u, triangle) * weight).sum(), (triangle,), 2)


@pytest.mark.parametrize("axes", [2, 3])
def test_the_horizontal_basis_turns_with_the_preshape(axes):
    rng = np.random.default_rng(axes)
    first = np.asarray(preshape.to_preshape(rng.normal(size=(7, axes))).shape)
    turn = np.linalg.qr(rng.normal(size=(axes, axes)))[0]
    turn[:, 0] *= np.linalg.det(turn)
    basis, other = (preshape.horizontal_basis(one) for one in (first, first @ turn))
    turned = np.einsum("lid,ij->ljd", basis.reshape(7, axes, -1), turn).reshape(other.shape)
    np.testing.assert_allclose(other, turned, atol=1e-12)
