"""Classes of components: sums over labels and classes held against enumeration, and their block."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import digamma, logsumexp
from scipy.stats import dirichlet, norm
from sidebayes.models.blocks.block import Observation
from sidebayes.models.blocks.classes.class_mixture import ClassMixture
from sidebayes.models.blocks.classes.class_table import ClassTable, class_table
from sidebayes.models.blocks.classes.stated import stated_classes
from sidebayes.models.blocks.components.gaussian_block import GaussianComponents
from sidebayes.models.blocks.components.gaussians.gaussian import Gaussian
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

RNG = np.random.default_rng(5)
NUM_POINTS, NUM_CLUSTERS, NUM_CLASSES = 5, 3, 4
X = RNG.normal(size=NUM_POINTS)
LOC = np.array([-1.0, 0.2, 1.5])
LOG_WEIGHTS = np.log([0.5, 0.3, 0.2])
TABLE = RNG.dirichlet(np.ones(NUM_CLASSES), NUM_CLUSTERS)
NO_LINKS = as_label_graph(None, NUM_POINTS)
LINKED = LabelGraph.build(Links([(0, 1), (1, 3)], [1.3, -np.inf], NUM_POINTS), NUM_POINTS)
ONE_EACH = PartialLabels(np.array([-1, 3, 0, 1, -1]))
MASKS = np.ones((NUM_POINTS, NUM_CLASSES), bool)
MASKS[1, :2], MASKS[2, 1:], MASKS[4, 3] = False, False, False
SEVERAL = PartialLabels(MASKS)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def mixture(known, noise=0.0, graph=NO_LINKS):
    labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), graph)
    stated = stated_classes(known, NUM_CLASSES, noise)
    return ClassMixture(labels, dist.Normal(jnp.asarray(LOC), 1.0), jnp.asarray(TABLE), stated)


def likelihood(known, noise):
    """P(statement | class), row by row as the docstring says; ones without a statement."""
    admitted = known.admissible(NUM_CLASSES)
    out = np.ones(admitted.shape)
    for row, mask in enumerate(admitted):
        size = mask.sum()
        if size < NUM_CLASSES:
            wrong = noise * size / (NUM_CLASSES - size)
            out[row] = np.where(mask, 1 - noise, wrong)
    return out


def enumerated(known, noise, graph):
    """Log density, labels, classes and counts of told classes, over all labels and classes."""
    says = likelihood(known, noise)
    told = says.min(axis=1) < 1
    label = np.array(list(product(range(NUM_CLUSTERS), repeat=NUM_POINTS)))
    unary = norm(LOC).logpdf(X[:, None]) + LOG_WEIGHTS
    points = np.arange(NUM_POINTS)
    tie, blank = np.zeros(len(label)), LOG_WEIGHTS[label].sum(axis=1)
    if graph is LINKED:
        tie = 1.3 * (label[:, 0] == label[:, 1])
        tie[label[:, 1] == label[:, 3]] = -np.inf
    share = TABLE[label] * says  # labelings, points, classes
    energy = unary[points, label].sum(axis=1) + tie
    energy = energy + np.log(share.sum(axis=2)).sum(axis=1)
    log_z, prob = logsumexp(energy), np.exp(energy - logsumexp(energy))
    within = share / share.sum(axis=2, keepdims=True)
    classes = np.einsum("s,spc->pc", prob, within)
    member = np.stack([prob @ (label == k) for k in range(NUM_CLUSTERS)], axis=1)
    counts = np.zeros_like(TABLE)
    for k in range(NUM_CLUSTERS):
        counts[k] = np.einsum("s,sp,spc->c", prob, (label == k) * told, within)
    return log_z - logsumexp(blank + tie), member, classes, counts


CASES = [
    pytest.param(ONE_EACH, 0.0, NO_LINKS, marks=pytest.mark.slow),
    pytest.param(SEVERAL, 0.0, NO_LINKS, marks=pytest.mark.slow),
    pytest.param(ONE_EACH, 0.2, NO_LINKS, marks=pytest.mark.slow),
    (SEVERAL, 0.2, LINKED),
]


@pytest.mark.parametrize(("known", "noise", "graph"), CASES)
def test_labels_and_classes_are_summed_out(known, noise, graph):
    """Density, responsibilities, classes, slope and draws against all labelings and classes."""
    log_z, member, classes, counts = enumerated(known, noise, graph)

    @jax.jit
    def ours(x):
        fn = mixture(known, noise, graph)
        whole = fn.log_prob(x), fn.by_unit(x).sum()
        slope = jax.grad(fn.log_partition)(fn.log_factors(x))
        return whole, fn.responsibilities(x), fn.class_probabilities(x), slope

    whole, found, found_classes, slope = jax.device_get(ours(X))
    np.testing.assert_allclose(whole, [log_z, log_z], rtol=1e-12)
    np.testing.assert_allclose(found, member, atol=1e-12)
    np.testing.assert_allclose(found_classes, classes, atol=1e-12)
    np.testing.assert_allclose(found_classes.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(slope["log_classes"], counts, atol=1e-12)
    np.testing.assert_allclose(slope["unary"], member, atol=1e-12)
    number = 4000

    @jax.jit
    def draws(x):
        fn, keys = mixture(known, noise, graph), jax.random.split(jax.random.key(3), number)
        return jax.vmap(lambda key: fn.statistic(fn.draw(key, x)))(keys)

    drawn = jax.device_get(draws(X))
    assert jax.tree.map(jnp.shape, slope) == jax.tree.map(lambda v: v.shape[1:], drawn)
    for name in ("unary", "log_classes", "log_weights"):
        error = 5 * drawn[name].std(axis=0) / np.sqrt(number) + 1e-12
        assert (np.abs(drawn[name].mean(axis=0) - slope[name]) < error).all(), name


def test_rows_without_a_class_are_those_of_the_mixture():
    """All unknown, nothing given, and masks of all classes: a plain mixture, and no counts."""
    nothing = PartialLabels(np.full(NUM_POINTS, -1)), PartialLabels(np.ones_like(MASKS)), None

    @jax.jit
    def without_classes(x):
        labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), NO_LINKS)
        plain = LinkedMixture(labels, dist.Normal(jnp.asarray(LOC), 1.0))
        return plain.log_prob(x), plain.responsibilities(x)

    def with_classes(x, known):
        fn = mixture(known, 0.1)
        slope = jax.grad(fn.log_partition)(fn.log_factors(x))
        return fn.log_prob(x), slope["log_classes"], fn.class_probabilities(x)

    log_prob, member = without_classes(X)
    for found in jax.jit(lambda x: [with_classes(x, known) for known in nothing])(X):
        np.testing.assert_allclose(found[0], log_prob, rtol=1e-14)
        np.testing.assert_array_equal(found[1], 0.0)
        np.testing.assert_allclose(found[2], np.asarray(member) @ TABLE, rtol=1e-12)


def test_one_pass_is_the_slope():
    """Moments and class counts in chunks of points against the general E-step."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    known = PartialLabels(np.where(rng.random(40) < 0.4, rng.integers(0, NUM_CLASSES, 40), -1))
    root = rng.normal(size=(NUM_CLUSTERS, 2, 4))
    tril = np.linalg.cholesky(root @ root.transpose(0, 2, 1))
    means = rng.normal(size=(NUM_CLUSTERS, 2))

    @jax.jit
    def both(x, means, tril):
        labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), as_label_graph(None, 40))
        stated = stated_classes(known, NUM_CLASSES, 0.1)
        fn = ClassMixture(labels, Gaussian(means, scale_tril=tril), jnp.asarray(TABLE), stated)
        block = GaussianComponents(NUM_CLUSTERS, 2, "full", None)
        block.location = means
        assert block.has_one_pass(fn)
        general, slope = jax.value_and_grad(fn.log_partition)(fn.log_factors(x))
        return block.one_pass(fn, x), general, slope, block.statistics(Observation(fn, x, slope))

    (log_z, found), general, slope, moments = both(x, means, tril)
    np.testing.assert_allclose(log_z, general, rtol=1e-12)
    np.testing.assert_allclose(found["log_classes"], slope["log_classes"], atol=1e-12)
    np.testing.assert_allclose(found["log_weights"], slope["log_weights"], atol=1e-10)
    for one, other in zip(found["moments"], moments, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


def test_full_conditional_of_the_table():
    """Mode, expectation and divergence of Dirichlets with counts added; each class its own prior."""
    prior, counts = np.array([0.5, 1.0, 2.0, 3.0]), RNG.gamma(2.0, size=TABLE.shape)
    after = prior + counts

    @jax.jit
    def ours(counts, table):
        block = ClassTable(NUM_CLASSES, jnp.asarray(prior))
        found = block.update(counts, ())
        nothing = block.update(jnp.zeros_like(counts), ())
        keys = jax.random.split(jax.random.key(0), 4000)
        drawn = jax.vmap(lambda key: block.draw(key, found)["class_table"])(keys)
        given = Observation(mixture(ONE_EACH), jnp.asarray(X), {})
        return {
            "mode": block.mode(found, {})["class_table"],
            "expected": block.expected_factors(found, given)["log_classes"],
            "density": block.log_density(found, {"class_table": table}),
            "divergences": (block.divergence(found), block.divergence(nothing)),
            "mean": drawn.mean(axis=0),
        }

    found = ours(counts, TABLE)
    raised = np.maximum(after - 1, 1e-10)
    mode = raised / raised.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["mode"], mode, rtol=1e-12)
    total = after.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["expected"], digamma(after) - digamma(total), rtol=1e-12)
    density = sum(dirichlet(a).logpdf(t) for a, t in zip(after, TABLE, strict=True))
    np.testing.assert_allclose(found["density"], density, rtol=1e-12)
    some, none = map(float, found["divergences"])
    assert some > 0
    assert none == pytest.approx(0.0)
    np.testing.assert_allclose(found["mean"], after / total, atol=0.02)


