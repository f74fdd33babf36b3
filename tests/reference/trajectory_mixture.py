"""Variational Bayes of a mixture of Gaussian processes with N by N matrices, as in Ross and Dy (2013)."""

from functools import cache

import numpy as np
from scipy.special import betaln, digamma, logsumexp, softmax
from scipy.stats import multivariate_normal

from .brute_force import infer


def rbf(first, second, length_scale, amplitude):
    """Gram matrix of one input."""
    return amplitude**2 * np.exp(-0.5 * (np.subtract.outer(first, second) / length_scale) ** 2)


def matern32(first, second, length_scale, amplitude):
    """Gram matrix of one input, of a kernel whose matrices are well conditioned."""
    apart = np.sqrt(3.0) * np.abs(np.subtract.outer(first, second)) / length_scale
    return amplitude**2 * (1.0 + apart) * np.exp(-apart)


def naive_factor(gram, share, noise, y):
    """Mean, covariance and divergence of the values of one curve, by inverses (eqs. 18-21, corrected)."""
    inverse, weight = np.linalg.inv(gram), np.diag(share) / noise**2
    covariance = np.linalg.inv(inverse + weight)
    mean = covariance @ weight @ y
    outputs = y.shape[1]
    trace = np.trace(inverse @ covariance) - len(gram)
    logdet = np.linalg.slogdet(gram)[1] - np.linalg.slogdet(covariance)[1]
    divergence = 0.5 * (outputs * (trace + logdet) + np.sum(mean * (inverse @ mean)))
    return mean, covariance, divergence


def stable_factor(gram, share, noise, y):
    """The same without an inverse of the Gram matrix, so that shares may be zero."""
    root = np.sqrt(share) / noise
    inner = np.eye(len(gram)) + root[:, None] * gram * root
    solved = np.linalg.solve(inner, root[:, None] * y)
    mean = gram @ (root[:, None] * solved)
    half = np.linalg.solve(np.linalg.cholesky(inner), root[:, None] * gram)
    variance = np.diag(gram) - (half**2).sum(axis=0)
    outputs = y.shape[1]
    trace = np.trace(np.linalg.inv(inner)) - len(gram)
    quadratic = np.sum(solved * (root[:, None] * y)) - np.sum(solved**2)
    divergence = 0.5 * (outputs * (trace + np.linalg.slogdet(inner)[1]) + quadratic)
    return mean, variance, divergence


def sticks(count, concentration):
    """Parameters of the Beta factors of closed sticks, expected log weights and divergence."""
    beyond = np.cumsum(count[::-1])[::-1] - count
    a, b = 1 + count[:-1], concentration + beyond[:-1]
    taken, left = digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)
    weights = np.append(taken, 0.0) + np.concatenate([[0.0], np.cumsum(left)])
    divergence = (
        betaln(1, concentration)
        - betaln(a, b)
        + (a - 1) * digamma(a)
        + (b - concentration) * digamma(b)
        + (1 + concentration - a - b) * digamma(a + b)
    )
    return weights, divergence.sum()


def expected_densities(share, gram, noise, y):
    """Expected log densities of rows along curves (eq. 25, corrected), and divergences of these."""
    outputs = y.shape[1]
    found = [stable_factor(gram, column, noise, y) for column in share.T]
    square = np.stack([((y - mean) ** 2).sum(axis=1) for mean, _, _ in found], axis=1)
    doubt = np.stack([variance for _, variance, _ in found], axis=1)
    unary = (
        -0.5 * outputs * np.log(2 * np.pi * noise**2) - 0.5 * (square + outputs * doubt) / noise**2
    )
    return unary, sum(one for *_, one in found)


def sweep(share, gram, noise, y, pairs, weights, concentration):
    """Curves, sticks, then labels from responsibilities; returns these and the bound."""
    unary, apart = expected_densities(share, gram, noise, y)
    log_weights, divergence = sticks(share.sum(axis=0), concentration)
    log_z, prob, *_ = infer(unary + log_weights, pairs, weights)
    return prob, log_z - divergence - apart


def overlapping_sweep(share, gram, noise, y):
    """Curves, then labels under even weights (Lazaro-Gredilla et al. 2012), and the bound."""
    unary, apart = expected_densities(share, gram, noise, y)
    unary = unary - np.log(share.shape[1])
    return softmax(unary, axis=1), logsumexp(unary, axis=1).sum() - apart


def log_evidence(gram, noise, y, num_clusters, pairs, weights, concentration, subject=None):
    """Exact, with responsibilities, and the chance of two units to agree, shape (units, units).

    Labels are enumerated, sticks and curves integrated in closed form. Units are the subjects where
    they are given by row, else the rows, and links are between units.
    """
    subject = np.arange(len(y)) if subject is None else subject
    spread, number = gram + noise**2 * np.eye(len(y)), subject.max() + 1

    @cache
    def log_curve(*members):
        """Log density of all rows of some units, which have one curve."""
        own = np.isin(subject, members)
        return multivariate_normal(np.zeros(own.sum()), spread[np.ix_(own, own)]).logpdf(y[own].T)

    labels = np.array(np.meshgrid(*[range(num_clusters)] * number)).reshape(number, -1).T
    joint = np.zeros(len(labels))
    for row, label in enumerate(labels):
        count = np.bincount(label, minlength=num_clusters).astype(float)
        beyond = np.cumsum(count[::-1])[::-1] - count
        a, b = 1 + count[:-1], concentration + beyond[:-1]
        joint[row] = (betaln(a, b) - betaln(1, concentration)).sum()
        joint[row] += sum(
            w * (label[i] == label[j]) for (i, j), w in zip(pairs, weights, strict=True)
        )
        for k in range(num_clusters):
            if count[k]:
                joint[row] += log_curve(*np.flatnonzero(label == k)).sum()
    peak = joint.max()
    prob = np.exp(joint - peak)
    total = prob.sum()
    own = labels[:, :, None] == np.arange(num_clusters)
    shares = np.einsum("s,snk->nk", prob / total, own)
    same = np.einsum("s,snk,smk->nm", prob / total, own, own)
    return peak + np.log(total), shares, same
