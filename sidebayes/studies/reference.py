"""A posterior the long way: several samplers, from two starts, until they agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, inf
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
_APART, _NO_CLOSER = 1.05, 0.75
"""R-hat above which chains disagree, and the share of R-hat - 1 above which more draws do not help."""
_ACCEPT = 0.8, 0.95, 0.99
"""Values of `target_accept`: the next one where trajectories diverge."""
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

    NUTS starts at a mode, and runs until R-hat is below 1.005 and it has `ess` effective draws. Where
    trajectories diverge, it draws anew with `target_accept` raised from 0.8 to 0.95, and to 0.99.
    Sequential Monte Carlo starts at draws of the prior, and runs until it has 1,000. Where a prior
    is improper, NUTS starts again from points spread about the mode. If NUTS and sequential Monte
    Carlo differ, or chains of NUTS do not mix, for example because the posterior has several modes,
    nested sampling starts at the prior too. If it agrees with sequential Monte Carlo, the latter is
    run on to `ess`.

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
    chains = _Chains(run)
    mode = _lengthened(partial(chains.draw, seed=seed), 2000, ess, most, stop_apart=True)
    if mode.convergence["rhat"] <= _APART:
        _check_length(mode, ess, most)
    fits = {_from_mode(mode): mode}
    if not _has_proper_prior(mode):
        spread = chains.draw(min(2000, most), seed=seed + 1, jitter=_SPREAD)
        fits["NUTS from spread starts"] = spread
        difference = _difference(fits)
        if not difference:
            return _marked(mode, fits)
        proper = "Make all priors proper, so that samplers can start at draws of them"
        raise FitError(f"no reference: {difference} {proper}", mode.params)

    def by_particles(number: int) -> Fit:
        return run(engine=SMC(num_particles=number), seed=seed + 1)

    prior = _lengthened(by_particles, 1000, _WITNESS, most)
    _check_length(prior, _WITNESS, most)
    fits["SMC from the prior"] = prior
    difference = _difference(fits)
    if not difference:
        return _marked(mode, fits)
    nested = run(engine=NestedSlice(), seed=seed + 2)
    others = {"SMC": prior, "nested sampling from the prior": nested}
    also = _difference(others)
    if also:
        raise FitError(f"no reference: {difference} {also}", mode.params)
    size = prior.config.num_particles  # type: ignore[attr-defined]
    found = _lengthened(by_particles, size, ess, most)
    _check_length(found, ess, most)
    return _marked(found, others)


class _Chains:
    """Chains of NUTS, drawn anew with a higher `target_accept` where trajectories diverge."""

    def __init__(self, run: Callable[..., Fit]):
        self.run, self.accepts = run, [*_ACCEPT]

    def draw(self, number: int, *, seed: int, jitter: float = NUTS.jitter) -> Fit:
        while True:
            engine = NUTS(num_samples=number, target_accept=self.accepts[0], jitter=jitter)
            found = self.run(engine=engine, seed=seed)
            if len(self.accepts) == 1 or not found.tree["sample_stats"]["diverging"].any():
                return found
            del self.accepts[0]


def _from_mode(found: Fit) -> str:
    """Name of the chains that start at a mode, with the `target_accept` that they needed."""
    accept = found.config.target_accept  # type: ignore[attr-defined]
    raised = f" at target_accept = {accept}" if accept > _ACCEPT[0] else ""
    return f"NUTS from a mode{raised}"


def _lengthened(
    run: Callable[[int], Fit], number: int, ess: float, most: int, *, stop_apart: bool = False
) -> Fit:
    """Run with ever more draws, until they are as many effective ones as asked, or `most`.

    With `stop_apart`, end too where chains disagree and more draws bring them no closer.
    """
    number, apart = min(number, most), inf
    while True:
        found = run(number)
        rhat, got = found.convergence["rhat"], found.convergence["ess"]
        if (rhat <= _RHAT and got >= ess) or number >= most:
            return found
        longest = _MOST
        if stop_apart and rhat > _APART:
            if rhat - 1 > _NO_CLOSER * apart:
                return found
            apart, longest = rhat - 1, _FEWEST
        factor = min(max(1.2 * ess / max(got, 1.0), _FEWEST), longest)
        number = min(ceil(number * factor), most)


def _check_length(found: Fit, ess: float, most: int) -> None:
    """Refuse runs that ended before they had the draws that are asked."""
    rhat, got = found.convergence["rhat"], found.convergence["ess"]
    if rhat > _RHAT or got < ess:
        raise FitError(
            f"no reference: {found.engine} has R-hat {rhat:.3f} and {got:.0f} effective draws from max_draws "
            f"= {most} per chain; {_RHAT} and {ess:.0f} are asked. Raise max_draws, or reparametrise the "
            "model",
            found.params,
        )


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
    bad = [_of_itself(name, fit) for name, fit in fits.items() if fit.verdict[0] == "bad"]
    return " ".join([f"{apart}.", *bad[:1], *notes])  # the same is the matter with both


def _of_itself(name: str, fit: Fit) -> str:
    """The verdict on one fit by its own run."""
    return f"{name}: {fit.verdict[1]}"


def _marked(found: Fit, alike: Mapping[str, Fit]) -> Fit:
    found.tree["fit_info"].attrs["reference"] = f"{' and '.join(alike)} agree"
    return found
