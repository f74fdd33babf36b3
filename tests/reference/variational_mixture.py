"""Variational Bayes of a mixture of normals on a line, in NumPy (Bishop 2006, section 10.2)."""

import numpy as np
from scipy.special import digamma, gammaln, logsumexp, softmax


def fit(x, member, prior, evidence=0.0, concentration=1.0, num_steps=5000):
    """Bound on the log density of the data, and responsibilities, from a first guess of these.

    Precisions are gamma(df / 2, scale / 2), means normal about `mean` with `shrinkage` times the
    precision, as (mean, shrinkage, df, scale) of `prior` say; `evidence` adds to the log densities
    (point, cluster).
    """
    centre, kappa, df, scale = prior
    for _ in range(num_steps):
        size = member.sum(axis=0)
        alpha, sure, free = concentration + size, kappa + size, df + size
        mean = (kappa * centre + member.T @ x) / sure
        rest = scale + member.T @ x**2 + kappa * centre**2 - sure * mean**2
        distance = free / rest * (x[:, None] - mean) ** 2 + 1 / sure
        log_precision = digamma(free / 2) - np.log(rest / 2)
        joint = (log_precision - np.log(2 * np.pi) - distance) / 2
        joint = joint + digamma(alpha) - digamma(alpha.sum()) + evidence
        member = softmax(joint, axis=1)
    pull = kappa * free / rest * (mean - centre) ** 2
    means = (np.log(sure / kappa) - 1 + kappa / sure + pull) / 2
    precisions = _gamma_divergence(free / 2, rest / 2, df / 2, scale / 2)
    cost = (means + precisions).sum() + _dirichlet_divergence(alpha, concentration)
    return logsumexp(joint, axis=1).sum() - cost, member


def _gamma_divergence(shape, rate, shape_before, rate_before):
    return (
        (shape - shape_before) * digamma(shape)
        - gammaln(shape)
        + gammaln(shape_before)
        + shape_before * np.log(rate / rate_before)
        + shape * (rate_before - rate) / rate
    )


def _dirichlet_divergence(alpha, before):
    each = (alpha - before) * (digamma(alpha) - digamma(alpha.sum()))
    constant = gammaln(alpha.sum()) - gammaln(alpha).sum()
    return each.sum() + constant - gammaln(before * len(alpha)) + len(alpha) * gammaln(before)
