"""Labels, classes and links of a fit."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.links.link_scores import LinkScore, agreement, score_statements
from sidebayes.diagnostics.links.suspects import link_agreement, rank_suspects
from sidebayes.diagnostics.symmetry.matched import mean_responsibilities
from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.problem.declared import finite_mixtures
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.guides.engines.problem.posterior import mixture_structure
from sidebayes.models.blocks.label_inference.approximate import Inference
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.partition import TooWideError
from sidebayes.models.blocks.side_information.hard_links import connected_sets
from sidebayes.models.blocks.side_information.link_weights import check_pairs
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import (
    PartialLabels,
    names_of_classes,
)

from ...common.fields import Range, check_number
from ...common.magnitudes import counted, shown
from ...common.warnings import warn_user
from .fit_base import FitBase, need_labels
from .other_rows import new_run
from .predictions import over_draws, predict_proba, refuse_impossible

__all__ = [
    "class_names",
    "class_probabilities",
    "classes",
    "has_classes",
    "labels",
    "responsibilities",
    "same_cluster",
    "score_links",
    "suspect_links",
]

_MOST_APART = 200
"""Maximum number of pairs without a link between them that are looked at jointly in a connected set."""

_PARTS = 1, 4, 16
"""Numbers of parts in which this is tried, since many at once make loops wide."""


def responsibilities(fit: FitBase, site: str | None = None) -> NDArray[np.float64]:
    """Posterior probabilities of the labels, averaged over relabelled draws.

    Parameters
    ----------
    site : str, optional
        Observed site, where several have labels.

    Returns
    -------
    ndarray, shape (num_points, num_clusters)
    """
    need_labels(fit, "responsibilities")
    return mean_responsibilities(*fit.relabelled)[_rows_of(fit, site)]


def labels(fit: FitBase, site: str | None = None) -> NDArray[np.int64]:
    """Labels of all points, shape (num_points,).

    If the labels are summed out exactly, this is the most probable joint labeling at `params`,
    which keeps every hard link. Otherwise it is the most probable label of each point.

    Parameters
    ----------
    site : str, optional
        Observed site, where several have labels.

    Raises
    ------
    ValueError
        If the model has no labels, or several sites have some and none is named.
    """
    need_labels(fit, "labels")
    return fit.tree["responsibilities"]["labels"].to_numpy()[_rows_of(fit, site)]


def _rows_of(fit: FitBase, site: str | None) -> slice:
    slices = json.loads(fit.tree["responsibilities"].attrs["label_sites"])
    if site is None and len(slices) == 1:
        site = next(iter(slices))
    if not isinstance(site, str | None) or site not in slices:
        raise ValueError(
            f"site = {shown(site)}; expected one of {sorted(slices)}, which have labels"
        )
    return slice(*slices[site])


def same_cluster(fit: FitBase, pairs: ArrayLike) -> NDArray[np.float64]:
    """Posterior probability that pairs of points share a cluster, shape (num_pairs,).

    The probability is averaged over draws. Within a draw, labels in different connected sets of links are
    independent. Those in one connected set are summed out jointly, so that pairs that hard links tie have
    the probability 1 or 0. Where labels are summed out approximately, so is this probability; where many
    pairs at once make loops too wide for exact sums, or a file lacks the model, the two labels are treated
    as independent. A warning says so.

    Parameters
    ----------
    pairs : array_like of int, shape (num_pairs, 2)
        Row numbers of pairs of distinct points. Those of a table on disk are numbers in the table, of rows
        that the fit keeps: ``fit.tree["responsibilities"]["points"]``.

    Raises
    ------
    TypeError, ValueError
        If the model has no labels, or a pair does not name two of the points.
    """
    need_labels(fit, "clusters to share")
    prob = fit.tree["responsibilities"]["prob"].to_numpy()
    asked = _kept_rows(fit, pairs, "pairs")
    one, other = (prob[:, :, points] for points in asked.T)
    draws: NDArray[np.float64] = np.einsum("cdpk,cdpk->cdp", one, other)
    same = draws.mean(axis=(0, 1))
    connected_set = connected_sets(fit.links.pairs, prob.shape[2])[1]
    within = np.equal(*connected_set[asked.T])
    if within.any() and not fit.config.hard_labels:  # whose joint labeling keeps hard links
        same[within] = _jointly(fit, asked[within], same[within])
    return same


def _jointly(fit: FitBase, pairs: NDArray, independent: NDArray) -> NDArray[np.float64]:
    """Probabilities of agreement in connected sets; those of independent labels where there are no others."""
    if fit.run.model is None:
        _warn_of_independent(
            pairs, "since the file lacks the model; give it to load(path, model=...)"
        )
        return independent
    with fit.run.precision:
        ties = mixture_structure(fit.run.problem)[0].links()
    if ties is None or not np.equal(*np.asarray(ties.connected_set)[pairs.T]).all():
        return independent  # the links have a price, and tie no labels
    told = _told_by_a_link(ties, pairs)
    draws = pooled_draws(fit.tree, of_each_chain=True)

    def exact(part: NDArray) -> NDArray[np.float64]:
        with fit.run.precision:
            same, _, approximate = agreement(fit.run.problem, draws, part)
        if approximate:
            warn_user(
                f"labels are summed out by {approximate}, so that the probabilities of "
                f"{counted(len(part), 'pair')} in one connected set of links are approximate"
            )
        found: NDArray[np.float64] = same.mean(axis=0)
        return found

    if (~told).sum() <= _MOST_APART:
        for number in _PARTS:
            with contextlib.suppress(TooWideError):
                parts = np.array_split(pairs, min(number, len(pairs)))
                return np.concatenate([exact(part) for part in parts])
    _warn_of_independent(
        pairs[~told],
        "since together they make loops too wide for exact sums; ask about fewer at a time",
    )
    if told.any():  # by which loops grow no wider
        independent[told] = exact(pairs[told])
    return independent


def _warn_of_independent(pairs: NDArray, why: str) -> None:
    warn_user(
        f"labels of {counted(len(pairs), 'pair')} in one connected set of links are treated as independent, "
        f"{why}"
    )


def _told_by_a_link(ties: LabelGraph, pairs: NDArray) -> NDArray[np.bool_]:
    """Pairs of points of one chunklet, or of two chunklets with a link between them."""
    node = np.asarray(ties.node)
    ends, linked = (np.sort(node[some], axis=1) for some in (pairs, np.asarray(ties.pairs)))
    key = [len(node), 1]
    found: NDArray[np.bool_] = (ends[:, 0] == ends[:, 1]) | np.isin(ends @ key, linked @ key)
    return found


def _kept_rows(fit: FitBase, pairs: ArrayLike, name: str) -> NDArray[np.int64]:
    """Places of pairs of points among those of the fit, which may be a sample of the rows of a table."""
    rows, whole = fit.run.sample_rows, fit.run.sample_of
    if rows is None:
        return check_pairs(pairs, fit.tree["responsibilities"].sizes["points"], name)
    asked = check_pairs(pairs, whole, name)
    places = np.minimum(np.searchsorted(rows, asked), len(rows) - 1)
    if (lost := asked[rows[places] != asked]).size:
        raise ValueError(
            f"{name} name row {lost[0]}, which is not among the {len(rows)} rows that the fit keeps of "
            f"{whole}, fit.tree['responsibilities']['points']; fit.predict_proba has the label "
            "probabilities of any rows"
        )
    return places


def suspect_links(
    fit: FitBase, *, flip_rate: float = 0.05, inference: str | Inference | None = None
) -> pd.DataFrame:
    """Rank links by the posterior probability that they are wrong, the most suspect first.

    Parameters
    ----------
    flip_rate : float in (0, 1/2)
        Probability that a hard link is wrong. The weight of a soft link determines its own
        probability.
    inference : str or inference object, optional
        By default the model's own; see `LinkedCategorical`.

    Returns
    -------
    DataFrame
        See `sidebayes.diagnostics.links.suspects.rank_suspects`; ``attrs["approximate"]`` names the
        approximation; it is None if labels are summed out exactly.
    """
    need_labels(fit, "links to suspect")
    with fit.run.precision:
        same, weights, approximate = link_agreement(
            fit.run.problem,
            pooled_draws(fit.tree),
            fit.links,
            flip_rate=flip_rate,
            inference=inference,
        )
    table = rank_suspects(fit.links, same, weights)
    table.attrs["approximate"] = approximate
    return table


def score_links(
    fit: FitBase,
    links: Links,
    *,
    flip_rate: float = 0.0,
    inference: str | Inference | None = None,
) -> LinkScore:
    """Score links that the fit has not seen by their log probability under its draws.

    Parameters
    ----------
    links : Links
        Links between the same rows, named as in `same_cluster`; only the sign of a weight counts.
    flip_rate : float in [0, 1/2)
        Probability that a held-out link is wrong, if its author may err.
    inference : str or inference object, optional
        By default the model's own; see `LinkedCategorical`.

    Returns
    -------
    LinkScore
        Prints score and baseline; ``.table`` has one row per link.

    Raises
    ------
    TypeError, ValueError
        If there are no links, one of them was used in the fit, or a row number is out of range.
    """
    if not isinstance(links, Links):
        raise TypeError(f"links is a {type(links).__name__}; pass Links, as to fit")
    if not len(links):
        raise ValueError("links is empty; pass the links that were held out")
    if (links.weights == 0.0).any():
        row = int(np.argmax(links.weights == 0.0))
        raise ValueError(f"links[{row}] has weight zero and states nothing; leave it out")
    flip_rate = check_number("flip_rate", flip_rate, Range(least=0, below=0.5))
    need_labels(fit, "links to score")
    num_points = fit.run.sample_of or fit.tree["responsibilities"].sizes["points"]
    if links.pairs.max() >= num_points:
        raise ValueError(f"links name row {links.pairs.max()}; the fit has {num_points} rows")
    pairs = _kept_rows(fit, links.pairs, "links")
    asked, known = (np.sort(some, axis=1) @ [num_points, 1] for some in (pairs, fit.links.pairs))
    seen = np.isin(asked, known)
    if seen.any():
        raise ValueError(
            f"{seen.sum()} of the links, {tuple(map(int, links.pairs[np.argmax(seen)]))} say, join "
            "pairs that the fit was given a link for; leave these out, they are not held out"
        )
    with fit.run.precision:
        same, chance, approximate = agreement(
            fit.run.problem,
            pooled_draws(fit.tree),
            pairs,
            inference=inference,
        )
    return score_statements(links, same, chance, flip_rate, approximate)


def has_classes(fit: FitBase) -> bool:
    """See `Fit.has_classes`."""
    with fit.run.precision:
        sources = finite_mixtures(abstract_trace(fit.run.problem)).values()
        return any(fn.num_classes is not None for fn, _ in sources)


def _clusters_are_classes(fit: FitBase) -> bool:
    """Whether known classes are those of the clusters themselves, which therefore keep their numbers."""
    given = [value for value in fit.run.data.values() if isinstance(value, PartialLabels)]
    return any(one.states_any for one in given) and fit.has_labels and not has_classes(fit)


def class_names(fit: FitBase) -> tuple[str | int, ...]:
    """See `Fit.class_names`."""
    with fit.run.precision:
        sources = finite_mixtures(abstract_trace(fit.run.problem)).values()
    number = max((fn.num_classes or 0 for fn, _ in sources), default=0)
    if _clusters_are_classes(fit):
        number = fit.tree["responsibilities"].sizes["clusters"]
    names = names_of_classes([*fit.run.data.values(), *fit.options.values()])
    return (*names, *range(len(names), number))


def class_probabilities(fit: FitBase, *data: Any, **named: Any) -> NDArray[np.float64]:
    """Class probabilities of rows, averaged over draws.

    The data name the classes, so draws need no matching, however clusters are numbered. Where the
    classes of clusters are known, clusters are classes, and these are the probabilities of the labels.

    Parameters
    ----------
    *data, **named
        New data for the arguments of the model, such as ``x_new``; by default the fitted data with
        their known classes.

    Returns
    -------
    ndarray, shape (num_rows, num_classes)

    Raises
    ------
    ValueError
        If the model has no classes, or no class is possible for a row.
    """
    is_new = any(value is not None for value in (*data, *named.values()))
    if not has_classes(fit):
        if not _clusters_are_classes(fit):
            raise ValueError(
                f"{fit.method} has no classes, only what it finds without names; fit.labels() are its "
                "clusters, if it has some. 'moe' learns classes from a few rows whose class is known"
            )
        return predict_proba(fit, *data, **named) if is_new else responsibilities(fit)

    def classes(trace: dict, layout: Any, owners: dict) -> Any:
        sources = finite_mixtures(trace).values()
        given = [(fn, value) for fn, value in sources if fn.num_classes is not None]
        return jnp.concatenate([fn.class_probabilities(value) for fn, value in given])

    run = new_run(fit, data, named) if is_new else fit.run
    prob = over_draws(fit, classes, run, pooled_draws(fit.tree)).mean(axis=0)
    return refuse_impossible(prob, "class")


def classes(fit: FitBase, *data: Any, **named: Any) -> pd.DataFrame:
    """Most probable class of each row, and its probability.

    Parameters are those of `class_probabilities`.

    Returns
    -------
    DataFrame
        Columns ``class`` (its name, if the known classes have names) and ``probability``, with one
        row per row of the data.
    """
    prob = class_probabilities(fit, *data, **named)
    names = np.asarray(class_names(fit), dtype=object)
    best = prob.argmax(axis=1)
    return pd.DataFrame({"class": names[best], "probability": prob.max(axis=1)}).infer_objects()
