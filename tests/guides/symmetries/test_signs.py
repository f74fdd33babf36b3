"""Sites that are known up to signs are judged by what the data tell, and drawn as one choice."""

from dataclasses import replace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import EngineResult, Problem, Status
from sidebayes.guides.engines.modes import Modes, modes_missed
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.guides.engines.symmetries.ends import distinct_ends
from sidebayes.guides.engines.symmetries.signs import with_one_sign

import sidebayes as sb
from sidebayes.runs.arguments import read_run
from tests.probes.models import factors
from tests.support.effects import simulate

DATA = simulate(num_subjects=12)


def result(draws, lp):
    return EngineResult("given", draws, {"lp": lp}, np.empty((0, 0)), Status(True, ""), {})


@pytest.mark.parametrize("form", ["restricted", "non_centred"])
def test_a_factor_takes_a_positive_diagonal_and_the_density_stays(form):
    given = DATA.y, DATA.x, DATA.x, DATA.subject
    run = sb.fit("mixed_effects", *given, engine="map", form="marginal", progress=False).run
    run = replace(run, options={**run.options, "form": form})
    rng = np.random.default_rng(1)
    with run.precision:
        shapes = {"factor": (3,), "noise": (), "coefficients": (2,), "white_effects": (12, 2)}
        if form == "restricted":
            shapes = {name: shapes[name] for name in ("factor", "noise")}
        draws = {n: np.abs(rng.normal(size=(2, 3, *s))) for n, s in shapes.items()}
        for name in draws.keys() - {"noise"}:
            draws[name] = draws[name] * rng.choice([-1, 1], size=draws[name].shape)
        found = with_one_sign(run.problem, result(draws, rng.normal(size=(2, 3)))).draws
        both = [
            jax.vmap(jax.vmap(lambda one: log_joint(run.problem, one)))(some)
            for some in (draws, found)
        ]
    np.testing.assert_allclose(*both, rtol=1e-10)
    assert (found["factor"][..., [0, 2]] >= 0).all()
    assert not np.allclose(found["factor"], draws["factor"])


def test_nuts_is_not_condemned_for_the_sign_of_a_factor():
    engine = sb.NUTS(num_warmup=300, num_samples=300, num_chains=4)
    data = simulate(num_subjects=12, deviations=(1.0, 0.3))
    found = sb.fit(
        "mixed_effects", data.y, data.x, data.x, data.subject, engine=engine, progress=False
    )
    second = found.tree["posterior"]["factor"][..., 2].to_numpy()
    assert np.abs(second.mean()) > 0.5 * np.sqrt(
        (second**2).mean()
    )  # its sign changes while chains run
    assert found.convergence["rhat"] < 1.05
    assert found.verdict[0] != "bad"


def loadings(x, *, kind="signs"):
    infer = {"event_dims": ["features", "factors"], "symmetry": {"factors": kind}}
    scale = np.array([2.0, 0.5])  # which no rotation leaves alone
    weights = numpyro.sample(
        "weights", dist.Normal(0.0, scale).expand([3, 2]).to_event(2), infer=infer
    )
    with numpyro.plate("points", len(x)):
        spread = dist.MultivariateNormal(np.zeros(3), weights @ weights.T + 0.1 * np.eye(3))
        numpyro.sample("x", spread, obs=x)


def test_a_model_of_ones_own_declares_signs():
    x = np.random.default_rng(0).normal(size=(60, 1)) * [1.0, -2.0, 1.5]
    x = x + 0.3 * np.random.default_rng(1).normal(size=x.shape)
    engine = sb.NUTS(num_warmup=200, num_samples=200, num_chains=4)
    found = sb.fit(loadings, x, engine=engine, init={"weights": 0.1 * np.eye(3, 2)}, progress=False)
    first = found.tree["posterior"]["weights"][..., 0].to_numpy()
    assert np.sign(first[..., 1]).std() == 0  # all draws agree
    assert np.abs(found.params["weights"][:, 0]).max() > 1.0


def test_signs_that_matter_are_refused():
    def shifted(x):
        infer = {"event_dims": ["features"], "symmetry": {"features": "signs"}}
        mean = numpyro.sample("mean", dist.Normal(1.0, 1.0).expand([2]).to_event(1), infer=infer)
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)

    with pytest.raises(ValueError, match="a change of signs of the axis 'features'"):
        sb.fit(shifted, np.ones((9, 2)) + np.eye(9, 2), engine="map", progress=False)
    with pytest.raises(ValueError, match="'signs'"):
        sb.fit(loadings, np.ones((9, 3)), kind="sign", engine="map", progress=False)


ALL = np.ones(3, bool)


def test_mirror_images_of_a_factor_are_one_mode_that_draws_reach():
    """Columns of the factor may change sign: of the three ends two are the same covariance."""
    given = DATA.y, DATA.x, DATA.x, DATA.subject
    run = read_run(
        "mixed_effects_mixture", given, {"num_clusters": 2, "shared": "covariance"}, None
    )
    factor = np.array([[1.5, 0.02, -0.37], [1.5, 0.02, 0.37], [1.5, 0.02, -0.2]])
    height = np.array([-1.0, -1.0, -1.5])
    with run.precision:
        found = distinct_ends(run.problem, height, ALL, {"factor": factor, "noise": np.ones(3)})
        assert str(found) == "2 distinct modes from 3 starts"
        assert found.sites["factor"].tolist() == [[1.5, 0.02, 0.37], [1.5, 0.02, 0.2]]
        draws = {"factor": factor[0] + np.random.default_rng(0).normal(0, 0.1, (2, 400, 3))}
        modes = Modes(height[:2], {"factor": factor[:2]}, 3)
        signed = with_one_sign(run.problem, replace(result(draws, np.ones((2, 400))), modes=modes))
    assert (signed.draws["factor"][..., 2] >= 0).all()
    assert modes_missed(signed.modes, signed.draws) is None


def test_signs_and_turns_that_models_declare_make_no_second_mode():
    rng, x = np.random.default_rng(0), np.ones((9, 3))
    ends = rng.normal(size=(3, 3, 2))
    ends[1] = ends[0] * [1.0, -1.0]
    signed = distinct_ends(Problem(loadings, (x,)), np.zeros(3), ALL, {"weights": ends})
    assert str(signed) == "2 distinct modes from 3 starts"
    ends[1] = ends[0] @ np.linalg.qr(rng.normal(size=(2, 2)))[0]
    problem = Problem(factors, (x,), {"num_dimensions": 2})
    turned = distinct_ends(problem, np.zeros(3), ALL, {"loadings": ends}, names=["loadings"])
    assert str(turned) == "2 distinct modes from 3 starts"


def test_modes_take_the_signs_that_draws_agree_in():
    """The highest mode lies where the draws do, whichever of the two signs both were found with."""
    weights = np.array([[2.0, 0.4], [-1.0, 0.3], [0.7, -0.5]])
    draws = {"weights": weights + np.random.default_rng(0).normal(0, 0.05, (2, 300, 3, 2))}
    modes = Modes(np.zeros(2), {"weights": np.stack([-weights, weights * [1.0, -1.0]])}, 2)
    given = replace(result(draws, np.ones((2, 300))), modes=modes)
    found = with_one_sign(Problem(loadings, (np.ones((9, 3)),)), given)
    np.testing.assert_allclose(found.modes.sites["weights"], [weights, weights])
