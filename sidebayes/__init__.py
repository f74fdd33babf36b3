"""A probabilistic-programming model zoo for learning from side information."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import datasets
    from .api import compare, fit, load
    from .datasets import load_dataset
    from .guides.constrained_kmeans import KMeans
    from .guides.engines.base import FitError, SideBayesWarning
    from .guides.engines.em import EM
    from .guides.engines.mcmc import NUTS
    from .guides.engines.optimise import MAP
    from .models.blocks.approximate import BeliefPropagation, Exact, Gibbs, MeanField
    from .models.blocks.components import GaussianPrior
    from .models.blocks.copies import separate_pairs
    from .models.blocks.label_graph import LabelGraph
    from .models.blocks.linked import LinkedCategorical, LinkedMixture
    from .models.blocks.links import (
        Groups,
        Links,
        PartialLabels,
        certainty_weight,
        estimate_flip_rate,
        flip_rate_weight,
    )
    from .result import Fit
    from .simulate import simulate_links
    from .zoo import CARDS, Card

_HOME = {
    "BeliefPropagation": "models.blocks.approximate",
    "CARDS": "zoo",
    "Card": "zoo",
    "EM": "guides.engines.em",
    "Exact": "models.blocks.approximate",
    "Fit": "result",
    "FitError": "guides.engines.base",
    "Gibbs": "models.blocks.approximate",
    "GaussianPrior": "models.blocks.components",
    "Groups": "models.blocks.links",
    "KMeans": "guides.constrained_kmeans",
    "LabelGraph": "models.blocks.label_graph",
    "LinkedCategorical": "models.blocks.linked",
    "LinkedMixture": "models.blocks.linked",
    "Links": "models.blocks.links",
    "MAP": "guides.engines.optimise",
    "MeanField": "models.blocks.approximate",
    "NUTS": "guides.engines.mcmc",
    "PartialLabels": "models.blocks.links",
    "SideBayesWarning": "guides.engines.base",
    "certainty_weight": "models.blocks.links",
    "compare": "api",
    "estimate_flip_rate": "models.blocks.links",
    "fit": "api",
    "flip_rate_weight": "models.blocks.links",
    "load": "api",
    "load_dataset": "datasets",
    "separate_pairs": "models.blocks.copies",
    "simulate_links": "simulate",
}
"""Public name to the module that defines it."""

__all__ = [
    "CARDS",
    "EM",
    "MAP",
    "NUTS",
    "BeliefPropagation",
    "Card",
    "Exact",
    "Fit",
    "FitError",
    "GaussianPrior",
    "Gibbs",
    "Groups",
    "KMeans",
    "LabelGraph",
    "LinkedCategorical",
    "LinkedMixture",
    "Links",
    "MeanField",
    "PartialLabels",
    "SideBayesWarning",
    "certainty_weight",
    "compare",
    "datasets",
    "estimate_flip_rate",
    "fit",
    "flip_rate_weight",
    "load",
    "load_dataset",
    "separate_pairs",
    "simulate_links",
]


def __getattr__(name: str) -> Any:
    """Import public names when first asked for, so that ``import sidebayes`` is quick."""
    if name == "datasets":
        return import_module("sidebayes.datasets")
    if name == "__version__":
        return version("sidebayes")
    if name in _HOME:
        return getattr(import_module(f"sidebayes.{_HOME[name]}"), name)
    raise AttributeError(f"module 'sidebayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
