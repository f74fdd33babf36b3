"""Links between points as statements about whether they are near one another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from sidebayes.common.fields import Range, check_number

from ..label_inference.label_graph import LabelGraph, as_label_graph
from ..side_information.links import Links

__all__ = ["stated_nearness"]


def stated_nearness(
    links: Links | LabelGraph | None,
    positions: Array,
    scale: Array,
    reach: float | dist.Distribution,
) -> None:
    r"""Observe links: statements that two points belong together, or do not.

    .. math:: P(\text{"together"} \mid x_i, x_j) = \gamma p_{ij} + (1 - \gamma)(1 - p_{ij}), \qquad
              p_{ij} = e^{-\|x_i - x_j\|^2 / 2 r^2}

    with the reliability :math:`\gamma = 1 / (1 + e^{-|w|})` of a link of weight w, one for hard
    links. Sites are ``statements``, and ``reach`` if it is learned; without links there are no
    sites. This is a latent space model of the statements (Hoff, Raftery and Handcock 2002, J. Am.
    Stat. Assoc. 97, 1090-1098) with a normalised density.

    Parameters
    ----------
    links : Links, LabelGraph or None
    positions : Array, shape (num_points, num_dimensions)
    scale : Array, shape ()
        s, the prior standard deviation of the positions.
    reach : float or Distribution
        r / s; a distribution makes it learned. Links that the distances contradict then tend to
        increase it.

    Raises
    ------
    ValueError
        If `reach` is not positive.
    """
    if not isinstance(reach, dist.Distribution):
        reach = check_number("reach", reach, Range(above=0))
    graph = as_label_graph(links, len(positions))
    if not len(graph.pairs):
        return
    weights = jnp.asarray(graph.pair_weights)
    width = numpyro.sample("reach", reach) if isinstance(reach, dist.Distribution) else reach
    first, second = jnp.asarray(graph.pairs).T
    square = jnp.sum((positions[first] - positions[second]) ** 2, axis=-1)
    square = square / (2 * (width * scale) ** 2)
    log_near, log_far = -square, jnp.log(-jnp.expm1(-square) + jnp.finfo(square.dtype).tiny)
    log_right, log_wrong = (jax.nn.log_sigmoid(sign * jnp.abs(weights)) for sign in (1, -1))
    log_together = jnp.logaddexp(log_right + log_near, log_wrong + log_far)
    log_apart = jnp.logaddexp(log_wrong + log_near, log_right + log_far)
    statements = dist.Bernoulli(logits=log_together - log_apart)
    numpyro.sample("statements", statements, obs=1 * (weights > 0))
