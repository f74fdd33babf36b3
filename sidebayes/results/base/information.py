"""Covariance of the parameters: of draws, and of a point by the observed information."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sidebayes.diagnostics.sites import entry_names, unwrapped
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.declared import (
    approximation,
    collapsed_sites,
    declared_blocks,
    restricted_sites,
)
from sidebayes.guides.engines.problem.density import (
    abstract_trace,
    free_shapes,
    place,
    sum_log_prob,
    unconstrained_start,
)
from sidebayes.guides.engines.problem.posterior import latent_shapes
from sidebayes.models.blocks.block import Discrete
from sidebayes.models.blocks.block_facts import Bounded

from ...common.magnitudes import listed
from ...runs.run import Run
from ...runs.zoo import can_draw

__all__ = ["covariance_of_sites"]

_FLAT = 1e-10
"""Curvature, relative to the largest, below which the log joint counts as flat."""

_UPWARDS = 1e-6
"""Curvature, relative to the largest, beyond which a restricted posterior curves upwards, and is no peak."""

_AWAY = 0.5
"""A point is no mode if Newton's step promises more than so many nats."""

_MOST_COORDINATES = 500
"""Parameters whose curvature is computed at once."""

_STATIONARY = 1e-3
"""Share of the second-order variance of a function below which its slope counts as zero."""


def covariance_of_sites(
    run: Run, aligned: xr.DataTree, params: Mapping[str, NDArray]
) -> pd.DataFrame:
    """Covariance of every number of latent and deterministic sites; see `Fit.covariance`.

    Parameters
    ----------
    run : Run
    aligned : DataTree
        Draws that are relabelled and aligned.
    params : mapping of str to ndarray
        The point estimate.
    """
    sites = unwrapped(aligned)
    sites = sites.drop_vars(set(run.sized_by_units))
    labels, values = [], []
    for name, site in sites.data_vars.items():
        values.append(site.to_numpy().reshape(-1, int(np.prod(site.shape[2:]))))
        labels += entry_names(str(name), site, site.dims[2:])
    draws = np.concatenate(values, axis=1)
    if len(draws) > 1:
        found = np.atleast_2d(np.cov(draws.T))
    else:
        with run.precision:
            found = _by_information(run, params, list(map(str, sites)))
            edge = _at_boundary(run.problem, params) | set(restricted_sites(run.problem))
        lost = np.array([label.partition("[")[0] in edge for label in labels])
        found[lost], found[:, lost] = np.nan, np.nan
    return pd.DataFrame(found, index=labels, columns=labels)


def _at_boundary(problem: Problem, params: Mapping[str, NDArray]) -> set[str]:
    """Sites that blocks say lie on the boundary of what they can be."""
    return {
        name
        for block, sites in declared_blocks(abstract_trace(problem))
        if isinstance(block, Bounded)
        for name in block.at_boundary({role: params[own] for role, own in sites.items()})
    }


def _by_information(
    run: Run, params: Mapping[str, NDArray], names: list[str]
) -> NDArray[np.float64]:
    """Covariance of sites at a point, in the order of `names`."""
    problem = run.problem
    _need_curvature(run)
    shapes = latent_shapes(problem)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if size > _MOST_COORDINATES:
        raise ValueError(
            f"the model has some {size} coordinates, and the curvature of more than {_MOST_COORDINATES} is "
            f"not computed{'; use an engine that draws' if can_draw(run.card) else ''}"
        )
    latent = {name: np.asarray(params[name]) for name in shapes}
    program, _ = compiled("information", problem, None, _curvature, latent, problem.args, once=True)
    gradients, hessian = map(np.asarray, program(latent, problem.args))
    scale = np.sqrt(np.abs(np.diag(hessian)))
    scale[scale == 0] = 1.0
    # with a unit diagonal, so that units of the coordinates do not matter
    scaled = (hessian + hessian.T) / 2 / np.outer(scale, scale)
    curvature, axes = _of_parameters(scaled, _are_restricted(problem))
    if not np.isfinite(curvature).all() or curvature[0] <= _FLAT * curvature[-1]:
        raise ValueError(
            "the log joint is no peak where the fit ended (least relative curvature "
            f"{curvature[0]:.2g}), or an edge, as of absolute values: there are no standard errors. "
            f"{_remedy(run)}"
        )
    gain = float(((axes.T @ (gradients[0] / scale)) ** 2 / curvature).sum() / 2)
    if gain > _AWAY:
        raise ValueError(
            "the log joint has a slope where the fit ended, which is no mode, or at a corner, as under a "
            f"Laplace prior: there are no standard errors. {_remedy(run)}"
        )
    inputs = latent, problem.args, (axes / np.sqrt(curvature) / scale[:, None]).T
    build = partial(_along, names)
    program, _ = compiled("information-sites", problem, tuple(names), build, *inputs, once=True)
    slope, second = map(np.asarray, program(*inputs))
    found: NDArray[np.float64] = slope.T @ slope
    blind = (slope**2).sum(axis=0) < _STATIONARY * (second**2).sum(axis=0) / 2
    found[blind], found[:, blind] = np.nan, np.nan
    return found


