"""Small programs for tests of the store."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing import programs
from sidebayes.guides.engines.plumbing.programs import compiled, counted_compilations


def entries(folder):
    return sorted(folder.glob("*.program"))


def forget():
    """Only what is on disk is known, as in a new process."""
    programs._programs.clear()
    jax.clear_caches()


def run(model, *args):
    """Value of a model that is nothing but a function, and whether it had to be compiled."""
    args = tuple(map(jnp.float32, args))
    with counted_compilations() as names:
        program, _ = compiled("toy", Problem(model, ()), None, lambda bare: bare.model, *args)
    return np.asarray(program(*args)).tolist(), names == ["toy"]


def twice(a):
    return 2 * jnp.sin(a)
