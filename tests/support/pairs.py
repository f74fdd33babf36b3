"""Data, links and parameters that tests of the mixture with pairwise relations share."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln
from sidebayes.guides.engines.base import Problem
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.pair_mixture import pair_mixture
from sklearn.datasets import load_iris

X, Y = load_iris(return_X_y=True)
X, Y = X[::2, :2], Y[::2]
MUST = np.array([(0, 20), (30, 26), (60, 70)])
CANNOT = np.array([(1, 40), (28, 61), (2, 72), (33, 65)])
DISJOINT = Links.must_link(MUST) + Links.cannot_link(CANNOT)


def problem_of(x=X, links=None, **options):
    """Maximum likelihood."""
    options = {"num_clusters": 3, "prior": "flat"} | options
    return Problem(pair_mixture, (jnp.asarray(x), LabelGraph.build(links, len(x))), options)


def some_params(num_clusters=3, num_components=2, seed=0):
    """Parameters, drawn."""
    rng = np.random.default_rng(seed)
    shape = num_clusters, num_components
    return {
        "weights": rng.dirichlet(np.full(num_clusters, 5.0)),
        "component_weights": rng.dirichlet(np.full(num_components, 5.0), num_clusters),
        "mean": X[rng.choice(len(X), shape)],
        "covariance": (np.eye(2) * 0.3 + 0.1) * rng.uniform(0.5, 2, shape)[..., None, None],
    }


def latent(params):
    """Sites of the model: a single component has no weight to learn."""
    dropped = () if params["mean"].shape[1] > 1 else ("component_weights",)
    return {name: jnp.asarray(value) for name, value in params.items() if name not in dropped}


def log_prior(params):
    """Density of the Dirichlet priors, the only proper ones under prior='flat'."""
    num_clusters, num_components = params["mean"].shape[:2]
    return gammaln(num_clusters) + num_clusters * gammaln(num_components)