def _need_curvature(run: Run) -> None:
    """Refuse a log joint without an exact curvature at its mode, and one of which the fit keeps a part."""
    if run.sample_of:
        raise ValueError(
            f"standard errors need the curvature of all {run.sample_of} rows of the table on disk, of which "
            "the fit keeps a sample; fit the table by engine='svi', which gives draws"
        )
    trace = abstract_trace(run.problem)
    corners = [
        name
        for block, sites in declared_blocks(trace)
        if isinstance(block, Discrete)
        for name in sites.values()
    ]
    if corners:
        raise ValueError(
            f"the mode in {listed(corners)} is at a corner, where the log joint has a slope and no "
            "curvature: there are no standard errors"
        )
    if not all(fn.has_curvature for fn, _ in collapsed_sites(trace).values()):
        exact = "; use inference='exact'" + ", or an engine that draws" * can_draw(run.card)
        raise ValueError(
            f"{approximation(run.problem)} gives no second derivatives of the log joint: there are no "
            f"standard errors{exact if 'inference' in run.signature.options else ''}"
        )


def _remedy(run: Run) -> str:
    """Say what to do about a fit that is no peak, in words of its method."""
    draws = can_draw(run.card)
    other = ", or use an engine that draws" if draws else ""
    before = "," if draws else " or"
    return f"Fit closer to the mode{before} give what is not determined a prior{other}"


def _are_restricted(problem: Problem) -> NDArray[np.bool_]:
    """Coordinates that describe a restricted posterior."""
    own = set(restricted_sites(problem))
    sizes = {name: int(np.prod(free.shape)) for name, free in free_shapes(problem).items()}
    # in the order of `ravel_pytree`
    return np.repeat([name in own for name in sorted(sizes)], [sizes[n] for n in sorted(sizes)])


def _of_parameters(
    scaled: NDArray, restricted: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues and eigenvectors of the curvature in the parameters.

    Coordinates of a restricted posterior follow the parameters at their optimum. Directions in which the
    posterior does not change, such as the same discriminant added to all, are left out there.
    """
    if not np.isfinite(scaled).all():
        return np.full(1, np.nan), scaled
    weak, along = np.linalg.eigh(scaled[np.ix_(restricted, restricted)])
    most = weak.max(initial=0.0)
    if (weak < -_UPWARDS * most).any():
        return weak, scaled
    bent = weak > _FLAT * most
    cross = along[:, bent].T @ scaled[np.ix_(restricted, ~restricted)]
    curvature, own = np.linalg.eigh(
        scaled[np.ix_(~restricted, ~restricted)] - cross.T @ (cross / weak[bent, None])
    )
    axes = np.zeros((len(scaled), len(curvature)))
    axes[~restricted] = own
    return curvature, axes


def _curvature(problem: Problem) -> Callable:
    """Gradient, repeated, and Hessian of the negative log joint in unconstrained coordinates."""

    def curvature(params: dict, args: tuple) -> tuple[Array, Array]:
        flat, unravel = ravel_pytree(unconstrained_start(problem, params, args))

        def loss(point: Array) -> Array:
            return -sum_log_prob(place(problem, unravel(point), args)[0])

        def bend(direction: Array) -> tuple[Array, Array]:
            gradient, change = jax.jvp(jax.grad(loss), (flat,), (direction,))
            return gradient, change

        # one direction after another: a program for all at once takes twice as long to compile, and one
        # that keeps the derivatives of the first order takes a quarter longer, and more memory
        gradients, hessian = lax.map(bend, jnp.eye(len(flat)))
        return gradients, hessian

    return curvature


def _along(names: list[str], problem: Problem) -> Callable:
    """First and second derivatives of sites along directions in unconstrained coordinates."""

    def along(params: dict, args: tuple, directions: Array) -> tuple[Array, Array]:
        flat, unravel = ravel_pytree(unconstrained_start(problem, params, args))

        def line(direction: Array) -> tuple[Array, Array]:
            def moved(step: Array) -> Array:
                trace, _ = place(problem, unravel(flat + step * direction), args)
                return jnp.concatenate([jnp.ravel(trace[name]["value"]) for name in names])

            def slope(step: Array) -> Array:
                change: Array = jax.jvp(moved, (step,), (jnp.ones(()),))[1]
                return change

            first, second = jax.jvp(slope, (jnp.zeros(()),), (jnp.ones(()),))
            return first, second

        first, second = lax.map(line, directions)
        return first, second

    return along
