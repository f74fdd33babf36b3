"""Starts differ, do not depend on units, and find what starts that are one start miss."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.modes import (
    distinct_modes,
    mode_stats,
    modes_missed,
    preferred_by_prior,
)
from sidebayes.guides.engines.problem.declared import prior_off_data
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.partition_starts import cell_moments, partitions
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.reliability import FlipRate
from sidebayes.models.gmm import gmm

import sidebayes

DATA = sidebayes.load_dataset("iris")
X = DATA.x


def canonical(label):
    return tuple(np.unique(label, return_index=True)[1][np.argsort(np.unique(label))][label])


@pytest.mark.parametrize("even", [False, True])
def test_partitions_differ_in_more_than_numbers(even):
    found = partitions(X, 3, 0, 40, even=even)
    assert len({canonical(label) for label in found.labels}) == 40
    assert all(len(np.unique(label)) <= 3 for label in found.labels)


def test_partitions_and_moments_follow_the_units():
    unit = np.array([1e-3, 1.0, 50.0, 1e4])
    here, there = partitions(X, 3, 0, 22), partitions(X * unit, 3, 0, 22)
    np.testing.assert_array_equal(here.labels, there.labels)
    mean, covariance = cell_moments(here, 3)
    other_mean, other = cell_moments(there, 3)
    np.testing.assert_allclose(other_mean, mean * unit)
    np.testing.assert_allclose(other, covariance * unit * unit[:, None], rtol=1e-8, atol=1e-8)


def test_few_partitions_are_taken_again():
    found = partitions(np.array([[0.0], [1.0], [5.0]]), 2, 0, 8)
    assert found.labels.shape == (8, 3)
    assert partitions(X, 1, 0, 5).labels.max() == 0


@pytest.mark.parametrize("engine", [sidebayes.EM(rank="joint"), sidebayes.MAP()], ids=["em", "map"])
def test_the_mode_of_highest_density_of_twenty_links_is_found(engine):
    """K-means partitions all climb to -172.65, which has the higher likelihood.

    A mixture without blocks found this one, which the prior read off the data prefers.
    """
    links = sidebayes.simulate_links(DATA.labels, 20, weight=2.0)
    fit = sidebayes.fit("ppc", X, links, num_clusters=3, engine=engine, progress=False)
    assert fit.tree["sample_stats"]["lp"].item() > -170.9
    assert "distinct modes from 10 starts" in str(fit.status)
    assert "a mode of log joint -172.653 is higher by 13.7" in str(fit.status)


def test_a_prior_read_off_the_data_and_the_data_may_prefer_different_modes():
    value, prior = np.array([-172.65, -170.88, -180.0]), np.array([10.0, 25.0, -5.0])
    likely = preferred_by_prior(value, prior, 0, [1, 0])
    assert "with it a mode of log joint -170.88 is higher, and without it that mode is" in likely
    assert "lower by 13.2; engines that draw may end there, and rank='joint' chooses it" in likely
    high = preferred_by_prior(value, prior, 1, [1, 0])
    assert "log joint -172.65 is higher by 13.2: only that prior prefers the one kept" in high
    assert not preferred_by_prior(value, prior, 0, [0, 0])
    assert mode_stats(value[0], prior[0])["lp_without_prior"].item() == -182.65
    assert list(mode_stats(value[0], np.zeros(()))) == ["lp"]


@pytest.mark.parametrize(("prior", "is_off_data"), [("empirical", True), ("given", False)])
def test_only_priors_that_were_read_off_the_data_are_left_out(prior, is_off_data):
    chosen = GaussianPrior.empirical(X, 2) if prior == "given" else prior
    problem = Problem(gmm, (X,), {"num_clusters": 2, "prior": chosen})
    at = {"mean": X[[0, 99]], "covariance": np.stack([np.eye(4), 2 * np.eye(4)])}
    found = jax.jit(lambda: prior_off_data(trace_model(problem, at | {"weights": np.full(2, 0.5)})))
    law = GaussianPrior.empirical(X, 2)
    expected = sum(
        stats.multivariate_normal.logpdf(mean, law.mean, covariance / law.shrinkage)
        + stats.invwishart.logpdf(covariance, law.df, law.scale)
        for mean, covariance in zip(at["mean"], at["covariance"], strict=True)
    )
    assert found() == pytest.approx(expected if is_off_data else 0.0, rel=1e-5)


def test_modes_are_counted_whatever_the_numbers_of_clusters():
    value = np.array([-1.0, -1.001, -1.0, -5.0])
    sites = {"mean": np.array([[0.0, 3.0], [3.0, 0.0], [0.5, 2.0], [0.0, 3.0]])}
    sound = np.array([True, True, True, True])
    found = distinct_modes(value, sound, sites)
    assert str(found) == "3 distinct modes from 4 starts"
    assert found.height.tolist() == [-1.0, -1.0, -5.0]
    one = distinct_modes(value[:2], sound[:2], {"mean": sites["mean"][:2]})
    assert str(one) == "1 distinct mode from 2 starts"


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_rounding_near_zero_makes_no_second_mode(unit):
    """Where all ends are at zero, nothing but the starts tells what is far."""
    rng, value, sound = np.random.default_rng(0), np.zeros(10), np.ones(10, bool)
    starts = {"mean": unit * rng.normal(size=10)}
    ends = {"mean": 1e-6 * unit * rng.normal(size=10)}
    assert len(distinct_modes(value, sound, ends, starts).height) == 1
    apart = {"mean": 1e-3 * unit * np.sign(ends["mean"])}
    assert len(distinct_modes(value, sound, apart, starts).height) == 2


def test_a_mode_that_no_draw_reached_is_found():
    def modes(*heights):
        places = np.array([[0.0, 5.0], [0.0, 1.0], [4.0, 9.0]])[: len(heights)]
        return distinct_modes(np.array(heights), np.ones(len(heights), bool), {"mean": places})

    rng = np.random.default_rng(0)
    draws = {"mean": np.array([5.0, 0.0]) + rng.normal(size=(4, 500, 2))}  # numbered otherwise
    assert modes_missed(modes(-1.0, -3.5), draws) == 2.5
    assert modes_missed(modes(-1.0, -5.5), draws) is None  # too low to matter
    assert modes_missed(modes(-1.0), draws) is None
    wide = {"mean": draws["mean"] + 4 * rng.normal(size=(4, 500, 2))}
    assert modes_missed(modes(-1.0, -3.5), wide) is None
    # where draws do not hold the highest mode, as of a skewed posterior, nothing is known
    assert modes_missed(modes(-2.0, -3.5, -1.5), draws) is None


@pytest.mark.parametrize("prior", [dist.Beta(1.0, 4.0), dist.Uniform(0.0, 0.3)])
def test_flip_rates_start_at_the_given_weights(prior):
    graph = LabelGraph.build(sidebayes.simulate_links(DATA.labels, 20, weight=2.0), len(X), 3)
    start = FlipRate(prior, graph).typical({"reliability": ()})["reliability"]
    np.testing.assert_allclose(start, 1 / (1 + np.exp(2.0)))


def test_a_flip_rate_above_one_half_is_said():
    block = FlipRate(dist.Beta(1.0, 4.0), None)
    assert block.remark({"reliability": np.full((1, 1), 0.2)}) is None
    assert "as 0.55: above one half" in block.remark({"reliability": np.full((1, 1), 0.55)})


@pytest.mark.parametrize("seed", range(2))
def test_learned_rates_find_the_species_as_given_weights_do(seed):
    crabs = sidebayes.load_dataset("crabs")
    links = sidebayes.simulate_links(crabs.labels, 60, flip_rate=0.1, weight=2.0, seed=seed)
    fit = sidebayes.fit(
        "ppc",
        crabs.x,
        links,
        num_clusters=2,
        covariance="tied",
        reading="relation",
        flip_rate="learned",
        truth=crabs.labels,
        progress=False,
    )
    labels = fit.labels()
    agree = max(np.mean(labels == crabs.labels), np.mean(labels != crabs.labels))
    assert agree > 0.95
    assert fit.params["flip_rate"] == pytest.approx(0.1, abs=0.05)
