"""The O(K) message against the K x K sum: values and slopes of first and second order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.models.blocks.potts import FORBIDDEN, potts_message


def direct(belief, weight):
    equal = np.eye(belief.shape[1])
    return jax.nn.logsumexp(belief[:, None, :] + weight[:, None, None] * equal, axis=-1)


def weighted(message):
    return lambda b, w: jnp.sum(message(b, w) * np.cos(np.arange(b.size)).reshape(b.shape))


BELIEFS = {
    "random": 3 * np.random.default_rng(0).normal(size=(6, 4)),
    "ties": np.zeros((6, 4)),
    "two at the top": np.tile([1.0, 1.0, 0.0, -1.0], (6, 1)),
    "one label": np.full((6, 1), 0.3),
}


@pytest.mark.parametrize("name", BELIEFS)
def test_message_and_slopes(name):
    """Ties matter: a blank field has nothing else, and Newton's step uses its curvature."""
    belief, weight = BELIEFS[name], np.array([0.0, 0.7, -0.7, 3.0, -3.0, 12.0])
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            potts_message(belief, weight), direct(belief, weight), atol=1e-12
        )
        slopes, expected = (
            jax.grad(weighted(m), argnums=(0, 1))(belief, weight) for m in (potts_message, direct)
        )
        curves, expected_curves = (
            jax.jacfwd(jax.grad(weighted(m), argnums=(0, 1)), argnums=(0, 1))(belief, weight)
            for m in (potts_message, direct)
        )
        # forward mode meets the message where the reverse pass of a caller has unfolded it
        unfolded = jax.jacfwd(lambda b, w: jax.vjp(potts_message, b, w)[0], argnums=(0, 1))
        forward = unfolded(belief, weight)
        expected_forward = jax.jacrev(direct, argnums=(0, 1))(belief, weight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), slopes, expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), forward, expected_forward
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), curves, expected_curves)


@pytest.mark.parametrize(
    ("belief", "weight", "expected"),
    [
        # the runners-up are summed although they are e^-900 of the top label
        ([0.0, -900.0, -901.0], FORBIDDEN, [-900 + np.log1p(np.exp(-1)), 0.0, 0.0]),
        ([0.0, -900.0], 1e6, [1e6, 1e6 - 900.0]),
        ([0.0, -805.0], 800.0, [800.0, np.log1p(np.exp(-5.0))]),
        ([FORBIDDEN, FORBIDDEN, 1.0], -2.0, [1.0, 1.0, -1.0]),
    ],
)
def test_nothing_underflows(belief, weight, expected):
    with jax.enable_x64(True):
        found = potts_message(np.array([belief]), np.array([weight]))[0]
        pull = jax.jacrev(lambda b: potts_message(b, np.array([weight]))[0])
        slope = np.asarray(pull(np.array([belief])))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(slope.sum(axis=(1, 2)), 1.0, rtol=1e-12)  # each row a distribution
    assert (slope >= 0).all()
