"""Simulation-based calibration from the front door."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Engine, EngineResult, FitError, Status
from sidebayes.models.blocks.mixtures.data_units import fitted_statistic
from sidebayes.models.pairwise_gp import pairwise_gp
from sidebayes.models.ppc import ppc

import sidebayes as sb
from sidebayes import (
    CARDS,
    NUTS,
    CoordinateAscent,
    GaussianPrior,
    LabelGraph,
    Links,
    calibrate,
    flip_rate_weight,
)
from sidebayes.studies.calibration import _outcome, _simulate

PRIOR = GaussianPrior(np.zeros(2), 0.05, 6.0, np.eye(2))


def shifted(x, *, num_points=None):
    """Normal data of unknown mean, written as a mixture of two equal components."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    both = dist.Normal(shift * jnp.ones((2, 1)), 1.0).to_event(1)
    with numpyro.plate("points", num_points if x is None else len(x)):
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), both), obs=x)


def tilted(x, *, num_points=None):
    """The same with a factor, from whose prior nobody can draw."""
    shifted(x, num_points=num_points)
    numpyro.factor("tilt", 1.0)


@dataclass(frozen=True)
class Conjugate(Engine):
    """Draws from the posterior of `shifted`, or from one that is too narrow."""

    spread: float = 1.0
    num_draws: int = 30
    name: ClassVar[str] = "conjugate"

    def run(self, problem, *, seed=0, init=None, progress=True):
        if not self.num_draws:
            raise FitError("broken")
        x = np.asarray(problem.args[0])
        size = len(x) + 1
        noise = np.random.default_rng(seed).normal(size=(2, self.num_draws))
        draws = {"shift": x.sum() / size + self.spread * noise / np.sqrt(size)}
        return EngineResult(
            self.name,
            draws,
            {"lp": np.zeros((2, self.num_draws))},
            np.empty((0, 0)),
            Status(True, "drawn"),
            {"compile": 0.0, "run": 0.0},
        )