def test_statements_are_drawn_given_rows():
    """Told rows get classes by P(class | x), noise included; the others get -1."""
    one = np.array([-1, 2, 0, 1, -1])

    @jax.jit
    def ours(x):
        fn = mixture(None)
        law = fn.statements(x, ONE_EACH, 0.3)
        drawn = law.sample(jax.random.key(1), (4000,))
        return drawn, fn.class_probabilities(x), law.log_prob(jnp.asarray(one))

    drawn, prob, log_prob = jax.device_get(ours(X))
    told = np.array([1, 2, 3])
    assert (drawn[:, [0, 4]] == -1).all()
    shares = np.stack([(drawn[:, told] == c).mean(axis=0) for c in range(NUM_CLASSES)], axis=1)
    noisy = 0.7 * prob[told] + 0.1 * (1 - prob[told])
    np.testing.assert_allclose(shares, noisy, atol=0.03)
    expected = np.log(noisy[np.arange(3), one[told]]).sum()
    np.testing.assert_allclose(log_prob, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stated_classes(None, 0), "num_classes"),
        (lambda: stated_classes(None, 2, 0.5), "label_noise = 0.5"),
        (lambda: stated_classes(None, 2, -0.1), "label_noise = -0.1"),
        (lambda: stated_classes(PartialLabels([0, 2]), 2), "labels name class 2"),
        (lambda: class_table(2, 3, 0.0), "class_concentration = 0.0"),
        (lambda: class_table(2, 3, [1.0, 1.0]), "one for each of the 3 classes"),
        (
            lambda: ClassMixture(mixture(None).labels, dist.Normal(LOC, 1.0), jnp.ones((2, 4))),
            r"classes has shape \(2, 4\); expected \(3, num_classes\)",
        ),
        (
            lambda: ClassMixture(
                mixture(None).labels, dist.Normal(LOC, 1.0), jnp.asarray(TABLE), jnp.ones((5, 2))
            ),
            r"stated has shape \(5, 2\); expected \(5, 4\)",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_masks_never_speak_for_what_they_exclude():
    """Two of three classes are admitted: from an error rate of a third on, the third would be likelier."""
    mask = PartialLabels(np.array([[True, True, False], [True, True, True], [True, False, False]]))
    told = np.asarray(stated_classes(mask, 3, 0.33))
    assert told[0, 2] < told[0, 0]
    with pytest.raises(ValueError, match=r"known\[0\] admits 2 of 3 classes: from 0.333 on"):
        stated_classes(mask, 3, 0.34)
    stated_classes(PartialLabels(np.array([0, -1, 2])), 3, 0.5)
