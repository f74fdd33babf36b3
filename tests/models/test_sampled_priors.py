"""Priors and numbers of blocks may be values of other sites: the density is that at the same numbers."""

from dataclasses import replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import unchecked
from sidebayes.guides.engines.problem.density import (
    filled,
    filling,
    latent_sites,
    log_joint,
    traced,
)
from sidebayes.models.blocks.directional.directional_prior import DirectionalPrior
from sidebayes.models.blocks.roles import Held
from sidebayes.models.joint_survival import joint_survival
from sidebayes.models.mixed_effects import mixed_effects
from sidebayes.models.moe import moe
from sidebayes.models.ppc import ppc
from sidebayes.models.sphere_mixture import sphere_mixture
from sidebayes.models.trajectories import trajectories

import sidebayes as sb
from tests.support.draws import at_one

RNG = np.random.default_rng(0)
GROUPS = sb.Groups(np.repeat(np.arange(6), 4))
T = np.tile(np.linspace(0.0, 1.0, 4), 6)
DESIGN = np.column_stack([np.ones(24), T])
Y = 1 + 2 * T + RNG.normal(size=6)[GROUPS.codes] + 0.3 * RNG.normal(size=24)
TIME, EVENT = RNG.exponential(2.0, 6).clip(0.1, 3.0), np.arange(6) % 2.0
X = RNG.normal(size=(24, 2)) + np.where(np.arange(24)[:, None] % 2, 2.0, -2.0)
UNIT = X / np.linalg.norm(X, axis=1, keepdims=True)
KNOWN = sb.PartialLabels(np.where(np.arange(24) % 3, -1, np.arange(24) % 2))
EFFECTS = sb.EffectsPrior(np.zeros(2), np.ones(2), np.ones(2), 1.0)
AT = 1.3

MODELS = {
    "effects, scale": lambda a: mixed_effects(
        Y, DESIGN, DESIGN, GROUPS,
        prior=sb.EffectsPrior(jnp.zeros(2), a * jnp.ones(2), np.ones(2), 1.0),
    ),
    "effects, all": lambda a: mixed_effects(
        Y, DESIGN, DESIGN, GROUPS,
        prior=sb.EffectsPrior([a, 0.0], [2.0, a], [a, a], a, a, np.array([[1, 0.5], [0, 1]])),
    ),
    "hazard, association": lambda a: joint_survival(
        Y, DESIGN, DESIGN, GROUPS, TIME, EVENT,
        prior=EFFECTS, hazard=sb.HazardPrior((1.0,), -1.0, association=a),
    ),
    "hazard, all": lambda a: joint_survival(
        Y, DESIGN, DESIGN, GROUPS, TIME, EVENT, DESIGN[:6],
        prior=EFFECTS, hazard=sb.HazardPrior((1.0,), a, a, a, [a, 2.0], a, [a, 0.0]),
    ),
    "sphere, df": lambda a: sphere_mixture(UNIT, num_clusters=2, prior=DirectionalPrior(a, 5.0)),
    "sphere, scale": lambda a: sphere_mixture(
        UNIT, num_clusters=2, prior=DirectionalPrior(3.0, a), family="von_mises_fisher"
    ),
    "classes": lambda a: moe(
        X, KNOWN, num_clusters=2, num_classes=2,
        class_concentration=[a, 1.0], label_noise=a / (3 + a),
    ),
    "fixed weights": lambda a: ppc(
        X, num_clusters=2, weights=[a / (1 + a), 1 / (1 + a)], reading="relation"
    ),
} | {
    f"curves, {name}": lambda a, name=name: trajectories(
        Y, T, GROUPS, num_clusters=2,
        **{"length_scale": 0.3, "amplitude": 1.0, "noise": 0.3, name: a},
    )
    for name in ("length_scale", "amplitude", "noise", "concentration")
}  # fmt: skip


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", MODELS)
def test_density_is_that_at_the_same_numbers(name):
    def sampled():
        MODELS[name](numpyro.sample("a", dist.LogNormal(0.0, 0.5)))

    def fixed():
        MODELS[name](AT)

    rng = np.random.default_rng(0)
    fill = filling(lambda shape: jnp.asarray(rng.uniform(-1.0, 1.0, shape)))

    @jax.jit
    def both(a):
        with unchecked():
            trace = traced(filled(fixed, fill), (), {})
        values = {n: site["value"] for n, site in latent_sites(trace).items()}
        own = log_joint(Problem(fixed, ()), values) + dist.LogNormal(0.0, 0.5).log_prob(a)
        return log_joint(Problem(sampled, ()), values | {"a": a}), own

    np.testing.assert_allclose(*both(AT), rtol=1e-10)


def test_updates_are_those_of_the_prior_that_is_sampled():
    def directions(x: Annotated[ArrayLike, "points features"]):
        df = 2.0 + numpyro.sample("df", dist.LogNormal(0.0, 0.5))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
        sphere_mixture(x, num_clusters=2, prior=DirectionalPrior(df, scale))

    em, climb = (
        sb.fit(directions, UNIT, engine=engine(num_restarts=2), progress=False)
        for engine in (sb.EM, sb.MAP)
    )
    np.testing.assert_allclose(np.nanmax(em.objective), np.nanmax(climb.objective), atol=1e-4)
    assert em.params["df"] == pytest.approx(climb.params["df"], rel=1e-2)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda a: sb.HazardPrior(jnp.stack([a]), -1.0), "cuts"),
        (
            lambda a: sb.EffectsPrior([0.0], [1.0], [1.0], 1.0, random_map=a * jnp.eye(1)),
            "random_map",
        ),
    ],
)
def test_what_has_to_be_known_is_named(make, name):
    said = f"{name}.* has to be known before; pass numbers, or leave Held.. out"
    with pytest.raises(TypeError, match=said):
        jax.eval_shape(lambda a: make(a) and a, 1.0)


def sampled_association(spread, hazard):
    numpyro.deterministic("a", replace(hazard, association=spread * jnp.ones(2)).association)


def test_a_prior_with_a_sampled_field_is_made_of_one_that_is_an_option():
    """Its cuts have to be known, and those of an option that programs take as an argument are not."""

    def held(y: Annotated[ArrayLike, "rows"], *, hazard: Annotated[sb.HazardPrior, Held()]):
        sampled_association(numpyro.sample("spread", dist.HalfNormal(2.0)), hazard)
        numpyro.sample("y", dist.Normal(0.0, 1.0).expand([4]).to_event(1), obs=y)

    def free(y: Annotated[ArrayLike, "rows"], *, hazard: sb.HazardPrior):
        held(y, hazard=hazard)

    hazard, engine = sb.HazardPrior([1.0], -1.0), at_one({"spread": 0.5, "a": [0.5, 0.5]})
    given = {"hazard": hazard, "engine": engine, "progress": False}
    sb.fit(free, np.zeros(4), **given)
    with pytest.raises(TypeError, match=r"HazardPrior\(cuts=...\) .* leave Held\(\) out of"):
        sb.fit(held, np.zeros(4), **given)
