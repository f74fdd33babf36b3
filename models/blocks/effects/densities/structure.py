"""Structure of the covariance of random effects: the shape of its Cholesky factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from numpy.typing import NDArray
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from sidebayes.common.magnitudes import shown

__all__ = ["FactorUnits", "Structure"]


@dataclass(frozen=True)
class Structure:
    """Blocks of random effects, correlated within blocks and independent between blocks.

    Parameters
    ----------
    sizes : tuple of int
        Number of effects in each block, in their order.
    """

    sizes: tuple[int, ...]

    @classmethod
    def read(cls, covariance: str | tuple[int, ...], size: int) -> Structure:
        """Read the option of a model.

        Parameters
        ----------
        covariance : {"full", "diagonal"} or tuple of int
            All effects are correlated, or none, or those within blocks of these sizes.
        size : int
            Number of effects.

        Raises
        ------
        ValueError
        """
        if isinstance(covariance, str):
            known = {"full": (size,), "diagonal": (1,) * size}
            if covariance not in known:
                raise ValueError(
                    f"covariance = {covariance!r}; expected 'full', 'diagonal', or sizes of blocks of "
                    "correlated effects, such as (2, 1)"
                )
            return cls(known[covariance])
        sizes = tuple(covariance) if np.iterable(covariance) else ()
        whole = all(
            isinstance(one, int | np.integer) and not isinstance(one, bool) and one > 0
            for one in sizes
        )
        if not whole or sum(sizes) != size:
            raise ValueError(
                f"covariance = {shown(covariance)}; expected 'full', 'diagonal', or positive whole numbers "
                f"that add up to the {size} columns of random effects"
            )
        return cls(tuple(map(int, sizes)))

    @property
    def size(self) -> int:
        """Number of effects."""
        return sum(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Slice of each block."""
        ends = np.cumsum(self.sizes)
        return tuple(slice(int(e - s), int(e)) for e, s in zip(ends, self.sizes, strict=True))

    @property
    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns of the entries of a factor that may differ from zero."""
        lower = np.tril(self.mask)
        return np.nonzero(lower)  # type: ignore[return-value]

    @property
    def blocks(self) -> list[NDArray[np.int64]]:
        """Numbers of the effects of each block."""
        return [np.arange(own.start, own.stop) for own in self.slices]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which entries of a covariance may differ from zero, shape (size, size)."""
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return owner[:, None] == owner

    def matrix(self, entries: Array) -> Array:
        """Lower triangular factors of shape (..., size, size) from their entries."""
        rows, cols = self.entries
        blank = jnp.zeros((*entries.shape[:-1], self.size, self.size), entries.dtype)
        return blank.at[..., rows, cols].set(entries)

    def entries_of(self, matrix: Array) -> Array:
        """Entries of factors of shape (..., size, size)."""
        rows, cols = self.entries
        return matrix[..., rows, cols]


class FactorUnits(Transform):
    """Multiplication of a Cholesky factor, given by its entries, by a lower triangular matrix from the left.

    Parameters
    ----------
    unit : Array, shape (size, size)
        Lower triangular, zero outside the blocks of the structure.
    structure : Structure
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, unit: Array, structure: Structure) -> None:
        self.unit, self.structure = unit, structure

    def __call__(self, x: Array) -> Array:
        """Multiply by the unit."""
        return self.structure.entries_of(self.unit @ self.structure.matrix(x))

    def _inverse(self, y: Array) -> Array:
        return self.structure.entries_of(
            solve_triangular(self.unit, self.structure.matrix(y), lower=True)
        )

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Log determinant; a diagonal entry of the unit multiplies one entry in each column up to its own."""
        rows, _ = self.structure.entries
        total = jnp.log(jnp.abs(jnp.diagonal(self.unit)))[rows].sum()
        return jnp.broadcast_to(total, jnp.shape(x)[:-1])

    def tree_flatten(self) -> tuple:
        """Leaves and structure, for JAX."""
        return (self.unit,), (("unit",), {"structure": self.structure})
