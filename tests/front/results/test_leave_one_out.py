"""Rows left out with their links, and refits without single units: against exact answers."""

import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats import compare
from jax.typing import ArrayLike
from scipy.special import logsumexp
from scipy.stats import norm
from sidebayes.guides.engines.base import Engine, EngineResult, Status
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph

import sidebayes
from sidebayes import LinkedCategorical, LinkedMixture, Links, SideBayesWarning
from sidebayes.results.scores.validation import deal_folds
from tests.support.draws import told

X = np.random.default_rng(3).normal([[0.0]] * 4 + [[2.5]] * 4, 1.0)
LINKS = Links.must_link([(0, 1), (1, 2), (4, 5)], 2.0) + Links.cannot_link([(2, 6)], 1.5)
GRID = np.linspace(-8, 16, 6001)


def two_components(x, links=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    labels = LinkedCategorical(
        jnp.log(jnp.ones(2) / 2), LabelGraph.build(None, len(x)) if links is None else links
    )
    parts = dist.Normal(jnp.array([[0.0], [1.0]]) * mu, 1.0).to_event(1)
    numpyro.sample("x", LinkedMixture(labels, parts), obs=x)


def log_density(x, links):
    """Log density of data and links at every value of the grid, by all labelings."""
    codes = (np.arange(2 ** len(x))[:, None] >> np.arange(len(x))) & 1
    same = codes[:, links.pairs[:, 0]] == codes[:, links.pairs[:, 1]]
    tie = np.where(same == links.same, 0.0, -np.abs(links.weights)).sum(axis=1)
    prior = tie - logsumexp(tie)  # links are a field: the density is of the data given them
    terms = norm.logpdf(x.ravel(), codes[..., None, :] * GRID[:, None], 1.0).sum(axis=-1)
    return logsumexp(terms + prior[:, None], axis=0)


@dataclass(frozen=True)
class OfGrid(Engine):
    """Evenly spaced quantiles of the exact posterior, in place of random draws."""

    name: ClassVar[str] = "grid"

    def run(self, problem, *, seed=0, init=None, progress=True):
        x = np.asarray(problem.args[0])
        links = problem.args[1].links if len(problem.args) > 1 else Links.empty(len(x))
        density = norm.logpdf(GRID, 0.0, 3.0) + log_density(x, links)
        mass = np.cumsum(np.exp(density - logsumexp(density)))
        draws = np.interp((np.arange(800) + 0.5) / 800, mass, GRID)
        draws = np.random.default_rng(0).permutation(draws).reshape(4, 200)
        lp = np.interp(draws, GRID, density)
        empty = np.zeros((0, 0))
        seconds = {"compile": 0.0, "run": 0.0}
        status = Status(True, "exact")
        return EngineResult("grid", {"mu": draws}, {"lp": lp}, empty, status, seconds)


def exact(row, out=None):
    """Log density of a row given the rows that are not left out and the links among these."""
    rest = np.delete(np.arange(len(X)), row if out is None else out)
    prior = norm.logpdf(GRID, 0.0, 3.0) + log_density(X[rest], LINKS.subset(rest))
    own = np.logaddexp(norm.logpdf(X[row, 0]), norm.logpdf(X[row, 0], GRID)) - np.log(2)
    return logsumexp(prior + own) - logsumexp(prior)


@pytest.fixture(scope="module")
def fits():
    given = {"engine": OfGrid(), "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SideBayesWarning)
        return {
            "linked": sidebayes.fit(two_components, X, LINKS, **given),
            "free": sidebayes.fit(two_components, X, **given),
        }


def test_rows_are_scored_without_their_links(fits):
    said = r"at 1 of 8 units.*loo\(unit='row', refit=True\).*kfold\(unit='row'\)"
    with pytest.warns(SideBayesWarning, match=said):
        weighted = fits["linked"].loo(unit="row")
    expected = np.array([exact(row) for row in range(len(X))])
    sound = (weighted.pareto_k <= weighted.good_k).to_numpy()
    # quantiles of 800 in place of an integral, and smoothed weights
    np.testing.assert_allclose(weighted.elpd_i[sound], expected[sound], atol=0.03)
    found = fits["linked"].loo(unit="row", refit=True, progress=False)
    np.testing.assert_allclose(found.elpd_i, expected, atol=0.03)
    assert found.n_data_points == len(X)
    with pytest.warns(SideBayesWarning, match="at 1 of 4 units"):  # {0, 1, 2, 6}, 3, {4, 5}, 7
        fits["linked"].loo()


def test_folds_of_rows_are_scored_without_their_links(fits):
    fold = deal_folds(np.arange(len(X)), 2, seed=1)
    expected = [exact(row, np.flatnonzero(fold == fold[row])) for row in range(len(X))]
    found = fits["linked"].kfold(2, unit="row", seed=1, progress=False)
    np.testing.assert_allclose(found.elpd_i, expected, atol=0.03)
    assert [*found.elpd_i.coords["unit"].values] == [str(row) for row in range(len(X))]
    assert found.p == pytest.approx(float(found.p_kfold_i.sum()))
    with pytest.raises(ValueError, match="expected 'set' or 'row'"):
        fits["linked"].kfold(2, unit="rows")


def test_the_use_of_links_can_be_asked(fits):
    scores = {n: fit.loo(unit="row", refit=True, progress=False) for n, fit in fits.items()}
    table = compare(scores)
    assert set(table.index) == {"linked", "free"}
    free = fits["free"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SideBayesWarning)
        np.testing.assert_allclose(free.loo(unit="row").elpd_i, free.loo().elpd_i)


def test_a_few_units_are_left_out_by_fits():
    x = np.append(X[:5], [[7.5]], axis=0)
    fit = sidebayes.fit(two_components, x, engine=OfGrid(), progress=False)
    with pytest.warns(SideBayesWarning, match=r"refit=True"):
        weighted = fit.loo()
    found = fit.loo(refit=True, progress=False)
    assert (found.pareto_k <= found.good_k).all()
    rest = norm.logpdf(GRID, 0.0, 3.0) + log_density(x[:5], Links.empty(5))
    own = np.logaddexp(norm.logpdf(7.5), norm.logpdf(7.5, GRID)) - np.log(2)
    expected = logsumexp(rest + own) - logsumexp(rest)
    assert found.elpd_i[5] == pytest.approx(expected, abs=0.5)  # far out in the tail of the draws
    assert weighted.elpd_i[5] > expected + 0.5
    assert found.elpd == pytest.approx(float(found.elpd_i.sum()))
    assert (found.elpd_i[:5] == weighted.elpd_i[:5]).all()


def test_what_is_no_row_is_refused(fits):
    with pytest.raises(ValueError, match="expected 'set' or 'row'"):
        fits["free"].loo(unit="point")


def test_rows_of_groups_that_share_a_label_are_no_units():
    def grouped(y: Annotated[ArrayLike, "rows"], subjects: Annotated[sidebayes.Groups, "rows"]):
        loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
        graph = as_label_graph(None, subjects.num_groups)
        labels = LinkedCategorical(jnp.log(jnp.array([0.6, 0.4])), graph)
        parts = dist.Normal(loc + jnp.array([0.0, 2.0]), 1.0)
        numpyro.sample("y", LinkedMixture(labels, parts, groups=subjects), obs=y)

    who = ["d", "a", "c", "a", "d", "c"]
    y = X[:6, 0]
    fit = told(grouped, (y, who), {"loc": 0.5})
    assert "6 rows of 3 subjects, 2 clusters, 0 links" in repr(fit)
    assert fit.loo().n_data_points == 3
    with pytest.raises(ValueError, match=r"has units of \['subjects'\].*use unit='set'"):
        fit.loo(unit="row")
    with pytest.raises(ValueError, match=r"has units of \['subjects'\].*use unit='set'"):
        fit.kfold(2, unit="row")


def test_rows_without_links_have_no_score_where_links_alone_are_observed():
    at = {"coefficients": [[-1.0, 0.0], [1.0, 0.0]]}
    links = Links.must_link([(0, 1)], 2.0)
    fit = told("pairwise_gp", (X.reshape(4, 2), links), at, num_clusters=2)
    with pytest.raises(ValueError, match="pairwise_gp observes links alone, so that rows"):
        fit.kfold(2, unit="row")
