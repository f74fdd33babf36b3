"""Data and links held out: against closed forms, refits by hand and enumeration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats import compare
from jax.typing import ArrayLike
from scipy.stats import multivariate_normal, norm
from sidebayes.guides.engines.base import Engine, EngineResult, Status

import sidebayes
from sidebayes import (
    EM,
    GaussianPrior,
    LinkedCategorical,
    LinkedMixture,
    Links,
    SideBayesWarning,
)
from sidebayes.results.scores.unit_names import warn_of_few
from sidebayes.results.scores.validation import deal_folds
from tests.reference.brute_force import enumerate_labelings, infer

PRIOR_SCALE = 3.0


def one_normal(x, links):
    mu = numpyro.sample("mu", dist.Normal(0.0, PRIOR_SCALE))
    labels = LinkedCategorical(jnp.zeros(1), links)
    parts = dist.Normal(mu * jnp.ones((1, 1)), 1.0).to_event(1)
    numpyro.sample("x", LinkedMixture(labels, parts), obs=x)


def posterior_of_mean(x):
    precision = PRIOR_SCALE**-2 + len(x)
    return x.sum() / precision, precision**-0.5


@dataclass(frozen=True)
class Quantiles(Engine):
    """Evenly spaced quantiles of the mean's posterior, in place of random draws."""

    name: ClassVar[str] = "quantiles"
    settled: bool = True

    def run(self, problem, *, seed=0, init=None, progress=True):
        centre, scale = posterior_of_mean(np.asarray(problem.args[0]))
        draws = centre + scale * norm.ppf((np.arange(800) + 0.5) / 800)
        draws = np.random.default_rng(0).permutation(draws).reshape(4, 200)
        return EngineResult(
            engine=self.name,
            draws={"mu": draws},
            sample_stats={"lp": norm.logpdf(draws, centre, scale)},
            objective=np.zeros((0, 0)),
            status=Status(self.settled, "exact"),
            seconds={"compile": 0.0, "run": 0.0},
        )


X = np.random.default_rng(3).normal(1.0, 1.0, (9, 1))
TIES = Links.must_link([(0, 4), (4, 7)], 2.0) + Links.must_link([(2, 5)], 1.0)
UNITS = [[0, 4, 7], [1], [2, 5], [3], [6], [8]]


@pytest.fixture(scope="module")
def conjugate():
    return sidebayes.fit(one_normal, X, TIES, engine=Quantiles())


def held_out(rows, trained):
    """Log density of rows given others: normal with a shared mean."""
    centre, scale = posterior_of_mean(X[trained])
    covariance = np.eye(len(rows)) + scale**2
    return multivariate_normal(np.full(len(rows), centre), covariance).logpdf(X[rows, 0])


def test_one_connected_set_at_a_time_has_the_closed_form(conjugate):
    found = conjugate.kfold(6)
    expected = [held_out(rows, np.setdiff1d(np.arange(9), rows)) for rows in UNITS]
    np.testing.assert_allclose(found.elpd_i, expected, atol=0.01)
    assert found.elpd == pytest.approx(np.sum(expected), abs=0.03)
    assert found.se == pytest.approx(np.sqrt(6) * np.std(expected, ddof=1), rel=0.02)
    assert (found.n_folds, found.n_data_points, found.n_samples) == (6, 6, 800)
    together = conjugate.tree["log_likelihood"]["x"].to_numpy().reshape(-1, 6)
    inside = np.log(np.exp(together).mean(axis=0))
    assert found.p == pytest.approx(np.sum(inside - expected), abs=0.03)


def test_leaving_out_by_weights_agrees_and_arviz_compares_them(conjugate):
    weighted = conjugate.loo()
    refitted = conjugate.kfold(6)
    np.testing.assert_allclose(weighted.elpd_i, refitted.elpd_i, atol=0.05)
    assert (weighted.pareto_k < 0.7).all()
    assert set(compare({"refitted": refitted, "once more": refitted}).index) >= {"refitted"}