def sloped(y: Annotated[Any, "rows"], doses: Annotated[Any, "rows"]):
    """The same data, of doses that are given."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(doses)):
        numpyro.sample("y", dist.Normal(shift * jnp.asarray(doses), 1.0), obs=y)


def measured(x, *, num_points=None):
    """The same, with a statistic of the data noted, which is no parameter."""
    fitted_statistic("middle", jnp.zeros(()) if x is None else jnp.mean(x))
    shifted(x, num_points=num_points)


def run(engine, **options):
    return calibrate(shifted, engine, num_points=5, num_simulations=25, progress=False, **options)


def test_exact_posterior_passes_and_a_narrow_one_fails():
    exact, narrow = run(Conjugate(), seed=1), run(Conjugate(0.4), seed=1)
    assert "shift" in exact.ranks
    assert "log_likelihood" in exact.ranks
    assert replace(exact, level=1e-3).calibrated, exact
    assert not narrow.calibrated
    assert narrow.table.loc["shift"].coverage_90 < 0.75
    assert str(narrow).startswith("shifted by conjugate: not calibrated")


def test_labels_that_cannot_vary_are_no_fault():
    """Both components are the same, and so are the labels of all draws and truths."""
    found = calibrate(shifted, Conjugate(), num_points=5, num_simulations=34, progress=False)
    assert set(found.untold) == {"occupied", "entropy", "same_sampled[0]", "same_sampled[1]"}
    assert set(found.ranks) == {"log_likelihood", "shift"}
    assert found.calibrated, found


def test_statistics_of_the_data_have_no_rank():
    found = calibrate(
        measured,
        NUTS(num_warmup=50, num_samples=50, num_chains=1),
        num_points=5,
        num_simulations=10,
    )
    assert "shift" in found.ranks
    assert "middle" not in found.ranks


def test_outcomes_of_a_given_design_are_drawn():
    ones = np.ones(5)
    given = {"num_simulations": 25, "progress": False, "seed": 1}
    exact = calibrate(sloped, Conjugate(), doses=ones, **given)
    narrow = calibrate(sloped, Conjugate(0.4), doses=ones, **given)
    assert exact.calibrated, exact
    assert not narrow.calibrated
    assert narrow.table.loc["shift"].coverage_90 < 0.75
    with pytest.raises(TypeError, match=r"which say how many rows there are; leave out"):
        calibrate(sloped, Conjugate(), doses=ones, num_points=5)
    with pytest.raises(TypeError, match="nothing is drawn; leave out the outcomes"):
        calibrate(sloped, Conjugate(), doses=ones, y=ones)
    design = {"fixed": ones[:, None], "random": ones[:, None], "subjects": [0, 0, 1, 1, 1]}
    prior = sb.EffectsPrior([0.0], [1.0], [1.0], 1.0)
    both = {"y": ones, "prior": prior, "hazard": sb.HazardPrior([1.0], -1.0)} | design
    with pytest.raises(TypeError, match=r"\['y'\] are outcomes, which are drawn; leave them out"):
        calibrate("joint_survival", "nuts", **both)
    with pytest.raises(ValueError, match="prior of site|improper"):
        calibrate("mixed_effects", "nuts", fixed=ones[:, None], random=ones[:, None], subjects=ones)


def test_links_simulated_as_statements_are_right_as_often_as_they_say():
    links = Links.from_pairs([(0, 1), (2, 3), (4, 5)], [1, 0, 1], flip_rate_weight(0.2), 6)
    size = 400
    options = {"num_clusters": 2, "prior": PRIOR, "reading": "relation"}
    far = options | {"prior": GaussianPrior(np.zeros(2), 1e-6, 30.0, np.eye(2))}
    with jax.enable_x64(True):
        graph = LabelGraph.build(links, 6)
        params, x, agree = _simulate(ppc, None, graph, 6, far, size, 0)
        _, _, none = _simulate(ppc, None, graph, 6, far | {"reading": "field"}, 10, 0)
    assert x.shape == (size, 6, 2)
    assert none is None
    # clusters are a thousand apart: the nearest mean is the label
    label = np.argmin(((x[:, :, None] - params["mean"][:, None]) ** 2).sum(axis=-1), axis=2)
    same = label[:, links.pairs[:, 0]] == label[:, links.pairs[:, 1]]
    wrong = (agree != same).mean()
    assert abs(wrong - 0.2) < 4 * np.sqrt(0.16 / (3 * size))


def test_bad_input():
    with pytest.raises(ValueError, match="gives 4 draws"):
        run(Conjugate(num_draws=2))
    with pytest.raises(ValueError, match="engine 'map' gives a point, .*such as 'nuts'"):
        run("map")  # before a fit is made
    with pytest.raises(TypeError, match="cannot simulate"):
        calibrate("soft_kmeans", "em", num_points=10, num_clusters=2)
    with pytest.raises(TypeError, match="draws its rows itself"):
        calibrate("gmm", "nuts", x=np.eye(4), num_clusters=2)
    with pytest.raises(TypeError, match=r"gmm needs num_points=\.\.\., the number of rows"):
        calibrate("gmm", "nuts", num_clusters=2)
    with pytest.raises(ValueError, match="num_simulations = 3"):
        calibrate(shifted, "nuts", num_points=5, num_simulations=3)
    improper = {"num_points": 20, "num_clusters": 2, "prior": PRIOR}
    with pytest.raises(ValueError, match="'saliency' is improper; .* Pass selection='sparse'"):
        calibrate("feature_saliency", "nuts", **improper)
    with pytest.raises(
        ValueError, match=r"factors \['tilt'\].*; calibrate draws from models without"
    ):
        calibrate(tilted, "nuts", num_points=5)
    with pytest.raises(
        TypeError, match="latent_shape has .*; leave num_points and x out"
    ):  # and one cluster by default
        calibrate("latent_shape", "nuts", num_points=5)
    with pytest.raises(FitError, match="all 25 fits failed"):
        run(Conjugate(num_draws=0))


def shift_of(y: Annotated[Any, "rows"]):
    """The same with one table, and no rows to draw."""
    sloped(y, np.ones(len(y)))


def undeclared(x, z):
    """The same, without annotations."""
    sloped(x, z)


def test_what_is_missing_is_called_as_the_model_calls_it():
    unknown = r"sloped has no option 'dose' \(did you mean 'doses'\?\); its options: \[\], its data"
    for given in ({}, {"doses": np.ones(5)}, {"num_points": 5}):
        with pytest.raises(TypeError, match=unknown):
            calibrate(sloped, Conjugate(), dose=np.ones(5), **given)
    with pytest.raises(TypeError, match="pass by name the .* held, all of .'y', 'doses'. but the"):
        calibrate(sloped, Conjugate())
    for given in ({}, {"num_points": 5}):
        with pytest.raises(TypeError, match="draw num_points rows when y is None$"):
            calibrate(shift_of, Conjugate(), **given)
    declared = (
        'or leave x out and annotate the data: x: Annotated.*, z: Annotated.ArrayLike, "rows"'
    )
    with pytest.raises(TypeError, match=declared):
        calibrate(undeclared, Conjugate(), z=np.ones(5))
    with pytest.raises(ValueError, match="draws nothing beside x, which is given"):
        calibrate(shift_of, Conjugate(), x=np.ones((5, 1)), num_simulations=10)


def test_statements_about_given_features_are_simulated():
    """Clusters of a classifier are decided by the features, so clear statements are never wrong."""
    x = np.array([[-3.0], [-2.0], [2.0], [3.0]])
    links = Links.from_pairs([(0, 1), (1, 2), (2, 3)], True, 60.0, 4)
    options = {"num_clusters": 2, "variance": 1e8}
    with jax.enable_x64(True):
        params, data, agree = _simulate(
            pairwise_gp, x, LabelGraph.build(links, 4), 4, options, 50, 0
        )
    assert np.array_equal(data, np.broadcast_to(x, (50, 4, 1)))
    assert params["coefficients"].shape == (50, 2, 1)
    assert np.array_equal(agree, np.tile([True, False, True], (50, 1)))


def test_a_card_in_small():
    engine = CoordinateAscent(num_draws=50, num_restarts=2)
    result = calibrate(
        "gmm",
        engine,
        num_points=12,
        num_simulations=10,
        num_clusters=2,
        prior=PRIOR,
        progress=False,
    )
    assert len(result.ranks) + result.failed == 10
    assert {"log_likelihood", "sorted_weights[0]", "entropy", "occupied"} <= set(result.ranks)
    assert result.ranks.to_numpy().min() > 0
    assert result.ranks.to_numpy().max() < 1


BENCH = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "calibration.py"))
POINTS_ONLY = {
    "em",
    "map",
    "newton",
    "kmeans",
    "stochastic_em",
    "componentwise_em",
    "continuation",
    "hard_classes",
}
CANNOT_SIMULATE = {
    "constrained_kmeans",
    "soft_kmeans",
    "constraint_fit",
    "constraint_projection",
    "nfgl",
    "hierarchical_shape",  # draws coordinates, of which x is made; in them it is the density of ppc
}
EXACT = {"nuts", "mclmc", "geodesic", "gibbs", "smc", "nested"}


def test_every_card_and_bayesian_engine_is_covered():
    pairs = [*BENCH["pairs"](), *BENCH["REFUSED"]]
    ran = {(BENCH["CASES"][case][0], BENCH["ENGINES"][engine].name) for case, engine in pairs}
    wanted = {
        (card.name, engine)
        for card in CARDS.values()
        for engine in set(card.engines) - POINTS_ONLY
        if card.name not in CANNOT_SIMULATE
    }
    assert wanted <= ran
    for case, engine in BENCH["REFUSED"]:
        with pytest.raises(ValueError, match=r"gives \['\w+'.*\] a point"):
            BENCH["run"](case, engine, 10)


@pytest.mark.parametrize(
    "case", [name for name, (_, options) in BENCH["CASES"].items() if "num_points" in options]
)
def test_every_case_draws_its_rows(case):
    card, options = BENCH["CASES"][case]
    rows = options["num_points"]
    model = CARDS[card].model if isinstance(card, str) else card
    rest = {name: value for name, value in options.items() if name not in ("num_points", "x")}
    assert _outcome(model, None, rows, rest) in ("x", "distances", None)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "engine"), BENCH["pairs"]())
def test_every_pair(case, engine):
    """Samplers must be calibrated; where approximations are not, docs/calibration.md says."""
    exact = BENCH["ENGINES"][engine].name in EXACT
    result = BENCH["run"](case, engine, 50 if exact else 20, seed=1000)
    assert result.failed <= 2
    if exact:
        assert replace(result, level=1e-3).calibrated, result


def test_a_branch_for_missing_data_is_run_with_num_points_alone():
    """As the page on calibration says."""
    seen = []

    def points(x: Annotated[Any, "points"] = None, *, num_points=None):
        seen.append(x is None)
        shifted(x, num_points=num_points)

    def rows(y: Annotated[Any, "rows"], doses: Annotated[Any, "rows"]):
        seen.append(y is None)
        sloped(y, doses)

    given = {"num_simulations": 10, "progress": False}
    simulated = pytest.raises(FitError, match="all 10 fits failed")  # and none is asked for
    with simulated:
        calibrate(rows, Conjugate(num_draws=0), doses=np.ones(5), **given)
    assert seen
    assert not any(seen)
    with simulated:
        calibrate(points, Conjugate(num_draws=0), num_points=5, **given)
    assert any(seen)
