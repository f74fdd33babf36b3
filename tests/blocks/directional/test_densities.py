"""Densities on the sphere: Bessel functions, constants, Jacobians, draws, frames."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ive
from scipy.stats import chi2, multivariate_normal, vonmises_fisher
from sidebayes.models.blocks.directional.frames import central_pole, transported_basis
from sidebayes.models.blocks.directional.log_bessel import bessel_deficit, log_scaled_bessel
from sidebayes.models.blocks.directional.von_mises_fisher import VonMisesFisher, mean_deficit
from sidebayes.models.blocks.directional.wrapped_normal import (
    MOST_STRETCH,
    WrappedNormal,
    missing_mass,
)
from sidebayes.models.blocks.manifolds import sphere

BESSEL = [  # order, argument, log h, 1 - ratio, slope of the ratio: mpmath 1.4.1 with 60 digits
    (0, 0.0, 0.0, 1.0, 0.5),
    (0, 0.001, -0.00099975000001562502, 0.99950000006249999, 0.4999998125),
    (0, 41.0, -2.7726376233263176, 0.012271368985416159, 0.000301209254188),
    (0, 1000000.0, -7.8266936871867473, 5.00000125000125e-7, 5.0000025e-13),
    (0.5, 3.0, -2.020032651241742, 0.32836351001964416, 0.10114676534),
    (1, 25.0, -5.7625633523928521, 0.059374645045646256, 0.00234889902247),
    (1, 10000.0, -14.734486593044111, 0.00014999624962495077, 1.49992498875e-8),
    (4.5, 0.0, -7.0769762801384702, 1.0, 0.0909090909091),
    (4.5, 7.0, -12.12952441672095, 0.50363084395074016, 0.0445188665669),
    (9, 300.0, -55.239670271373629, 0.03121665459521407, 0.000102551124008),
    (20, 5.0, -60.902920200677099, 0.88252245517124945, 0.0228831588653),
    (39.5, 39.5, -166.59671546911837, 0.59207243529001123, 0.00741269241056),
    (63, 2.0, -246.66196565197034, 0.98437875423224111, 0.00780687042797),
    (63, 100000.0, -732.00954940737761, 0.00063480156053528474, 6.34603119126e-9),
    (499, 100.0, -3046.0209182622938, 0.90097860433471836, 0.000971020504336),
    (499, 10000.0, -4613.9320321625868, 0.04870564609405965, 4.74627147607e-6),
]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@jax.jit
def log_prob(fn, points):
    """In one program, as the functions below: one operation after another compiles many."""
    return fn.log_prob(points)


@partial(jax.jit, static_argnums=2)
def sample(fn, seed, number):
    return fn.sample(jax.random.key(seed), (number,))


@jax.jit
def set_up(direction, pole, spread):
    return WrappedNormal(direction, transported_basis(pole, direction), jnp.linalg.cholesky(spread))


def unit(rng, *shape):
    values = rng.normal(size=shape)
    return jnp.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))


def covariance(rng, dimension, scale):
    root = rng.normal(size=(dimension, dimension))
    return scale * (root @ root.T / dimension + 0.3 * np.eye(dimension))


def wrapped(rng, dimension, scale):
    direction, pole = unit(rng, dimension + 1), unit(rng, dimension + 1)
    spread = covariance(rng, dimension, scale)
    return set_up(direction, pole, spread), spread


@pytest.mark.parametrize(("order", "x", "value", "deficit", "slope"), BESSEL)
def test_bessel_functions_of_every_order_and_argument(order, x, value, deficit, slope):
    at = jnp.asarray(x)
    np.testing.assert_allclose(log_scaled_bessel(order, at), value, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(bessel_deficit(order, at), deficit, rtol=1e-12)
    np.testing.assert_allclose(-jax.grad(bessel_deficit, 1)(order, at), slope, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(log_scaled_bessel, 1)(order, at), -deficit, rtol=1e-12)


@pytest.mark.parametrize("order", [0, 0.5, 1, 7, 30])
def test_bessel_functions_are_those_of_scipy(order):
    x = np.geomspace(0.5, 500, 40)
    found = log_scaled_bessel(order, jnp.asarray(x)) + order * np.log(x)
    np.testing.assert_allclose(found, np.log(ive(order, x)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 5, 30])
@pytest.mark.parametrize("concentration", [0.1, 5.0, 1e4])
def test_von_mises_fisher(size, concentration):
    rng = np.random.default_rng(size)
    direction = np.asarray(unit(rng, size))
    fn = VonMisesFisher(jnp.asarray(direction), jnp.asarray(concentration))
    drawn = np.asarray(sample(fn, size, 4000))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-10)
    expected = vonmises_fisher(direction, concentration).logpdf(drawn)
    np.testing.assert_allclose(log_prob(fn, drawn), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_prob(fn, 3 * drawn), expected, rtol=1e-9, atol=1e-9)
    apart = 1 - drawn @ direction
    error = apart.std() / np.sqrt(len(apart))
    assert abs(apart.mean() - mean_deficit(concentration, size - 1)) < 4.5 * error
    across = drawn - np.outer(drawn @ direction, direction)
    moments = across.T @ across / len(across)
    share = np.trace(moments) * (np.eye(size) - np.outer(direction, direction)) / (size - 1)
    assert np.abs(moments - share).max() < 6 * np.trace(moments) / np.sqrt(len(across))


@pytest.mark.parametrize(("dimension", "scale"), [(1, 0.4), (2, 0.35), (3, 0.2), (6, 0.05)])
def test_wrapped_normal_integrates_to_one(dimension, scale):
    """Dossier, check 10: importance weights of uniform points, between a wide density and ours."""
    rng = np.random.default_rng(dimension)
    fn, spread = wrapped(rng, dimension, scale)
    wide = WrappedNormal(fn.direction, fn.basis, 1.3 * fn.scale_tril)
    points = sample(wide, 0, 40_000)
    ratio = np.exp(log_prob(fn, points) - log_prob(wide, points))
    error = ratio.std() / np.sqrt(len(ratio))
    beyond = missing_mass(np.linalg.eigvalsh(1.69 * spread)[-1], dimension)
    assert abs(ratio.mean() - 1) < 4.5 * error + beyond


@pytest.mark.parametrize(("dimension", "steps"), [(1, 20_000), (2, 2_000)])
def test_wrapped_normal_integrates_over_the_whole_sphere_to_what_is_not_left_out(dimension, steps):
    """By quadrature along the angle, for a density that reaches around the sphere."""
    variance = 1.3
    direction, basis = jnp.eye(dimension + 1)[0], jnp.eye(dimension + 1)[:, 1:]
    fn = WrappedNormal(direction, basis, np.sqrt(variance) * jnp.eye(dimension))
    angle = (np.arange(steps) + 0.5) / steps * np.pi
    points = np.zeros((steps, dimension + 1))
    points[:, 0], points[:, 1] = np.cos(angle), np.sin(angle)
    ring = 2 if dimension == 1 else 2 * np.pi * np.sin(angle)
    total = np.sum(np.exp(log_prob(fn, points)) * ring) * np.pi / steps
    law = chi2(dimension).pdf(angle**2 / variance) * 2 * angle / variance
    kept = np.minimum(1, MOST_STRETCH * np.sin(angle) / angle) ** (dimension - 1)
    np.testing.assert_allclose(total, np.sum(law * kept) * np.pi / steps, rtol=1e-4)
    assert total < chi2.cdf(np.pi**2 / variance, dimension) + 1e-4
    assert 1 - missing_mass(variance, dimension) < total


@pytest.mark.parametrize(
    ("dimension", "variance", "ratio"),
    [(2, 0.01, 0.9967), (2, 0.2, 0.9359), (3, 0.05, 0.9516), (5, 0.1, 0.7267), (10, 0.2, 0.0862)],
)
def test_the_jacobian_is_what_the_source_leaves_out(dimension, variance, ratio):
    """Dossier, K.6: integrals of eq. 2.65, which is no density, are those of the table."""
    direction, basis = jnp.eye(dimension + 1)[0], jnp.eye(dimension + 1)[:, 1:]
    fn = WrappedNormal(direction, basis, np.sqrt(variance) * jnp.eye(dimension))
    normal = multivariate_normal(np.zeros(dimension), variance * np.eye(dimension))
    angles = np.linspace(1e-9, np.pi, 4001)
    points = np.zeros((len(angles), dimension + 1))
    points[:, 0], points[:, 1] = np.cos(angles), np.sin(angles)
    tangents = angles[:, None] * np.eye(dimension)[0]
    unnormalised = np.exp(normal.logpdf(tangents) - np.asarray(log_prob(fn, points)))
    law = chi2(dimension)

    def share(angle):
        density = law.pdf(angle**2 / variance) * 2 * angle / variance
        return np.interp(angle, angles, unnormalised) * density

    assert abs(quad(share, 0, np.pi, limit=200)[0] - ratio) < 2e-4


def test_densities_turn_with_the_sphere():
    rng = np.random.default_rng(0)
    fn, _ = wrapped(rng, 3, 0.2)
    turn, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    points = unit(rng, 50, 4)
    turned = WrappedNormal(turn @ fn.direction, turn @ fn.basis, fn.scale_tril)
    found = log_prob(turned, points @ turn.T)
    np.testing.assert_allclose(found, log_prob(fn, points), rtol=1e-10)
    np.testing.assert_allclose(turned.covariance, turn @ fn.covariance @ turn.T, atol=1e-12)


def test_draws_have_the_covariance():
    fn, spread = wrapped(np.random.default_rng(1), 3, 0.1)
    drawn = sample(fn, 0, 20_000)
    tangent = sphere.log(fn.direction, drawn) @ fn.basis
    error = np.sqrt(2 / len(drawn)) * np.outer(*[np.sqrt(np.diag(spread))] * 2)
    assert (np.abs(np.cov(tangent.T) - spread) < 5 * error).all()


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_slopes_are_finite_everywhere(dimension):
    fn, _ = wrapped(np.random.default_rng(dimension), dimension, 0.1)
    nearly = unit(np.random.default_rng(9), dimension + 1) * 1e-9
    for point in (fn.direction, -fn.direction, fn.direction + nearly, -fn.direction + nearly):
        assert np.isfinite(fn.log_prob(point))
        slope = jax.grad(lambda m, p=point: WrappedNormal(m, fn.basis, fn.scale_tril).log_prob(p))
        assert np.isfinite(slope(fn.direction)).all()
    at_mean = jax.hessian(fn.log_prob)(fn.direction)
    assert np.isfinite(at_mean).all()


@pytest.mark.parametrize("size", [2, 3, 6])
def test_frames_follow_the_point(size):
    rng = np.random.default_rng(size)
    pole, points = unit(rng, size), unit(rng, 20, size)
    basis = transported_basis(pole, points)
    eye = np.broadcast_to(np.eye(size - 1), (20, size - 1, size - 1))
    np.testing.assert_allclose(jnp.swapaxes(basis, 1, 2) @ basis, eye, atol=1e-12)
    np.testing.assert_allclose(jnp.einsum("nd,ndp->np", points, basis), 0, atol=1e-12)
    own = transported_basis(pole, pole)
    np.testing.assert_allclose(sphere.transport(pole, points[0], own.T), basis[0].T, atol=1e-12)


def test_the_opposite_of_the_pole_is_far_from_data():
    rng = np.random.default_rng(0)
    cap = np.asarray(sample(VonMisesFisher(-jnp.eye(3)[0], jnp.asarray(8.0)), 0, 99))
    pole = central_pole(cap)
    assert (cap @ pole).min() > 0
    band = np.asarray(unit(rng, 200, 2))  # around the equator: no mean direction is of use
    around = np.column_stack([np.vstack([band, -band]), np.zeros(400)])
    assert abs(central_pole(around)[2]) == 1
    np.testing.assert_allclose(jax.jit(central_pole)(cap), pole, atol=1e-12)
    assert np.isfinite(central_pole(np.array([[1.0, 0.0], [-1.0, 0.0]]))).all()