def test_larger_folds_are_held_out_together(conjugate):
    fold = deal_folds(np.array([0, 1, 2, 3, 0, 2, 4, 0, 5]), 2, seed=1)
    expected = np.empty(6)
    for number, rows in enumerate(UNITS):
        out = np.concatenate([UNITS[c] for c in np.flatnonzero(fold == fold[number])])
        expected[number] = held_out(rows, np.setdiff1d(np.arange(9), out))
    np.testing.assert_allclose(conjugate.kfold(2, seed=1).elpd_i, expected, atol=0.01)


def test_a_point_that_moves_the_posterior_is_pointed_out():
    far = np.append(X[:4], [[40.0]], axis=0)
    fit = sidebayes.fit(one_normal, far, engine=Quantiles())
    with pytest.warns(SideBayesWarning, match=r"k is above 0\.\d+ at \d of 5 .* fit\.kfold\(\)"):
        assert fit.loo().pareto_k[4] > 0.7


def test_folds_that_do_not_converge_are_named():
    fit = sidebayes.fit(one_normal, X, engine=Quantiles(settled=False))
    with pytest.warns(
        SideBayesWarning, match=r"did not converge on folds \[0, 1\]; the first of them: "
    ):
        assert fit.kfold(2).warning


def test_few_units_and_few_rows_are_said():
    few = sidebayes.fit(one_normal, X[:4], engine=Quantiles())
    with pytest.warns(SideBayesWarning, match="standard error are of 4 units, too few to judge"):
        few.kfold(2, progress=False)
    params = {"weights": [1.0], "mean": np.zeros((1, 2)), "covariance": np.eye(2)[None]}
    x = np.random.default_rng(0).normal(size=(16, 2))
    point = sidebayes.fit("gmm", x, num_clusters=1, engine=Told(params, []))
    with pytest.warns(SideBayesWarning, match="have 4 rows for 5 free parameters.*take more folds"):
        warn_of_few(point, 16, 16, 4)
    warn_of_few(point, 16, 16, 5)
    warn_of_few(point, 16, 4, 2)  # as the fit itself: nothing that folds bring about


ROWS = np.array([[0.0], [0.9], [2.8], [3.3], [0.2], [1.9], [0.6], [2.6], [-0.8], [3.6]])
LINKED = (
    Links.must_link([(0, 1)], 1.5)
    + Links.cannot_link([(1, 2)], 2.0)
    + Links.must_link([(2, 3)])
    + Links.cannot_link([(0, 3)], 1.0)
    + Links.must_link([(4, 5)], 0.7)
)


@pytest.fixture(scope="module")
def field():
    engine = EM(num_restarts=2, max_steps=3000)
    return sidebayes.fit("ppc", ROWS, LINKED, num_clusters=2, engine=engine, seed=2)


def log_joint(rows, params, links):
    """Log density of rows by the sum over their labelings, given their links."""
    weights = np.log(params["weights"])
    unary = norm.logpdf(ROWS[rows], params["mean"][:, 0], np.sqrt(params["covariance"][:, 0, 0]))
    inside = [n for n, pair in enumerate(links.pairs) if set(pair) <= set(rows)]
    pairs = np.array([[rows.index(i) for i in links.pairs[n]] for n in inside], int).reshape(-1, 2)
    prior = np.tile(weights, (len(rows), 1))
    both = [infer(u, pairs, links.weights[inside])[0] for u in (unary + weights, prior)]
    return both[0] - both[1]


