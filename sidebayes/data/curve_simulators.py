"""Simulate points on crossing curves: sinusoids, helices, and walkers in the plane."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..common.fields import Range, check_integer, check_number, check_seed

__all__ = ["simulate_helices", "simulate_sinusoids", "simulate_walkers"]


def simulate_sinusoids(
    num_points: int = 50, *, noise: float = 0.02**0.5, seed: int = 0
) -> pd.DataFrame:
    """Points on a sinusoid, and on one with a linear offset, which cross (Ross and Dy 2013, section 5.1).

    The paper does not print its curves; these are from the authors' released notebook.

    Parameters
    ----------
    num_points : int
        Number of points on each curve.
    noise : float
        Standard deviation; the paper's variance is 0.02.
    seed : int

    Returns
    -------
    DataFrame
        Columns ``x`` (0 to 50), ``y`` and ``curve`` (0 or 1).
    """
    rng, noise = _checked(seed, noise)
    size = check_integer("num_points", num_points)
    x = rng.uniform(0, 50, 2 * size)
    curve = np.repeat([0, 1], size)
    y = np.where(curve == 0, 1.4 * np.sin(0.13 * x + 3), 0.8 * np.sin(0.125 * x) + 0.05 * x - 1)
    return pd.DataFrame({"x": x, "y": y + noise * rng.normal(size=len(x)), "curve": curve})


def simulate_helices(
    num_points: int = 100, *, noise: float = 0.1**0.5, seed: int = 0
) -> pd.DataFrame:
    """Points on two interlaced helices (Ross and Dy 2013, section 5.1, by the authors' notebook).

    Parameters
    ----------
    num_points : int
        Number of points on each helix.
    noise : float
        Standard deviation of ``x`` and ``y``; the paper's variance is 0.1.
    seed : int

    Returns
    -------
    DataFrame
        Columns ``z`` (0 to 200), along which the helices of radius 1 wind, ``x``, ``y`` and ``curve``.
    """
    rng, noise = _checked(seed, noise)
    size = check_integer("num_points", num_points)
    z = rng.uniform(0, 200, 2 * size)
    curve = np.repeat([0, 1], size)
    turn = 0.04 * z + np.where(curve == 0, 2.7, 0.0)
    x, y = (f(turn) + noise * rng.normal(size=len(z)) for f in (np.cos, np.sin))
    return pd.DataFrame({"z": z, "x": x, "y": y, "curve": curve})


def simulate_walkers(
    num_walkers: int = 4, num_frames: int = 500, *, noise: float = 2.0**0.5, seed: int = 0
) -> pd.DataFrame:
    """Detections of people who cross a camera's view, in place of the CAVIAR scenes.

    Ross and Dy (2013, section 5.2) track four people in 1,164 detections from a scene that they do
    not name. Here each walks through the middle of a frame of 384 by 288 pixels, along a straight
    line with smooth detours, so that all paths cross, and is seen in about 58 % of the frames, in
    one stretch.

    Parameters
    ----------
    num_walkers, num_frames : int
    noise : float
        Standard deviation of detected centres, in pixels.
    seed : int

    Returns
    -------
    DataFrame
        Columns ``frame`` (int), ``x`` and ``y`` (pixels) and ``walker``, in order of frames.
    """
    rng, noise = _checked(seed, noise)
    number = check_integer("num_walkers", num_walkers)
    frames = check_integer("num_frames", num_frames, 10)
    heading = np.pi * (np.arange(number) + rng.uniform(0.2, 0.8, number)) / number
    heading += np.pi * rng.integers(0, 2, number)
    seen = max(round(0.582 * frames), 2)
    first = rng.integers(0, frames - seen + 1, number)
    frame = (first[:, None] + np.arange(seen)).ravel()
    walker = np.repeat(np.arange(number), seen)
    along = (frame - frames / 2) / frames
    line = np.stack([330 * np.cos(heading[walker]), 240 * np.sin(heading[walker])]) * along
    waves = np.arange(1, 4)
    size = rng.normal(size=(2, number, 3)) * 12.0 / waves
    phase = rng.uniform(0, 2 * np.pi, (2, number, 3))
    angle = 2 * np.pi * frame[:, None] / frames * waves + phase[:, walker]
    detour = (size[:, walker] * np.sin(angle)).sum(axis=-1)
    x, y = np.array([[192.0], [144.0]]) + line + detour + noise * rng.normal(size=(2, len(frame)))
    table = pd.DataFrame({"frame": frame, "x": x, "y": y, "walker": walker})
    return table.sort_values(["frame", "walker"], ignore_index=True)


def _checked(seed: int, noise: float) -> tuple[np.random.Generator, float]:
    return np.random.default_rng(check_seed(seed)), check_number("noise", noise, Range(least=0))
