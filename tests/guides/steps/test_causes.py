"""Fits that cannot succeed say why, where data or links show it."""

from __future__ import annotations

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.causes import known_cause
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.padding import Sizes
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc

import sidebayes as sb

X = np.random.default_rng(0).normal(size=(30, 2))
SUMS = np.column_stack([X, X.sum(axis=1)])


def test_columns_that_depend_on_others_are_named_where_clusters_collapse():
    engine = sb.EM(num_restarts=2, max_steps=20)
    with pytest.raises(
        sb.FitError, match=r"3 columns of 'x' have rank 2.*copies or sums"
    ) as failed:
        sb.fit("gmm", SUMS, num_clusters=2, prior="flat", engine=engine, progress=False)
    assert "constant or duplicated" not in str(failed.value)


def test_causes():
    corners = sb.Links.cannot_link([(0, 1), (1, 2), (0, 2)])
    problem = Problem(ppc, (X, LabelGraph.build(corners, 30)), {"num_clusters": 2})
    assert "'x' has 3 hard links that no labeling satisfies with 2 clusters" in known_cause(problem)
    padded = LabelGraph.build(corners, 30, room=Sizes(links=64))
    problem = Problem(ppc, (X, padded), {"num_clusters": 2})
    assert "'x' has 3 hard links" in known_cause(problem)  # spare rows of a graph are no links
    allowed = Problem(ppc, (X, LabelGraph.build(corners, 30)), {"num_clusters": 3})
    assert known_cause(allowed) is None
    assert known_cause(Problem(gmm, (X,), {"num_clusters": 2})) is None
    assert "rank 2" in known_cause(Problem(gmm, (SUMS,), {"num_clusters": 2}))
    diagonal = {
        "num_clusters": 2,
        "covariance": "diagonal",
    }  # which dependence does not make singular
    assert known_cause(Problem(gmm, (SUMS,), diagonal)) is None


def test_remedies_are_those_of_the_blocks_at_hand():
    x = np.random.default_rng(0).normal(size=(24, 2))
    source = sb.fit_source(x, np.arange(24) // 12, num_components=1)
    with pytest.raises(sb.FitError, match="use shift='source'.*more rows of the target"):
        sb.fit("domain_adaptation", x[:3], source=source, shift="flat", progress=False)
    with pytest.raises(ValueError, match="pass prior='empirical' or a GaussianPrior"):
        sb.fit("gmm", x, num_clusters=2, prior="flat", engine="smc", progress=False)

    def flat(y):
        mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ValueError, match="'mean' is improper; give it a proper one"):
        sb.fit(flat, x[:, 0], engine="smc", progress=False)
