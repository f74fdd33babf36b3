"""Log evidence by bridge sampling, against exact evidences and from draws of exact posteriors."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.bridge import bridge_evidence
from sidebayes.guides.engines.modes import MISSED_MODE
from sidebayes.guides.engines.parts import Part

import sidebayes
from sidebayes import Fit

X = np.array([-2.1, -1.7, -1.4, 0.6, 0.9, 1.3])
WIDE, NOISE = 2.0, 0.7


def two_means(x: Annotated[np.ndarray, "points"], *, num_clusters: int) -> None:
    with numpyro.plate("clusters", num_clusters):
        mean = numpyro.sample("mean", dist.Normal(0.0, WIDE))
    each = dist.Categorical(probs=jnp.full(num_clusters, 1 / num_clusters))
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", dist.MixtureSameFamily(each, dist.Normal(mean, NOISE)), obs=x)


def exact_mixture(num_clusters: int, number: int) -> tuple[float, np.ndarray]:
    """Log evidence over all labelings, and draws of the means from the exact posterior."""
    rng = np.random.default_rng(0)
    labelings = np.array(list(itertools.product(range(num_clusters), repeat=len(X))))
    log_weight, means, spreads = [], [], []
    for labels in labelings:
        count = np.bincount(labels, minlength=num_clusters)
        total = np.bincount(labels, weights=X, minlength=num_clusters)
        precision = 1 / WIDE**2 + count / NOISE**2
        same = labels[:, None] == labels
        cover = NOISE**2 * np.eye(len(X)) + WIDE**2 * same
        log_weight.append(stats.multivariate_normal(np.zeros(len(X)), cover).logpdf(X))
        means.append(total / NOISE**2 / precision)
        spreads.append(1 / np.sqrt(precision))
    log_weight = np.array(log_weight) - len(X) * np.log(num_clusters)
    evidence = logsumexp(log_weight)
    chosen = rng.choice(len(labelings), number, p=np.exp(log_weight - evidence))
    return float(evidence), rng.normal(np.array(means)[chosen], np.array(spreads)[chosen])


@pytest.mark.parametrize("num_clusters", [2, 3])
@pytest.mark.parametrize("one_numbering", [False, True])
def test_all_numberings_of_a_mixture_are_counted(num_clusters, one_numbering):
    exact, draws = exact_mixture(num_clusters, 4000)
    draws = np.sort(draws, axis=1) if one_numbering else draws
    problem = Problem(two_means, (X,), {"num_clusters": num_clusters})
    found = bridge_evidence(problem, {"mean": draws.reshape(4, 1000, -1)})
    assert abs(found.value - exact) < 4 * found.standard_error < 0.1


def signed(y: Annotated[np.ndarray, "points"]) -> None:
    """Known up to the sign of the loading, as in a factor model of one outcome."""
    infer = {"symmetry": {"factors": "signs"}, "event_dims": ["factors"]}
    loading = numpyro.sample("loading", dist.Normal(0.0, 2.0).expand([1]).to_event(1), infer=infer)
    with numpyro.plate("points", len(y)):
        numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(0.25 + loading[0] ** 2)), obs=y)


@pytest.mark.parametrize("both", [False, True])
def test_both_signs_are_counted(both):
    y = np.array([0.6, -0.9, 0.5, -0.3, 0.8, -0.7])  # which leave loadings about zero
    grid = np.linspace(-12.0, 12.0, 48001)
    density = stats.norm(0, 2).logpdf(grid) + stats.norm(
        0, np.sqrt(0.25 + grid[:, None] ** 2)
    ).logpdf(y).sum(axis=1)
    exact = logsumexp(density) + np.log(grid[1] - grid[0])
    weight = np.exp(density - logsumexp(density))
    rng = np.random.default_rng(1)
    draws = rng.choice(grid, 4000, p=weight)
    draws = draws if both else np.abs(draws)
    found = bridge_evidence(Problem(signed, (y,)), {"loading": draws.reshape(4, 1000, 1)})
    assert abs(found.value - exact) < 4 * found.standard_error < 0.05


def line(x: Annotated[np.ndarray, "points columns"], y: Annotated[np.ndarray, "points"]) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, WIDE).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("points", len(y)):
        numpyro.sample("y", dist.Normal(jnp.asarray(x) @ slope, 1.0), obs=y)


def exact_line(
    columns: int, number: int
) -> tuple[tuple[np.ndarray, np.ndarray], float, np.ndarray]:
    """Data, log evidence, and draws of the slopes, which are correlated."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30, columns)) + 2 * rng.normal(size=(30, 1))
    y = x.sum(axis=1) + rng.normal(size=30)
    cover = np.linalg.inv(x.T @ x + np.eye(columns) / WIDE**2)
    marginal = stats.multivariate_normal(np.zeros(30), WIDE**2 * x @ x.T + np.eye(30))
    draws = rng.multivariate_normal(cover @ x.T @ y, cover, number)
    return (x, y), float(marginal.logpdf(y)), draws


def test_the_stated_error_is_that_of_repeated_runs():
    data, exact, draws = exact_line(6, 40 * 400)
    problem = Problem(line, data)
    found = [bridge_evidence(problem, {"slope": some}, 1) for some in draws.reshape(40, 4, 100, 6)]
    off = np.array([(one.value - exact) / one.standard_error for one in found])
    assert np.sqrt(np.mean(off**2)) == pytest.approx(0.8, abs=0.35)
    assert np.mean(np.abs(off) <= 2) >= 0.9


