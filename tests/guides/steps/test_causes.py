"""Fits that cannot succeed say why, where data or links show it."""

from __future__ import annotations

import re
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.causes import (
    check_indices,
    explain_nonfinite,
    known_cause,
    remedy,
)
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


def test_rows_far_out_are_named_and_no_remedy_that_is_so_already():
    far = X.copy()
    far[7] = 1e16  # beside which the columns are the same
    problem = Problem(gmm, (far,), {"num_clusters": 2})
    assert known_cause(problem) is None
    assert re.fullmatch(
        r"'x' has values far from all others in row 7: correct or drop such rows, or use "
        r"covariance='diagonal' or a GaussianPrior of larger scale",
        remedy(problem),
    )
    numbered = Problem(gmm, (far,), {"num_clusters": 2}, row_numbers=100 * np.arange(30))
    assert "in row 700:" in remedy(numbered)


def noisy(y):
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


@pytest.mark.parametrize(("numbers", "row"), [(None, 1), (np.array([40, 70]), 70)])
def test_the_first_value_without_a_density_is_named_by_its_row(numbers, row):
    problem = Problem(noisy, (np.array([0.0, np.nan]),), row_numbers=numbers)
    assert f"1 of its 2 values have none, the first at ({row},): nan" in explain_nonfinite(
        problem, {}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prior": "flat"}, "use prior='empirical', fewer clusters, or covariance='tied'"),
        ({"prior": "flat", "covariance": "tied"}, "use prior='empirical' or fewer clusters"),
        ({"prior": "flat", "num_clusters": 1}, "use prior='empirical'"),
        ({"covariance": "diagonal"}, "use a GaussianPrior of larger scale"),
    ],
)
def test_remedies_are_not_what_is_chosen_already(options, said):
    assert remedy(Problem(gmm, (X,), {"num_clusters": 2, **options})) == said


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


GROUP = np.arange(30) % 3


def grouped(
    y: Annotated[ArrayLike, "rows"],
    group: Annotated[ArrayLike, "rows"],
    *,
    mean=lambda a, group: a[group],
):
    a = numpyro.sample("a", dist.Normal().expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean(a, jnp.asarray(group)), 1.0), obs=y)


def grouped_problem(group, y=X[:, 0], unseen=False, **options):
    return Problem(grouped, (jnp.asarray(y), jnp.asarray(group)), options, unseen=unseen)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            GROUP + 1,
            "group has the value 3, .* 3 elements are numbered from 0 to 2: .* by group - 1",
        ),
        (GROUP * 5, "group has the value 10, .*: number what is indexed from 0, or check"),
        (GROUP - 1, "group has the value -1, .*: leave out rows without a number"),
    ],
)
def test_index_out_of_range_is_refused(group, message):
    """Before, JAX took the last element in the density, and nothing in its gradient."""
    with pytest.raises(ValueError, match=message):
        check_indices(grouped_problem(group))


def test_computed_index_out_of_range_is_refused():
    with pytest.raises(ValueError, match="the model computes from group is 3, and 3 elements"):
        check_indices(grouped_problem(GROUP + 2, mean=lambda a, group: a[group - 1]))


@pytest.mark.parametrize(
    ("group", "mean"),
    [
        (GROUP, lambda a, group: a[group] + a[-1]),
        (GROUP, lambda a, group: a[group - 1]),  # counts from the end, as in NumPy
        (GROUP - 1, lambda a, group: jnp.where(group >= 0, a[group], 0.0)),
        (GROUP + 1, lambda a, group: jnp.where(group < 3, a[group], 0.0)),
        (GROUP + 1, lambda a, group: jnp.take(a, group, mode="clip")),
        (GROUP + 1, lambda a, group: a[jnp.floor(a[0]).astype(int) + 5]),  # of a latent site
    ],
)
def test_index_that_is_meant_is_accepted(group, mean):
    check_indices(grouped_problem(group, mean=mean))


def test_index_of_new_data_is_refused_where_outcomes_are_unknown():
    with pytest.raises(ValueError, match="number as in the fit, and leave out levels that were"):
        check_indices(grouped_problem(np.array([0, 17]), [np.nan, np.nan], unseen=True))


def test_fit_and_new_data_check_indices():
    with pytest.raises(ValueError, match="group has the value 3"):
        sb.fit(grouped, X[:, 0], GROUP + 1, engine="map", progress=False)
    fit = sb.fit(grouped, X[:, 0], GROUP, engine=sb.MAP(num_restarts=1), progress=False)
    for ask in (
        lambda: fit.predictive(group=np.array([0, 17])),
        lambda: fit.log_prob([0.5, 1.0], np.array([0, 17])),
    ):
        with pytest.raises(ValueError, match="group has the value 17"):
            ask()
