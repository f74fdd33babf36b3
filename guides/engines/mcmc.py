"""Markov chain Monte Carlo over continuous parameters, labels summed out."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC
from numpyro.infer import NUTS as Kernel

from .base import EngineResult, Problem, Status, check_positive
from .density import approximation, as_numpy, initial_values, latent_supports, unconstrain

__all__ = ["NUTS"]

_FIELDS = {
    "potential_energy": "lp",
    "diverging": "diverging",
    "energy": "energy",
    "accept_prob": "acceptance_rate",
    "num_steps": "n_steps",
    "adapt_state.step_size": "step_size",
}


@dataclass(frozen=True)
class NUTS:
    """No-U-turn sampler (Hoffman and Gelman 2014), through NumPyro.

    Chains start around `init`, a mode found by EM say, each moved at random in unconstrained space.

    Parameters
    ----------
    num_warmup, num_samples, num_chains : int
    target_accept : float
    max_tree_depth : int
    jitter : float
        Standard deviation of the move from `init`, in unconstrained units.
    """

    num_warmup: int = 1000
    num_samples: int = 1000
    num_chains: int = 4
    target_accept: float = 0.8
    max_tree_depth: int = 10
    jitter: float = 0.05
    name: ClassVar[str] = "nuts"

    def __post_init__(self) -> None:
        check_positive(
            self,
            num_warmup=1,
            num_samples=1,
            num_chains=1,
            target_accept=0.0,
            max_tree_depth=1,
            jitter=0.0,
        )
        if not self.target_accept < 1:
            raise ValueError(f"NUTS(target_accept={self.target_accept!r}): expected a number < 1")

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Sample; see `Engine.run`."""
        approximate = approximation(problem)
        supports = latent_supports(problem)
        key_init, key_jitter, key_run = jax.random.split(jax.random.key(seed), 3)
        if init is None:
            starts = initial_values(problem, key_init, self.num_chains)
            free = jax.vmap(lambda v: unconstrain(supports, v))(starts)
        else:
            point = unconstrain(supports, init)
            free = {
                name: value
                + self.jitter
                * jax.random.normal(
                    jax.random.fold_in(key_jitter, number), (self.num_chains, *jnp.shape(value))
                )
                for number, (name, value) in enumerate(sorted(point.items()))
            }
        if self.num_chains == 1:
            free = {name: value[0] for name, value in free.items()}
        kernel = Kernel(
            lambda *args: problem.model(*args, **problem.kwargs),
            target_accept_prob=self.target_accept,
            max_tree_depth=self.max_tree_depth,
        )
        sampler = MCMC(
            kernel,
            num_warmup=self.num_warmup,
            num_samples=self.num_samples,
            num_chains=self.num_chains,
            chain_method="vectorized",
            progress_bar=progress and sys.stderr.isatty(),
        )
        began = time.perf_counter()
        sampler.run(key_run, *problem.args, init_params=free, extra_fields=tuple(_FIELDS))
        draws = as_numpy(sampler.get_samples(group_by_chain=True))
        seconds = {"compile": 0.0, "run": time.perf_counter() - began}
        extra = as_numpy(sampler.get_extra_fields(group_by_chain=True))
        stats = {name: extra[field] for field, name in _FIELDS.items()}
        stats["lp"] = -stats["lp"]
        stats["reached_max_tree_depth"] = stats["n_steps"] >= 2**self.max_tree_depth - 1
        divergences = int(stats["diverging"].sum())
        share = divergences / stats["diverging"].size
        message = f"NUTS drew {self.num_chains} x {self.num_samples} with {divergences} divergences"
        if divergences:
            message += "; raise target_accept, or check the prior for a funnel"
        return EngineResult(
            engine=self.name,
            draws=draws,
            sample_stats=stats,
            objective=np.zeros((0, 0)),
            status=Status(share < 0.01, message),
            seconds=seconds,
            approximate=approximate,
            density_space="unconstrained",
        )
