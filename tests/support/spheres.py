"""Clusters of points on spheres."""

import numpy as np

__all__ = ["around", "clusters", "two_clusters"]


def around(rng, direction, deviation, num_points):
    """Points whose tangent vectors at a direction are normal, alike in all directions."""
    direction = np.asarray(direction, float)
    tangent = rng.normal(size=(num_points, len(direction))) * deviation
    tangent -= np.outer(tangent @ direction, direction)
    angle = np.linalg.norm(tangent, axis=1, keepdims=True)
    return np.cos(angle) * direction + np.sinc(angle / np.pi) * tangent


def two_clusters(seed=0):
    """Dossier, check 11: means at a right angle, deviations .35 and .15, 60 points each."""
    rng = np.random.default_rng(seed)
    x = np.vstack([around(rng, np.eye(3)[0], 0.35, 60), around(rng, np.eye(3)[1], 0.15, 60)])
    return x, np.repeat([0, 1], 60)


def clusters(rng, size, num_clusters, deviation, num_points):
    """Overlapping clusters about random directions."""
    directions = rng.normal(size=(num_clusters, size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    each = [around(rng, one, deviation, num_points // num_clusters) for one in directions]
    return np.vstack(each)
