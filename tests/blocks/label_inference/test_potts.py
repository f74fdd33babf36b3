"""The O(K) message against the K x K sum: values and slopes of first and second order."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.models.blocks.label_inference.trees.potts import FORBIDDEN, potts_message


def direct(belief, weight):
    equal = np.eye(belief.shape[1])
    return jax.nn.logsumexp(belief[:, None, :] + weight[:, None, None] * equal, axis=-1)


@partial(jax.jit, static_argnums=0)
def value_and_slopes(message, belief, weight):
    def weighted(b, w):
        return jnp.sum(message(b, w) * np.cos(np.arange(b.size)).reshape(b.shape))

    slope = jax.grad(weighted, argnums=(0, 1))
    # forward mode meets the message where the reverse pass of a caller has unfolded it
    unfolded = jax.jacfwd(lambda b, w: jax.vjp(message, b, w)[0], argnums=(0, 1))
    curve = jax.jacfwd(slope, argnums=(0, 1))
    every = (message, slope, unfolded, curve)
    return [routine(belief, weight) for routine in every]


@jax.jit
def one_message(belief, weight):
    def message(b):
        return potts_message(b, weight)[0]

    return message(belief), jax.jacrev(message)(belief)


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
        found = value_and_slopes(potts_message, belief, weight)
        expected = value_and_slopes(direct, belief, weight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), found, expected)


@pytest.mark.parametrize(
    ("belief", "weight", "expected"),
    [
        # the runners-up are summed although they are e^-900 of the top label
        ([0.0, -900.0, -901.0], FORBIDDEN, [-900 + np.log1p(np.exp(-1)), 0.0, 0.0]),
        ([0.0, -900.0, -2000.0], 1e6, [1e6, 1e6 - 900.0, 1e6 - 2000.0]),
        ([0.0, -805.0, -2000.0], 800.0, [800.0, np.log1p(np.exp(-5.0)), 0.0]),
        ([FORBIDDEN, FORBIDDEN, 1.0], -2.0, [1.0, 1.0, -1.0]),
    ],
)
def test_nothing_underflows(belief, weight, expected):
    with jax.enable_x64(True):
        found, slope = map(np.asarray, one_message(np.array([belief]), np.array([weight])))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(slope.sum(axis=(1, 2)), 1.0, rtol=1e-12)  # each row a distribution
    assert (slope >= 0).all()
