"""Survival curves of subjects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.symmetry.matched import matched_draws
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.models.blocks.collapsed import unexpanded
from sidebayes.models.blocks.event_times import PiecewiseHazard
from sidebayes.models.blocks.side_information.groups import Groups, check_order_of_groups

from ..common.arrays import real_array
from ..common.clocks import Measures, late_subjects
from ..common.magnitudes import shown
from ..common.warnings import warn_user
from ..runs.checks import check_dims
from ..runs.run import Run
from .base.fit_base import FitBase
from .base.intervals import check_probability
from .base.new_data import check_new
from .base.other_rows import warn_of_reading_others
from .base.predictions import over_draws
from .base.predictive import fill_tables, lacking

__all__ = ["event_times", "survival"]

_FAR = 1.1
"""Times the last one seen from which on a curve is an extrapolation."""


def event_times(fit: FitBase) -> str | None:
    """See `Fit.event_times`."""
    return _event_times(fit.run)[1]


def survival(
    fit: FitBase,
    times: ArrayLike,
    *data: Any,
    since: ArrayLike,
    probability: float = 0.9,
    **named: Any,
) -> xr.Dataset:
    r"""Survival curves of subjects, given their outcomes and that no event occurred until a time.

    .. math:: P(T_s > t \mid T_s > \text{since}_s, y_s)

    Parameters
    ----------
    times : array_like, shape (num_times,)
        Times t from the origin of the fit. The curve is 1 until `since`.
    *data, **named
        Outcomes and designs of new subjects, for the arguments of the model, without times and
        events. Covariates have one row per subject, in the order of `since`. By default the fitted
        subjects, given their outcomes alone.
    since : float or array_like of shape (num_subjects,)
        Time until which each subject is known to have had no event, such as its last visit; 0 for
        the origin. The order is that of the subjects' names, ``sidebayes.Groups(subjects).names``,
        as in the result.
    probability : float
        Probability of the intervals, which reflect the uncertainty of the parameters.

    Returns
    -------
    Dataset
        ``mean``, ``lower`` and ``upper`` over draws of the parameters, by subject and time. The
        interval of a point estimate has no width.

    Warns
    -----
    SideBayesWarning
        If a time exceeds the last one observed by more than a tenth, where the last hazard is
        extrapolated. If a subject has measurements after `since`, according to a column of the
        designs that looks like the time scale of the event times.

    Raises
    ------
    ValueError
        If the model observes no times with a `PiecewiseHazard`, a time is negative, or subjects have
        sites of their own, such as random effects of the form ``"non_centred"``.
    """
    check_probability(probability)
    fit.run.problem  # noqa: B018  a model that is not known refuses
    run = _filled(fit, data, named) if data or named else fit.run
    trace, found = _event_times(run)
    if found is None:
        raise ValueError(f"{run.method} observes no times to an event by a PiecewiseHazard")
    if fit.run.unit_sites:
        raise ValueError(
            f"{run.method} has sites {fit.run.unit_sites} of single subjects, which depend on their "
            "times; fit it with form='marginal' for survival curves"
        )
    fn, number = _fn_of(trace[found]), trace[found]["fn"].batch_shape[-1]
    groups = _subjects_of(run, number)
    if groups is not None:
        check_order_of_groups("since", since, groups)
    names = np.arange(number) if groups is None else groups.names
    at, until = _times("times", times, (-1,)), _times("since", since, (number,))
    seen = fit.tree["observed_data"][found].to_numpy()
    last = float(seen.max())
    if at.max(initial=0.0) > _FAR * last:
        warn_user(
            f"times up to {at.max():g} lie beyond {last:g}, the last time that was seen: the hazard of the "
            "last interval goes on there, which no data support"
        )
    _warn_of_later_rows(fit, run, seen, until)

    def hazards(trace: dict, layout: Any, owners: dict) -> Array:
        fn = _fn_of(trace[found])
        frailty = jnp.zeros(number) if fn.frailty is None else fn.frailty
        return jnp.concatenate([fn.log_hazards, fn.cuts, fn.log_ratio, frailty])

    def at_draws(run: Run) -> NDArray:
        found: NDArray = over_draws(fit, hazards, run, matched_draws(*fit.relabelled))
        return found

    with run.precision:
        draws = at_draws(run)
        if np.isnan(draws).any():
            raise TypeError(_lacking(run, at_draws))
        sizes = fn.log_hazards.shape[0], fn.cuts.shape[0], number
        parts = np.split(draws, np.cumsum(sizes), axis=1)
        lasted = np.asarray(_curves(tuple(map(jnp.asarray, parts)), at, until))
    tail = (1 - probability) / 2
    lower, upper = np.quantile(lasted, [tail, 1 - tail], axis=0)
    coords = {"subject": names, "time": at}
    values = {"mean": lasted.mean(axis=0), "lower": lower, "upper": upper}
    return xr.Dataset({n: (("subject", "time"), v) for n, v in values.items()}, coords)


def _warn_of_later_rows(fit: FitBase, run: Run, time: NDArray, since: NDArray) -> None:
    """Warn of outcomes measured after `since`, where a column looks like the clock of the times."""
    before, groups = _subjects_of(fit.run, len(time)), _subjects_of(run, len(since))
    if before is None or groups is None:
        return
    for role in run.signature.of_kind("table"):
        old, new = fit.run.data.get(role.name), run.data.get(role.name)
        if old is None or new is None or old.ndim != 2 or len(old) != len(before):
            continue
        names = fit.run.columns.get(role.name)
        fitted, asked = Measures(old, before.codes, time), Measures(new, groups.codes, since)
        of_effects = role.dims[1:] == ("effects",)
        for number, last, late in late_subjects(fitted, names, of_effects=of_effects, new=asked):
            name = names[number] if names else f"{role.name}[:, {number}]"
            first = late[0]
            warn_user(
                f"{len(late)} of {len(since)} subjects have measures after since, the first "
                f"{groups.names[first]!s}, whose last {name} is {last[first]:.6g} where since is "
                f"{since[first]:.6g}: if {name} counts from the origin of the times, these curves depend "
                "on what was measured later than they begin; pass only the rows up to since, as new "
                "data, or a later since"
            )
            return


def _lacking(run: Run, at_draws: Callable[[Run], NDArray]) -> str:
    """Say which tables that were left out the hazard depends on."""
    roles = [r for r in run.signature.of_kind("table") if _is_unknown(run.data.get(r.name))]
    known = {**run.data, **{r.name: np.zeros_like(run.data[r.name]) for r in roles}}
    needed = [
        role
        for role in roles
        if np.isnan(at_draws(run.with_data(known | {role.name: run.data[role.name]}))).any()
    ]
    return lacking(run, "the hazard", needed)


def _is_unknown(table: Any) -> bool:
    return table is not None and bool(np.isnan(table).all())


def _filled(fit: FitBase, data: tuple, named: dict[str, Any]) -> Run:
    """The run at new data, with tables that were left out, as times are, as numbers not known."""
    fitted = fit.run
    given = check_new(fitted, data, named, ("links", "table"))
    sizes = check_dims(fitted.signature, given)
    run = fitted.with_data(fill_tables(replace(fitted, data=given), sizes, fitted.data))
    warn_of_reading_others(fit, given)
    return run


def _subjects_of(run: Run, number: int) -> Groups | None:
    groups = [run.data.get(role.name) for role in run.signature.of_kind("groups")]
    return next((g for g in groups if g is not None and g.num_groups == number), None)


def _event_times(run: Run) -> tuple[dict[str, dict], str | None]:
    """Shapes of a run's sites, and the first of them that has times to an event."""
    with run.precision:
        trace = abstract_trace(run.problem)
    return trace, next(
        (n for n, s in trace.items() if isinstance(_fn_of(s), PiecewiseHazard)), None
    )


@jax.jit
def _curves(parts: tuple[Array, ...], times: Array, since: Array) -> Array:
    """Probabilities to last until each time, shape (num_draws, num_subjects, num_times)."""

    def one(part: tuple[Array, ...]) -> Array:
        log_hazards, cuts, log_ratio, frailty = part

        def log_survival(until: Array) -> Array:
            fn = PiecewiseHazard(
                log_hazards, cuts, log_ratio, jnp.zeros_like(log_ratio), frailty=frailty
            )
            return fn.log_prob(until)

        start = log_survival(since)
        at = jax.vmap(log_survival, out_axes=1)(times[:, None].repeat(len(since), axis=1))
        return jnp.where(times > since[:, None], jnp.exp(at - start[:, None]), 1.0)

    found: Array = jax.lax.map(one, parts)
    return found


def _fn_of(site: dict) -> Any:
    return unexpanded(site.get("fn"))


def _times(name: str, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Times as an array of this shape."""
    found = real_array(name, values)
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"{name} = {shown(values)}; expected finite times from 0 on")
    try:
        return found.reshape(-1) if shape == (-1,) else np.broadcast_to(found, shape)
    except ValueError:
        raise ValueError(f"{name} has shape {found.shape}, expected () or {shape}") from None
