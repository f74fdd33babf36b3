"""How well a fit knows its parameters: covariance by the observed information, fixed effects."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.stats import norm

from sidebayes.diagnostics.sites import entry_names
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.density import place, sum_log_prob, unconstrained_start
from sidebayes.guides.engines.problem.posterior import latent_shapes

from ..common.fields import Range, check_number

__all__ = ["Uncertainty", "check_probability", "normal_interval", "summarised", "total_moments"]

_FLAT = 1e-10
"""Curvature, relative to the largest, below which the log joint counts as flat."""

_MOST_COORDINATES = 500
"""Parameters whose curvature is computed at once."""

_STATIONARY = 1e-3
"""Share of the second-order variance of a function below which its slope counts as zero."""


class Uncertainty:
    """What a `Fit` is asked about the uncertainty of its parameters."""

    @cached_property
    def covariance(self: Any) -> pd.DataFrame:
        r"""Covariance of the parameters, a row and a column for each number.

        Of a point, by the observed information: the inverse of the negative Hessian of the log joint
        density in unconstrained coordinates, without Jacobian, and from there to latent and
        deterministic sites by their derivatives,

        .. math:: \mathrm{Cov}[f(\theta)] \approx J H^{-1} J^\top.

        With flat priors its diagonal holds squared standard errors of maximum likelihood. What has no
        slope at the point has no standard error: such entries are NaN, as those of a variance that
        is estimated as zero. Of draws, the covariance of the relabelled and aligned draws.

        Returns
        -------
        DataFrame

        Raises
        ------
        ValueError
            If the log joint is flat or curved upwards where the fit ended, or a model has more than
            500 coordinates.
        """
        sites = self.aligned[0]["posterior"].to_dataset()
        sites = sites.drop_vars(set(self.run.sized_by_units))
        labels, values = [], []
        for name, site in sites.data_vars.items():
            values.append(site.to_numpy().reshape(-1, int(np.prod(site.shape[2:]))))
            labels += entry_names(str(name), site, site.dims[2:])
        draws = np.concatenate(values, axis=1)
        if len(draws) > 1:
            found = np.atleast_2d(np.cov(draws.T))
        else:
            with self.run.precision:
                found = _by_information(self.run.problem, self.params, list(map(str, sites)))
        return pd.DataFrame(found, index=labels, columns=labels)

    def coefficients(self: Any, probability: float = 0.95) -> pd.DataFrame:
        """Fixed effects: estimates, standard errors and intervals.

        Where they were integrated out, their posterior means and deviations: of REML, the
        generalised least-squares estimates. Over draws of the parameters, the law of total variance puts
        both kinds of uncertainty together.

        Parameters
        ----------
        probability : float
            Of the normal intervals.

        Returns
        -------
        DataFrame
            Columns ``estimate``, ``standard_error``, ``lower`` and ``upper``, a row for each term, and
            for each cluster and term of a mixture.

        Raises
        ------
        ValueError
            If the model has no fixed effects, or the probability is no number between 0 and 1.
        """
        check_probability(probability)
        group = self.tree.get("latents", {})
        sites = self.tree["posterior"].data_vars
        name = next((str(n) for n, v in sites.items() if v.dims[-1] == "terms"), None)
        if "coefficients" in group:
            site = group["coefficients"]
            estimate, error = total_moments(group, "coefficients")
        elif name is not None:
            site, estimate = sites[name], self.params[name]
            keys = [label for label in self.covariance.index if label.startswith(f"{name}[")]
            error = np.sqrt(np.diag(self.covariance.loc[keys, keys]))
        else:
            raise ValueError(f"{self.method} has no fixed effects; 'mixed_effects' has")
        terms = site[site.dims[-1]].to_numpy().tolist()
        index = pd.Index(terms)
        if estimate.ndim == 2:
            index = pd.MultiIndex.from_product(
                [range(len(estimate)), terms], names=["cluster", "term"]
            )
        estimate = estimate.ravel()
        lower, upper = normal_interval(estimate, error, probability)
        columns = {"estimate": estimate, "standard_error": error, "lower": lower, "upper": upper}
        return pd.DataFrame(columns, index=index)


def check_probability(probability: float) -> None:
    """Refuse what is no probability of an interval."""
    check_number("probability", probability, Range(above=0, below=1))


def total_moments(group: Any, name: str) -> tuple[NDArray, NDArray]:
    """Means and standard deviations over draws, by the law of total variance.

    Parameters
    ----------
    group : DataTree
        With a variable of that name of means, by chain and draw, and ``{name}_covariance``; what has
        none is known given the parameters.
    name : str
    """
    mean = group[name].to_numpy()
    variance = mean.var(axis=(0, 1))
    if f"{name}_covariance" in group:
        own = np.diagonal(group[f"{name}_covariance"].to_numpy(), axis1=-2, axis2=-1)
        variance = variance + own.mean(axis=(0, 1))
    return mean.mean(axis=(0, 1)), np.sqrt(variance)


def summarised(latents: xr.Dataset) -> pd.DataFrame:
    """Mean and standard deviation of every entry of latent variables, by the law of total variance."""
    rows: dict[str, tuple[float, float]] = {}
    for name, values in latents.items():
        if str(name).endswith("_covariance"):
            continue
        mean, spread = total_moments(latents, str(name))
        names = entry_names(str(name), values, values.dims[2:])
        rows |= zip(names, zip(mean.ravel(), spread.ravel(), strict=True), strict=True)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "sd"])


def normal_interval(mean: NDArray, sd: NDArray, probability: float) -> tuple[NDArray, NDArray]:
    """Ends of normal intervals."""
    half = norm.ppf((1 + probability) / 2) * sd
    return mean - half, mean + half


def _by_information(
    problem: Problem, params: dict[str, NDArray], names: list[str]
) -> NDArray[np.float64]:
    """Covariance of sites at a point, in the order of `names`."""
    shapes = latent_shapes(problem)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if size > _MOST_COORDINATES:
        raise ValueError(
            f"the model has some {size} coordinates, and the curvature of more than {_MOST_COORDINATES} is "
            "not computed; use an engine that draws"
        )
    latent = {name: np.asarray(params[name]) for name in shapes}
    program, _ = compiled("information", problem, None, _curvature, latent, problem.args)
    hessian = np.asarray(program(latent, problem.args))
    scale = np.sqrt(np.abs(np.diag(hessian)))
    scale[scale == 0] = 1.0
    # with a unit diagonal, so that units of the coordinates do not matter
    curvature, axes = np.linalg.eigh((hessian + hessian.T) / 2 / np.outer(scale, scale))
    if not np.isfinite(curvature).all() or curvature[0] <= _FLAT * curvature[-1]:
        raise ValueError(
            "the log joint is no peak where the fit ended (least relative curvature "
            f"{curvature[0]:.2g}): there are no standard errors. Fit closer to the mode, give what is not "
            "determined a prior, or use an engine that draws"
        )
    inputs = latent, problem.args, (axes / np.sqrt(curvature) / scale[:, None]).T
    build = partial(_along, names)
    program, _ = compiled("information-sites", problem, tuple(names), build, *inputs)
    slope, second = map(np.asarray, program(*inputs))
    found = slope.T @ slope
    blind = (slope**2).sum(axis=0) < _STATIONARY * (second**2).sum(axis=0) / 2
    found[blind], found[:, blind] = np.nan, np.nan
    return found


def _curvature(problem: Problem) -> Callable:
    """Negative Hessian of the log joint in unconstrained coordinates."""

    def curvature(params: dict, args: tuple) -> Array:
        flat, unravel = ravel_pytree(unconstrained_start(problem, params, args))

        def loss(point: Array) -> Array:
            return -sum_log_prob(place(problem, unravel(point), args)[0])

        return jax.jacfwd(jax.grad(loss))(flat)

    return curvature


def _along(names: list[str], problem: Problem) -> Callable:
    """First and second derivatives of sites along directions in unconstrained coordinates."""

    def along(params: dict, args: tuple, directions: Array) -> tuple[Array, Array]:
        flat, unravel = ravel_pytree(unconstrained_start(problem, params, args))

        def line(direction: Array) -> tuple[Array, Array]:
            def moved(step: Array) -> Array:
                trace, _ = place(problem, unravel(flat + step * direction), args)
                return jnp.concatenate([jnp.ravel(trace[name]["value"]) for name in names])

            slope = jax.jacfwd(moved)
            return slope(jnp.zeros(())), jax.jacfwd(slope)(jnp.zeros(()))

        return jax.vmap(line)(directions)

    return along
