"""Data drawn from a model at draws of its parameters, for the rows that were fitted or others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import xarray as xr
from arviz_base import dict_to_dataset
from jax import Array
from numpy.typing import NDArray

from sidebayes.diagnostics.sites import name_axes
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled, structure
from sidebayes.guides.engines.problem.declared import site_axes
from sidebayes.guides.engines.problem.density import abstract_trace, site_log_prob, trace_model
from sidebayes.guides.engines.problem.explained import explaining_integers
from sidebayes.guides.engines.problem.honoured import in_scan, is_factor, is_outcome
from sidebayes.guides.engines.problem.units import given_data
from sidebayes.guides.engines.steps.starts import random_keys
from sidebayes.models.blocks.collapsed import DrawsData, Fitted, unexpanded
from sidebayes.models.blocks.roles import Role
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from ...runs import checks
from ...runs.run import Run
from ...runs.stored import axes_of, coordinates

__all__ = [
    "Drawn",
    "design",
    "draw_data",
    "fill_tables",
    "hide",
    "observed_values",
    "outcomes",
    "refuse_unknown",
    "to_dataset",
]


class Drawn(NamedTuple):
    """Data drawn at draws of the parameters.

    Attributes
    ----------
    values : dict of ndarray, shape (num_draws, ...)
        By observed site.
    unknown : list of str
        Sites whose distribution depends on numbers that are missing.
    priced : list of str
        Factors that depend on them.
    """

    values: dict[str, NDArray]
    unknown: list[str]
    priced: list[str]


def outcomes(run: Run) -> dict[str, str | None]:
    """Observed sites, and the argument that each observes; None where that is no argument as it is."""
    given = given_data(run.problem)[1].items()
    return {
        name: next((n for n, data in given if data is site["value"]), None)
        for name, site in abstract_trace(run.problem).items()
        if is_outcome(site)
    }


def hide(problem: Problem, tables: Collection[str]) -> Problem:
    """The problem without the numbers of some tables."""
    args = (
        jnp.full(arg.shape, jnp.nan) if name in tables else arg
        for name, arg in zip(given_data(problem)[1], problem.args, strict=True)
    )
    return replace(problem, args=tuple(args))


def fill_tables(
    run: Run, sizes: Mapping[str, int], like: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Data of a run, tables that were left out among them, as numbers that are not known.

    Whatever depends on these can then be told, and what does not needs them for their shape only.

    Parameters
    ----------
    run : Run
    sizes : mapping of str to int
        Of the dimensions that its data have.
    like : mapping of str to object, optional
        Data of a fit, that say which tables there are, and how wide.

    Raises
    ------
    TypeError
        If nothing says how many rows there are.
    """
    signature, data = run.signature, dict(run.data)
    elements = {role.dims[0] for role in signature.data if role.dims}
    elements |= {role.name for role in signature.of_kind("groups")}
    for role in signature.of_kind("table"):
        old = None if like is None else like.get(role.name)
        if role.name in data or (old is None and (like is not None or not role.required)):
            continue
        own = tuple(dim for dim in role.dims if dim != "...")
        dims = own if old is None else axes_of(role, old.ndim)
        widths = {} if old is None else dict(zip(dims, old.shape, strict=True))
        shape = [sizes.get(d, None if d in elements else widths.get(d)) for d in dims]
        if None in shape:
            raise TypeError(
                f"{run.method}: {role.name} was left out, and no other data say how many "
                f"{dims[shape.index(None)]} there are; pass {checks.wanted(role)}, or what goes with it"
            )
        data[role.name] = np.full(shape, np.nan)
    return data


