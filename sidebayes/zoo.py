"""The zoo: one card per method, one name per engine."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

__all__ = [
    "CARDS",
    "ENGINES",
    "Card",
    "find_card",
    "inference_used",
    "links_taken",
    "make_engine",
    "register",
]


def _resolve(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Card:
    """What there is to know about a method.

    Attributes
    ----------
    name : str
    title : str
        In one line, what it believes.
    model_path : str or callable
        The model, or where it is found, "module:function".
    engines : tuple of str
        Engines that suit it, the default first.
    links : {"none", "any", "hard", "priced"}
        Which links it takes; "priced" are any, and tie no labels.
    reference : str
    doi : str
    tags : tuple of str
    """

    name: str
    title: str
    model_path: str | Callable[..., None]
    engines: tuple[str, ...]
    links: Literal["none", "any", "hard", "priced"]
    reference: str
    doi: str = ""
    tags: tuple[str, ...] = field(default=())

    @property
    def model(self) -> Callable[..., None]:
        """The generative NumPyro function."""
        return _resolve(self.model_path) if isinstance(self.model_path, str) else self.model_path

    @property
    def default_engine(self) -> str:
        """Name of the engine used when none is asked for."""
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
    "svi",
    "cavi",
    "nuts",
    "hmc",
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
            title="Gaussian mixture, no side information",
            model_path="sidebayes.models.gmm:gmm",
            engines=_ENGINES_OF_MIXTURES,
            links="none",
            reference="Fraley and Raftery (2007), J. Classification 24, 155-181",
            doi="10.1007/s00357-007-0004-5",
            tags=("mixture", "unsupervised"),
        ),
        Card(
            name="ppc",
            title="Mixture whose labels are tied by hard, soft or unreliable links",
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
            title="Several Gaussians a class, with a joint density of linked pairs",
            model_path="sidebayes.models.pair_mixture:pair_mixture",
            engines=("em", "map", "laplace", "svi", "nuts", "hmc"),
            links="any",
            reference="Yu (2016), PhD thesis, University of Utah, chapter 4",
            tags=("mixture", "links"),
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
            title="Mixture whose components have classes by the nearest of their prototypes",
            model_path="sidebayes.models.pfgl:pfgl",
            engines=("em", "map", "laplace", "svi", "cavi", "nuts", "hmc"),
            links="none",
            reference="Miller, Raghuram, Kesidis and Collins (2012), Neural Computation 24, 1926-1966",
            tags=("mixture", "classifier", "partial labels"),
        ),
        Card(
            name="nfgl",
            title="Mixture within whose components the labelled rows nearby say the class",
            model_path="sidebayes.models.nfgl:nfgl",
            engines=("em", "map", "laplace", "nuts", "hmc"),
            links="none",
            reference="Miller, Raghuram, Kesidis and Collins (2012), Neural Computation 24, 1926-1966",
            tags=("mixture", "classifier", "partial labels", "composite likelihood"),
        ),
        Card(
            name="domain_adaptation",
            title="Classifier by mixtures, moved to another domain where few classes are known",
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
            title="Mixture fitted so that the labels it gives keep the links",
            model_path="sidebayes.models.constraint_fit:constraint_fit",
            engines=_ENGINES_OF_CONSTRAINTS,
            links="priced",
            reference="Law (2006), Michigan State University, chapter 5",
            tags=("mixture", "links", "groups", "penalised"),
        ),
        Card(
            name="constraint_projection",
            title="The same in a few linear features, which are found with the clusters",
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
            engines=("map", "laplace", "svi", "nuts", "hmc"),
            links="any",
            reference="Lu (2008), PhD thesis, Oregon Health & Science University, chapter 4",
            tags=("classifier", "links", "reliability"),
        ),
        Card(
            name="mcp",
            title="Clusters of several components, learned from links by a partition of space",
            model_path="sidebayes.models.mcp:mcp",
            engines=("em", "map"),
            links="any",
            reference="Raghuram (2014), PhD thesis, Pennsylvania State University, chapter 3",
            tags=("mixture", "links", "unknown number of clusters"),
        ),
        Card(
            name="scp",
            title="The same with one component a cluster",
            model_path="sidebayes.models.scp:scp",
            engines=("em", "map"),
            links="any",
            reference="Raghuram (2014), PhD thesis, Pennsylvania State University, chapter 3",
            tags=("mixture", "links"),
        ),
        Card(
            name="mixed_effects",
            title="Regression whose coefficients differ between subjects",
            model_path="sidebayes.models.mixed_effects:mixed_effects",
            engines=("map", "newton", "em", "laplace", "svi", "nuts", "hmc"),
            links="none",
            reference="Laird and Ware (1982), Biometrics 38, 963-974",
            doi="10.2307/2529876",
            tags=("longitudinal", "mixed effects", "groups"),
        ),
        Card(
            name="mixed_effects_mixture",
            title="Latent classes of subjects, each with a regression of its own",
            model_path="sidebayes.models.mixed_effects_mixture:mixed_effects_mixture",
            engines=("em", "map", "newton", "laplace", "svi", "nuts", "hmc"),
            links="any",
            reference="Lu (2008), PhD thesis, Oregon Health & Science University, section 7.4",
            tags=("longitudinal", "mixed effects", "groups", "mixture", "links", "partial labels"),
        ),
        Card(
            name="trajectories",
            title="Curves that points or subjects follow, as many as needed",
            model_path="sidebayes.models.trajectories:trajectories",
            engines=("cavi", "em", "map", "laplace", "svi", "nuts", "hmc", "gibbs"),
            links="any",
            reference="Ross and Dy (2013), ICML, PMLR 28(3), 1346-1354",
            tags=("longitudinal", "Gaussian process", "groups", "mixture", "links"),
        ),
        Card(
            name="joint_survival",
            title="Repeated measures and a censored time to an event that share random effects",
            model_path="sidebayes.models.joint_survival:joint_survival",
            engines=("map", "newton", "laplace", "svi", "nuts", "hmc"),
            links="none",
            reference="Wulfsohn and Tsiatis (1997), Biometrics 53, 330-339",
            doi="10.2307/2533118",
            tags=("longitudinal", "mixed effects", "survival", "groups"),
        ),
    )
}
"""Every method by name."""

ENGINES: dict[str, str] = {
    "cavi": "sidebayes.guides.engines.variational.coordinate_ascent:CoordinateAscent",
    "continuation": "sidebayes.guides.constraint_fit:Continuation",
    "em": "sidebayes.guides.engines.expectation_maximisation.em:EM",
    "gibbs": "sidebayes.guides.engines.samplers.gibbs:BlockedGibbs",
    "hard_classes": "sidebayes.guides.moe:HardClasses",
    "hmc": "sidebayes.guides.engines.samplers.mcmc:HMC",
    "kmeans": "sidebayes.guides.constrained_kmeans:KMeans",
    "laplace": "sidebayes.guides.engines.optimisers.laplace:Laplace",
    "map": "sidebayes.guides.engines.optimisers.optimise:MAP",
    "monte_carlo_em": "sidebayes.guides.engines.expectation_maximisation.monte_carlo_em:MonteCarloEM",
    "newton": "sidebayes.guides.engines.optimisers.optimise:Newton",
    "nested": "sidebayes.guides.engines.samplers.nested:NestedSlice",
    "nuts": "sidebayes.guides.engines.samplers.mcmc:NUTS",
    "svi": "sidebayes.guides.engines.variational.svi:SVI",
    "smc": "sidebayes.guides.engines.samplers.smc:SMC",
    "stochastic_em": "sidebayes.guides.engines.expectation_maximisation.stochastic_em:StochasticEM",
}
"""Every engine by name, and where it is found."""


def register(card: Card) -> Card:
    """Add a method of your own to the zoo: to ``sidebayes.fit("name")``, the table and the report.

    Raises
    ------
    TypeError, ValueError
        If it is no card, its name is taken, or it names an engine that does not exist.

    Examples
    --------
    >>> import sidebayes
    >>> from sidebayes.models.gmm import gmm
    >>> card = sidebayes.register(
    ...     sidebayes.Card("mine", "A mixture of mine", gmm, engines=("em", "nuts"), links="none",
    ...                    reference="unpublished")
    ... )
    >>> sidebayes.CARDS.pop("mine") is card
    True
    """
    if not isinstance(card, Card):
        raise TypeError(f"card is a {type(card).__name__}; pass a sidebayes.Card")
    from sidebayes.models.blocks.fields import check_fields

    check_fields(card)
    named = isinstance(card.model_path, str) and ":" in card.model_path
    if not callable(card.model_path) and not named:
        raise ValueError(
            f"card.model_path = {card.model_path!r}; pass the model, or where it is, 'module:function'"
        )
    if card.name in CARDS:
        raise ValueError(f"there is a method {card.name!r} already; choose another name")
    unknown = [engine for engine in card.engines if engine not in ENGINES]
    if unknown or not card.engines:
        raise ValueError(f"card.engines = {card.engines}; expected some of {sorted(ENGINES)}")
    CARDS[card.name] = card
    return card


def find_card(name: str) -> Card:
    """Card of a method.

    Raises
    ------
    ValueError
        If there is none of that name; the message lists those there are.
    """
    if name in CARDS:
        return CARDS[name]
    raise ValueError(
        f"there is no method {name!r}{_hint(name, CARDS)}; expected one of "
        f"{sorted(CARDS)}, or a NumPyro model function"
    )


def links_taken(card: Card | None, model: Callable[..., None]) -> str:
    """Kind of links that a method takes, see `Card`; without a card, any that the model has room for."""
    if card is not None:
        return card.links
    from sidebayes.models.blocks.roles import signature_of

    return "any" if signature_of(model).of_kind("links") else "none"


def inference_used(
    card: Card | None, model: Callable[..., None], options: Mapping[str, Any]
) -> Any:
    """How the model of a card sums out labels under these options, None where that is not known."""
    own = inspect.signature(model).parameters.get("inference")
    return None if card is None or own is None else options.get("inference", own.default)


def make_engine(engine: Any, card: Card | None = None) -> Any:
    """Engine configuration from a name or a configuration.

    Parameters
    ----------
    engine : str, Engine or None
        None takes the card's default, EM for a model without a card.
    card : Card, optional
        Refuse engines that do not suit its method.

    Raises
    ------
    ValueError
        For an unknown name, or an engine that does not suit the method.
    TypeError
        For anything that is no engine.
    """
    if engine is None:
        engine = "em" if card is None else card.default_engine
    if isinstance(engine, str):
        if engine not in ENGINES:
            raise ValueError(
                f"there is no engine {engine!r}{_hint(engine, ENGINES)}; expected one of "
                f"{sorted(ENGINES)}"
            )
        engine = _resolve(ENGINES[engine])()
    if not isinstance(engine, _resolve("sidebayes.guides.engines.base:Engine")):
        own = (
            "" if isinstance(engine, type) else "; derive your own from guides.engines.base.Engine"
        )
        raise TypeError(
            f"engine = {engine!r} is not an engine; pass a name, one of {sorted(ENGINES)}, or a "
            f"configuration such as EM(num_restarts=20){own}"
        )
    if card is not None and engine.name in ENGINES and engine.name not in card.engines:
        raise ValueError(
            f"engine {engine.name!r} does not suit {card.name}; expected one of "
            f"{sorted(card.engines)}"
        )
    if card is None and engine.name == "kmeans":
        raise ValueError("engine 'kmeans' is for constrained_kmeans and soft_kmeans; use 'em'")
    return engine


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
