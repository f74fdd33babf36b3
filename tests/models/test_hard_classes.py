"""Components of one class each."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from sidebayes.guides.moe import _switched, class_purity
from sidebayes.models.blocks.classes.class_mixture import ClassMixture
from sidebayes.models.blocks.classes.statements import stated_classes
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

import sidebayes as sb

IRIS = sb.load_dataset("iris")
KNOWN = np.where(np.arange(150) % 10 == 0, IRIS.labels, -1)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def fit():
    engine = sb.HardClasses(num_restarts=3)
    options = {"num_clusters": 4, "num_classes": 3, "progress": False}
    return sb.fit("moe", IRIS.x, KNOWN, engine=engine, **options)


def test_each_component_has_one_class_and_each_class_a_component(fit):
    table = fit.params["class_table"]
    np.testing.assert_allclose(table.max(axis=1), 1.0)
    assert set(table.argmax(axis=1)) == {0, 1, 2}
    gains = np.diff(fit.objective, axis=1)
    assert np.nanmin(gains) >= -1e-8 * np.nanmax(np.abs(fit.objective))
    assert (fit.classes()["class"] == IRIS.labels).mean() > 0.9
    told = KNOWN >= 0
    np.testing.assert_array_equal(fit.classes()["class"][told], KNOWN[told])


def test_switches_are_the_best_of_each_component():
    """Against the likelihood with every class in turn, and no class left without a component."""
    rng = np.random.default_rng(0)
    x, known = rng.normal(size=30), rng.integers(-1, 2, 30)
    labels = LinkedCategorical(jnp.log(jnp.asarray([0.5, 0.3, 0.2])), as_label_graph(None, 30))
    density = dist.Normal(jnp.asarray([-1.0, 0.0, 1.0]), 1.0)
    stated = stated_classes(PartialLabels(known), 2)

    def mixture(classes):
        table = jnp.maximum(jnp.eye(2)[jnp.asarray(classes)], 1e-300)
        return ClassMixture(labels, density, table, stated)

    for start in ([0, 1, 0], [1, 0, 0], [1, 1, 0]):
        now = list(start)
        for cluster in range(3):
            choices = [[*now[:cluster], c, *now[cluster + 1 :]] for c in (0, 1)]
            covering = [one for one in choices if set(one) == {0, 1}]
            now = max(covering, key=lambda one: float(mixture(one).log_prob(jnp.asarray(x))))
        found = _switched(mixture(start), jnp.asarray(x))
        np.testing.assert_array_equal(found.argmax(axis=1), now)


def test_too_few_components_are_refused():
    with pytest.raises(ValueError, match="2 components cannot have 3 classes"):
        sb.fit(
            "moe",
            IRIS.x,
            KNOWN,
            num_clusters=2,
            num_classes=3,
            engine="hard_classes",
            progress=False,
        )


@pytest.mark.slow
def test_models_without_a_table_are_refused():
    def plain(x, *, num_clusters):
        from sidebayes.models.gmm import gmm

        gmm(x, num_clusters=num_clusters)

    with pytest.raises(ValueError, match="needs a class table"):
        sb.fit(plain, IRIS.x, num_clusters=2, engine=sb.HardClasses(), progress=False)


@pytest.mark.slow
def test_purity_of_iris():
    """Check R11: three full Gaussians without labels."""
    fit = sb.fit("gmm", IRIS.x, num_clusters=3, prior="flat", progress=False)
    assert class_purity(fit.responsibilities(), IRIS.labels) == pytest.approx(0.963, abs=0.02)
    assert class_purity(np.ones((4, 1)), np.array([0, 0, 0, 1])) == 0.75
