"""A model whose posterior and evidence are known: a normal mean, correlated coordinates."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import multivariate_normal

Y = np.array([[0.3, -0.2], [1.2, 0.4], [0.8, 1.0], [2.0, 0.9], [-0.4, 0.1]])
"""Rows of data; the prior of their mean is N(1, 4 I), their correlation is given."""


def covariance(correlation):
    return np.array([[1.0, correlation], [correlation, 1.0]])


def correlated(y, *, correlation):
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0).expand([2]).to_event(1))
    numpyro.deterministic("gap", mu[1] - mu[0])
    with numpyro.plate("points", len(y)):
        noise = dist.MultivariateNormal(mu, jnp.asarray(covariance(correlation)))
        numpyro.sample("y", noise, obs=y)


def log_evidence(correlation):
    """Density of all rows together: the mean that they share makes them dependent."""
    rows = len(Y)
    joint = np.kron(np.eye(rows), covariance(correlation))
    joint += np.kron(np.ones((rows, rows)), 4 * np.eye(2))
    return multivariate_normal(np.ones(2 * rows), joint).logpdf(Y.ravel())


def posterior(correlation):
    """Mean and precision of the mean."""
    noise = np.linalg.inv(covariance(correlation))
    precision = len(Y) * noise + np.eye(2) / 4
    return np.linalg.solve(precision, noise @ Y.sum(axis=0) + 0.25), precision
