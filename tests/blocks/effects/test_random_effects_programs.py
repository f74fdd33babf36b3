"""Random effects integrated out: pytrees, NumPyro models, traced groups, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from scipy.stats import multivariate_normal, norm
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.independent_mixture import as_collapsed
from sidebayes.models.blocks.side_information.groups import Groups

from tests.support.effects import CODES, FACTORS, SUBJECT, build, dense_covariance

pytestmark = pytest.mark.usefixtures("x64")


def dense_density(table, noise="rows"):
    cov = dense_covariance(table.design, CODES, np.array(FACTORS["full"]), table.noises[noise])
    return multivariate_normal(table.mean, cov).logpdf(table.y)


def test_pytree_through_jit_and_vmap(table):
    fn = build(table, noise="rows")
    leaves, structure = jax.tree.flatten(fn)
    assert len(leaves) == 5
    again = jax.tree.unflatten(structure, leaves)
    assert again.num_units == 4
    assert again.event_shape == table.y.shape
    assert again.groups.names is None
    traced = []

    @jax.jit
    def density(fn, y):
        traced.append(isinstance(fn.groups.codes, jax.core.Tracer))
        return fn.log_prob(y)

    expected = dense_density(table)
    np.testing.assert_allclose(density(fn, table.y), expected, atol=1e-12)
    other = RandomEffects(
        table.mean, table.design, Groups((CODES + 1) % 4), scale_tril=fn.scale_tril, noise=fn.noise
    )
    np.testing.assert_allclose(density(other, table.y), expected, atol=1e-12)
    moved = Groups(np.roll(CODES, 1))
    other = RandomEffects(table.mean, table.design, moved, scale_tril=fn.scale_tril, noise=fn.noise)
    assert abs(density(other, table.y) - expected) > 0.01

    def scaled(s):
        given = {"scale_tril": s * fn.scale_tril, "noise": fn.noise}
        return RandomEffects(fn.loc * s, fn.design, fn.groups, **given)

    np.testing.assert_allclose(density(scaled(1.0), table.y), expected, atol=1e-12)
    half = density(scaled(0.5), table.y)
    assert traced == [True]  # other groups, as many, need no other program

    batch = jax.jit(jax.vmap(scaled))(jnp.array([0.5, 1.0, 2.0]))
    assert batch.loc.shape == (3, len(table.y))
    each = jax.jit(jax.vmap(lambda one: one.log_prob(table.y)))(batch)
    np.testing.assert_allclose(each[1], expected, atol=1e-12)
    np.testing.assert_allclose(each[0], half, atol=1e-12)


def test_in_a_numpyro_model(table):
    """Groups arrive as they are, or as an argument of compiled code."""

    def model(groups, y=None):
        tau = numpyro.sample("tau", numpyro.distributions.HalfNormal(1.0))
        fn = RandomEffects(table.mean, table.design, groups, scale_tril=tau * jnp.eye(2), noise=0.6)
        numpyro.sample("y", fn, obs=y)

    def density(groups):
        value, _ = numpyro.infer.util.log_density(model, (groups, table.y), {}, {"tau": 0.9})
        return value

    cov = dense_covariance(table.design, CODES, 0.9 * np.eye(2), np.array(0.6))
    expected = multivariate_normal(table.mean, cov).logpdf(table.y)
    expected += np.log(2) + norm.logpdf(0.9)
    for value in [jax.jit(lambda: density(table.groups))(), jax.jit(density)(table.groups)]:
        np.testing.assert_allclose(value, expected, atol=1e-10)
    trace = {}
    seeded = handlers.trace(handlers.seed(model, 0))
    jax.eval_shape(lambda: trace.update(seeded.get_trace(table.groups)))
    assert trace["y"]["value"].shape == table.y.shape
    assert isinstance(as_collapsed(trace["y"]["fn"]), RandomEffects)
    with pytest.raises(ValueError, match="noise"), numpyro.validation_enabled():
        RandomEffects(table.mean, table.design, table.groups, scale_tril=np.eye(2), noise=-1.0)


def test_traced_rows_of_no_group_are_independent(table):
    lone = SUBJECT.astype(object)
    lone[[1, 6]] = None
    groups = Groups(lone)
    with pytest.raises(ValueError, match="row 1 belongs to no group; give every such row a group"):
        RandomEffects(table.mean, table.design, groups, scale_tril=np.eye(2), noise=0.6)

    @jax.jit
    def traced(groups):
        fn = RandomEffects(
            table.mean,
            table.design,
            groups,
            scale_tril=np.array(FACTORS["full"]),
            noise=table.noises["rows"],
        )
        drawn = fn.sample(jax.random.key(3), (4000,))
        return fn.log_prob(table.y), fn.by_unit(table.y), fn.variance, drawn

    value, each, variance, drawn = traced(groups)
    kept = groups.codes >= 0
    cov = dense_covariance(
        table.design * kept[:, None],
        np.maximum(groups.codes, 0),
        np.array(FACTORS["full"]),
        table.noises["rows"],
    )
    expected = multivariate_normal(table.mean, cov).logpdf(table.y)
    np.testing.assert_allclose(value, expected, atol=1e-10)
    own = multivariate_normal(table.mean[kept], cov[np.ix_(kept, kept)]).logpdf(table.y[kept])
    np.testing.assert_allclose(each.sum(), own, atol=1e-10)
    np.testing.assert_allclose(variance, np.diag(cov), atol=1e-12)
    np.testing.assert_allclose(np.var(drawn, axis=0) / variance, 1.0, atol=4 * np.sqrt(2 / 4000))


def test_spare_groups_add_nothing(table):
    groups = jax.tree.unflatten(jax.tree.structure(Groups(np.arange(7))), [CODES])
    assert groups.num_groups == 7
    fn = RandomEffects(
        table.mean, table.design, groups, scale_tril=np.array(FACTORS["full"]), noise=0.6
    )
    log_prob, terms = jax.jit(lambda y: (fn.log_prob(y), fn.by_unit(y)))(table.y)
    np.testing.assert_allclose(log_prob, dense_density(table, "one"), atol=1e-12)
    np.testing.assert_allclose(terms[4:], 0.0, atol=1e-14)


def test_refusals(table):
    fn, good = build(table), {"scale_tril": np.eye(2), "noise": 1.0}
    with pytest.raises(ValueError, match="use jax.vmap"):
        RandomEffects(table.mean[None], table.design, table.groups, **good)
    with pytest.raises(ValueError, match=r"write design\[:, None\]"):
        RandomEffects(table.mean, table.design[:, 0], table.groups, **good)
    with pytest.raises(ValueError, match=r"scale_tril has shape \(2, 2\), expected \(1, 1\)"):
        RandomEffects(table.mean, table.design[:, :1], table.groups, **good)
    with pytest.raises(ValueError, match="noise has shape"):
        RandomEffects(table.mean, table.design, table.groups, **good | {"noise": np.ones(3)})
    with pytest.raises(ValueError, match="groups have 3 rows, the mean has 11"):
        RandomEffects(table.mean, table.design, Groups(np.arange(3)), **good)
    with pytest.raises(ValueError, match="use jax.vmap"):
        fn.log_prob(np.tile(table.y, (11, 1)))
