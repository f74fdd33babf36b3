"""Bounds of a partition of space: Raghuram (2014), chapter 3; dossier checks 13-18 and 28."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint, trace_model
from sidebayes.guides.engines.steps.surrogate import tightened
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.gmm import gmm
from sidebayes.models.mcp import mcp
from sidebayes.models.pair_mixture import pair_mixture
from sidebayes.models.scp import scp

from tests.support.partitions import (
    LINKS,
    NUM_POINTS,
    STRENGTH,
    X,
    basis_of,
    free_energy,
    log_densities,
    matched,
    matched_discriminants,
    mixture_of,
    params_of,
    problem_of,
    softmax,
)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def test_climbs_see_uncorrelated_monomials():
    """Coordinates of the rule, in which a unit matters as much in all directions."""
    params = {name: value for name, value in params_of(2).items() if name != "assignment"}
    sites = trace_model(Problem(scp, (X, LINKS), {"num_clusters": 2}), params)
    block = sites["discriminants"]["infer"]["block"]
    along = jax.vmap(block.bijector("discriminants", None))(jnp.eye(6))
    scores = basis_of(X) @ along.T
    np.testing.assert_allclose(scores.T @ scores / NUM_POINTS, np.eye(6), atol=1e-6)


def test_bound_is_the_free_energy_written_out():
    """Eqs. 3.9, 3.12, 3.17, and the normaliser of the statements."""
    params = params_of()

    @jax.jit
    def described(params):
        fn, value = mixture_of(problem_of(), params)
        return fn.free_energy(value), fn.log_prob(value), fn.responsibilities(value)

    found, log_prob, member = described(params)
    basis = basis_of(X)
    q = softmax(basis @ params["discriminants"].T)
    expected = free_energy(params, q)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    prices = np.where(np.isinf(LINKS.weights), STRENGTH, np.abs(LINKS.weights))
    coins = np.log1p(np.exp(-prices)).sum()
    np.testing.assert_allclose(log_prob, -expected - coins, rtol=1e-12)
    np.testing.assert_allclose(member, q @ params["assignment"], atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal", "spherical"])
def test_without_links_matched_discriminants_are_exact(covariance):
    """R13: the bound touches the likelihood of the mixture, and its slope in the rule vanishes."""
    params, unit = params_of(3), X.std(axis=0)
    sigma = params["covariance"]
    variance = np.diagonal(sigma, axis1=1, axis2=2)
    name, spread, scaled = {
        "full": ("covariance", sigma, sigma / np.outer(unit, unit)),
        "tied": ("covariance", sigma[0], sigma[0] / np.outer(unit, unit)),
        "diagonal": ("variance", variance, variance / unit**2),
        "spherical": ("variance", variance[:, 0], variance[:, :1] / unit**2),
    }[covariance]
    plain = {"weights": params["weights"], "mean": params["mean"], name: spread}
    form = {"covariance": covariance, "prior": "flat", "num_clusters": 3}
    alone = Problem(gmm, (jnp.asarray(X),), form)
    graph = LabelGraph.build(None, NUM_POINTS)
    own = Problem(mcp, (jnp.asarray(X), graph), form | {"num_components": 3})
    centred = (params["mean"] - X.mean(axis=0)) / unit
    phi = matched_discriminants(np.log(params["weights"]), centred, scaled, covariance)

    def bound(phi):
        given = plain | {"discriminants": phi, "assignment": np.eye(3)}
        fn, value = mixture_of(own, given)
        return fn.log_prob(value)

    @jax.jit
    def both(phi):
        fn, value = mixture_of(alone, plain)
        return jax.value_and_grad(bound)(phi), fn.log_prob(value)

    (value, slope), expected = both(phi)
    np.testing.assert_allclose(value, expected, atol=1e-9)
    assert np.abs(slope).max() < 1e-10


def exact_energy(params, links, strength):
    """F by summing over all component labels."""
    joint = np.log(params["weights"]) + log_densities(params, params["x"])
    total = []
    for labels in itertools.product(range(joint.shape[1]), repeat=len(joint)):
        clusters = params["assignment"].argmax(axis=1)[list(labels)]
        broken = (clusters[links.pairs[:, 0]] == clusters[links.pairs[:, 1]]) != links.same
        total.append(joint[np.arange(len(joint)), labels].sum() - strength * broken.sum())
    return -logsumexp(total)


def test_chain_of_bounds():
    """R14: exact <= mean field <= shared rule <= posterior that ignores links."""
    x = np.random.default_rng(5).normal(size=(8, 2)) * 1.5
    links = Links([(0, 2), (1, 6), (3, 5)], [np.inf, -np.inf, -np.inf], 8)
    params = {
        "weights": np.array([0.6, 0.4]),
        "mean": np.array([[-1.0, 0.0], [1.0, 0.3]]),
        "covariance": np.stack([np.eye(2)] * 2),
        "assignment": np.eye(2),
        "x": x,
    }
    joint = np.log(params["weights"]) + log_densities(params, x)
    fields = []
    for seed in range(8):  # mean field from many places: coordinate ascent written out
        q = np.random.default_rng(seed).dirichlet(np.ones(2), size=8)
        for _ in range(100):
            for i in range(8):
                pull = np.zeros(2)
                for (a, b), same in zip(links.pairs, links.same, strict=True):
                    if i in (a, b):
                        pull += (1.0 if same else -1.0) * STRENGTH * q[b if i == a else a]
                q[i] = softmax((joint[i] + pull)[None])[0]
        broken = [
            1 - q[a] @ q[b] if s else q[a] @ q[b]
            for (a, b), s in zip(links.pairs, links.same, strict=True)
        ]
        fields.append((q * (np.log(q) - joint)).sum() + STRENGTH * sum(broken))

    args = jnp.asarray(x), LabelGraph.build(links, 8)
    options = {"num_clusters": 2, "strength": STRENGTH, "prior": "flat"}
    start = matched({k: v for k, v in params.items() if k != "x"}, x)

    @jax.jit
    def energies(phi):
        rule = Problem(scp, args, options)
        begin = {k: v for k, v in start.items() if k != "assignment"} | {"discriminants": phi}
        best = tightened(rule, begin, args, 300)
        return [(lambda fn, v: fn.free_energy(v))(*mixture_of(rule, p)) for p in (begin, best)]

    plug_in, rule = energies(jnp.asarray(start["discriminants"]))
    field = Problem(scp, args, options | {"posterior": "mean_field"})

    @jax.jit
    def energy(params):
        fn, value = mixture_of(field, params)
        return fn.free_energy(value)

    own = float(energy({k: start[k] for k in ("weights", "mean", "covariance")}))
    exact = exact_energy(params, links, STRENGTH)
    assert exact < min(fields) - 1e-3
    assert own == pytest.approx(min(fields), abs=1e-8)
    assert min(fields) < rule - 1e-3
    assert rule < plug_in - 1e-3


def test_relations_of_a_mixture_of_mixtures_are_bounded():
    """R28, and the other reading: exact sums of `pair_mixture` over the same law, never below the bound."""
    params = params_of() | {"assignment": np.eye(2)[[0, 0, 1, 1]]}
    soft = LINKS.with_weights(
        np.where(np.isinf(LINKS.weights), np.sign(LINKS.weights) * STRENGTH, LINKS.weights)
    )
    weights = params["weights"].reshape(2, 2).sum(axis=1)
    nested = {
        "weights": weights,
        "component_weights": params["weights"].reshape(2, 2) / weights[:, None],
        "mean": params["mean"].reshape(2, 2, 2),
        "covariance": params["covariance"].reshape(2, 2, 2, 2),
    }
    options = {"num_clusters": 2, "num_components": 2, "pair_law": "joint", "prior": "flat"}
    exact = Problem(pair_mixture, (jnp.asarray(X), LabelGraph.build(soft, NUM_POINTS, 2)), options)
    exact_fn, value = mixture_of(exact, nested)
    bounds = [
        mixture_of(problem_of(posterior=kind), matched(params))[0].log_prob(value)
        for kind in ("partition", "mean_field")
    ]
    assert bounds[0] < bounds[1] < exact_fn.log_prob(value)
    assert exact_fn.log_prob(value) - bounds[1] < 1.0
    clusters = mixture_of(problem_of(), params)[0].label_factors(
        mixture_of(problem_of(), params)[0].log_factors(value)
    )
    given = exact_fn.label_factors(exact_fn.log_factors(value)) + jnp.log(weights)
    np.testing.assert_allclose(clusters, given, rtol=1e-12)


@pytest.mark.parametrize("links", [LINKS, None], ids=["links", "none"])
def test_gradient_in_the_rule(links):
    """R15: e_ik and g_ik of section 3.2.2.1 by hand."""
    params = params_of()
    problem = problem_of(links)
    basis = basis_of(X)
    q = softmax(basis @ params["discriminants"].T)
    p, owner = q @ params["assignment"], params["assignment"].argmax(axis=1)
    e = np.log(q) + 1 - np.log(params["weights"]) - log_densities(params)
    for (i, j), w in () if links is None else zip(links.pairs, links.weights, strict=True):
        price = np.sign(w) * STRENGTH if np.isinf(w) else w
        e[i] -= price * p[j, owner]
        e[j] -= price * p[i, owner]
    expected = (q * (e - (q * e).sum(axis=1, keepdims=True))).T @ basis
    slope = jax.jit(jax.grad(lambda phi: log_joint(problem, params | {"discriminants": phi})))
    np.testing.assert_allclose(-slope(params["discriminants"]), expected, rtol=1e-9, atol=1e-10)


def test_points_alike_are_labelled_alike():
    """R18: a copy of a linked point follows it under the shared rule, and not in mean field."""
    x = np.concatenate([[[-1.0, 0.0], [-1.0, 0.0], [4.0, 0.0]], X])
    links = Links([(0, 2)], [np.inf], len(x))
    apart = {
        "weights": np.full(2, 0.5),
        "mean": np.array([[-2.0, 0.0], [2.0, 0.0]]),
        "covariance": np.stack([np.eye(2)] * 2),
        "discriminants": params_of()["discriminants"][:2],
    }

    def described(problem, params):
        fn, value = mixture_of(problem, params)
        return fn.memberships(value), fn.label_factors(fn.log_factors(value))

    for posterior, alike in (("partition", True), ("mean_field", False)):
        options = {"num_clusters": 2, "strength": 100.0, "posterior": posterior, "prior": "flat"}
        problem = Problem(scp, (jnp.asarray(x), LabelGraph.build(links, len(x))), options)
        prob, alone = map(np.asarray, jax.jit(partial(described, problem))(apart))
        assert (prob[0].argmax() == prob[1].argmax()) == alike
        assert np.allclose(prob[0], prob[1], atol=1e-12) == alike
    np.testing.assert_allclose(prob[1], softmax(alone)[1], atol=1e-12)


def coordinate_ascent(potential, joint):
    """Factors q that no single point can improve, for any expected potential of all of them."""

    joint = jnp.asarray(joint)

    def renew(step, q):
        i = step % len(q)
        return q.at[i].set(jax.nn.softmax(joint[i] - jax.grad(potential)(q)[i]))

    start = jax.nn.softmax(joint)
    return jax.jit(lambda q: jax.lax.fori_loop(0, 60 * len(q), renew, q))(start)


def test_price_of_a_violated_link_and_reward_of_a_met_one_have_one_fixed_point():
    """R17: eq. 3.1 and the potential of Zhao and Miller (2005) differ by the prices of must-links."""
    params = params_of()
    price = np.where(np.isinf(LINKS.weights), STRENGTH, np.abs(LINKS.weights))
    joint = np.log(params["weights"]) + log_densities(params)

    def agreed(q):
        p = q @ params["assignment"]
        return (p[LINKS.pairs[:, 0]] * p[LINKS.pairs[:, 1]]).sum(axis=1)

    def violated(q):
        return (price * jnp.where(LINKS.same, 1 - agreed(q), agreed(q))).sum()

    def unrewarded(q):
        return (price * jnp.where(LINKS.same, -agreed(q), agreed(q))).sum()

    found = {f: coordinate_ascent(f, joint) for f in (violated, unrewarded)}
    np.testing.assert_allclose(found[violated], found[unrewarded], atol=1e-13)
    found = {f: np.asarray(q) for f, q in found.items()}
    energy = {f: (q * (np.log(q) - joint)).sum() + float(jax.jit(f)(q)) for f, q in found.items()}
    must = price[LINKS.same].sum()
    np.testing.assert_allclose(energy[violated] - energy[unrewarded], must, rtol=1e-12)

    @jax.jit
    def ours(params):
        fn, value = mixture_of(problem_of(posterior="mean_field"), params)
        bound = fn.log_partition(fn.log_factors(value))
        return fn.memberships(value), fn.free_energy(value), -bound

    member, priced, rewarded = ours(params)
    np.testing.assert_allclose(member, found[violated], atol=1e-9)
    np.testing.assert_allclose(priced, energy[violated], rtol=1e-9)
    np.testing.assert_allclose(rewarded, energy[unrewarded], rtol=1e-9)
