"""Finds points of spheres among the sites of a model, and checks that lengths of vectors have no effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.manifolds.directions import Direction

from ..base import Problem
from ..plumbing.clock import Clock
from ..problem.density import abstract_trace, latent_sites, place, site_log_prob, sum_log_prob

__all__ = ["check_lengths", "place_points", "points_of_spheres"]


def points_of_spheres(problem: Problem) -> tuple[str, ...]:
    """Return the sites whose directions are points of spheres.

    Raises
    ------
    ValueError
        If there is none, or a site declares another manifold or has another prior.
    """
    latent = latent_sites(abstract_trace(problem))
    declared = {name: (site.get("infer") or {}).get("manifold") for name, site in latent.items()}
    found = tuple(sorted(name for name, kind in declared.items() if kind is not None))
    for name in found:
        plain = isinstance(latent[name]["fn"], Direction) and latent[name].get("scale") is None
        if declared[name] != "sphere" or not plain:
            raise ValueError(
                f"site {name!r} declares the manifold {declared[name]!r} with prior "
                f"{type(latent[name]['fn']).__name__}; GeodesicHMC moves points of spheres: sample them by "
                "sample_direction or sample_preshape, outside of handlers.scale"
            )
    if not found:
        raise ValueError(
            "GeodesicHMC moves points of spheres, and the model declares none; sample them by "
            "sample_direction or sample_preshape, or use NUTS"
        )
    return found


def place_points(
    problem: Problem, points: tuple[str, ...], at: Mapping[str, Array], args: tuple
) -> tuple[dict, Array]:
    """Return the trace, and its log density, at points of spheres (or vectors along them) and other sites."""
    free = {name: value for name, value in at.items() if name not in points}
    trace, log_det = place(problem, free, args, {name: at[name] for name in points})
    return trace, sum_log_prob(trace) + log_det


def check_lengths(
    problem: Problem, points: tuple[str, ...], at: dict[str, Array], clock: Clock
) -> None:
    """Refuse densities that depend on the length of a vector beyond its own prior, as tested at two points.

    Raises
    ------
    ValueError
        The message names the site.
    """

    def build(bare: Problem) -> Callable:
        def rest(at: dict[str, Array], args: tuple) -> tuple[Array, Array]:
            """Return the log density without the vectors' own priors, and the size of its terms."""
            trace, total = place_points(bare, points, at, args)
            terms = {n: site_log_prob(s) for n, s in trace.items() if s["type"] == "sample"}
            own = sum(terms[name] for name in points)
            return total - own, sum(map(jnp.abs, terms.values()), start=jnp.zeros(()))

        return jax.vmap(rest, in_axes=(0, None))

    tried = _lengthened(points, {name: np.asarray(value)[0] for name, value in at.items()})
    found, size = clock.run("geodesic-lengths", problem, points, build, tried, problem.args)
    found, size = (np.asarray(leaf).reshape(2, -1) for leaf in (found, size))
    error = np.sqrt(np.finfo(found.dtype).eps) * (1 + size)
    depends = (np.abs(found - found[:, :1]) > error).any(axis=0)
    if depends.any():
        raise ValueError(
            f"the density depends on the length of {points[int(np.argmax(depends)) - 1]!r}, of which only "
            "the direction is a point of the sphere: use what sample_direction or sample_preshape returns, "
            "or fit by NUTS"
        )


def _lengthened(points: tuple[str, ...], at: dict[str, NDArray]) -> dict[str, NDArray]:
    """Return two points of each sphere, unchanged, and with other lengths at one site after the other."""
    rng = np.random.default_rng(0)
    turned = at | {name: np.roll(at[name], 1, axis=-1) for name in points}
    longer = {name: rng.uniform(1.2, 2.0, (*at[name].shape[:-1], 1)) for name in points}
    tried = []
    for where in (at, turned):
        tried.append(where)
        tried += [where | {name: where[name] * longer[name]} for name in points]
    return {name: np.stack([where[name] for where in tried]) for name in at}
