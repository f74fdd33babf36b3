"""What known classes say of a fit that does not look at a row's own class."""

from types import SimpleNamespace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from sidebayes.diagnostics.trust.known_classes import recognition, sentence, unpredicted
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.left_out import step_without
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.updates import plan_updates
from sidebayes.models.blocks.classes.source_components import _in_other_units
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.weights import mixing_weights

import sidebayes as sb
from sidebayes.results.base.known_classes import _Look, _unpredicted
from tests.support.draws import Told, at_one

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) + 4.0 * (np.arange(60)[:, None] % 2)
TRUTH = np.arange(60) % 2
SIZES = {"num_clusters": 2, "num_classes": 2, "progress": False}


def some(classes, every=3):
    return np.where(np.arange(60) % every == 0, classes, -1)


@pytest.fixture(scope="module")
def wrong():
    """Known classes that have nothing to do with the features."""
    return some(np.random.default_rng(1).permutation(np.repeat([0, 1], 30)))


@pytest.mark.parametrize("form", ["full", "tied", "diagonal", "spherical"])
def test_a_step_without_points_finds_what_the_others_say(form):
    """Where components are known and nothing else is, one step is exact."""

    def known_components(x: Annotated[ArrayLike, "points features"]):
        side = jnp.where(jnp.arange(2) == TRUTH[:, None], 0.0, -jnp.inf)
        weights = mixing_weights(2, 1.0)
        components = mixture_components(x, 2, form, "flat", None)
        labels = sb.LinkedCategorical(jnp.log(weights), as_label_graph(None, 60))
        numpyro.sample("x", sb.LinkedMixture(labels, components, side), obs=x)

    with jax.enable_x64(True):
        problem = Problem(known_components, (jnp.asarray(X),))
        plan = plan_updates(problem)
        start = {name: one[0] for name, one in initial_values(problem, 0, 1).items()}
        seen = jnp.arange(60) >= 7
        step = jax.jit(lambda start, args: step_without(problem, plan, start, args, "x", seen))
        found = step(start, problem.args)
    others = [X[7:][TRUTH[7:] == k] for k in (0, 1)]
    np.testing.assert_allclose(found["mean"], [own.mean(axis=0) for own in others])
    each = np.stack([np.cov(own.T, bias=True) for own in others])
    size = np.array([len(own) for own in others])
    wanted = {
        "full": each,
        "tied": np.tensordot(size / size.sum(), each, 1),
        "diagonal": np.diagonal(each, axis1=1, axis2=2),
        "spherical": np.trace(each, axis1=1, axis2=2) / 2,
    }[form]
    spread = next(own for name, own in found.items() if name not in ("mean", "weights"))
    np.testing.assert_allclose(np.squeeze(spread), wanted, rtol=1e-6)


def test_rows_are_left_out_until_em_settles():
    """One step without a tenth of 15 labels leaves means that they drew; the fit is sure of wrong classes."""
    rng = np.random.default_rng(111)
    classes = rng.integers(0, 3, 60)
    x = np.array([[0.0, 0.0], [2.0, 0.5], [0.0, 2.2]])[classes] + rng.normal(size=(60, 2))
    known = np.where(np.arange(60) < 15, classes, -1)
    fit = sb.fit("moe", x, known, num_clusters=3, num_classes=3, progress=False)
    level, why = fit.verdict
    assert level == "caution"
    assert "Without a look at a row's own class, the fit is too sure of its classes" in why
    assert "class_concentration = 1.3, which smooths them, fewer features" in why


def test_one_known_class_is_a_caution():
    one = at_one(
        {"weights": [0.5, 0.5], "mean": [[0.0, 0.0], [4.0, 4.0]]}
        | {
            "covariance": [np.eye(2)] * 2,
            "class_table": [[1.0, 0.0], [0.5, 0.5]],
        }
    )
    level, why = sb.fit("moe", X, some(0 * TRUTH), engine=one, **SIZES).verdict
    assert level == "caution"
    assert (
        "All known rows are of class 0: the probabilities of the other class come from the prior alone"
        in why
    )


def test_sentences():
    stated = np.eye(2)[[0, 0, 0, 0, 1, 1, 1, 1]]
    told, blind = np.abs(stated - 0.1), np.full((8, 2), 0.5)
    good, none, bad = (recognition(p, stated) for p in (told, 0.98 * blind + 0.01, 1 - told))
    assert good.right == 8
    assert good.gain > 3
    assert sentence(good, good) is None
    assert sentence(good, none)[0] == "caution"
    assert "no better than their shares" in sentence(good, none)[1]
    assert sentence(bad, none)[0] == "bad"
    sure = np.where(np.arange(8)[:, None] % 4 == 0, 1 - stated, stated)
    assert "too sure" in sentence(None, recognition(sure, stated))[1]
    once = np.where(np.arange(8)[:, None] == 0, 1 - stated, stated)
    assert recognition(once, stated).gain > -7  # one row alone refutes nothing
    assert sentence(None, good._replace(gain=1e-9, right=4))[0] == "caution"  # rounding is no gain
    assert recognition(told[:4], stated[:4]) is None
    assert recognition(told[3:6], stated[3:6]) is None


