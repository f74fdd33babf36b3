"""Correlations of random effects are a matrix wherever users read them, and their factor is named as one."""

import jax
import numpy as np
import pytest
from numpyro import handlers
from sidebayes.diagnostics.trust.estimates import estimate_tables
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.declared import site_dims, site_roles
from sidebayes.models.blocks.effects.densities.structure import Structure

import sidebayes as sb
from tests.support.draws import Told
from tests.support.effects import simulate

BLOCKS = {
    "full": {"correlation_cholesky": slice(0, 5)},
    (2, 1, 2): {"correlation_cholesky_0": slice(0, 2), "correlation_cholesky_2": slice(3, 5)},
}

OF_CARD = {
    "mixed_effects": {"form": "marginal"},
    "joint_survival": {"hazard": sb.HazardPrior([2.0], -1.0)},
    "mixed_effects_mixture": {"num_clusters": 3},
    "mixed_effects_mixture, shared": {"num_clusters": 3, "shared": "covariance"},
}


def problem(card, covariance):
    """A model with five random effects in a prior of other effects, which differ by a map."""
    rng = np.random.default_rng(0)
    name, rows = card.partition(",")[0], rng.normal(size=(12, 5))
    one = np.ones(5)
    prior = sb.EffectsPrior(
        0 * one, one, one, 1.0, random_map=np.triu(np.full((5, 5), 0.3)) + np.eye(5)
    )
    times = [np.arange(1.0, 5.0)] * (name == "joint_survival")
    given = rng.normal(size=12), rows, rows, sb.Groups(np.repeat(np.arange(4), 3)), *times
    options = {"prior": prior, "covariance": covariance, **OF_CARD[card]}
    return Problem(sb.CARDS[name].model, given, options)


@pytest.mark.parametrize("covariance", BLOCKS, ids=str)
@pytest.mark.parametrize("card", OF_CARD)
def test_correlations_are_those_of_the_covariance(card, covariance):
    with jax.enable_x64(True):
        one = problem(card, covariance)

        @jax.jit
        def drawn(key):
            trace = handlers.trace(handlers.seed(one.model, key)).get_trace(*one.args, **one.kwargs)
            return {name: site["value"] for name, site in trace.items() if site["type"] != "plate"}

        value = jax.tree.map(np.asarray, drawn(jax.random.key(0)))
        dims, roles = site_dims(one), site_roles(one)
    found = value["correlation"]
    classes = ("clusters",) * ("num_clusters" in OF_CARD[card])
    assert dims["correlation"] == dims["covariance"] == (*classes, "effects", "effects_1")
    assert roles["correlation"] == "correlation"
    assert (np.diagonal(found, axis1=-2, axis2=-1) == 1.0).all()  # exactly, so that nothing varies
    np.testing.assert_allclose(found, found.swapaxes(-1, -2), rtol=1e-14)

    spread = np.sqrt(np.diagonal(value["covariance"], axis1=-2, axis2=-1))[..., None]
    np.testing.assert_allclose(
        value["covariance"], found * spread * spread.swapaxes(-1, -2), rtol=1e-12
    )

    factors = {name for name in value if name.startswith("correlation_")}
    assert factors == set(BLOCKS[covariance])
    of_prior = np.zeros(found.shape) + np.eye(5)
    for name, block in BLOCKS[covariance].items():
        of_prior[..., block, block] = value[name] @ value[name].swapaxes(-1, -2)
    scale = value["deviation"][..., None]
    to_prior = one.kwargs["prior"].map_of(Structure.read(covariance, 5))
    np.testing.assert_allclose(
        to_prior @ value["covariance"] @ to_prior.T,
        of_prior * scale * scale.swapaxes(-1, -2),
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.fixture(scope="module")
def fitted():
    """Two chains of sixty draws near known parameters, and what the model computes of them."""
    data, size, rng = simulate(), (2, 60), np.random.default_rng(0)
    given = data.y, data.x, data.x, sb.Groups(data.subject)
    prior = sb.EffectsPrior.weak(data.y, data.x, data.x)
    angle, zero = 0.4 + 0.1 * rng.normal(size=size), np.zeros(size)
    rows = [np.ones(size), zero], [np.sin(angle), np.cos(angle)]
    values = {
        "coefficients": [2.0, -1.0] + 0.1 * rng.normal(size=(*size, 2)),
        "deviation": np.exp(0.1 * rng.normal(size=(*size, 2))),
        "correlation_cholesky": np.stack([np.stack(row, axis=-1) for row in rows], axis=-2),
        "noise": 0.5 * np.exp(0.1 * rng.normal(size=size)),
    }
    options = {"form": "marginal", "prior": prior}

    def sites(values):
        model = handlers.seed(handlers.substitute(sb.CARDS["mixed_effects"].model, values), 0)
        trace = handlers.trace(model).get_trace(*given, **options)
        kept = {name: site for name, site in trace.items() if not site.get("is_observed")}
        return {name: site["value"] for name, site in kept.items() if site["type"] != "plate"}

    with jax.enable_x64(True):
        draws = jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(sites)))(values))
    return sb.fit("mixed_effects", *given, engine=Told(draws), progress=False, **options)


def test_what_users_read_of_draws(fitted):
    own, covariance = fitted.params["correlation"], fitted.params["covariance"]
    np.testing.assert_array_equal(np.diag(own), [1.0, 1.0])
    assert own[0, 1] == own[1, 0] != 0
    table = fitted.summary()
    assert (table.loc["correlation[0, 1]"] == table.loc["correlation[1, 0]"]).all()
    assert table.loc["correlation[1, 1]", "mean"] == table.loc["correlation[0, 0]", "mean"] == 1.0
    assert table.loc["correlation_cholesky[0, 1]", "mean"] == 0.0
    assert np.isfinite(fitted.convergence["rhat"])  # entries that are constant do not count
    spread = estimate_tables(fitted)["Standard deviations and correlations"]
    assert spread.index.tolist() == ["sd of 0", "sd of 1", "correlation of 0 and 1", "noise"]
    np.testing.assert_allclose(spread["estimate"].iloc[0], np.sqrt(covariance[0, 0]), rtol=0.05)


def test_values_are_given_of_the_factor(fitted):
    start = {name: fitted.params[name] for name in fitted.params if name != "correlation_cholesky"}
    data, options = tuple(fitted.run.data.values()), fitted.run.options
    with pytest.raises(ValueError, match=r"init lacks \['correlation_cholesky'\]"):
        sb.fit("mixed_effects", *data, **options, engine="map", init=start, progress=False)
