"""Numbers of components and clusters of a partition: Raghuram (2014); dossier checks 20-22, 31."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.mcp import mcp_with_room
from sidebayes.guides.mcp_splits import split_candidates
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.partitions.component_clusters import settled_clusters
from sidebayes.models.blocks.side_information.links import Links

import sidebayes as sb
from sidebayes import EM
from tests.support.partitions import (
    LINKS,
    NUM_POINTS,
    STRENGTH,
    X,
    four,
    links_of,
    log_densities,
    mixture_of,
    params_of,
    problem_of,
    softmax,
)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def test_clusters_of_components_settle_where_none_can_move():
    """V-step: against all tables, and with each cluster kept."""
    rng = np.random.default_rng(0)
    settle = jax.jit(settled_clusters, static_argnums=(3, 4))
    for _ in range(5):
        pull = rng.normal(size=(5, 5))
        pull = pull + pull.T
        value = lambda own, pull=pull: (pull * (own[:, None] == own)).sum()  # noqa: E731
        start, alive = rng.integers(0, 3, 5), jnp.ones(5, bool)
        found = np.asarray(settle(pull, jnp.asarray(start), alive, 3, False))
        assert value(found) >= value(start)
        for k, cluster in itertools.product(range(5), range(3)):
            other = found.copy()
            other[k] = cluster
            assert value(other) <= value(found) + 1e-12
    together = np.ones((4, 4))
    kept = settle(together, jnp.array([0, 1, 2, 2]), jnp.ones(4, bool), 3, True)
    assert len(np.unique(kept)) == 3
    assert (
        len(np.unique(settle(together, jnp.array([0, 1, 2, 2]), jnp.ones(4, bool), 3, False))) == 1
    )


def test_children_keep_the_moments_of_their_parent():
    """R21, and that the scores of a split are those of the mixture it makes."""
    params = params_of(3)
    graph = LabelGraph.build(LINKS.with_strength(1.0), NUM_POINTS)
    args = jnp.asarray(X), graph, jnp.arange(4) < 4
    options = {"num_clusters": 4, "keep_all": False, "prior": "flat"}
    problem = Problem(mcp_with_room, args, options)
    wide = {name: np.concatenate([v, v[-1:]]) for name, v in params.items() if name != "assignment"}
    owner = np.array([0, 1, 0, 0])
    wide["assignment"] = np.eye(4)[owner]
    admitted = np.arange(4) < 3
    go = jax.jit(lambda *rest: split_candidates(problem, *rest))
    table, log_likelihood, sites = jax.tree.map(np.asarray, go(wide, args, owner, admitted, 3))
    for k, axis in itertools.product(range(3), range(2)):
        split = {name: v[k, axis] for name, v in sites.items()}
        both = [k, 3]
        share = split["weights"][both]
        np.testing.assert_allclose(share, params["weights"][k] / 2, rtol=1e-12)
        mean = split["mean"][both].mean(axis=0)
        np.testing.assert_allclose(mean, params["mean"][k], atol=1e-12)
        apart = split["mean"][both] - mean
        spread = split["covariance"][both].mean(axis=0) + apart.T @ apart / 2
        np.testing.assert_allclose(spread, params["covariance"][k], atol=1e-12)
        joint = np.log(split["weights"]) + log_densities(split)
        np.testing.assert_allclose(
            log_likelihood[k, axis], logsumexp(joint, axis=1).sum(), rtol=1e-10
        )
        own = owner.copy()
        own[3] = 2  # choice 3 is cluster 2
        p = softmax(joint) @ np.eye(4)[own]
        agree = (p[LINKS.pairs[:, 0]] * p[LINKS.pairs[:, 1]]).sum(axis=1)
        broken = np.where(LINKS.same, 1 - agree, agree).mean()
        np.testing.assert_allclose(table[k, axis, 0, 3], broken, rtol=1e-9)
    assert np.isinf(table[0, 0, 1, 2])
    assert np.isinf(table[0, 0, 0, 4])
    assert np.isinf(table[3]).all()


def test_room_for_more_components_changes_nothing():
    """Components that take no part leave density and slope as they are."""
    params = params_of()
    graph = LabelGraph.build(
        LINKS.with_weights(np.clip(LINKS.weights, -STRENGTH, STRENGTH)), NUM_POINTS
    )
    given = {"num_clusters": 2, "keep_all": True, "prior": "flat"}
    odd = {name: np.concatenate([v, v[:2]]) for name, v in params.items()}
    odd["weights"][4:] = 1e-13
    wide = Problem(mcp_with_room, (jnp.asarray(X), graph, jnp.arange(6) < 4), given)
    fn, value = mixture_of(wide, odd)
    narrow, _ = mixture_of(problem_of(), params)
    np.testing.assert_allclose(fn.log_prob(value), narrow.log_prob(value), rtol=1e-12)
    np.testing.assert_allclose(fn.memberships(value)[:, :4], narrow.memberships(value), atol=1e-14)
    np.testing.assert_array_equal(fn.memberships(value)[:, 4:], 0.0)


def test_number_of_clusters_is_found():
    """R20: four components, two classes; links merge them."""
    x, truth = four(1)
    options = {"num_clusters": 4, "num_components": 4, "keep_all": False, "strength": 10.0}
    fit = sb.fit(
        "mcp", x, links_of(truth, 20, 20, 1), engine=EM(num_restarts=5), progress=False, **options
    )
    assert len(np.unique(fit.params["assignment"].argmax(axis=1))) == 2
    labels = fit.labels()
    table = np.array([[np.sum((labels == k) & (truth == c)) for k in range(4)] for c in (0, 1)])
    assert table.max(axis=0).sum() / len(truth) >= 0.96
    assert np.nanmin(np.diff(fit.objective, axis=1)) > -1e-6


def test_select_clusters():
    x, truth = four(2, 40)
    with pytest.warns(sb.SideBayesWarning, match="most that were tried.*most_components"):
        choice = sb.select_clusters(
            x,
            links_of(truth, 15, 15, 2),
            strengths=(10.0,),
            most_components=3,
            engine=EM(num_restarts=2, max_steps=50),
            truth=truth,
            progress=False,
        )
    assert choice.num_clusters == 2
    assert list(choice.path.index) == list(range(2, 2 + len(choice.path)))
    chosen = choice.path.loc[choice.num_components]
    least = choice.path["bic"].to_numpy().argmin()
    assert chosen["violation"] <= choice.path["violation"].iloc[: least + 1].min() + 0.01
    assert choice.fit.params["mean"].shape == (choice.num_components, 2)
    right = (choice.fit.labels() == truth).mean()
    assert max(right, 1 - right) > 0.95
    assert "leave init out" not in choice.fit.verdict[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": None}, "links is a NoneType"),
        ({"links": Links.empty(NUM_POINTS)}, "links is empty"),
        ({"strengths": ()}, "strengths is empty"),
        ({"strengths": (-1.0,)}, "strengths = -1.0"),
        ({"most_components": 1}, "most_components = 1"),
        ({"engine": "em"}, "engine is a str"),
        ({"strength": 3.0}, "cannot be given"),
        ({"covarance": "full"}, r"select_clusters has no option 'covarance' \(did you mean 'cov"),
        ({"x": X[:, 0]}, "x has shape"),
        ({"x": X * np.nan}, r"x\[0, 0\] = nan, the first of"),
        ({"truth": [0, 1]}, r"truth has shape \(2,\)"),
        (
            {"links": Links([(0, 1), (1, 2), (0, 2)], [np.inf, np.inf, -np.inf], NUM_POINTS)},
            "contradicts",
        ),
    ],
)
def test_select_clusters_refuses(change, message):
    given = {"x": X, "links": LINKS, "progress": False} | change
    with pytest.raises((TypeError, ValueError), match=message):
        sb.select_clusters(given.pop("x"), given.pop("links"), **given)


def test_entailed_links():
    """R22: chunklets of three and two, and a cannot-link between them."""
    links = Links([(1, 2), (2, 3), (4, 5), (1, 4)], [np.inf, np.inf, np.inf, -np.inf], 7)
    found = links.entailed()
    assert (found.same.sum(), (~found.same).sum()) == (4, 6)
    assert found.hard.all()
    pairs = {tuple(sorted(p)) for p in found.pairs[~found.same].tolist()}
    assert pairs == {(i, j) for i in (1, 2, 3) for j in (4, 5)}
    with pytest.raises(ValueError, match="contradicts"):
        Links([(1, 2), (2, 3), (1, 3)], [np.inf, np.inf, -np.inf], 7).entailed()
    assert len(Links([(0, 1)], [0.5], 3).entailed()) == 1
