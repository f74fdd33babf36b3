"""What the methods of a user's own blocks return is checked before a fit: shapes, draws, means, starts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines import draw_checks
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.draw_checks import check_draws
from sidebayes.guides.engines.expectation_maximisation import em
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.update_checks import _rise_from_mode, check_updates
from sidebayes.guides.engines.steps.updates import plan_updates
from sidebayes.models.blocks.block import Block
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc

X = np.random.default_rng(0).normal(np.repeat([-2.0, 2.0], 20))
START = {"precision": jnp.array([1.0, 1.5])}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


class Precisions(Block):
    """Precisions of normal distributions about known means, under gamma priors.

    Numbers say how draws and means are changed: data, so that all changes share a program.
    """

    factor, roles = "unary", ("precision",)
    loc = jnp.array([-2.0, 2.0])

    def __init__(self, twist):
        self.spread, self.shift, self.stated = twist

    def sample(self):
        with numpyro.plate("clusters", 2):
            precision = self.declare("precision", "precision", dist.Gamma(2.0, 2.0))
        return dist.Normal(self.loc, precision**-0.5)

    def statistics(self, observation):
        member = observation.expected["unary"]
        squares = (observation.value[:, None] - self.loc) ** 2
        return member.sum(axis=0), (member * squares).sum(axis=0)

    def update(self, statistics, sources):
        return 2.0 + statistics[0] / 2, 2.0 + statistics[1] / 2

    def mode(self, found, values):
        return {"precision": (found[0] - 1) / found[1]}

    def log_density(self, found, values):
        return dist.Gamma(*found).log_prob(values["precision"]).sum()

    def draw(self, rng_key, found):
        mean = found[0] / found[1]
        drawn = dist.Gamma(*found).sample(rng_key)
        return {"precision": self.shift * (mean + self.spread * (drawn - mean))}

    def means(self, found):
        return {"precision": self.stated * found[0] / found[1]}


def own(x, twist, *, kind=Precisions):
    labels = LinkedCategorical(jnp.log(jnp.array([0.5, 0.5])), as_label_graph(None, len(x)))
    numpyro.sample("x", LinkedMixture(labels, kind(twist).sample()), obs=x)


def problem_of(*, kind=Precisions, twist=(1.0, 1.0, 1.0)):
    return Problem(own, (jnp.asarray(X), jnp.asarray(twist)), {"kind": kind})


@pytest.mark.parametrize(
    ("twist", "message"),
    [
        ((1.0, 1.0, 1.0), None),
        ((0.7, 1.0, 1.0), "draw contradicts Precisions.log_density: the spread of 4000 draws"),
        ((1.15, 1.0, 1.0), "the spread of 4000 draws of precision"),
        ((0.0, 1.0, 1.0), "draw returned values of 'precision' that are the same in all"),
        ((1.0, 1.05, 1.0), "the centre of 4000 draws of precision"),
        ((1.0, -1.0, 1.0), "outside the support of precision"),
        ((np.nan, 1.0, 1.0), "draw returned values of 'precision' that are not finite"),
        ((1.0, 1.0, 2.0), "means contradicts Precisions.draw: the mean of 4000 draws"),
        ((1.0, 1.0, np.nan), "where the block states nan"),
    ],
)
def test_draws_and_means_are_compared_with_the_density(twist, message):
    """Before, Gibbs sampling reported such draws as a good result."""
    problem = problem_of(twist=twist)
    if message is None:
        check_draws(problem, plan_updates(problem), START)
        return
    with pytest.raises(ValueError, match=message):
        check_draws(problem, plan_updates(problem), START)


@pytest.mark.slow  # compiles samplers of Dirichlet, Wishart and beta distributions
def test_blocks_of_the_library_draw_from_their_densities(monkeypatch):
    """Simplices, covariances and flip rates; see also `tests.models.test_copies`."""
    monkeypatch.setattr(draw_checks, "has_own_draws", lambda block: True)
    x = jnp.asarray(np.c_[X, X[::-1] ** 2])
    graph = LabelGraph.build(Links.must_link([(0, 1), (20, 30)], weight=1.0), len(x))
    options = {"num_clusters": 2, "reading": "relation", "flip_rate": "learned"}
    problem = Problem(ppc, (x, graph), options)
    plan = plan_updates(problem)
    assert len(plan.parts) == 3
    check_draws(problem, plan, {n: v[0] for n, v in initial_values(problem, 0, 1).items()})


def test_blocks_of_the_library_cost_nothing(monkeypatch):
    monkeypatch.setattr(draw_checks, "compiled", None)
    problem = Problem(gmm, (jnp.asarray(X[:, None]),), {"num_clusters": 2})
    check_draws(problem, plan_updates(problem), {})


class Named(Precisions):
    def mode(self, found, values):
        return {"precisions": found[0] / found[1]}


class Narrow(Precisions):
    def mode(self, found, values):
        return {"precision": found[0][:1]}


class Bare(Precisions):
    def mode(self, found, values):
        return found[0] / found[1]


class Mean(Precisions):
    def mode(self, found, values):
        return {"precision": found[0] / found[1]}


class Raised(Precisions):
    def mode(self, found, values):
        return {"precision": 1.3 * (found[0] - 1) / found[1]}


class OnEdge(Precisions):
    """Its density is highest at zero, where its coordinate would be infinite."""

    def update(self, statistics, sources):
        return 0.5 + 0 * statistics[0], 2.0 + statistics[1]

    def mode(self, found, values):
        return {"precision": jnp.full(2, 1e-9)}


@pytest.mark.parametrize("kind", [Mean, Raised, Precisions])
def test_mode_is_compared_with_the_density(kind):
    """Before, EM called the end of such steps converged, though its objective had fallen."""
    problem = problem_of(kind=kind)
    plan = plan_updates(problem)
    if kind is Precisions:
        check_updates(problem, plan, START)
        return
    with pytest.raises(ValueError, match=f"{kind.__name__}.mode contradicts {kind.__name__}.log_d"):
        check_updates(problem, plan, START)


def test_mode_on_the_edge_of_a_support_is_accepted():
    problem = problem_of(kind=OnEdge)
    (part,) = plan_updates(problem).parts
    block = OnEdge((1.0, 1.0, 1.0))
    found = block.update((jnp.zeros(2), jnp.ones(2)), [])
    point = {"precision": block.mode(found, {})["precision"]}

    @jax.jit  # operation by operation, it would compile dozens of programs
    def rise(point):
        return _rise_from_mode(problem, part, block, found, point, problem.args)

    assert rise(point) == 0.0
    assert rise({"precision": jnp.full(2, 1.0)}) > 0.1


def test_em_says_that_its_objective_fell(monkeypatch):
    monkeypatch.setattr(em, "check_updates", lambda *given: None)
    result = em.EM(num_restarts=1).run(problem_of(kind=Raised), init=START, progress=False)
    assert not result.status.converged
    assert "EM lowered the log joint by" in result.status.message


class Empty(Precisions):
    def mode(self, found, values):
        return {}


class Undefined(Precisions):
    def mode(self, found, values):
        return {"precision": jnp.nan * found[0]}


class Lost(Precisions):
    def statistics(self, observation):
        return tuple(jnp.nan * one for one in super().statistics(observation))


class Mistaken(Precisions):
    def statistics(self, observation):
        return (observation.expected["labels"],)


class Long(Precisions):
    def update(self, statistics, sources):
        return statistics[0] + jnp.zeros(3), statistics[1]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Named, "Named.mode returned values of precisions; the roles of its sites are precision"),
        (Narrow, r"Narrow.mode returned 'precision' of shape \(1,\); expected \(2,\)"),
        (Bare, "Bare.mode returned .*; return a dict of arrays by role"),
        (Empty, "Empty.mode returned values of no role"),
        (Undefined, "Undefined.mode returned NaN at the first start"),
        (Lost, "Lost.statistics returned NaN at the first start"),
        (Mistaken, r"Mistaken.statistics failed \(KeyError: 'labels'\)"),
        (Long, r"Long.update failed for statistics of shapes \(2,\), \(2,\)"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_an_update_returns_is_checked(kind, message):
    problem = problem_of(kind=kind)
    with pytest.raises(ValueError, match=message):
        check_updates(problem, plan_updates(problem), START)


class Started(Precisions):
    values = jnp.ones((3, 2))

    def starts(self, value, shapes, seed, num_starts):
        return {"precision": self.values}


class StartedBadly(Started):
    values = jnp.ones((3, 3))


class StartedOutside(Started):
    values = -jnp.ones((3, 2))


class StartedNowhere(Started):
    values = jnp.nan * jnp.ones((3, 2))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (StartedBadly, r"starts returned 'precision' of shape \(3, 3\); expected \(3, 2\)"),
        (StartedOutside, r"StartedOutside.starts\['precision'\] lies outside the support"),
        (StartedNowhere, r"StartedNowhere.starts\['precision'\] is not finite"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_starts_are_checked(kind, message):
    np.testing.assert_array_equal(
        initial_values(problem_of(kind=Started), 0, 3)["precision"], np.ones((3, 2))
    )
    with pytest.raises(ValueError, match=message):
        initial_values(problem_of(kind=kind), 0, 3)


class Misspelt(Precisions):
    factor = "unari"


class Elsewhere(Precisions):
    roles = ("speed",)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Misspelt, "Misspelt learns from the log-factor unari, .*; its sites enter unary"),
        (Elsewhere, r"Elsewhere declares site 'precision' with role 'precision', and .*'speed'"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_factors_and_roles_that_do_not_exist_are_refused(kind, message):
    with pytest.raises(ValueError, match=message):
        plan_updates(problem_of(kind=kind))
