"""Von Mises-Fisher mixtures by maximum likelihood, point by point, with SciPy's Bessel functions."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import ive, logsumexp

__all__ = ["em", "log_density"]


def log_density(points, direction, concentration):
    order = points.shape[1] / 2 - 1
    constant = order * np.log(concentration) - (order + 1) * np.log(2 * np.pi)
    constant -= np.log(ive(order, concentration))
    return constant + concentration * (points @ direction - 1)


def em(points, weights, directions, concentrations, num_steps):
    """Steps of EM; returns parameters and the log likelihood before each."""
    weights, directions, concentrations = map(np.array, (weights, directions, concentrations))
    order, history = points.shape[1] / 2 - 1, []
    for _ in range(num_steps):
        joint = np.stack(
            [
                np.log(w) + log_density(points, m, k)
                for w, m, k in zip(weights, directions, concentrations, strict=True)
            ],
            axis=1,
        )
        total = logsumexp(joint, axis=1)
        history.append(total.sum())
        member = np.exp(joint - total[:, None])
        weights = member.mean(axis=0)
        for k, own in enumerate(member.T):
            resultant = own @ points
            length = np.linalg.norm(resultant)
            directions[k] = resultant / length
            mean = length / own.sum()
            concentrations[k] = brentq(
                lambda x, mean=mean: ive(order + 1, x) / ive(order, x) - mean,
                1e-6,
                1e6,
                xtol=1e-12,
                rtol=1e-14,
            )
    return weights, directions, concentrations, np.array(history)