@pytest.mark.parametrize(
    ("rows", "seen", "missed"),
    [
        ([0] * 18 + [1, 1], [0, 0, 0, 2], {2: 1}),  # known rows are no sign
        ([0, 0, 1], [0, 0, 0, 2], {}),  # among few rows, there may be none
        ([0, 0, 1], [0, 0, 0, 0], {2: 1}),
        ([0, 2, 0], [0, 0, 0, 0], {}),  # nothing is known of class 1
    ],
)
def test_known_classes_that_no_row_is_predicted_to_have(rows, seen, missed):
    label = np.concatenate([np.full(len(rows), -1), [0, 0, 0, 2]])
    assert unpredicted(np.eye(3)[[*rows, 0, 0, 0, 2]], label, np.eye(3)[seen]) == missed


@pytest.mark.parametrize(
    ("num_classes", "every", "num_groups", "missed"),
    [
        (None, True, 1, {}),  # one class, which cannot be missed
        (None, False, 1, {}),
        (None, True, 2, {}),  # clusters of which there is no other row
        (None, False, 2, {1: 2}),
        (2, True, 2, {1: 2}),  # new rows get classes too
    ],
)
def test_where_no_class_can_be_missed_nothing_is_said(num_classes, every, num_groups, missed):
    label = np.array([0, 0, 0, 1, 1, 0]) % num_groups
    stated = np.where(label[:, None] == np.arange(num_groups), 1.0, 0.0)
    prob = np.eye(num_groups)[np.zeros(6, int)]
    found = {"prob": prob, "label": label if every else np.where(np.arange(6) < 5, label, -1)}
    found |= {"stated": stated, "joint": 9 * prob, "within": np.tile(np.eye(num_groups), (6, 1, 1))}
    found = {name: value[None] for name, value in found.items()}
    fn = SimpleNamespace(num_classes=num_classes)
    assert _unpredicted(_Look("x", fn, {}, {}, found)) == missed


def test_a_class_that_shares_its_component_with_a_larger_one_is_a_caution():
    """Class 1 has one row and class 0 eleven, in two components, the second of which has both."""
    known = np.where(np.arange(60) < 20, np.where(np.arange(60) == 1, 1, 0), -1)
    known[2::2] = np.where(known[2::2] >= 0, 2, -1)
    at = {"weights": [0.5, 0.5], "mean": [[0.0, 0.0], [4.0, 4.0]], "covariance": [np.eye(2)] * 2}
    mixed = at_one(at | {"class_table": [[0.02, 0.0, 0.98], [0.9, 0.1, 0.0]]})
    sizes = SIZES | {"num_classes": 3}
    level, why = sb.fit("moe", X, known, engine=mixed, **sizes).verdict
    assert level == "caution"
    assert (
        "num_clusters = 2 for 3 classes: at no row is class 1 (numbered from 0) the most probable, except "
        "where it is known (1 row). If others should have it, raise num_clusters to 3 at least, or name "
        "more of its rows."
    ) in why
    three = {"weights": [0.4, 0.1, 0.5], "mean": [[0.0, 0.0], [0.0, 0.0], [4.0, 4.0]]}
    three |= {
        "covariance": [np.eye(2)] * 3,
        "class_table": [[0.0, 0.0, 1.0], [0, 0, 1], [0.9, 0.1, 0]],
    }
    classifier = sb.MixtureClassifier(engine=at_one(three))
    names = np.array(["a", "b", "c", None], object)[known]
    with pytest.warns(
        sb.SideBayesWarning, match=r"^At no row is 'b' the most probable.*'hard_classes'"
    ):
        classifier.fit(X, names)
    own = classifier.result_.verdict[1]
    assert "class 1 (numbered from 0)" in own


@pytest.fixture(scope="module")
def fits(wrong):
    """Of classes that features tell, and of those that they do not."""
    return [sb.fit("moe", X, known, **SIZES) for known in (some(TRUTH), wrong)]


def test_classes_that_features_do_not_tell_are_a_caution(wrong):
    at = {"weights": [0.5, 0.5], "mean": [[0.0, 0.0], [4.0, 4.0]], "covariance": [np.eye(2)] * 2}
    verdicts = [
        sb.fit("moe", X, known, engine=at_one(at | {"class_table": table}), **SIZES).verdict
        for known, table in ((some(TRUTH), np.eye(2)), (wrong, np.full((2, 2), 0.5)))
    ]
    assert verdicts[0][0] == "good"
    level, why = verdicts[1]
    assert level == "caution"
    assert "Without a look at a row's own class" in why


def table(noise):
    return "feature_saliency", {"x": noise}


def sphere(noise):
    moved = noise + 2.0 * np.eye(8)[0]
    rows = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return "sphere_mixture", {"x": rows, "family": "von_mises_fisher"}


def subjects(noise):
    who, time = np.repeat(np.arange(40), 4), np.tile(np.arange(4.0), 40)
    frame = pd.DataFrame({"y": noise[who, 0] + noise[:, :4].ravel(), "t": time, "who": who})
    return "mixed_effects_mixture", sb.design("y ~ t + (1 | who)", frame)


