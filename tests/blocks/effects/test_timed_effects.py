"""Times given outcomes: drawn with the effects that the fitted data leave, and nothing is remembered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.models.blocks.collapsed import Fitted
from sidebayes.models.blocks.effects.densities.timed import TimedEffects
from sidebayes.models.blocks.event_times import PiecewiseHazard
from sidebayes.models.blocks.side_information.groups import Groups

SCALE_TRIL = jnp.array([[0.8, 0.0], [0.3, 0.5]])
ASSOCIATION = jnp.array([1.2, -0.7])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def build(subjects, time=None, event=None):
    """Level and slope of subjects with rows at two times each."""
    subjects = np.repeat(subjects, 2)
    groups = Groups(subjects)
    design = jnp.stack(
        [jnp.ones(len(subjects)), jnp.tile(jnp.array([-1.0, 1.0]), len(subjects) // 2)], 1
    )
    ratio = 0.4 * jnp.arange(groups.num_groups)
    hazard = PiecewiseHazard(jnp.log(jnp.array([0.3, 0.8])), jnp.array([1.5]), ratio, event)
    return TimedEffects(
        design, jnp.array([0.5, 0.1]), design, groups, scale_tril=SCALE_TRIL, noise=jnp.array([0.6]),
        hazard=hazard, association=ASSOCIATION, time=time,
    )  # fmt: skip


def test_drawing_leaves_a_distribution_as_it_is():
    fn = build([0, 1, 2])
    value = jnp.linspace(-1, 1, 6)
    before = fn.times(value).log_prob(jnp.ones(3))
    fn.draw_data(jax.random.key(0))
    np.testing.assert_array_equal(fn.times(value).log_prob(jnp.ones(3)), before)


def test_times_of_fitted_and_of_new_subjects_go_with_their_outcomes():
    """Effects, outcomes and times drawn in turn are what outcomes and then times have to match."""
    time, event = jnp.array([0.4, 2.5]), jnp.array([1.0, 0.0])
    old, outcomes = build([0, 1], time, event), jnp.array([1.5, 0.9, -0.8, 0.2])
    new, codes = build([0, 1, 2]), jnp.array([1, 0, -1])
    fitted = Fitted(old, outcomes, codes)
    known = Fitted(old.times(outcomes), time, codes)

    def ours(key):
        first, second = jax.random.split(key)
        value = new.draw_data(first, fitted)
        return value, jnp.log(new.times(value).draw_data(second, known))

    def in_turn(key):
        keys = jax.random.split(key, 4)
        own = old.draw_known(keys[0], outcomes)[codes]
        white = jnp.where(codes[:, None] < 0, jax.random.normal(keys[1], own.shape), own)
        noise = 0.6 * jax.random.normal(keys[2], (6,))
        value = new.mean + (jnp.repeat(white @ SCALE_TRIL.T, 2, 0) * new.design).sum(1) + noise
        times = new.hazard.moved(white @ SCALE_TRIL.T @ ASSOCIATION).sample(keys[3])
        return value, jnp.log(times)

    keys = jax.random.split(jax.random.key(1), 20_000)
    moments = []
    for draw in (ours, in_turn):
        value, times = map(np.asarray, jax.jit(jax.vmap(draw))(keys))
        level = value.reshape(-1, 3, 2).mean(axis=2)
        each = np.concatenate([times, times**2, level, level**2, times * level], axis=1)
        moments.append((each.mean(axis=0), each.std(axis=0) / np.sqrt(len(each))))
    (mean, error), (expected, other) = moments
    assert (np.abs(mean - expected) < 5 * np.hypot(error, other)).all()
    assert expected[0] != pytest.approx(expected[1], abs=0.2)  # what was fitted matters
