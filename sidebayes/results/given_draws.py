"""Fits of draws that were made elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sidebayes.diagnostics.elsewhere import made_by, matched_by_name, read_draws
from sidebayes.diagnostics.symmetry.matched import MatchedDraws
from sidebayes.guides.engines.given import GivenDraws
from sidebayes.guides.engines.problem.declared import site_dims
from sidebayes.guides.engines.problem.posterior import latent_shapes

from ..runs.arguments import read_run
from ..runs.execution import describe_given
from ..runs.run import Run
from ..runs.stored import coordinates

__all__ = ["described"]


def described(
    model: str | Callable[..., None], data: Any, draws: Any, arguments: Mapping[str, Any]
) -> tuple[Run, MatchedDraws]:
    """Run and described draws; see `Fit.from_draws`."""
    named = dict(data) if isinstance(data, Mapping) else {}
    given = () if named else data if isinstance(data, tuple) else (data,)
    run = read_run(model, given, {**named, **arguments}, GivenDraws())
    with run.precision:
        dims, names = site_dims(run.problem), coordinates(run)
        computed = dims.keys() - latent_shapes(run.problem).keys()
    tree = read_draws(draws, computed=computed)
    run = replace(run, engine=GivenDraws(made_by(tree)))
    sites = matched_by_name(tree["posterior"].to_dataset(), dims, names)
    told = "sample_stats" in tree and "diverging" in tree["sample_stats"]
    diverging = tree["sample_stats"]["diverging"].to_numpy() if told else None
    return run, describe_given(run, sites, diverging)
