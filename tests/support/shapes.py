"""Shapes made by the generators of Yu (2016), chapter 3, as the dossier states them."""

from __future__ import annotations

import numpy as np


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
