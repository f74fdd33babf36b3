"""Labelled rows that determine the classes of rows nearby, and their composite likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from sidebayes.common.arrays import plain_array, real_array, refuse_gaps
from sidebayes.common.class_names import check_class_names
from sidebayes.common.fields import rebuilt
from sidebayes.common.magnitudes import shown

from ..label_inference.padding import padded
from ..side_information.partial_labels import frozen
from .class_mixture import log_of
from .prototypes import Prototypes

__all__ = ["Anchors", "conditionals", "log_pseudo_likelihood", "room_for"]

_FEWEST = 32
"""Fewest rows for which arrays of labelled rows have room."""


def room_for(number: int) -> int:
    """Length of arrays of so many labelled rows, one of few, so that programs are shared."""
    return padded(max(number, _FEWEST), 2)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Anchors:
    """Rows whose class is known, each assigned to one component. A pytree whose arrays may be traced.

    Parameters
    ----------
    points : array_like, shape (num_anchors, num_features)
    classes, clusters : array_like of int, shape (num_anchors,)
    table : array_like, shape (num_clusters, num_classes)
        Class probabilities of the components, used for classes without a row in the component.
    class_names : sequence of str, optional
        Names of the classes in their order; there may be more names than classes.
    """

    points: ArrayLike
    classes: ArrayLike
    clusters: ArrayLike
    table: ArrayLike
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        points, table = (
            real_array(f"Anchors({n}=...)", getattr(self, n)) for n in ("points", "table")
        )
        if points.ndim != 2 or table.ndim != 2:
            raise ValueError(
                f"Anchors: points have shape {points.shape}, table {table.shape}; expected "
                "(num_anchors, num_features) and (num_clusters, num_classes)"
            )
        refuse_gaps("Anchors: points", points, "leave such anchors out")
        refuse_gaps("Anchors: table", table, "give probabilities")
        if (table < 0).any() or np.abs(table.sum(axis=1) - 1).max(initial=0.0) > 1e-6:
            raise ValueError("Anchors: rows of table are no probabilities; divide each by its sum")
        for name, most in (("clusters", len(table)), ("classes", table.shape[1])):
            given = plain_array(f"Anchors({name}=...)", getattr(self, name))
            fits = given.shape == (len(points),) and given.dtype.kind in "iu"
            if not fits or (given < 0).any() or (given >= most).any():
                raise ValueError(
                    f"Anchors: {name} = {shown(given)}; expected an integer from 0 to {most - 1} for each of "
                    f"the {len(points)} points"
                )
            object.__setattr__(self, name, frozen(given.astype(np.int64)))
        object.__setattr__(self, "points", frozen(points))
        object.__setattr__(self, "table", frozen(table))
        object.__setattr__(self, "class_names", check_class_names(self.class_names))

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Return the arrays only."""
        return (self.points, self.classes, self.clusters, self.table), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any, ...]) -> Self:
        """Rebuild without names and without any check."""
        return rebuilt(cls, (*children, None))

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(np.shape(self.table)[1])

    def padded(self) -> Self:
        """Anchors as arguments of programs, whose shapes other numbers of anchors share.

        Further anchors of no class and no component, -1, follow. They are copies of the last point.
        """
        number = np.shape(self.points)[0]
        ends = (0, room_for(number) - number)
        none = (np.pad(each, ends, constant_values=-1) for each in (self.classes, self.clusters))
        points = np.pad(self.points, (ends, (0, 0)), mode="edge")
        return rebuilt(type(self), (points, *none, self.table, self.class_names))

    @property
    def live(self) -> Array:
        """Mask of the actual anchors; the others are padding."""
        return jnp.asarray(self.classes) >= 0

    def prototypes(self, scale: Array, smoothing: float) -> Prototypes:
        """Prototypes at these rows (Raghuram 2014, eq. 2.16)."""
        classes, clusters = (jnp.maximum(each, 0) for each in (self.classes, self.clusters))
        table = jnp.asarray(self.table)
        given = jnp.asarray(self.points), classes, clusters, scale, table, smoothing
        return Prototypes(*given, self.live)

    def log_pseudo_likelihood(self, apart: Array, scale: Array, smoothing: float) -> Array:
        """See the function of this name; `apart` holds the squared distances between these rows."""
        table = jnp.asarray(self.table)
        member = jax.nn.one_hot(self.clusters, len(table), dtype=apart.dtype)
        given = apart, jnp.asarray(self.classes), member, scale, table
        return log_pseudo_likelihood(*given, smoothing=smoothing)


def conditionals(
    apart: Array,
    classes: Array,
    member: Array,
    scale: Array,
    table: Array,
    *,
    smoothing: float = 0.0,
    normalise: bool = False,
) -> Array:
    r"""P(class | classes of the other anchors in a component), for each anchor and component.

    .. math:: p_{j,i}(c) = \begin{cases} R_{j,i}(c) & \text{where class c occurs in } S_j \setminus i \\
                                         \beta_{jc} & \text{elsewhere} \end{cases}, \qquad
              R_{j,i}(c) = \frac{\sum_{m \in S_j \setminus i,\, c_m = c} e^{-a_j D_{im}}}
                                {\sum_{m \in S_j \setminus i} e^{-a_j D_{im}}}

    (Raghuram 2014, eqs. 2.4-2.5). These need not sum to one; with `normalise` they are divided by their
    sum. With `smoothing` > 0 they are replaced by the proper, positive law of `Prototypes`.

    Parameters
    ----------
    apart : Array, shape (num_anchors, num_anchors)
        Squared distances D.
    classes : Array of int, shape (num_anchors,)
    member : Array, shape (num_anchors, num_clusters)
        1 where an anchor is in the component :math:`S_j`, else 0.
    scale : Array, shape (num_clusters,)
    table : Array, shape (num_clusters, num_classes)
    smoothing : float
    normalise : bool

    Returns
    -------
    Array, shape (num_clusters, num_anchors, num_classes)
    """
    kinds = jax.nn.one_hot(classes, table.shape[1], dtype=apart.dtype)
    others = 1.0 - jnp.eye(len(apart), dtype=apart.dtype)

    def of(given: tuple[Array, Array, Array]) -> Array:
        own, a, shares = given
        weight = others * own
        logs = jnp.where(weight > 0, -a * apart, -jnp.inf)
        most = logs.max(axis=1, keepdims=True)
        kernel = weight * jnp.exp(logs - jnp.where(jnp.isfinite(most), most, 0.0))
        same, total = kernel @ kinds, kernel.sum(axis=1, keepdims=True)
        if smoothing:
            return (same + smoothing * shares) / (total + smoothing)
        found = same / jnp.where(total > 0, total, 1.0)
        found = jnp.where(weight @ kinds > 0, found, shares)
        return found / found.sum(axis=1, keepdims=True) if normalise else found

    return jax.lax.map(of, (member.T, scale, table))


def log_pseudo_likelihood(
    apart: Array,
    classes: Array,
    member: Array,
    scale: Array,
    table: Array,
    *,
    smoothing: float = 0.0,
    normalise: bool = False,
) -> Array:
    """Log pseudo-likelihood of the classes of the anchors by component (eq. 2.6), (num_clusters,).

    Parameters are those of `conditionals`. It is a composite likelihood: in general, no joint law
    of the classes has these conditionals.
    """
    given = apart, classes, member, scale, table
    found = conditionals(*given, smoothing=smoothing, normalise=normalise)
    own = jnp.take_along_axis(found, classes[None, :, None], axis=2)[:, :, 0]
    return jnp.sum(member.T * log_of(own), axis=1)
