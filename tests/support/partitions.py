"""Data, links and parameters that tests of partitioned mixtures share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.partitions import rule
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.mcp import mcp

import sidebayes as sb

RNG = np.random.default_rng(3)
X = np.concatenate([RNG.normal(size=(8, 2)) + c for c in ((-2, 0), (2, 0), (0, 3))])
NUM_POINTS = len(X)
LINKS = Links(
    [(0, 1), (2, 9), (1, 2), (8, 16), (9, 17), (3, 20)],
    [np.inf, -np.inf, 0.8, -1.1, np.inf, -0.4],
    NUM_POINTS,
)
STRENGTH = 1.3


def four(seed, num=100, apart=2.5):
    """Set S1: two classes of two blobs each, side by side where the blobs are nearer."""
    rng = np.random.default_rng(seed)
    centres = np.array([(-1.5, -apart), (-1.5, apart), (1.5, -apart), (1.5, apart)])
    x = np.concatenate([c + 0.7 * rng.normal(size=(num, 2)) for c in centres])
    return x, np.repeat([0, 0, 1, 1], num)


def links_of(truth, num_must, num_cannot, seed):
    """Random pairs, so many of each kind."""
    drawn = sb.simulate_links(truth, 4 * (num_must + num_cannot), seed=seed)
    must, cannot = np.flatnonzero(drawn.same), np.flatnonzero(~drawn.same)
    return drawn.take(np.sort(np.concatenate([must[:num_must], cannot[:num_cannot]])))


def params_of(size=4, seed=0):
    """Parameters of full Gaussians near the data, and discriminants of no special form."""
    rng = np.random.default_rng(seed)
    root = 0.3 * rng.normal(size=(size, 2, 2)) + np.eye(2)
    return {
        "weights": rng.dirichlet(np.full(size, 4.0)),
        "mean": 2 * rng.normal(size=(size, 2)),
        "covariance": root @ root.transpose(0, 2, 1),
        "discriminants": 0.5 * rng.normal(size=(size, 6)),
        "assignment": np.eye(2)[np.arange(size) % 2],
    }


matched_discriminants = jax.jit(rule.matched_discriminants, static_argnums=3)


def basis_of(x, centre=None, unit=None):
    """Monomials of the features up to products of two, written out."""
    centre, unit = (x.mean(axis=0), x.std(axis=0)) if centre is None else (centre, unit)
    z = (x - centre) / unit
    row, column = np.triu_indices(z.shape[1])
    return np.concatenate([np.ones((len(z), 1)), z, z[:, row] * z[:, column]], axis=1)


def matched(params, x=X):
    """The same parameters with the discriminants of the mixture's own posterior."""
    centre, unit = x.mean(axis=0), x.std(axis=0)
    inside = (params["mean"] - centre) / unit, params["covariance"] / np.outer(unit, unit)
    found = matched_discriminants(np.log(params["weights"]), *inside, "full")
    return params | {"discriminants": np.asarray(found)}


def log_densities(params, x=X):
    parts = zip(params["mean"], params["covariance"], strict=True)
    return np.stack([multivariate_normal(m, s).logpdf(x) for m, s in parts], axis=1)


def problem_of(links=LINKS, **options):
    args = jnp.asarray(X), LabelGraph.build(links, NUM_POINTS)
    given = {"num_clusters": 2, "num_components": 4, "strength": STRENGTH, "prior": "flat"}
    return Problem(mcp, args, given | options)


def mixture_of(problem, params):
    ((fn, value),) = collapsed_sites(trace_model(problem, params)).values()
    return fn, value


def free_energy(params, q, links=LINKS, strength=STRENGTH):
    """Eq. 3.12, written out: violated links at their price."""
    joint = np.log(params["weights"]) + log_densities(params)
    energy = (q * (np.log(np.where(q > 0, q, 1.0)) - joint)).sum()
    p = q @ params["assignment"]
    for (i, j), w in zip(links.pairs, links.weights, strict=True):
        price = strength if np.isinf(w) else abs(w)
        energy += price * (1 - p[i] @ p[j] if w > 0 else p[i] @ p[j])
    return energy


def softmax(scores):
    return np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
