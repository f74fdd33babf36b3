"""A posterior whose moments are known, and the arithmetic of moments on a grid."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Draws = Mapping[str, NDArray]
"""Sites by name, each of shape (chain, draw, ...)."""


def entries(draws: Draws) -> dict[str, NDArray]:
    """Every scalar of every site, named like ``beta[1]`` with indices from 1 as posteriordb does."""
    found = {}
    for name, values in draws.items():
        for index in product(*map(range, values.shape[2:])):
            label = "".join(f"[{i + 1}]" for i in index)
            found[f"{name}{label}"] = values[(..., *index)]
    return found


@dataclass(frozen=True, eq=False)
class KnownPosterior:
    """A model with its data, and what is known of its posterior.

    Attributes
    ----------
    model : callable or str
        NumPyro model, or the name of a card.
    data : tuple
        What `sidebayes.fit` takes by position.
    truth : mapping of str to (float, float)
        Mean and standard deviation of each functional.
    source : str
        "exact", "quadrature", "published draws" or "long run".
    options : mapping
        What `sidebayes.fit` takes by name.
    functionals : callable
        From draws of the sites to draws of the functionals; by default every scalar of every site.
    log_evidence : float, optional
    """

    model: Callable[..., None] | str
    data: tuple
    truth: Mapping[str, tuple[float, float]]
    source: str
    options: Mapping[str, Any] = field(default_factory=dict)
    functionals: Callable[[Draws], Mapping[str, NDArray]] = entries
    log_evidence: float | None = None

    def errors(self, draws: Draws) -> tuple[float, float, str]:
        """Largest error of a mean in standard deviations, and of a standard deviation as a share.

        Parameters
        ----------
        draws : mapping of str to ndarray, shape (chain, draw, ...)

        Returns
        -------
        (float, float, str)
            The third is the functional with the larger of the two, each measured in units of the
            error with which an answer counts as wrong.
        """
        found = self.functionals(draws)
        shifts = {n: abs(found[n].mean() - mean) / sd for n, (mean, sd) in self.truth.items()}
        spreads = {n: abs(found[n].std() / sd - 1.0) for n, (_, sd) in self.truth.items()}
        worst = max(self.truth, key=lambda name: max(shifts[name], spreads[name]))
        return max(shifts.values()), max(spreads.values()), worst


def on_grid(
    log_density: Callable[..., NDArray],
    axes: Mapping[str, NDArray],
    functionals: Mapping[str, Callable[..., NDArray]],
) -> tuple[dict[str, tuple[float, float]], float]:
    """Moments of functionals, and the log integral, by the trapezoid rule on a grid.

    Parameters
    ----------
    log_density : callable
        Of the parameters, in the order of `axes`, as arrays that broadcast.
    axes : mapping of str to ndarray
        Nodes of each parameter.
    functionals : mapping of str to callable
        Of the parameters in the same order.
    """
    values = np.meshgrid(*axes.values(), indexing="ij", sparse=True)
    log_weight = np.asarray(log_density(*values))
    for axis, nodes in enumerate(axes.values()):
        shape = [-1 if i == axis else 1 for i in range(len(axes))]
        log_weight = log_weight + np.log(_widths(nodes)).reshape(shape)
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    total = weight.sum()
    moments = {}
    for name, functional in functionals.items():
        value = functional(*values)
        mean = (weight * value).sum() / total
        moments[name] = float(mean), float(np.sqrt((weight * (value - mean) ** 2).sum() / total))
    return moments, float(top + np.log(total))


def _widths(nodes: NDArray) -> NDArray:
    gaps = np.diff(nodes)
    return (np.append(gaps, 0.0) + np.append(0.0, gaps)) / 2


def published(name: str) -> dict[str, Any]:
    """One record of posteriordb from the folder that SIDEBAYES_DATA names."""
    path = Path(os.environ["SIDEBAYES_DATA"]) / "posteriordb" / f"{name}.json"
    return json.loads(path.read_text())


def moments_of(record: Mapping[str, Any], key: str = "reference") -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each scalar of a record."""
    return {name: (one["mean"], one["sd"]) for name, one in record[key].items()}
