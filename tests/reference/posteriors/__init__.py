"""Posteriors with known moments: names, and how to make each."""

from collections.abc import Callable

from . import hard, processes, regressions, series, zoo
from .known import KnownPosterior
from .long_runs import ASKED, long_run

__all__ = ["ASKED", "EXACT", "PUBLISHED", "KnownPosterior", "long_run"]

EXACT: dict[str, Callable[[], KnownPosterior]] = zoo.POSTERIORS | hard.POSTERIORS
"""Exact or by quadrature; they need no data."""

PUBLISHED: dict[str, Callable[[], KnownPosterior]] = (
    regressions.POSTERIORS | series.POSTERIORS | processes.POSTERIORS
)
"""Of posteriordb; their data are found through SIDEBAYES_DATA."""
