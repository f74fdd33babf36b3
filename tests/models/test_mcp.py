"""Learning from pairs by a partition of space: Raghuram (2014), chapter 3; dossier checks 13-23, 28."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.initialization import init_to_value
from numpyro.infer.util import log_density
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.density import collapsed_sites, log_joint, trace_model
from sidebayes.guides.engines.surrogate import tightened
from sidebayes.guides.mcp import split_candidates
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.partitions.component_clusters import settled_clusters
from sidebayes.models.blocks.partitions.rule import matched_discriminants, monomials
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.gmm import gmm
from sidebayes.models.mcp import mcp, mcp_with_room
from sidebayes.models.pair_mixture import pair_mixture
from sidebayes.models.scp import scp

import sidebayes as sb
from sidebayes import EM

RNG = np.random.default_rng(3)
X = np.concatenate([RNG.normal(size=(8, 2)) + c for c in ((-2, 0), (2, 0), (0, 3))])
NUM_POINTS = len(X)
LINKS = Links(
    [(0, 1), (2, 9), (1, 2), (8, 16), (9, 17), (3, 20)],
    [np.inf, -np.inf, 0.8, -1.1, np.inf, -0.4],
    NUM_POINTS,
)
STRENGTH = 1.3
TABLE = np.eye(2)[[0, 1, 0, 1]]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def four(seed, num=100, apart=2.5):
    """Set S1: two classes of two blobs each, side by side where the blobs are nearer."""
    rng = np.random.default_rng(seed)
    centres = np.array([(-1.5, -apart), (-1.5, apart), (1.5, -apart), (1.5, apart)])
    x = np.concatenate([c + 0.7 * rng.normal(size=(num, 2)) for c in centres])
    return x, np.repeat([0, 0, 1, 1], num)


def links_of(truth, num_must, num_cannot, seed):
    """Random pairs, so many of each kind."""
    drawn = sb.simulate_links(truth, 4 * (num_must + num_cannot), seed=seed)
    must, cannot = np.flatnonzero(drawn.same), np.flatnonzero(~drawn.same)
    return drawn.take(np.sort(np.concatenate([must[:num_must], cannot[:num_cannot]])))


def params_of(size=4, seed=0):
    """Parameters of full Gaussians near the data, and discriminants of no special form."""
    rng = np.random.default_rng(seed)
    root = 0.3 * rng.normal(size=(size, 2, 2)) + np.eye(2)
    return {
        "weights": rng.dirichlet(np.full(size, 4.0)),
        "mean": 2 * rng.normal(size=(size, 2)),
        "covariance": root @ root.transpose(0, 2, 1),
        "discriminants": 0.5 * rng.normal(size=(size, 6)),
        "assignment": np.eye(2)[np.arange(size) % 2],
    }


def matched(params, x=X):
    """The same parameters with the discriminants of the mixture's own posterior."""
    centre, unit = x.mean(axis=0), x.std(axis=0)
    inside = (params["mean"] - centre) / unit, params["covariance"] / np.outer(unit, unit)
    found = matched_discriminants(np.log(params["weights"]), *inside, "full")
    return params | {"discriminants": np.asarray(found)}


def log_densities(params, x=X):
    parts = zip(params["mean"], params["covariance"], strict=True)
    return np.stack([multivariate_normal(m, s).logpdf(x) for m, s in parts], axis=1)


def problem_of(links=LINKS, **options):
    args = jnp.asarray(X), LabelGraph.build(links, NUM_POINTS)
    given = {"num_clusters": 2, "num_components": 4, "strength": STRENGTH, "prior": "flat"}
    return Problem(mcp, args, given | options)


def mixture_of(problem, params):
    ((fn, value),) = collapsed_sites(trace_model(problem, params)).values()
    return fn, value


def free_energy(params, q, links=LINKS, strength=STRENGTH):
    """Eq. 3.12, written out: violated links at their price."""
    joint = np.log(params["weights"]) + log_densities(params)
    energy = (q * (np.log(np.where(q > 0, q, 1.0)) - joint)).sum()
    p = q @ params["assignment"]
    for (i, j), w in zip(links.pairs, links.weights, strict=True):
        price = strength if np.isinf(w) else abs(w)
        energy += price * (1 - p[i] @ p[j] if w > 0 else p[i] @ p[j])
    return energy


def softmax(scores):
    return np.exp(scores - logsumexp(scores, axis=1, keepdims=True))


