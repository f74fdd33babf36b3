"""Where runs start that look for curves: around the one curve of all rows, by random shares."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from .stationary import as_columns, gram

__all__ = ["Setting"]


class Setting(NamedTuple):
    """What curves are looked for in: inputs, anchors, the unit of each row, and typical scales.

    `observed` says which outputs of a row were measured, None that all were.
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

    @property
    def is_known(self) -> bool:
        """Whether all of it is numbers."""
        return not any(isinstance(one, Tracer) for one in self)

    def random_curves(
        self, value: NDArray, num_clusters: int, seed: int, num_starts: int
    ) -> NDArray[np.float64]:
        r"""White weights of the curves that random responsibilities of the units give.

        Responsibilities are those of Ross and Dy (2013): uniform numbers, divided by their sum. With
        :math:`q_{nk} = (1 + \delta_{nk}) / K` means are, to first order in :math:`\delta` (own derivation),

        .. math:: w_k = \bar w + \tfrac{a}{K \sigma^2} \bar P^{-1} \Phi^\top (\delta_k \circ (y - \bar f)),
                  \quad \bar P = I + \tfrac{a^2}{K \sigma^2} \Phi^\top \Phi,

        with the curve :math:`\bar f` that all rows have in common: one factorisation for all starts.
        Outputs that were not observed are taken to be as the others are on average.

        Returns
        -------
        ndarray, shape (num_starts, num_clusters, num_outputs, num_anchors)
        """
        inputs, anchors = (
            as_columns(np.asarray(one, float)) for one in (self.inputs, self.anchors)
        )
        table = np.asarray(value, float).reshape(len(inputs), -1)
        if self.observed is not None:
            known = np.asarray(self.observed).reshape(table.shape) > 0
            number = np.maximum(known.sum(axis=0), 1)
            table = np.where(known, table, np.where(known, table, 0.0).sum(axis=0) / number)
        table = table - np.asarray(self.mean)
        size, noise = float(np.mean(self.amplitude)), float(np.mean(self.noise))
        own = gram(self.kernel, anchors, anchors, self.length_scale, np)
        root = np.linalg.cholesky(own + 1e-10 * np.eye(len(anchors)))
        cross = gram(self.kernel, anchors, inputs, self.length_scale, np)
        phi = size * solve_triangular(root, cross, lower=True).T
        share = 1.0 / (num_clusters * noise**2)
        factor = cho_factor(np.eye(len(anchors)) + share * phi.T @ phi)
        middle = cho_solve(factor, share * phi.T @ table)
        apart = table - phi @ middle

        codes = np.arange(len(inputs)) if self.codes is None else np.asarray(self.codes)
        drawn = np.random.default_rng(seed).uniform(
            size=(num_starts, num_clusters, int(codes.max(initial=0)) + 1)
        )
        drawn = num_clusters * drawn / drawn.sum(axis=1, keepdims=True) - 1.0
        pulled = np.stack(
            [drawn[..., codes] @ (column[:, None] * phi) for column in apart.T], axis=2
        )
        moved = cho_solve(factor, share * pulled.reshape(-1, len(anchors)).T).T
        return middle.T + moved.reshape(pulled.shape)
