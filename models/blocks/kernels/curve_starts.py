"""Starting values of curves: several length-scales, and random responsibilities of the rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from .stationary import as_columns, gram

__all__ = ["Setting"]

_LENGTHS = 9
"""Minimum number of length-scales that are compared."""

_LEVELS = (1.0, 2.0, 4.0)
"""Multiples of the typical noise at which length-scales are compared."""


class Setting(NamedTuple):
    """Setting in which curves are fitted: inputs, anchors, the unit of each row, and typical scales.

    `observed` says which outputs of a row were measured; None means all. `prior` is the prior of a
    learned length-scale, "default" or a distribution; None means that the typical length-scale is
    given.
    """

    kernel: str
    inputs: Any
    anchors: Any
    codes: Any
    length_scale: Any
    amplitude: Any
    noise: Any
    mean: Any
    observed: Any = None
    prior: Any = None

    @property
    def is_known(self) -> bool:
        """Whether all values are numbers, not traced."""
        return not any(isinstance(one, Tracer) for one in self)

    def length_scales(self, value: NDArray, seed: int, num_starts: int) -> NDArray[np.float64]:
        """Starting values of the length-scale: the typical one first, then others if it is learned.

        A fit from the typical length-scale misses structure on other scales: a yearly season is
        noise to a curve that bends once in four years. Under a given prior the others are drawn
        from it. Under the default prior they are evenly spaced in logarithms between the mean
        distance of neighbouring inputs and the range of the inputs, in decreasing order of the
        evidence of a common curve for all rows.

        Returns
        -------
        ndarray, shape (num_starts,) or (num_starts, num_inputs)
        """
        typical = np.asarray(self.length_scale, float)
        found = np.broadcast_to(typical, (num_starts, *typical.shape)).copy()
        others = num_starts - 1
        if isinstance(self.prior, dist.Distribution):
            found[1:] = self.prior.sample(jax.random.key(seed), (others,))
        elif self.prior is not None and others and len(factors := self._factors(others)):
            lengths = factors.reshape(-1, *[1] * typical.ndim) * typical
            evidence = [self._evidence(value, length) for length in lengths]
            found[1:] = lengths[np.argsort(evidence)[::-1][:others]]
        return found

    def _factors(self, number: int) -> NDArray[np.float64]:
        """Length-scales from neighbour distance to range, in typical units; none if no input varies."""
        inputs = as_columns(np.asarray(self.inputs, float))
        reach = np.ptp(inputs, axis=0)
        moves = reach > 0
        if not moves.any():
            return np.ones(0)
        steps = np.array([len(np.unique(column)) - 1 for column in inputs.T[moves]])
        reach = reach[moves] / np.broadcast_to(self.length_scale, moves.shape)[moves]
        most = max(number, _LENGTHS)
        return np.geomspace((reach / steps).min(), reach.max(), most + 1)[:-1]

    def _evidence(self, value: NDArray, length: NDArray) -> float:
        """Log density of all rows about one curve, up to a constant, at the best of a few noise levels."""
        table, phi = self._table(value), self._features(length)
        square, pulled, within = phi.T @ phi, phi.T @ table, np.sum(table**2)
        found = []
        for level in _LEVELS:
            variance = (level * float(np.mean(self.noise))) ** 2
            root = np.linalg.cholesky(np.eye(len(square)) + square / variance)
            white = solve_triangular(root, pulled, lower=True) / variance
            spread = np.log(np.diagonal(root)).sum() + 0.5 * len(table) * np.log(variance)
            left = within / variance - np.sum(white**2)
            found.append(-0.5 * left - table.shape[1] * spread)
        return max(found)

    def _table(self, value: NDArray) -> NDArray[np.float64]:
        """Outputs about their mean, one per column; unobserved ones are the average of the others."""
        table = np.asarray(value, float).reshape(len(np.asarray(self.inputs)), -1)
        if self.observed is not None:
            known = np.asarray(self.observed).reshape(table.shape) > 0
            number = np.maximum(known.sum(axis=0), 1)
            table = np.where(known, table, np.where(known, table, 0.0).sum(axis=0) / number)
        return table - np.asarray(self.mean)

    def _features(self, length: NDArray) -> NDArray[np.float64]:
        """Features of the rows, with the typical amplitude, shape (num_rows, num_anchors)."""
        inputs, anchors = (
            as_columns(np.asarray(one, float)) for one in (self.inputs, self.anchors)
        )
        own = gram(self.kernel, anchors, anchors, length, np)
        root = np.linalg.cholesky(own + 1e-10 * np.eye(len(anchors)))
        cross = gram(self.kernel, anchors, inputs, length, np)
        return float(np.mean(self.amplitude)) * solve_triangular(root, cross, lower=True).T

    def random_curves(
        self, value: NDArray, num_clusters: int, seed: int, num_starts: int
    ) -> NDArray[np.float64]:
        r"""White weights of the curves under random responsibilities of the units.

        Responsibilities are those of Ross and Dy (2013): uniform numbers, divided by their sum. With
        :math:`q_{nk} = (1 + \delta_{nk}) / K` means are, to first order in :math:`\delta` (own derivation),

        .. math:: w_k = \bar w + \tfrac{a}{K \sigma^2} \bar P^{-1} \Phi^\top (\delta_k \circ (y - \bar f)),
                  \quad \bar P = I + \tfrac{a^2}{K \sigma^2} \Phi^\top \Phi,

        with the common curve :math:`\bar f` of all rows. All starts with the same length-scale
        share one factorisation. Unobserved outputs are set to the average of the others.

        Returns
        -------
        ndarray, shape (num_starts, num_clusters, num_outputs, num_anchors)
        """
        table, anchors = self._table(value), len(np.asarray(self.anchors))
        codes = np.arange(len(table)) if self.codes is None else np.asarray(self.codes)
        drawn = np.random.default_rng(seed).uniform(
            size=(num_starts, num_clusters, int(codes.max(initial=0)) + 1)
        )
        drawn = num_clusters * drawn / drawn.sum(axis=1, keepdims=True) - 1.0
        lengths = self.length_scales(value, seed, num_starts)
        found = np.empty((num_starts, num_clusters, table.shape[1], anchors))
        for length in np.unique(lengths, axis=0):
            own = (lengths == length).reshape(num_starts, -1).all(axis=1)
            found[own] = self._curves(table, length, drawn[own][..., codes])
        return found

    def _curves(self, table: NDArray, length: NDArray, apart: NDArray) -> NDArray[np.float64]:
        """Weights from relative differences of responsibilities, (num_starts, num_clusters, num_rows)."""
        phi = self._features(length)
        share = 1.0 / (apart.shape[1] * float(np.mean(self.noise)) ** 2)
        factor = cho_factor(np.eye(phi.shape[1]) + share * phi.T @ phi)
        middle = cho_solve(factor, share * phi.T @ table)
        left = table - phi @ middle
        pulled = np.stack([apart @ (column[:, None] * phi) for column in left.T], axis=2)
        moved = cho_solve(factor, share * pulled.reshape(-1, phi.shape[1]).T).T
        return middle.T + moved.reshape(pulled.shape)
