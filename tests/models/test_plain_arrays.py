"""Models run by NumPyro alone: groups and known classes may be plain arrays there."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from sidebayes.models.mixed_effects import mixed_effects
from sidebayes.models.mixed_effects_mixture import mixed_effects_mixture
from sidebayes.models.moe import moe
from sidebayes.models.pfgl import pfgl
from sidebayes.models.sphere_mixture import sphere_mixture
from sidebayes.models.trajectories import trajectories

from sidebayes import EffectsPrior, Groups, PartialLabels

RNG = np.random.default_rng(0)
SUBJECTS = np.repeat(np.arange(6), 3)
TIMES = np.tile(np.arange(3.0), 6)
Y, COLUMNS = RNG.normal(size=18), np.c_[np.ones(18), TIMES]
X, KNOWN = RNG.normal(size=(12, 2)), np.array([0, 1, -1] * 4)
DIRECTIONS = X / np.linalg.norm(X, axis=1, keepdims=True)
TWO = {"num_clusters": 2}
CLASSES = {**TWO, "num_classes": 2}
PRIOR = {"prior": EffectsPrior(mean=np.zeros(2), scale=np.ones(2), deviation=np.ones(2), noise=1.0)}
PROTOTYPES = {"prototypes": [(0, 0), (1, 1)]}
CASES = {
    "mixed_effects": (mixed_effects, (Y, COLUMNS, COLUMNS), "subjects", SUBJECTS, PRIOR),
    "their mixture": (
        mixed_effects_mixture,
        (Y, COLUMNS, COLUMNS),
        "subjects",
        SUBJECTS,
        PRIOR | TWO,
    ),
    "trajectories": (trajectories, (Y, TIMES), "subjects", SUBJECTS, TWO),
    "moe": (moe, (X,), "known", KNOWN, CLASSES),
    "pfgl": (pfgl, (X,), "known", KNOWN, CLASSES | PROTOTYPES),
    "sphere_mixture": (sphere_mixture, (DIRECTIONS,), "known", KNOWN, TWO),
}


@pytest.mark.parametrize("name", CASES)
def test_plain_arrays_are_groups_and_labels(name):
    model, data, argument, values, options = CASES[name]
    made = Groups(values) if argument == "subjects" else PartialLabels(values)

    def drawn():
        trace = handlers.trace(handlers.seed(model, 0)).get_trace(
            *data, **{argument: made}, **options
        )
        latent = (site for site in trace.values() if site["type"] == "sample")
        return {site["name"]: site["value"] for site in latent if not site["is_observed"]}

    def program(given):
        named = {argument: given} | options
        density = jax.make_jaxpr(lambda sites: log_density(model, data, named, sites)[0])
        return density(jax.eval_shape(drawn))

    plain, stated = program(values), program(made)
    assert str(plain) == str(stated)
    for one, other in zip(plain.consts, stated.consts, strict=True):
        np.testing.assert_array_equal(one, other)


def test_groups_that_compiled_code_is_given_are_refused():
    def density(subjects):
        return log_density(mixed_effects, (Y, COLUMNS, COLUMNS, subjects), PRIOR, {})[0]

    with pytest.raises(TypeError, match=r"pass sidebayes.Groups\(names\) in their place"):
        jax.jit(density)(SUBJECTS)
