"""What known classes say of a fit that does not look at a row's own class."""

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.diagnostics.trust.known_classes import recognition, sentence
from sidebayes.models.blocks.components.gaussians.left_out import Normals, left_out_joint
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph

import sidebayes as sb

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
def test_densities_without_a_point_are_those_of_the_others(form):
    """Without a prior one step is exact where components are known."""
    share = np.eye(2)[TRUTH]

    def moments(rows):
        centre = np.stack([X[rows & (k == TRUTH)].mean(axis=0) for k in (0, 1)])
        each = np.stack([np.cov(X[rows & (k == TRUTH)].T, bias=True) for k in (0, 1)])
        size = np.array([(rows & (k == TRUTH)).sum() for k in (0, 1)])
        if form == "tied":
            each = np.stack(2 * [np.tensordot(size / size.sum(), each, 1)])
        elif form == "diagonal":
            each = each * np.eye(2)
        elif form == "spherical":
            each = np.trace(each, axis1=1, axis2=2)[:, None, None] / 2 * np.eye(2)
        return centre, each, size

    centre, spread, size = moments(np.ones(60, bool))
    found = left_out_joint(X[:5], share[:5], Normals(centre, spread, form, size, 0.0, 0.0))
    for row in range(5):
        centre, spread, size = moments(np.arange(60) != row)
        gap = X[row] - centre
        square = np.einsum("ki,kij,kj->k", gap, np.linalg.inv(spread), gap)
        logs = np.log(size / 59) - square / 2 - np.linalg.slogdet(2 * np.pi * spread)[1] / 2
        np.testing.assert_allclose(found[row], logs, rtol=1e-6)


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
    assert recognition(told[:4], stated[:4]) is None
    assert recognition(told[3:6], stated[3:6]) is None


def test_classes_that_features_do_not_tell_are_a_caution(wrong):
    assert sb.fit("moe", X, some(TRUTH), **SIZES).verdict[0] == "good"
    level, why = sb.fit("moe", X, wrong, **SIZES).verdict
    assert level == "caution"
    assert "Without a look at a row's own class" in why


def test_votes_of_other_rows_are_judged(wrong):
    assert sb.fit_nfgl(X, some(TRUTH), **SIZES).verdict[0] == "good"
    assert "Without a look" in sb.fit_nfgl(X, wrong, **SIZES).verdict[1]


def test_draws_leave_rows_out_by_their_weights(wrong):
    engine = sb.BlockedGibbs(num_warmup=50, num_samples=50, num_chains=2)
    assert "Without a look" in sb.fit("moe", X, wrong, engine=engine, **SIZES).verdict[1]


@pytest.fixture(scope="module")
def source():
    return sb.fit_source(X, TRUTH)


def test_a_moved_classifier_that_contradicts_known_classes_is_bad(source):
    known = some(1 - TRUTH)
    fit = sb.fit("domain_adaptation", X, known, source=source, strength=1.0, progress=False)
    level, why = fit.verdict
    assert level == "bad"
    assert "tells the known classes no better" in why
    assert " BAD:" in repr(fit)
    right = sb.fit("domain_adaptation", X, some(TRUTH), source=source, strength=1.0, progress=False)
    assert right.verdict[0] == "good"


def test_a_target_in_other_units_is_a_caution(source):
    fit = sb.fit("domain_adaptation", 1e4 * X, some(TRUTH), source=source, progress=False)
    assert "give x in the units of the source" in fit.verdict[1]


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

    fit = sb.fit(two, X[:, 0], counts, engine=sb.EM(num_restarts=1), progress=False)
    assert "known" not in fit.verdict[1]
