"""State of runs of sequential Monte Carlo between two temperatures."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array

from .particles import Tails

__all__ = ["Cloud"]


class Cloud(NamedTuple):
    """Particles of every run; the first axis of each array is that of runs.

    Attributes
    ----------
    key : Array
        Raw random key.
    particles : Array, shape (num_particles, num_coordinates)
        Equally weighted particles in the coordinates of `tails`.
    likelihood : Array, shape (num_particles,)
    tails : Tails
    reference : Array, shape (num_clusters, num_features)
        Reference for the numbering of clusters; empty where they are not folded.
    temperature : Array, shape ()
    log_evidence, variance : Array, shape ()
        Log evidence, and its variance, from that of the weights.
    step_size : Array, shape (num_shells,)
    acceptance : Array, shape ()
    correlation, memory : Array, shape ()
        Correlation of the worst coordinate, and of the log likelihood, with its values before the last moves.
    moves : Array, shape ()
        Total number of moves of a chain.
    steps : Array, shape ()
    """

    key: Array
    particles: Array
    likelihood: Array
    tails: Tails
    reference: Array
    temperature: Array
    log_evidence: Array
    variance: Array
    step_size: Array
    acceptance: Array
    correlation: Array
    memory: Array
    moves: Array
    steps: Array

    def outer(self) -> tuple[Array, Array]:
        """Return particles of every run in unconstrained coordinates, and their log likelihoods."""
        outer, _ = jax.vmap(lambda tails, u: tails.outward(u))(self.tails, self.particles)
        return outer, self.likelihood
