"""Probabilities of the classes within each component, as a conjugate block."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.typing import ArrayLike

from sidebayes.common.arrays import given_array, is_traced
from sidebayes.common.fields import check_integer

from ..mixtures.weights import DirichletWeights

__all__ = ["ClassTable", "class_table"]

_LEAST = 0.01
"""Least concentration: below, expected logarithms of probabilities leave the range of numbers."""


def class_table(
    num_clusters: int,
    num_classes: int,
    concentration: ArrayLike = 1.0,
    *,
    name: str = "class_table",
) -> Array:
    """Sample P(class | component), shape (num_clusters, num_classes), under Dirichlet priors.

    Parameters
    ----------
    num_clusters, num_classes : int
    concentration : float, or array_like of shape (num_classes,)
        Of each class, at least 0.01; 1 is flat.
    name : str
        Of the site.

    Raises
    ------
    ValueError
        For a concentration below 0.01, or of another shape.
    """
    check_integer("num_classes", num_classes)
    traced = is_traced(concentration)
    known: Any = (
        given_array("class_concentration", concentration) if traced else np.asarray(concentration)
    )
    fits = known.dtype.kind in "fiu" and known.shape in ((), (num_classes,))
    if not fits or not (traced or (np.isfinite(known) & (known >= _LEAST)).all()):
        raise ValueError(
            f"class_concentration = {concentration!r:.60}; expected a number of at least {_LEAST}, or "
            f"one for each of the {num_classes} classes"
        )
    return ClassTable(num_classes, jnp.asarray(known, float)).sample(num_clusters, name)


class ClassTable(DirichletWeights):
    """Class probabilities of each component, shape (num_clusters, num_classes).

    Rows permute with the clusters; classes have names of their own and never permute.
    """

    factor: ClassVar[str] = "log_classes"
    roles: ClassVar[tuple[str, ...]] = ("class_table",)

    def sample(self, num_clusters: int, name: str) -> Array:
        """Sample the table in the plate of the clusters."""
        with numpyro.plate("clusters", num_clusters):
            return self.declare("class_table", name, self._prior, ("classes",))