def test_too_few_draws_have_no_error():
    data, _, draws = exact_line(6, 16)
    with pytest.raises(FitError, match="effective terms of 50 that are needed"):
        bridge_evidence(Problem(line, data), {"slope": draws.reshape(2, 8, 6)})


@pytest.fixture(scope="module")
def drawn() -> tuple[Fit, float]:
    data, exact, draws = exact_line(3, 2000)
    return Fit.from_draws(line, data, {"slope": draws.reshape(4, 500, 3)}), exact


def test_a_fit_of_draws_is_given_its_evidence(drawn, tmp_path):
    fit, exact = drawn
    assert fit.log_evidence is None
    found = fit.with_evidence(seed=3)
    assert abs(found.log_evidence.value - exact) < 4 * found.log_evidence.standard_error
    assert found.with_evidence(seed=3).log_evidence == found.log_evidence
    assert fit.log_evidence is None
    found.save(tmp_path / "fit.nc")
    assert sidebayes.load(tmp_path / "fit.nc", model=line).log_evidence == found.log_evidence
    table = sidebayes.compare({"given": found, "again": fit}).frame
    assert table.loc["given", "log_evidence"] == found.log_evidence.value
    # its chains did not start at the prior, though the evidence has an error
    assert "started at the prior" not in str(sidebayes.compare({"given": found, "again": fit}))


def test_what_has_no_draws_of_the_posterior_is_refused(drawn):
    fit = drawn[0]
    data = fit.run.data["x"], fit.run.data["y"]
    for engine in (sidebayes.MAP(num_restarts=1), sidebayes.Laplace(num_restarts=1)):
        point = sidebayes.fit(line, *data, engine=engine, progress=False)
        with pytest.raises(ValueError, match=f"{engine.name} has no draws of the posterior itself"):
            point.with_evidence()


def test_draws_that_disagree_are_refused(drawn):
    fit = drawn[0]
    slope = fit.tree["posterior"]["slope"].to_numpy() + np.arange(4)[:, None, None]
    data = fit.run.data["x"], fit.run.data["y"]
    apart = Fit.from_draws(line, data, {"slope": slope})
    with pytest.raises(ValueError, match="the draws are not to be trusted.*chains disagree"):
        apart.with_evidence()


def test_improper_priors_and_turned_axes_have_none():
    flat = Problem(lambda y: numpyro.sample("y", dist.Normal(_flat(), 1.0), obs=y), (1.0,))
    with pytest.raises(ValueError, match="a prior is improper"):
        bridge_evidence(flat, {"level": np.zeros((4, 50))})
    turned = Problem(_turned, (np.ones((5, 2)),))
    with pytest.raises(ValueError, match="at may be turned at will"):
        bridge_evidence(turned, {"at": np.zeros((4, 50, 5, 2))})


def _flat() -> jnp.ndarray:
    return numpyro.sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))


def _turned(x: Annotated[np.ndarray, "points features"]) -> None:
    infer = {"symmetry": {"dimensions": "orthogonal"}, "event_dims": ["dimensions"]}
    with numpyro.plate("points", len(x)):
        at = numpyro.sample("at", dist.Normal(0, 1).expand([2]).to_event(1), infer=infer)
        numpyro.sample("d", dist.Normal(jnp.square(at).sum(-1), 1.0), obs=x[:, 0])


def test_a_mode_that_no_draw_came_near_leaves_a_lower_bound(drawn):
    fit = drawn[0]
    tree = fit.tree.copy()
    said = f"{MISSED_MODE}, 1.0 below the highest in log density"
    tree["fit_info"].attrs = {**tree["fit_info"].attrs, "remarks": json.dumps([said])}
    with pytest.warns(sidebayes.SideBayesWarning, match="call for caution: .*No draw came near"):
        bound = replace(fit, tree=tree).with_evidence().log_evidence
    full = fit.with_evidence().log_evidence
    assert bound.kind == "bound"
    assert bound.value == pytest.approx(full.value - 2 * full.standard_error)


def test_short_chains_are_refused_however_many_they_are():
    data, exact, draws = exact_line(6, 8000)
    problem = Problem(line, data)
    with pytest.raises(
        FitError, match="chains of 4 each, too short to know .* of 8 draws at least"
    ):
        bridge_evidence(problem, {"slope": draws.reshape(2000, 4, 6)})
    data, exact, draws = exact_line(6, 16000)  # thinned to no fewer than 8 a chain
    found = bridge_evidence(Problem(line, data), {"slope": draws.reshape(2000, 8, 6)})
    assert abs(found.value - exact) < 5 * found.standard_error


def test_what_is_the_same_for_all_clusters_does_not_number_them():
    def model(x):
        with numpyro.plate("clusters", 2):
            mean = numpyro.sample("mean", dist.Normal(0, 10))
            scale = numpyro.sample("scale", dist.HalfNormal(1))
        parts = dist.Normal(mean, scale)
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(np.ones(2) / 2), parts), obs=x)

    mean = np.array([-3.0, 3.0]) + 0.1 * np.random.default_rng(0).normal(size=(2, 40, 2))
    mean[:, ::2] = mean[:, ::2, ::-1].copy()
    with jax.enable_x64(True):
        part = Part.of(Problem(model, (X,)), {"mean": mean, "scale": np.full((2, 40, 2), 0.1)}, 0)
    assert np.unique(np.sign(part.places[..., :2]), axis=1).shape[1] == 1
