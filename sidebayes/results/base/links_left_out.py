"""Links told by a fit that has not seen them, and data that are more probable given weaker links or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from scipy.stats import chi2

from sidebayes.diagnostics.links.support import FEWEST, doubt_unseen_links
from sidebayes.guides.engines.base import FitError
from sidebayes.guides.engines.problem.declared import finite_mixtures
from sidebayes.guides.engines.problem.posterior import derive, latent_shapes, mixture_structure
from sidebayes.models.blocks.side_information.links import Links, flip_rate_weight

from ...runs.zoo import make_engine
from .fit_base import FitBase
from .predictions import over_draws

__all__ = ["told_by_links_left_out", "told_with_weaker_links"]

_FOLDS = 5
"""Parts of the linked points, whose links are left out one part after another."""

_RATE = 0.15
"""Share of wrong links that weaker weights allow for."""

_RISE = chi2.isf(2 * 0.05, 1) / 2
"""Log likelihood ratio of a rate against one at its boundary, beyond which five cases in a hundred lie."""


def told_by_links_left_out(fit: FitBase) -> tuple[str, str] | None:
    """What links say against a fit that has not seen them, as a level and a sentence of its verdict.

    For classifiers that nothing but links teaches. The method is fitted again, to a mode, without the links
    of a fifth of the linked points, so that no link that is told shares that point with one that was seen.
    """
    run = fit.run
    name, links = next(iter(run.links.items()), ("", None))
    if run.model is None or run.card is None or not fit.has_labels or links is None:
        return None
    if (links.weights != 0).sum() < FEWEST:
        return None
    with run.precision:
        fn, _ = mixture_structure(run.problem)
        ties = fn.links()
    if fn.is_density or ties is None or not ties.num_links:
        return None
    points = np.random.default_rng(0).permutation(np.unique(links.pairs))
    part = np.zeros(points.max() + 1, int)
    part[points] = np.arange(len(points)) % _FOLDS
    ends = part[links.pairs]
    engine = make_engine(None, run.card).roughly()
    same, chance = np.empty((_FOLDS, len(links))), np.empty(_FOLDS)
    for fold in range(_FOLDS):
        kept = np.where((ends == fold).any(axis=1), 0.0, links.weights)
        without = replace(run, data={**run.data, name: links.with_weights(kept)}, engine=engine)
        with run.precision:
            try:
                found = engine.run(without.problem, seed=run.seed, progress=False)
            except FitError:
                return None
        params = {site: value[None] for site, value in found.params.items()}
        prob = over_draws(fit, label_shares, without, params)[0]
        first, second = (prob[end] for end in links.pairs.T)
        same[fold], chance[fold] = (first * second).sum(axis=-1), np.square(prob.mean(axis=0)).sum()
    said = doubt_unseen_links(links, same[ends[:, 0], range(len(links))], chance[ends[:, 0]])
    return None if said is None else ("caution", said)


def told_with_weaker_links(fit: FitBase) -> tuple[str, str] | None:
    """What the log likelihood says against the links, as a level and a sentence of the verdict.

    Links that are a field state nothing of the density of the data but through labels, and add no parameters:
    where they are right, the data are more probable given them. For modes, from which the engine climbs again
    with all weights zero, and with weights of links that are sometimes wrong. The latter have a rate that the
    former lack, so that their log likelihood must be higher by what a test at its boundary asks.
    """
    run = fit.run
    name, links = next(iter(run.links.items()), ("", None))
    if run.model is None or run.card is None or not fit.has_labels or links is None:
        return None
    point = fit.config.climbs and not fit.config.hard_labels
    point = point and fit.tree["posterior"].attrs["point_estimate"]
    if not point or run.sample_of or (links.weights != 0).sum() < FEWEST:
        return None
    most = flip_rate_weight(_RATE)
    weaker = links.with_weights(links.weights.clip(-most, most))
    without = links.with_weights(np.zeros(len(links)))
    with run.precision:
        fn, _ = mixture_structure(run.problem)
        ties = fn.links()
        is_field = fn.is_density and getattr(fn.labels, "reading", "") == "field"
        if not is_field or fn.approximation() or ties is None or not ties.num_links:
            return None
        more = _gain(fit, name, without)
        some = _gain(fit, name, weaker) if (np.abs(links.weights) > most).any() else -np.inf
    if more > 0 and more >= some:
        return "caution", (
            f"Without the links the log likelihood is higher by {more:.2g}: points contradict links, or "
            "links are about classes that the features do not show, and labels may be worse than without "
            "links. Compare with a fit without them; see fit.suspect_links(), and lower the weights of links "
            "that may be wrong"
        )
    if some > _RISE:
        return "caution", (
            f"With weights that allow {_RATE:.0%} of the links to be wrong, the log likelihood is higher by "
            f"{some:.2g}: points contradict some of them. Either these are wrong, or clusters of this form "
            f"do not fit the classes. Compare with a fit to links.with_strength(flip_rate_weight({_RATE})), "
            "or estimate_flip_rate; see fit.suspect_links()"
        )
    return None


def _gain(fit: FitBase, name: str, links: Links) -> float:
    """Rise of the log likelihood where the engine goes on from the mode of a fit with other links."""
    run = replace(fit.run, data={**fit.run.data, name: links})
    init = {site: fit.params[site] for site in latent_shapes(run.problem)}
    try:
        found = run.engine.run(run.problem, seed=run.seed, init=init, progress=False)
    except FitError:
        return -np.inf
    at = {site: value[None] for site, value in found.params.items()}
    given = fit.tree["log_likelihood"].data_vars.values()
    terms = derive(run.problem, at).log_likelihood.values()
    return sum(float(one.sum()) for one in terms) - sum(float(one.sum()) for one in given)


def label_shares(trace: dict, layout: Any, owners: dict) -> Any:
    """Probabilities of the labels of each point by itself."""
    fn, value = next(iter(finite_mixtures(trace).values()))
    return jax.nn.softmax(fn.label_factors(fn.log_factors(value)) + fn.labels.log_weights, axis=-1)
