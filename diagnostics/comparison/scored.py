"""What the scores of fits are of: scores of other data, statements or units cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..fitted import Fitted
from ..sites import tables_of

__all__ = ["Scored", "why_apart"]


class Scored(NamedTuple):
    """Key of what the likelihood of a fit is of.

    Attributes
    ----------
    data
        Values of the observed sites.
    beside : tuple of (str, str)
        What is stated beside them and is part of the density, such as known classes, by kind.
    units : tuple of bytes
        What leaving out leaves out.
    links : tuple of bytes
        Where they tie points to one unit.
    """

    data: object
    beside: tuple[tuple[str, str], ...]
    units: tuple[bytes, ...]
    links: tuple[bytes, ...]

    @classmethod
    def of(cls, fit: Fitted) -> Scored:
        """Read it off the tree of a fit."""
        constant = fit.tree["constant_data"]
        about = fit.tree["log_likelihood"].attrs if "log_likelihood" in fit.tree else {}
        units = [v.to_numpy() for n, v in constant.data_vars.items() if str(n).startswith("unit")]
        observed = about.get("scored") or tuple(
            values.to_numpy().tobytes()
            if values.dtype != object
            else tuple(values.to_numpy().ravel())
            for name, values in sorted(tables_of(fit.tree, "observed_data").items())
            if name != "truth"
        )
        tied = any(len(np.unique(unit)) < len(unit) for unit in units)
        return cls(
            observed,
            tuple(sorted(json.loads(about.get("beside", "{}")).items())),
            tuple(unit.tobytes() for unit in units),
            tuple(constant[n].to_numpy().tobytes() for n in ("links", "link_weights") if tied),
        )


def why_apart(keys: Iterable[Scored], *, drawn: bool = True) -> tuple[str, str]:
    """Why scores cannot be compared, "data", "units" or what else is scored, and what to do about it.

    Modes, where `drawn` is false, have no draws to weight, and are scored by folds.
    """
    found = list(keys)
    if len({key.data for key in found}) > 1:
        return "data", "fit the same outcomes, in the same units, to compare them"
    stated = {one for key in found for one in key.beside}
    kinds = sorted({one[0] for one in stated if any(one not in key.beside for key in found)})
    if all(kind.startswith("links") for kind in kinds):
        score = ".loo" if drawn else ".kfold"
        remedy = "(unit='row') scores rows without their links, so that fits with any links compare"
        return _of_links(found), score + remedy
    remedy = f"give all fits the same {' and '.join(kinds)}"
    if "known classes" in kinds:
        remedy += (
            ", or compare .log_prob(x) of rows that none of them has seen, which is the density of the rows "
            "alone"
        )
    return " and ".join(kinds), remedy


def _of_links(keys: Iterable[Scored]) -> str:
    """What differs between scores of the same data and known classes."""
    found = list(keys)
    if len({key.units for key in found}) > 1:
        return "units"
    kinds = {tuple(kind for kind, _ in key.beside) for key in found}
    return "readings of links" if len(kinds) > 1 else "links"
