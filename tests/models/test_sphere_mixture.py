"""Mixtures on the sphere: limits, symmetry, links, numbers of components, what is refused."""

import re
import runpy
import warnings
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from scipy.stats import vonmises_fisher
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.expectation_maximisation.failures import all_collapsed
from sidebayes.guides.engines.expectation_maximisation.stochastic_em import StochasticEM
from sidebayes.guides.engines.plumbing.side_by_side import one_member
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.updates import degenerate
from sidebayes.models.blocks.directional.directional_prior import DirectionalPrior
from sidebayes.models.blocks.directional.sphere_starts import warn_of_axes
from sidebayes.models.blocks.manifolds import sphere
from sidebayes.models.blocks.manifolds.directions import Direction
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.sphere_mixture import sphere_mixture

import sidebayes as sb
from tests.support.draws import Asked, Asking, at_one
from tests.support.sphere_fits import EACH, EVERY, KINDS, LABELS, X, fit
from tests.support.spheres import around, clusters

UNIT = Direction(3).log_prob(np.eye(3)[0])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def turned(rng, x):
    turn, _ = np.linalg.qr(rng.normal(size=(x.shape[1],) * 2))
    return x @ turn.T, turn


@EACH
def test_two_clusters_are_found(options):
    """Dossier, check 11."""
    found = fit(truth=LABELS, **options)
    order = np.argsort(found.params["direction"][:, 1])
    labels = np.argsort(order)[found.labels()]
    if options.get("covariance") != "low_rank":  # whose noise is that of the wider directions
        assert (labels == LABELS).mean() > 0.98
    direction = found.params["direction"][order]
    assert np.degrees(np.arccos(np.diag(direction @ np.eye(3)[:2].T))).max() < 6
    if "variance" in found.params:
        deviation = np.sqrt(found.params["variance"][order])
    else:
        deviation = np.sqrt(np.trace(found.params["covariance"], axis1=1, axis2=2)[order] / 2)
    np.testing.assert_allclose(deviation, [0.35, 0.15], rtol=0.25)


@EVERY
def test_em_is_monotone_and_ends_at_a_mode(options):
    """From poor starts, on clusters that overlap and reach over most of the sphere."""
    x = clusters(np.random.default_rng(3), 3, 2, 0.75, 120)
    problem = Problem(sphere_mixture, (jnp.asarray(x),), {"num_clusters": 2, **options})
    result = EM(num_restarts=12, tol=1e-10).run(problem, seed=1, progress=False)
    history = result.objective
    assert len(history) >= 12
    assert np.nanmin(np.diff(history, axis=1)) > -1e-10 * np.nanmax(np.abs(history))
    climbed = fit(x, engine="map", init=result.params, **options)
    np.testing.assert_allclose(climbed.params["direction"], result.params["direction"], atol=1e-3)
    assert np.nanmax(climbed.objective) < np.nanmax(history) + 1e-5