def test_refits_by_hand_and_enumeration_agree(field):
    unit = np.array([0, 0, 0, 0, 1, 1, 2, 3, 4, 5])
    fold = deal_folds(unit, 2, seed=4)[unit]
    expected = np.empty(6)
    for number in (0, 1):
        kept = np.flatnonzero(fold != number)
        inside = np.isin(LINKED.pairs, kept).all(axis=1)
        links = Links(np.searchsorted(kept, LINKED.pairs[inside]), LINKED.weights[inside])
        prior = GaussianPrior.empirical(ROWS, 2)
        given = {"num_clusters": 2, "engine": field.config, "prior": prior, "seed": 4}
        params = sidebayes.fit("ppc", ROWS[kept], links, **given).params
        for one in np.unique(unit[fold == number]):
            rows = np.flatnonzero(unit == one).tolist()
            expected[one] = log_joint(rows, params, LINKED)
    found = field.kfold(2, seed=4)
    np.testing.assert_allclose(found.elpd_i, expected, rtol=1e-6)


@dataclass(frozen=True)
class Told(Engine):
    """Gives the parameters that it is told, and keeps the problems that it is given."""

    params: dict
    problems: list
    name: ClassVar[str] = "told"

    def run(self, problem, *, seed=0, init=None, progress=True):
        self.problems.append(problem)
        return EngineResult(
            engine=self.name,
            draws={name: np.asarray(value)[None, None] for name, value in self.params.items()},
            sample_stats={"lp": np.zeros((1, 1))},
            objective=np.zeros((0, 0)),
            status=Status(True, "told"),
            seconds={"compile": 0.0, "run": 0.0},
        )


def test_no_fold_cuts_a_constraint_that_ties_no_labels():
    """Prices of links and of groups: whole in the refits, or held out with all their rows."""
    x = np.random.default_rng(5).normal(size=(16, 2))
    links = Links([(0, 9), (9, 13), (2, 5), (11, 12)], [1.5, -np.inf, np.inf, -0.5], 16)
    groups = {"must_groups": ((3, 8, 12), (1, 6)), "cannot_groups": ((4, 10, 15),)}
    params = {"weights": [0.3, 0.7], "mean": [[-0.5, 0.0], [1.0, 1.0]], "covariance": np.eye(2)}
    told = Told(params, [])
    found = sidebayes.fit("constraint_fit", x, links, num_clusters=2, engine=told, **groups)
    score = found.kfold(3, progress=False)
    unit = [[0, 9, 13], [1, 6], [2, 5], [3, 8, 11, 12], [4, 10, 15], [7], [14]]
    held_out = []
    for problem in told.problems[1:]:
        data = np.asarray(problem.args[0])
        row = [int(np.flatnonzero((x == one).all(axis=1))[0]) for one in data]
        out = [rows for rows in unit if not set(rows) & set(row)]
        assert sorted([*row, *chain(*out)]) == list(range(16))
        held_out += out
        kept, expected = problem.args[1].links, links.subset(np.isin(np.arange(16), row))
        assert len(kept) == sum(pair[0] in row for pair in links.pairs)
        np.testing.assert_array_equal(kept.pairs, expected.pairs)
        np.testing.assert_array_equal(kept.weights, expected.weights)
        for name, sets in groups.items():
            left = [tuple(row[i] for i in one) for one in problem.kwargs[name]]
            assert left == [one for one in sets if one[0] in row]
    assert sorted(held_out) == unit
    parts = np.stack([multivariate_normal(mean).pdf(x) for mean in params["mean"]], axis=1)
    density = np.log(parts @ params["weights"])
    np.testing.assert_allclose(score.elpd_i, [density[rows].sum() for rows in unit], rtol=1e-10)
    np.testing.assert_allclose(score.p, 0.0, atol=1e-10)  # no refit moved the parameters


