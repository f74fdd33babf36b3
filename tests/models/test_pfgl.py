"""Prototypes of classes within components: law, limits, growth, engines, bad input."""

import json
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed
from scipy.special import logsumexp, softmax
from scipy.stats import norm
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.pfgl import (
    _classes_of_components,
    _Data,
    _log_likelihood,
    grown_prototypes,
    matched_scales,
    prototype_code_length,
)
from sidebayes.models.blocks.classes.class_mixture import ClassMixture
from sidebayes.models.blocks.classes.prototype_block import PrototypeSites
from sidebayes.models.blocks.classes.prototypes import PrototypeMixture, Prototypes
from sidebayes.models.blocks.classes.stated import stated_classes
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.pfgl import pfgl

import sidebayes as sb
from tests.support.classes import some_known, split2d, xor2d

RNG = np.random.default_rng(1)
NUM_POINTS, NUM_CLASSES = 6, 3
X = RNG.normal(size=(NUM_POINTS, 2)) + 5.0
KNOWN = PartialLabels(np.array([0, -1, 2, 1, -1, 0]))
POINTS = RNG.normal(size=(5, 2)) + 5.0
CLUSTERS, CLASSES = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 0, 1])
SCALE = np.array([0.7, 0.2])
WEIGHTS, MEANS = np.array([0.4, 0.6]), np.array([[5.0, 4.0], [4.5, 6.0]])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def prototypes(scale=SCALE, smoothing=0.0, points=POINTS, classes=CLASSES):
    table = jnp.asarray([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]])
    given = (jnp.asarray(v) for v in (points, classes, CLUSTERS, scale))
    return Prototypes(*given, table, smoothing)


def mixture(found, known=KNOWN, noise=0.1):
    labels = LinkedCategorical(jnp.log(WEIGHTS), as_label_graph(None, NUM_POINTS))
    stated = stated_classes(known, NUM_CLASSES, noise)
    density = dist.Normal(jnp.asarray(MEANS), 1.0).to_event(1)
    return PrototypeMixture(labels, density, found, stated)


def log_normals():
    """Log densities of rows in the components, shape (points, clusters)."""
    return norm.logpdf(X[:, None], MEANS).sum(axis=2)


def by_hand(scale=SCALE, smoothing=0.0):
    """P(class | component, x) of every row, shape (points, clusters, classes); eq. 2.17 written out."""
    out = np.zeros((NUM_POINTS, 2, NUM_CLASSES))
    table = np.asarray(prototypes().table)
    for i, x in enumerate(X):
        for j in (0, 1):
            kernel = np.exp(-scale[j] * ((POINTS - x) ** 2).sum(axis=1)) * (j == CLUSTERS)
            for c in range(NUM_CLASSES):
                same = kernel[c == CLASSES].sum()
                extra = smoothing * kernel.max()
                out[i, j, c] = (same + extra * table[j, c]) / (kernel.sum() + extra)
    return out


