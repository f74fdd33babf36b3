"""Predictive scores of held-out links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import NDArray
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.posterior import mixture_site, mixture_structure
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import Inference, with_pair_beliefs
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.side_information.links import Links

from sidebayes.common.magnitudes import counted

__all__ = ["LinkScore", "agreement", "score_statements"]


@dataclass(frozen=True, eq=False)
class LinkScore:
    """Log score of held-out links, and that of a guess by the sizes of the clusters.

    Attributes
    ----------
    mean, standard_error : float
        Log probability of a statement, in nats per link, and the error of this mean over links.
    baseline : float
        The same mean if two labels agreed as often as those of two points drawn at random.
    table : DataFrame
        One row per link: ``i``, ``j``, ``sign`` (1 must-link, -1 cannot-link), ``probability`` that the
        labels are as stated, ``log_score``, ``baseline``.
    approximate : str or None
        Approximation made in summing out the labels.
    """

    mean: float
    standard_error: float
    baseline: float
    table: pd.DataFrame
    approximate: str | None = None

    def __str__(self) -> str:
        """Format the score, the baseline, and how many links are predicted."""
        number, met = len(self.table), int((self.table["probability"] > 0.5).sum())
        verdict = "better" if self.mean > self.baseline else "no better"
        error = f" ± {self.standard_error:.3f}" * bool(np.isfinite(self.standard_error))
        text = (
            f"log score {self.mean:.3f}{error} per link over {counted(number, 'held-out link')}, "
            f"{verdict} than {self.baseline:.3f} by the sizes of the clusters; {met} of {number} more "
            "likely met than not"
        )
        return text + (f"; labels summed out by {self.approximate}" if self.approximate else "")


def agreement(
    problem: Problem,
    draws: Mapping[str, NDArray],
    pairs: NDArray,
    *,
    inference: str | Inference | None = None,
) -> tuple[NDArray, NDArray, str | None]:
    """Probability, for each draw, that two labels agree, given data, parameters and the fit's links.

    It is exact also for pairs inside a connected set. Such pairs become links of weight zero, which change
    nothing but provide the joint distribution of the two labels.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (num_draws, ...)
    pairs : ndarray of int, shape (num_pairs, 2)
    inference : str or inference object, optional
        By default the model's own; belief propagation in place of mean field, which has no beliefs
        about pairs.

    Returns
    -------
    same : ndarray, shape (num_draws, num_pairs)
    chance : ndarray, shape (num_draws,)
        Probability that two points drawn at random agree, by the expected sizes of the clusters.
    approximate : str or None

    Raises
    ------
    ValueError
        If a loopy connected set, these pairs included, is too wide.
    """
    given = {name: jnp.asarray(value) for name, value in draws.items()}
    fn, value = mixture_structure(problem)
    ties = fn.links()
    num_points = len(value) if ties is None else ties.num_points
    before = as_label_graph(ties if ties is not None and ties.num_links else None, num_points)
    within = np.flatnonzero(np.equal(*np.asarray(before.connected_set)[pairs].T))
    told = before.links
    asked = len(told) + np.arange(len(within))
    links = Links(
        np.concatenate([told.pairs, pairs[within]]),
        np.concatenate([told.weights, np.zeros(len(within))]),
        num_points,
    )
    method = with_pair_beliefs("exact" if ties is None else fn.labels.inference, inference)
    graph = LabelGraph.build(links, num_points).suited(method, fn.num_clusters)
    approximate = partition.check_inference(graph, fn.num_clusters, method)

    def build(bare: Problem) -> Callable:
        def one(params: dict, args: tuple, graph: LabelGraph, *indices: Array) -> tuple:
            pairs, within, asked = indices
            fn, value = mixture_site(replace(bare, args=args), params)
            unary = fn.label_factors(fn.log_factors(value))
            weights = jnp.zeros(graph.num_links, unary.dtype)
            count = graph.num_links - len(within)
            weights = weights.at[:count].set(fn.labels.pair_weights[:count])
            labels = fn.labels.among(graph, weights, inference=method)
            prob = labels.responsibilities(unary)
            same = _independent(prob, pairs)
            if len(within):
                same = same.at[within].set(labels.pair_marginals(unary)[asked])
            return same, _chance(prob)

        return lambda draws, *rest: jax.lax.map(lambda params: one(params, *rest), draws)

    rest = problem.args, graph, *map(jnp.asarray, (pairs, within, asked))
    program, _ = compiled("held-out", problem, method, build, given, *rest)
    same, chance = program(given, *rest)
    return np.clip(same, 0.0, 1.0), np.asarray(chance), approximate


def score_statements(
    links: Links, same: NDArray, chance: NDArray, flip_rate: float, approximate: str | None
) -> LinkScore:
    r"""Log score of statements about pairs under posterior draws.

    .. math:: \log \big[ (1 - q) \bar p_l + q (1 - \bar p_l) \big]

    with :math:`\bar p_l` the probability, averaged over draws, that the labels are as link l states,
    at least the rounding error, and q the flip rate.

    Parameters
    ----------
    links : Links
    same, chance : ndarray, shape (num_draws, num_links) and (num_draws,)
        From `agreement`.
    flip_rate : float in [0, 1/2)
    approximate : str or None
    """

    def score(met: NDArray) -> NDArray:
        return np.log(flip_rate + (1 - 2 * flip_rate) * met)

    met = np.where(links.same, same, 1.0 - same).mean(axis=0)
    met = np.maximum(met, np.finfo(same.dtype).eps)  # rounding error of a probability of zero
    guess = np.where(links.same, chance.mean(), 1.0 - chance.mean())
    table = pd.DataFrame(
        {
            "i": links.pairs[:, 0],
            "j": links.pairs[:, 1],
            "sign": np.where(links.same, 1, -1),
            "probability": met,
            "log_score": score(met),
            "baseline": score(guess),
        }
    ).rename_axis(index="link")
    spread = table["log_score"].std() if len(links) > 1 else np.nan
    return LinkScore(
        mean=float(table["log_score"].mean()),
        standard_error=float(spread / np.sqrt(len(links))),
        baseline=float(table["baseline"].mean()),
        table=table,
        approximate=approximate,
    )


def _independent(prob: Array, pairs: Array) -> Array:
    return (prob[pairs[:, 0]] * prob[pairs[:, 1]]).sum(axis=-1)


def _chance(prob: Array) -> Array:
    return jnp.sum(prob.mean(axis=0) ** 2)