def draw_data(
    problem: Problem,
    draws: Mapping[str, NDArray],
    seed: int,
    *,
    fitted: Problem | None = None,
    codes: Mapping[str, NDArray] | None = None,
    taken: Mapping[str, tuple[int, str]] | None = None,
) -> Drawn:
    """Draw the data of all observed sites, once at each draw of the parameters.

    Parameters
    ----------
    problem : Problem
        The model at the data that are held; NaN stands for what is not known.
    draws : mapping of str to ndarray, shape (num_draws, ...)
        Latent and deterministic sites.
    seed : int
    fitted : Problem, optional
        The model at the data that were fitted, which latent variables of known groups depend on.
    codes : mapping of str to ndarray of int, optional
        By argument that holds groups: number of each group among those fitted, -1 for a new one. By
        default the groups are those that were fitted.
    taken : mapping of str to (int, str), optional
        Sites with a value for each fitted group: their axis of groups, and the argument that holds
        these.

    Raises
    ------
    ValueError
        If a distribution cannot be drawn from, or the model has other sites at these data.
    """
    _refuse_undrawable(problem if fitted is None else fitted)
    number = len(next(iter(draws.values())))
    old = None if fitted is None else replace(fitted, args=())
    mine = dict(taken or {})

    def build(bare: Problem) -> Callable:
        def one(key: Array, params: dict, args: tuple, known: tuple, codes: Any) -> tuple:
            before = {} if old is None else trace_model(old, params, known)
            data = given_data(replace(bare, args=args))[1]
            values: dict[str, Array] = {}
            unknown: dict[str, Array] = {}

            def draw(site: dict) -> Array | None:
                if not is_outcome(site):
                    return None
                name, fn = site["name"], unexpanded(site["fn"])
                own = jax.random.fold_in(key, len(values))
                drawn = _sample(own, site, _seen(fn, before.get(name), data, codes))
                values[name] = _restored(site, drawn)
                unknown[name] = _has_unknown((site["fn"], values[name]))
                return drawn

            placed = {
                n: jnp.take(v, codes[mine[n][1]], axis=mine[n][0]) if n in mine else v
                for n, v in params.items()
            }
            trace = trace_model(bare, placed, args, draw)
            priced = {
                name: jnp.isnan(site_log_prob(site))
                for name, site in trace.items()
                if isinstance(site.get("fn"), dist.Unit)
            }
            return values, unknown, priced

        def over_draws(keys: Array, draws: dict, *rest: Any) -> tuple:
            def at(each: tuple) -> tuple:
                return one(jax.random.wrap_key_data(each[0]), each[1], *rest)

            values, unknown, priced = jax.lax.map(at, (keys, draws))
            return values, *jax.tree.map(jnp.any, (unknown, priced))

        return over_draws

    given = {name: jnp.asarray(value) for name, value in draws.items()}
    held = () if fitted is None else fitted.args
    inputs = (
        random_keys(seed, number),
        given,
        problem.args,
        held,
        None if codes is None else dict(codes),
    )
    config = None if old is None else structure(old), tuple(mine.items())
    program, _ = compiled("draw-data", problem, config, build, *inputs)
    values, unknown, priced = program(*inputs)
    return Drawn(
        {name: np.asarray(value) for name, value in values.items()},
        [name for name, flag in unknown.items() if flag],
        [name for name, flag in priced.items() if flag],
    )


def _refuse_undrawable(problem: Problem) -> None:
    """Refuse a model that observes by factors alone, or inside a scan."""
    observed = [site for site in abstract_trace(problem).values() if is_outcome(site)]
    if not observed:
        signature, given = given_data(problem)
        left = [role.name for role in signature.data if role.name not in given]
        factors = any(map(is_factor, abstract_trace(problem).values()))
        what = (
            "has only factors, from which no data can be drawn" if factors else "observes nothing"
        )
        remedy = "write numpyro.sample(name, distribution, obs=data) for what is observed"
        if left and not factors:
            what += f" without {' and '.join(left)}"
            remedy = "pass the outcome, or any numbers of the same shape in its place"
        raise ValueError(f"the model {what}; {remedy}")
    scanned = [site["name"] for site in observed if in_scan(site)]
    if scanned:
        raise ValueError(
            f"sites {scanned} are observed step by step inside numpyro's scan, where each step depends "
            "on the data before; they cannot be drawn all at once"
        )


def _sample(key: Array, site: dict, fitted: Fitted | None) -> Array:
    """Draw one site, by its own protocol if it integrates latent variables out."""
    fn = unexpanded(site["fn"])
    try:
        if isinstance(fn, DrawsData):
            return fn.draw_data(key, fitted)
        rows = jnp.shape(site["value"])[: jnp.ndim(site["value"]) - fn.event_dim]
        shape = jnp.broadcast_shapes(rows, site["fn"].batch_shape)
        with explaining_integers():
            drawn: Array = site["fn"].expand(shape).sample(key)
        return drawn
    except ValueError as error:
        if "total_count_max" not in str(error):
            raise
        raise ValueError(
            f"site {site['name']!r} cannot be drawn: its distribution has to know the largest number of "
            "trials beforehand, which data have not told while a program is compiled; give it "
            "total_count_max=, an option of the model perhaps"
        ) from None
    except NotImplementedError:
        inner = getattr(fn, "components", fn)
        raise ValueError(
            f"site {site['name']!r} cannot be drawn: {type(inner).__name__} has no way to simulate data"
        ) from None


def _restored(site: Mapping[str, Any], value: Array) -> Array:
    """Data, where a model has subtracted an offset from them before a site observes them."""
    offset = (site.get("infer") or {}).get("offset")
    return value if offset is None else value + offset


def _seen(
    fn: Any, before: dict | None, data: Mapping[str, Any], codes: Mapping[str, Array] | None
) -> Fitted | None:
    """Fitted data of a site whose latent variables are shared by groups."""
    if before is None or not isinstance(fn, DrawsData) or fn.groups is None:
        return None
    numbers = jnp.arange(fn.groups.num_groups)
    if codes is not None:
        role = next((name for name in codes if data[name] is fn.groups), None)
        if role is None:
            raise ValueError(
                f"site {before['name']!r} has groups that are no argument of the model, so that known "
                "ones cannot be matched; pass the model its Groups"
            )
        numbers = codes[role]
    return Fitted(unexpanded(before["fn"]), before["value"], numbers)


