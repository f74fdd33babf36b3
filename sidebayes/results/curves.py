"""Curves of clusters with bands, and outcomes predicted of subjects whose label is in doubt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.core import Tracer
from numpy.typing import NDArray

from sidebayes.diagnostics.symmetry.matched import matched_draws
from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.problem.declared import finite_mixtures
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.models.blocks.side_information.groups import Groups

from ..runs import checks
from ..runs.run import Run
from ..runs.stored import names_of_columns
from .base.fit_base import FitBase, need_labels
from .base.intervals import check_probability, mixture_bands, normal_interval
from .base.labels import responsibilities
from .base.new_data import check_new, known_groups
from .base.other_rows import warn_of_reading_others
from .base.predictions import over_draws
from .base.predictive import fill_tables, outcomes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["curves", "forecast", "input_of_curves", "plot_fit_curves"]

_MOST_PARTS = 2000
"""Normal parts, draws by clusters, of a mixture whose quantiles are found."""


def curves(fit: FitBase, *, probability: float = 0.9, **new: Any) -> pd.DataFrame:
    """Curve of every cluster at new rows, with bands.

    Parameters
    ----------
    probability : float
        Probability of the central intervals.
    **new
        Data of the new rows by name of the argument, such as ``inputs=grid``, without outcomes. If
        groups are left out, each new row is a group of its own.

    Returns
    -------
    DataFrame
        One row per new row, cluster and output: ``row``, ``cluster`` and ``output`` (its name, if
        the columns of the data have names); ``mean`` and ``sd``, the posterior mean and standard
        deviation of the curve, with interval ends ``lower`` and ``upper``; and ``sd_outcome``, the
        standard deviation of a new outcome about the mean, noise included. Intervals are those of a
        normal distribution. After coordinate ascent the means are those of the variational factor,
        without Monte Carlo error.

    Raises
    ------
    ValueError
        If the model does not observe exactly one mixture whose components have means and variances.
    """
    check_probability(probability)
    mean, doubt, variance = _components(fit, _new_rows(fit, new), _centred_draws(fit))
    found = mean.mean(axis=0)
    sd = np.sqrt(mean.var(axis=0) + doubt.mean(axis=0))
    total = np.sqrt(mean.var(axis=0) + variance.mean(axis=0))
    low, high = normal_interval(found, sd, probability)
    row, cluster, output = (one.ravel() for one in np.indices(found.shape))
    return pd.DataFrame(
        {
            "row": row,
            "cluster": cluster,
            "output": _output_names(fit, output),
            "mean": found.ravel(),
            "sd": sd.ravel(),
            "lower": low.ravel(),
            "upper": high.ravel(),
            "sd_outcome": total.ravel(),
        }
    )


def forecast(
    fit: FitBase,
    seen: Mapping[str, Any] | None = None,
    *,
    probability: float = 0.9,
    **new: Any,
) -> pd.DataFrame:
    r"""Predict outcomes of new rows, for fitted subjects or subjects known by some of their rows.

    .. math:: p(y_* \mid x_*, \text{rows of } s) = \sum_k P(z_s = k \mid \text{rows of } s)\,
              p(y_* \mid x_*, k),

    averaged over draws of the parameters. The label probabilities of a fitted subject are
    conditional on its fitted rows and links. Those of another subject are conditional on its `seen`
    rows; without any, they are the weights of the clusters.

    Parameters
    ----------
    seen : mapping of str to array_like, optional
        Known rows of subjects that were not fitted, outcomes included, by name of the argument.
    probability : float
        Probability of the central intervals.
    **new
        Data of the new rows by name of the argument, ``inputs=..., subjects=...``.

    Returns
    -------
    DataFrame
        One row per new row and output: ``row``, ``output``, ``mean``, ``sd``, ``lower`` and
        ``upper`` of the mixture, and ``known``, whether any rows of the subject determined its
        label probabilities.

    Raises
    ------
    TypeError, ValueError
        For bad input, or `seen` rows of subjects that were fitted.
    """
    check_probability(probability)
    run = _new_rows(fit, new)
    draws = pooled_draws(fit.tree)
    keep = max(_MOST_PARTS // _num_clusters(fit), 1)
    number = len(next(iter(draws.values())))
    chosen = np.unique(np.linspace(0, number - 1, min(keep, number)).astype(int))
    draws = {name: values[chosen] for name, values in draws.items()}
    share, known = _shares(fit, run, new, seen, draws)
    mean, _, variance = _components(fit, run, draws)
    parts = (-1, *mean.shape[1:2], mean.shape[3])
    means, sds = (np.moveaxis(v, 2, 1).reshape(parts) for v in (mean, np.sqrt(variance)))
    weight = np.moveaxis(share, 2, 1).reshape(parts[:2]) / len(chosen)
    flat = means.reshape(len(means), -1), sds.reshape(len(sds), -1)
    weights = np.repeat(weight, mean.shape[3], axis=1)
    lower, upper = mixture_bands(*flat, weights, probability)
    middle = (weights * flat[0]).sum(axis=0)
    spread = np.sqrt((weights * (flat[1] ** 2 + (flat[0] - middle) ** 2)).sum(axis=0))
    row, output = (one.ravel() for one in np.indices(mean.shape[1::2]))
    table = {"row": row, "output": _output_names(fit, output), "mean": middle, "sd": spread}
    return pd.DataFrame(table | {"lower": lower, "upper": upper, "known": known[row]})


def input_of_curves(fit: FitBase) -> str | None:
    """Argument that holds the one input of curves; None for other models, and for several inputs."""
    if fit.run.model is None:
        return None
    with fit.run.precision:
        seen = set(outcomes(fit.run).values())
    inputs = getattr(_density(fit), "inputs", None)
    if getattr(inputs, "shape", (0, 0))[1] != 1:
        return None
    tables = (role.name for role in fit.run.signature.of_kind("table") if role.required)
    return next((name for name in tables if name not in seen), None)


def plot_fit_curves(fit: FitBase, along: str) -> Figure:
    """Draw the curves of clusters along one input, with the rows that were fitted."""
    from sidebayes.diagnostics.pictures.curves import plot_curves

    values = fit.run.data[along]
    inputs = values.reshape(-1)
    grid = np.linspace(inputs.min(), inputs.max(), 120)
    with fit.run.precision:
        site = next(iter(filter(None, outcomes(fit.run).values())))
    prob = responsibilities(fit)
    groups = next((v for v in fit.run.data.values() if isinstance(v, Groups)), None)
    prob = prob if groups is None else prob[groups.codes]
    rows: dict[str, Any] = {along: grid.reshape(-1, *values.shape[1:])}
    table = curves(fit, **rows)
    y, observed = fit.run.data[site], getattr(_density(fit), "observed", None)
    if observed is not None and not isinstance(observed, Tracer):
        y = np.where(np.asarray(observed) > 0, y, np.nan)  # which is not drawn
    return plot_curves(inputs, y, prob, grid, table, along)


def _output_names(fit: FitBase, output: NDArray) -> NDArray:
    """Names of outputs, their numbers where the data have no names."""
    with fit.run.precision:
        tables = filter(None, outcomes(fit.run).values())
    names = next(filter(None, (names_of_columns(fit.run, one) for one in tables)), None)
    return output if names is None else np.asarray(names, dtype=object)[output]


def _density(fit: FitBase) -> Any:
    """Components of the one mixture that is observed, None where there is no one."""
    with fit.run.precision:
        sources = finite_mixtures(abstract_trace(fit.run.problem)).values()
    own = [fn.components for fn, _ in sources]
    return own[0] if len(own) == 1 else None


def _num_clusters(fit: FitBase) -> int:
    need_labels(fit, "clusters")
    return fit.tree["responsibilities"].sizes["clusters"]


def _new_rows(fit: FitBase, new: Mapping[str, Any]) -> Run:
    """The run at new rows, whose outcomes are not known; each is a group where groups are left out."""
    need_labels(fit, "curves of clusters")
    given = check_new(fit.run, (), new, ("links", "table", "groups"))
    with fit.run.precision:
        tables = set(filter(None, outcomes(fit.run).values()))
    if tables & given.keys():
        raise TypeError(
            f"{sorted(tables & given.keys())} are outcomes, which are predicted; leave them out, or "
            "pass what is known of new subjects as seen={...}"
        )
    roles = [role for role in fit.run.signature.of_kind("table") if role.name not in tables]
    lacking = [role.name for role in roles if role.required]
    if lacking and not new.keys() & {role.name for role in roles}:
        raise TypeError(f"no new rows are given; pass {' and '.join(lacking)} by name")
    sizes = checks.check_dims(fit.run.signature, given)
    for role in fit.run.signature.of_kind("groups"):
        if role.name in fit.run.data and role.name not in given and role.dims[0] in sizes:
            given[role.name] = Groups(np.arange(sizes[role.dims[0]]))
            sizes[role.name] = given[role.name].num_groups
    run = fit.run.with_data(fill_tables(replace(fit.run, data=given), sizes, fit.run.data))
    warn_of_reading_others(fit, given)
    return run


def _centred_draws(fit: FitBase) -> dict[str, NDArray]:
    """Matched draws, moved to the mean of their factor where the engine knows it."""
    draws, plain = matched_draws(*fit.relabelled), pooled_draws(fit.tree)
    info = fit.tree["fit_info"]
    for name, values in draws.items():
        exact = info.get(f"factor_mean_{name}")
        if exact is not None and np.array_equal(values, plain[name]):  # none was renumbered
            draws[name] = values - values.mean(axis=0) + exact.to_numpy()
    return draws


def _components(
    fit: FitBase, run: Run, draws: Mapping[str, NDArray]
) -> tuple[NDArray, NDArray, NDArray]:
    """Means, doubt of these, and variances; each of shape (draws, rows, clusters, outputs)."""

    def moments(trace: dict, layout: Any, owners: dict) -> Any:
        ((fn, _),) = finite_mixtures(trace).values()
        rows = fn.event_shape[0]
        shape = (rows, fn.num_clusters, -1)
        density = fn.components
        if density is None:
            raise ValueError(
                f"{fit.method} has no components with a mean and a variance of each row"
            )
        mean = jnp.broadcast_to(density.mean, (rows, fn.num_clusters, *fn.event_shape[1:]))
        doubt = jnp.broadcast_to(getattr(density, "doubt", 0.0), mean.shape)
        variance = jnp.broadcast_to(density.variance, mean.shape)
        return jnp.stack([one.reshape(shape) for one in (mean, doubt, variance)])

    found = over_draws(fit, moments, run, draws)
    return found[:, 0], found[:, 1], found[:, 2]


def _shares(
    fit: FitBase,
    run: Run,
    given: Collection[str],
    seen: Mapping[str, Any] | None,
    draws: Mapping[str, NDArray],
) -> tuple[NDArray, NDArray[np.bool_]]:
    """Label probabilities of new rows, shape (draws, rows, clusters), and whether rows determined them."""

    def shares(trace: dict, layout: Any, owners: dict) -> Any:
        ((fn, value),) = finite_mixtures(trace).values()
        return fn.responsibilities(value)

    def weights(trace: dict, layout: Any, owners: dict) -> Any:
        ((fn, _),) = finite_mixtures(trace).values()
        return jax.nn.softmax(fn.labels.log_weights)

    prior = over_draws(fit, weights, fit.run, draws)[:, None]
    groups = next((r.name for r in run.signature.of_kind("groups") if r.name in given), None)
    rows = len(next(v for v in run.data.values() if isinstance(v, np.ndarray)))
    if groups is None:
        if seen is not None:
            raise TypeError("seen rows are of subjects, and the new rows name none")
        shape = (len(prior), rows, prior.shape[2])
        return np.broadcast_to(prior, shape), np.zeros(rows, bool)
    new = run.data[groups]
    share = np.repeat(prior, new.num_groups, axis=1)
    codes = known_groups(fit.run, run.data).get(groups, np.full(new.num_groups, -1))
    fitted = codes >= 0
    if fitted.any():
        share[:, fitted] = over_draws(fit, shares, fit.run, draws)[:, codes[fitted]]
    told = fitted.copy()
    if seen is not None:
        data = check_new(fit.run, (), seen)
        if groups not in data:
            raise TypeError(f"seen lacks {groups}: say of whom its rows are")
        again = known_groups(fit.run, data).get(groups, np.full(1, -1)) >= 0
        if again.any():
            name = data[groups].names.tolist()[np.argmax(again)]
            raise ValueError(
                f"seen has rows of {name!r}, which was fitted; pass rows of other {groups}, or fit again"
            )
        place = data[groups].codes_of(new.names)
        warn_of_reading_others(fit, data)
        found = over_draws(fit, shares, fit.run.with_data(data), draws)
        share[:, place >= 0] = found[:, place[place >= 0]]
        told |= place >= 0
    return share[:, new.codes], told[np.asarray(new.codes)]
