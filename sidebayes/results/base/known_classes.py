"""Known classes of rows, told by a fit that does not look at a row's own class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.special import softmax

from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.diagnostics.trust.known_classes import (
    Recognition,
    against_the_rest,
    at_no_row,
    recognition,
    sentence,
    unpredicted,
)
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.expectation_maximisation.left_out import (
    has_step_without,
    step_without,
)
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.declared import finite_mixtures
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites, trace_model
from sidebayes.guides.engines.steps.updates import plan_updates
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from .fit_base import FitBase
from .labels import class_names
from .predictions import over_draws

__all__ = ["recognised", "told_by_known_classes", "unpredicted_classes"]

_ROWS = 200
"""Most rows of known class that are looked at."""

_FOLDS = 10
"""Parts of these that a mode is shown without, one after another."""

_STEPS = 20
"""Maximum number of steps of EM without a part."""

_SETTLED = 0.01
"""Change of a probability, of components or of classes within them, below which no further step is taken."""

_DRAWS = 20
"""Most draws."""

_STRIDE = 0.6180339887
"""Share of all rows between one that is looked at and the next, so that they come from everywhere."""


class _Look(NamedTuple):
    """What the model says of the rows of known class, and of the others, at some draws."""

    site: str
    fn: FiniteMixture
    trace: dict[str, Any]
    draws: dict[str, NDArray]
    found: dict[str, NDArray]


def told_by_known_classes(fit: FitBase) -> list[tuple[str, str] | None]:
    """What known classes say against a fit, as levels and sentences of its verdict."""
    look = _look(fit)
    if look is None:
        return []
    return [_by_recognition(fit, look), _by_prediction(fit, look), _by_number(fit, look)]


def unpredicted_classes(fit: FitBase) -> dict[int, int]:
    """Classes that are the most probable at no row unless it is known, with their numbers of known rows."""
    look = _look(fit)
    return {} if look is None else _unpredicted(look)


def _look(fit: FitBase) -> _Look | None:
    """Look at the rows; None where nothing is known, or the model is not there to ask."""
    if not fit.has_labels or fit.run.model is None:  # of a file without its model
        return None
    with fit.run.precision:
        trace = abstract_trace(fit.run.problem)
    sources = finite_mixtures(trace)
    if len(sources) != 1:
        return None
    ((site, (fn, _)),) = sources.items()
    if not fn.is_told_some:
        return None
    labelled = any(isinstance(value, PartialLabels) for value in fit.run.data.values())
    if type(fn).told is FiniteMixture.told and not labelled:
        return None  # the densities of another outcome may stand in the place of statements
    given = pooled_draws(fit.tree)
    number = len(next(iter(given.values())))
    keep = np.unique(np.linspace(0, number - 1, min(number, _DRAWS)).round().astype(int))
    draws = {name: value[keep] for name, value in given.items()}
    return _Look(site, fn, trace, draws, over_draws(fit, rows_by_class, fit.run, draws))


def _by_prediction(fit: FitBase, look: _Look) -> tuple[str, str] | None:
    """What is said of classes that no row is predicted to have."""
    missed = _unpredicted(look)
    if not missed:
        return None
    names = [class_names(fit)[one] for one in missed]
    numbered = all(isinstance(name, int) for name in names)
    said = " or ".join(map(str if numbered else repr, names)) + " (numbered from 0)" * numbered
    offered = () if fit.run.card is None else fit.run.card.engines
    return "caution", at_no_row(
        f"class {said}",
        list(missed.values()),
        look.found["prob"].shape[-1],
        None if look.fn.num_classes is None else fit.options.get("num_clusters"),
        hard="hard_classes" in offered and fit.engine != "hard_classes",
    )


def _by_number(fit: FitBase, look: _Look) -> tuple[str, str] | None:
    """What is said where all known rows are of one class, and the model has classes beside its clusters."""
    label = look.found["label"][0]
    classes = np.unique(label[label >= 0])
    number = look.fn.num_classes or 0
    if number < 2 or len(classes) != 1:
        return None
    own, others = class_names(fit)[classes[0]], "class" if number == 2 else f"{number - 1} classes"
    return "caution", (
        f"All known rows are of class {own!r}: the probabilities of the other {others} come from the prior "
        "alone. Name rows of other classes too"
    )


def _unpredicted(look: _Look) -> dict[int, int]:
    """See `unpredicted`; empty where there is one class, or classes are clusters and known of all rows."""
    found, label = look.found, look.found["label"][0]
    is_given = look.fn.num_classes is None and bool((label >= 0).all())
    if is_given or found["prob"].shape[-1] < 2:
        return {}
    known = _is_known(found["stated"][0])
    return unpredicted(
        found["prob"].mean(axis=0),
        label,
        _probabilities(found)[:, known].mean(axis=0),
    )


def _by_recognition(fit: FitBase, look: _Look) -> tuple[str, str] | None:
    """What is said of the probabilities of known classes."""
    seen, unseen = _recognised(fit, look)
    smoothable = "class_concentration" in fit.run.signature.options
    said = sentence(seen, unseen, smoothable=smoothable)
    certain = unseen is None or unseen.right == unseen.num_rows
    clusters = type(look.fn).told is FiniteMixture.told and fit.run.card is not None
    if said or certain or not clusters or not fit.config.climbs:
        return said
    return _against_the_rest(fit, _mode(fit, look))


def recognised(fit: FitBase) -> Recognition | None:
    """How well a fit predicts known classes without the rows that have them; None where it cannot be told."""
    look = _look(fit)
    return None if look is None else _recognised(fit, look)[1]


def _recognised(fit: FitBase, look: _Look) -> tuple[Recognition | None, Recognition | None]:
    """How well known classes are predicted, with the rows that have them and without."""
    site, fn, trace, _, found = look
    known = _is_known(found["stated"][0])
    stated = found["stated"][0][known]
    prob = _probabilities(found)[:, known]
    if len(prob) > 1:  # rows are left out by the weights of draws
        weight = 1 / np.maximum((prob * stated).sum(axis=2, keepdims=True), np.finfo(float).tiny)
        unseen = (prob * weight).sum(axis=0) / weight.sum(axis=0)
        return None, recognition(unseen, stated)
    seen = recognition(prob[0], stated)
    if seen is None or trace[site].get("scale") is not None or not has_step_without(fn):
        return seen, None
    return seen, recognition(_unseen(fit, site, _mode(fit, look), found), stated)


def _mode(fit: FitBase, look: _Look) -> dict[str, NDArray]:
    """The latent sites at the first draw."""
    with fit.run.precision:
        return {name: look.draws[name][0] for name in latent_sites(look.trace)}


def rows_by_class(trace: dict, layout: Any, owners: dict) -> dict[str, Any]:
    """Rows of known class, and class probabilities and known classes of all rows."""
    fn, value = next(iter(finite_mixtures(trace).values()))
    stated = jnp.asarray(fn.told())
    own = jnp.isclose(stated, stated.max(axis=1, keepdims=True))
    joint = fn.untold_densities(value) + fn.labels.log_weights
    return known_rows(trace, layout, owners) | {
        "label": jnp.where(own.sum(axis=1) == 1, own.argmax(axis=1), -1),
        "prob": jax.nn.softmax(joint) if fn.num_classes is None else fn.class_probabilities(value),
    }


def known_rows(trace: dict, layout: Any, owners: dict) -> dict[str, Any]:
    """Rows of known class, with what says where they belong."""
    fn, value = next(iter(finite_mixtures(trace).values()))
    stated, density = jnp.asarray(fn.told()), fn.untold_densities(value)
    size = len(stated)
    known = stated.min(axis=1) < stated.max(axis=1)
    order = jnp.argsort((jnp.arange(size) * _STRIDE) % 1.0)
    rows = order[jnp.argsort(~known[order], stable=True)[:_ROWS]]
    within = fn.classes_within(value)
    return {
        "row": rows,
        "stated": stated[rows],
        "joint": (density + fn.labels.log_weights)[rows],
        "within": jnp.broadcast_to(within, (size, *within.shape[-2:]))[rows],
    }


def _is_known(stated: NDArray) -> NDArray[np.bool_]:
    """Rows of which something is stated; those beyond them are there where few are known."""
    known: NDArray[np.bool_] = stated.min(axis=1) < stated.max(axis=1)
    return known


def _probabilities(found: dict[str, NDArray]) -> NDArray[np.float64]:
    """Probabilities of classes, of components and of classes within them."""
    prob = np.einsum("...k,...kc->...c", softmax(found["joint"], axis=-1), found["within"])
    scaled: NDArray[np.float64] = prob / prob.sum(axis=-1, keepdims=True)
    return scaled


def _change(before: dict[str, Array], after: dict[str, Array]) -> Array:
    """Largest change of a probability of components, or of classes within them."""
    parts = [(jax.nn.softmax(found["joint"]), found["within"]) for found in (before, after)]
    return jnp.stack([jnp.abs(new - old).max() for old, new in zip(*parts, strict=True)]).max()


def _against_the_rest(fit: FitBase, params: dict[str, NDArray]) -> tuple[str, str] | None:
    """What the mode that the engine climbs to from the fit, once no class is known, says of the classes."""
    ((name, known),) = ((n, v) for n, v in fit.run.data.items() if isinstance(v, PartialLabels))
    run = replace(fit.run, data={n: value for n, value in fit.run.data.items() if n != name})
    try:
        with run.precision:
            free = run.engine.run(run.problem, seed=run.seed, init=params, progress=False).params
    except FitError:
        return None
    both = {site: np.stack([value, free[site]]) for site, value in params.items()}
    found = over_draws(fit, untold, run, both)
    stated = known.admissible(found["joint"].shape[-1]).astype(float)
    before, after = (recognition(softmax(joint, axis=1), stated) for joint in found["joint"])
    return against_the_rest(before, after, float(np.diff(found["likelihood"])[0]))


def untold(trace: dict, layout: Any, owners: dict) -> dict[str, Array]:
    """Log likelihood of a model without known classes, and where each point belongs by itself."""
    fn, value = next(iter(finite_mixtures(trace).values()))
    return {
        "likelihood": fn.log_prob(value),
        "joint": fn.untold_densities(value) + fn.labels.log_weights,
    }


def _unseen(
    fit: FitBase, site: str, params: dict[str, NDArray], found: dict[str, NDArray]
) -> NDArray[np.float64]:
    """Probabilities of classes of the known rows, by EM from the fit without them, a part at a time."""
    stated, rows = found["stated"][0], found["row"][0]
    known = np.flatnonzero(_is_known(stated))
    part = np.full(len(rows), -1)
    part[known[np.argsort(stated[known].argmax(axis=1), kind="stable")]] = (
        np.arange(len(known)) % _FOLDS  # the rows of a class are in different parts
    )
    with fit.run.precision:
        problem = fit.run.problem
        plan = plan_updates(problem)
        labels = finite_mixtures(abstract_trace(problem))[site][0].labels
        seen = np.ones((_FOLDS, labels.graph.num_points), bool)
        seen[part[known], rows[known]] = False

        def without(bare: Problem) -> Callable:
            def one(seen: Array, params: dict, args: tuple) -> Any:
                def look(at: dict) -> dict[str, Array]:
                    return known_rows(trace_model(bare, at, args), None, {})

                def unsettled(state: tuple) -> Any:
                    number, *_, change = state
                    return (number < _STEPS) & (change > _SETTLED)

                def step(state: tuple) -> tuple:
                    number, at, before, _ = state
                    at = step_without(bare, plan, at, args, site, seen)
                    found = look(at)
                    return number + 1, at, found, _change(before, found)

                found = look(params)
                start = jnp.asarray(0), params, found, _change(found, found) + jnp.inf
                _, _, settled, _ = jax.lax.while_loop(unsettled, step, start)
                return settled

            return lambda seen, *given: jax.lax.map(
                partial(one, params=given[0], args=given[1]), seen
            )

        inputs = jnp.asarray(seen), {n: jnp.asarray(v) for n, v in params.items()}, problem.args
        program, _ = compiled("known_classes_unseen", problem, site, without, *inputs, once=True)
        each = jax.tree.map(np.asarray, program(*inputs))
    return _probabilities({name: value[part[known], known] for name, value in each.items()})
