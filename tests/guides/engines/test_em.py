"""EM: Fisher's identity, closed against generic steps, monotone ascent, restarts, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.plumbing.identity import structure
from sidebayes.guides.engines.problem.density import log_joint, trace_model
from sidebayes.guides.engines.steps.surrogate import expectation, linearised
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.weights import match_moments
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.gmm import gmm
from sklearn.datasets import load_iris

import sidebayes
from tests.support.basics import best_trace, closed_step, ppc_problem, slope_in_simplex

X, Y = load_iris(return_X_y=True)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def pairs_of_iris(num_pairs, weight=np.inf, seed=0):
    pairs = np.random.default_rng(seed).permutation(150)[: 2 * num_pairs].reshape(-1, 2)
    return Links.from_pairs(pairs, Y[pairs[:, 0]] == Y[pairs[:, 1]], weight, 150)


def random_params(covariance, flip_rate=False, seed=0):
    rng = np.random.default_rng(seed)
    params = {"weights": rng.dirichlet([5.0, 5.0]), "mean": X[rng.integers(150, size=2)]}
    factors = rng.normal(size=(2, 4, 6))
    full = factors @ factors.transpose(0, 2, 1) / 6
    params |= {
        "full": {"covariance": full},
        "tied": {"covariance": full[0]},
        "diagonal": {"variance": np.diagonal(full, axis1=1, axis2=2)},
        "spherical": {"variance": full[:, 0, 0]},
    }[covariance]
    if flip_rate:
        params["flip_rate"] = 0.2
    return {name: jnp.asarray(value) for name, value in params.items()}


OPTIONS = [
    *({"covariance": c, "prior": "empirical"} for c in ("full", "tied", "diagonal", "spherical")),
    *({"covariance": c, "prior": "flat"} for c in ("full", "tied", "diagonal", "spherical")),
    {"weight_per": "chunklet"},
    {"reading": "relation", "flip_rate": "learned"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o.values()))
def test_fisher_identity_and_closed_step(options):
    """At the current parameters Q and the log joint have one slope; at the closed step Q is flat."""
    links = pairs_of_iris(8, weight=1.5) + Links.must_link([(3, 4)]) + Links.cannot_link([(3, 99)])
    problem = ppc_problem(X, links, num_clusters=2, concentration=1.5, **options)
    start = random_params(options.get("covariance", "full"), "flip_rate" in options)

    @jax.jit
    def slopes(start, args):
        value, posterior = expectation(problem, start, args)

        def q(params):
            return linearised(trace_model(problem, params, args), posterior)

        def joint(params):
            return log_joint(problem, params, args)

        new = closed_step(problem, start, posterior, args)
        both = {name: jnp.stack([value, new[name]]) for name, value in start.items()}
        of_q = jax.lax.map(jax.grad(q), both)
        return value, *jax.value_and_grad(joint)(start), of_q, new

    value, exact, of_joint, both, new = jax.device_get(slopes(start, problem.args))
    of_q, at_new = ({name: slope[n] for name, slope in both.items()} for n in (0, 1))
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    for name in start:
        np.testing.assert_allclose(of_q[name], of_joint[name], rtol=1e-9, atol=1e-8)
    assert set(new) == set(start)
    at_new["weights"] = slope_in_simplex(at_new["weights"], new["weights"])
    for name in start:
        np.testing.assert_allclose(at_new[name], 0.0, atol=1e-6)


@pytest.mark.parametrize("weight_per", ["point", "chunklet"])
def test_exact_em_never_falls_and_ends_stationary(weight_per):
    """Check 9, and that a fixed point of EM is a stationary point of the log joint."""
    links = pairs_of_iris(20, weight=2.0) + Links.must_link([(0, 1), (1, 2)])
    links = links + Links.cannot_link([(0, 140), (50, 149)])
    problem = ppc_problem(X, links, num_clusters=3, weight_per=weight_per)
    result = EM(num_restarts=3, tol=1e-13, max_steps=2000).run(problem)
    assert result.status.converged
    assert np.nanmin(np.diff(result.objective, axis=1)) > -1e-8
    params = {name: jnp.asarray(value) for name, value in result.params.items()}
    slope = jax.jit(jax.grad(lambda p, args: log_joint(problem, p, args)))(params, problem.args)
    np.testing.assert_allclose(slope["mean"], 0.0, atol=2e-3)
    along = slope_in_simplex(slope["weights"], params["weights"])
    np.testing.assert_allclose(along, 0.0, atol=2e-3)
    again = EM(tol=1e-13).run(problem, init=result.params)
    for name, value in params.items():
        np.testing.assert_allclose(again.params[name], value, atol=1e-5)


def test_generic_and_closed_steps_reach_one_mode():
    links = pairs_of_iris(20, weight=2.0)
    engine = EM(tol=1e-11, num_inner_steps=15)
    closed = ppc_problem(X, links, num_clusters=2, covariance="tied")
    start = EM(num_restarts=1, max_steps=2).run(closed).params
    found = engine.run(closed, init=start)
    generic = engine.run(
        ppc_problem(X, links, closed=False, num_clusters=2, covariance="tied"), init=start
    )
    assert np.nanmin(np.diff(generic.objective)) > -1e-8
    np.testing.assert_allclose(best_trace(generic)[-1], best_trace(found)[-1], atol=1e-5)
    for name, value in found.params.items():
        np.testing.assert_allclose(generic.params[name], value, atol=2e-3)


def test_any_numpyro_mixture_can_be_fitted():
    """NumPyro's own MixtureSameFamily, with another site observed beside it."""

    def model(x, count):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("clusters", 2):
            rate = numpyro.sample("rate", dist.Gamma(1.0, 0.1))
        numpyro.sample("count", dist.Poisson(rate[0]), obs=count)
        mixture = dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Exponential(rate))
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", mixture, obs=x)

    rng = np.random.default_rng(0)
    x = np.concatenate([rng.exponential(1 / 9.0, 300), rng.exponential(2.0, 300)])
    problem = Problem(model, (jnp.asarray(x), 9.0))
    result = EM(tol=1e-9, num_restarts=4).run(problem)
    assert np.nanmin(np.diff(result.objective, axis=1)) > -1e-8
    slow, quick = np.sort(result.params["rate"])
    assert abs(quick - 9.0) < 2.5
    assert abs(slow - 0.5) < 0.1
    slope = jax.jit(jax.grad(lambda rate: log_joint(problem, {**result.params, "rate": rate})))(
        jnp.asarray(result.params["rate"])
    )
    np.testing.assert_allclose(slope, 0.0, atol=0.02)