def test_bound_is_the_free_energy_written_out():
    """Eqs. 3.9, 3.12, 3.17, and the normaliser of the statements."""
    params = params_of()
    fn, value = mixture_of(problem_of(), params)
    basis = np.asarray(monomials((X - X.mean(axis=0)) / X.std(axis=0), "full"))
    q = softmax(basis @ params["discriminants"].T)
    expected = free_energy(params, q)
    np.testing.assert_allclose(fn.free_energy(value), expected, rtol=1e-12)
    prices = np.where(np.isinf(LINKS.weights), STRENGTH, np.abs(LINKS.weights))
    coins = np.log1p(np.exp(-prices)).sum()
    np.testing.assert_allclose(fn.log_prob(value), -expected - coins, rtol=1e-12)
    np.testing.assert_allclose(fn.responsibilities(value), q @ params["assignment"], atol=1e-12)


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
    alone, _ = mixture_of(Problem(gmm, (jnp.asarray(X),), form), plain)
    graph = LabelGraph.build(None, NUM_POINTS)
    own = Problem(mcp, (jnp.asarray(X), graph), form | {"num_components": 3})
    centred = (params["mean"] - X.mean(axis=0)) / unit
    phi = matched_discriminants(np.log(params["weights"]), centred, scaled, covariance)

    def bound(phi):
        given = plain | {"discriminants": phi, "assignment": np.eye(3)}
        fn, value = mixture_of(own, given)
        return fn.log_prob(value)

    value, slope = jax.jit(jax.value_and_grad(bound))(phi)
    np.testing.assert_allclose(value, alone.log_prob(jnp.asarray(X)), atol=1e-9)
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
    fn, value = mixture_of(field, {k: start[k] for k in ("weights", "mean", "covariance")})
    own = float(jax.jit(lambda: fn.free_energy(value))())
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
    basis = np.asarray(monomials((X - X.mean(axis=0)) / X.std(axis=0), "full"))
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


def test_clusters_of_components_settle_where_none_can_move():
    """V-step: against all tables, and with each cluster kept."""
    rng = np.random.default_rng(0)
    settle = jax.jit(settled_clusters, static_argnums=(3, 4))
    for _ in range(5):
        pull = rng.normal(size=(5, 5))
        pull = pull + pull.T
        value = lambda own, pull=pull: (pull * (own[:, None] == own)).sum()  # noqa: E731
        start, alive = rng.integers(0, 3, 5), jnp.ones(5, bool)
        found = np.asarray(settle(pull, jnp.asarray(start), alive, 3, False))
        assert value(found) >= value(start)
        for k, cluster in itertools.product(range(5), range(3)):
            other = found.copy()
            other[k] = cluster
            assert value(other) <= value(found) + 1e-12
    together = np.ones((4, 4))
    kept = settle(together, jnp.array([0, 1, 2, 2]), jnp.ones(4, bool), 3, True)
    assert len(np.unique(kept)) == 3
    assert (
        len(np.unique(settle(together, jnp.array([0, 1, 2, 2]), jnp.ones(4, bool), 3, False))) == 1
    )


def test_children_keep_the_moments_of_their_parent():
    """R21, and that the scores of a split are those of the mixture it makes."""
    params = params_of(3)
    graph = LabelGraph.build(LINKS.with_strength(1.0), NUM_POINTS)
    args = jnp.asarray(X), graph, jnp.arange(4) < 4
    options = {"num_clusters": 4, "keep_all": False, "prior": "flat"}
    problem = Problem(mcp_with_room, args, options)
    wide = {name: np.concatenate([v, v[-1:]]) for name, v in params.items() if name != "assignment"}
    owner = np.array([0, 1, 0, 0])
    wide["assignment"] = np.eye(4)[owner]
    admitted = np.arange(4) < 3
    go = jax.jit(lambda *rest: split_candidates(problem, *rest))
    table, log_likelihood, sites = jax.tree.map(np.asarray, go(wide, args, owner, admitted, 3))
    for k, axis in itertools.product(range(3), range(2)):
        split = {name: v[k, axis] for name, v in sites.items()}
        both = [k, 3]
        share = split["weights"][both]
        np.testing.assert_allclose(share, params["weights"][k] / 2, rtol=1e-12)
        mean = split["mean"][both].mean(axis=0)
        np.testing.assert_allclose(mean, params["mean"][k], atol=1e-12)
        apart = split["mean"][both] - mean
        spread = split["covariance"][both].mean(axis=0) + apart.T @ apart / 2
        np.testing.assert_allclose(spread, params["covariance"][k], atol=1e-12)
        joint = np.log(split["weights"]) + log_densities(split)
        np.testing.assert_allclose(
            log_likelihood[k, axis], logsumexp(joint, axis=1).sum(), rtol=1e-10
        )
        own = owner.copy()
        own[3] = 2  # choice 3 is cluster 2
        p = softmax(joint) @ np.eye(4)[own]
        agree = (p[LINKS.pairs[:, 0]] * p[LINKS.pairs[:, 1]]).sum(axis=1)
        broken = np.where(LINKS.same, 1 - agree, agree).mean()
        np.testing.assert_allclose(table[k, axis, 0, 3], broken, rtol=1e-9)
    assert np.isinf(table[0, 0, 1, 2])
    assert np.isinf(table[0, 0, 0, 4])
    assert np.isinf(table[3]).all()


