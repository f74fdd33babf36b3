"""Leave-one-out densities by unit, against sums over a grid of the parameters.

Of each probe all sites but one or two are held, so that a grid holds the whole posterior. Densities of
units are written in NumPy, labels of linked units enumerated. Draws from the grid are given to the fit,
whose terms and whose PSIS must be those of the grid.
"""

from __future__ import annotations

import functools
import warnings
from itertools import product

import numpy as np
import pytest
from numpyro import handlers
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm, poisson, t

import sidebayes as sb
from tests.probes import models
from tests.support.draws import Told

CHAINS, DRAWS = 40, 200


def holding(model, held):
    """The model with some sites held at values, and without blocks."""

    @functools.wraps(model)
    def fixed(*data, **options):
        with handlers.block(hide=list(held)), handlers.substitute(data=held):
            handlers.infer_config(model, lambda site: {"block": None})(*data, **options)

    return fixed


def grid(*axes):
    """Points of a grid, shape (points, axes)."""
    return np.array(list(product(*axes)))


def mixture(log_weights, densities):
    """Log density of a mixture over the last axis."""
    return logsumexp(log_weights + densities, axis=-1)


def pair(first, second, weights, tie):
    """Log density of two linked units under a random field, all four labelings summed."""
    both = first[:, :, None] + second[:, None, :] + tie
    chance = np.log(weights)[:, None] + np.log(weights) + tie
    return logsumexp(both, axis=(1, 2)) - logsumexp(chance)


def lines():
    """Intercepts of two lines; of eight subjects two pairs are linked."""
    rng, slope, noise = np.random.default_rng(0), np.array([2.0, -2.0]), np.array([1.0, 1.2])
    weights = np.array([0.4, 0.6])
    subjects = np.array([0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 7])
    label = (np.arange(8) % 2)[subjects]
    times = rng.uniform(0, 2, len(subjects))
    y = np.array([1.0, -1.0])[label] + slope[label] * times
    y = y + noise[label] * rng.normal(size=len(subjects))
    links = sb.Links([(0, 2), (3, 1)], [0.8, np.inf], 8)
    axis = np.linspace(-5, 5, 301)
    points = grid(axis, axis)
    density = norm.logpdf(y[:, None], points[:, None] + slope * times[:, None], noise)
    joint = np.stack([density[:, subjects == s].sum(axis=1) for s in range(8)], axis=1)
    joint = joint + np.log(weights)
    soft, hard = 0.8 * np.eye(2), np.where(np.eye(2) > 0, 0.0, -np.inf)
    terms = [
        pair(joint[:, 0], joint[:, 2], weights, soft),
        pair(joint[:, 1], joint[:, 3], weights, hard),
        *logsumexp(joint[:, 4:], axis=2).T,
    ]
    held = {"weights": weights, "slope": slope, "noise": noise}
    prior = norm.logpdf(points, 0, 10).sum(axis=1)
    given = y, times, subjects, links
    return (
        models.lines,
        held,
        given,
        {"num_clusters": 2},
        {"intercept": points},
        prior,
        np.stack(terms, axis=1),
    )


def gaussians(mean, covariance, x):
    """Log densities of one feature, shape (points, rows, clusters)."""
    return norm.logpdf(x[None], mean[:, None], np.sqrt(covariance))


def labelled():
    """Means of two components, of which one row in two has a known class."""
    x = np.array([-1.0, 0.2, 0.9, 1.4])[:, None]
    known, weights = np.array([0, -1, 1, -1]), np.array([0.3, 0.7])
    table, variance = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0.5, 0.9])
    held = {"weights": weights, "covariance": variance[:, None, None], "class_probs": table}
    points = grid(np.linspace(-12, 12, 121), np.linspace(-12, 12, 121))
    log_side = np.where(known[:, None] < 0, 0.0, np.log(table.T[known]))
    terms = mixture(np.log(weights) + log_side, gaussians(points, variance, x))
    empirical = sb.GaussianPrior.empirical(x, 2)
    width = np.sqrt(variance / empirical.shrinkage)
    prior = norm.logpdf(points, np.asarray(empirical.mean), width).sum(axis=1)
    options = {"num_clusters": 2, "num_classes": 2}
    return models.labelled, held, (x, known), options, {"mean": points[..., None]}, prior, terms


def shifted():
    """Means of two clusters in the source, and where they moved to in the target."""
    source = np.array([[-1.4], [-1.1], [-0.7], [0.6], [1.0], [1.2], [1.9]])
    target = np.array([[-0.9], [-0.6], [1.2], [1.7], [2.0]])
    weights, variance, shift = np.array([0.45, 0.55]), 0.5, 0.8
    held = {"weights": weights, "covariance": np.array([[variance]]), "shift": shift}
    axis = np.linspace(-7, 7, 29)
    points = grid(axis, axis, axis, axis)
    mean, moved = points[:, :2], points[:, 2:]
    terms = [
        mixture(np.log(weights), gaussians(centre, variance, x))
        for centre, x in ((mean, source), (moved, target))
    ]
    empirical = sb.GaussianPrior.empirical(source, 2)
    width = np.sqrt(variance / empirical.shrinkage)
    prior = norm.logpdf(mean, np.asarray(empirical.mean), width).sum(axis=1)
    prior = prior + norm.logpdf(moved, mean, shift).sum(axis=1)
    sites = {"mean": mean[..., None], "moved": moved[..., None]}
    options = {"num_clusters": 2}
    return models.shifted, held, (source, target), options, sites, prior, np.hstack(terms)


