"""Dependence of a model on the rows of its data: sites that other rows change or forbid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpy.typing import NDArray

from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.declared import site_dims
from sidebayes.guides.engines.problem.density import (
    abstract_trace,
    filled,
    filling,
    is_latent,
    traced,
)
from sidebayes.guides.engines.problem.honoured import Honoured, in_scan, is_outcome
from sidebayes.guides.engines.problem.units import dimensions, lay_out_units
from sidebayes.models.blocks.independent_mixture import as_collapsed
from sidebayes.models.blocks.roles import Signature
from sidebayes.models.blocks.side_information.groups import Groups

__all__ = ["Rows", "look_at_rows"]


@dataclass(frozen=True)
class Rows:
    """What the number of rows means to a model.

    Attributes
    ----------
    sized : tuple of str
        Latent and deterministic sites whose shape it changes.
    joint : tuple of str
        Observed sites with one density of all rows, as of a Gaussian process.
    fixed : str
        Why the model runs on no other number of rows, empty if it does.
    beside : dict of str to tuple of str
        Latent sites whose shape another dimension of the data changes, which is none of their units: those
        of schools, where rows are of pupils. By dimension.
    """

    sized: tuple[str, ...] = ()
    joint: tuple[str, ...] = ()
    fixed: str = ""
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def refuse_others(self, method: str, same_number: bool = False) -> None:
        """Refuse densities of other rows.

        Raises
        ------
        ValueError
            If these depend on the fitted ones, or the model does not run on another number of rows.
        """
        if self.fixed and not same_number:
            raise ValueError(f"{method}: {self.fixed}")
        if self.joint:
            raise ValueError(
                f"{method}: {list(self.joint)} has one joint density of all its rows, so that other rows "
                "depend on those that were fitted, and draws of the parameters alone do not predict them; "
                "condition on the fitted rows yourself, at the draws in fit.tree['posterior']"
            )


def look_at_rows(
    problem: Problem,
    signature: Signature,
    data: Mapping[str, Any],
    subset: Callable[[Mapping[str, NDArray[np.bool_]]], Problem],
) -> Rows:
    """Run the model on all units but one, and see what changes; nothing is computed.

    So it is without the first of each other dimension.

    Parameters
    ----------
    problem : Problem
    signature : Signature
    data : mapping of str to object
        Data by name of the argument.
    subset : callable
        Makes the problem on a part of the data, given what to keep along dimensions.
    """
    trace, layout = abstract_trace(problem), lay_out_units(problem)
    sizes = {len(unit) for unit in layout.unit.values()}
    sizes |= {len(v) for v in data.values() if isinstance(v, np.ndarray | Groups)}
    if not any(in_scan(site) or sizes & set(_extents(site)) for site in trace.values()):
        return Rows()  # most models; nothing is copied
    units = {d: unit for d, unit in layout.unit.items() if d in layout.dims}
    fewer = _all_but_one(signature, data, units)
    found = _without_a_unit(problem, subset, fewer) if fewer else Rows()
    return replace(found, beside=_beside(problem, signature, data, subset, fewer))


def _without_a_unit(
    problem: Problem, subset: Callable[..., Problem], fewer: Mapping[str, NDArray[np.bool_]]
) -> Rows:
    trace, sites = abstract_trace(problem), site_dims(problem)
    part = subset(fewer)
    try:
        rest = abstract_trace(part)
    except Exception as error:  # a user's model raises whatever it raises
        gone = {len(mask) for mask in fewer.values()}
        plates = {name: size for name, size in _plates(part).items() if size in gone}
        frames = {n: {f.name for f in s.get("cond_indep_stack", ())} for n, s in trace.items()}
        if not plates and any(mask.sum() == 1 for mask in fewer.values()):
            return Rows()  # a single row may have no scale, say, and tells nothing of other numbers
        held = sorted(n for n in sites if frames[n] & plates.keys())
        return Rows(tuple(held), fixed=_why_fixed(plates, error))
    moved = _moved(trace, rest)
    return Rows(
        tuple(sorted(n for n in sites if n in moved or n not in rest)),
        tuple(n for n, s in trace.items() if n not in sites and (n in moved or in_scan(s))),
    )


def _beside(
    problem: Problem,
    signature: Signature,
    data: Mapping[str, Any],
    subset: Callable[..., Problem],
    fewer: Mapping[str, NDArray[np.bool_]],
) -> dict[str, tuple[str, ...]]:
    """See `Rows`. Columns are none of these dimensions: new data have those that were fitted."""
    sizes = dimensions(signature, data)
    given = [role for role in signature.data if data.get(role.name) is not None]
    columns = {dim for role in given for dim in role.dims[1:]}
    groups = {role.name: role.dims[0] for role in given if role.kind == "groups"}
    rows = {*fewer, *(groups[dim] for dim in groups.keys() & fewer.keys())}
    first = {role.dims[0] for role in given if role.dims and role.kind in ("table", "labels")}
    found = {}
    trace = abstract_trace(problem)
    for dim in sorted((first | groups.keys()) - columns - rows):
        if sizes[dim] > 1:
            with suppress(Exception):  # a user's model raises whatever it raises
                moved = _moved(trace, abstract_trace(subset({dim: np.arange(sizes[dim]) > 0})))
                found[dim] = tuple(sorted(n for n in moved if is_latent(trace[n])))
    return {dim: sites for dim, sites in found.items() if sites}


def _moved(trace: Mapping[str, dict], rest: Mapping[str, dict]) -> set[str]:
    """Sites whose shapes two traces have otherwise."""
    return {n for n, s in trace.items() if n in rest and _shape(s) != _shape(rest[n])}


def _extents(site: dict) -> tuple[int, ...]:
    """Sizes at a site that may be a number of rows: of its axes, and of its plates."""
    return *_shape(site), *(frame.size for frame in site.get("cond_indep_stack", ()))


def _shape(site: dict) -> tuple[int, ...]:
    """Shape of a latent or deterministic site; of an observed one that of its joint density."""
    if site["type"] == "deterministic" or is_latent(site):
        return jnp.shape(site["value"])
    if not is_outcome(site) or as_collapsed(site["fn"], site["value"]) is not None:
        return ()
    fn: Any = site["fn"]
    while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution | dist.Independent):
        fn = fn.base_dist
    return tuple(fn.event_shape)


def _all_but_one(
    signature: Signature, data: Mapping[str, Any], unit: dict[str, NDArray]
) -> dict[str, NDArray[np.bool_]]:
    """What to keep along the dimensions of the units; empty if the data do not determine them."""
    named = {name for role in signature.data for name in (*role.dims, role.name)}
    found = dict(unit)
    if not found:
        dim = signature.unit_of(data) or ""
        size = dimensions(signature, data).get(dim, 0)
        found = {dim: np.arange(size)} if size else {}
    fewer = {dim: own != own[0] for dim, own in found.items()}
    return fewer if all(mask.any() and dim in named for dim, mask in fewer.items()) else {}


def _plates(problem: Problem) -> dict[str, int]:
    """Sizes of the plates that a model opens before it fails."""
    model = Honoured(problem.model)

    def go() -> None:
        traced(filled(model, filling(jnp.zeros)), problem.args, problem.kwargs)

    with suppress(Exception):  # which is known already
        jax.eval_shape(go)
    return model.plates


def _why_fixed(plates: dict[str, int], error: Exception) -> str:
    if not plates:
        return f"the model does not run on fewer rows ({' '.join(str(error).split()):.200})"
    named = " and ".join(f"plate {name!r} has size {size}" for name, size in plates.items())
    name = next(iter(plates))
    return (
        f"{named} whatever the data, so that the model takes no other number of rows; write "
        f"numpyro.plate({name!r}, len(y)), y the data"
    )
