"""Probabilities of the classes within each component, as a conjugate block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.typing import ArrayLike

from sidebayes.common.arrays import given_array, is_traced
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown

from ..mixtures.weights import DirichletWeights
from ..side_information.partial_labels import PartialLabels
from .stated import untold_classes

__all__ = ["ClassTable", "class_table", "either"]

_TINY = 1e-6
"""Least probability of a class that a component has, and most of others beside it."""

_LEAST = 0.01
"""Least concentration; below it, expected log probabilities leave the range of floating point."""


def class_table(
    num_clusters: int,
    num_classes: int,
    concentration: ArrayLike = 1.0,
    *,
    name: str = "class_table",
    known: PartialLabels | None = None,
) -> Array:
    """Sample P(class | component), shape (num_clusters, num_classes), under Dirichlet priors.

    Parameters
    ----------
    num_clusters, num_classes : int
    concentration : float, or array_like of shape (num_classes,)
        Concentration of each class, at least 0.01; 1 is flat.
    name : str
        Name of the site.
    known : PartialLabels, optional
        What is stated about the classes of rows, for remarks alone.

    Raises
    ------
    ValueError
        For a concentration below 0.01, or of another shape.
    """
    check_integer("num_classes", num_classes)
    traced = is_traced(concentration)
    prior: Any = (
        given_array("class_concentration", concentration) if traced else np.asarray(concentration)
    )
    fits = prior.dtype.kind in "fiu" and prior.shape in ((), (num_classes,))
    if not fits or not (traced or (np.isfinite(prior) & (prior >= _LEAST)).all()):
        raise ValueError(
            f"class_concentration = {shown(concentration)}; expected a number of at least {_LEAST}, or "
            f"one for each of the {num_classes} classes"
        )
    untold = untold_classes(known, num_classes)
    return ClassTable(num_classes, jnp.asarray(prior, float), untold).sample(num_clusters, name)


class ClassTable(DirichletWeights):
    """Class probabilities of each component, shape (num_clusters, num_classes).

    Rows are permuted with the clusters; classes have names and are never permuted.
    """

    factor: ClassVar[str] = "log_classes"
    roles: ClassVar[tuple[str, ...]] = ("class_table",)

    def __init__(self, num_classes: int, prior: Array, untold: Sequence[int] = ()) -> None:
        super().__init__(num_classes, prior)
        self.untold = list(untold)

    def sample(self, num_clusters: int, name: str) -> Array:
        """Sample the table in the plate of the clusters."""
        with numpyro.plate("clusters", num_clusters):
            return self.declare("class_table", name, self._prior, ("classes",))

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say which classes no component has, or arbitrary ones; see `Remarking`."""
        table = np.asarray(values["class_table"], float)
        classes = table.shape[-1]
        absent = np.flatnonzero(table.reshape(-1, classes).max(axis=0) <= _TINY)
        said = []
        if absent.size:
            said.append(
                f"No component has class {either(absent)}, which is predicted "
                "nowhere: name rows of it, or lower num_classes"
            )
        arbitrary = [one for one in self.untold if table[..., one].max() >= 1 - _TINY]
        if arbitrary:
            said.append(
                f"{'no' if said else 'No'} row is known to have class {either(arbitrary)}, so that it is "
                "arbitrary which components have it, and predictions of it are, too: name rows of it, or "
                "lower num_classes"
            )
        return "; ".join(said) or None


def either(classes: Iterable[int]) -> str:
    """Classes by number: "1 or 3 (numbered from 0)"."""
    return f"{' or '.join(map(str, classes))} (numbered from 0)"
