"""Shapes made by the generators of Yu (2016), chapter 3, as the dossier states them."""

from __future__ import annotations

import numpy as np

import sidebayes as sb


class Flat:
    """Points of groups whose means are the same, seen with noise, and the posterior means of the points.

    The variances of points and noise are known. The groups' means have a population of their own, whose
    variance is estimated by moments, if `hierarchical`; else they are free.
    """

    def __init__(self, rng, num_groups=2, size=20, axes=5, noise=1.0, hierarchical=True):
        self.labels = np.repeat(np.arange(num_groups), size)
        shape = num_groups * size, axes
        self.x = rng.normal(size=shape) + np.sqrt(noise) * rng.normal(size=shape)
        self.noise, self.hierarchical = noise, hierarchical

    def infer(self, labels):
        """Points drawn to the means of their groups."""
        members = labels == np.arange(labels.max() + 1)[:, None]
        size = members.sum(axis=1, keepdims=True)
        means, centre = members @ self.x / size, self.x.mean(axis=0)
        if self.hierarchical and len(means) > 1:
            error = (1 + self.noise) / size
            between = max(0.0, (means.var(axis=0, ddof=1) - error.mean()).mean())
            means = centre + between / (between + error) * (means - centre)
        return means[labels] + (self.x - means[labels]) / (1 + self.noise)


def level_p_values(mode, replicates, *, seed=0, num_permutations=199, **given):
    """P-values of Hotelling's statistic where nothing differs; `mode` None permutes the data themselves."""
    rng = np.random.default_rng(seed)
    found = []
    for one in range(replicates):
        flat = Flat(rng, **given)
        test = sb.group_test(
            flat.x if mode is None else flat.infer,
            flat.labels,
            mode=mode,
            statistics="hotelling",
            num_permutations=num_permutations,
            seed=one,
            progress=False,
        )
        found.append(test.table.loc["hotelling", "p"])
    return np.array(found)


def ellipsoids(individuals=20, landmarks=64, noise=0.0, seed=0):
    """Ellipsoids with two axes of 1, the third N(0.9, 0.01) in one group and N(1.1, 0.01) in the other.

    Returns landmarks, centred and with norm one, and labels.
    """
    rng = np.random.default_rng(seed)
    place = np.arange(landmarks) + 0.5
    polar, azimuth = np.arccos(1 - 2 * place / landmarks), np.pi * (1 + 5**0.5) * place
    sphere = np.stack(
        [np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)], axis=1
    )
    labels = np.repeat([0, 1], individuals)
    third = np.array([0.9, 1.1])[labels] + 0.1 * rng.normal(size=2 * individuals)
    x = sphere * np.stack([np.ones_like(third), np.ones_like(third), third], axis=1)[:, None]
    x = x - x.mean(axis=1, keepdims=True)
    x = x / np.linalg.norm(x, axis=(1, 2), keepdims=True)
    return x + noise * rng.normal(size=x.shape), labels
