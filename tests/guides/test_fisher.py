"""Newton steps and the closed-form inverse of the Fisher information; dossier check 23."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from sidebayes.guides.constraint_fit import Continuation
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import place, unconstrained_start
from sidebayes.guides.engines.steps.newton import newton_steps
from sidebayes.guides.fisher import Natural, fisher_solve, natural_metric
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constraint_fit import constraint_fit
from sidebayes.models.constraint_projection import constraint_projection

NUM_POINTS = 30


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def draw_params(covariance, seed=0, size=3, width=2):
    rng = np.random.default_rng(seed)
    root = 0.3 * rng.normal(size=(size, width, width)) + np.eye(width)
    sigma = root @ root.mT
    return {
        "weights": jnp.asarray(rng.dirichlet(np.full(size, 4.0))),
        "mean": jnp.asarray(rng.normal(size=(size, width))),
        "covariance": jnp.asarray(sigma[0] if covariance == "tied" else sigma),
    }


def log_normalizer(natural, size):
    """Its Hessian is the information of points with their labels, `size` of them in each cluster."""
    precision = (natural.precision + natural.precision.mT) / 2
    mean = jnp.linalg.solve(precision, natural.shift[..., None])[..., 0]
    square = jnp.sum(natural.shift * mean, axis=-1)
    each = 0.5 * square - 0.5 * jnp.linalg.slogdet(precision)[1]
    return size.sum() * jax.nn.logsumexp(natural.logits) + size @ each


def information(params):
    """Product of the Fisher information with a step, by automatic differentiation."""
    size = NUM_POINTS * params["weights"]
    slope = jax.grad(lambda natural: log_normalizer(natural, size))
    return lambda step: jax.jvp(slope, (Natural.of(params),), (step,))[1]


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_closed_form_inverts_the_information(covariance):
    params = draw_params(covariance)
    rng = np.random.default_rng(1)
    slope = jax.tree.map(lambda v: jnp.asarray(rng.normal(size=v.shape)), Natural.of(params))
    slope = Natural(
        slope.logits - slope.logits.mean(),
        slope.shift,
        slope.precision + slope.precision.mT,
    )
    solve = jax.jit(lambda slope: information(params)(fisher_solve(params, NUM_POINTS, slope)))
    back = solve(slope)
    for found, given in zip(back, slope, strict=True):
        np.testing.assert_allclose(found, given, atol=1e-10)


def small_problem(covariance, links=None, **options):
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(-2, 1, (15, 2)), rng.normal(2, 1, (15, 2))])
    graph = LabelGraph.build(links, NUM_POINTS)
    options = {"num_clusters": 2, "covariance": covariance, "prior": "flat"} | options
    return Problem(constraint_fit, (jnp.asarray(x), graph), options)


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_metric_is_the_inverse_information_in_the_coordinates_of_the_model(covariance):
    problem, params = small_problem(covariance), draw_params(covariance, size=2)
    free = unconstrained_start(problem, params)
    flat, unravel = ravel_pytree(free)

    def natural_of(flat):
        trace, _ = place(problem, unravel(flat))
        return Natural.of({name: trace[name]["value"] for name in free})

    def dense(step):
        natural, moved = jax.jvp(natural_of, (flat,), (step,))
        del natural
        return jax.vjp(natural_of, flat)[1](information(params)(moved))[0]

    scale = natural_metric(problem, problem.args)(free)
    eye = jnp.eye(len(flat))
    inverse = np.array([ravel_pytree(scale(unravel(row)))[0] for row in eye])
    fisher = np.array([dense(row) for row in eye])
    np.testing.assert_allclose(inverse @ fisher, eye, atol=1e-9)


def test_newton_steps_solve_where_the_curvature_is_positive():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(6, 6))
    hessian, target = jnp.asarray(root @ root.T + np.eye(6)), jnp.asarray(rng.normal(size=6))

    def bowl(point):
        return 0.5 * (point - target) @ hessian @ (point - target)

    near = target + 1e-9 * jnp.asarray(rng.normal(size=6))

    def stepped(loss):
        """Slope and step of a loss, by one program."""
        solve = newton_steps(loss, lambda point: lambda slope: slope / 3)
        return jax.jit(lambda point: (jax.grad(loss)(point), solve(jax.grad(loss)(point), point)))

    _, step = stepped(bowl)(near)
    np.testing.assert_allclose(near - step, target, atol=1e-13)

    def saddle(point):
        return bowl(point) - 40.0 * point[0] ** 2

    slope, step = stepped(saddle)(near + 1.0)
    assert slope @ step > 0
    slope, step = stepped(lambda point: -bowl(point))(near + 1.0)
    np.testing.assert_allclose(step, slope / 3)


def test_newton_finds_the_mode_of_lbfgs_in_fewer_gradients():
    links = Links([(0, 16), (3, 20), (1, 2)], [8.0, 8.0, -2.0], NUM_POINTS)
    problem = small_problem("tied", links, prior="empirical")
    found = {
        method: Continuation(method=method, num_restarts=2, tol=1e-9).run(problem, seed=1)
        for method in ("lbfgs", "newton")
    }
    assert found["newton"].status.converged
    lp = {method: one.sample_stats["lp"].item() for method, one in found.items()}
    assert lp["newton"] == pytest.approx(lp["lbfgs"], rel=1e-9)
    steps = {method: one.objective.shape[1] for method, one in found.items()}
    assert steps["newton"] < steps["lbfgs"]


def test_newton_is_refused_without_gaussian_sites():
    problem = small_problem("diagonal")
    with pytest.raises(TypeError, match="'newton'.*has .*variance.*covariance='full' or 'tied'"):
        Continuation(method="newton").run(problem)
    problem = Problem(constraint_projection, problem.args, {"num_clusters": 2})
    with pytest.raises(TypeError, match="the model has .*'projection'"):
        Continuation(method="newton").run(problem)
    with pytest.raises(ValueError, match="method='cg'.*expected one of"):
        Continuation(method="cg")
