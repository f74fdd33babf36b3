"""Penalties for labels that break constraints, if labels depend on data and parameters only."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import jax.numpy as jnp
from jax import Array
from jax.nn import log_softmax
from jax.typing import ArrayLike

from ..label_inference.label_graph import LabelGraph, as_label_graph
from ..side_information.label_sets import jensen_shannon, padded_sets
from ..side_information.links import Links
from .linked_mixture import LinkedMixture

__all__ = ["priced_constraints"]


def priced_constraints(
    mixture: LinkedMixture,
    x: ArrayLike,
    links: Links | LabelGraph | None,
    must_groups: Sequence[ArrayLike],
    cannot_groups: Sequence[ArrayLike],
    strength: float | None,
    temperature: float,
) -> tuple[Array, Array]:
    r"""Penalised divergences, summed over labels that should agree and over labels that should differ.

    .. math:: \sum_{h \in \text{must}} \lambda_h D_h, \qquad \sum_{h \in \text{cannot}} \lambda_h D_h

    with the divergences :math:`D_h` of `jensen_shannon` among the soft labels
    :math:`s_{ij} \propto q_{ij}^{1/T}` of the points in constraint h.

    Parameters
    ----------
    mixture : LinkedMixture
        Mixture without links; :math:`q_{ij}` are its joint densities of a point and a label.
    x : array_like, shape (num_points, num_features)
    links : Links, LabelGraph or None
        Pairs. The absolute weight of a link is its :math:`\lambda_h`, in nats; one of infinite weight
        costs `strength`.
    must_groups, cannot_groups : sequence of array_like of int
        Sets of two or more rows.
    strength : float, optional
        :math:`\lambda_h` of infinite links and of groups, in nats; the number of points if None.
    temperature : float
        :math:`T`.

    Raises
    ------
    TypeError, ValueError
        If a group is not a set of rows of x, or strength or temperature has the wrong sign.
    """
    x = jnp.asarray(x)
    num_points = len(x)
    if strength is None:
        strength = float(num_points)
    elif not strength >= 0:
        raise ValueError(f"strength = {strength!r}; expected a number >= 0, or None")
    if isinstance(temperature, Real) and not temperature > 0:
        raise ValueError(f"temperature = {temperature!r}; expected a number > 0")
    factors = mixture.log_factors(x)
    log_labels = log_softmax((factors["unary"] + factors["log_weights"]) / temperature)

    graph = as_label_graph(links, num_points)
    weights = jnp.asarray(graph.pair_weights)
    price = jnp.where(jnp.isinf(weights), strength, jnp.abs(weights))
    halves = jnp.full(jnp.shape(graph.pairs), 0.5)
    paid = price * jensen_shannon(log_labels, graph.pairs, halves)

    def of_groups(groups: Sequence[ArrayLike], name: str) -> ArrayLike:
        return strength * jensen_shannon(log_labels, *padded_sets(groups, num_points, name)).sum()

    must = jnp.sum(paid, where=weights > 0) + of_groups(must_groups, "must_groups")
    cannot = jnp.sum(paid, where=weights < 0) + of_groups(cannot_groups, "cannot_groups")
    return must, cannot
