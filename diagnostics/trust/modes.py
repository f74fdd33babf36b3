"""Finds fits that hold a lower mode of a posterior than others do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sidebayes.guides.engines.modes import WITHOUT_PRIOR
from sidebayes.guides.engines.plumbing.identity import freeze

from ..fitted import Fitted
from ..names import quoted
from ..sites import tables_of
from .verdict import num_starts_at_best

__all__ = ["height", "lower_modes", "same_data", "same_question"]

_SAME = 1e-6
"""Relative difference of log joint densities that convergence may leave between runs."""


def same_data(fit: Fitted) -> tuple:
    """Key of the observed data, including known classes, which is equal for fits to the same data set.

    Parameters
    ----------
    fit : Fit
    """
    tables = sorted(tables_of(fit.tree, "observed_data").items())
    return tuple((values.shape, _content(values)) for _, values in tables)


def same_question(fit: Fitted) -> tuple:
    """Key of model, options, data and links, which is equal for fits that can be measured on each other.

    Parameters
    ----------
    fit : Fit
    """
    known = ("truth", "feature_names")
    arrays = [
        values
        for group in ("observed_data", "constant_data")
        for name, values in sorted(tables_of(fit.tree, group).items())
        if name not in known
    ]
    return (
        fit.method,
        fit.tree.attrs.get("sidebayes_identity") or _asked(fit),
        fit.tree.attrs.get("sidebayes_sets", ""),
        *map(_content, arrays),
    )


def _asked(fit: Fitted) -> Any:
    """Return model and options that have no name in another process; functions are compared by identity."""
    run = fit.run
    if run is None or run.model is None:
        return fit.tree.attrs.get("sidebayes_options", "")
    return freeze((run.model, run.stated))


def _content(values: Any) -> Any:
    array = values.to_numpy()
    if values.name == "truth":  # its classes are numbered as those that the model learns
        array = pd.factorize(pd.Series(array).where(array >= 0))[0]
    return tuple(array.ravel()) if array.dtype == object else array.tobytes()


def lower_modes(fits: Mapping[str, Fitted]) -> tuple[dict[str, str], list[str]]:
    """Return a sentence for every fit whose mode lies below that of another fit of the same posterior.

    Fits are comparable if their result is the maximum of the log joint density of the constrained
    parameters, as with EM, MAP and similar engines, for the same data, model, options, prior and
    approximation. Densities in unconstrained space differ from these by a Jacobian; bounds and costs are
    other quantities. A mode does not count as lower where only a prior that was read off the data prefers
    the other.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    lower : dict of str
        Sentences by fit; empty where all reached the same height.
    preferred : list of str
        Sentences on pairs of modes where only such a prior prefers the higher one.
    """
    heights = {name: found for name, fit in fits.items() if (found := height(fit)) is not None}
    keys = {name: (*same_question(fits[name]), fits[name].approximate) for name in heights}
    said, preferred = {}, []
    for name, own in heights.items():
        peers = [other for other in heights if keys[other] == keys[name]]
        best = max(peers, key=heights.__getitem__)
        top = heights[best]
        if top - own <= max(0.01, _SAME * (1 + abs(top))):
            continue
        likelier = _without_prior(fits[name]) - _without_prior(fits[best])
        if likelier > 0:
            preferred.append(
                f"{quoted(name)} and {quoted(best)} hold different modes: the log joint of {quoted(best)} is "
                f"higher by {top - own:.3g}, and without the prior, which was read off the data, that of "
                f"{quoted(name)} by {likelier:.3g}."
            )
        else:
            number, starts = num_starts_at_best(fits[best]), len(fits[best].objective)
            reached = f"{number} of {starts} start{'s' if starts > 1 else ''} of {quoted(best)}"
            said[name] = (
                f"{quoted(name)} holds a lower mode: log joint {own:.6g}, {top - own:.3g} below the "
                f"{top:.6g} that {reached} reached on the same posterior; start it there (init=) or add "
                "starts (num_restarts)."
            )
    return said, preferred


def _without_prior(fit: Fitted) -> float:
    """Log joint density of a mode without priors that were read off the data; NaN where there is none."""
    stats = fit.tree["sample_stats"]
    return stats[WITHOUT_PRIOR].item() if WITHOUT_PRIOR in stats else np.nan


def height(fit: Fitted) -> float | None:
    """Return the log joint density of a mode that can be compared; None for other results."""
    history: NDArray[np.float64] = np.asarray(fit.objective, float)
    info = fit.tree["fit_info"].attrs
    density = fit.tree["sample_stats"]["lp"].to_numpy()
    comparable = (
        density.size == 1
        and history.size
        and info["density_space"] == "constrained"
        and not fit.config.hard_labels
    )
    if not comparable:
        return None
    own = density.item()
    # the objective is the log joint itself
    return own if np.isclose(history, own, rtol=_SAME, atol=1e-3).any() else None
