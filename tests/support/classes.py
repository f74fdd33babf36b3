"""Rows with classes that tests of semi-supervised mixtures share (Raghuram 2014, section 2.7)."""

from __future__ import annotations

import numpy as np


def split2d(rng, number):
    """Two components; one of them has two classes, apart by its second feature."""
    z, right = rng.normal(size=(2 * number, 2)), np.repeat([0, 1], number)
    return z + np.outer(right, [7.0, 0.0]), np.where(right == 0, (z[:, 1] > 0) * 1, 1)


def xor2d(rng, number):
    """Two components, the classes of each crossed."""
    z, right = rng.normal(size=(2 * number, 2)), np.repeat([0, 1], number)
    return z + np.outer(right, [6.0, 0.0]), ((z[:, 0] > 0) ^ (z[:, 1] > 0) ^ (right == 1)) * 1


def some_known(rng, classes, number):
    """Classes of `number` rows; -1 for the others."""
    known = np.full(len(classes), -1)
    rows = rng.choice(len(classes), number, replace=False)
    known[rows] = classes[rows]
    return known