def test_weights_step_matches_moments():
    """Check 8: moments match, a constant in log weights is free, BFGS agrees."""
    weights = np.array([1.2, -0.7, 2.0, np.inf, -np.inf])
    graph = LabelGraph.build(Links(np.arange(10).reshape(5, 2), weights, 12), 12)
    count = jnp.asarray(12 * np.random.default_rng(0).dirichlet(np.full(3, 4.0)))

    @jax.jit
    def log_omega(log_weights):
        return partition.log_partition(jnp.zeros((12, 3)), graph, log_weights)

    found = jax.jit(lambda n: match_moments(n, jnp.log(jnp.full(3, 1 / 3)), log_omega))(count)
    slope = jax.jit(jax.grad(log_omega))
    np.testing.assert_allclose(slope(jnp.log(found)), count, atol=1e-8)
    eta = jnp.array([0.3, -1.1, 0.4])
    np.testing.assert_allclose(
        count @ (eta + 1.7) - log_omega(eta + 1.7), count @ eta - log_omega(eta)
    )
    solution = minimize(
        lambda e: float(log_omega(e) - count @ e),
        np.zeros(3),
        jac=lambda e: np.asarray(slope(e) - count),
    )
    np.testing.assert_allclose(found, jax.nn.softmax(solution.x), atol=1e-5)


def test_when_every_point_is_in_a_hard_pair_weights_are_root_counts():
    graph = LabelGraph.build(Links.must_link(np.arange(12).reshape(6, 2)), 12)
    count = jnp.array([8.0, 3.0, 1.0])
    step = jax.jit(
        lambda n: match_moments(
            n,
            jnp.log(jnp.full(3, 1 / 3)),
            lambda w: partition.log_partition(jnp.zeros((12, 3)), graph, w),
        )
    )
    np.testing.assert_allclose(step(count), jnp.sqrt(count) / jnp.sqrt(count).sum(), atol=1e-8)


def test_moment_matching_from_a_far_start():
    """Newton halves its steps; without links the answer is the mode of the Dirichlet."""
    count = jnp.array([97.0, 2.0, 1e-3])
    start = jnp.log(jnp.array([1e-8, 1e-3, 1.0]))
    step = jax.jit(lambda n: match_moments(n, start, lambda w: 99.001 * jax.nn.logsumexp(w), 2.0))
    np.testing.assert_allclose(step(count), (count + 1) / (count + 1).sum(), rtol=1e-6)


FEW_STEPS = EM(num_restarts=2, max_steps=3)


