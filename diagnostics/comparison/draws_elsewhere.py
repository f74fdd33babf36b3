"""Draws made elsewhere as a row of a comparison, without their model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sidebayes.guides.engines.base import Engine
from sidebayes.guides.engines.given import effective_of_copies

from sidebayes.common.magnitudes import listed

from ..elsewhere import in_order_of, made_by, matched_by_name, unnamed
from ..fitted import Fitted
from ..symmetry.invariants import convergence, frozen_sites, is_still
from ..trust.verdict import verdict

if TYPE_CHECKING:
    from arviz_stats.utils import ELPDData

__all__ = ["draws_elsewhere"]

_FEWEST = 100
"""Draws from which on importance weights are smoothed, as for fits."""


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What a comparison asks of a fit, of draws alone."""

    tree: xr.DataTree
    method: str
    run: Any = None
    config: Engine = field(default_factory=Engine)
    approximate: str | None = None
    has_labels: bool = False

    @property
    def engine(self) -> str:
        return str(self.tree["fit_info"].attrs["engine"])

    @property
    def objective(self) -> NDArray:
        return np.empty((0, 0))

    @property
    def seconds(self) -> dict[str, float]:
        return dict.fromkeys(("compile", "run", "total"), np.nan)

    @cached_property
    def convergence(self) -> dict[str, float]:
        return convergence(self.tree)

    @cached_property
    def verdict(self) -> tuple[str, str]:
        return verdict(self)

    @property
    def relabelled(self) -> tuple[xr.DataTree, float]:
        return self.tree, 1.0

    @property
    def params(self) -> dict[str, NDArray]:
        sites = self.tree["posterior"].data_vars.items()
        return {str(name): site.to_numpy().mean(axis=(0, 1)) for name, site in sites}

    def loo(self) -> ELPDData:
        """Leave out one unit of the only log likelihood at a time."""
        from arviz_stats import loo

        if "log_likelihood" not in self.tree or len(self.tree["log_likelihood"].data_vars) != 1:
            raise ValueError("there is no single log likelihood")
        posterior = self.tree["posterior"].sizes
        if posterior["chain"] * posterior["draw"] < _FEWEST:
            raise ValueError("there are too few draws to leave data out by their weights")
        return loo(self.tree, pointwise=True)


def draws_elsewhere(
    tree: xr.DataTree, fits: Mapping[str, Fitted], first: tuple[str, xr.DataTree] | None = None
) -> Any:
    """Draws as a row of a comparison.

    They are taken for draws of the posterior of the fit with which they share most variables, of equal
    shapes; names of axes, roles and symmetries of these are the fit's. Without fits, entries are put in the
    order of the first draws.

    Parameters
    ----------
    tree : DataTree
        Groups ``posterior`` at least.
    fits : mapping of str to Fit
    first : (str, DataTree), optional
        Name and tree of the first draws of the comparison.

    Raises
    ------
    ValueError
        If there are fits, and no variable is shared with any, or entries have other names.
    """
    posterior = tree["posterior"].to_dataset()
    shared = {name: _shared(posterior, fit.tree["posterior"]) for name, fit in fits.items()}
    best = max(shared, key=lambda name: len(shared[name]), default=None)
    if best is not None and not shared[best]:
        raise ValueError(
            f"draws of {sorted(map(str, posterior))} share no variable of equal shape with a fit, such as "
            f"{best}, which has {sorted(map(str, fits[best].tree['posterior']))}; give them the same names"
        )
    like = None if best is None else fits[best]
    out = xr.DataTree()
    loose, apart = {}, ""
    if like is None:
        if first is not None:
            others = first[1]["posterior"].to_dataset()
            named_axes = _named_axes(posterior, others)
            posterior, loose = in_order_of(posterior, *named_axes), unnamed(posterior, *named_axes)
            apart = _not_compared(posterior, others, first[0])
        out["posterior"] = xr.DataTree(posterior)
        out["observed_data"] = tree.get("observed_data", xr.DataTree(xr.Dataset()))
        out["constant_data"] = xr.DataTree(
            xr.Dataset(
                {
                    "links": (("link", "end"), np.zeros((0, 2))),
                    "link_weights": ("link", np.zeros(0)),
                }
            )
        )
    else:
        own = like.tree["posterior"]
        apart = _not_compared(posterior, own, str(best))
        values = {n: own[n].isel(chain=0, draw=0, drop=True) for n in shared[str(best)]}
        axes, names = _named_axes(posterior, own)
        drawn, loose = matched_by_name(posterior, axes, names), unnamed(posterior, axes, names)
        named = {
            n: (("chain", "draw", *site.dims), drawn[n], site.attrs) for n, site in values.items()
        }
        out["posterior"] = xr.DataTree(xr.Dataset(named, attrs=dict(own.attrs)))
        out["observed_data"], out["constant_data"] = (
            like.tree[group].copy() for group in ("observed_data", "constant_data")
        )
        out.attrs.update(like.tree.attrs)
    _complete(out, tree, like)
    info = out["fit_info"].attrs
    worth = effective_of_copies(
        {str(n): v.to_numpy() for n, v in out["posterior"].data_vars.items()}
    )
    if worth is not None:
        info["effective_draws"] = worth
    info["frozen"] = json.dumps(_frozen(out["posterior"], like))
    info["not_compared"] = apart
    orders = {tuple(names): [n for n in loose if loose[n] == names] for names in loose.values()}
    info["without_names"] = f"of {best or (first and first[0])}: " * bool(loose) + "; ".join(
        f"{listed(sites)} ({listed(names)})" for names, sites in orders.items()
    )
    return _Drawn(out, "" if like is None else like.method)


