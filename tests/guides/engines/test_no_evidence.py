"""Under an improper prior there is no evidence, and where weights are not to be trusted only a bound."""

from __future__ import annotations

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import FitError
from sidebayes.guides.engines.optimisers.moments import Judgement
from sidebayes.guides.engines.variational import pathfinder

import sidebayes as sb

Y = np.random.default_rng(5).normal(2, 1, 12)


def improper(y):
    m = numpyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
    s = numpyro.sample("s", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def proper(y):
    m = numpyro.sample("m", dist.Normal(0, 5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def spread(y):
    a = numpyro.sample("a", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(0, a), obs=y)


@pytest.mark.parametrize("engine", ["svi", "pathfinder"])
def test_the_status_states_none(engine):
    if engine == "pathfinder":
        pytest.importorskip("blackjax")
    found = sb.fit(improper, Y, engine=engine, progress=False)
    assert found.log_evidence is None
    assert "no evidence, as a prior is improper" in found.status.message
    assert "log evidence" not in found.status.message


def test_weights_of_a_heavy_tail_give_a_bound(monkeypatch):
    pytest.importorskip("blackjax")
    heavy = Judgement(True, "moments are right", even=False)
    monkeypatch.setattr(pathfinder, "judge_draws", lambda *_, **__: heavy)
    found = sb.fit(proper, Y, engine=sb.Pathfinder(num_paths=2), progress=False)
    assert found.log_evidence.kind == "bound"


def test_laplace_says_that_there_is_no_mode():
    with pytest.raises(FitError, match="grows without bound towards a = 0"):
        sb.fit(spread, np.zeros(6), engine=sb.Laplace(num_restarts=1), progress=False)
