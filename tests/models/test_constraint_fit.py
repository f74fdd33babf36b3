"""Penalised constraint clustering: Law (2006), sections 5.3 and B.1; dossier checks 22-28."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.optimisers.optimise import MAP
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.label_sets import jensen_shannon, padded_sets
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constraint_fit import constraint_fit
from sidebayes.models.gmm import gmm
from sklearn.datasets import load_iris

from sidebayes import calibrate, fit

CLUSTERS, TEMPERATURE = 3, 0.6
LINKS = Links([(0, 1), (2, 5), (1, 7), (3, 4)], [1.5, np.inf, -0.7, -np.inf], 12)
OPTIONS = {
    "strength": 9.0,
    "temperature": TEMPERATURE,
    "prior": "flat",
    "must_groups": ((0, 6, 8), (2, 3, 9, 10)),
    "cannot_groups": ((1, 4, 11),),
}
SETS = [  # members, price, sign: what LINKS and OPTIONS say, spelt out
    ((0, 1), 1.5, 1),
    ((2, 5), 9.0, 1),
    ((1, 7), 0.7, -1),
    ((3, 4), 9.0, -1),
    ((0, 6, 8), 9.0, 1),
    ((2, 3, 9, 10), 9.0, 1),
    ((1, 4, 11), 9.0, -1),
]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def small():
    """Twelve points, and parameters of three clusters near them."""
    rng = np.random.default_rng(0)
    root = 0.3 * rng.normal(size=(3, 2, 2)) + np.eye(2)
    return rng.normal(size=(12, 2)), {
        "weights": rng.dirichlet(np.full(3, 4.0)),
        "mean": rng.normal(size=(3, 2)),
        "covariance": root @ root.transpose(0, 2, 1),
    }


def problem_of(x, links=None, **options):
    args = jnp.asarray(x), LabelGraph.build(links, len(x))
    return Problem(constraint_fit, args, {"num_clusters": CLUSTERS} | options)


def log_q_of(x, params):
    """Log weighted densities, written out."""
    off = x[:, None] - params["mean"]
    sigma = np.broadcast_to(params["covariance"], (CLUSTERS, 2, 2))
    square = np.einsum("nki,kij,nkj->nk", off, np.linalg.inv(sigma), off)
    log_det = np.linalg.slogdet(sigma)[1]
    return np.log(params["weights"]) - 0.5 * (square + log_det + 2 * np.log(2 * np.pi))


def softened(x, params):
    weighed = np.exp(log_q_of(x, params) / TEMPERATURE)
    return weighed / weighed.sum(axis=1, keepdims=True)


def slopes_by_hand(x, params):
    """The c_ij of Law (2006), eqs. B.6-B.8, by loops over the constraints."""
    s = softened(x, params)
    pull, target = np.zeros(12), np.zeros((12, CLUSTERS))
    for members, price, sign in SETS:
        members = list(members)
        pull[members] += sign * price / len(members)
        target[members] += sign * price / len(members) * np.log(s[members].mean(axis=0))
    w = pull[:, None] * s * np.log(s) - s * target
    log_q = log_q_of(x, params)
    resp = np.exp(log_q - np.logaddexp.reduce(log_q, axis=1, keepdims=True))
    return resp - (w - s * w.sum(axis=1, keepdims=True)) / TEMPERATURE, w


def test_value_is_the_objective_written_out(small):
    """Eqs. 5.13-5.16 by Kullback-Leibler divergences, pair by pair and group by group."""
    x, params = small
    s = softened(x, params)
    expected = np.logaddexp.reduce(log_q_of(x, params), axis=1).sum() + np.log(2)  # Dirichlet(1)
    for members, price, sign in SETS:
        mean = s[list(members)].mean(axis=0)
        divergence = np.mean([(s[i] * np.log(s[i] / mean)).sum() for i in members])
        expected -= sign * price * divergence
    problem = problem_of(x, LINKS, covariance="full", **OPTIONS)
    found = jax.jit(lambda params: log_joint(problem, params))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    penalty = slopes_by_hand(x, params)[1].sum()  # B.7
    fitted = np.logaddexp.reduce(log_q_of(x, params), axis=1).sum() + np.log(2)
    np.testing.assert_allclose(found, fitted - penalty, rtol=1e-13)


def gradient(x, params, covariance):
    problem = problem_of(x, LINKS, covariance=covariance, **OPTIONS)

    def value(beta, mean, precision):
        sigma = jnp.linalg.inv((precision + jnp.swapaxes(precision, -1, -2)) / 2)
        weights = jax.nn.softmax(beta)
        return log_joint(problem, {"weights": weights, "mean": mean, "covariance": sigma})

    inputs = np.log(params["weights"]), params["mean"], np.linalg.inv(params["covariance"])
    return jax.jit(jax.grad(value, argnums=(0, 1, 2)))(*map(jnp.asarray, inputs))


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_gradients_are_the_closed_forms(small, covariance):
    """Check 22: eqs. 5.23, 5.27, 5.28 and, tied, 5.20."""
    x, params = small
    if covariance == "tied":
        params |= {"covariance": params["covariance"][0]}
    c, _ = slopes_by_hand(x, params)
    np.testing.assert_allclose(c.sum(axis=1), 1, rtol=1e-12)
    assert c.min() < 0  # no responsibilities: an M-step could fail
    sigma = np.broadcast_to(params["covariance"], (3, 2, 2))
    off = x[:, None] - params["mean"]
    size = c.sum(axis=0)
    scatter = np.einsum("nk,nki,nkj->kij", c, off, off)
    precision = 0.5 * size[:, None, None] * sigma - 0.5 * scatter
    if covariance == "tied":
        precision = precision.sum(axis=0)
    found = gradient(x, params, covariance)
    np.testing.assert_allclose(found[0], size - 12 * params["weights"], atol=1e-12)
    mean = np.einsum("kij,nk,nkj->ki", np.linalg.inv(sigma), c, off)
    np.testing.assert_allclose(found[1], mean, atol=1e-11)
    np.testing.assert_allclose(found[2], precision, atol=1e-11)


def test_second_derivatives_are_the_closed_form(small):
    """Check 22: eq. B.35 in the log weighted densities (its middle matrix, block by block)."""
    x, params = small
    log_q = jnp.asarray(log_q_of(x, params))
    groups = [padded_sets([m], 12, "m") for m, _, _ in SETS]

    def value(q):
        s = jax.nn.log_softmax(q / TEMPERATURE)
        cost = [
            sign * price * jensen_shannon(s, *g)[0]
            for g, (_, price, sign) in zip(groups, SETS, strict=True)
        ]
        return jax.nn.logsumexp(q, axis=1).sum() - sum(cost)

    tau, s, eye = 1 / TEMPERATURE, softened(x, params), np.eye(CLUSTERS)
    c, w = slopes_by_hand(x, params)
    slope, bend = jax.jit(lambda q: (jax.grad(value)(q), jax.hessian(value)(q)))(log_q)
    np.testing.assert_allclose(slope, c, atol=1e-12)
    pull = np.zeros(12)
    expected = np.zeros((12, CLUSTERS, 12, CLUSTERS))
    for members, price, sign in SETS:
        members = list(members)
        share = 1 / len(members)
        pull[members] += sign * price * share
        mean = s[members].mean(axis=0)
        column = np.zeros((12, CLUSTERS, CLUSTERS))  # (i, u, j)
        for i in members:
            column[i] = tau * share * (s[i] * (eye - s[i][:, None]))
        expected += sign * price * np.einsum("iuj,lvj,j->iulv", column, column, 1 / mean)
    resp = np.exp(log_q - np.logaddexp.reduce(log_q, axis=1, keepdims=True))
    bent = w - s * w.sum(axis=1, keepdims=True) + pull[:, None] * s
    for i in range(12):
        spread = eye - s[i]
        expected[i, :, i] += np.diag(resp[i]) - np.outer(resp[i], resp[i])
        expected[i, :, i] -= tau**2 * np.einsum("j,ju,jv->uv", bent[i], spread, spread)
    np.testing.assert_allclose(bend, expected, atol=1e-11)


def test_divergence_is_bounded_and_its_root_is_a_metric():
    """Check 24."""
    divergence = jax.jit(jensen_shannon)
    rng = np.random.default_rng(1)
    log_s = np.log(rng.dirichlet(np.full(4, 0.5), size=300))
    rows, shares = padded_sets(rng.permutation(300).reshape(-1, 3).tolist(), 300, "m")
    values = np.asarray(divergence(log_s, rows, shares))
    assert (values >= 0).all()
    assert (values <= np.log(3)).all()
    turned = divergence(log_s, rows[:, ::-1], shares)
    np.testing.assert_allclose(values, turned, atol=1e-14)
    side = [
        np.sqrt(divergence(log_s, rows[:, [a, b]], np.full((100, 2), 0.5)))
        for a, b in ((0, 1), (1, 2), (0, 2))
    ]
    assert (side[2] <= side[0] + side[1] + 1e-12).all()
    sure = np.where(np.eye(4) > 0, 0.0, -1e4)
    pairs, groups = padded_sets([(0, 1)], 4, "m"), padded_sets([(0, 1, 2, 3)], 4, "m")
    np.testing.assert_allclose(divergence(sure, *pairs), np.log(2), rtol=1e-12)
    np.testing.assert_allclose(divergence(sure, *groups), np.log(4), rtol=1e-12)
    alike = divergence(log_s[:1].repeat(4, axis=0), *groups)
    np.testing.assert_allclose(alike, 0, atol=1e-15)
    slope = jax.jit(jax.grad(lambda v: jensen_shannon(v, *groups).sum()))(sure)
    assert np.isfinite(slope).all()


def test_sets_of_different_sizes_share_a_table():
    log_s = np.log(np.random.default_rng(2).dirichlet(np.ones(3), size=6))
    sets = [(0, 1), (2, 3, 4, 5), (1, 4, 5)]

    @jax.jit
    def both(log_s):
        together = jensen_shannon(log_s, *padded_sets(sets, 6, "m"))
        return together, [jensen_shannon(log_s, *padded_sets([one], 6, "m"))[0] for one in sets]

    np.testing.assert_allclose(*both(log_s), rtol=1e-13)


def test_without_constraints_it_is_the_mixture():
    """Check 25: same density, same mode."""
    x = jnp.asarray(load_iris().data[::5])
    free = problem_of(x, covariance="tied")
    priced = problem_of(x, Links([(0, 1)], [np.inf], 30), strength=0.0, covariance="tied")
    plain = Problem(gmm, (x,), {"num_clusters": 3, "covariance": "tied"})
    engine = MAP(num_restarts=2)
    found = [engine.run(one) for one in (plain, free, priced)]
    for other in found[1:]:
        np.testing.assert_allclose(other.sample_stats["lp"], found[0].sample_stats["lp"], rtol=1e-9)
        np.testing.assert_allclose(other.params["mean"], found[0].params["mean"], atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ({"temperature": 0.0}, ValueError, "temperature = 0.0; expected a number > 0"),
        ({"strength": -1.0}, ValueError, "strength = -1.0; expected a number >= 0"),
        ({"must_groups": ((1,),)}, ValueError, r"must_groups\[0\] .* two or more different rows"),
        ({"must_groups": ((1, 1, 2),)}, ValueError, "two or more different rows"),
        ({"cannot_groups": ((1, 30),)}, ValueError, "outside of 0..29; give rows of x"),
        ({"cannot_groups": ((0.5, 1),)}, TypeError, r"cannot_groups\[0\] .* row numbers"),
    ],
)
def test_bad_input_is_named(wrong, kind, message):
    x = load_iris().data[::5]
    with pytest.raises(kind, match=message):
        fit(constraint_fit, x, num_clusters=3, engine=MAP(num_restarts=1), **wrong)


def test_nothing_is_simulated():
    with pytest.raises(TypeError, match="constraint_fit has no parameter num_points"):
        calibrate("constraint_fit", "map", num_points=10, num_clusters=2)
    with pytest.raises(ValueError, match="constraint_fit is a penalised objective"):
        constraint_fit(None, num_clusters=2)