@pytest.mark.parametrize(
    "options",
    [pytest.param(o, marks=[pytest.mark.slow] * (n != "full")) for n, o in KINDS.items()],
    ids=KINDS,
)
def test_one_cluster_of_symmetric_points_has_their_karcher_mean_and_covariance(options):
    half = around(np.random.default_rng(0), np.eye(4)[0], 0.4, 60)
    x = np.vstack([half, half * [1, -1, -1, -1]])
    found = fit(x, num_clusters=1, prior="flat", **options).params
    mean = sphere.karcher_mean(jnp.asarray(x))
    np.testing.assert_allclose(found["direction"][0], [1, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(mean.mean, [1, 0, 0, 0], atol=1e-9)
    scatter = np.asarray(mean.tangents.T @ mean.tangents / len(x))
    if options.get("covariance") == "full":
        np.testing.assert_allclose(found["covariance"][0], scatter, atol=1e-6)
    elif options.get("covariance") == "spherical":
        np.testing.assert_allclose(found["variance"][0], np.trace(scatter) / 3, rtol=1e-6)
    elif "covariance" in options:
        values = np.linalg.eigvalsh(found["covariance"][0])[1:]
        own = np.linalg.eigvalsh(scatter)[1:]
        np.testing.assert_allclose(values, [*[own[:2].mean()] * 2, own[2]], rtol=1e-5)


def test_one_cluster_departs_from_the_karcher_mean_in_the_second_order():
    """Of skewed points the most probable mean differs, by the cube of their spread."""
    rng = np.random.default_rng(1)
    tangent = rng.gamma(1.0, size=(120, 2)) * [0.3, 0.1]
    apart = []
    for size in (0.5, 0.25, 0.125):
        start = np.column_stack([np.zeros(120), size * tangent])
        x = np.asarray(sphere.exp(jnp.eye(3)[0], jnp.asarray(start)))
        engine = sb.EM(tol=1e-14, max_steps=3000, num_restarts=1)
        mean = fit(x, engine=engine, num_clusters=1, prior="flat").params["direction"][0]
        other = sphere.karcher_mean(jnp.asarray(x)).mean
        apart.append(float(sphere.angle(jnp.asarray(mean), other)))
    ratio = np.array(apart[:-1]) / apart[1:]
    assert apart[0] > 1e-5
    assert (ratio > 6).all()  # halved, it would be eight


def test_small_angles_are_a_gaussian_mixture_in_the_tangent_plane():
    rng = np.random.default_rng(2)
    plane = np.vstack([rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) * [1, 0.4] + [3, 1]])
    size = 1e-4
    tangent = np.column_stack([np.zeros(120), size * plane])
    x = np.asarray(sphere.exp(jnp.eye(3)[0], jnp.asarray(tangent)))
    ours = fit(x, engine=sb.EM(tol=1e-12, max_steps=2000), prior="flat")
    theirs = sb.fit(
        "gmm", plane, num_clusters=2, prior="flat", engine=sb.EM(tol=1e-12, max_steps=2000)
    )
    order = np.argsort(ours.params["direction"][:, 1])
    other = np.argsort(theirs.params["mean"][:, 0])
    mean = ours.params["direction"][order, 1:] / size
    np.testing.assert_allclose(mean, theirs.params["mean"][other], atol=2e-4)
    covariance = ours.params["covariance"][order][:, 1:, 1:] / size**2
    np.testing.assert_allclose(covariance, theirs.params["covariance"][other], atol=1e-3)
    np.testing.assert_allclose(
        ours.params["weights"][order], theirs.params["weights"][other], atol=1e-4
    )
    area = -2 * 120 * np.log(size) + 2 * float(UNIT)  # and two vectors of length one
    value = np.nanmax(ours.objective)
    np.testing.assert_allclose(value, np.nanmax(theirs.objective) + area, atol=1e-4)


@EACH
def test_turning_the_data_turns_the_fit(options):
    rng = np.random.default_rng(5)
    x = np.vstack([around(rng, np.eye(3)[0], 0.3, 60), around(rng, np.eye(3)[1], 0.2, 60)])
    y, turn = turned(rng, x)
    engine = sb.EM(tol=1e-12, max_steps=2000, num_restarts=6)
    first, second = (fit(one, engine=engine, **options) for one in (x, y))
    np.testing.assert_allclose(np.nanmax(first.objective), np.nanmax(second.objective), atol=1e-6)
    order = np.argmax(first.params["direction"] @ turn.T @ second.params["direction"].T, axis=1)
    direction = second.params["direction"][order]
    np.testing.assert_allclose(direction, first.params["direction"] @ turn.T, atol=1e-4)
    if "covariance" in first.params:
        there = second.params["covariance"][order]
        np.testing.assert_allclose(there, turn @ first.params["covariance"] @ turn.T, atol=1e-4)
    np.testing.assert_allclose(first.bic, second.bic, atol=1e-4)


def test_links_and_known_clusters_are_kept():
    known = np.full(120, -1)
    known[[0, 1, 60, 61]] = [1, 1, 0, 0]
    links = sb.simulate_links(LABELS, 40, flip_rate=0.2, weight=1.0, seed=0)
    hard = Links([(0, 60), (2, 3)], [-np.inf, np.inf], 120)
    found = fit(links=links + hard, known=known, reading="relation", flip_rate="learned")
    assert (found.labels()[[0, 1, 60, 61]] == [1, 1, 0, 0]).all()
    assert (found.labels() == 1 - LABELS).mean() > 0.98
    assert 0.05 < found.params["flip_rate"] < 0.4


@pytest.mark.parametrize("kind", ["full", "von_mises_fisher"])
def test_the_circle(kind):
    rng = np.random.default_rng(0)
    x = np.vstack([around(rng, [1.0, 0.0], 0.2, 30), around(rng, [-1.0, 0.0], 0.3, 30)])
    labels = fit(x, **KINDS[kind]).labels()
    assert len(set(labels[:30])) == len(set(labels[30:])) == 1
    assert labels[0] != labels[-1]


@pytest.mark.slow
@EACH
def test_many_dimensions(options):
    rng = np.random.default_rng(0)
    x = np.vstack([around(rng, np.eye(20)[k], 0.1, 100) for k in range(2)])
    labels = fit(x, **options).labels()
    assert len(set(labels[:100])) == len(set(labels[100:])) == 1


def test_new_points_are_judged_in_the_frame_of_the_fit(tmp_path):
    """Means of new data lie elsewhere, and a frame of theirs would turn the covariances."""
    found = fit()
    x = np.asarray(around(np.random.default_rng(1), [0.0, 0.0, -1.0], 0.5, 7))
    whole = found.log_prob(np.vstack([X, x]))[-7:]
    np.testing.assert_allclose(found.log_prob(x), whole, rtol=1e-10)
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_allclose(again.log_prob(x), whole, rtol=1e-10)
    assert found.predict(np.eye(3)[:2]).tolist() == found.labels()[[0, 60]].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("criterion", "most"), [("bic", 3), ("evidence", 2)])
