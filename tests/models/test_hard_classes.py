"""Components of one class each."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.moe import _switched, class_purity
from sidebayes.models.blocks.classes.class_mixture import ClassMixture
from sidebayes.models.blocks.classes.stated import stated_classes
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.moe import moe

import sidebayes as sb
from tests.support.classes import some_known, split2d

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


def test_single_steps_keep_one_class_per_component(fit):
    engine, run = sb.HardClasses(num_restarts=1, max_steps=2, tol=0.0), fit.run
    with run.precision:
        found = engine.run(run.problem, progress=False)
        states = [engine.init(run.problem)]
        for _ in range(2):
            states.append(engine.step(run.problem, states[-1]))
    np.testing.assert_allclose([s.log_joint for s in states], found.objective[0], rtol=1e-9)
    np.testing.assert_allclose(states[-1].params["class_table"].max(axis=1), 1.0)


def test_em_of_equal_options_is_another_program(fit):
    """Of equal shapes as well, so that only the class of the engine tells the two apart."""
    options = {"num_clusters": 4, "num_classes": 3, "progress": False}
    soft = sb.fit("moe", IRIS.x, KNOWN, engine=sb.EM(num_restarts=3), **options)
    assert fit.objective.shape[0] == soft.objective.shape[0]
    assert soft.params["class_table"].min() > 1e-15  # where the hard table is zero


def test_em_with_a_table_held_at_corners_is_the_same():
    """Check R2: ten steps, and the classes of rows of which none is known, where no switch pays."""
    rng = np.random.default_rng(0)
    x = split2d(rng, 40)[0] * [0.4, 1.0] + rng.normal(size=(80, 1)) * [0.8, 0.0]  # slow to converge
    known = some_known(rng, (x[:, 0] > 1.4) * 1, 20)
    sizes = {"num_clusters": 2, "num_classes": 2, "prior": "flat"}
    start = {
        "weights": np.full(2, 0.5),
        "mean": np.array([[0.0, 0.0], [3.0, 0.0]]),
        "covariance": np.tile(4 * np.eye(2), (2, 1, 1)),
    }
    table = jnp.maximum(jnp.eye(2), jnp.finfo(float).tiny)
    data = jnp.asarray(x), PartialLabels(known)
    run = {"init": start | {"class_table": np.full((2, 2), 0.5)}, "progress": False}
    hard = sb.HardClasses(max_steps=10, tol=0.0).run(Problem(moe, data, sizes), **run)
    np.testing.assert_array_equal(hard.params["class_table"], table)

    def held(x, known, **options):
        with numpyro.handlers.condition(data={"class_table": table}):
            moe(x, known, **options)

    soft = sb.EM(max_steps=10, tol=0.0).run(Problem(held, data, sizes), init=start, progress=False)
    assert hard.objective.shape == (1, 11)
    np.testing.assert_allclose(soft.objective, hard.objective, rtol=1e-12)
    for name in start:
        np.testing.assert_allclose(soft.params[name], hard.params[name], rtol=1e-12, atol=1e-12)

    @jax.jit
    def classes(params):
        site = trace_model(Problem(moe, data, sizes), params | {"class_table": table})["x"]
        return site["fn"].class_probabilities(site["value"])

    one, other = (classes({name: result.params[name] for name in start}) for result in (soft, hard))
    np.testing.assert_allclose(one, other, atol=1e-12)


def test_switches_are_the_best_of_each_component():
    """Against the likelihood with every class in turn, and no class left without a component."""
    rng = np.random.default_rng(0)
    x, known = rng.normal(size=30), rng.integers(-1, 2, 30)
    labels = LinkedCategorical(jnp.log(jnp.asarray([0.5, 0.3, 0.2])), as_label_graph(None, 30))
    density = dist.Normal(jnp.asarray([-1.0, 0.0, 1.0]), 1.0)
    stated = stated_classes(PartialLabels(known), 2)

    def mixture(classes):
        table = jnp.maximum(jnp.eye(2)[classes], 1e-300)
        return ClassMixture(labels, density, table, stated)

    value = jax.jit(lambda classes: mixture(classes).log_prob(jnp.asarray(x)))
    switched = jax.jit(lambda classes: _switched(mixture(classes), jnp.asarray(x)))

    for start in ([0, 1, 0], [1, 0, 0], [1, 1, 0]):
        now = list(start)
        for cluster in range(3):
            choices = [[*now[:cluster], c, *now[cluster + 1 :]] for c in (0, 1)]
            covering = [one for one in choices if set(one) == {0, 1}]
            now = max(covering, key=lambda one: float(value(jnp.asarray(one))))
        found = switched(jnp.asarray(start))
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
@pytest.mark.data
def test_purity_of_balance_scale():
    """Check R11: components of a grid do not follow classes that are the sign of a product.

    Most runs of three components end in mirror images of one mode, of purities from 0.61 to 0.67: the
    printed 0.667 is the purest of ten, not the likeliest.
    """
    data = sb.load_dataset(str(Path(os.environ["SIDEBAYES_DATA"]) / "balance_scale.csv"))
    engine = sb.EM(num_restarts=1)
    purity, density = {3: [], 10: []}, []
    for number, seeds in ((3, 10), (10, 3)):
        for seed in range(seeds):
            given = {"num_clusters": number, "engine": engine, "seed": seed, "progress": False}
            fit = sb.fit("gmm", data.x, **given)
            purity[number].append(class_purity(fit.responsibilities(), data.labels))
            if number == 3:
                density.append(fit.objective.max())
    assert max(purity[3]) == pytest.approx(0.667, abs=0.02)
    assert min(purity[3]) < 0.65
    assert np.isclose(density, np.median(density), rtol=1e-5).sum() >= 8
    assert max(purity[10]) <= 0.8


@pytest.mark.slow
def test_purity_of_iris():
    """Check R11: three full Gaussians without labels."""
    fit = sb.fit("gmm", IRIS.x, num_clusters=3, prior="flat", progress=False)
    assert class_purity(fit.responsibilities(), IRIS.labels) == pytest.approx(0.963, abs=0.02)
    assert class_purity(np.ones((4, 1)), np.array([0, 0, 0, 1])) == 0.75