@pytest.mark.parametrize("made", [table, sphere, subjects])
def test_components_of_every_kind_are_learned_without_a_row(made):
    method, data = made(np.random.default_rng(3).normal(size=(40, 8)))
    known = np.random.default_rng(4).integers(0, 2, 40)
    fit = sb.fit(method, **data, known=known, num_clusters=2, progress=False)
    assert "Without a look" in fit.verdict[1]


def test_votes_of_other_rows_are_judged(fits, wrong):
    right, mistaken = fits
    assert sb.fit_nfgl(X, some(TRUTH), base=right, **SIZES).verdict[0] == "good"
    assert "Without a look" in sb.fit_nfgl(X, wrong, base=mistaken, **SIZES).verdict[1]


def test_draws_leave_rows_out_by_their_weights(wrong):
    """Of components that are known but for some noise, and of class tables that say little."""
    rng = np.random.default_rng(2)
    size = (2, 50)
    one = rng.beta(20.0, 20.0, (*size, 2))
    draws = {
        "weights": rng.dirichlet([30.0, 30.0], size),
        "mean": [[0.0, 0.0], [4.0, 4.0]] + 0.2 * rng.normal(size=(*size, 2, 2)),
        "covariance": np.eye(2) * rng.uniform(0.7, 1.3, (*size, 2, 1, 1)),
        "class_table": np.stack([one, 1 - one], axis=-1),
    }
    assert "Without a look" in sb.fit("moe", X, wrong, engine=Told(draws), **SIZES).verdict[1]


@pytest.fixture(scope="module")
def source():
    return sb.fit_source(X, TRUTH)


def test_a_moved_classifier_that_contradicts_known_classes_is_bad(source):
    known = some(1 - TRUTH)
    engine = at_one({name: getattr(source, name) for name in ("weights", "mean", "covariance")})
    given = {"source": source, "strength": 1.0, "engine": engine, "progress": False}
    fit = sb.fit("domain_adaptation", X, known, **given)
    level, why = fit.verdict
    assert level == "bad"
    assert "Although it was fitted to them, it tells the known classes no better" in why
    assert " BAD:" in repr(fit)


def test_a_moved_classifier_that_keeps_known_classes_is_good(source):
    right = sb.fit("domain_adaptation", X, some(TRUTH), source=source, strength=1.0, progress=False)
    assert right.verdict[0] == "good"


@pytest.mark.parametrize("factor", [1e4, 10.0, 4.0, 0.1, 1e-4, np.array([1.0, 20.0])])
def test_columns_in_other_units_than_the_source_are_named(source, factor):
    assert "give x in the units of the source" in _in_other_units(source, factor * X)


def test_what_frequencies_and_moves_do_to_the_spread_is_no_other_unit(source):
    far = np.append(X, [[1e6, 0.0]], axis=0)  # one row, of which the fit warns
    flat = X * [1.0, 0.0]  # a constant column has no unit to be seen
    for rows in (X, X + 5.0, X[TRUTH == 0], X[:1], X[:3], far, flat):
        assert _in_other_units(source, rows) is None


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("known", [None, some(TRUTH)])
def test_a_target_in_other_units_is_not_good(source, factor, known):
    engine = at_one({name: getattr(source, name) for name in ("weights", "mean", "covariance")})
    fit = sb.fit(
        "domain_adaptation", factor * X, known, source=source, engine=engine, progress=False
    )
    level, why = fit.verdict
    assert level in ("caution", "bad")
    assert "give x in the units of the source" in why
    assert "worth=" not in why


def test_a_target_of_hardly_any_rows_is_a_caution(source):
    engine = at_one({name: getattr(source, name) for name in ("weights", "mean", "covariance")})
    given = {"source": source, "engine": engine, "progress": False}
    for size in (1, 3):
        level, why = sb.fit("domain_adaptation", X[:size], TRUTH[:size], **given).verdict
        assert level == "caution"
        assert f"x has {size} row" in why
        assert "units of the source" not in why


def test_another_outcome_beside_the_densities_is_no_known_class():
    """Its log density, unlike what is stated of a class, is a number for each row and cluster."""
    counts = np.where(
        np.arange(60) // 30 == TRUTH, 9.0, 0.0
    )  # another grouping than that of the rows

    def two(x: Annotated[ArrayLike, "points"], count: Annotated[ArrayLike, "points"]):
        side = dist.Poisson(jnp.array([0.1, 9.0])).log_prob(count[:, None])
        with numpyro.plate("clusters", 2):
            loc = numpyro.sample("loc", dist.Normal(0.0, 5.0))
        labels = sb.LinkedCategorical(jnp.log(jnp.full(2, 0.5)), as_label_graph(None, len(x)))
        numpyro.sample("x", sb.LinkedMixture(labels, dist.Normal(loc, 0.3), side), obs=x)

    engine = at_one({"loc": [X[k == TRUTH, 0].mean() for k in range(2)]})
    fit = sb.fit(two, X[:, 0], counts, engine=engine, progress=False)
    assert "known" not in fit.verdict[1]