def test_room_for_more_components_changes_nothing():
    """Components that take no part leave density and slope as they are."""
    params = params_of()
    graph = LabelGraph.build(
        LINKS.with_weights(np.clip(LINKS.weights, -STRENGTH, STRENGTH)), NUM_POINTS
    )
    given = {"num_clusters": 2, "keep_all": True, "prior": "flat"}
    odd = {name: np.concatenate([v, v[:2]]) for name, v in params.items()}
    odd["weights"][4:] = 1e-13
    wide = Problem(mcp_with_room, (jnp.asarray(X), graph, jnp.arange(6) < 4), given)
    fn, value = mixture_of(wide, odd)
    narrow, _ = mixture_of(problem_of(), params)
    np.testing.assert_allclose(fn.log_prob(value), narrow.log_prob(value), rtol=1e-12)
    np.testing.assert_allclose(fn.memberships(value)[:, :4], narrow.memberships(value), atol=1e-14)
    np.testing.assert_array_equal(fn.memberships(value)[:, 4:], 0.0)


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
    for posterior, alike in (("partition", True), ("mean_field", False)):
        options = {"num_clusters": 2, "strength": 100.0, "posterior": posterior, "prior": "flat"}
        problem = Problem(scp, (jnp.asarray(x), LabelGraph.build(links, len(x))), options)
        fn, value = mixture_of(problem, apart)
        prob = np.asarray(fn.memberships(value))
        assert (prob[0].argmax() == prob[1].argmax()) == alike
        assert np.allclose(prob[0], prob[1], atol=1e-12) == alike
    alone = fn.label_factors(fn.log_factors(value))
    np.testing.assert_allclose(prob[1], softmax(np.asarray(alone))[1], atol=1e-12)


@pytest.fixture(scope="module")
def separated():
    """S1 with ten links of each kind: one component a class, by the shared rule."""
    with jax.enable_x64(True):
        x, truth = four(0)
        engine = EM(num_restarts=12, num_inner_steps=30)
        links = links_of(truth, 10, 10, 0)
        return (
            x,
            truth,
            sb.fit("scp", x, links, num_clusters=2, engine=engine, truth=truth, progress=False),
        )


def test_links_move_space(separated):
    """R19 and R16: the classes are found, and the bound never falls."""
    _, truth, fit = separated
    labels = fit.labels()
    right = max((labels == truth).mean(), (labels != truth).mean())
    assert right >= 0.95
    assert np.nanmin(np.diff(fit.objective, axis=1)) > -1e-6
    assert fit.approximate == "space_partition"


def test_new_points(separated, tmp_path):
    """Eq. 3.17: prediction goes by the rule, on whatever other data, and survives a file."""
    _, _, fit = separated
    new, _ = four(9, 5)
    basis = np.asarray(monomials((new - fit.params["centre"]) / fit.params["unit"], "full"))
    q = softmax(basis @ fit.params["discriminants"].T)
    np.testing.assert_allclose(fit.predict_proba(new), q, atol=1e-10)
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_allclose(again.predict_proba(new[:3]), q[:3], atol=1e-10)
    assert np.isfinite(fit.log_prob(new)).all()


