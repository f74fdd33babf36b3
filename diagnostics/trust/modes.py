"""Fits that hold a lower mode of a posterior than others do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sidebayes.guides.engines.plumbing.identity import freeze

from ..fitted import Fitted
from ..names import quoted
from ..sites import tables_of
from .verdict import num_starts_at_best

__all__ = ["height", "lower_modes", "same_data", "same_question"]

_SAME = 1e-6
"""Difference of log joint densities, relative to their size, that convergence leaves between runs."""


def same_data(fit: Fitted) -> tuple:
    """Key of what was observed, known classes included: equal for fits to the same data set.

    Parameters
    ----------
    fit : Fit
    """
    tables = sorted(tables_of(fit.tree, "observed_data").items())
    return tuple((values.shape, _content(values)) for _, values in tables)


def same_question(fit: Fitted) -> tuple:
    """Key of model, options, data and links: equal for fits that can be measured on each other.

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
    # of what has no name in another process, functions that were given are the same by themselves
    model = fit.tree.attrs.get("sidebayes_identity") or freeze(getattr(fit.run, "model", None))
    return (
        fit.method,
        model,
        fit.tree.attrs.get("sidebayes_options", ""),
        fit.tree.attrs.get("sidebayes_sets", ""),
        *map(_content, arrays),
    )


def _content(values: Any) -> Any:
    array = values.to_numpy()
    return tuple(array.ravel()) if array.dtype == object else array.tobytes()


def lower_modes(fits: Mapping[str, Fitted]) -> dict[str, str]:
    """A sentence for every fit whose mode lies below that of another fit of the same posterior.

    Log joint densities are compared between fits whose answer is the point where the log joint
    density itself, of the constrained parameters, was highest: those of EM, MAP and their like to
    the same data, under the same model, options, prior and approximation. Densities in unconstrained
    space differ from these by a Jacobian, bounds and costs are other quantities.

    Parameters
    ----------
    fits : mapping of str to Fit

    Returns
    -------
    dict of str
        Empty where all reached the same height.
    """
    heights = {name: found for name, fit in fits.items() if (found := height(fit)) is not None}
    keys = {name: (*same_question(fits[name]), fits[name].approximate) for name in heights}
    said = {}
    for name, own in heights.items():
        peers = [other for other in heights if keys[other] == keys[name]]
        best = max(peers, key=heights.__getitem__)
        top = heights[best]
        if top - own > max(0.01, _SAME * (1 + abs(top))):
            number, starts = num_starts_at_best(fits[best]), len(fits[best].objective)
            reached = f"{number} of {starts} start{'s' if starts > 1 else ''} of {quoted(best)}"
            said[name] = (
                f"{quoted(name)} holds a lower mode: log joint {own:.6g}, {top - own:.3g} below the "
                f"{top:.6g} that {reached} reached on the same posterior; start it there (init=) or add "
                "starts (num_restarts)."
            )
    return said


def height(fit: Fitted) -> float | None:
    """Log joint density of a mode that can be compared; None for what is no such mode."""
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
    # what was climbed is the log joint itself
    return own if np.isclose(history, own, rtol=_SAME, atol=1e-3).any() else None
