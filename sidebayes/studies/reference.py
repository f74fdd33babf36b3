"""A posterior the long way: several samplers, from two starts, until they agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import Any

from sidebayes.diagnostics.comparison.measure import measure
from sidebayes.guides.engines.base import FitError
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites
from sidebayes.guides.engines.problem.honoured import is_improper
from sidebayes.guides.engines.samplers.from_prior.nested import NestedSlice
from sidebayes.guides.engines.samplers.from_prior.smc import SMC
from sidebayes.guides.engines.samplers.mcmc import NUTS

from ..api import fit
from ..common.fields import Range, check_integer, check_number, check_seed
from ..results.fit import Fit

__all__ = ["reference"]

_RHAT = 1.005
"""Largest R-hat of the draws that are returned."""
_WITNESS = 1000.0
"""Effective draws of the samplers that have to agree."""
_FEWEST, _MOST = 2.0, 10.0
"""Factors by which a run is lengthened at a time."""
_SPREAD = 1.0
"""Standard deviation of the starts, in unconstrained units, where the prior cannot be drawn from."""
_ALIKE = ("reference", "agrees")


def reference(
    method: str | Callable[..., None],
    *data: Any,
    ess: float = 10_000,
    max_draws: int = 100_000,
    seed: int = 0,
    progress: bool = True,
    **arguments: Any,
) -> Fit:
    """Sample a posterior until two samplers with separate starts agree, to measure fits against.

    NUTS starts at a mode, and runs until R-hat is below 1.005 and it has `ess` effective draws.
    Sequential Monte Carlo starts at draws of the prior, and runs until it has 1,000. Where a prior
    is improper, NUTS starts again from points spread about the mode. If NUTS and sequential Monte
    Carlo differ, for example because the posterior has several modes, nested sampling starts at the
    prior too. If it agrees with sequential Monte Carlo, the latter is run on to `ess`.

    Parameters
    ----------
    method, *data, **arguments
        As for `sidebayes.fit`, without ``engine``.
    ess : float
        Number of effective draws, for every parameter, whatever the numbering of clusters.
    max_draws : int
        Maximum number of draws per chain, or of particles per run, of any sampler.
    seed : int
    progress : bool

    Returns
    -------
    Fit
        `sidebayes.compare` measures other fits of this posterior against it, also after `Fit.save` and
        `sidebayes.load`. ``fit.tree["fit_info"].attrs["reference"]`` says which samplers agreed.

    Raises
    ------
    FitError
        If a sampler does not reach these numbers within `max_draws`, or no two samplers agree.
    TypeError, ValueError
        For bad input, as for `sidebayes.fit`.
    """
    if "engine" in arguments:
        raise TypeError("engine cannot be given: reference chooses the samplers")
    ess = check_number("ess", ess, Range(least=400))
    most = check_integer("max_draws", max_draws, 1000)
    run = partial(fit, method, *data, progress=progress, **arguments)
    seed = check_seed(seed)
    mode = _long_enough(lambda n: run(engine=NUTS(num_samples=n), seed=seed), 2000, ess, most)
    fits = {"NUTS from a mode": mode}
    if _has_proper_prior(mode):

        def by_particles(number: int) -> Fit:
            return run(engine=SMC(num_particles=number), seed=seed + 1)

        prior = _long_enough(by_particles, 1000, _WITNESS, most)
        fits["SMC from the prior"] = prior
        difference = _difference(fits)
        if not difference:
            return _marked(mode, fits)
        nested = run(engine=NestedSlice(), seed=seed + 2)
        others = {"SMC": prior, "nested sampling from the prior": nested}
        if not _difference(others):
            size = prior.config.num_particles  # type: ignore[attr-defined]
            return _marked(_long_enough(by_particles, size, ess, most), others)
    else:
        start = NUTS(num_samples=2000, jitter=_SPREAD)
        fits["NUTS from spread starts"] = run(engine=start, seed=seed + 1)
        difference = _difference(fits)
        if not difference:
            return _marked(mode, fits)
    raise FitError(f"no reference: {difference}", mode.params)


def _long_enough(run: Callable[[int], Fit], number: int, ess: float, most: int) -> Fit:
    """Run with ever more draws, until they are as many effective ones as asked."""
    while True:
        found = run(number)
        got = found.convergence
        if got["rhat"] <= _RHAT and got["ess"] >= ess:
            return found
        if number >= most:
            raise FitError(
                f"no reference: {found.engine} has R-hat {got['rhat']:.3f} and {got['ess']:.0f} effective "
                f"draws from max_draws = {most}; {_RHAT} and {ess:.0f} are asked. Raise max_draws, or "
                "reparametrise the model",
                found.params,
            )
        factor = min(max(1.2 * ess / max(got["ess"], 1.0), _FEWEST), _MOST)
        number = min(ceil(number * factor), most)


def _has_proper_prior(found: Fit) -> bool:
    with found.run.precision:
        sites = latent_sites(abstract_trace(found.run.problem)).values()
    return not any(is_improper(site["fn"]) for site in sites)


def _difference(fits: Mapping[str, Fit]) -> str:
    """What tells two fits apart; empty if they agree."""
    rows, notes = measure(fits)
    if all(row["trust"] in _ALIKE for row in rows.values()):
        return ""
    shifted = next((row for row in rows.values() if row.get("shift_of")), None)
    apart = (
        f"{' and '.join(fits)} differ in {shifted['shift_of']} by {shifted['shift']:.2f} posterior standard "
        "deviations"
        if shifted
        else f"{' and '.join(fits)} cannot be compared"
    )
    return f"{apart}. {' '.join(notes)}".strip()


def _marked(found: Fit, alike: Mapping[str, Fit]) -> Fit:
    found.tree["fit_info"].attrs["reference"] = f"{' and '.join(alike)} agree"
    return found
