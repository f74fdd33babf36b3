"""Exact posteriors of tiny mixtures: every labeling, parameters integrated out in closed form."""

import itertools

import numpy as np
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import multivariate_t


def labelings(num_points, num_clusters):
    """All labelings, and the size of every cluster in each."""
    z = np.array(list(itertools.product(range(num_clusters), repeat=num_points)))
    return z, (z[:, :, None] == np.arange(num_clusters)).sum(axis=1)


def log_marginal(x, mean, shrinkage, df, scale):
    """Density of points with mean and covariance integrated out, one point after the other.

    Each point given those before it is multivariate t (Gelman et al. 2013, section 3.6), which
    shares no formula with the determinants in the library.
    """
    total, d = 0.0, x.shape[1]
    for row in x:
        freedom = df - d + 1
        shape = scale * (shrinkage + 1) / (shrinkage * freedom)
        total += multivariate_t.logpdf(row, mean, shape, df=freedom)
        away = row - mean
        scale = scale + shrinkage / (shrinkage + 1) * np.outer(away, away)
        mean = (shrinkage * mean + row) / (shrinkage + 1)
        shrinkage, df = shrinkage + 1, df + 1
    return total


def log_gaussians(x, z, prior, num_clusters):
    """Log density of the data given each labeling, parameters of the clusters integrated out."""
    before = np.asarray(prior.mean), prior.shrinkage, prior.df, np.asarray(prior.scale)
    return np.array(
        [sum(log_marginal(x[row == k], *before) for k in range(num_clusters)) for row in z]
    )


def log_dirichlet_multinomial(size, concentration):
    """Log probability of labelings, mixing weights integrated out."""
    whole = size.shape[1] * concentration
    each = gammaln(size + concentration) - gammaln(concentration)
    return gammaln(whole) - gammaln(whole + size.sum(axis=1)) + each.sum(axis=1)


def wrong_statements(z, pairs, weights):
    """Number of soft statements that each labeling contradicts."""
    agree = z[:, pairs[:, 0]] == z[:, pairs[:, 1]]
    return (agree != (weights > 0)).sum(axis=1)


def log_flips(wrong, total, beta):
    """Log probability of the statements, the flip rate integrated out under a Beta prior."""
    return betaln(beta[0] + wrong, beta[1] + total - wrong) - betaln(*beta)


def probabilities(log_joint):
    """Posterior of the labelings, and the log evidence."""
    evidence = logsumexp(log_joint)
    return np.exp(log_joint - evidence), evidence