def test_a_second_fit_of_equal_shapes_does_not_compile():
    given = {"num_clusters": 2, "covariance": "spherical"}
    first = ppc_problem(X, pairs_of_iris(5, 1.0), prior=_prior(1.0), **given)
    second = ppc_problem(X + 0.1, pairs_of_iris(5, 3.0), prior=_prior(1.0), **given)
    assert FEW_STEPS.run(first).seconds["compile"] > 0
    again = EM(num_restarts=2, max_steps=3, tol=1e-3).run(second)
    assert again.seconds["compile"] == 0
    other = ppc_problem(X, pairs_of_iris(5, 1.0), prior=_prior(2.0), **given)
    assert structure(first) == structure(second) != structure(other)
    fresh = FEW_STEPS.run(first)
    assert fresh.sample_stats["lp"] != again.sample_stats["lp"]


def test_same_seed_same_result():
    given = {"num_clusters": 2, "covariance": "spherical", "prior": _prior(1.0)}
    problem = ppc_problem(X, pairs_of_iris(5, 1.0), **given)
    one, two = (FEW_STEPS.run(problem, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one.params["mean"], two.params["mean"])
    np.testing.assert_array_equal(one.objective, two.objective)


def _prior(shrinkage):
    return GaussianPrior(np.zeros(4), shrinkage, 6.0, np.eye(4))


def test_the_last_objective_is_that_of_the_parameters():
    problem = ppc_problem(X, num_clusters=3)
    density = jax.jit(lambda at: log_joint(problem, at))
    for steps in (1, 4, 300):
        result = EM(num_restarts=2, max_steps=steps).run(problem)
        exact = float(density(result.params))
        np.testing.assert_allclose(result.sample_stats["lp"].item(), exact, atol=1e-9)
        np.testing.assert_allclose(best_trace(result)[-1], exact, atol=1e-9)
        assert result.status.converged == (steps == 300)
        assert result.objective.shape[1] <= steps + 1


def test_a_collapsing_cluster_is_named():
    x = np.concatenate([np.random.default_rng(0).normal(size=(40, 2)), np.full((30, 2), 9.0)])
    given = {"num_clusters": 2, "covariance": "diagonal"}
    with pytest.raises(FitError, match=r"cluster \d of effective size .* collapsed .* prior="):
        EM(num_restarts=3).run(ppc_problem(x, prior="flat", **given))
    kept = EM(num_restarts=3).run(ppc_problem(x, **given))
    assert kept.status.converged


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal", "spherical"])
def test_a_lone_tight_cluster_collapses_in_every_form(covariance):
    """Spherical and diagonal too; a tied covariance is held open by the other cluster."""
    x = np.concatenate([np.random.default_rng(0).normal(size=(40, 2)), np.full((30, 2), 9.0)])
    problem = ppc_problem(x, num_clusters=2, prior="flat", covariance=covariance)
    if covariance == "tied":
        assert EM(num_restarts=3).run(problem).status.converged
    else:
        with pytest.raises(FitError, match=r"cluster \d of effective size .* collapsed"):
            EM(num_restarts=3).run(problem)


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal"])
def test_units_of_features_change_nothing(covariance):
    """Neither the empirical prior nor what counts as collapsed depends on units."""
    units = np.array([1e-5, 1.0, 1e3, 1e6])
    options = {"num_clusters": 3, "covariance": covariance}
    one = EM(num_restarts=3, tol=1e-12).run(ppc_problem(X, **options)).params
    name, square = "covariance", np.outer(units, units)
    if covariance == "diagonal":
        name, square = "variance", units**2
    start = one | {"mean": one["mean"] * units, name: one[name] * square}
    # from three equal starts, so that the first fit's program is found again
    other = EM(tol=1e-12).run(ppc_problem(X * units, **options), init=[start] * 3).params
    np.testing.assert_allclose(other["mean"] / units, one["mean"], rtol=1e-6)
    np.testing.assert_allclose(other[name] / square, one[name], rtol=1e-5)


def test_a_start_without_a_log_joint_is_refused_with_its_state():
    problem = ppc_problem(X, num_clusters=2)
    start = random_params("full") | {"covariance": -jnp.ones((2, 4, 4))}
    with pytest.raises(FitError, match="not finite at any start") as caught:
        EM().run(problem, init=start)
    assert caught.value.params["mean"].shape == (2, 4)


@pytest.mark.parametrize(
    "bad",
    [{"tol": -1.0}, {"max_steps": 0}, {"num_restarts": 0}, {"num_inner_steps": "x"}, {"tol": True}],
)
def test_config_refuses(bad):
    with pytest.raises(ValueError, match=rf"EM\({next(iter(bad))}="):
        EM(**bad)


def test_single_steps_refuse_other_seeds_and_states():
    problem = ppc_problem(X, None, closed=True, num_clusters=2)
    with pytest.raises(ValueError, match="seed = 'a'"):
        EM().init(problem, seed="a")
    with pytest.raises(TypeError, match="state = 3; expected the EMState that init or step"):
        EM().step(problem, 3)


@pytest.mark.parametrize("closed", [True, False])
def test_single_steps_are_those_of_a_run(closed):
    """From one start, step by step, and the log joint of every state is that of its parameters."""
    links = None if closed else pairs_of_iris(10, 1.5)
    problem = ppc_problem(X, links, closed=closed, num_clusters=2, covariance="spherical")
    engine = EM(num_restarts=1, max_steps=4, tol=0.0)
    run = engine.run(problem, seed=3)
    state = engine.init(problem, seed=3)
    log_joints = [float(state.log_joint)]
    for _ in range(4):
        state = engine.step(problem, state)
        log_joints.append(float(state.log_joint))
    np.testing.assert_allclose(log_joints, run.objective[0], rtol=1e-9)
    assert np.diff(log_joints).min() > 0
    for name, value in state.params.items():
        np.testing.assert_allclose(value, run.params[name], rtol=1e-5, atol=1e-7)
    expected = jax.jit(lambda at: log_joint(problem, at))(state.params)
    np.testing.assert_allclose(state.log_joint, expected, rtol=1e-12)
    assert state.expected["x"]["unary"].sum() == pytest.approx(150)


def test_the_mode_is_a_fixed_point_of_a_step():
    problem = ppc_problem(X, pairs_of_iris(10, 1.5), num_clusters=2)
    engine = EM(num_restarts=2, tol=1e-14, max_steps=2000)
    mode = engine.run(problem).params
    there = engine.init(problem, init=mode)
    again = engine.step(problem, there)
    for name, value in there.params.items():
        np.testing.assert_allclose(value, mode[name], rtol=1e-14)
        np.testing.assert_allclose(again.params[name], value, atol=1e-5)
    away = engine.init(problem, init=mode | {"mean": mode["mean"] + 0.1})
    assert away.log_joint < there.log_joint
    assert away.log_joint < engine.step(problem, away).log_joint <= there.log_joint + 1e-9


def test_a_first_step_refuses_what_a_run_refuses():
    with pytest.raises(ValueError, match="init has no value for site"):
        EM().init(ppc_problem(X, num_clusters=2), init={"mean": np.zeros((2, 4))})


def test_a_prior_read_off_the_data_does_not_choose_the_mode():
    """Its density is highest where a cluster has next to no points; a prior that was given is believed."""
    believed = {"prior": GaussianPrior.empirical(X, 3)}
    fits = {
        name: EM(rank=rank).run(Problem(gmm, (jnp.asarray(X),), {"num_clusters": 3} | options))
        for name, rank, options in (
            ("likelihood", "likelihood", {}),
            ("joint", "joint", {}),
            ("given", "likelihood", believed),
        )
    }
    joint = {
        name: np.stack(
            [
                np.log(weight) + multivariate_normal(mean, covariance).logpdf(X)
                for weight, mean, covariance in zip(
                    *(fit.params[site] for site in ("weights", "mean", "covariance")), strict=True
                )
            ]
        )
        for name, fit in fits.items()
    }
    size = {name: np.bincount(terms.argmax(axis=0)).min() for name, terms in joint.items()}
    height = {name: fit.sample_stats["lp"].item() for name, fit in fits.items()}
    fitted = {name: np.logaddexp.reduce(terms).sum() for name, terms in joint.items()}
    assert size["likelihood"] > 40
    assert max(size["joint"], size["given"]) < 15
    assert fitted["likelihood"] > max(fitted["joint"], fitted["given"])
    assert height["likelihood"] + 1 < min(height["joint"], height["given"])
    said = f"without it that mode is lower by {fitted['likelihood'] - fitted['joint']:.3g};"
    assert said in str(fits["likelihood"].status)
    assert (
        "the choice among modes leaves out" not in f"{fits['joint'].status} {fits['given'].status}"
    )
    # the verdict is about the start that led to the result
    row = fits["likelihood"].best_start
    path = fits["likelihood"].objective[row]
    assert path[np.isfinite(path)][-1] == height["likelihood"]


def test_starts_that_collapse_on_the_way_are_not_kept_for_their_height():
    """Values cut off at a bound: a cluster on it has no likelihood but an infinite one."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + np.array([4, 0])])
    few = EM(num_restarts=5)
    cut = np.clip(x, -1.2, None)
    found = sidebayes.fit("gmm", cut, num_clusters=3, prior="flat", engine=few, progress=False)
    assert found.tree["sample_stats"]["lp"].item() > -386
    assert np.isfinite(found.objective).any(axis=1).sum() == 5
    assert "2 distinct modes from 5 starts" in str(found.status)
