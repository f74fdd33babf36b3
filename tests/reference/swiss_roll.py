"""Rows of a Swiss roll, as Law (2006) draws them."""

import numpy as np


def swiss_roll(number, seed):
    """Rows (t cos t, h, t sin t), shape (number, 3)."""
    along, across = np.random.default_rng(seed).random((2, number))
    turn = 1.5 * np.pi * (1 + 2 * along)
    return np.column_stack([turn * np.cos(turn), 21 * across, turn * np.sin(turn)])