def survival():
    """Effects of two subjects, one of whom was censored."""
    held = {"level": 0.5, "spread": 0.8, "noise": 2.0, "hazard": 0.1, "pull": -0.3}
    y, times, subjects = np.array([1.2, 0.9, 0.1]), np.zeros(3), np.array(["a", "b", "b"])
    until, died = np.array([1.3, 0.4]), np.array([0.0, 1.0])
    points = grid(np.linspace(-7, 7, 141), np.linspace(-7, 7, 141))
    rate = np.exp(held["hazard"] + held["pull"] * points)
    terms = died * np.log(rate) - rate * until
    for row, subject in enumerate([0, 1, 1]):
        centre = held["level"] + held["spread"] * points[:, subject]
        terms[:, subject] += norm.logpdf(y[row], centre, held["noise"])
    prior = norm.logpdf(points).sum(axis=1)
    given = y, times, subjects, until, died
    return models.joint_survival, held, given, {}, {"effect": points}, prior, terms


def hierarchical():
    """Means of two clusters of two features; two rows are linked."""
    x = np.array([[-1.0, 0.0], [0.4, 0.3], [1.1, -0.2], [0.9, 0.8]])
    weights, centre, shrinkage = np.array([0.4, 0.6]), np.array([0.2, 0.1]), 0.5
    covariance = np.array([[[0.6, 0.2], [0.2, 0.5]], [[0.9, -0.1], [-0.1, 0.7]]])
    held = {
        "weights": weights,
        "centre": centre,
        "shrinkage": shrinkage,
        "covariance": covariance,
    }
    axis = np.linspace(-5, 5, 27)
    mean = grid(axis, axis, axis, axis).reshape(-1, 2, 2)
    apart = x[None, :, None] - mean[:, None]
    density = np.stack(
        [
            multivariate_normal(np.zeros(2), c).logpdf(apart[:, :, k])
            for k, c in enumerate(covariance)
        ],
        axis=-1,
    )
    joint = density + np.log(weights)
    linked = pair(joint[:, 0], joint[:, 2], weights, -0.9 * np.eye(2))
    terms = np.stack([linked, *logsumexp(joint[:, [1, 3]], axis=2).T], axis=1)
    prior = sum(
        multivariate_normal(centre, c / shrinkage).logpdf(mean[:, k])
        for k, c in enumerate(covariance)
    )
    given, options = (x, sb.Links([(0, 2)], [-0.9], 4)), {"num_clusters": 2}
    return models.hierarchical, held, given, options, {"mean": mean}, prior, terms


def robust():
    """Locations of two components under flat priors."""
    x, weights, scale = (
        np.array([-2.0, -1.2, 0.8, 1.5, 2.6]),
        np.array([0.5, 0.5]),
        np.array([0.7, 1.1]),
    )
    points = grid(np.linspace(-40, 40, 401), np.linspace(-40, 40, 401))
    terms = mixture(
        np.log(weights), t(4).logpdf((x[:, None] - points[:, None]) / scale) - np.log(scale)
    )
    held = {"weights": weights, "scale": scale}
    prior = np.zeros(len(points))
    return models.robust, held, (x,), {"num_clusters": 2}, {"centre": points}, prior, terms


def counts():
    """Two coefficients of a Poisson regression."""
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(6), rng.normal(size=6)])
    events = rng.poisson(np.exp(design @ [0.8, 0.3]))
    points = grid(np.linspace(-3, 3, 121), np.linspace(-3, 3, 121))
    terms = poisson.logpmf(events, np.exp(points @ design.T))
    prior = norm.logpdf(points, 0, 2).sum(axis=1)
    given = events.astype(float), design
    return models.counts, {}, given, {}, {"beta": points}, prior, terms


CASES = {
    case.__name__: case
    for case in (lines, labelled, shifted, survival, hierarchical, robust, counts)
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")  # means trade places on a grid
def test_leaving_out_units_is_a_sum_over_the_grid(case):
    model, held, given, options, sites, prior, terms = CASES[case]()
    joint = prior + terms.sum(axis=1)
    posterior = np.exp(joint - logsumexp(joint))
    rng = np.random.default_rng(1)
    chosen = rng.choice(len(joint), (CHAINS, DRAWS), p=posterior)
    draws = {name: values[chosen] for name, values in sites.items()}
    fit = sb.fit(holding(model, held), *given, engine=Told(draws), progress=False, **options)
    np.testing.assert_allclose(fit.unit_terms, terms[chosen], rtol=1e-6, atol=1e-8)
    without = joint[:, None] - terms
    exact = logsumexp(joint) - logsumexp(without, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)  # few data: some weights are wide
        found = fit.loo()
    size = found.n_data_points
    assert found.se == pytest.approx(np.sqrt(size) * np.std(found.elpd_i.to_numpy(), ddof=1))
    sound = found.pareto_k.to_numpy() < 0.5
    assert sound.sum() >= 2
    # the mean of reciprocal densities is the reciprocal of the density left out
    share = np.exp(exact - terms[chosen].reshape(-1, terms.shape[1]))[:, sound]
    error = share.std(axis=0) / np.sqrt(len(share))
    assert (error < 0.05).all()
    gap = np.abs(found.elpd_i.to_numpy() - exact)[sound]
    assert (gap < 4.5 * error).all()
