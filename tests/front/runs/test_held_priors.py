"""Priors that are set from the data are arguments of programs: other data of the same shapes share them."""

from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from sidebayes.guides.engines.plumbing.identity import structure
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.problem.declared import declared_blocks
from sidebayes.guides.engines.problem.density import (
    abstract_trace,
    log_joint,
    unconstrained_start,
)
from sidebayes.models.blocks.hazard_parameters import HazardParameters

import sidebayes as sb
from sidebayes.runs.arguments import read_run

CLIMB = sb.MAP(num_restarts=1, max_steps=2)


def tables(seed, num_subjects=6):
    """Three visits of each subject, and times until an event, all of them seen."""
    rng = np.random.default_rng(seed)
    who, year = np.repeat(np.arange(num_subjects), 3), np.tile([0.0, 0.5, 1.0], num_subjects)
    y = 2.0 + year + rng.normal(size=num_subjects)[who] + 0.3 * rng.normal(size=len(who))
    persons = pd.DataFrame({"who": np.arange(num_subjects), "born": 1950.0 + rng.normal(size=6)})
    persons = persons.assign(years=1.1 + rng.exponential(2.0, num_subjects), died=1)
    return pd.DataFrame({"who": who, "year": year, "y": y}), persons


def measures(seed):
    design = sb.design("y ~ year + (year | who)", tables(seed)[0])
    return {**design, "prior": sb.EffectsPrior.weak(*(design[n] for n in ("y", "fixed", "random")))}


def regressed(seed):
    return "mixed_effects", {**measures(seed), "form": "centred"}


def classed(seed):
    return "mixed_effects_mixture", {**measures(seed), "num_clusters": 2}


def timed(seed):
    table, persons = tables(seed)
    design = sb.design("y ~ year + (year | who)", table)
    return "joint_survival", design.survival("Surv(years, died) ~ born", persons, num_intervals=3)


def directed(seed):
    x = np.random.default_rng(seed).normal(size=(12, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return "sphere_mixture", {
        "x": x,
        "num_clusters": 2,
        "prior": sb.DirectionalPrior.empirical(x, 2),
    }


def problem_of(case, seed, **others):
    method, data = case(seed)
    run = read_run(method, (), {**data, **others}, None)
    with run.precision:
        return run.problem


@pytest.mark.parametrize("case", [regressed, classed, timed, directed])
def test_problems_of_other_data_have_one_structure(case):
    one, other = (problem_of(case, seed) for seed in (0, 1))
    assert structure(one) == structure(other)
    (leaves, tree), (others, same) = (jax.tree.flatten(problem.args) for problem in (one, other))
    assert tree == same
    assert list(map(jax.typeof, leaves)) == list(map(jax.typeof, others))
    assert any(isinstance(argument, sb.EffectsPrior | sb.DirectionalPrior) for argument in one.args)


@pytest.mark.parametrize("case", [regressed, classed, timed])
def test_fits_to_other_data_of_the_same_shapes_compile_nothing(case):
    found = []
    for seed in (0, 1):
        method, data = case(seed)
        with counted_compilations() as names:
            found.append(sb.fit(method, **data, engine=CLIMB, progress=False))
    assert names == []
    assert (found[0].params["noise"] != found[1].params["noise"]).all()


def test_the_density_is_that_of_the_numbers_as_constants():
    """Values and coordinates, where maps, cuts, level and scales are arguments of a program."""
    problem = problem_of(timed, 0, form="non_centred")
    data, held = problem.args[:-2], problem.args[-2:]
    start = {
        "coefficients": np.array([2.0, 1.0]),
        "deviation": np.array([0.8, 0.5]),
        "correlation_cholesky": np.array([[1.0, 0.0], [0.6, 0.8]]),
        "noise": np.array(0.3),
        "level": np.array(-1.0),
        "step_scale": np.array(0.4),
        "steps": np.array([0.3, -0.2]),
        "association": np.array([0.5, 0.1]),
        "log_hazard_ratios": np.array([0.2]),
        "white_effects": np.linspace(-1.0, 1.0, 12).reshape(6, 2),
    }

    def at(held):
        own = replace(problem, args=(*data, *held))
        return log_joint(own, start), unconstrained_start(own, start)

    with jax.enable_x64(True):
        found, wanted = jax.jit(at)(held), jax.jit(lambda: at(held))()
    assert [type(one) for one in held] == [sb.EffectsPrior, sb.HazardPrior]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, wanted)


def test_an_origin_far_from_the_covariates_is_pointed_out_before_a_fit():
    hazard = sb.HazardPrior([1.5, 2.5], -1.0)
    problem = problem_of(timed, 0, form="non_centred", hazard=hazard)
    with jax.enable_x64(True):
        (block,) = (
            block
            for block, _ in declared_blocks(abstract_trace(problem))
            if isinstance(block, HazardParameters)
        )
    with pytest.warns(sb.SideBayesWarning, match=r"far from HazardPrior\(origin=0\)"):
        block.check("time", None)
