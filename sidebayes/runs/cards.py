"""Every method of the zoo, and what there is to know about it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sidebayes.models.blocks.roles import Signature

__all__ = ["CARDS", "Card", "resolve", "takes_links"]


def resolve(path: str) -> Any:
    """What a path such as "module:function" names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Card:
    """Entry of a method in the zoo: its name, model, engines and source.

    Attributes
    ----------
    name : str
    title : str
        What the method assumes, in one line.
    model_path : str or callable
        The model, or its location as "module:function".
    engines : tuple of str
        Engines that suit the method, the default first.
    links : {"none", "any", "hard", "priced"}
        Which links the method takes. "priced" stands for any links, which then have a price instead
        of tying labels.
    reference : str
    doi : str
    tags : tuple of str
    routine_path : str
        Location of the function that fits the method, where a structure has to be found before
        `sidebayes.fit` can run. By default `sidebayes.fit` itself.
    """

    name: str
    title: str
    model_path: str | Callable[..., None]
    engines: tuple[str, ...]
    links: Literal["none", "any", "hard", "priced"]
    reference: str
    doi: str = ""
    tags: tuple[str, ...] = field(default=())
    routine_path: str = ""

    @property
    def routine(self) -> Callable[..., Any]:
        """The function that fits the method; it takes the arguments of `sidebayes.fit` after the method."""
        if self.routine_path:
            return self.fitted_by
        return partial(resolve("sidebayes.api:fit"), self.name)

    @property
    def fitted_by(self) -> Callable[..., Any]:
        """The function whose signature names what the routine takes: the model, or the routine itself."""
        return resolve(self.routine_path) if self.routine_path else self.model

    @property
    def signature(self) -> Signature:
        """Arguments of the routine, data and options apart."""
        from sidebayes.models.blocks.roles import signature_of

        return signature_of(self.fitted_by)

    @property
    def model(self) -> Callable[..., None]:
        """The generative NumPyro function."""
        return resolve(self.model_path) if isinstance(self.model_path, str) else self.model_path

    def is_of(self, model: object) -> bool:
        """Whether this card describes a model; a module that is not loaded cannot hold it."""
        if (
            isinstance(self.model_path, str)
            and self.model_path.partition(":")[0] not in sys.modules
        ):
            return False
        return self.model is model

    @property
    def default_engine(self) -> str:
        """Name of the engine that is used by default."""
        return self.engines[0]

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the model beyond data and the number of clusters."""
        from sidebayes.models.blocks.roles import signature_of

        known = signature_of(self.model).options
        return tuple(name for name in known if name not in ("num_clusters", "num_points"))


_ENGINES_OF_MIXTURES = (
    "em",
    "map",
    "laplace",
    "pathfinder",
    "svi",
    "cavi",
    "nuts",
    "hmc",
    "mclmc",
    "gibbs",
    "smc",
    "nested",
    "stochastic_em",
)
_ENGINES_OF_CONSTRAINTS = ("continuation", "map")

CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        Card(
            name="gmm",
            title="Gaussian mixture",
            model_path="sidebayes.models.gmm:gmm",
            engines=_ENGINES_OF_MIXTURES,
            links="none",
            reference="Fraley and Raftery (2007), J. Classification 24, 155-181",
            doi="10.1007/s00357-007-0004-5",
            tags=("mixture", "unsupervised"),
        ),
        Card(
            name="ppc",
            title="Mixture whose labels links tie: a random field, or statements of learned reliability",
            model_path="sidebayes.models.ppc:ppc",
            engines=_ENGINES_OF_MIXTURES,
            links="any",
            reference="Lu and Leen (2007), Neural Computation 19, 1528-1567",
            doi="10.1162/neco.2007.19.6.1528",
            tags=("mixture", "links", "reliability"),
        ),
        Card(
            name="constrained_em",
            title="Mixture whose chunklets are drawn as wholes",
            model_path="sidebayes.models.constrained_em:constrained_em",
            engines=_ENGINES_OF_MIXTURES,
            links="any",
            reference="Shental, Bar-Hillel, Hertz and Weinshall (2004), NIPS 16, 465-472",
            tags=("mixture", "links", "chunklets"),
        ),
        Card(
            name="pair_mixture",
            title="Several Gaussians per class; linked pairs have a joint density",
            model_path="sidebayes.models.pair_mixture:pair_mixture",
            engines=("em", "map", "laplace", "svi", "nuts", "hmc", "mclmc"),
            links="any",
            reference="Yu (2016), PhD thesis, University of Utah, chapter 4",
            tags=("mixture", "links"),
        ),
        Card(
            name="sphere_mixture",
            title="Mixture of wrapped normals or von Mises-Fisher densities on a sphere, with links",
            model_path="sidebayes.models.sphere_mixture:sphere_mixture",
            engines=(
                "em",
                "map",
                "laplace",
                "svi",
                "nuts",
                "hmc",
                "mclmc",
                "geodesic",
                "gibbs",
                "smc",
                "nested",
            ),
            links="any",
            reference="Awate, Yu and Whitaker (2014), ECML-PKDD, LNCS 8724, 82-98",
            doi="10.1007/978-3-662-44848-9_6",
            tags=("mixture", "links", "reliability", "partial labels", "sphere"),
        ),
        Card(
            name="moe",
            title="Mixture whose components have classes, learned from a few labelled rows",
            model_path="sidebayes.models.moe:moe",
            engines=(*_ENGINES_OF_MIXTURES, "hard_classes"),
            links="none",
            reference="Miller and Uyar (1997), NIPS 9, 571-577",
            tags=("mixture", "classifier", "partial labels"),
        ),
        Card(
            name="pfgl",
            title="Mixture whose components have classes by the nearest prototype within them",
            model_path="sidebayes.models.pfgl:pfgl",
            engines=("em", "map", "laplace", "svi", "cavi", "nuts", "hmc", "mclmc"),
            links="none",
            reference="Miller, Raghuram, Kesidis and Collins (2012), Neural Computation 24, 1926-1966",
            tags=("mixture", "classifier", "partial labels"),
            routine_path="sidebayes.studies.prototypes:grow_prototypes",
        ),
        Card(
            name="nfgl",
            title="Mixture in whose components labelled rows vote on the class: a composite likelihood",
            model_path="sidebayes.models.nfgl:nfgl",
            engines=("em", "map", "laplace", "nuts", "hmc", "mclmc"),
            links="none",
            reference="Miller, Raghuram, Kesidis and Collins (2012), Neural Computation 24, 1926-1966",
            tags=("mixture", "classifier", "partial labels", "composite likelihood"),
            routine_path="sidebayes.studies.prototypes:fit_nfgl",
        ),
        Card(
            name="domain_adaptation",
            title="Classifier by mixtures, moved to a target domain where few classes are known",
            model_path="sidebayes.models.domain_adaptation:domain_adaptation",
            engines=_ENGINES_OF_MIXTURES,
            links="none",
            reference="Raghuram (2014), PhD thesis, Pennsylvania State University, chapter 4",
            tags=("mixture", "classifier", "partial labels", "domain adaptation"),
        ),
        Card(
            name="constrained_kmeans",
            title="K-means that keeps every must-link and cannot-link",
            model_path="sidebayes.models.constrained_kmeans:constrained_kmeans",
            engines=("kmeans", "em", "map"),
            links="hard",
            reference="Wagstaff, Cardie, Rogers and Schroedl (2001), ICML, 577-584",
            tags=("k-means", "links"),
        ),
        Card(
            name="soft_kmeans",
            title="K-means with a price on every violated link",
            model_path="sidebayes.models.soft_kmeans:soft_kmeans",
            engines=("kmeans", "em", "map"),
            links="any",
            reference="Basu, Banerjee and Mooney (2004), SDM, 333-344",
            doi="10.1137/1.9781611972740.31",
            tags=("k-means", "links"),
        ),
        Card(
            name="constraint_fit",
            title="Mixture fitted so that its labels keep the links: a penalised objective",
            model_path="sidebayes.models.constraint_fit:constraint_fit",
            engines=_ENGINES_OF_CONSTRAINTS,
            links="priced",
            reference="Law (2006), Michigan State University, chapter 5",
            tags=("mixture", "links", "groups", "penalised"),
        ),
        Card(
            name="constraint_projection",
            title="Mixture in a few linear features, fitted so that its labels keep the links",
            model_path="sidebayes.models.constraint_projection:constraint_projection",
            engines=_ENGINES_OF_CONSTRAINTS,
            links="priced",
            reference="Law (2006), Michigan State University, section 5.5",
            tags=("mixture", "links", "groups", "penalised", "features"),
        ),
        Card(
            name="pairwise_gp",
            title="Gaussian-process classifier learned from statements about pairs",
            model_path="sidebayes.models.pairwise_gp:pairwise_gp",
            engines=("map", "laplace", "svi", "nuts", "hmc", "mclmc"),
            links="any",
            reference="Lu (2008), PhD thesis, Oregon Health & Science University, chapter 4",
            tags=("classifier", "links", "reliability"),
        ),
        Card(
            name="mcp",
            title="Clusters of several components, whose number may be unknown; links shape regions of space",
            model_path="sidebayes.models.mcp:mcp",
            engines=("em", "map"),
            links="any",
            reference="Raghuram (2014), PhD thesis, Pennsylvania State University, chapter 3",
            tags=("mixture", "links", "unknown number of clusters"),
        ),
        Card(
            name="scp",
            title="Clusters of one component each; links shape regions of space",
            model_path="sidebayes.models.scp:scp",
            engines=("em", "map"),
            links="any",
            reference="Raghuram (2014), PhD thesis, Pennsylvania State University, chapter 3",
            tags=("mixture", "links"),
        ),
        Card(
            name="feature_saliency",
            title="Mixture that learns which features matter, and how many clusters there are",
            model_path="sidebayes.models.feature_saliency:feature_saliency",
            engines=(
                "componentwise_em",
                "em",
                "svi",
                "nuts",
                "hmc",
                "mclmc",
                "gibbs",
                "smc",
                "nested",
            ),
            links="any",
            reference="Law, Figueiredo and Jain (2004), IEEE Trans. PAMI 26, 1154-1166",
            doi="10.1109/TPAMI.2004.71",
            tags=("mixture", "features", "unknown number of clusters", "links", "partial labels"),
        ),
        Card(
            name="geodesic_embedding",
            title="Positions on a map whose distances are geodesics observed in noise: Isomap as a model",
            model_path="sidebayes.models.geodesic_embedding:geodesic_embedding",
            engines=("map", "laplace", "svi", "nuts", "hmc", "mclmc"),
            links="priced",
            reference="Oh and Raftery (2001), J. Am. Stat. Assoc. 96, 1031-1044",
            doi="10.1198/016214501753208690",
            tags=("embedding", "manifold", "links", "partial labels"),
        ),
        Card(
            name="mixed_effects",
            title="Regression whose coefficients differ between subjects: REML, ML, draws",
            model_path="sidebayes.models.mixed_effects:mixed_effects",
            engines=("map", "newton", "em", "laplace", "svi", "nuts", "hmc", "mclmc"),
            links="none",
            reference="Laird and Ware (1982), Biometrics 38, 963-974",
            doi="10.2307/2529876",
            tags=("longitudinal", "mixed effects", "groups"),
        ),
        Card(
            name="mixed_effects_mixture",
            title="Latent classes of subjects, each with a regression of its own",
            model_path="sidebayes.models.mixed_effects_mixture:mixed_effects_mixture",
            engines=("em", "map", "newton", "laplace", "svi", "nuts", "hmc", "mclmc"),
            links="any",
            reference="Lu (2008), PhD thesis, Oregon Health & Science University, section 7.4",
            tags=("longitudinal", "mixed effects", "groups", "mixture", "links", "partial labels"),
        ),
        Card(
            name="hierarchical_shape",
            title="Shapes of landmarks in groups: individuals about group means, groups about a population",
            model_path="sidebayes.models.hierarchical_shape:hierarchical_shape",
            engines=tuple(name for name in _ENGINES_OF_MIXTURES if name != "stochastic_em"),
            links="any",
            reference="Yu (2016), PhD thesis, University of Utah, chapter 3",
            tags=("shapes", "mixture", "groups", "links", "partial labels"),
        ),
        Card(
            name="latent_shape",
            title="Shapes in groups, seen through points without correspondence or landmarks in noise",
            model_path="sidebayes.models.latent_shape:latent_shape",
            engines=("monte_carlo_em", "svi", "nuts", "hmc", "mclmc", "map"),
            links="any",
            reference="Yu (2016), PhD thesis, University of Utah, sections 3.4-3.6",
            tags=("shapes", "mixture", "groups", "links", "partial labels"),
        ),
        Card(
            name="trajectories",
            title="Curves that points or subjects follow: Gaussian processes under a Dirichlet process",
            model_path="sidebayes.models.trajectories:trajectories",
            engines=("cavi", "em", "map", "laplace", "svi", "nuts", "hmc", "mclmc", "gibbs"),
            links="any",
            reference="Ross and Dy (2013), ICML, PMLR 28(3), 1346-1354",
            tags=("longitudinal", "Gaussian process", "groups", "mixture", "links"),
        ),
        Card(
            name="joint_survival",
            title="Repeated measures and a censored time to an event that share random effects",
            model_path="sidebayes.models.joint_survival:joint_survival",
            engines=("map", "newton", "laplace", "svi", "nuts", "hmc", "mclmc"),
            links="none",
            reference="Wulfsohn and Tsiatis (1997), Biometrics 53, 330-339",
            doi="10.2307/2533118",
            tags=("longitudinal", "mixed effects", "survival", "groups"),
        ),
    )
}
"""Every method by name."""


def takes_links(engine: str = "") -> str:
    """Name of a method that takes soft and hard links, one that `engine` suits if there is any."""
    able = [card for card in CARDS.values() if card.links == "any"]
    return next((card.name for card in able if engine in card.engines), able[0].name)
