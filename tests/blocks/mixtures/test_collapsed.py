"""Latent variables that are integrated out: one protocol, held against enumeration."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import t
from sidebayes.models.blocks.independent_mixture import IndependentMixture, as_collapsed
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from tests.reference import brute_force

RNG = np.random.default_rng(11)
NUM_POINTS, NUM_CLUSTERS = 5, 3
X = RNG.normal(size=NUM_POINTS)
LOC = np.array([-1.0, 0.2, 1.5])
LOG_WEIGHTS = np.log([0.5, 0.3, 0.2])
LINKS = Links([(0, 1), (1, 2), (0, 2), (2, 3)], [1.3, -0.8, np.inf, -np.inf], NUM_POINTS)
GRAPH = LabelGraph.build(LINKS, NUM_POINTS)
READINGS = ("field", "relation")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def normal_logs(x, loc, scale=1.0):
    return -0.5 * ((x - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)


def same_structure(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.map(jnp.shape, one) == jax.tree.map(jnp.shape, other)


def everything(fn, value):
    """What an observed site with latent variables answers, as one program."""

    @jax.jit
    def found(value):
        factors = fn.log_factors(value)
        log_z, slope = jax.value_and_grad(fn.log_partition)(factors)
        return {
            "log_prob": fn.log_prob(value),
            "by_unit": fn.by_unit(value),
            "posterior": fn.posterior(value),
            "summaries": fn.summaries(value),
            "mode": fn.mode(value),
            "factors": factors,
            "log_partition": log_z,
            "slope": slope,
            "responsibilities": fn.responsibilities(value),
        }

    return SimpleNamespace(**jax.device_get(found(value)))


def mean_statistic(fn, value, number=4000):
    """Statistics of latent variables drawn given the data, averaged."""
    keys = jax.random.split(jax.random.key(3), number)

    @jax.jit
    def average(keys):
        found = jax.vmap(lambda key: fn.statistic(fn.draw(key, value)))(keys)
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), found)

    return average(keys)


def agrees(drawn, slope, number=4000):
    """Means of draws are the slope but for five standard errors of counts of up to `NUM_POINTS`."""
    same_structure(drawn, slope)
    error = 5 * NUM_POINTS / 2 / np.sqrt(number)
    for name, expected in slope.items():
        np.testing.assert_allclose(drawn[name], expected, atol=error, err_msg=name)


# NumPyro's own mixtures


def shared(x):
    """One vector of weights, one density for all."""
    del x
    weights = dist.Categorical(logits=LOG_WEIGHTS + 0.7)  # logits need not be normalised
    return dist.MixtureSameFamily(weights, dist.Normal(LOC, 0.8))


def by_point(x):
    """Weights that differ between points."""
    logits = np.outer(x, [0.3, -0.2, 1.0])
    locs = np.broadcast_to(LOC, logits.shape)
    return dist.MixtureSameFamily(dist.Categorical(logits=logits), dist.Normal(locs, 0.8))


def general(x):
    """Components of different families."""
    del x
    parts = [dist.Normal(LOC[0], 0.8), dist.StudentT(4.0, LOC[1], 0.5), dist.Normal(LOC[2], 2.0)]
    return dist.MixtureGeneral(dist.Categorical(logits=LOG_WEIGHTS), parts)


def joint_of(make, x):
    """Log weights plus log densities, written out."""
    densities = normal_logs(x[:, None], LOC, 0.8)
    if make is general:
        student = t(4.0, LOC[1], 0.5).logpdf(x)
        last = normal_logs(x, LOC[2], 2.0)
        densities = np.stack([densities[:, 0], student, last], axis=1)
    if make is by_point:
        return densities + log_softmax(np.outer(x, [0.3, -0.2, 1.0]), axis=1)
    return densities + LOG_WEIGHTS


@pytest.mark.parametrize("make", [shared, by_point, general])
def test_mixtures_of_numpyro_keep_the_protocol(make):
    """Density, terms, labels and slope against the weighted densities written out."""
    fn = as_collapsed(make(X), X)
    assert isinstance(fn, IndependentMixture)
    assert isinstance(fn, FiniteMixture)
    assert (fn.num_units, fn.num_clusters) == (NUM_POINTS, NUM_CLUSTERS)
    joint, value = joint_of(make, X), jnp.asarray(X)
    prob = softmax(joint, axis=1)
    theirs = jax.jit(lambda x: make(X).log_prob(x))(value)
    np.testing.assert_allclose(theirs, logsumexp(joint, axis=1), rtol=1e-12)
    ours = everything(fn, value)
    np.testing.assert_allclose(ours.log_prob, theirs.sum(), rtol=1e-12)
    np.testing.assert_allclose(ours.by_unit, theirs, rtol=1e-12)
    np.testing.assert_allclose(ours.posterior["responsibilities"].values, prob, rtol=1e-10)
    np.testing.assert_array_equal(ours.mode, prob.argmax(axis=1))
    slope = ours.slope
    np.testing.assert_allclose(slope["unary"], prob, rtol=1e-10)
    if make is by_point:
        np.testing.assert_allclose(slope["log_weights"], prob, rtol=1e-10)
    else:
        np.testing.assert_allclose(slope["log_weights"], prob.sum(axis=0), rtol=1e-10)
        np.testing.assert_allclose(ours.factors["log_weights"], LOG_WEIGHTS, rtol=1e-12)
    same_structure(jax.eval_shape(fn.statistic, ours.mode), ours.factors)
    agrees(mean_statistic(fn, value), slope)


@pytest.mark.parametrize("make", [shared, by_point, general])
def test_mixtures_pass_through_compiled_code(make):
    fn = as_collapsed(make(X), X)
    value = jnp.asarray(X)
    again = jax.jit(lambda mixture: jax.tree.map(lambda leaf: 1.0 * leaf, mixture))(fn)
    assert (again.num_units, type(again)) == (NUM_POINTS, IndependentMixture)
    density = jax.jit(lambda mixture, x: mixture.log_prob(x))
    expected = logsumexp(joint_of(make, X), axis=1).sum()
    for mixture in (fn, again):
        np.testing.assert_allclose(density(mixture, value), expected, rtol=1e-12)


def test_points_are_counted_in_plates_and_of_several_features():
    def model(x):
        parts = dist.Normal(np.stack([LOC, -LOC], axis=1), 0.8).to_event(1)
        with numpyro.plate("points", len(x)):
            weights = dist.Categorical(logits=LOG_WEIGHTS)
            numpyro.sample("x", dist.MixtureSameFamily(weights, parts), obs=x)

    @jax.jit
    def densities(x):
        theirs = handlers.trace(model).get_trace(x)["x"]["fn"]
        fn = as_collapsed(theirs, x)
        assert fn.num_units == 7
        return fn.by_unit(x), fn.log_prob(x), theirs.log_prob(x).sum()

    x = RNG.normal(size=(7, 2))
    by_unit, log_prob, expected = densities(x)
    joint = normal_logs(x[:, :1], LOC, 0.8) + normal_logs(x[:, 1:], -LOC, 0.8) + LOG_WEIGHTS
    np.testing.assert_allclose(by_unit, logsumexp(joint, axis=1), rtol=1e-12)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-12)


def test_what_integrates_nothing_out_is_left_alone():
    assert as_collapsed(dist.Normal(0.0, 1.0), X) is None
    linked = LinkedMixture(LinkedCategorical(LOG_WEIGHTS, GRAPH), dist.Normal(LOC, 1.0))
    assert as_collapsed(linked, X) is linked


# Linked labels


def normaliser(log_weights, reading):
    """What a field or statements must be divided by, in logs."""
    if reading == "relation":
        return np.logaddexp(0.0, LINKS.weights[~LINKS.hard]).sum()
    blank = np.tile(log_weights, (NUM_POINTS, 1))
    return brute_force.infer(blank, LINKS.pairs, LINKS.weights)[0]


SOFT_SIDE = np.log(RNG.dirichlet(np.ones(NUM_CLUSTERS), NUM_POINTS))
KNOWN = PartialLabels(np.array([-1, 2, -1, 0, 1]))
with np.errstate(divide="ignore"):
    SURE_SIDE = np.log(KNOWN.admissible(NUM_CLUSTERS).astype(float))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("log_side", [SOFT_SIDE, SURE_SIDE], ids=["soft", "sure"])
def test_side_factors_count_for_every_label(log_side, reading):
    """Against all labelings."""
    labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), GRAPH, reading=reading)
    fn = LinkedMixture(labels, dist.Normal(LOC, 1.0), jnp.asarray(log_side))
    total = normal_logs(X[:, None], LOC) + LOG_WEIGHTS + log_side
    log_z, prob, agree, best, _ = brute_force.infer(total, LINKS.pairs, LINKS.weights)
    value, expected = jnp.asarray(X), log_z - normaliser(LOG_WEIGHTS, reading)
    ours = everything(fn, value)
    np.testing.assert_allclose(ours.log_prob, expected, rtol=1e-10)
    np.testing.assert_allclose(ours.by_unit[: fn.num_units].sum(), expected, rtol=1e-10)
    np.testing.assert_allclose(ours.responsibilities, prob, atol=1e-10)
    summaries, terms = ours.summaries
    np.testing.assert_allclose(summaries["responsibilities"].values, prob, atol=1e-10)
    np.testing.assert_allclose(terms[: fn.num_units].sum(), expected, rtol=1e-10)
    np.testing.assert_array_equal(ours.mode, best)
    slope = ours.slope
    for name in ("unary", "log_side"):
        np.testing.assert_allclose(slope[name], prob, atol=1e-10)
    np.testing.assert_allclose(slope["log_weights"], prob.sum(axis=0), atol=1e-10)
    soft = ~LINKS.hard
    np.testing.assert_allclose(slope["pair_weights"][soft], agree[soft], atol=1e-10)
    agrees(mean_statistic(fn, value), slope)
    without = LinkedMixture(labels, dist.Normal(LOC, 1.0))
    assert abs(jax.jit(without.log_prob)(value) - expected) > 0.1


def test_silent_side_factors_change_nothing():
    labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), GRAPH)
    plain = LinkedMixture(labels, dist.Normal(LOC, 1.0))
    silent = LinkedMixture(labels, dist.Normal(LOC, 1.0), jnp.zeros((NUM_POINTS, NUM_CLUSTERS)))
    found, expected = jax.jit(lambda x: (silent.log_prob(x), plain.log_prob(x)))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    again = jax.jit(lambda fn: jax.tree.map(lambda leaf: leaf, fn))(silent)
    assert again.log_side.shape == (NUM_POINTS, NUM_CLUSTERS)


WITHIN = np.array([[0.6, 0.4], [0.9, 0.1], [0.25, 0.75]])
LOCS = np.array([[-2.0, -0.5], [0.1, 0.6], [1.0, 2.5]])


def enumerated(weight_per):
    """Expected statistics over all classes of the points and their components within."""
    logs = normal_logs(X[:, None, None], LOCS)
    state = np.array(list(product(range(6), repeat=NUM_POINTS)))
    z, c = state // 2, state % 2
    points = np.arange(NUM_POINTS)
    energy = logs[points, z, c].sum(axis=1) + np.log(WITHIN)[z, c].sum(axis=1)
    share = np.ones(NUM_POINTS)
    if weight_per == "chunklet":
        share[[0, 2]] = 0.5  # a hard must-link: its class is drawn once
    energy += LOG_WEIGHTS[z] @ share
    same = z[:, LINKS.pairs[:, 0]] == z[:, LINKS.pairs[:, 1]]
    for number, weight in enumerate(LINKS.weights):
        if np.isinf(weight):
            energy[same[:, number] != (weight > 0)] = -np.inf
        else:
            energy += weight * same[:, number]
    log_z = logsumexp(energy)
    prob = np.exp(energy - log_z)
    unary = np.zeros((NUM_POINTS, 3, 2))
    for point in points:
        np.add.at(unary[point], (z[:, point], c[:, point]), prob)
    counts = np.array([prob @ ((z == k) @ share) for k in range(3)])
    return log_z, unary, counts, prob @ same


@pytest.mark.parametrize("weight_per", ["point", "chunklet"])
def test_components_of_clusters_are_latent_too(weight_per):
    """Slope and draws of nested mixtures against all classes and components of all points."""
    log_z, unary, counts, agree = enumerated(weight_per)
    labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), GRAPH, weight_per=weight_per)
    nested = dist.MixtureSameFamily(dist.Categorical(probs=WITHIN), dist.Normal(LOCS, 1.0))
    fn, value = LinkedMixture(labels, nested), jnp.asarray(X)
    ours = everything(fn, value)
    np.testing.assert_allclose(ours.log_partition, log_z, rtol=1e-10)
    slope = ours.slope
    np.testing.assert_allclose(slope["unary"], unary, atol=1e-10)
    np.testing.assert_allclose(slope["log_within"], unary.sum(axis=0), atol=1e-10)
    np.testing.assert_allclose(slope["log_weights"], counts, atol=1e-10)
    soft = ~LINKS.hard
    np.testing.assert_allclose(slope["pair_weights"][soft], agree[soft], atol=1e-10)
    np.testing.assert_allclose(ours.responsibilities, unary.sum(axis=2), atol=1e-10)
    same_structure(slope, ours.factors)
    agrees(mean_statistic(fn, value), slope)


@pytest.mark.parametrize("within", [None, "shared", "by row"])
def test_rows_of_a_group_share_a_label(within):
    """Densities of rows, with parameters of their own, add up to those of their group."""
    codes = np.array([3, 0, 1, 4, 0, 2, 2, 4, 1, 3, 0])
    rows = RNG.normal(size=len(codes))
    groups = Groups(codes)
    locs = LOC + rows[:, None] ** 2
    logs = normal_logs(rows[:, None], locs)
    density = dist.Normal(locs, 1.0)
    if within is not None:
        locs = locs[:, :, None] + np.array([0.0, 1.0])
        probs = WITHIN if within == "shared" else RNG.dirichlet(np.ones(2), (len(codes), 3))
        logs = logsumexp(normal_logs(rows[:, None, None], locs) + np.log(probs), axis=2)
        density = dist.MixtureSameFamily(dist.Categorical(probs=probs), dist.Normal(locs, 1.0))
    total = np.tile(LOG_WEIGHTS, (NUM_POINTS, 1))
    np.add.at(total, codes, logs)
    log_z, prob, _, best, _ = brute_force.infer(total, LINKS.pairs, LINKS.weights)
    labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), GRAPH)
    fn = LinkedMixture(labels, density, groups=groups)
    value, expected = jnp.asarray(rows), log_z - normaliser(LOG_WEIGHTS, "field")
    ours = everything(fn, value)
    np.testing.assert_allclose(ours.log_prob, expected, rtol=1e-10)
    np.testing.assert_allclose(ours.responsibilities, prob, atol=1e-10)
    np.testing.assert_array_equal(ours.mode, best)
    slope = ours.slope
    member = slope["unary"] if within is None else slope["unary"].sum(axis=2)
    np.testing.assert_allclose(member, prob[codes], atol=1e-10)
    np.testing.assert_allclose(slope["log_weights"], prob.sum(axis=0), atol=1e-10)
    agrees(mean_statistic(fn, value), slope)


def test_shapes_that_do_not_fit_are_refused():
    labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), GRAPH)
    with pytest.raises(ValueError, match=r"batch shape \(2,\); expected \(3,\)"):
        LinkedMixture(labels, dist.Normal(LOC[:2], 1.0))
    with pytest.raises(ValueError, match=r"log_side has shape \(5, 2\); expected \(5, 3\)"):
        LinkedMixture(labels, dist.Normal(LOC, 1.0), jnp.zeros((5, 2)))
    with pytest.raises(ValueError, match="4 groups, and there are labels for 5 points"):
        LinkedMixture(labels, dist.Normal(LOC, 1.0), groups=Groups([0, 1, 2, 3, 3]))
