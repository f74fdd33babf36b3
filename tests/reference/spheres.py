"""Points on spheres for tests and benchmarks."""

import numpy as np

__all__ = ["subsphere_points"]


def subsphere_points(seed, num_points=200, dimension=100, concentration=9.0):
    """Points of a von Mises-Fisher distribution on a 2-sphere, turned into many dimensions.

    On the 2-sphere the cosine of the angle to the mean has a distribution function in closed form.
    """
    rng = np.random.default_rng(seed)
    low = np.exp(-2 * concentration)
    height = 1 + np.log(low + rng.uniform(size=num_points) * (1 - low)) / concentration
    angle = rng.uniform(0, 2 * np.pi, num_points)
    radius = np.sqrt(1 - height**2)
    points = np.stack([height, radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    frame, _ = np.linalg.qr(rng.normal(size=(dimension, 3)))
    return points @ frame.T
