"""Gaussian mixture with chunklets and cannot-links of Shental et al."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph
from .blocks.roles import Held
from .blocks.side_information.links import Links
from .ppc import ppc

__all__ = ["constrained_em"]


def constrained_em(
    x: Annotated[ArrayLike | None, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    concentration: float = 1.0,
    weight_per: str = "chunklet",
    inference: str | Inference = "exact",
    num_points: int | None = None,
) -> None:
    r"""Mixture whose chunklets are drawn as wholes (Lu 2008, eq. 3.2).

    .. math:: p(x, z) = \Omega^{-1} \prod_{\text{cannot}} [z_l \ne z_m]
              \prod_l \pi_{z_l} \prod_{i \in X_l} p(x_i | \theta_{z_l})

    Assumption 1 of Shental et al. is ``weight_per="chunklet"``; assumption 2, ``"point"``, is PPC
    with hard links. Parameters are those of `ppc`; make links hard with ``links.hardened()``.

    References
    ----------
    Shental, Bar-Hillel, Hertz and Weinshall (2004), NIPS 16, 465-472. Lu (2008), section 3.1.
    """
    ppc(
        x,
        links,
        num_clusters=num_clusters,
        covariance=covariance,
        prior=prior,
        component=component,
        concentration=concentration,
        weight_per=weight_per,
        inference=inference,
        num_points=num_points,
    )