@pytest.mark.parametrize("smoothing", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_law_is_that_of_the_thesis(smoothing):
    """Density, posteriors and classes against sums over components and classes."""
    law = by_hand(smoothing=smoothing)
    joint = np.exp(log_normals()) * WEIGHTS
    told = np.asarray(KNOWN.classes) >= 0
    says = np.asarray(stated_classes(KNOWN, NUM_CLASSES, 0.1))
    assert (says[~told] == 1).all()
    full = joint[:, :, None] * law * says[:, None]

    @jax.jit
    def described(value):
        fn = mixture(prototypes(smoothing=smoothing))
        slope = jax.grad(fn.log_partition)(fn.log_factors(value))
        member, classes = fn.responsibilities(value), fn.class_probabilities(value)
        return fn.by_unit(value), member, classes, slope["log_side"]

    terms, member, classes, slope = described(X)
    total = full.sum(axis=(1, 2))
    np.testing.assert_allclose(terms, np.log(total), rtol=1e-12)
    np.testing.assert_allclose(member, full.sum(axis=2) / total[:, None], atol=1e-12)
    np.testing.assert_allclose(classes, full.sum(axis=1) / total[:, None], atol=1e-12)
    np.testing.assert_allclose(slope, full.sum(axis=2) / total[:, None], atol=1e-12)


def test_slopes_are_those_of_the_thesis():
    """Check R6: slopes in prototypes and scales by the printed formulas."""

    @jax.jit
    def slopes(points, scale):
        def density(points, scale):
            fn, value = mixture(prototypes(scale, points=points), noise=0.0), jnp.asarray(X)
            return fn.log_prob(value), fn.responsibilities(value)

        return jax.grad(density, argnums=(0, 1), has_aux=True)(points, scale)

    (d_points, d_scale), member = slopes(POINTS, SCALE)
    member, classes = np.asarray(member), KNOWN.classes
    for j in (0, 1):
        own = np.flatnonzero(j == CLUSTERS)
        apart = ((X[:, None] - POINTS[own]) ** 2).sum(axis=2)
        prob, of_scale = softmax(-SCALE[j] * apart, axis=1), 0.0
        of_points = np.zeros((len(own), 2))
        for i in np.flatnonzero(classes >= 0):
            right = CLASSES[own] == classes[i]
            if not right.any():
                continue  # the component has no prototype of this class
            same = right * prob[i] / (right @ prob[i])
            of_scale += member[i, j] * (prob[i] @ apart[i] - same @ apart[i])
            pull = (same - prob[i])[:, None] * (X[i] - POINTS[own])
            of_points += 2 * SCALE[j] * member[i, j] * pull
        np.testing.assert_allclose(d_points[own], of_points, atol=1e-10)
        np.testing.assert_allclose(d_scale[j], of_scale, atol=1e-10)


def test_limits():
    """Check R7: one class per component, scales of zero, and the nearest prototype."""
    labels = LinkedCategorical(jnp.log(WEIGHTS), as_label_graph(None, NUM_POINTS))
    density = dist.Normal(jnp.asarray(MEANS), 1.0).to_event(1)
    says = stated_classes(KNOWN, NUM_CLASSES, 0.1)

    @jax.jit
    def by_prototypes(scale, classes, value):
        return mixture(prototypes(scale, classes=classes)).log_prob(value)

    @jax.jit
    def by_table(table, value):
        return ClassMixture(labels, density, table, says).log_prob(value)

    hard = by_prototypes(SCALE, np.array([2, 2, 2, 0, 0]), X)
    other = by_table(np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), X)
    np.testing.assert_allclose(hard, other, rtol=1e-12)
    flat = by_prototypes(np.full(2, 1e-12), CLASSES, X)
    other = by_table(np.array([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]]), X)
    np.testing.assert_allclose(flat, other, rtol=1e-9)
    member = np.eye(2)[[0] * NUM_POINTS]
    sharp = jax.jit(lambda x, m: prototypes(np.full(2, 1e6)).class_probabilities(x, m))(X, member)
    nearest = ((X[:, None] - POINTS[:3]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(sharp.argmax(axis=1), CLASSES[:3][nearest])
    np.testing.assert_allclose(sharp.max(axis=1), 1.0, atol=1e-9)


def test_scales_match_entropies():
    """Check R8: 1 / (2 sigma^2) for equal weights, no rise in the scale, and prototypes that coincide."""
    x = RNG.normal(size=(400, 2))
    x = np.concatenate([x, -x])  # symmetric, so that the weights are equal
    given = jnp.asarray([[1.0, 0.0], [-1.0, 0.0]]), jnp.arange(2), jnp.zeros(2, int)
    found = Prototypes(*given, jnp.ones(1), jnp.zeros((1, 2)))

    @jax.jit
    def both(x, found):
        return matched_scales(x, jnp.ones((800, 1)), found), -found.log_kernels(x)

    (scale,), apart = map(np.asarray, both(x, found))
    variance = 1.0
    for _ in range(200):
        prob = softmax(-apart / (2 * variance), axis=1)
        variance = (prob * apart).sum() / 800 / 2
    assert scale == pytest.approx(1 / (2 * variance), rel=1e-6)

    def entropy(a):
        prob = softmax(-a * apart, axis=1)
        return -(prob * np.log(np.maximum(prob, 1e-300))).sum()

    assert np.diff([entropy(a) for a in np.geomspace(1e-3, 1e3, 30)]).max() <= 1e-9
    same = found._replace(points=jnp.ones((2, 2)))
    assert np.isfinite(both(x, same)[0]).all()


@pytest.fixture(scope="module")
def grown():
    rng = np.random.default_rng(0)
    x, classes = split2d(rng, 300)
    known = some_known(rng, classes, 40)
    options = {"engine": sb.EM(num_restarts=1), "num_clusters": 2, "num_classes": 2}
    base = sb.fit("moe", x, known, progress=False, **options)
    return base, sb.grow_prototypes(x, known, base=base, progress=False, **options)


@pytest.mark.slow
def test_growth_finds_a_border_within_a_component(grown):
    """Check R9: a table of classes cannot tell the two classes of one component, prototypes do."""
    base, fit = grown
    new, classes = split2d(np.random.default_rng(5), 1000)
    assert 0.2 < (base.classes(new)["class"] != classes).mean() < 0.3
    assert (fit.classes(new)["class"] != classes).mean() <= 0.05
    counts = sorted(np.bincount([j for j, _ in fit.options["prototypes"]]))
    assert counts == [1, 2]
    path = json.loads(fit.tree["fit_info"].attrs["growth"])
    assert all(one[1] > two[1] for one, two in pairwise(path))
    assert np.diff(fit.objective[0]).min() >= -1e-8 * abs(fit.objective.max())


@pytest.mark.slow
def test_prototypes_tie_clusters_to_their_numbers(grown):
    """Clusters with prototypes of their own are never renumbered."""
    _, fit = grown
    assert fit.relabelled[1] == 1.0
    site = trace_model(fit.run.problem, fit.params)["x"]["fn"]
    prob = site.class_probabilities(fit.run.problem.args[0])
    np.testing.assert_allclose(fit.class_probabilities(), prob, atol=1e-12)


def test_code_length_is_that_of_the_thesis():
    expected = (
        10.0 + (1 + 2 * 5) * np.log(50) / 2 + np.log(8) + 3 * (np.log(8) + np.log(4) + np.log(2))
    )
    assert prototype_code_length(-10.0, 50, 8, 2, 4, 2, 5, 3) == pytest.approx(expected)


@pytest.mark.slow
def test_crossed_classes_stall_the_greedy_rule():
    """Check R10 allows it: growth by single insertions does not solve XOR."""
    rng = np.random.default_rng(0)
    x, classes = xor2d(rng, 400)
    known = some_known(rng, classes, 160)
    options = {"num_clusters": 2, "num_classes": 2, "progress": False}
    fit = sb.grow_prototypes(x, known, **options)
    assert len(fit.options["prototypes"]) <= 6


@pytest.mark.parametrize("known", [[0, -1, 1, -1], [[True, False, False]] + [[True] * 3] * 3])
def test_labelled_rows_whose_class_no_prototype_has_are_refused(known):
    x = np.array([[0.0], [1.0], [2.0], [5.0]])
    lacking = ((0, 1), (0, 2))

    def sampled(prototypes, num_clusters=1, **options):
        given = {"num_clusters": num_clusters, "num_classes": 3, "prototypes": prototypes}
        told = sb.PartialLabels(np.asarray(known))
        jax.eval_shape(lambda: seed(pfgl, 0)(x, told, **given, **options))

    with pytest.raises(ValueError, match="1 row: 0.*have the classes 1, 2; .*label_noise"):
        sampled(lacking)
    sampled(((0, 1), (0, 0)))
    sampled(lacking, label_noise=0.1)
    sampled(lacking, num_clusters=2)


def test_growth_takes_other_numbers_of_labelled_rows_by_the_same_programs():
    """Rows that state nothing fill the arrays up, and count for nothing."""
    found, base, shapes = prototypes(), log_normals() + np.log(WEIGHTS), []
    for told in (KNOWN.values >= 0, KNOWN.values == 0):
        known = PartialLabels(np.where(told, KNOWN.values, -1))
        stated = np.asarray(stated_classes(known, NUM_CLASSES, 0.1))
        data = _Data.of(X, base, stated, None)
        shapes.append([leaf.shape for leaf in data])
        own = base[told] + found.log_told(jnp.asarray(X[told]), jnp.asarray(stated[told]))
        expected = logsumexp(own, axis=1).sum() + logsumexp(base[~told], axis=1).sum()
        np.testing.assert_allclose(_log_likelihood(data, found), expected, rtol=1e-12)
        count, mean, _ = _classes_of_components(data)
        share = (
            softmax(base[told], axis=1)[:, :, None]
            * (stated / stated.sum(1)[:, None])[told][:, None]
        )
        np.testing.assert_allclose(np.exp(count), share.sum(axis=0), rtol=1e-10)
        weighted = np.einsum("nkc,nd->kcd", share / share.sum(axis=0), X[told])
        np.testing.assert_allclose(mean, weighted, rtol=1e-10)
    assert shapes[0] == shapes[1]


def test_growth_needs_a_class():
    with pytest.raises(ValueError, match="no class is known"):
        grown_prototypes(X, np.zeros((NUM_POINTS, 2)), np.ones((NUM_POINTS, 2)), per_component=4)


def test_without_labels_prototypes_cost_nothing():
    """Check R3: the density is that of the mixture."""
    found = jax.jit(lambda x: mixture(prototypes(), None).log_prob(x))(X)
    joint = log_normals() + np.log(WEIGHTS)
    np.testing.assert_allclose(found, np.log(np.exp(joint).sum(axis=1)).sum(), rtol=1e-12)


@pytest.mark.slow
def test_rows_and_classes_are_simulated():
    prior = sb.GaussianPrior(np.zeros(2), 0.1, 5.0, np.eye(2))
    options = {"num_clusters": 2, "num_classes": 2, "prototypes": ((0, 0), (1, 0), (1, 1))}
    problem = Problem(pfgl, (), {"x": None, "prior": prior, "num_points": 20, **options})
    from numpyro import handlers

    sites = handlers.trace(handlers.seed(problem.model, 0)).get_trace(**problem.kwargs)
    assert sites["x"]["value"].shape == (20, 2)
    assert set(np.unique(sites["known"]["value"])) <= {0, 1}
    assert sites["prototype"]["value"].shape == (3, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        sb.MAP(num_restarts=1, max_steps=30),
        sb.Laplace(num_restarts=2, num_draws=100),
        sb.SVI(guide="mean_field", num_restarts=1, num_steps=200, num_draws=100),
        sb.NUTS(num_warmup=10, num_samples=10, num_chains=1, max_tree_depth=3),
        sb.CoordinateAscent(num_restarts=1, max_steps=5, num_draws=20),
    ],
    ids=lambda engine: engine.name,
)
def test_engines(engine):
    rng = np.random.default_rng(0)
    x, classes = split2d(rng, 40)
    options = {"num_clusters": 2, "num_classes": 2, "prototypes": ((0, 0), (0, 1), (1, 0), (1, 1))}
    known = some_known(rng, classes, 20)
    fit = sb.fit("pfgl", x, known, engine=engine, progress=False, **options)
    assert np.isfinite(fit.tree["sample_stats"]["lp"]).all()
    np.testing.assert_allclose(fit.class_probabilities(x[:5]).sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("prototypes", "message"),
    [
        (((0, 0), (1, 2)), r"prototypes\[1\] is of class 2; expected 0..1"),
        (((0, 0), (2, 0)), "of component 2"),
        ("many", "expected \\(component, class\\)"),
    ],
)
def test_bad_input_is_refused(prototypes, message):
    known = np.where(np.arange(NUM_POINTS) == 0, 0, -1)
    with pytest.raises((TypeError, ValueError), match=message):
        sb.fit(
            "pfgl", X, known, num_clusters=2, num_classes=2, prototypes=prototypes, progress=False
        )


def test_prototypes_of_a_class_that_no_row_has_are_said_to_be_arbitrary():
    known = sb.PartialLabels(np.where(np.arange(NUM_POINTS) < 2, 0, -1))

    def said(classes):
        block = PrototypeSites(X, 2, 3, np.array([0, 1]), np.array(classes), "flat", known)
        return block.remark({})

    assert "have class 2 (numbered from 0), so that its prototypes" in said([0, 2])
    assert said([0, 0]) is None


@pytest.mark.slow
def test_a_component_without_labels_has_the_shares_of_the_classes():
    """Three groups, of one of which no class is known: there the classes are as frequent as elsewhere."""
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2], 30)
    x = np.array([(0.0, 0.0), (8.0, 0.0), (0.0, 8.0)])[group] + rng.normal(size=(90, 2))
    known = np.full(90, -1)
    known[:9], known[30:33] = 0, 1  # nine rows of one class, three of the other
    fit = sb.grow_prototypes(x, known, num_clusters=3, num_classes=2, progress=False)
    prob = fit.class_probabilities()
    np.testing.assert_allclose(prob[group == 2], np.tile([10 / 14, 4 / 14], (30, 1)), atol=0.01)
    np.testing.assert_allclose(fit.class_probabilities(x[60:62]), prob[60:62], atol=0.01)
    assert prob[group == 0, 0].min() > 0.9
    assert prob[group == 1, 1].min() > 0.9
    assert len(fit.options["prototypes"]) == 2
    assert fit.tree["fit_info"].attrs["began_at"] == "moe"
    assert fit.verdict[0] == "good"
