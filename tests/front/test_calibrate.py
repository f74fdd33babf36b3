"""Simulation-based calibration from the front door."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import EngineResult, FitError, Status
from sidebayes.models.ppc import ppc

from sidebayes import NUTS, GaussianPrior, Links, calibrate, flip_rate_weight
from sidebayes.sbc import _simulate

PRIOR = GaussianPrior(np.zeros(2), 0.05, 6.0, np.eye(2))


def shifted(x, *, num_points=None):
    """Normal data of unknown mean, written as a mixture of two equal components."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    both = dist.Normal(shift * jnp.ones((2, 1)), 1.0).to_event(1)
    with numpyro.plate("points", num_points if x is None else len(x)):
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), both), obs=x)


@dataclass(frozen=True)
class Conjugate:
    """Draws from the posterior of `shifted`, or from one that is too narrow."""

    spread: float = 1.0
    num_draws: int = 30
    name: ClassVar[str] = "conjugate"

    def run(self, problem, *, seed=0, init=None, progress=True):
        if not self.num_draws:
            raise FitError("broken")
        x = np.asarray(problem.args[0])
        size = len(x) + 1
        noise = np.random.default_rng(seed).normal(size=(2, self.num_draws))
        draws = {"shift": x.sum() / size + self.spread * noise / np.sqrt(size)}
        return EngineResult(
            self.name,
            draws,
            {"lp": np.zeros((2, self.num_draws))},
            np.empty((0, 0)),
            Status(True, "drawn"),
            {"compile": 0.0, "run": 0.0},
        )


def run(engine, **options):
    return calibrate(shifted, engine, num_points=5, num_simulations=25, progress=False, **options)


def test_exact_posterior_passes_and_a_narrow_one_fails():
    exact, narrow = run(Conjugate(), seed=1), run(Conjugate(0.4), seed=1)
    assert "shift" in exact.ranks
    assert "log_likelihood" in exact.ranks
    assert exact.calibrated, exact
    assert not narrow.calibrated
    assert narrow.table.loc["shift"].coverage_90 < 0.75
    assert str(narrow).startswith("shifted by conjugate: not calibrated")


def test_links_simulated_as_statements_are_right_as_often_as_they_say():
    links = Links.from_pairs([(0, 1), (2, 3), (4, 5)], [1, 0, 1], flip_rate_weight(0.2), 6)
    size = 400
    options = {"num_clusters": 2, "prior": PRIOR, "reading": "relation"}
    far = options | {"prior": GaussianPrior(np.zeros(2), 1e-6, 30.0, np.eye(2))}
    with jax.enable_x64(True):
        params, x, agree = _simulate(ppc, links, 6, far, size, 0)
        _, _, none = _simulate(ppc, links, 6, far | {"reading": "field"}, 10, 0)
    assert x.shape == (size, 6, 2)
    assert none is None
    # clusters are a thousand apart: the nearest mean is the label
    label = np.argmin(((x[:, :, None] - params["mean"][:, None]) ** 2).sum(axis=-1), axis=2)
    same = label[:, links.pairs[:, 0]] == label[:, links.pairs[:, 1]]
    wrong = (agree != same).mean()
    assert abs(wrong - 0.2) < 4 * np.sqrt(0.16 / (3 * size))


def test_bad_input():
    with pytest.raises(ValueError, match="gives 4 draws"):
        run(Conjugate(num_draws=2))
    with pytest.raises(TypeError, match="cannot simulate"):
        calibrate("soft_kmeans", "em", num_points=10, num_clusters=2)
    with pytest.raises(ValueError, match="num_simulations = 3"):
        calibrate(shifted, "nuts", num_points=5, num_simulations=3)
    with pytest.raises(FitError, match="all 25 fits failed"):
        run(Conjugate(num_draws=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "links", "options"),
    [
        ("gmm", None, {}),
        ("ppc", Links.from_pairs([(0, 1), (1, 2), (5, 9)], [1, 0, 1], 2.0, 30), {}),
        (
            "ppc",
            Links.from_pairs([(k, k + 7) for k in range(20)], True, 2.0, 30),
            {"reading": "relation", "flip_rate": "learned"},
        ),
        ("constrained_em", Links.from_pairs([(0, 1), (2, 3)], [1, 0], num_points=30), {}),
    ],
)
def test_cards_under_nuts(card, links, options):
    engine = NUTS(num_warmup=300, num_samples=300, num_chains=2)
    result = calibrate(
        card,
        engine,
        num_points=30,
        links=links,
        num_simulations=50,
        num_clusters=2,
        prior=PRIOR,
        progress=False,
        **options,
    )
    assert replace(result, level=0.01).calibrated, result
