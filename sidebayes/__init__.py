"""A probabilistic-programming model zoo for learning from side information."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import datasets
    from .adaptation import select_adaptation
    from .api import compare, fit, load
    from .cluster_number import select_clusters
    from .component_number import select_components
    from .datasets import load_dataset
    from .diagnostics.debug import debug
    from .domains import simulate_domains
    from .estimators import LinkedKFold, LinkedMixtureClusterer, MixtureClassifier
    from .forecasts import forecast
    from .formulas import Design, design
    from .growing import fit_nfgl, grow_prototypes
    from .guides.constrained_kmeans import KMeans
    from .guides.constraint_fit import Continuation, choose_strength
    from .guides.detection.alignment import align_kernels, kernel_alignment
    from .guides.detection.estimation import estimate_population
    from .guides.detection.fisher_kernels import FisherFeatures
    from .guides.detection.likelihood_ratio import LikelihoodRatio
    from .guides.detection.population import MixPrior, Population
    from .guides.detection.roc import delong_test, stitch_roc
    from .guides.detection.series_kernels import LeastSquaresFeatures, SeriesKernel
    from .guides.detection.table import LongTable
    from .guides.domain_adaptation import fit_source
    from .guides.engines.base import FitError, SideBayesWarning
    from .guides.engines.expectation_maximisation.em import EM
    from .guides.engines.expectation_maximisation.monte_carlo_em import MonteCarloEM
    from .guides.engines.expectation_maximisation.stochastic_em import StochasticEM
    from .guides.engines.optimisers.laplace import Laplace
    from .guides.engines.optimisers.optimise import MAP, Newton
    from .guides.engines.samplers.gibbs import BlockedGibbs
    from .guides.engines.samplers.mcmc import HMC, NUTS
    from .guides.engines.samplers.nested import NestedSlice
    from .guides.engines.samplers.smc import SMC
    from .guides.engines.variational.coordinate_ascent import CoordinateAscent
    from .guides.engines.variational.svi import SVI
    from .guides.moe import HardClasses
    from .models.blocks.classes.anchors import Anchors
    from .models.blocks.classes.source_mixture import SourceMixture
    from .models.blocks.effects.priors import EffectsPrior
    from .models.blocks.kernels.graph_kernels import GraphKernel, choose_graph_kernel
    from .models.blocks.label_inference.approximate import (
        BeliefPropagation,
        Exact,
        GibbsLabels,
        MeanField,
    )
    from .models.blocks.label_inference.label_graph import LabelGraph
    from .models.blocks.mixtures.components import GaussianPrior
    from .models.blocks.mixtures.linked_categorical import LinkedCategorical
    from .models.blocks.mixtures.linked_mixture import LinkedMixture
    from .models.blocks.mixtures.shift_prior import ShiftPrior
    from .models.blocks.side_information.copies import separate_pairs
    from .models.blocks.side_information.link_weights import (
        certainty_weight,
        estimate_flip_rate,
        flip_rate_weight,
    )
    from .models.blocks.side_information.links import Links
    from .models.blocks.side_information.partial_labels import Groups, PartialLabels
    from .models.blocks.survival import HazardPrior
    from .prior import prior_predictive
    from .result import Fit
    from .sbc import calibrate
    from .simulate import simulate_decline, simulate_links
    from .simulate_curves import simulate_helices, simulate_sinusoids, simulate_walkers
    from .suggest import suggest_links
    from .zoo import CARDS, Card, register

_HOME = {
    "Anchors": "models.blocks.classes.anchors",
    "BeliefPropagation": "models.blocks.label_inference.approximate",
    "BlockedGibbs": "guides.engines.samplers.gibbs",
    "CARDS": "zoo",
    "Card": "zoo",
    "Continuation": "guides.constraint_fit",
    "CoordinateAscent": "guides.engines.variational.coordinate_ascent",
    "Design": "formulas",
    "EM": "guides.engines.expectation_maximisation.em",
    "EffectsPrior": "models.blocks.effects.priors",
    "Exact": "models.blocks.label_inference.approximate",
    "FisherFeatures": "guides.detection.fisher_kernels",
    "Fit": "result",
    "FitError": "guides.engines.base",
    "GibbsLabels": "models.blocks.label_inference.approximate",
    "GaussianPrior": "models.blocks.mixtures.components",
    "GraphKernel": "models.blocks.kernels.graph_kernels",
    "HardClasses": "guides.moe",
    "HMC": "guides.engines.samplers.mcmc",
    "HazardPrior": "models.blocks.survival",
    "Groups": "models.blocks.side_information.partial_labels",
    "KMeans": "guides.constrained_kmeans",
    "LabelGraph": "models.blocks.label_inference.label_graph",
    "Laplace": "guides.engines.optimisers.laplace",
    "LeastSquaresFeatures": "guides.detection.series_kernels",
    "LikelihoodRatio": "guides.detection.likelihood_ratio",
    "LinkedCategorical": "models.blocks.mixtures.linked_categorical",
    "LinkedMixture": "models.blocks.mixtures.linked_mixture",
    "LinkedKFold": "estimators",
    "LinkedMixtureClusterer": "estimators",
    "Links": "models.blocks.side_information.links",
    "LongTable": "guides.detection.table",
    "MAP": "guides.engines.optimisers.optimise",
    "MonteCarloEM": "guides.engines.expectation_maximisation.monte_carlo_em",
    "MeanField": "models.blocks.label_inference.approximate",
    "MixPrior": "guides.detection.population",
    "MixtureClassifier": "estimators",
    "NUTS": "guides.engines.samplers.mcmc",
    "Newton": "guides.engines.optimisers.optimise",
    "NestedSlice": "guides.engines.samplers.nested",
    "PartialLabels": "models.blocks.side_information.partial_labels",
    "Population": "guides.detection.population",
    "SVI": "guides.engines.variational.svi",
    "ShiftPrior": "models.blocks.mixtures.shift_prior",
    "SideBayesWarning": "guides.engines.base",
    "SourceMixture": "models.blocks.classes.source_mixture",
    "calibrate": "sbc",
    "prior_predictive": "prior",
    "SMC": "guides.engines.samplers.smc",
    "SeriesKernel": "guides.detection.series_kernels",
    "StochasticEM": "guides.engines.expectation_maximisation.stochastic_em",
    "align_kernels": "guides.detection.alignment",
    "certainty_weight": "models.blocks.side_information.link_weights",
    "choose_graph_kernel": "models.blocks.kernels.graph_kernels",
    "choose_strength": "guides.constraint_fit",
    "compare": "api",
    "debug": "diagnostics.debug",
    "delong_test": "guides.detection.roc",
    "design": "formulas",
    "estimate_flip_rate": "models.blocks.side_information.link_weights",
    "estimate_population": "guides.detection.estimation",
    "fit": "api",
    "fit_nfgl": "growing",
    "fit_source": "guides.domain_adaptation",
    "flip_rate_weight": "models.blocks.side_information.link_weights",
    "forecast": "forecasts",
    "grow_prototypes": "growing",
    "kernel_alignment": "guides.detection.alignment",
    "load": "api",
    "load_dataset": "datasets",
    "register": "zoo",
    "select_adaptation": "adaptation",
    "select_clusters": "cluster_number",
    "select_components": "component_number",
    "separate_pairs": "models.blocks.side_information.copies",
    "simulate_decline": "simulate",
    "simulate_helices": "simulate_curves",
    "simulate_domains": "domains",
    "simulate_links": "simulate",
    "simulate_sinusoids": "simulate_curves",
    "simulate_walkers": "simulate_curves",
    "stitch_roc": "guides.detection.roc",
    "suggest_links": "suggest",
}
"""Public name to the module that defines it."""

__all__ = [
    "CARDS",
    "EM",
    "HMC",
    "MAP",
    "NUTS",
    "SMC",
    "SVI",
    "Anchors",
    "BeliefPropagation",
    "BlockedGibbs",
    "Card",
    "Continuation",
    "CoordinateAscent",
    "Design",
    "EffectsPrior",
    "Exact",
    "FisherFeatures",
    "Fit",
    "FitError",
    "GaussianPrior",
    "GibbsLabels",
    "GraphKernel",
    "Groups",
    "HardClasses",
    "HazardPrior",
    "KMeans",
    "LabelGraph",
    "Laplace",
    "LeastSquaresFeatures",
    "LikelihoodRatio",
    "LinkedCategorical",
    "LinkedKFold",
    "LinkedMixture",
    "LinkedMixtureClusterer",
    "Links",
    "LongTable",
    "MeanField",
    "MixPrior",
    "MixtureClassifier",
    "MonteCarloEM",
    "NestedSlice",
    "Newton",
    "PartialLabels",
    "Population",
    "SeriesKernel",
    "ShiftPrior",
    "SideBayesWarning",
    "SourceMixture",
    "StochasticEM",
    "align_kernels",
    "calibrate",
    "certainty_weight",
    "choose_graph_kernel",
    "choose_strength",
    "compare",
    "datasets",
    "debug",
    "delong_test",
    "design",
    "estimate_flip_rate",
    "estimate_population",
    "fit",
    "fit_nfgl",
    "fit_source",
    "flip_rate_weight",
    "forecast",
    "grow_prototypes",
    "kernel_alignment",
    "load",
    "load_dataset",
    "prior_predictive",
    "register",
    "select_adaptation",
    "select_clusters",
    "select_components",
    "separate_pairs",
    "simulate_decline",
    "simulate_domains",
    "simulate_helices",
    "simulate_links",
    "simulate_sinusoids",
    "simulate_walkers",
    "stitch_roc",
    "suggest_links",
]


def __getattr__(name: str) -> Any:
    """Import public names when first asked for, so that ``import sidebayes`` is quick."""
    if name == "datasets":
        return import_module("sidebayes.datasets")
    if name == "__version__":
        return version("sidebayes")
    if name in _HOME:
        with warnings.catch_warnings():
            # NumPyro imports tqdm, which asks notebooks for ipywidgets; our own bars need none
            warnings.filterwarnings("ignore", "IProgress not found")
            module = import_module(f"sidebayes.{_HOME[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'sidebayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