def _has_unknown(values: Any) -> Array:
    numbers = (jnp.asarray(leaf) for leaf in jax.tree.leaves(values))
    flags = [jnp.isnan(v).any() for v in numbers if jnp.issubdtype(v.dtype, jnp.inexact)]
    return jnp.stack(flags).any() if flags else jnp.asarray(False)


def refuse_unknown(
    run: Run,
    drawn: Drawn,
    left_out: Collection[str],
    at_known: Callable[[], Drawn] | None = None,
) -> None:
    """Refuse what was drawn from distributions that depend on numbers which are not known.

    Parameters
    ----------
    run : Run
    drawn : Drawn
    left_out : collection of str
        Tables that are no outcomes and were left out.
    at_known : callable, optional
        Draws again at the same data with numbers for the outcomes, which tells whether these matter.

    Raises
    ------
    TypeError
        If tables that matter were left out.
    ValueError
        If outcomes depend on themselves, the model is no generative one, or it makes NaN of the data.
    """
    if (drawn.unknown or drawn.priced) and left_out:
        roles = [r for r in run.signature.of_kind("table") if r.name in left_out]
        raise TypeError(lacking(run, drawn.unknown, roles))
    if drawn.priced:
        raise ValueError(
            f"{run.method} has factors {drawn.priced} that depend on the data: a penalised objective, "
            "from which no data can be drawn"
        )
    if drawn.unknown and at_known is not None and (lost := at_known().unknown):
        raise ValueError(
            f"{run.method}: the distribution of {lost} is NaN at these data, whatever is drawn: the model "
            "makes NaN of them, as of a single row by its standard deviation, which is zero. Compute such "
            "numbers before the fit, and pass them as data by row or as an option"
        )
    if drawn.unknown:
        raise ValueError(
            f"{run.method}: the distribution of {drawn.unknown} depends on the data that would be drawn, "
            "so that these cannot be drawn all at once; have the model use the value that numpyro.sample "
            "returns in place of the argument that it observes"
        )


def lacking(run: Run, what: object, roles: Iterable[Role]) -> str:
    """Say which data that were left out something depends on."""
    wanted = "; ".join(f"{role.name}, {checks.wanted(role)}" for role in roles)
    return f"{run.method} lacks data that {what} depends on: pass {wanted}"


def observed_values(
    run: Run, params: Mapping[str, NDArray], found: Mapping[str, str | None]
) -> dict[str, NDArray]:
    """Data of observed sites: arguments of the model, or what it makes of them."""
    made = [site for site, table in found.items() if table is None]
    trace = trace_model(run.problem, params) if made else {}
    return {
        site: np.asarray(_restored(trace[site], trace[site]["value"]))
        if table is None
        else run.data[table]
        for site, table in found.items()
    }


def to_dataset(
    run: Run,
    found: Mapping[str, str | None],
    values: Mapping[str, NDArray],
    draws: Mapping[Any, Any] | None = None,
) -> xr.Dataset:
    """Data by observed site.

    Parameters
    ----------
    run : Run
        Whose data they are like.
    found : mapping of str to str or None
        See `outcomes`.
    values : mapping of str to ndarray
        Of shape (num_draws, ...) if there are coordinates of draws.
    draws : mapping, optional
        Coordinates ``chain`` and ``draw``.
    """
    tables = {role.name: role for role in run.signature.of_kind("table")}
    front = [] if draws is None else [len(draws["chain"]), len(draws["draw"])]
    shaped: dict[str, NDArray] = {}
    trace = abstract_trace(run.problem)
    dims: dict[Any, Any] = {}
    for site, value in values.items():
        own = value.shape if draws is None else value.shape[1:]
        shaped[site], role = value.reshape((*front, *own)), tables.get(found[site] or "")
        if role is not None:
            dims[site] = list(axes_of(role, len(own)))
        else:  # made of data, in a plate
            plates, rest = site_axes(site, trace[site])
            dims[site] = [*plates, *rest]
    coords: dict[Any, Any] = {} if draws is None else {n: draws[n] for n in ("chain", "draw")}
    sample_dims = [] if draws is None else ["chain", "draw"]
    data = dict_to_dataset(shaped, dims=dims, coords=coords, sample_dims=sample_dims)
    return name_axes(data, coordinates(run))


def design(run: Run, without: Collection[str]) -> xr.Dataset:
    """Data that were held: tables, groups by row, known classes."""
    held: dict[str, Any] = {}
    for role in run.signature.data:
        value = run.data.get(role.name)
        if role.name in without or value is None:
            continue
        if role.kind == "table":
            held[role.name] = axes_of(role, value.ndim), value
        elif isinstance(value, Groups):
            names = np.asarray(value.names)[np.asarray(value.codes)]
            plain = names.dtype.kind in "fiu"
            held[role.name] = role.dims[0], names if plain else names.astype(object)
        elif isinstance(value, PartialLabels):
            held[role.name] = axes_of(role, value.values.ndim), value.values
    return name_axes(xr.Dataset(held), coordinates(run))
