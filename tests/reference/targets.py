"""The three posteriors of `examples/comparing_engines.py`: functionals, and their exact moments."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import digamma, gammaln, logsumexp, polygamma
from scipy.stats import multivariate_normal

from . import exact_mixture as exact

SCRIPT = Path(__file__).parents[2] / "examples" / "comparing_engines.py"
SPEC = importlib.util.spec_from_file_location("comparing_engines", SCRIPT)
EXAMPLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE)
PAIRS = {"same_cluster[0, 2]": (0, 2), "same_cluster[0, 5]": (0, 5)}
"""Pairs in different connected sets, whose labels are independent given the parameters."""


@dataclass(frozen=True)
class Truth:
    """Log evidence, means and standard deviations; None where there is no closed form."""

    log_evidence: float
    mean: dict[str, float]
    sd: dict[str, float | None]


def posterior(name):
    """What `sidebayes.fit` takes: (method, x), and keyword arguments."""
    given = EXAMPLE.POSTERIORS[name]()
    return (given.pop("method"), given.pop("x")), given


def functionals(name, sites):
    """Label-invariant functionals of draws, from sites of shape (..., site shape)."""
    if name == "two_modes":
        theta = sites["theta"]
        side = theta @ posterior(name)[0][1].mean(axis=0)
        return {"theta[0]": theta[..., 0], "theta[1]": theta[..., 1], "sign": np.sign(side)}
    covariance = sites["covariance"]
    found = {f"sum of means[{i}]": sites["mean"][..., i].sum(axis=-1) for i in range(2)}
    found["sum of log det"] = np.linalg.slogdet(covariance)[1].sum(axis=-1)
    if name == "one_gaussian":
        entries = {"covariance[0, 0]": (0, 0), "covariance[0, 1]": (0, 1)}
        return found | {key: covariance[..., 0, i, j] for key, (i, j) in entries.items()}
    return found | {"sum of squared weights": (sites["weights"] ** 2).sum(axis=-1)}


def label_functionals(name, prob):
    """The same for functionals of responsibilities, shape (..., num_points, num_clusters)."""
    pairs = PAIRS if name == "linked_points" else {}
    return {key: (prob[..., i, :] * prob[..., j, :]).sum(axis=-1) for key, (i, j) in pairs.items()}


def truth(name):
    """Exact answers, by formulas and code that the library does not use."""
    return _two_modes() if name == "two_modes" else _mixture(name)


def _mixture(name):
    """Sum over all labelings, parameters integrated out (Gelman et al. 2013, section 3.6)."""
    (_, x), given = posterior(name)
    prior, num_clusters = given["prior"], given["num_clusters"]
    z, size = exact.labelings(len(x), num_clusters)
    log_joint = exact.log_gaussians(x, z, prior, num_clusters)
    log_joint += exact.log_dirichlet_multinomial(size, 1.0)
    if "links" in given:
        pairs, weights = given["links"].pairs, given["links"].weights
        soft = np.isfinite(weights)
        wrong = exact.wrong_statements(z, pairs[~soft], weights[~soft])
        log_joint = np.where(wrong > 0, -np.inf, log_joint)
        right = (z[:, pairs[soft, 0]] == z[:, pairs[soft, 1]]) == (weights[soft] > 0)
        log_joint -= np.where(right, 0.0, np.abs(weights[soft])).sum(axis=1)
        log_joint -= np.log1p(np.exp(-np.abs(weights[soft]))).sum()
    prob, log_evidence = exact.probabilities(log_joint)
    each = [_given_labels(x, row, prior, num_clusters, name) for row in z[prob > 0]]
    kept = prob[prob > 0]
    mean, variance = {}, {}
    for key in each[0]:
        first, spread = np.array([one[key] for one in each]).T
        mean[key] = kept @ first
        variance[key] = kept @ (spread + first**2) - mean[key] ** 2
    pairs = PAIRS if name == "linked_points" else {}
    agree = {key: float(prob @ (z[:, i] == z[:, j])) for key, (i, j) in pairs.items()}
    return Truth(
        float(log_evidence),
        {key: float(value) for key, value in mean.items()} | agree,
        {key: float(np.sqrt(value)) for key, value in variance.items()} | dict.fromkeys(agree),
    )


def _given_labels(x, labels, prior, num_clusters, name):
    """Mean and variance of every functional of the parameters for one labeling."""
    d, total = x.shape[1], {}
    for k in range(num_clusters):
        rows = x[labels == k]
        n, df = len(rows), prior.df + len(rows)
        shrinkage = prior.shrinkage + n
        start = np.asarray(prior.mean)
        centre = (prior.shrinkage * start + rows.sum(axis=0)) / shrinkage
        scale = np.asarray(prior.scale) + prior.shrinkage * np.outer(start, start)
        scale = scale + rows.T @ rows - shrinkage * np.outer(centre, centre)
        spread = scale / (df - d - 1)
        steps = (df - np.arange(d)) / 2
        found = {f"sum of means[{i}]": (centre[i], spread[i, i] / shrinkage) for i in range(d)}
        found["sum of log det"] = (
            np.linalg.slogdet(scale)[1] - d * np.log(2) - digamma(steps).sum(),
            polygamma(1, steps).sum(),
        )
        if name == "one_gaussian":  # variances: Mardia, Kent and Bibby (1979), theorem 3.8.3
            free = df - d - 1
            for i, j in ((0, 0), (0, 1)):
                square = (free + 2) * scale[i, j] ** 2 + free * scale[i, i] * scale[j, j]
                below = (free + 1) * free**2 * (free - 2)
                found[f"covariance[{i}, {j}]"] = spread[i, j], square / below
        for key, moments in found.items():
            total[key] = np.add(total.get(key, 0.0), moments)
    if name == "linked_points":
        total["sum of squared weights"] = _squared_weights(np.bincount(labels, minlength=2) + 1.0)
    return total


def _squared_weights(alpha):
    """Mean and variance of the sum of squares under a Dirichlet, by its mixed moments."""
    unit = np.eye(len(alpha))

    def moment(powers):
        ratio = gammaln(alpha + powers) - gammaln(alpha)
        return np.exp(ratio.sum() + gammaln(alpha.sum()) - gammaln((alpha + powers).sum()))

    mean = sum(moment(2 * e) for e in unit)
    return mean, sum(moment(2 * e + 2 * f) for e in unit for f in unit) - mean**2


def _two_modes():
    """A Gaussian for either sign, weighed by the density of the readings under it."""
    x = posterior("two_modes")[0][1]
    n, d = x.shape
    start, wide = np.array([0.9, 0.5]), 4.0
    cover = np.kron(np.eye(n) + wide * np.ones((n, n)), np.eye(d))
    log_density = [
        multivariate_normal(np.tile(s * start, n), cover).logpdf(x.ravel()) for s in (1, -1)
    ]
    share = np.exp(log_density - logsumexp(log_density))
    centres = np.array([(start / wide + s * x.sum(axis=0)) / (1 / wide + n) for s in (1, -1)])
    mean = share @ centres
    sd = np.sqrt(share @ centres**2 - mean**2 + 1 / (1 / wide + n))
    sign = share[0] - share[1]
    return Truth(
        float(logsumexp(log_density) + np.log(0.5)),
        {"theta[0]": float(mean[0]), "theta[1]": float(mean[1]), "sign": float(sign)},
        {"theta[0]": float(sd[0]), "theta[1]": float(sd[1]), "sign": float(np.sqrt(1 - sign**2))},
    )
