"""EM of Lu (2008) for disjoint pairs in plain NumPy: slow, obvious, independent of the engine."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal


def log_omega(weights, strengths):
    """Log partition function of disjoint pairs, hard ones by their indicator."""
    agree = np.sum(weights**2)
    soft = np.isfinite(strengths)
    value = np.log1p(np.expm1(strengths[soft]) * agree).sum()
    value += np.isposinf(strengths).sum() * np.log(agree)
    return value + np.isneginf(strengths).sum() * np.log1p(-agree)


def prior_counts(weights, strengths, num_free):
    """Expected number of points of each cluster under the prior."""
    agree = np.sum(weights**2)
    total = num_free * weights
    for strength in strengths:
        if np.isposinf(strength):
            each = weights**2 / agree
        elif np.isneginf(strength):
            each = weights * (1 - weights) / (1 - agree)
        else:
            gain = np.exp(strength)
            each = (weights * (1 - weights) + gain * weights**2) / (1 + (gain - 1) * agree)
        total = total + 2 * each
    return total


def match(count, weights, strengths, num_free, num_sweeps=2000):
    """Mixing weights whose prior counts are the given ones, by the damped fixed point."""
    for _ in range(num_sweeps):
        weights = weights * np.sqrt(count / prior_counts(weights, strengths, num_free))
        weights = weights / weights.sum()
    return weights


def fit(x, pairs, strengths, start, num_steps):
    """Maximum likelihood by EM; returns parameters and the log likelihood before each step."""
    weights, mean, covariance = (np.array(start[n]) for n in ("weights", "mean", "covariance"))
    num_points, num_clusters = len(x), len(weights)
    pairs, strengths = np.asarray(pairs), np.asarray(strengths, float)
    eye = np.eye(num_clusters, dtype=bool)
    trace = []
    for _ in range(num_steps):
        densities = [
            multivariate_normal(m, c).logpdf(x) for m, c in zip(mean, covariance, strict=True)
        ]
        joint = np.log(weights) + np.stack(densities, axis=1)
        log_z = logsumexp(joint, axis=1)
        prob = np.exp(joint - log_z[:, None])
        log_z[pairs.ravel()] = 0.0
        value = log_z.sum() - log_omega(weights, strengths)
        for (i, j), strength in zip(pairs, strengths, strict=True):
            table = joint[i][:, None] + joint[j][None, :]
            if np.isinf(strength):
                table = np.where(eye == (strength > 0), table, -np.inf)
            else:
                table = table + strength * eye
            whole = logsumexp(table)
            value += whole
            table = np.exp(table - whole)
            prob[i], prob[j] = table.sum(axis=1), table.sum(axis=0)
        trace.append(value)
        count = prob.sum(axis=0)
        mean = prob.T @ x / count[:, None]
        shifted = [x - m for m in mean]
        covariance = np.array(
            [(s * p[:, None]).T @ s / n for s, p, n in zip(shifted, prob.T, count, strict=True)]
        )
        weights = match(count, weights, strengths, num_points - pairs.size, num_sweeps=50)
    return {"weights": weights, "mean": mean, "covariance": covariance}, np.array(trace)
