"""The table of methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidebayes.guides.constrained_kmeans import KMeans
from sidebayes.guides.engines.base import Engine
from sidebayes.guides.engines.em import EM
from sidebayes.guides.engines.mcmc import NUTS
from sidebayes.guides.engines.optimise import MAP
from sidebayes.guides.ppc import ppc_m_step
from sidebayes.models.constrained_em import constrained_em
from sidebayes.models.constrained_kmeans import constrained_kmeans
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc
from sidebayes.models.soft_kmeans import soft_kmeans

__all__ = ["CARDS", "ENGINES", "Card", "card_of"]

ENGINES: dict[str, type[Engine]] = {cls.name: cls for cls in (EM, MAP, NUTS, KMeans)}
"""Engines by name."""


@dataclass(frozen=True)
class Card:
    """One method of the zoo.

    Attributes
    ----------
    name, title : str
    model : callable
        NumPyro model ``model(x[, links], *, num_clusters, ...)``.
    engines : tuple of str
        Engines that fit it, the default first.
    takes_links : bool
    label_sites : tuple of str
        Sites whose first axis permutes with the labels.
    reference : str
    m_step : callable, optional
        Builds the closed-form M-step from the model's options.
    """

    name: str
    title: str
    model: Callable[..., None]
    engines: tuple[str, ...]
    takes_links: bool
    label_sites: tuple[str, ...]
    reference: str
    m_step: Callable | None = None


_MIXTURE = ("em", "map", "nuts")
_SITES = ("weights", "mean", "covariance", "variance")

CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        Card(
            "gmm", "Gaussian mixture", gmm, _MIXTURE, False, _SITES,
            "Lu (2008), section 2.1", ppc_m_step,
        ),
        Card(
            "ppc", "Penalized probabilistic clustering: hard, soft and learned links", ppc,
            _MIXTURE, True, _SITES, "Lu (2008), chapter 2; Lu and Leen (2007)", ppc_m_step,
        ),
        Card(
            "constrained_em", "Mixture of chunklets with cannot-links", constrained_em, _MIXTURE,
            True, _SITES, "Shental et al. (2004)", ppc_m_step,
        ),
        Card(
            "constrained_kmeans", "K-means under hard links (COP-KMeans)", constrained_kmeans,
            ("kmeans",), True, ("mean",), "Wagstaff et al. (2001); Lu (2008), section 3.3",
        ),
        Card(
            "soft_kmeans", "K-means with link penalties (PCKMeans)", soft_kmeans, ("kmeans",), True,
            ("mean",), "Basu et al. (2004); Lu (2008), section 3.2",
        ),
    )
}


def card_of(method: str) -> Card:
    """Look a method up.

    Raises
    ------
    ValueError
        For an unknown name, with the names there are.
    """
    if method not in CARDS:
        raise ValueError(f"method = {method!r} is unknown; choose from {sorted(CARDS)}")
    return CARDS[method]
