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
    from .models.blocks.graph_kernels import GraphKernel, choose_graph_kernel
    from .models.blocks.label_graph import LabelGraph
    from .models.blocks.link_weights import certainty_weight, estimate_flip_rate, flip_rate_weight
    from .models.blocks.linked import LinkedCategorical, LinkedMixture
    from .models.blocks.links import Links
    from .models.blocks.partial_labels import Groups, PartialLabels
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
    "GraphKernel": "models.blocks.graph_kernels",
    "Groups": "models.blocks.partial_labels",
    "KMeans": "guides.constrained_kmeans",
    "LabelGraph": "models.blocks.label_graph",
    "LinkedCategorical": "models.blocks.linked",
    "LinkedMixture": "models.blocks.linked",
    "Links": "models.blocks.links",
    "MAP": "guides.engines.optimise",
    "MeanField": "models.blocks.approximate",
    "NUTS": "guides.engines.mcmc",
    "PartialLabels": "models.blocks.partial_labels",
    "SideBayesWarning": "guides.engines.base",
    "certainty_weight": "models.blocks.link_weights",
    "choose_graph_kernel": "models.blocks.graph_kernels",
    "compare": "api",
    "estimate_flip_rate": "models.blocks.link_weights",
    "fit": "api",
    "flip_rate_weight": "models.blocks.link_weights",
    "load": "api",
    "load_dataset": "datasets",
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
    "GraphKernel",
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
    "choose_graph_kernel",
    "compare",
    "datasets",
    "estimate_flip_rate",
    "fit",
    "flip_rate_weight",
    "load",
    "load_dataset",
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
