"""Groups of new individuals whose shapes are latent, by their marginal density."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array
from jax.scipy.linalg import cho_solve

from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.declared import finite_mixtures, individual_sites
from sidebayes.guides.engines.problem.density import abstract_trace, trace_model
from sidebayes.guides.engines.problem.importance import log_mean_weight, pareto_k
from sidebayes.guides.engines.problem.posterior import latent_shapes
from sidebayes.guides.engines.problem.units import Layout, lay_out_units, log_terms
from sidebayes.models.blocks.label_inference.padding import padded
from sidebayes.models.blocks.manifolds.point_clouds.point_sets import KernelPotential
from sidebayes.models.blocks.side_information.groups import Groups

from ..common.fields import check_integer, check_seed
from ..common.warnings import warn_user
from ..runs.run import Run
from .base.fit_base import FitBase
from .base.new_data import check_new
from .shapes import chart_of, group_names

__all__ = ["group_log_likelihood"]

_CLIMBS = 200
"""Preconditioned gradient steps towards the best shape of an individual in a group."""

_POLISHED = 3
"""Newton steps after them."""

_AT_ONCE = 8
"""Individuals that a call of the program takes, so that others share it, however many they are."""


def group_log_likelihood(
    fit: FitBase, *data: Any, num_draws: int = 1000, seed: int = 0, **named: Any
) -> xr.Dataset:
    r"""Log density of new individuals in each group, their latent shapes integrated out.

    .. math:: \log p(x \mid g) = \log \int p(x \mid w) \, N(w \mid m_g, C_g) \, dw

    (Yu 2016, eqs. 3.12-3.13), at the point estimate of the parameters. The integral is estimated by
    importance sampling from the normal approximation about the best shape in the group. This suits
    many coordinates, where draws from the group itself, as in the source, hardly come near the
    data.

    Parameters
    ----------
    *data, **named
        New individuals in the frame of the chart, as data for the arguments of the model, or all
        that `RegisteredPoints.register` returns.
    num_draws : int
        Draws per individual and group.
    seed : int

    Returns
    -------
    Dataset
        By subject and group: ``log_likelihood``, its Monte Carlo ``standard_error``, ``pareto_k``
        of the importance weights, which should be below 0.7, and ``probability`` of the group under
        the mixing weights. Under the kernel potential ``log_likelihood`` is not that of a density,
        and is known only up to a constant per individual.

    Warns
    -----
    SideBayesWarning
        Under the kernel potential.

    Raises
    ------
    ValueError
        If the individuals of the model have no latent shapes, or the data do not suit the model.
    """
    number = check_integer("num_draws", num_draws, 100, 2**31)
    with fit.run.precision:
        sites = individual_sites(fit.run.problem)
    if not sites:
        raise ValueError(
            f"{fit.method} has no latent shapes of individuals; use fit.predict_proba, whose densities are "
            "exact"
        )
    chart = chart_of(fit)
    with fit.run.precision:
        observed = abstract_trace(fit.run.problem).values()
    if any(isinstance(site.get("fn"), KernelPotential) for site in observed):
        warn_user(
            "the kernel potential is no density of points, so that probabilities of groups depend on its "
            "temperature, and can be near one half where shapes tell groups apart; fit with "
            "observation='density' to compare groups"
        )
    new = check_new(fit.run, data, named)
    if not np.array_equal(new["chart"], fit.run.data["chart"]):
        raise ValueError(
            "chart is another than that of the fit, in which the groups lie; lay new individuals there by "
            "register of the registered points that were fitted"
        )
    run = fit.run.with_data(new, known=sites)
    names = next(v.names for v in run.data.values() if isinstance(v, Groups))
    fixed = {n: jnp.asarray(v) for n, v in fit.params.items() if n not in sites}
    drawn = []
    with run.precision:
        key = jax.random.key(check_seed(seed))
        for place, part in enumerate(_in_parts(run, len(chart.of.reference))):
            problem = part.problem
            layout, size = lay_out_units(problem), latent_shapes(problem)[chart.site]
            inputs = fixed, problem.args, jax.random.key_data(jax.random.fold_in(key, place))
            build = partial(_marginals, chart.site, size, layout, number)
            config = chart.site, size, number
            program, _ = compiled("latent-groups", problem, config, build, *inputs)
            drawn.append(map(np.asarray, program(*inputs)))
    log_ratios, log_weights = (np.concatenate(v)[: len(names)] for v in zip(*drawn, strict=True))
    shape = log_ratios.shape[:2]
    flat = log_ratios.reshape(-1, number)
    found, error = np.reshape([log_mean_weight(row) for row in flat], (*shape, 2)).transpose(
        2, 0, 1
    )
    tails = np.reshape([pareto_k(row) for row in flat], shape)
    joint = found + log_weights
    dims = ("subject", "group")
    return xr.Dataset(
        {
            "log_likelihood": (dims, found),
            "standard_error": (dims, error),
            "pareto_k": (dims, tails),
            "probability": (dims, np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None])),
        },
        {"subject": names, "group": group_names(fit, found.shape[1])},
    )


def _in_parts(run: Run, num_landmarks: int) -> Iterator[Run]:
    """A few individuals at a time, with spare rows of none; the last one stands in for those that lack."""
    (role,) = run.signature.of_kind("groups")
    groups, tables = run.data[role.name], run.signature.of_kind("table")
    rows = np.argsort(groups.codes, kind="stable")
    of_each = np.split(rows, np.cumsum(np.bincount(groups.codes))[:-1])
    room = _AT_ONCE * padded(max(num_landmarks, *map(len, of_each)))
    for first in range(0, len(of_each), _AT_ONCE):
        own = (of_each + of_each[-1:] * _AT_ONCE)[first : first + _AT_ONCE]
        codes = np.repeat(np.arange(_AT_ONCE), [len(one) for one in own])
        spare = np.zeros(room - len(codes), int)
        taken = np.concatenate([*own, spare])
        data = {
            one.name: run.data[one.name][taken] if one.dims[:1] == role.dims else run.data[one.name]
            for one in tables
            if one.name in run.data
        }
        data[role.name] = Groups.tree_unflatten((_AT_ONCE,), (np.concatenate([codes, spare - 1]),))
        yield replace(run, data=data)


def _marginals(
    site: str, size: tuple[int, ...], layout: Layout, num_draws: int, problem: Problem
) -> Callable:
    """Log importance ratios, (subject, group, draw), and log weights of the groups."""

    def at(params: dict, args: tuple, key_data: Array) -> tuple[Array, Array]:
        def trace(rows: Array) -> dict:
            return trace_model(problem, params | {site: rows}, args)

        number = size[0]
        owners = {n: None if o is None else jnp.asarray(o) for n, o in layout.owners.items()}
        known = trace(jnp.zeros(size))
        start = known[site]["infer"]["block"].guess()
        ((fn, _),) = finite_mixtures(known).values()

        def energy(group: Array, rows: Array) -> Array:
            """Negative log joint of each individual and its shape in a group."""
            found = trace(rows)
            terms, _ = log_terms(found, layout, owners)
            prior: Array = found[site]["fn"].components.log_prob(rows[:, None])[:, group]
            return -sum((term[:number] for term in terms.values()), prior)

        def one(group: Array, key: Array) -> Array:
            best, scale_tril = _normal_about(partial(energy, group), start)
            noise = jax.random.normal(key, (num_draws, *start.shape))

            def ratio(noise: Array) -> Array:
                rows = best + jnp.einsum("iab,ib->ia", scale_tril, noise)
                return -energy(group, rows) + jnp.square(noise).sum(axis=1) / 2

            volume = size[1] / 2 * jnp.log(2 * jnp.pi)
            stretch = jnp.log(jnp.diagonal(scale_tril, axis1=1, axis2=2)).sum(axis=1)
            ratios: Array = jax.lax.map(ratio, noise, batch_size=16)
            return ratios.T + (volume + stretch)[:, None]

        keys = jax.random.split(jax.random.wrap_key_data(key_data), fn.num_clusters)
        found = jax.lax.map(lambda inputs: one(*inputs), (jnp.arange(fn.num_clusters), keys))
        log_weights = jax.nn.log_softmax(fn.labels.log_weights)
        return found.swapaxes(0, 1), jnp.broadcast_to(log_weights, (number, fn.num_clusters))

    return at


def _normal_about(energy: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """Least energy of each row by itself, and the Cholesky factor of the inverse curvature there."""
    size = start.shape[1]
    slope = jax.grad(lambda rows: energy(rows).sum())

    def curvature(rows: Array) -> Array:
        columns = jax.lax.map(
            lambda axis: jax.jvp(slope, (rows,), (jnp.broadcast_to(axis, rows.shape),))[1],
            jnp.eye(size),
        )
        whole = columns.transpose(1, 0, 2)
        values, vectors = jnp.linalg.eigh((whole + whole.swapaxes(1, 2)) / 2)
        # saddles are left along their own directions
        values = jnp.maximum(jnp.abs(values), 1e-6 * values[:, -1:])
        return jnp.einsum("iab,ib,icb->iac", vectors, values, vectors)

    def descend(rows: Array, bend: Array, steps: int) -> Array:
        factor = jnp.linalg.cholesky(bend)

        def step(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            rows, now, length = carry
            move = jax.vmap(lambda low, pull: cho_solve((low, True), pull))(factor, slope(rows))
            tried = rows - length[:, None] * move
            then = energy(tried)
            better = then < now
            rows = jnp.where(better[:, None], tried, rows)
            length = jnp.where(better, jnp.minimum(1.3 * length, 1.0), length / 2)
            return rows, jnp.where(better, then, now), length

        begin = rows, energy(rows), jnp.ones(len(rows))
        moved: Array = jax.lax.fori_loop(0, steps, step, begin)[0]
        return moved

    rows = start
    for _ in range(_POLISHED):  # one program of three equal parts
        rows = descend(rows, curvature(rows), _CLIMBS // _POLISHED)
    # L with L L' the inverse of the curvature
    return rows, jnp.linalg.cholesky(jnp.linalg.inv(curvature(rows)))
