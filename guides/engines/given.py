"""Turns draws that were made elsewhere into the result of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from sidebayes.common.magnitudes import listed
from sidebayes.common.warnings import warn_user

from .base import Engine, EngineResult, Problem, Status
from .invariance import Untested, contradiction
from .plumbing.programs import compiled
from .problem.declared import approximation
from .problem.density import deterministics, place, sum_log_prob, unconstrained_start
from .problem.posterior import latent_shapes

__all__ = ["GivenDraws", "effective_of_copies", "given_result"]

_ROUNDING = 1e-3
"""Relative difference from what the model computes that is put down to rounding of the draws."""


@dataclass(frozen=True)
class GivenDraws(Engine):
    """Stands in for the engine of a fit whose draws were made elsewhere; it cannot be run again.

    Parameters
    ----------
    by : str
        What made the draws.
    num_samples : int
        Number of further draws, of which there are none.
    """

    by: str = "elsewhere"
    num_samples: int = 0

    name: ClassVar[str] = "given"
    length: ClassVar[str] = "num_samples"

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Refuse to run: there are no more draws."""
        raise ValueError(
            "the draws of this fit were made elsewhere, so that nothing can be fitted again; fit the model "
            "by an engine, such as sidebayes.fit(..., engine='nuts')"
        )


def given_result(
    problem: Problem, draws: Mapping[str, NDArray], diverging: NDArray | None, by: str
) -> EngineResult:
    """Make the result of an engine from draws of the latent sites.

    Log densities and deterministic sites are computed at the draws. The status is not converged where
    the density contradicts the draws; see `contradiction`.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (chain, draw, ...)
        Only latent sites are used; deterministic ones are computed.
    diverging : ndarray of bool, shape (chain, draw), or None
    by : str
        What made the draws.

    Raises
    ------
    ValueError
        If a latent site is missing or of another shape, the numbers of chains and draws differ, or draws
        have zero density.

    Warns
    -----
    SideBayesWarning
        If draws hold variables that the model does not have, or values of deterministic sites that differ
        from those that it computes.
    """
    shapes = latent_shapes(problem)
    missing = sorted(shapes.keys() - draws.keys())
    if missing:
        raise ValueError(
            f"draws hold {sorted(draws)}, and no {missing}; the model has the sites {sorted(shapes)}, each "
            "of which needs draws of shape (chain, draw, ...) under its name"
        )
    latent = {name: np.asarray(draws[name], float) for name in shapes}
    chains = {value.shape[:2] for value in latent.values()}
    for name, value in latent.items():
        if len(chains) > 1 or value.shape[2:] != shapes[name]:
            raise ValueError(
                f"draws of {name!r} have shape {value.shape}; expected (chain, draw, "
                f"{', '.join(map(str, shapes[name]))}), chains and draws the same for all sites"
            )
    (size,) = chains
    flat = {n: v.reshape(-1, *v.shape[2:]) for n, v in latent.items()}

    def build(bare: Problem) -> Callable:
        def one(values: dict[str, Array], args: tuple) -> tuple[Array, dict[str, Array]]:
            free = unconstrained_start(bare, values, args)
            trace, jacobian = place(bare, free, args)
            return sum_log_prob(trace) + jacobian, deterministics(trace)

        return lambda values, args: jax.lax.map(lambda v: one(v, args), values)

    inputs = {n: jnp.asarray(v) for n, v in flat.items()}, problem.args
    program, _ = compiled("given", problem, None, build, *inputs, once=True)
    density, noted = program(*inputs)
    lp = np.asarray(density)
    bad = int((~np.isfinite(lp)).sum())
    if bad:
        raise ValueError(
            f"draws: the model gives {bad} of {lp.size} no density with these data; look whether they are of "
            "this model, of these data, and of its constrained sites"
        )
    derived = {n: np.asarray(v).reshape(*size, *v.shape[1:]) for n, v in noted.items()}
    _compare_others(draws, latent, derived)
    stats = {"lp": lp.reshape(size)}
    status, remarks = _tested(problem, latent, int(np.argmin(lp)) % size[1])
    return EngineResult(
        engine=by,
        draws=latent | derived,
        sample_stats=stats if diverging is None else stats | {"diverging": diverging},
        objective=np.empty((0, 0)),
        status=status,
        remarks=remarks,
        seconds={"compile": 0.0, "run": 0.0, "search": 0.0},
        approximate=approximation(problem),
        density_space="unconstrained",
        effective_draws=effective_of_copies(latent),
    )


def effective_of_copies(draws: Mapping[str, NDArray]) -> float | None:
    """Effective number of draws that were resampled by weights, by how often each is there; else None.

    A sampler that rejects a proposal repeats a draw at once, as autocorrelations show; only resampling
    brings a draw back later.

    Parameters
    ----------
    draws : mapping of str to ndarray, shape (chain, draw, ...)
    """
    flat = [v.reshape(*v.shape[:2], -1) for v in draws.values() if v.dtype.kind == "f" and v.size]
    if not flat:
        return None
    rows = np.concatenate(flat, axis=2)
    first = np.ones(rows.shape[:2], bool)
    first[:, 1:] = (rows[:, 1:] != rows[:, :-1]).any(axis=2)
    times = np.unique(rows[first], axis=0, return_counts=True)[1]
    if times.max() == 1:
        return None
    return float(first.size * times.sum() / np.square(times).sum())


def _compare_others(
    draws: Mapping[str, NDArray], latent: Mapping[str, NDArray], derived: Mapping[str, NDArray]
) -> None:
    """Warn of variables beside the latent sites that the model lacks, or computes as other values."""
    unknown = sorted(draws.keys() - latent.keys() - derived.keys())
    if unknown:
        warn_user(
            f"draws hold {listed(unknown)}, no latent or deterministic site of the model, and nothing is "
            f"read of them; the model has the sites {sorted(latent.keys() | derived.keys())}, so look "
            "whether the draws are of this model and its names are spelled alike"
        )
    other = sorted(n for n in draws.keys() & derived.keys() if _differ(draws[n], derived[n]))
    if other:
        warn_user(
            f"draws hold values of {listed(other)} that the model computes otherwise from the draws of its "
            "latent sites, and what it computes is kept; look whether the draws are of this model, these "
            "data and these options"
        )


def _differ(given: NDArray, computed: NDArray) -> bool:
    """Return whether values differ by more than rounding, on average over draws."""
    if given.shape != computed.shape:
        return True
    finite = np.isfinite(computed)
    if (finite != np.isfinite(given)).any():
        return True
    given, computed = given[finite], computed[finite]
    return not np.abs(given - computed).sum() <= _ROUNDING * np.abs(computed).sum()


def _tested(
    problem: Problem, latent: Mapping[str, NDArray], among: int
) -> tuple[Status, tuple[str, ...]]:
    """Test draws against the density: a status, and a remark if they could not be tested."""
    chains, number = next(iter(latent.values())).shape[:2]
    said = f"{chains} x {number} draws that were made elsewhere"
    try:
        found = contradiction(problem, latent, among=among)
    except Untested as error:
        return Status(True, said), (f"They were not tested against the density, as {error}",)
    if not found:
        return Status(True, f"{said}; steps that keep the posterior keep their distribution"), ()
    return Status(
        False,
        f"{said}; they are no draws of this model at these data: steps that keep the posterior move "
        f"{found}; check data, their units, the order of rows and groups, options, and the sampler",
    ), ()
