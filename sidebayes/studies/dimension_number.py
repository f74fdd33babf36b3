"""Choice of the number of dimensions of a map: by evidence, or by points that are left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.guides.engines.base import Engine, FitError, SideBayesWarning

from ..api import fit
from ..common.fields import check_seed
from ..common.magnitudes import counted, shown
from ..common.warnings import warn_user
from ..results.fit import Fit
from ..results.positions import WIDE
from ..tasks import Task, run_tasks
from .choice import NumberChoice, evidence_columns, read_numbers

__all__ = ["DimensionChoice", "select_dimensions"]


@dataclass(frozen=True, repr=False)
class DimensionChoice(NumberChoice):
    """Result of `select_dimensions`.

    Attributes
    ----------
    fit : Fit
        The fit with the chosen number of dimensions.
    path : DataFrame
        A row for every number of dimensions tried: ``log_evidence``, its ``standard_error``, NaN
        where it is not known, and whether this ``evidence`` is an estimate or a lower bound;
        ``elpd``, the expected log predictive density of points left out, with the standard error
        ``difference_se`` of its difference from the best one; ``wide``, the number of points for
        which the draws are too narrow to tell; the typical ``noise``, relative to a distance unless
        noise is "normal", and whether it is the one ``chosen``.
    edge : str
        Why the choice may lie outside the numbers that were tried; empty where it lies between others.
    doubts : str
        Why another of these numbers may be the right one; empty if there is no reason.
    """

    what: ClassVar[str] = "dimensions"

    @property
    def num_dimensions(self) -> int:
        """Number of dimensions chosen."""
        return self.number


def select_dimensions(
    *data: Any,
    num_dimensions: Sequence[int] = (1, 2, 3, 4),
    criterion: Literal["evidence", "loo"] = "evidence",
    engine: str | Engine = "laplace",
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = True,
    **arguments: Any,
) -> DimensionChoice:
    """Fit `geodesic_embedding` with several numbers of dimensions, and choose one.

    Parameters
    ----------
    *data
        Data as for `sidebayes.fit`.
    num_dimensions : sequence of int
        Numbers to try.
    criterion : {"evidence", "loo"}
        "evidence" takes the largest `Fit.log_evidence`; "loo" takes the fewest dimensions whose
        `Fit.loo_points` is at most one standard error of the difference below the best. If ``wide``
        counts many points, use the evidence.
    engine : str or engine
        An engine that draws; for criterion "evidence", one that estimates the evidence.
    seed : int
    n_jobs : int, optional
        Number of fits to run in parallel; by default one, or as ``joblib.parallel_config`` sets it.
        The result is the same.
    progress : bool
    **arguments
        Arguments of `sidebayes.fit`, such as ``distances=`` or ``num_neighbors=6``. All fits have the
        same data and, by default, prior scales at which mean squared distances are those of the data.

    Returns
    -------
    DimensionChoice

    Notes
    -----
    On a line, points cannot pass one another while distances are fitted. A fit in one dimension
    therefore often ends in a poor mode, and two dimensions are chosen where one is true. Check
    whether the map in two dimensions is a curve.

    Raises
    ------
    ValueError
        For bad input, or an engine without draws or evidence.
    FitError
        If no number of dimensions has a fit; the others are left out with a warning.

    References
    ----------
    Oh and Raftery (2001), section 4, choose by an approximation of the evidence. The rule of one standard
    error is that of Breiman, Friedman, Olshen and Stone (1984), Classification and Regression Trees.
    """
    tried = read_numbers("num_dimensions", num_dimensions, "range(1, 5)")
    if not isinstance(criterion, str) or criterion not in ("loo", "evidence"):
        raise ValueError(f"criterion = {shown(criterion)}; expected 'loo' or 'evidence'")
    if surplus := sorted(arguments.keys() & {"num_dimensions", "method"}):
        raise TypeError(f"{surplus} cannot be given: select_dimensions chooses them")
    run = partial(fit, "geodesic_embedding", *data, engine=engine, seed=check_seed(seed))
    tasks = (Task(counted(number, "dimension"), number) for number in tried)
    results = run_tasks(
        _scored,
        tasks,
        partial(run, progress=False, **arguments),
        n_jobs=n_jobs,
        title="dimensions",
        total=len(tried),
        progress=progress,
    )
    fits: dict[int, Fit] = {}
    rows: dict[int, dict[str, Any]] = {}
    by_point: dict[int, NDArray[np.float64]] = {}
    lost: dict[int, FitError] = {}
    for number, result in zip(tried, results, strict=True):
        if isinstance(result, FitError):
            lost[number], rows[number] = result, {}
            continue
        found, scores = result
        fits[number], by_point[number] = found, scores["elpd"].to_numpy()
        rows[number] = {
            **evidence_columns(found.log_evidence),
            "elpd": scores["elpd"].sum(),
            "wide": int((~(scores["pareto_k"] <= WIDE)).sum()),
            "noise": float(np.sqrt(found.params["noise_variance"])),
        }
    if not fits:
        raise FitError(f"no number of dimensions has a fit, the last one for: {lost[tried[-1]]}")
    for number, error in lost.items():
        warn_user(f"num_dimensions = {number} has no fit, and is left out: {error}")
    path = pd.DataFrame.from_dict(rows, orient="index").rename_axis("num_dimensions")
    best = by_point[tried[int(path["elpd"].argmax())]]
    errors = {n: np.sqrt(len(best)) * np.std(best - own) for n, own in by_point.items()}
    path.insert(4, "difference_se", pd.Series(errors))
    if criterion == "evidence" and path["log_evidence"].isna().all():
        raise ValueError(
            f"engine {shown(engine)} has no evidence; use 'laplace', or criterion='loo'"
        )
    if criterion == "loo":
        near = path["elpd"] + path["difference_se"] >= path["elpd"].max()
        chosen = tried[int(near.argmax())]
    else:
        chosen = tried[int(path["log_evidence"].argmax())]
    path = path.assign(chosen=path.index == chosen)
    return DimensionChoice.of(fits[chosen], path, argument="num_dimensions")


def _scored(run: Callable[..., Fit], number: int) -> tuple[Fit, pd.DataFrame] | FitError:
    try:
        found = run(num_dimensions=number)
    except FitError as error:
        return error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SideBayesWarning)  # counted in the table
        return found, found.loo_points()