def test_number_of_components(criterion, most):
    """A third cluster that is not there changes the evidence by less than a nat, and its error is .2."""
    said = nullcontext()
    if (
        criterion == "evidence"
    ):  # a single cluster is too wide for its family, and two are the most tried
        said = pytest.warns(sb.SideBayesWarning)
    with said as warned:
        chosen = sb.select_components(
            "sphere_mixture",
            X,
            num_clusters=range(1, most + 1),
            criterion=criterion,
            progress=False,
        )
    assert chosen.num_clusters == 2
    if warned is not None:
        told = " ".join(str(one.message) for one in warned)
        assert "reaches around the sphere" in told
        assert "2 components are the most that were tried" in told


@EACH
def test_bic_counts_the_freedom_of_mean_and_covariance(options):
    x = clusters(np.random.default_rng(0), 4, 2, 0.3, 120)
    free = {"full": 6, "spherical": 1, "low_rank": 4, "von_mises_fisher": 1}
    name = next(name for name, given in KINDS.items() if given == options)
    found = fit(x, num_clusters=1, prior="flat", **options)
    value = found.log_prob(x).sum()
    np.testing.assert_allclose(found.bic, -2 * value + (3 + free[name]) * np.log(120), rtol=1e-8)


def test_wide_components_are_spoken_of():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = fit(x, num_clusters=1)
    assert found.params["missing_mass"][0] > 1e-3
    assert "left out" in str(found)


def test_what_cannot_be_fitted_is_refused():
    cases = {
        "row 3 of x has length 2": {"x": np.where(np.arange(120)[:, None] == 3, 2 * X, X)},
        "row 0 of x has length 2, the first of 120 such rows": {"x": 2 * X},
        "row 5 of x has length zero": {"x": np.where(np.arange(120)[:, None] == 5, 0 * X, X)},
        "two coordinates": {"x": np.ones((9, 1))},
        "family": {"family": "normal"},
        "covariance": {"covariance": "tied"},
        "spread alike": {"covariance": "full", "family": "von_mises_fisher"},
        "rank": {"covariance": "low_rank", "rank": 2},
        "DirectionalPrior": {"prior": sb.GaussianPrior(np.zeros(3), 1.0, 5.0, np.eye(3))},
        "must exceed": {"prior": DirectionalPrior(1.0, 0.3)},
        "dimension": {"dimension": 4},
        "x is one point, 9 times": {"x": np.repeat(X[:1], 9, axis=0)},
    }
    for message, given in cases.items():
        with pytest.raises(ValueError, match=message):
            fit(**given)
    with pytest.raises(ValueError, match="needs all data"):
        StochasticEM().run(Problem(sphere_mixture, (jnp.asarray(X),), {"num_clusters": 2}))
    with pytest.raises(ValueError, match="leaves no posterior"):
        fit(engine="gibbs", prior="flat")


def test_rounded_rows_are_fitted():
    rounded = fit(np.round(X, 3))
    np.testing.assert_allclose(np.nanmax(rounded.objective), np.nanmax(fit().objective), rtol=0.05)


@EVERY
def test_rows_are_simulated(options):
    given = {"num_clusters": 2, "num_points": 9, "prior": DirectionalPrior(8.0, 0.4), **options}
    with pytest.raises(ValueError, match="pass dimension"):
        trace(seed(sphere_mixture, 0)).get_trace(None, **given)

    @jax.jit
    def simulated():
        sites = trace(seed(sphere_mixture, 0)).get_trace(None, dimension=3, **given)
        return sites["x"]["value"]

    x = simulated()
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-10)
    assert x.shape == (9, 4)


def test_clusters_that_collapse_are_said():
    x = np.vstack([X[:60], np.repeat(X[60:61], 60, axis=0)])
    with pytest.raises(FitError, match="collapsed|singular|coincide"):
        fit(x, prior="flat", engine=EM(num_restarts=1))
    assert np.isfinite(np.nanmax(fit(x).objective))


@pytest.mark.slow
def test_iris_is_clustered_as_the_source_says():
    """Dossier, check 12: E-K3 on twenty subsamples, three coordinates."""
    module = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sphere_mixture.py"))
    x, labels = module["data_of"]("iris")
    found = []
    for number in range(20):
        rows = module["subsample"](labels, np.random.default_rng(number))
        found.append(module["errors"](x[rows], labels[rows], 3, number))
    spectral, flat, ours = np.mean(found, axis=0)
    assert ours < 0.12
    assert ours <= flat
    assert ours < spectral


