"""What a model's annotations say besides: tables that are chosen, links of rows or of groups, levels."""

from __future__ import annotations

import warnings
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.models.blocks.roles import Chosen, Truncation, signature_of

import sidebayes as sb
from sidebayes import Groups, LabelGraph, LinkedCategorical, LinkedMixture, Links
from sidebayes.runs.arguments import read_run
from tests.support.draws import at_one

RNG = np.random.default_rng(0)
Y = RNG.normal(size=12) + 4 * (np.arange(12) % 2)
QUICK = sb.MAP(num_restarts=1, max_steps=30)


def middle(data, options):
    """The mean of the data, moved."""
    return np.array([data["y"].mean() + options.get("move", 0.0)])


def shifted(
    y: Annotated[ArrayLike, "rows"],
    subjects: Annotated[Groups | None, "rows"] = None,
    links: Annotated[Links | LabelGraph | None, "subjects|rows"] = None,
    centre: Annotated[ArrayLike | None, "places", Chosen(middle)] = None,
    *,
    num_clusters: Annotated[int, Truncation()] = 2,
    move: float = 0.0,
):
    """Two clusters about a centre that is chosen, of rows or of subjects, the first one named first."""
    units = len(y) if subjects is None else subjects.num_groups
    labels = LinkedCategorical(
        jnp.full(num_clusters, -jnp.log(num_clusters)),
        LabelGraph.build(None, units) if links is None else links,
    )
    with numpyro.plate("clusters", num_clusters):
        ordered = {"symmetry": {"clusters": "none"}}
        mean = numpyro.sample("mean", dist.Normal(centre[0], 3.0), infer=ordered)
    density = dist.Normal(mean[None] * jnp.ones((len(y), 1)), 1.0)
    numpyro.sample("y", LinkedMixture(labels, density, groups=subjects), obs=y)


def fit(*given, engine=QUICK, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        return sb.fit(shifted, *given, engine=engine, progress=False, **options)


def test_tables_are_chosen_once():
    found = fit(Y, move=1.0, engine=at_one({"mean": [0.0, 4.0]}))
    np.testing.assert_allclose(found.run.data["centre"], Y.mean() + 1)
    fold = found.run.with_data({"y": Y[:3], "centre": found.run.data["centre"]})
    assert fold.unseen
    again = found.predict_proba(Y[:3])  # with the centre of the fit, not that of three rows
    np.testing.assert_allclose(again, found.responsibilities()[:3], atol=1e-12)
    assert signature_of(shifted).truncates
    given = read_run(shifted, (Y,), {"centre": np.array([7.0]), "num_clusters": 20}, None)
    assert given.data["centre"] == 7.0
    with pytest.raises(ValueError, match=r"num_clusters = 101 for \d+ points; give at most 100"):
        read_run(shifted, (Y,), {"num_clusters": 101}, None)


def test_links_join_rows_or_subjects():
    rows = Links.must_link([(0, 2), (1, 3)], 3.0, num_points=12)
    by_rows = fit(Y, links=rows)
    assert by_rows.labels().shape == (12,)
    assert by_rows.unit_terms.shape[-1] == 10
    assert np.isfinite(by_rows.kfold(2, progress=False).elpd)
    people = Links.must_link([(0, 2)], 3.0, num_points=4)
    by_subject = fit(Y, np.repeat(list("abcd"), 3), people)
    assert by_subject.labels().shape == (4,)
    assert by_subject.unit_terms.shape[-1] == 3
    with pytest.raises(ValueError, match="12"):
        fit(Y, np.repeat(list("abcd"), 3), rows)


@pytest.mark.slow
def test_clusters_in_an_order_are_never_renumbered():
    engine = sb.NUTS(num_warmup=50, num_samples=20, num_chains=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        found = sb.fit(shifted, Y, engine=engine, progress=False)
        tree, score = found.relabelled
    assert (tree["relabelling"]["permutation"].to_numpy() == np.arange(2)).all()
    np.testing.assert_array_equal(tree["posterior"]["mean"], found.tree["posterior"]["mean"])
    assert 0 <= score <= 1
