"""The zoo: methods and engines by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..common.columns import did_you_mean
from .cards import CARDS, Card, resolve

__all__ = [
    "CARDS",
    "ENGINES",
    "Card",
    "can_draw",
    "find_card",
    "inference_used",
    "links_taken",
    "make_engine",
    "register",
]


ENGINES: dict[str, str] = {
    "cavi": "sidebayes.guides.engines.variational.coordinate_ascent:CoordinateAscent",
    "componentwise_em": "sidebayes.guides.feature_saliency:ComponentwiseEM",
    "continuation": "sidebayes.guides.constraint_fit:Continuation",
    "em": "sidebayes.guides.engines.expectation_maximisation.em:EM",
    "geodesic": "sidebayes.guides.engines.samplers.geodesic:GeodesicHMC",
    "gibbs": "sidebayes.guides.engines.samplers.gibbs:BlockedGibbs",
    "hard_classes": "sidebayes.guides.moe:HardClasses",
    "hmc": "sidebayes.guides.engines.samplers.mcmc:HMC",
    "kmeans": "sidebayes.guides.constrained_kmeans:KMeans",
    "laplace": "sidebayes.guides.engines.optimisers.laplace:Laplace",
    "map": "sidebayes.guides.engines.optimisers.optimise:MAP",
    "mclmc": "sidebayes.guides.engines.samplers.microcanonical:MCLMC",
    "monte_carlo_em": "sidebayes.guides.engines.expectation_maximisation.monte_carlo_em:MonteCarloEM",
    "newton": "sidebayes.guides.engines.optimisers.optimise:Newton",
    "nested": "sidebayes.guides.engines.samplers.from_prior.nested:NestedSlice",
    "nuts": "sidebayes.guides.engines.samplers.mcmc:NUTS",
    "pathfinder": "sidebayes.guides.engines.variational.pathfinder:Pathfinder",
    "svi": "sidebayes.guides.engines.variational.svi:SVI",
    "smc": "sidebayes.guides.engines.samplers.from_prior.smc:SMC",
    "stochastic_em": "sidebayes.guides.engines.expectation_maximisation.stochastic_em:StochasticEM",
}
"""Every engine by name, and where it is found."""


def register(card: Card) -> Card:
    """Add a method of your own to the zoo, for ``sidebayes.fit("name")``, the table and the report.

    Raises
    ------
    TypeError, ValueError
        If it is not a card, its name is taken, or it names an engine that does not exist.

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
    from ..common.fields import check_fields

    check_fields(card)
    named = isinstance(card.model_path, str) and ":" in card.model_path
    if not callable(card.model_path) and not named:
        raise ValueError(
            f"card.model_path = {card.model_path!r}; pass the model, or where it is, 'module:function'"
        )
    if card.routine_path and ":" not in card.routine_path:
        raise ValueError(
            f"card.routine_path = {card.routine_path!r}; say where the function is, 'module:function'"
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
        f"there is no method {name!r}{did_you_mean(name, CARDS)}; expected one of "
        f"{sorted(CARDS)}, or a NumPyro model function"
    )


def can_draw(card: Card | None) -> bool:
    """Whether an engine that draws suits a method; any suits a model without a card."""
    return card is None or not all(resolve(ENGINES[name]).gives_point for name in card.engines)


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
                f"there is no engine {engine!r}{did_you_mean(engine, ENGINES)}; expected one of "
                f"{sorted(ENGINES)}"
            )
        engine = resolve(ENGINES[engine])()
    if not isinstance(engine, resolve("sidebayes.guides.engines.base:Engine")):
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
        own = " and ".join(one.name for one in CARDS.values() if "kmeans" in one.engines)
        raise ValueError(
            f"engine 'kmeans' is for {own}; use 'em', or register a Card of the model that lists 'kmeans'"
        )
    return engine
