"""Pairwise relations of Yu (2016, chapter 4) in plain NumPy: disjoint pairs, equation by equation."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal


def must_law(weights, law):
    """Probability of each shared class of a must-linked pair."""
    return {
        "shared": weights,
        "conditional": weights**2 / np.sum(weights**2),
        "joint": weights**2,
    }[law]


def cannot_law(weights, law):
    """Probability of the two classes of a cannot-linked pair (eqs. 4.7-4.8, corrected)."""
    table = np.outer(weights, weights) * ~np.eye(len(weights), dtype=bool)
    return table if law == "joint" else table / (1 - np.sum(weights**2))


def component_logs(x, params):
    """log pi_mk N(x_n | mk), shape (num_points, num_clusters, num_components)."""
    mean, covariance = params["mean"], params["covariance"]
    out = np.empty((len(x), *mean.shape[:2]))
    for m, k in np.ndindex(*mean.shape[:2]):
        out[:, m, k] = multivariate_normal(mean[m, k], covariance[m, k]).logpdf(x)
    return out + np.log(params["component_weights"])


def e_step(x, must, cannot, params, law):
    """Log likelihood, class probabilities of every point, and counts of the weights (P.2-P.4)."""
    weights = params["weights"]
    logs = component_logs(x, params)
    g = logsumexp(logs, axis=2)
    joint = g + np.log(weights)
    prob = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    single = np.setdiff1d(np.arange(len(x)), [*must.ravel(), *cannot.ravel()])
    value = logsumexp(joint[single], axis=1).sum()
    count = prob[single].sum(axis=0)
    for i, j in must:
        table = g[i] + g[j] + np.log(must_law(weights, law))
        value += logsumexp(table)
        prob[i] = prob[j] = np.exp(table - logsumexp(table))
        count = count + (1 if law == "shared" else 2) * prob[i]
    for a, b in cannot:
        with np.errstate(divide="ignore"):
            table = g[a][:, None] + g[b] + np.log(cannot_law(weights, law))
        value += logsumexp(table)
        table = np.exp(table - logsumexp(table))
        prob[a], prob[b] = table.sum(axis=1), table.sum(axis=0)
        count = count + prob[a] + prob[b]
    within = np.exp(logs - g[:, :, None])
    return value, prob[:, :, None] * within, count


def solve_weights(count, num_must, num_cannot, law, num_sweeps=500):
    """Maximise eq. 4.19 by sweeps that impute the rejected pairs (P.4)."""
    weights = count / count.sum()
    for _ in range(num_sweeps if law != "joint" else 0):
        same = np.sum(weights**2)
        raised = count + 2 * num_cannot * weights**2 / (1 - same)
        if law == "conditional":
            raised = raised + 2 * num_must * weights * (1 - weights) / same
        weights = raised / raised.sum()
    return weights


def fit(x, must, cannot, start, law, num_steps):
    """Maximum likelihood by EM; returns parameters and the log likelihood before each step."""
    params, trace = start, []
    for _ in range(num_steps):
        value, share, count = e_step(x, must, cannot, params, law)
        trace.append(value)
        size = share.sum(axis=0)
        mean = np.einsum("nmk,nd->mkd", share, x) / size[..., None]
        shifted = x[:, None, None] - mean
        covariance = np.einsum("nmk,nmki,nmkj->mkij", share, shifted, shifted)
        params = {
            "weights": solve_weights(count, len(must), len(cannot), law),
            "component_weights": size / size.sum(axis=1, keepdims=True),
            "mean": mean,
            "covariance": covariance / size[..., None, None],
        }
    return params, np.array(trace)