def test_axes_with_both_ends_are_said():
    ends = np.random.default_rng(2).normal(size=(9, 3))
    ends /= np.linalg.norm(ends, axis=1, keepdims=True)
    with pytest.warns(sb.SideBayesWarning, match="18 of 20 points of x have their opposites"):
        warn_of_axes("x", np.concatenate([ends, -ends, np.eye(3)[:2]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_axes("x", np.concatenate([ends, -ends[:2]]))
        angle = 2 * np.pi * np.arange(24) / 24
        warn_of_axes("x", np.stack([np.cos(angle), np.sin(angle)], axis=1))


def asked(x, **given):
    """The problem that an engine is asked to fit."""
    with pytest.raises(Asked) as found:
        sb.fit("sphere_mixture", x, engine=Asking(), num_clusters=2, progress=False, **given)
    return found.value.problem


@pytest.mark.parametrize("are_known", [True, False])
def test_tight_clusters_do_not_reach_around_the_sphere(are_known):
    """A mean on the far side of its points has a higher joint density under a wide prior."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 30)
    x = np.eye(10)[labels] + 0.001 * rng.normal(size=(60, 10))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    known = sb.PartialLabels(labels if are_known else np.full(60, -1))
    found = EM().run(asked(x, known=known), progress=False)
    assert found.status.converged
    assert "ended where a component reaches around the sphere" in found.status.message
    angles = np.arccos(found.params["direction"] @ x.T)
    assert angles.min(axis=1).max() < 0.01
    assert found.params["missing_mass"].max() < 1e-6
    assert len(np.unique(np.stack([labels, angles.argmin(axis=0)]), axis=1).T) == 2


def test_new_rows_are_directions(tmp_path):
    x = np.array([[0.0, 0.0, 1.0], [0.6, 0.0, 0.8], [0.0, 0.6, 0.8]] * 4)
    mean = np.array([[0.0, 0.6, 0.8]])
    spread = 0.2 * (np.eye(3) - mean.T @ mean)
    known = {"pole": mean[0], "direction_vector": mean, "direction": mean, "variance": [0.2]}
    engine = at_one(known | {"weights": [1.0], "missing_mass": [0.0], "covariance": [spread]})
    given = {"num_clusters": 1, "covariance": "spherical", "engine": engine}
    fit = sb.fit("sphere_mixture", x, progress=False, **given)
    fit.predict(x[:2])
    with pytest.raises(ValueError, match="row 1 of x has length zero and no direction"):
        fit.log_prob(x[:2] * [[1.0], [0.0]])
    fit.save(tmp_path / "fit.nc")
    with jax.enable_x64(False):
        again = sb.load(tmp_path / "fit.nc", engine=engine)
        np.testing.assert_array_equal(again.predict(x[:2]), 0)


def test_equal_directions_begin_without_warnings_and_have_a_remedy():
    """Of the size of the tight clusters above, whose program is shared."""
    x, given = np.repeat(np.eye(10)[:2], 30, axis=0), {"known": sb.PartialLabels(np.full(60, -1))}
    flat = asked(x, prior="flat", **given)
    start = one_member(initial_values(flat, 0, 3, seeded=True), 0)
    start["tangent_covariance"] = np.array([0.0, 1.0])[:, None, None] * np.eye(9)
    error = all_collapsed(flat, degenerate(flat, start), start, start)
    assert re.search(
        r"cluster 0 .* collapsed \(its covariance is singular\); use prior='empirical', "
        r".* covariance='spherical'$",
        str(error),
    )
    assert EM().run(asked(x, **given), progress=False).status.converged


def test_equal_directions_collapse_with_the_remedies_that_there_are():
    """No library warns of its own: the k-means of the starts finds fewer directions than cells."""
    given = {"engine": sb.EM(num_restarts=1, max_steps=20), "num_clusters": 3, "progress": False}
    x = np.repeat(np.eye(3), 20, axis=0)
    with pytest.raises(
        FitError, match=r"collapsed .*; use prior='empirical', .* covariance='spherical'$"
    ):
        sb.fit("sphere_mixture", x, prior="flat", **given)
    sb.fit("sphere_mixture", x, prior="empirical", **given)


@pytest.mark.parametrize("engine", [sb.Laplace, sb.SVI])
@pytest.mark.parametrize("family", ["von_mises_fisher", "wrapped_normal"])
def test_approximations_are_judged_by_directions(family, engine):
    """And not by the lengths of their vectors, which nothing looks at."""
    x = vonmises_fisher(np.eye(3)[0], 20.0).rvs(400, random_state=0)
    given = {"num_clusters": 1, "family": family, "engine": engine(num_restarts=2)}
    grade, why = sb.fit("sphere_mixture", x, **given, progress=False).verdict
    assert grade == "good", why
