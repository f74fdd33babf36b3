"""Axes of sites that data determine only up to an orthogonal transform or to signs, as models declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.block_facts import UpToSigns

from ..base import Problem
from ..plumbing.programs import compiled
from ..problem.declared import declared_blocks, finite_mixtures, site_dims
from ..problem.density import abstract_trace, log_joint
from ..steps.starts import initial_values

__all__ = ["check_symmetries", "clusters_permute", "site_symmetries", "sites_up_to_signs"]


_ORDERED = {"clusters": "none"}
"""What a site declares where clusters have an order, as sticks give them."""


def clusters_permute(problem: Problem) -> bool:
    """Whether clusters may be renumbered.

    They may not where a site declares ``infer={"symmetry": {"clusters": "none"}}``, or labels have side
    information each of its own (`FiniteMixture.is_exchangeable`).
    """
    trace = abstract_trace(problem)
    if any((site.get("infer") or {}).get("symmetry") == _ORDERED for site in trace.values()):
        return False
    return all(fn.is_exchangeable for fn, _ in finite_mixtures(trace).values())


def site_symmetries(problem: Problem) -> dict[str, str]:
    """Sites that an orthogonal transform of one of their axes leaves as probable, and that axis.

    One site declares it, by ``infer={"symmetry": {"dimensions": "orthogonal"}}``; all latent and
    deterministic sites with an axis of that name are transformed together.

    Raises
    ------
    ValueError
        If a declaration is not of that form, names an axis that its site does not have, or a site has
        two such axes.
    """
    dims = site_dims(problem)
    declared = {axis for own in _declared(problem, "orthogonal").values() for axis in own}
    found: dict[str, str] = {}
    for name, axes in dims.items():
        own = [axis for axis in axes if axis in declared]
        if len(own) > 1:
            raise ValueError(
                f"site {name!r} has the axes {own}, each up to an orthogonal transform; one is possible"
            )
        if own:
            found[name] = own[0]
    return found


def sites_up_to_signs(problem: Problem) -> dict[str, str]:
    """Sites along one axis of which signs may change, of all of them together, and that axis.

    Each of them declares it, by ``infer={"symmetry": {"factors": "signs"}}``.
    """
    return {name: axes[0] for name, axes in _declared(problem, "signs").items()}


def _declared(problem: Problem, kind: str) -> dict[str, tuple[str, ...]]:
    """Axes that sites declare to have a symmetry of that kind."""
    dims = site_dims(problem)
    found = {}
    for name, site in abstract_trace(problem).items():
        given = (site.get("infer") or {}).get("symmetry")
        if given is None or given == _ORDERED:
            continue
        if not isinstance(given, Mapping) or not set(given.values()) <= {"orthogonal", "signs"}:
            raise ValueError(
                f"site {name!r}: symmetry={given!r}; expected a mapping such as {{'dimensions': "
                "'orthogonal'} or {'factors': 'signs'}; axes named 'clusters' permute without a "
                f"declaration, and do not where a site says {_ORDERED}"
            )
        unknown = sorted(set(given) - set(dims.get(name, ())))
        if unknown:
            raise ValueError(
                f"site {name!r}: symmetry names axes {unknown}; the site has {list(dims.get(name, ()))}. "
                "Name its own axes by event_dims, others by plates"
            )
        own = tuple(axis for axis, its in given.items() if its == kind)
        if own:
            found[name] = own
    return found


def check_symmetries(problem: Problem, seed: int = 0) -> None:
    """Compare the density of a model at some values of its sites with that at transformed ones.

    Signs that follow those of a block (`UpToSigns`) are the block's own.

    Raises
    ------
    ValueError
        If a transform of a declared axis changes the density.
    """
    trace = abstract_trace(problem)
    led = any(isinstance(block, UpToSigns) for block, _ in declared_blocks(trace))
    kinds = {"an orthogonal transform": (site_symmetries(problem), _rotation)}
    if not led:
        kinds["a change of signs"] = sites_up_to_signs(problem), _reflection
    if not any(found for found, _ in kinds.values()):
        return
    latent = {n: v[0] for n, v in initial_values(problem, seed, 1).items()}
    dims = site_dims(problem)
    rng = np.random.default_rng(seed)
    for what, (found, matrix) in kinds.items():
        axes = {name: axis for name, axis in found.items() if name in latent}
        for axis in dict.fromkeys(axes.values()):
            sites = [name for name, own in axes.items() if own == axis]
            moved = dict(latent)
            place = {name: dims[name].index(axis) for name in sites}
            turn = matrix(rng, latent[sites[0]].shape[place[sites[0]]])
            for name in sites:
                value = np.moveaxis(latent[name], place[name], -1) @ turn
                moved[name] = np.moveaxis(value, -1, place[name]).astype(latent[name].dtype)
            before, after = _densities(problem, latent, moved)
            rounding = 100 * np.sqrt(np.finfo(before.dtype).eps) * (1 + abs(before))
            if np.isfinite(before) and not abs(after - before) <= rounding:
                raise ValueError(
                    f"{what} of the axis {axis!r} of the sites {sorted(sites)} changes the log density by "
                    f"{after - before:.3g}, so that it is no symmetry of the model; drop the declaration, "
                    "or give axes that stay as they are another name"
                )


def _rotation(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def _reflection(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """One sign changes, of an axis that is drawn."""
    signs = np.ones(size)
    signs[rng.integers(size)] = -1.0
    return np.diag(signs)


def _densities(
    problem: Problem, first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Log joint densities at two sets of values."""

    def build(bare: Problem) -> Callable:
        def both(values: dict[str, Array], args: tuple) -> Array:
            return jax.lax.map(lambda one: log_joint(bare, one, args), values)

        return both

    values = {name: jnp.stack([first[name], second[name]]) for name in first}
    program, _ = compiled("symmetry", problem, None, build, values, problem.args, once=True)
    before, after = np.asarray(program(values, problem.args))
    return before, after
