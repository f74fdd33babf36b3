"""Choice of the numbers of clusters and components from links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from inspect import getfullargspec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.plumbing.progress import progress_bar
from sidebayes.guides.mcp import STRENGTHS, GrowthStep, growth_path, mcp_with_room
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.padding import link_rows
from sidebayes.models.blocks.side_information.links import Links

from ..api import fit
from ..common.arrays import point_table
from ..common.columns import refuse_unknown_options
from ..common.copies import warn_of_copied_rows
from ..common.fields import check_integer, check_seed
from ..data.tables import check_truth
from .choice import NumberChoice, read_strengths

__all__ = ["ClusterChoice", "select_clusters"]


@dataclass(frozen=True, repr=False)
class ClusterChoice(NumberChoice):
    """Result of `select_clusters`.

    Attributes
    ----------
    fit : Fit
        The fit of `mcp` with the chosen numbers of components and clusters and the chosen strength.
    path : DataFrame
        A row for every number of components: ``num_clusters`` that own one, ``strength`` chosen,
        ``violation`` (expected share of violated links), ``misfit``, ``log_likelihood``, ``bic``, and
        whether it is the one ``chosen``.
    edge : str
        Whether growth ended at the maximum number of components; empty where BIC ended it.
    doubts : str
        Why the fit is not to be trusted; empty if there is no reason.
    """

    @property
    def num_clusters(self) -> int:
        """Number of clusters found."""
        return int(self.path.loc[self.path["chosen"], "num_clusters"].iloc[0])

    @property
    def num_components(self) -> int:
        """Number of components found."""
        return self.number


def select_clusters(
    x: ArrayLike,
    links: Links,
    *,
    num_clusters: int | None = None,
    most_components: int = 20,
    strengths: Sequence[float] = STRENGTHS,
    entailed: bool = True,
    num_splits: int = 3,
    patience: int = 5,
    engine: EM | None = None,
    seed: int = 0,
    progress: bool = True,
    truth: ArrayLike | None = None,
    **options: Any,
) -> ClusterChoice:
    r"""Choose the number of clusters, the number of components and the strength of links of `mcp`.

    Components are split one by one. At each number of components every strength is tried from the same
    starts, which are the `num_splits` best splits, and the run with the highest bound is kept. Among
    the strengths that violate at most one per cent more of the links than the best one, the strength
    that fits best is kept. Growth ends when the BIC has not fallen for `patience` splits. Among the
    numbers of components up to that of least BIC, the one that violates the smallest share of the links
    is chosen.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Standardise features, or project them on principal axes, as for any Gaussian mixture.
    links : Links
        Soft links count in proportion to their weights, hard links as much as the strongest.
    num_clusters : int, optional
        The number of clusters, if it is known. Growth then starts there, and every cluster keeps a
        component. By default growth starts from two components in two clusters, a split may open a new
        cluster, and iterated conditional modes may empty one.
    most_components : int
        Maximum number of components.
    strengths : sequence of float
        Strengths to try, in nats.
    entailed : bool
        Add the links that hard links imply; see `Links.entailed`.
    num_splits : int
        Number of splits to try; 1 in the thesis.
    patience : int
        Number of splits without a lower BIC after which growth ends. The thesis has 1, but BIC is not
        smooth in the number of components.
    engine : EM, optional
        By default ``EM(num_restarts=10, num_inner_steps=30, tol=1e-5, max_steps=200)``; the restarts are
        for the first number of components.
    seed : int
    progress : bool
    truth : array_like, optional
        Kept beside the fit for scoring; see `sidebayes.fit`.
    **options
        Options of `mcp`, such as ``covariance="diagonal"``.

    Returns
    -------
    ClusterChoice

    Raises
    ------
    TypeError, ValueError
        If there are no links, they contradict each other, or an argument is out of range.

    References
    ----------
    Raghuram (2014), sections 3.2.3.1-3.2.3.3. The thesis does not give the strengths, the positions
    of the children, or what to do about noise in BIC. It is our own to try several splits, and not
    to open a cluster for a difference below one per cent.
    """
    points = point_table("x", x)
    if not isinstance(links, Links):
        raise TypeError(f"links is a {type(links).__name__}; pass sidebayes.Links")
    if not len(links):
        raise ValueError(
            "links is empty; without any, clusters are components: fit 'gmm' and its BIC"
        )
    ours = {"num_components", "strength", "keep_all", "posterior"}
    surplus = sorted(options.keys() & ours)
    if surplus:
        raise TypeError(f"{surplus} cannot be given: select_clusters chooses them")
    known = {*getfullargspec(mcp_with_room).kwonlyargs} - ours
    refuse_unknown_options("select_clusters", options, known)
    first = 2
    if num_clusters is not None:
        first = check_integer("num_clusters", num_clusters, 1, len(points) + 1)
    most = check_integer("most_components", most_components, first, len(points) + 1)
    check_truth(truth, len(points))
    warn_of_copied_rows("x", points)
    tried = read_strengths(strengths)
    patience, seed = check_integer("patience", patience), check_seed(seed)
    engine = (
        EM(num_restarts=10, num_inner_steps=30, tol=1e-5, max_steps=200)
        if engine is None
        else engine
    )
    if not isinstance(engine, EM):
        raise TypeError(f"engine is a {type(engine).__name__}; pass an EM")
    links = replace(links, num_points=len(points)) if links.num_points is None else links
    stated = links.entailed() if entailed else links
    stated = stated.with_strength(_confidence(stated.weights))
    with jax.enable_x64(True), progress_bar("components", shown=progress) as advance:
        path = growth_path(
            jnp.asarray(points),
            _priced(stated, len(points)),
            num_clusters=num_clusters,
            most_components=most,
            strengths=tried,
            engine=engine,
            num_splits=check_integer("num_splits", num_splits),
            patience=patience,
            seed=seed,
            progress=lambda one: advance(
                1, f"{one.num_components}, in {one.num_clusters} clusters"
            ),
            **options,
        )
    chosen = _chosen(path)
    used = np.unique(chosen.params["assignment"].argmax(axis=1))
    found = fit(
        "mcp",
        x,
        stated.with_strength(chosen.strength * np.abs(stated.weights)),
        num_clusters=len(used) if num_clusters is None else num_clusters,
        num_components=chosen.num_components,
        keep_all=num_clusters is not None,
        engine=engine,
        seed=seed,
        init=_of_used(chosen.params, used) if num_clusters is None else chosen.params,
        truth=truth,
        progress=progress,
        **options,
    )
    attrs = found.tree["fit_info"].attrs
    # the first number is fitted from the restarts of the engine
    more = "num_splits" if chosen.num_components > first else "num_restarts of the engine"
    attrs.update(starts_at_best=chosen.starts_at_best, begun_by="select_clusters", more_starts=more)
    table = _table(path, chosen)
    worth = int(table.index[int(table["bic"].argmin())])
    argument = "most_components" if worth == most else None  # else BIC ended growth
    return ClusterChoice.of(found, table, argument=argument, reached=worth)


def _confidence(weights: NDArray) -> NDArray:
    """Weights relative to the largest finite one; hard links have one."""
    size = np.abs(weights)
    largest = size[np.isfinite(size)].max(initial=0.0)
    return np.where(np.isinf(size), 1.0, size / (largest or 1.0))


def _priced(links: Links, num_points: int) -> LabelGraph:
    """Links that tie no labels, in arrays of a size that other sets of links share."""
    rows = link_rows(len(links))
    spare = rows - len(links)
    free = LabelGraph.build(None, num_points)
    return replace(
        free,
        pairs=np.pad(links.pairs, [(0, spare), (0, 0)]).astype(np.int32),
        pair_weights=np.pad(links.weights, (0, spare)),
        group=np.zeros(rows, np.int32),
        edge_of_link=np.full(rows, free.num_edges + 1, np.int32),
    )


def _chosen(path: Sequence[GrowthStep]) -> GrowthStep:
    """Up to the least BIC, the one that violates fewest links, in tenths of a per cent."""
    upto = path[: 1 + min(range(len(path)), key=lambda n: path[n].bic)]
    return min(upto, key=lambda one: round(one.violation, 3))


def _of_used(params: dict[str, NDArray], used: NDArray) -> dict[str, NDArray]:
    """Parameters without the clusters that own no component."""
    return params | {"assignment": params["assignment"][:, used]}


def _table(path: Sequence[GrowthStep], chosen: GrowthStep) -> pd.DataFrame:
    names = [
        field.name for field in fields(GrowthStep) if field.name not in ("params", "starts_at_best")
    ]
    rows = [{name: getattr(one, name) for name in names} for one in path]
    table = pd.DataFrame(rows).set_index("num_components")
    return table.assign(chosen=[one is chosen for one in path])
