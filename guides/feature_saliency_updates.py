"""Updates of weights and saliencies in component-wise EM, given expected statistics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from sidebayes.models.blocks.saliency.message_length import PER_DENSITY

__all__ = ["saliency_updated", "weight_updated"]

_TRIED = 33
"""Number of lengths of a step of a saliency that are tried."""


def weight_updated(
    weights: Array, cluster: Array, counts: Array, price: Array, held: Array, min_clusters: int
) -> Array:
    r"""Return weights after an update of one of them, with the others in proportion.

    While every cluster has more support than its price c, :math:`(N_j - c) / (n - k c)` maximises the
    objective exactly (own derivation). Otherwise the step is that of Figueiredo and Jain, :math:`\max(N_j
    - c, 0) / n`, and all weights are divided by their sum.
    """
    used = weights > 0
    number, size = used.sum(), counts.sum()
    surplus = jnp.maximum(counts[cluster] - price, 0.0)
    stays = held | (number <= min_clusters)
    raw = jnp.where(stays & (surplus <= 0), counts[cluster], surplus) / size
    rest = 1.0 - weights[cluster]
    paid = jnp.where(used, counts > price, True).all()
    exact = (counts[cluster] - price) / jnp.where(paid, size - number * price, 1.0)
    new = jnp.where(paid, exact, raw / jnp.maximum(raw + rest, 1e-300))
    scaled = weights * (1.0 - new) / jnp.maximum(rest, 1e-300)
    return jnp.where(number > 1, scaled.at[cluster].set(new), weights)


def saliency_updated(
    saliency: Array,
    moments: Any,
    num_used: Array,
    plain: ArrayLike,
    price: ArrayLike = PER_DENSITY / 2,
) -> Array:
    r"""Return saliencies after a step.

    The plain step is eq. 4.30. Where densities of relevant values are like the common ones, it only
    reproduces which values were taken to be relevant, and it moves by one part in n / k. A longer step is
    then taken: with only the labels unknown, the log likelihood at :math:`\rho + \delta` exceeds that at
    :math:`\rho` by at least :math:`\delta D - \delta^2 J`, as long as neither :math:`\rho` nor
    :math:`1 - \rho` is more than halved (own derivation, from :math:`\log(1 + t) \ge t - t^2` for
    :math:`t \ge -1/2`). Here :math:`D = \sum w (r - \rho) / \rho(1 - \rho)`, and :math:`J = \sum w (r -
    \rho)^2 / \rho^2(1 - \rho)^2`, for values that are relevant with probability r.
    """
    relevant, others = moments.on, moments.off
    price_off = jnp.asarray(price)
    price_on = num_used * price_off
    on, off = jnp.maximum(relevant - price_on, 0.0), jnp.maximum(others - price_off, 0.0)
    total = on + off
    best = jnp.where(total > 0, on / jnp.where(total > 0, total, 1.0), 0.0)
    inside = (best > 0) & (best < 1) & (saliency > 0) & (saliency < 1)
    now = jnp.where(inside, saliency, 0.5)
    spread, number = now * (1 - now), relevant + others
    slope = (relevant - number * now) / spread
    bend = (moments.certainty - 2 * now * relevant + number * now**2) / spread**2
    share = jnp.linspace(-1.0, 1.0, _TRIED)[:, None]
    step = share * jnp.where(share < 0, now, 1 - now) / 2
    tried = now + step
    bound = (
        step * slope - step**2 * bend - price_on * jnp.log(tried) - price_off * jnp.log1p(-tried)
    )
    longer = jnp.take_along_axis(tried, bound.argmax(axis=0)[None], axis=0)[0]
    is_longer = jnp.abs(longer - now) > jnp.abs(best - now)
    return jnp.where(inside & is_longer & ~jnp.asarray(plain), longer, best)
