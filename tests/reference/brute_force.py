"""Label inference by enumerating every labeling: slow, obvious, independent of the engine."""

import itertools

import numpy as np


def enumerate_labelings(unary, pairs, weights):
    """Return all labelings and their log-potentials (-inf where a hard link is broken)."""
    num_points, num_clusters = unary.shape
    z = np.array(list(itertools.product(range(num_clusters), repeat=num_points)))
    with np.errstate(invalid="ignore"):
        energy = unary[np.arange(num_points), z].sum(axis=1)
    for (i, j), w in zip(pairs, weights, strict=True):
        same = z[:, i] == z[:, j]
        if np.isinf(w):
            energy = np.where(same == (w > 0), energy, -np.inf)
        else:
            energy = energy + w * same
    return z, energy


def infer(unary, pairs, weights):
    """Log partition, responsibilities, agreement of pairs, mode and its log-potential."""
    z, energy = enumerate_labelings(unary, pairs, weights)
    peak = energy.max()
    if peak == -np.inf:
        return -np.inf, None, None, None, peak
    prob = np.exp(energy - peak)
    log_z = peak + np.log(prob.sum())
    prob = prob / prob.sum()
    clusters = np.arange(unary.shape[1])
    marginals = np.einsum("s,snk->nk", prob, (z[:, :, None] == clusters).astype(float))
    pairs = np.asarray(pairs).reshape(-1, 2)
    agree = prob @ (z[:, pairs[:, 0]] == z[:, pairs[:, 1]])
    return log_z, marginals, agree, z[energy.argmax()], peak
