"""Which engine to distrust: three posteriors with known answers, every engine, one table each.

Run: python examples/comparing_engines.py [--out docs/comparing_engines.png]
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import sidebayes as sb


def one_gaussian():
    """Conjugate: mean and covariance of a Gaussian have a posterior in closed form."""
    x = np.random.default_rng(4).normal([1.0, -1.0], [1.0, 2.0], size=(12, 2))
    prior = sb.GaussianPrior(np.zeros(2), shrinkage=0.5, df=6.0, scale=4.0 * np.eye(2))
    return {"method": "gmm", "x": x, "num_clusters": 1, "prior": prior}


def linked_points():
    """Enumerable: eight points have 256 labelings, weighed by three soft links and a hard one."""
    x = np.random.default_rng(1).normal(size=(8, 2))
    x[4:] += [2.0, 1.0]
    links = sb.Links([[0, 1], [1, 4], [2, 6], [3, 7]], [1.5, -2.0, 1.0, -np.inf], len(x))
    prior = sb.GaussianPrior(np.full(2, 0.5), shrinkage=0.5, df=8.0, scale=4.0 * np.eye(2))
    return {
        "method": "ppc",
        "x": x,
        "links": links,
        "num_clusters": 2,
        "prior": prior,
        "reading": "relation",
    }


def lost_sign(x, links):
    """Readings of theta that all lost their sign together: hard links tie the labels."""
    theta = numpyro.sample(
        "theta", dist.MultivariateNormal(jnp.array([0.9, 0.5]), 4.0 * jnp.eye(2))
    )
    labels = sb.LinkedCategorical(jnp.log(jnp.array([0.5, 0.5])), links)
    readings = dist.MultivariateNormal(jnp.stack([theta, -theta]), jnp.eye(2))
    numpyro.sample("x", sb.LinkedMixture(labels, readings), obs=x)


def two_modes():
    """Two-moded: a mixture of two Gaussians far apart, one for either sign of the readings."""
    x = np.random.default_rng(2).normal([2.0, 1.0], 1.0, size=(6, 2))
    return {"method": lost_sign, "x": x, "links": sb.Links.from_groups(np.zeros(6, int))}


POSTERIORS = {"one_gaussian": one_gaussian, "linked_points": linked_points, "two_modes": two_modes}