def two_tables(
    late: Annotated[ArrayLike, "nights"],
    early: Annotated[ArrayLike, "days"],
    whole: Annotated[ArrayLike, "once"],
):
    """Units of two kinds, and one number about all, in no order of the alphabet."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("nights", len(late)):
        numpyro.sample("late", dist.Normal(mean, 1.0), obs=late)
    with numpyro.plate("days", len(early)):
        numpyro.sample("early", dist.Normal(-mean, 2.0), obs=early)
    numpyro.sample("whole", dist.Normal(10 * mean, 1.0), obs=whole[0])


def test_folds_and_weights_have_units_in_one_order():
    late, early = np.arange(4.0), np.arange(3.0)
    told = Told({"mean": 0.5}, [])
    fit = sidebayes.fit(two_tables, late, early, np.array([4.0]), engine=told)
    score = fit.kfold(2, progress=False)
    by_hand = [*norm.logpdf(early, -0.5, 2.0), *norm.logpdf(late, 0.5, 1.0)]
    np.testing.assert_allclose(score.elpd_i, by_hand)
    assert score.se == pytest.approx(np.sqrt(7) * np.std(by_hand, ddof=1))
    np.testing.assert_allclose(fit.unit_terms[0, 0], [*by_hand, norm.logpdf(4.0, 5.0, 1.0)])


def test_refits_keep_the_prior_of_every_component():
    """Two Gaussians per class: the prior of the whole data is divided among four, not two."""
    params = {
        "weights": [0.5, 0.5],
        "component_weights": np.full((2, 2), 0.5),
        "mean": np.arange(4.0).reshape(2, 2, 1),
        "covariance": np.ones((2, 2, 1, 1)),
    }
    told = Told(params, [])
    options = {"num_clusters": 2, "num_components": 2, "engine": told}
    sidebayes.fit("pair_mixture", ROWS, LINKED, **options).kfold(2, progress=False)
    with jax.enable_x64(True):
        expected = GaussianPrior.empirical(ROWS, 4)
    whole, *refits = [problem.kwargs.get("prior") for problem in told.problems]
    assert whole is None  # read off the data by the model
    assert len(refits) == 2
    for prior in refits:
        np.testing.assert_allclose(prior.scale, expected.scale, rtol=1e-12)
        np.testing.assert_allclose(prior.mean, expected.mean, rtol=1e-12)
        assert (prior.df, prior.shrinkage) == (expected.df, expected.shrinkage)


def test_folds_keep_connected_sets_whole_and_are_even():
    unit = np.repeat(np.arange(30), np.random.default_rng(0).integers(1, 6, 30))
    fold = deal_folds(unit, 4, seed=0)
    points = np.bincount(fold[unit], minlength=4)
    assert np.ptp(points) <= 5
    assert not np.array_equal(fold, deal_folds(unit, 4, seed=1))
    for wrong in (1, 31, 2.0):
        with pytest.raises(ValueError, match="num_folds"):
            deal_folds(unit, wrong, seed=0)
    with pytest.raises(ValueError, match="connected sets of the links"):
        deal_folds(unit, 31, seed=0)
    with pytest.raises(ValueError, match="at most 12, the number of units that can be held out"):
        deal_folds(np.arange(12), 13, seed=0)


KNOWN = {"weights": [0.5, 0.5], "mean": [[0.0], [3.0]], "covariance": np.ones((2, 1, 1))}


@pytest.fixture(scope="module")
def unlinked():
    return sidebayes.fit("gmm", ROWS, num_clusters=2, engine=Told(KNOWN, []))


def test_point_fits_have_folds_but_no_weights(unlinked):
    with pytest.raises(ValueError, match=r"too few .* fit.kfold"):
        unlinked.loo()


ASKED = [(0, 2), (1, 3), (0, 4), (1, 4), (2, 5), (6, 7), (6, 8), (3, 9), (4, 9)]


def test_held_out_links_are_scored_as_enumeration_does():
    """Pairs inside a connected set, tied by a hard link, and across such sets; labels in doubt."""
    same = np.array([False, True, True, False, True, False, True, True, True])
    asked = Links.from_pairs(ASKED, same)
    rows = np.array([0.0, 0.9, 1.6, 2.4, 0.2, 1.3, 0.6, 2.0, -0.8, 1.5])[:, None]
    links = LINKED + Links.cannot_link([(5, 9)], 0.5)
    wide = sidebayes.GaussianPrior([1.0], 0.1, 40.0, [[14.0]])  # leaves labels in doubt
    options = {"num_clusters": 2, "prior": wide, "engine": EM(num_restarts=2), "seed": 2}
    field = sidebayes.fit("ppc", rows, links, **options)
    params = field.params
    unary = norm.logpdf(rows, params["mean"][:, 0], np.sqrt(params["covariance"][:, 0, 0]))
    z, energy = enumerate_labelings(unary + np.log(params["weights"]), links.pairs, links.weights)
    prob = np.exp(energy - energy.max())
    prob /= prob.sum()
    agree = prob @ (z[:, asked.pairs[:, 0]] == z[:, asked.pairs[:, 1]])
    met = np.where(asked.same, agree, 1 - agree)
    share = (prob @ z).mean()
    chance = share**2 + (1 - share) ** 2
    one, two = (prob @ z)[asked.pairs].T
    alone = one * two + (1 - one) * (1 - two)
    assert np.abs(alone - agree).max() > 1e-3  # links between others matter
    for flip_rate in (0.0, 0.1):
        found = field.score_links(asked, flip_rate=flip_rate)
        expected = np.log(met * (1 - flip_rate) + (1 - met) * flip_rate)
        np.testing.assert_allclose(found.table["probability"], met, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(found.table["log_score"], expected, rtol=1e-6, atol=1e-12)
        assert found.mean == pytest.approx(expected.mean(), rel=1e-6)
        guess = np.where(asked.same, chance, 1 - chance)
        guess = np.log(guess * (1 - flip_rate) + (1 - guess) * flip_rate)
        assert found.baseline == pytest.approx(guess.mean(), rel=1e-6)
    assert "over 9 held-out links" in str(found)
    assert f"{found.baseline:.3f} by the sizes of the clusters" in str(found)


def test_probabilities_of_links_are_averaged_over_draws():
    """Two draws that disagree: the log of the mean, not the mean of the logs."""
    from sidebayes.diagnostics.links.link_scores import score_statements

    links = Links.from_pairs([(0, 1), (0, 2)], [True, False])
    agree = np.array([[0.9, 0.2], [0.1, 0.6]])
    found = score_statements(links, agree, np.array([0.4, 0.6]), 0.0, None)
    np.testing.assert_allclose(found.table["log_score"], np.log([0.5, 0.6]))
    assert found.baseline == pytest.approx(np.log(0.5))
    assert found.mean == pytest.approx(np.log([0.5, 0.6]).mean())
    single = score_statements(
        links.take([True, False]), agree[:, :1], np.array([0.4, 0.6]), 0.0, None
    )
    assert str(single).startswith("log score -0.693 per link over 1 held-out link, ")


def test_models_without_links_score_links(unlinked):
    links = Links.from_pairs([(0, 1), (0, 2)], [True, False])
    found = unlinked.score_links(links)
    assert found.mean > found.baseline
    prob = unlinked.responsibilities()
    expected = [prob[0] @ prob[1], 1 - prob[0] @ prob[2]]
    np.testing.assert_allclose(found.table["probability"], expected)


@pytest.fixture(scope="module")
def linked():
    links = Links.cannot_link([(1, 2)], 2.0)
    return sidebayes.fit("ppc", ROWS, links, num_clusters=2, engine=Told(KNOWN, []))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"links": [(0, 2)]}, TypeError, "links is a list"),
        ({"links": Links.empty()}, ValueError, "links is empty"),
        ({"links": Links.must_link([(0, 10)])}, ValueError, "name row 10; the fit has 10"),
        ({"links": Links.must_link([(1, 2)])}, ValueError, r"\(1, 2\) say"),
        ({"links": Links.must_link([(0, 2)]), "flip_rate": 0.5}, ValueError, "flip_rate = 0.5"),
    ],
)
def test_bad_links_are_refused(linked, wrong, error, message):
    with pytest.raises(error, match=message):
        linked.score_links(**wrong)
