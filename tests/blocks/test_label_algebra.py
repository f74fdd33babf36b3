"""What engines ask of every mixture: units, links, parts of the data, names of axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.steps.batches import deal_batches
from sidebayes.models.blocks.classes.class_mixture import ClassMixture
from sidebayes.models.blocks.classes.neighbours import NeighbourMixture
from sidebayes.models.blocks.classes.prototypes import PrototypeMixture, Prototypes
from sidebayes.models.blocks.effects.densities.mixture import EffectsMixture
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.independent_mixture import IndependentMixture, as_collapsed
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.partitions.partitioned_mixture import PartitionedMixture
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links

RNG = np.random.default_rng(3)
SIZE = 12
LINKS = Links([(0, 1), (1, 2), (0, 2), (5, 6), (8, 3)], [1.0, -0.5, 0.8, 2.0, -1.0], SIZE)
GRAPH = LabelGraph.build(LINKS, SIZE, 3)
with jax.enable_x64(True):
    X = jnp.asarray(RNG.normal(size=(SIZE, 2)))
    LOC = jnp.asarray(RNG.normal(size=(3, 2)))
    LOG_WEIGHTS = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    CLASSES = jnp.asarray(RNG.dirichlet(np.ones(2), 3))
    STATED = jnp.where(jnp.arange(SIZE)[:, None] % 3 == 0, jnp.array([0.9, 0.1]), 1.0)
    LABELS = LinkedCategorical(LOG_WEIGHTS, GRAPH)
    PARTS = dist.Normal(LOC, 1.0).to_event(1)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def prototypes():
    return Prototypes(
        X[:4], jnp.array([0, 1, 0, 1]), jnp.array([0, 0, 1, 2]), jnp.ones(3), CLASSES, 0.1
    )


def effects_mixture():
    groups = Groups(np.arange(24) % SIZE)
    return EffectsMixture(
        LABELS, np.ones((24, 1)), np.ones((3, 1)), np.ones((24, 1)), groups,
        scale_tril=np.ones((3, 1, 1)), noise=np.ones((3, 1)),
    )  # fmt: skip


def partitioned():
    clusters = LinkedCategorical(jnp.zeros(2), GRAPH, reading="relation")
    return PartitionedMixture(clusters, PARTS, LOG_WEIGHTS, CLASSES)


KINDS = {
    "linked": lambda: LinkedMixture(LABELS, PARTS, jnp.log(RNG.dirichlet(np.ones(3), SIZE))),
    "classes": lambda: ClassMixture(LABELS, PARTS, CLASSES, STATED),
    "neighbours": lambda: NeighbourMixture(LABELS, PARTS, prototypes(), jnp.arange(SIZE) % 4 - 1),
    "prototypes": lambda: PrototypeMixture(LABELS, PARTS, prototypes(), STATED),
    "effects": effects_mixture,
    "partitioned": partitioned,
}


@pytest.mark.parametrize("kind", KINDS)
def test_units_are_what_links_connect(kind):
    fn = KINDS[kind]()
    units = fn.units()
    assert fn.links().num_links >= len(LINKS)
    assert (units.num_points, units.num_terms) == (SIZE, GRAPH.num_nodes)
    same = [(0, 1), (1, 2), (5, 6), (3, 8)]
    assert all(units.owner[i] == units.owner[j] for i, j in same)
    assert len(np.unique(units.owner)) == fn.num_units == SIZE - len(same)


def test_kinds_stand_beside_one_another():
    for kind in (EffectsMixture, PartitionedMixture, IndependentMixture):
        assert issubclass(kind, FiniteMixture)
        assert not issubclass(kind, LinkedMixture)
    assert not issubclass(RandomEffects, FiniteMixture)
    fn = as_collapsed(dist.MixtureSameFamily(dist.Categorical(logits=LOG_WEIGHTS), PARTS), X)
    assert fn.links() is None
    assert fn.units() == (SIZE, None, fn.num_units)
    groups = Groups(np.arange(6) % 3)
    effects = RandomEffects(np.zeros(6), np.ones((6, 1)), groups, scale_tril=np.eye(1), noise=1.0)
    assert (effects.links(), effects.units()) == (None, (3, None, 3))
    assert effects.take(deal_batches(GRAPH, 2, 0)) is None


@pytest.mark.parametrize("kind", ["linked", "classes", "neighbours", "prototypes"])
def test_parts_have_the_density_of_the_whole(kind):
    """Side information of the points goes along, each with its own."""
    fn = KINDS[kind]()
    batches = deal_batches(GRAPH, 3, seed=0)

    @jax.jit
    def term(batch):
        return fn.take(batch).log_prob(X[batch.rows])

    found = [term(batches.at(number)) for number in range(len(batches))]
    assert len(found) > 1
    whole = jax.jit(fn.log_prob)(X)
    np.testing.assert_allclose(sum(found), whole, rtol=1e-10)
    other = LabelGraph.build(LINKS.with_strength(0.1), SIZE, 3)
    tied = jax.jit(fn.tied_by(other).log_prob)(X)  # weights are the labels' own
    np.testing.assert_allclose(tied, whole, rtol=1e-10)


def test_links_of_a_partition_are_not_replaced():
    with pytest.raises(ValueError, match="links of a PartitionedMixture cannot be replaced"):
        partitioned().tied_by(GRAPH)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("linked", X, {"responsibilities": ("points", "clusters")}),
        ("partitioned", X, {"responsibilities": ("points", "clusters")}),
        (
            "effects",
            jnp.ones(24),
            {
                "responsibilities": ("points", "clusters"),
                "effects": ("points", "effect"),
                "effects_covariance": ("points", "effect", "effect_1"),
            },
        ),
    ],
)
def test_posteriors_have_named_axes(kind, value, wanted):
    """Through compiled code too, and the same where units are summed at once."""
    fn = KINDS[kind]()
    found, (again, _) = jax.jit(lambda v: (fn.posterior(v), fn.summaries(v)))(value)
    assert {name: one.dims for name, one in found.items()} == wanted
    for name, (dims, values) in found.items():
        assert len(dims) == values.ndim
        np.testing.assert_allclose(again[name].values, values, atol=1e-10)


@pytest.mark.parametrize("rows", [1, SIZE], ids=["of all", "of each"])
def test_weights_of_points_may_be_zero(rows):
    """A component of weight zero takes no part; weights of one row are those of all points."""
    probs = jnp.tile(jnp.array([0.7, 0.3, 0.0]), (rows, 1))
    locs = jnp.broadcast_to(LOC[:, 0], (rows, 3))
    mixture = dist.MixtureSameFamily(dist.Categorical(probs=probs), dist.Normal(locs, 1.0))
    fn, value = as_collapsed(mixture, X[:, 0]), X[:, 0]
    joint = dist.Normal(LOC[:2, 0], 1.0).log_prob(value[:, None]) + jnp.log(jnp.array([0.7, 0.3]))
    found = jax.jit(lambda v: (fn.log_prob(v), fn.by_unit(v), fn.responsibilities(v)))(value)
    np.testing.assert_allclose(found[0], jax.nn.logsumexp(joint, axis=1).sum(), rtol=1e-10)
    np.testing.assert_allclose(found[1][:SIZE], jax.nn.logsumexp(joint, axis=1), rtol=1e-10)
    np.testing.assert_allclose(found[2][:, :2], jax.nn.softmax(joint, axis=1), rtol=1e-10)
    np.testing.assert_allclose(found[2][:, 2], 0.0, atol=1e-10)