def _frozen(posterior: Any, like: Fitted | None) -> list[str]:
    """Sites that never moved; without a fit, which tells latent sites from others, only where none did.

    A support of one point has the same value in a fit whose sampler moved.
    """
    draws = {str(n): v.to_numpy() for n, v in posterior.data_vars.items()}
    still = [n for n, v in draws.items() if v.shape[0] * v.shape[1] > 1 and is_still(v)]
    if like is None:
        return still if len(still) == len(draws) else []
    latent = like.tree["log_prior"].data_vars if "log_prior" in like.tree else ()
    own, never = like.tree["posterior"], frozen_sites(like.tree)
    return [
        n for n in still if n in latent and (n in never or not (own[n] == draws[n][0, 0]).all())
    ]


def _shared(posterior: xr.Dataset, own: Any) -> list[str]:
    return [
        str(n)
        for n, site in own.data_vars.items()
        if n in posterior and posterior[n].shape[2:] == site.shape[2:]
    ]


def _named_axes(
    posterior: xr.Dataset, others: Any
) -> tuple[dict[str, list[str]], dict[str, NDArray]]:
    """Axes of shared variables in others, and the names along these axes."""
    axes = {n: [*map(str, others[n].dims[2:])] for n in _shared(posterior, others)}
    return axes, {str(dim): along.to_numpy() for dim, along in others.coords.items()}


def _not_compared(posterior: xr.Dataset, others: Any, name: str) -> str:
    """Which variables either has alone, or of another shape; empty where there are none."""
    shared = _shared(posterior, others)
    own = [str(n) for n in others.data_vars if n not in shared]
    surplus = [str(n) for n in posterior.data_vars if n not in shared]
    said = [f"no {listed(own)} of the shape that {name} has"] * bool(own)
    said += [f"{listed(surplus)} beside what {name} has"] * bool(surplus)
    return " and ".join(said)


def _complete(out: xr.DataTree, tree: xr.DataTree, like: Fitted | None) -> None:
    """Add the groups that every fit has: statistics, log likelihood, and facts about the run."""
    posterior = out["posterior"]
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    posterior.attrs.setdefault("ordered_clusters", 0)
    posterior.attrs["point_estimate"] = 0  # one draw is no mode that anybody has found
    stats = {"lp": (("chain", "draw"), np.full(shape, np.nan))}
    if "sample_stats" in tree and "diverging" in tree["sample_stats"]:
        stats["diverging"] = ("chain", "draw"), tree["sample_stats"]["diverging"].to_numpy()
    out["sample_stats"] = xr.DataTree(xr.Dataset(stats))
    if "log_likelihood" in tree:
        out["log_likelihood"] = xr.DataTree(tree["log_likelihood"].to_dataset())
        if like is not None and "log_likelihood" in like.tree:
            out["log_likelihood"].attrs.update(like.tree["log_likelihood"].attrs)
    info = xr.Dataset({"objective": (("restart", "step"), np.empty((0, 0)))})
    info.attrs.update(
        engine=made_by(tree),
        status=f"{shape[0]} x {shape[1]} draws that were made elsewhere",
        converged=1,
        approximate="",
        density_space="unconstrained",
        seconds=json.dumps({}),
    )
    out["fit_info"] = xr.DataTree(info)
