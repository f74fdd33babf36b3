"""Copies of models of the library, which are a user's own: updates are compared with the density."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines import draw_checks
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.draw_checks import check_draws
from sidebayes.guides.engines.optimisers.edges_of_support import rising_at_edge
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.guides.engines.steps.starts import has_walls, initial_values
from sidebayes.guides.engines.steps.update_checks import check_updates
from sidebayes.guides.engines.steps.updates import block_of, is_ours, plan_updates
from sidebayes.models.blocks.block import Drawable
from sidebayes.models.feature_saliency import feature_saliency
from sidebayes.models.mixed_effects import mixed_effects
from sidebayes.models.mixed_effects_mixture import mixed_effects_mixture

import sidebayes as sb
from tests.support.fuzz.cards import CARD_CASES
from tests.support.fuzz.cases import CASES

SUBJECTS = np.repeat(np.arange(8), 4)
TIMES = np.tile(np.arange(4.0), 8)
RNG = np.random.default_rng(0)
LINES = np.where(SUBJECTS % 2, 3.0, -3.0) + RNG.normal(size=8)[SUBJECTS] + TIMES
ROWS = LINES + 0.3 * RNG.normal(size=32), np.c_[np.ones(32), TIMES], np.ones((32, 1)), SUBJECTS


def copied(model, **globals_of):
    """The same function, of another module, with some names changed."""
    names = {**model.__globals__, **globals_of, "__name__": "copied"}
    found = FunctionType(model.__code__, names, model.__name__, model.__defaults__)
    found.__kwdefaults__, found.__annotations__ = model.__kwdefaults__, model.__annotations__
    found.__module__ = "copied"
    return found


@pytest.mark.parametrize("form", ["restricted", "marginal"])
def test_updates_of_a_copy_of_mixed_effects_agree_with_its_density(form):
    args = *map(jnp.asarray, ROWS[:3]), sb.Groups(SUBJECTS)
    with jax.enable_x64(True):
        problem = Problem(copied(mixed_effects), args, {"form": form})
        assert not is_ours(problem)
        start = {name: value[0] for name, value in initial_values(problem, 0, 1).items()}
        check_updates(problem, plan_updates(problem), start)


@pytest.mark.parametrize("form", ["restricted", "marginal"])
def test_a_copy_of_mixed_effects_is_fitted_by_em(form):
    args = *map(jnp.asarray, ROWS[:3]), sb.Groups(SUBJECTS)
    with jax.enable_x64(True):
        ours, own = (
            sb.EM(num_restarts=1).run(Problem(model, args, {"form": form}), progress=False)
            for model in (mixed_effects, copied(mixed_effects))
        )
    np.testing.assert_array_equal(own.params["covariance"], ours.params["covariance"])


@pytest.mark.slow
def test_a_copy_of_their_mixture_is_fitted_by_em():
    fit = sb.fit(
        copied(mixed_effects_mixture),
        *ROWS,
        num_clusters=2,
        engine=sb.EM(num_restarts=1),
        progress=False,
    )
    assert fit.status.converged


@pytest.mark.parametrize(("name", "power"), [("scale_tril", 2.0), ("noise", 0.5)])
def test_parameters_that_are_changed_on_their_way_are_refused(name, power, monkeypatch):
    block = mixed_effects.__globals__["mixed_parameters"]

    def changed(*args, **options):
        found = block(*args, **options)
        sample = getattr(found, name)
        monkeypatch.setattr(found, name, lambda: power * sample())
        return found

    args = *map(jnp.asarray, ROWS[:3]), sb.Groups(SUBJECTS)
    with jax.enable_x64(True):
        problem = Problem(copied(mixed_effects, mixed_parameters=changed), args)
        with pytest.raises(ValueError, match="factor, noise contradicts the model's density"):
            sb.EM(num_restarts=1).run(problem, progress=False)


def test_an_unbounded_density_is_not_said_to_rise_where_an_engine_that_prunes_ended():
    with jax.enable_x64(True):
        x = jnp.asarray(RNG.normal(size=(20, 2)))
        problem = Problem(copied(feature_saliency), (x,), {"num_clusters": 2})
        assert has_walls(problem)
        assert rising_at_edge(problem, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in {**CASES, **CARD_CASES} if name[:4] == "fit."])
def test_updates_and_draws_of_copies_agree_with_their_density(case, monkeypatch):
    monkeypatch.setattr(draw_checks, "has_own_draws", lambda block: True)
    call, good, *_ = {**CASES, **CARD_CASES}[case]
    run = call(**good).run
    with run.precision:
        problem = replace(run, model=copied(run.model)).problem
        assert not is_ours(problem)
        start = {name: value[0] for name, value in initial_values(problem, 0, 1).items()}
        plan = plan_updates(problem)
        check_updates(problem, plan, start)
        drawn = [isinstance(block_of(abstract_trace(problem), p), Drawable) for p in plan.parts]
        parts = tuple(p for p, is_drawn in zip(plan.parts, drawn, strict=True) if is_drawn)
        check_draws(problem, plan._replace(parts=parts), start)
