"""Finds links that are probably wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logsumexp
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.posterior import mixture_site, mixture_structure
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import Inference, with_pair_beliefs
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.padding import Sizes
from sidebayes.models.blocks.side_information.links import Links, flip_rate_weight

from sidebayes.common.magnitudes import shown

__all__ = ["link_agreement", "rank_suspects"]


def link_agreement(
    problem: Problem,
    draws: Mapping[str, NDArray],
    links: Links,
    *,
    flip_rate: float = 0.05,
    inference: str | Inference | None = None,
) -> tuple[NDArray, NDArray, str | None]:
    """Probability, for each draw, that the two labels of each link agree.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (num_draws, ...)
    links : Links
    flip_rate : float in (0, 1/2)
        Probability that a hard link is wrong, since links that cannot be wrong cannot be suspected; or
        that any link is wrong, in a model whose labels are free of links.
    inference : str or inference object, optional
        By default the model's own; belief propagation in place of mean field, which has no beliefs
        about pairs.

    Returns
    -------
    same : ndarray, shape (num_draws, num_links)
        Probability given data, parameters and all links, including the one in question.
    weights : ndarray, shape (num_draws, num_links)
        Log-odds that each link contributed.
    approximate : str or None
        Approximation made in summing out the labels.

    Raises
    ------
    ValueError
        If there are no links, the flip rate is out of range, or a loopy connected set is too wide.
    """
    if not len(links):
        raise ValueError("the fit has no links, so there are none to suspect; pass links= to fit")
    known = isinstance(flip_rate, Real)
    if not known or not 0 < flip_rate < 0.5:
        raise ValueError(f"flip_rate = {shown(flip_rate)}; expected a number between 0 and 1/2")
    given = {name: jnp.asarray(value) for name, value in draws.items()}
    first, _ = mixture_structure(problem)
    ties = first.links()
    if ties is None:
        raise ValueError("the model takes no links, so there are none to suspect")
    tied = ties.num_links > 0  # otherwise, weights are prices, not log-odds of labels
    silent = links.hard | (not tied)
    strength = np.where(silent, flip_rate_weight(flip_rate), np.abs(links.weights))
    method = with_pair_beliefs(first.labels.inference, inference)
    stated, room = links.with_strength(strength), Sizes(links=ties.num_links)
    graph = LabelGraph.build(stated, ties.num_points, first.num_clusters, method, room)
    approximate = partition.check_inference(graph, first.num_clusters, method)

    def build(bare: Problem) -> Callable:
        def one(params: dict, args: tuple, graph: LabelGraph, silent: Array) -> tuple[Array, Array]:
            fn, value = mixture_site(replace(bare, args=args), params)
            weights = graph.pair_weights
            if tied:
                weights = jnp.where(silent, weights, fn.labels.pair_weights)
            labels = fn.labels.among(graph, weights, inference=method)
            return labels.pair_marginals(fn.label_factors(fn.log_factors(value))), weights

        return lambda draws, *rest: jax.lax.map(lambda params: one(params, *rest), draws)

    # the graph of the fit may have spare rows at its end, and this one has equally many
    silent = np.pad(silent, (0, graph.num_links - len(links)), constant_values=True)
    rest = problem.args, graph, silent
    program, _ = compiled("agreement", problem, method, build, given, *rest)
    same, weights = program(given, *rest)
    return np.asarray(same)[:, : len(links)], np.asarray(weights)[:, : len(links)], approximate


def rank_suspects(links: Links, same: NDArray, weights: NDArray) -> pd.DataFrame:
    r"""Links by the posterior probability that they are wrong, the most suspect first.

    Given the parameters, a link multiplies the odds that its two labels agree by :math:`e^w`, and
    touches nothing else. Everything else therefore gives the odds

    .. math:: o_{-l} = \frac{p}{1 - p} e^{-w},

    with p the probability of agreement under all links. If these are weighed against a
    statement that is right with log-odds :math:`|w|`, a must-link is wrong with odds
    :math:`e^{-w} / o_{-l} = (1 - p) / p`, a cannot-link with odds :math:`p / (1 - p)`: the
    statement's own pull is counted once, as a statement of its own strength.

    Parameters
    ----------
    links : Links
    same, weights : ndarray, shape (num_draws, num_links)
        From `link_agreement`.

    Returns
    -------
    DataFrame
        One row per link, numbered as in `links`, with their columns: rows ``i`` and ``j``, ``sign`` (1
        must-link, -1 cannot-link, 0 for a weight of zero, which states nothing), ``weight``,
        ``probability`` that it is wrong and ``log_odds`` of that, and ``same_without``, the probability
        that the labels agree given everything except the link itself.

    References
    ----------
    Lu (2008), appendix A, for links as statements with a flip rate; the odds without the link are
    the cavity of Opper and Winther (2000), Neural Computation 12, 2655-2684.
    """
    sign = np.sign(links.weights)
    agree = _log_odds(same)
    wrong = -sign * agree
    log_odds = logsumexp(log_expit(wrong), axis=0) - logsumexp(log_expit(-wrong), axis=0)
    table = pd.DataFrame(
        {
            "i": links.pairs[:, 0],
            "j": links.pairs[:, 1],
            "sign": sign.astype(int),
            "weight": links.weights,
            "probability": expit(log_odds),
            "log_odds": log_odds,
            "same_without": expit(agree - weights).mean(axis=0),
        }
    )
    table = table.join(links.table().iloc[:, 3:]).rename_axis(index="link")
    return table.sort_values("log_odds", ascending=False, kind="stable")


def _log_odds(prob: NDArray) -> NDArray:
    """Return log-odds, bounded where a probability is rounded to 0 or 1."""
    tiny = np.finfo(prob.dtype).eps
    prob = np.clip(prob, tiny, 1 - tiny)
    return np.log(prob) - np.log1p(-prob)
