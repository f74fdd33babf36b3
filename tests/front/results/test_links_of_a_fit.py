"""Who stated links, and several links arguments of one model: fits, files, terms and folds."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from scipy.stats import norm
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.label_inference.partition import TooWideError
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.weights import mixing_weights

import sidebayes as sb
from sidebayes.results.base import labels
from tests.probes.data import IRIS, SPECIES
from tests.support.draws import at_one

X = IRIS[::3]
Y = SPECIES[::3]
MEANS = pd.DataFrame(X).groupby(Y).mean().to_numpy()


def stated(num_links=120, rates=(0.02, 0.45), seed=0):
    """Links stated by two annotators, each with an error rate of its own."""
    rng = np.random.default_rng(seed)
    pairs = np.array([rng.choice(len(X), 2, replace=False) for _ in range(num_links)])
    who = rng.integers(0, 2, num_links)
    right = rng.random(num_links) >= np.array(rates)[who]
    same = (Y[pairs[:, 0]] == Y[pairs[:, 1]]) == right
    return sb.Links.from_pairs(pairs, same, 1.0, len(X), group=np.array(["ann", "bob"])[who])


def test_each_annotator_has_a_flip_rate_of_its_own(tmp_path):
    links = stated()
    options = {"num_clusters": 3, "covariance": "tied", "inference": "belief_propagation"}
    fit = sb.fit(
        "ppc", X, links, reading="relation", flip_rate="learned", progress=False, **options
    )
    rates = fit.tree["posterior"]["flip_rate"]
    assert rates.dims == ("chain", "draw", "link_groups")
    wrong = (Y[links.pairs[:, 0]] == Y[links.pairs[:, 1]]) != links.same
    for name, rate in zip(("ann", "bob"), rates.to_numpy()[0, 0], strict=True):
        own = wrong[links.group.names[links.group.codes] == name]
        assert abs(float(rates.sel(link_groups=name).squeeze()) - own.mean()) < 0.12
        assert rate == rates.sel(link_groups=name)
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again.links.pairs, links.pairs)
    np.testing.assert_array_equal(again.links.group.names, ["ann", "bob"])
    assert again.links.num_points == links.num_points == len(X)
    np.testing.assert_array_equal(again.links.group.codes, links.group.codes)
    suspects = fit.suspect_links()
    assert set(suspects["group"]) == {"ann", "bob"}


def two_views(
    first: Annotated[ArrayLike, "points features"],
    second: Annotated[ArrayLike, "points others"],
    ties: Annotated[sb.Links | LabelGraph | None, "points"] = None,
    others: Annotated[sb.Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
) -> None:
    """Two partitions of the same points, each with a table and links of its own."""
    for name, x, links in (("a", first, ties), ("b", second, others)):
        with numpyro.handlers.scope(prefix=name, divider="_"):
            pi = mixing_weights(num_clusters)
            density = mixture_components(x, num_clusters, "diagonal")
            labels = LinkedCategorical(jnp.log(pi), as_label_graph(links, len(x), num_clusters))
        numpyro.sample(f"x_{name}", LinkedMixture(labels, density), obs=x)


def told_by_two(group=("ann", "bob")):
    """A mixture at given parameters, with a flip rate for each of two annotators."""
    links = sb.Links.from_pairs([(0, 1), (2, 49)], [True, False], 1.0, len(X), group=group)
    params = {
        "weights": np.full(3, 1 / 3),
        "mean": MEANS + 0.3 * np.arange(3)[:, None],
        "covariance": np.tile(np.eye(4), (3, 1, 1)),
        "flip_rate": np.array([0.1, 0.4]) if len(set(group)) > 1 else np.array(0.1),
    }
    options = {"num_clusters": 3, "reading": "relation", "flip_rate": "learned"}
    return sb.fit("ppc", X, links, engine=at_one(params), progress=False, **options)


def tied(prob, rate):
    """Label probabilities of two points whose must-link is wrong at a rate."""
    first, second = prob
    odds = (1 - rate) / rate
    one, other = (p * (1 + (odds - 1) * q) for p, q in ((first, second), (second, first)))
    return np.stack([one / one.sum(), other / other.sum()])


def test_new_links_go_by_the_names_of_those_who_stated_them(tmp_path):
    fit, new = told_by_two(), X[[20, 40]]
    fit.save(tmp_path / "fit.nc")
    for one in (fit, sb.load(tmp_path / "fit.nc", engine=fit.config)):
        prob = one.predict_proba(new)
        for who, rate in (("ann", 0.1), ("bob", 0.4)):  # bob alone is the first in order there
            links = sb.Links.from_pairs([(0, 1)], True, 2.0, group=[who])
            np.testing.assert_allclose(one.predict_proba(new, links), tied(prob, rate), rtol=1e-6)
        none = sb.Links.empty(2)
        np.testing.assert_allclose(one.predict_proba(new, none), prob, rtol=1e-6)
        with pytest.warns(sb.SideBayesWarning, match="log_prob leaves out links"):
            np.testing.assert_array_equal(one.log_prob(new, links), one.log_prob(new))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (["eve"], r"links\[0\] is of the group 'eve', and flip rates .* ann, bob alone; leave"),
        ([0], r"links\[0\] is of the group 0, and flip rates"),
        (None, "links do not say who stated them, and flip rates .* ann, bob alone; pass"),
    ],
)
def test_new_links_of_others_have_no_rate(group, message):
    links = sb.Links.from_pairs([(0, 1)], True, 2.0, group=group)
    with pytest.raises(ValueError, match=message):
        told_by_two().predict_proba(X[[20, 40]], links)


def test_links_of_one_rate_need_no_name():
    fit, new = told_by_two(("ann", "ann")), X[[20, 40]]
    expected = tied(fit.predict_proba(new), 0.1)
    for group in (None, ["ann"]):
        links = sb.Links.from_pairs([(0, 1)], True, 2.0, group=group)
        np.testing.assert_allclose(fit.predict_proba(new, links), expected, rtol=1e-6)


def test_links_that_change_no_label_of_new_rows_are_said_to():
    params = {"weights": np.full(3, 1 / 3), "mean": MEANS, "covariance": np.eye(4)}
    fit = sb.fit("constraint_fit", X, num_clusters=3, engine=at_one(params), progress=False)
    with pytest.warns(sb.SideBayesWarning, match="links among new points do not change their"):
        fit.predict(X[[0, 49]], sb.Links.must_link([(0, 1)]))


@pytest.fixture(scope="module")
def views():
    links = (
        sb.Links.must_link([(0, 1), (20, 22)], 2.0, len(X)),
        sb.Links.cannot_link([(1, 30), (3, 4)], 2.0, len(X)),
    )
    data = dict(
        zip(("first", "second", "ties", "others"), (X[:, :2], X[:, 2:], *links), strict=True)
    )
    return sb.fit(two_views, **data, num_clusters=2, progress=False), links


def test_several_links_arguments_are_kept(views, tmp_path):
    fit, (ties, others) = views
    assert list(fit.run.links) == ["ties", "others"]
    np.testing.assert_array_equal(fit.links.pairs, ties.pairs)
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", model=two_views)
    for name, links in (("ties", ties), ("others", others)):
        np.testing.assert_array_equal(again.run.links[name].pairs, links.pairs)
        np.testing.assert_array_equal(again.run.links[name].weights, links.weights)


def test_units_are_what_any_links_join(views):
    """0–1–30 are one unit by links of two arguments; terms of both sites add up to the density."""
    fit, _ = views
    unit = fit.tree["constant_data"]["unit"].to_numpy()
    assert unit[0] == unit[1] == unit[30]
    assert unit[20] == unit[22]
    assert unit[3] == unit[4]
    assert len(np.unique(unit)) == len(X) - 4
    with jax.enable_x64(True):
        for name, x in (("a", X[:, :2]), ("b", X[:, 2:])):
            found = {site: fit.params[f"{name}_{site}"] for site in ("weights", "mean", "variance")}
            unary = norm.logpdf(x[:, None], found["mean"], np.sqrt(found["variance"])).sum(axis=2)
            graph = LabelGraph.build(fit.run.links["ties" if name == "a" else "others"], len(x), 2)
            labels = LinkedCategorical(np.log(found["weights"]), graph)
            terms = fit.tree["log_likelihood"][f"x_{name}"].to_numpy()
            np.testing.assert_allclose(terms.sum(), labels.log_evidence(unary), rtol=1e-9)
            assert terms.shape[-1] == len(X) - 4


@pytest.mark.slow  # folds of other shapes compile anew
def test_folds_cut_no_links_of_any_argument(views):
    fit, _ = views
    folds = fit.kfold(3, progress=False)
    assert np.isfinite(folds.elpd)


def test_links_that_the_model_does_not_take_are_refused(views, tmp_path):
    fit, _ = views

    def without(
        first: Annotated[ArrayLike, "points features"],
        second: Annotated[ArrayLike, "points others"],
        *,
        num_clusters: int,
    ):
        two_views(first, second, num_clusters=num_clusters)

    fit.save(tmp_path / "fit.nc")
    with pytest.raises(ValueError, match=r"the file holds links for \['others', 'ties'\]"):
        sb.load(tmp_path / "fit.nc", model=without)


def test_names_that_a_tree_cannot_hold_are_refused_before_the_fit():
    def scoped(x: Annotated[ArrayLike, "points"]):
        with numpyro.handlers.scope(prefix="a"):
            mean = numpyro.sample("mean", numpyro.distributions.Normal(0, 1))
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", numpyro.distributions.Normal(mean, 1), obs=x)

    with pytest.raises(ValueError, match=r"sites \['a/mean'\] have a slash .* divider='_'"):
        sb.fit(scoped, X[:, 0], engine="map", progress=False)


def test_links_are_scored_under_a_mixture_of_numpyro():
    """Labels that nothing ties agree with the product of their probabilities."""

    def mixture(x: Annotated[ArrayLike, "points"]):
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("points", len(x)):
            parts = dist.Normal(mean, 1.0)
            mixed = dist.MixtureSameFamily(dist.Categorical(probs=weights), parts)
            numpyro.sample("x", mixed, obs=x)

    fit = sb.fit(mixture, X[:, 2], engine=sb.EM(num_restarts=2), progress=False)
    prob, pairs = fit.responsibilities(), np.array([(0, 1), (2, 40)])
    found = fit.score_links(sb.Links.from_pairs(pairs, [True, False], 1.0, len(X)))
    same = (prob[pairs[:, 0]] * prob[pairs[:, 1]]).sum(axis=1)
    np.testing.assert_allclose(found.table["probability"], [same[0], 1 - same[1]], atol=1e-9)
    assert found.approximate is None


def test_pairs_in_one_connected_set_share_a_cluster_as_their_links_say():
    """Clusters a unit apart, so that odds of the second are exp(x); labels are a, a, 1 - a and b."""
    x = np.array([[0.1], [-0.2], [0.4], [0.3], [-0.6], [0.0]])
    links = sb.Links([(0, 1), (1, 2), (2, 3)], [np.inf, -np.inf, 1.5], len(x))
    given = {"weights": [0.5, 0.5], "mean": [[-0.5], [0.5]], "covariance": [np.eye(1)] * 2}
    fit = sb.fit("ppc", x, links, num_clusters=2, engine=at_one(given), progress=False)
    a, b = np.indices((2, 2))
    joint = np.exp(x[:2].sum() * a + x[2] * (1 - a) + x[3] * b + 1.5 * (b == 1 - a))
    agree = joint[a == b].sum() / joint.sum()
    second = 1 / (1 + np.exp(-x[4:, 0]))
    apart = second.prod() + (1 - second).prod()
    pairs = [(0, 1), (1, 2), (0, 2), (0, 3), (4, 5)]
    np.testing.assert_allclose(fit.same_cluster(pairs), [1, 0, 0, agree, apart], atol=1e-9)


def test_pairs_are_taken_as_independent_where_sums_are_too_wide(monkeypatch):
    x = np.linspace(-1, 1, 12)[:, None]
    chain = sb.Links([(i, i + 1) for i in range(11)], np.full(11, 0.7), len(x))
    given = {"weights": [0.5, 0.5], "mean": [[-0.5], [0.5]], "covariance": [np.eye(1)] * 2}
    fit = sb.fit("ppc", x, chain, num_clusters=2, engine=at_one(given), progress=False)
    pairs = np.array([(i, j) for i in range(12) for j in range(i)])
    prob = fit.responsibilities()
    product = (prob[pairs[:, 0]] * prob[pairs[:, 1]]).sum(axis=1)
    linked = pairs[:, 0] == pairs[:, 1] + 1
    asked, exact = [], labels.agreement

    def too_wide(problem, draws, part):
        asked.append(len(part))
        if len(part) > 11:
            raise TooWideError
        return exact(problem, draws, part)

    monkeypatch.setattr(labels, "agreement", too_wide)
    monkeypatch.setattr(labels, "_PARTS", (1, 4))
    for most, tried in ((55, [66, 17, 11]), (54, [11])):  # pairs that are linked are never too many
        asked.clear()
        monkeypatch.setattr(labels, "_MOST_APART", most)
        with pytest.warns(
            sb.SideBayesWarning, match="labels of 55 pairs .* treated as independent"
        ):
            found = fit.same_cluster(pairs)
        assert asked == tried
        np.testing.assert_allclose(found[~linked], product[~linked])
        assert (found[linked] > product[linked] + 0.05).all()
