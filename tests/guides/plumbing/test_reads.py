"""Reads by index are found wherever a program hides them, with the range of their indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.plumbing.reads import replayed

G = jnp.array([0, 2, 4])


def _scanned(a):
    return jax.lax.scan(lambda total, k: (total + a[k], total), 0.0, G)[0]


def _branched(a):
    return jax.lax.cond(a[0] > 0, lambda: a[G], lambda: a[jnp.zeros(3, int)])


@jax.custom_jvp
def _doubled(x):
    return 2 * x


_doubled.defjvp(lambda x, t: (_doubled(*x), 2 * t[0]))

HIDDEN = {
    "plain": lambda a: a[G],
    "columns": lambda a: jnp.outer(a, a)[G, 1],
    "jit": lambda a: jax.jit(lambda k: a[k])(G),
    "vmap": lambda a: jax.vmap(lambda k: a[k])(G),
    "scan": _scanned,
    "one in each step": lambda a: jax.lax.fori_loop(0, 3, lambda k, s: s + a[G[k]], 0.0),
    "while": lambda a: jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, a[G]), (0, a[:3])
    ),
    "cond": _branched,
    "remat": jax.checkpoint(lambda a: a[G]),
    "derivative of its own": lambda a: _doubled(a[G]),
    "take": lambda a: jnp.take(a, G),
    "lookup": lambda a: a[jnp.array([4, 4, 4, 4, 0])[G]],
    "callback": lambda a: jax.pure_callback(np.sin, a[G], a[G]),
}


def _looked_at(function, change=0.0):
    program = jax.make_jaxpr(
        lambda at: jnp.stack(jax.tree.leaves(jax.tree.map(jnp.sum, function(at + jnp.arange(4.0)))))
    )(0.5)
    data = {k for k, one in enumerate(program.consts) if one is G}

    @jax.jit
    def run(at):
        values = [*program.consts, at]
        (out,), _ = replayed(program.jaxpr, values, data, change=change)
        return out, replayed(program.jaxpr, values, data)[1]

    return map(np.asarray, run(0.5))


@pytest.mark.parametrize("hidden", HIDDEN)
def test_index_beyond_the_end_is_found(hidden):
    function = HIDDEN[hidden]
    out, ranges = _looked_at(function)
    assert ((ranges[:, 1] == 4) & (ranges[:, 2] == 4)).any()
    if hidden != "take":  # which is NaN
        expected = jax.tree.leaves(jax.tree.map(jnp.sum, function(0.5 + jnp.arange(4.0))))
        np.testing.assert_allclose(out, expected, rtol=1e-6)
    changed, _ = _looked_at(function, 0.7)
    assert not np.allclose(changed, out)


@pytest.mark.parametrize(
    ("function", "low"),
    [
        (lambda a: a[G - 1], 0),  # computed numbers count from the end
        (lambda a: a[-1] + a[G[:2]], 0),
        (lambda a: a[G - 9], -5),
    ],
)
def test_computed_negative_numbers_count_from_the_end(function, low):
    _, ranges = _looked_at(function)
    assert ranges[:, 0].min(initial=0) == low


@pytest.mark.parametrize(
    "function",
    [
        lambda a: jnp.take(a, G, mode="clip"),
        lambda a: a.at[G].get(mode="fill", fill_value=0.0),
        lambda a: jax.lax.dynamic_slice(a, (G[2],), (2,)),
    ],
)
def test_reads_that_state_what_is_read_beyond_are_left_out(function):
    _, ranges = _looked_at(function)
    assert not (ranges[:, 1] >= ranges[:, 2]).any()


@pytest.mark.parametrize("mask", [lambda a: jnp.where(G < 4, a[G], 0.0), lambda a: (G < 4) * a[G]])
def test_reads_that_a_mask_replaces_change_nothing(mask):
    as_is, changed = (next(_looked_at(mask, change)) for change in (0.0, 0.7))
    np.testing.assert_array_equal(as_is, changed)
