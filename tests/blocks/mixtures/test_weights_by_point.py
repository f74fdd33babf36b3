"""Mixing weights of each point, as in mixtures of experts: densities, posteriors and fits by brute force."""

from __future__ import annotations

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from scipy import stats
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.guides.engines.steps.batches import batched_log_prob, deal_batches
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph

import sidebayes as sb
from sidebayes import LabelGraph, LinkedCategorical, LinkedMixture, Links
from tests.reference.brute_force import infer
from tests.support.basics import responsibilities

RNG = np.random.default_rng(4)
WEIGHTS = np.log(RNG.dirichlet(np.ones(3), 6))
SOFT = Links([(0, 1), (1, 2), (2, 0), (3, 4)], [1.0, -0.7, 0.4, -2.0], num_points=6)
HARD = Links([(0, 1), (1, 2), (3, 4), (2, 5)], [np.inf, 0.8, -np.inf, -0.6], num_points=6)
X = RNG.normal(size=6)
MEANS = np.array([-1.0, 0.0, 1.5])


def mixture(links, weights=WEIGHTS, reading="field"):
    labels = LinkedCategorical(jnp.asarray(weights), as_label_graph(links, 6, 3), reading=reading)
    return LinkedMixture(labels, dist.Normal(jnp.asarray(MEANS), 1.0))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64():
        yield


@pytest.mark.parametrize("links", [None, SOFT, HARD], ids=["free", "soft", "hard"])
@pytest.mark.parametrize("reading", ["field", "relation", "unnormalised"])
def test_density_and_posterior(links, reading):
    fn = mixture(links, reading=reading)
    links = Links.empty(6) if links is None else links
    unary = stats.norm.logpdf(X[:, None], MEANS)
    log_z, prob, *_ = infer(unary + WEIGHTS, links.pairs, links.weights)
    soft = np.abs(links.weights[np.isfinite(links.weights)])
    must = (links.weights[np.isfinite(links.weights)] > 0) * 1.0
    log_omega, *_ = infer(WEIGHTS, links.pairs, links.weights)
    if reading == "relation":
        right = np.logaddexp(0.0, -soft)  # of a statement that is right with these log-odds
        log_omega = (right + must * soft).sum()
    expected = log_z - (0.0 if reading == "unnormalised" and len(links) else log_omega)

    @jax.jit
    def found(x):
        terms = fn.by_unit(x) if reading != "unnormalised" else fn.log_prob(x)
        return fn.log_prob(x), fn.responsibilities(x), terms

    density, share, terms = found(X)
    np.testing.assert_allclose(density, expected, rtol=1e-12)
    np.testing.assert_allclose(share, prob, atol=1e-12)
    np.testing.assert_allclose(terms.sum(), expected, rtol=1e-12)


def test_equal_rows_are_the_weights_of_all():
    shared = mixture(HARD, WEIGHTS[0])
    rows = mixture(HARD, np.tile(WEIGHTS[0], (6, 1)))
    one, other = jax.jit(lambda x: (rows.log_prob(x), shared.log_prob(x)))(X)
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_labels_are_drawn_by_the_weights_of_their_point():
    sure = np.log(np.eye(3)[[0, 1, 2, 0, 1, 2]] * 0.999 + 0.001 / 3)
    for reading in ("field", "relation"):
        labels = mixture(None, sure, reading).labels
        drawn = jax.jit(lambda key, labels=labels: labels.sample(key, (50,)))(jax.random.key(0))
        assert (np.asarray(drawn) == [0, 1, 2, 0, 1, 2]).mean() > 0.98


