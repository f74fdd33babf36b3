"""Fits of known parameters, and moments of what is drawn from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from sidebayes.guides.engines.base import Engine, EngineResult, Status

import sidebayes as sb
from sidebayes.runs import execution

CHAINS, DRAWS = 20, 200


@dataclass(frozen=True)
class Told(Engine):
    """Returns the draws that it is told, each of shape (chain, draw, ...)."""

    draws: dict
    name: ClassVar[str] = "told"

    def run(self, problem, *, seed=0, init=None, progress=True):
        first = next(iter(self.draws.values()))
        return EngineResult(
            engine=self.name,
            draws=dict(self.draws),
            sample_stats={"lp": np.zeros(first.shape[:2])},
            objective=np.zeros((0, 0)),
            status=Status(True, "told"),
            seconds={"compile": 0.0, "run": 0.0},
        )


@dataclass(frozen=True)
class Pruned(Told):
    """Knows parameters of a density without bound."""

    prunes: ClassVar[bool] = True


class AtStart(Engine):
    """Returns the parameters that it is told to start at, at a single draw."""

    name: ClassVar[str] = "told"

    def run(self, problem, *, seed=0, init=None, progress=True):
        return at_one(init).run(problem)


class Asked(Exception):
    """Carries what an engine was asked to fit, and where to start."""

    def __init__(self, problem, init=None):
        super().__init__("asked")
        self.problem, self.init = problem, init


class Asking(Engine):
    """Says what it is asked to fit, and fits nothing."""

    name: ClassVar[str] = "asking"

    def run(self, problem, *, seed=0, init=None, progress=True):
        raise Asked(problem, init)


def told(model, given, params, **options):
    """Fit that knows its parameters, the same at each of 4000 draws, which miss the posterior."""
    arrays = {name: np.asarray(value, float) for name, value in params.items()}
    draws = {n: np.broadcast_to(v, (CHAINS, DRAWS, *v.shape)) for n, v in arrays.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "mass_elsewhere", lambda *given: None)
        return sb.fit(model, *given, engine=Told(draws), progress=False, **options)


def at_one(params):
    """Engine that knows the parameters, at a single draw."""
    return Told({name: np.asarray(value, float)[None, None] for name, value in params.items()})


def values(tree, group, site):
    """Draws of a site, chains one after another."""
    drawn = tree[group][site].to_numpy()
    return drawn.reshape(-1, *drawn.shape[2:])


def assert_moments(drawn, mean, cov):
    """Mean and covariance of draws, within four and a half Monte Carlo standard errors."""
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - mean) < 4.5 * error).all()
    away = drawn - mean
    products = away[:, :, None] * away[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(products.mean(axis=0) - cov) < 4.5 * error).all()
