"""Programs that fits share: found again for what is the same, made anew for what differs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled, counted_compilations, unchecked
from sidebayes.models.gmm import gmm

import sidebayes as sb
from tests.support.programs import twice


@dataclass(frozen=True)
class Base:
    """An engine of the user."""

    rate: float = 1.0

    def scaled(self, problem, factor=1.0):
        return lambda a: factor * self.rate * problem.model(a)


@dataclass(frozen=True)
class Damped(Base):
    """One with an option that its base does not know."""

    damping: float = 1.0

    def scaled(self, problem, factor=1.0):
        return lambda a: self.damping * super(Damped, self).scaled(problem, factor)(a)


def run(engine, **options):
    build = partial(engine.scaled, **options)
    program, _ = compiled("scaled", Problem(twice, ()), None, build, jnp.float32(1.0))
    return float(program(jnp.float32(1.0)))


def test_engines_of_the_user_that_differ_have_programs_of_their_own():
    unit = 2 * np.sin(1.0)
    assert run(Base()) == pytest.approx(unit)
    assert run(Base(rate=3.0)) == pytest.approx(3 * unit)
    assert run(Damped()) == pytest.approx(unit)
    assert run(Damped(damping=0.5)) == pytest.approx(unit / 2)
    with counted_compilations() as names:
        run(Damped(damping=0.5))
    assert not names


def test_coordinate_ascent_of_the_user_draws_its_own_way():
    @dataclass(frozen=True)
    class Still(sb.CoordinateAscent):
        """Every draw is the first one."""

        @staticmethod
        def _draws(plan, problem):
            draws = sb.CoordinateAscent()._draws(plan, problem)
            return lambda found, keys, *rest: draws(
                found, jnp.tile(keys[:1], (len(keys), 1)), *rest
            )

    x = sb.load_dataset("iris").x
    data = Problem(gmm, (jnp.asarray(x),), {"num_clusters": 2, "prior": PRIOR})
    free, still = (
        engine(num_restarts=1, max_steps=5, num_draws=3).run(data, progress=False)
        for engine in (sb.CoordinateAscent, Still)
    )
    assert np.ptp(free.draws["mean"], axis=1).max() > 0
    assert np.ptp(still.draws["mean"], axis=1).max() == 0


PRIOR = sb.GaussianPrior(np.zeros(4), 0.1, 6.0, np.eye(4))
X = np.array([[0.5], [1.0], [1.5]])
SHIFT = 0.0


def centred(mean):
    return mean + SHIFT


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    numpyro.sample("x", dist.Normal(centred(mean), 1.0), obs=x)


def fitted(model):
    return sb.fit(model, X, engine=sb.MAP(num_restarts=1), progress=False)


def mean_of(model):
    return float(fitted(model).params["mean"])


@pytest.mark.parametrize(
    ("change", "shift"),
    [({"SHIFT": 0.5}, 0.5), ({"centred": lambda mean: mean - 0.25}, -0.25)],
)
def test_a_model_is_fitted_with_what_it_refers_to_now(change, shift, monkeypatch):
    """A constant or a helper that was changed after a fit, as in another cell of a notebook."""
    before = mean_of(model)
    with counted_compilations() as names:
        assert mean_of(model) == before
    assert not names
    for name, value in change.items():
        monkeypatch.setitem(globals(), name, value)
    assert mean_of(model) == pytest.approx(before - shift, abs=0.01)


@pytest.mark.parametrize("handler", [handlers.scale(scale=3.0), handlers.seed(rng_seed=0)])
def test_a_handler_around_a_fit_is_refused(handler):
    """Programs are shared with fits outside of it; given to the model it does what it should."""
    before = mean_of(model)
    with (
        handler,
        pytest.raises(
            sb.FitError, match=r"handlers\.s\w+ is active around this.*give it the model"
        ),
    ):
        mean_of(model)
    assert mean_of(model) == before
    one, three = fitted(model), fitted(handlers.scale(model, scale=3.0))
    assert np.nanmax(three.objective) == pytest.approx(3 * np.nanmax(one.objective), rel=1e-4)


def test_accelerators_round_no_factor_of_a_product(monkeypatch):
    """Of matrices in single precision, unless the user asks for that."""
    with unchecked():
        assert jax.config.jax_default_matmul_precision is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with unchecked():
        assert "HIGHEST" in jax.jit(jnp.matmul).lower(jnp.eye(2), jnp.eye(2)).as_text()
    with jax.default_matmul_precision("tensorfloat32"), unchecked():
        assert jax.config.jax_default_matmul_precision == "tensorfloat32"