@pytest.mark.parametrize(
    ("weights", "options", "said"),
    [
        (WEIGHTS[:4], {}, "shape \\(4, 3\\).*one row for each of the 6 points"),
        (WEIGHTS, {"weight_per": "chunklet"}, "weight_per = 'chunklet'"),
        (WEIGHTS[None], {}, "log_weights is of shape \\(1, 6, 3\\); expected"),
    ],
)
def test_what_cannot_be_is_named(weights, options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        LinkedCategorical(weights, LabelGraph.build(None, 6), **options)


def experts(
    y: Annotated[ArrayLike, "points"],
    x: Annotated[ArrayLike, "points"],
    links: Annotated[Links | None, "points"] = None,
    *,
    num_clusters: int = 2,
):
    """Two levels, of which a covariate says which is the likelier."""
    with numpyro.plate("clusters", num_clusters):
        level = numpyro.sample("level", dist.Normal(0.0, 5.0))
        lean = numpyro.sample("lean", dist.Normal(0.0, 2.0))
    log_weights = jax.nn.log_softmax(jnp.asarray(x)[:, None] * lean)
    labels = LinkedCategorical(log_weights, as_label_graph(links, len(x), num_clusters))
    numpyro.sample("y", LinkedMixture(labels, dist.Normal(level, 1.0)), obs=y)


INPUT = RNG.normal(size=14)
CLASS = (INPUT + 0.5 * RNG.normal(size=14) > 0) * 1
OUTCOME = np.where(CLASS, 4.0, 0.0) + RNG.normal(size=14)
TIES = Links([(0, 1), (2, 3), (3, 4)], [1.0, -1.0, 0.5], num_points=14)
ENGINES = {
    "em": sb.EM(num_restarts=2),
    "map": sb.MAP(num_restarts=2),
    "nuts": sb.NUTS(num_warmup=60, num_samples=120, num_chains=1),
}


def by_hand(params, y, x, links):
    """Log density of the data, and label probabilities."""
    lean = x[:, None] * params["lean"]
    log_weights = lean - np.logaddexp.reduce(lean, axis=1, keepdims=True)
    unary = stats.norm.logpdf(y[:, None], params["level"])
    log_z, prob, *_ = infer(unary + log_weights, links.pairs, links.weights)
    return log_z - infer(log_weights, links.pairs, links.weights)[0], prob


@pytest.fixture(scope="module", params=[None, TIES], ids=["free", "linked"])
def fits(request):
    @functools.cache
    def fit(engine):
        given = {"links": request.param, "engine": ENGINES[engine], "progress": False}
        return sb.fit(experts, OUTCOME, INPUT, **given)

    return fit


@pytest.mark.parametrize("engine", ENGINES)
def test_fits_and_predictions(fits, engine):
    fit = fits(engine)
    links = fit.links if len(fit.links) else Links.empty(14)
    draws = fit.tree["posterior"].isel(chain=0, draw=-1)
    params = {name: draws[name].to_numpy() for name in ("level", "lean")}
    density, prob = by_hand(params, OUTCOME, INPUT, links)
    prior = sum(stats.norm.logpdf(params[n], 0.0, s).sum() for n, s in (("level", 5), ("lean", 2)))
    joint = fit.tree["sample_stats"]["lp"].isel(chain=0, draw=-1)
    if engine != "nuts":  # whose density is that of unconstrained coordinates, here the same
        np.testing.assert_allclose(joint, density + prior, rtol=1e-9)
    terms = fit.tree["log_likelihood"]["y"].isel(chain=0, draw=-1)
    np.testing.assert_allclose(float(terms.sum()), density, rtol=1e-6)
    if engine != "nuts":
        np.testing.assert_allclose(fit.responsibilities(), prob, atol=1e-6)
        new_y, new_x = np.array([0.5, 3.0, 2.0]), np.array([-1.0, 1.0, 0.3])
        tie = Links([(0, 2)], [1.5], num_points=3)
        expected = by_hand(fit.params, new_y, new_x, tie)[1]
        np.testing.assert_allclose(fit.predict_proba(new_y, new_x, tie), expected, atol=1e-6)


@pytest.mark.parametrize("links", [None, TIES], ids=["free", "linked"])
def test_em_ends_at_a_mode(links):
    args = jnp.asarray(OUTCOME), jnp.asarray(INPUT), as_label_graph(links, 14, 2)
    problem = Problem(experts, args)
    start = {"level": np.array([1.0, 3.0]), "lean": np.array([-0.5, 0.5])}
    found = sb.EM(num_restarts=1).run(problem, init=start, progress=False)
    slope = jax.jit(jax.grad(lambda params: log_joint(problem, params)))(found.params)
    for name, value in slope.items():
        np.testing.assert_allclose(value, 0.0, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("links", [None, TIES], ids=["free", "linked"])
def test_em_and_map_find_one_mode(links):
    args = jnp.asarray(OUTCOME), jnp.asarray(INPUT), as_label_graph(links, 14, 2)
    problem = Problem(experts, args)
    found = [ENGINES[name].run(problem, progress=False) for name in ("em", "map")]
    np.testing.assert_allclose(*(np.nanmax(one.objective) for one in found), atol=1e-3)
    labels = [responsibilities(problem, one.params).argmax(axis=1) for one in found]
    assert np.equal(*labels).mean() in (0.0, 1.0)


@pytest.mark.filterwarnings("ignore:Pareto k")  # of a short chain
def test_leave_one_out(fits):
    found = fits("nuts").loo()
    assert len(found.elpd_i) == (11 if len(fits("nuts").links) else 14)
    assert np.isfinite(found.elpd)


def test_batches_of_components_add_up():
    fn = mixture(SOFT)
    site = {"type": "sample", "is_observed": True, "fn": fn, "value": jnp.asarray(X)}
    batches = deal_batches(fn.labels.graph, 2, 0)
    term = jax.jit(lambda batches, number: batched_log_prob({"y": site}, batches, number))
    terms = [term(batches, number) for number in range(len(batches))]
    np.testing.assert_allclose(np.mean(terms), jax.jit(fn.log_prob)(X), rtol=1e-12)