def test_data_are_drawn_as_the_gaussians_are(separated):
    x, _, fit = separated
    drawn = fit.predictive(seed=1)["posterior_predictive"]["x"].to_numpy().reshape(-1, 2)
    np.testing.assert_allclose(drawn.mean(axis=0), x.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(drawn.std(axis=0), x.std(axis=0), rtol=0.05)


def test_number_of_clusters_is_found():
    """R20: four components, two classes; links merge them."""
    x, truth = four(1)
    options = {"num_clusters": 4, "num_components": 4, "keep_all": False, "strength": 10.0}
    fit = sb.fit(
        "mcp", x, links_of(truth, 20, 20, 1), engine=EM(num_restarts=5), progress=False, **options
    )
    assert len(np.unique(fit.params["assignment"].argmax(axis=1))) == 2
    labels = fit.labels()
    table = np.array([[np.sum((labels == k) & (truth == c)) for k in range(4)] for c in (0, 1)])
    assert table.max(axis=0).sum() / len(truth) >= 0.96
    assert np.nanmin(np.diff(fit.objective, axis=1)) > -1e-6


def test_select_clusters():
    x, truth = four(2, 40)
    choice = sb.select_clusters(
        x,
        links_of(truth, 15, 15, 2),
        strengths=(10.0,),
        most_components=3,
        engine=EM(num_restarts=2, max_steps=50),
        truth=truth,
        progress=False,
    )
    assert choice.num_clusters == 2
    assert list(choice.path.index) == list(range(2, 2 + len(choice.path)))
    chosen = choice.path.loc[choice.num_components]
    least = choice.path["bic"].to_numpy().argmin()
    assert chosen["violation"] <= choice.path["violation"].iloc[: least + 1].min() + 0.01
    assert choice.fit.params["mean"].shape == (choice.num_components, 2)
    right = (choice.fit.labels() == truth).mean()
    assert max(right, 1 - right) > 0.95


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": None}, "links is a NoneType"),
        ({"links": Links.empty(NUM_POINTS)}, "links is empty"),
        ({"strengths": ()}, "strengths is empty"),
        ({"strengths": (-1.0,)}, "strengths = -1.0"),
        ({"most_components": 1}, "most_components = 1"),
        ({"engine": "em"}, "engine is a str"),
        ({"strength": 3.0}, "cannot be given"),
        ({"x": X[:, 0]}, "x has shape"),
        (
            {"links": Links([(0, 1), (1, 2), (0, 2)], [np.inf, np.inf, -np.inf], NUM_POINTS)},
            "contradicts",
        ),
    ],
)
def test_select_clusters_refuses(change, message):
    given = {"x": X, "links": LINKS, "progress": False} | change
    with pytest.raises((TypeError, ValueError), match=message):
        sb.select_clusters(given.pop("x"), given.pop("links"), **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_components": 1}, "num_components = 1"),
        ({"posterior": "exact"}, "posterior = 'exact'"),
        ({"strength": -1.0}, "strength = -1.0"),
        ({"covariance": "round"}, "covariance = 'round'"),
    ],
)
def test_models_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        sb.fit("mcp", X, LINKS, num_clusters=2, progress=False, **options)


PRIOR = sb.GaussianPrior(np.zeros(2), 0.1, 5.0, np.eye(2))


def test_simulation():
    """Data are drawn where they are left out; the rule, which is no part of their law, is not."""
    drawn = handlers.trace(handlers.seed(mcp, 0)).get_trace(
        None, None, num_clusters=2, prior=PRIOR, num_points=7
    )
    assert drawn["x"]["value"].shape == (7, 2)
    assert drawn["assignment"]["value"].shape == (4, 2)
    assert "discriminants" not in drawn


def test_numpyro_has_the_same_density():
    params = params_of() | {"assignment": np.full((4, 2), 0.5)}
    options = {"num_clusters": 2, "prior": "flat", "strength": STRENGTH}
    found = log_density(mcp, (jnp.asarray(X), LINKS), options, params)[0]
    np.testing.assert_allclose(found, log_joint(problem_of(), params), rtol=1e-12)


@pytest.mark.slow
def test_numpyro_climbs_the_bound():
    def model():
        scp(X, LINKS, num_clusters=2, prior=PRIOR)

    start = init_to_value(values={"discriminants": jnp.zeros((2, 6))})
    svi = SVI(model, AutoDelta(model, init_loc_fn=start), numpyro.optim.Adam(0.05), Trace_ELBO())
    losses = svi.run(jax.random.key(1), 20, progress_bar=False).losses
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_numpyro_samples():
    def model():
        mcp(X, LINKS, num_clusters=2, prior=PRIOR)

    mcmc = MCMC(NUTS(model, max_tree_depth=2), num_warmup=3, num_samples=3, progress_bar=False)
    mcmc.run(jax.random.key(0))
    assert np.isfinite(mcmc.get_samples()["mean"]).all()


def test_entailed_links():
    """R22: chunklets of three and two, and a cannot-link between them."""
    links = Links([(1, 2), (2, 3), (4, 5), (1, 4)], [np.inf, np.inf, np.inf, -np.inf], 7)
    found = links.entailed()
    assert (found.same.sum(), (~found.same).sum()) == (4, 6)
    assert found.hard.all()
    pairs = {tuple(sorted(p)) for p in found.pairs[~found.same].tolist()}
    assert pairs == {(i, j) for i in (1, 2, 3) for j in (4, 5)}
    with pytest.raises(ValueError, match="contradicts"):
        Links([(1, 2), (2, 3), (1, 3)], [np.inf, np.inf, -np.inf], 7).entailed()
    assert len(Links([(0, 1)], [0.5], 3).entailed()) == 1
