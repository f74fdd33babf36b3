"""Messages of sixty rows: of narrow clusters, and against a diagonal mixture without saliencies."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr
from sidebayes.diagnostics.trust.scores import accuracy
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.feature_saliency_diagonal import Diagonal, all_used, that_ranks
from sidebayes.guides.feature_saliency_steps import Sites, Weighed
from sidebayes.models.blocks.saliency.saliencies import two_modes_remark
from sklearn.mixture import GaussianMixture

import sidebayes as sb
from tests.support.draws import at_one

ENGINE = sb.ComponentwiseEM(num_restarts=1, max_steps=1000)
SHAPE = 200, 10  # that of test_feature_saliency.py, whose program serves here as well


def three_clusters(gap):
    """Features of which three or four are larger in each of three clusters."""
    rng = np.random.default_rng(2)
    labels = rng.integers(3, size=SHAPE[0])
    return np.eye(3)[labels].repeat([4, 3, 3], axis=1) * gap + rng.normal(size=SHAPE)


@pytest.fixture(scope="module")
def ranked():
    x = three_clusters(1.4)
    return sb.fit("feature_saliency", x, num_clusters=6, engine=ENGINE), x


@pytest.fixture(scope="module")
def plain():
    x = three_clusters(1.2)
    return sb.fit("feature_saliency", x, num_clusters=6, engine=ENGINE), x


def bic_of(fit, x):
    """BIC from the density of the rows and the parameters in use, counted one by one."""
    used = int((fit.params["weights"] > 0).sum())
    free = used - 1
    for rho in fit.params["saliency"]:
        free += 2 * used * (rho > 0) + 2 * (rho < 1) + (0 < rho < 1)
    return free * np.log(len(x)) - 2 * fit.log_prob(x).sum()


def test_bic_counts_the_parameters_in_use(plain):
    fit, x = plain
    problem, saliency = fit.run.problem, np.repeat([0.0, 0.3, 1.0, 0.7], [2, 1, 6, 1])

    @jax.jit
    def weighed(params):
        at = Weighed.of(trace_model(problem, params), Sites.of(problem))
        likelihood = at.log_joint() - at.log_prior
        return at.bic(likelihood), likelihood

    with jax.enable_x64(True):
        params = {n: jnp.asarray(v) for n, v in fit.params.items()}
        bic, likelihood = weighed(params | {"saliency": jnp.asarray(saliency)})
    # weights, two saliencies, eight features in three clusters, four common densities
    free = 2 + 2 + 8 * 3 * 2 + 4 * 2
    assert float(bic) == pytest.approx(free * np.log(len(x)) - 2 * float(likelihood))


def test_a_diagonal_mixture_of_smaller_bic_is_named(ranked):
    fit, x = ranked
    said = re.search(
        r"mixture without saliencies, of (\d) clusters, has BIC ([\d.]+) against ([\d.]+) here",
        str(fit.status),
    )
    number, least, own = int(said[1]), float(said[2]), float(said[3])
    assert own == pytest.approx(bic_of(fit, x), abs=0.01)
    assert least < own - 2
    assert f"num_clusters={number}, covariance='diagonal'" in str(fit.status)
    # at its best likelihood, without a prior, that mixture is at least as good
    other = GaussianMixture(number, covariance_type="diag", n_init=10, random_state=0).fit(x)
    assert other.bic(x) < least


def test_a_diagonal_mixture_that_is_found_is_named(plain):
    fit, _ = plain
    assert (fit.params["saliency"] == 1).all()
    assert "no saliency pays for itself: this is a diagonal mixture" in str(fit.status)
    assert "has BIC" not in str(fit.status)


@pytest.mark.parametrize(
    ("shape", "rows", "engine"),
    [(SHAPE, 30, ENGINE), ((60, 6), 12, sb.ComponentwiseEM(num_restarts=3))],
    ids=["thirty", "twelve"],
)
def test_narrow_clusters_are_found_beside_wide_ones(shape, rows, engine):
    """Twelve rows suffice for a cluster fifty times as narrow as the data."""
    rng = np.random.default_rng(2)
    labels = np.minimum(np.arange(shape[0]) // rows, 4)
    width = np.array([0.02, 0.02, 0.02, 0.02, 1.0])[labels, None]
    x = rng.normal(size=(5, shape[1]))[labels] + width * rng.normal(size=shape)
    fit = sb.fit("feature_saliency", x, num_clusters=6, engine=engine)
    assert (fit.params["weights"] > 0).sum() == 5
    assert accuracy(labels, fit.labels()) > 0.99


def test_the_better_of_two_mixtures_is_kept():
    none = Diagonal(jnp.asarray(jnp.inf), jnp.asarray(0))
    assert none.remark(10.0, all_normal=True) is None
    first = none.beside(jnp.asarray(True), jnp.asarray(7.0), jnp.asarray(3))
    assert (float(first.bic), int(first.clusters)) == (7.0, 3)
    for counts, bic in ((False, 1.0), (True, 8.0)):
        assert first.beside(jnp.asarray(counts), jnp.asarray(bic), jnp.asarray(2)) == first
    assert first.remark(8.9, all_normal=True) is None  # too little to mention
    said = "A diagonal mixture without saliencies, of 3 clusters, has BIC 7 against 9.5 here"
    assert first.remark(9.5, all_normal=False) == said
    assert first.remark(9.5, all_normal=True).startswith(
        f"{said}; compare with sidebayes.fit('gmm'"
    )


def test_learned_saliencies_are_kept_beside_as_many_clusters_without():
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.6, 0.4, 0.0]])
    saliency = np.array([[0.9, 0.4], [0.8, 0.3], [1.0, 1.0]])
    value = np.array([-20.0, -15.0, -10.0])
    normal, counts = (2, 2), (1, 1)

    def chosen(value=value, weights=weights, kinds=normal, rows=100):
        return that_ranks(value, weights, saliency, kinds, rows)

    assert chosen() == 0
    assert chosen(value[::-1]) == 0  # learned, and the shortest
    assert chosen(weights=weights[[1, 1, 2]]) == 2  # of other numbers of clusters
    assert chosen(weights=np.eye(3)[[0, 0, 0]]) == 2  # one cluster ranks nothing
    assert chosen(rows=20) == 2  # longer than two saliencies and normal common densities cost
    assert chosen(kinds=counts) == 2  # whose common densities have one parameter each
    saliency[2, 0] = 0.0
    assert chosen() == 2  # which says what does not matter


@pytest.mark.slow
def test_saliencies_of_trunk_fall():
    """Check 17: clusters lie 1 / sqrt(feature) apart; the thesis' saliencies fall with the feature."""
    means = 1 / np.sqrt(np.arange(1, 21))
    rng = np.random.default_rng(1)
    x = np.repeat([1.0, -1.0], 5000)[:, None] * means + rng.normal(size=(10_000, 20))
    fit = sb.fit("feature_saliency", x, num_clusters=8, seed=1)
    saliency = fit.params["saliency"]
    assert (fit.params["weights"] > 0).sum() == 2
    assert spearmanr(saliency, np.arange(20)).statistic < -0.8
    assert saliency[0] > 0.85
    assert saliency[-1] < 0.5
    assert "with all saliencies at one it is" in str(fit.status)


def test_a_cluster_of_two_modes_is_named():
    """Corners of an L are two clusters, one of which has two modes in a feature of saliency one half."""
    values = {
        "saliency": [0.5, 1.0, 0.0],
        "location": [[0.1, 8.0, 0.0], [8.0, 0.0, 0.0], [9.0, 9.0, 9.0]],
        "spread": np.ones((3, 3)),
        "common_location": [0.0, 4.0, 0.0],
        "common_spread": [1.0, 16.0, 1.0],
        "mixing_weights": [0.4, 0.6, 0.0],
    }
    values = {name: np.array(value, float)[None, None] for name, value in values.items()}
    said = two_modes_remark(values, range(3))
    assert said.startswith(
        "Cluster 1 has two modes in feature 0, whose saliency is 0.50: values near 8,"
    )
    far = values | {role: values[role] + 10_000 for role in ("location", "common_location")}
    assert "values near 10008, its own, and near 10000, common" in two_modes_remark(far, range(3))
    wide = values | {"common_spread": np.full((1, 1, 3), 16.0)}
    assert two_modes_remark(wide, range(3)) is None
    draws = {name: np.repeat(value, 2, axis=1) for name, value in values.items()}
    assert two_modes_remark(draws, range(3)) is None


@pytest.mark.parametrize(("names", "shown"), [(["width", "len"], "'len'"), (None, "1")])
def test_features_of_two_modes_go_by_their_names(names, shown):
    x = np.random.default_rng(0).normal(size=(30, 2))
    params = {"weights": [1.0], "saliency": [0.9, 0.5], "mean": [[0.0, 8.0]], "common_mean": [0, 0]}
    params |= {"variance": [[1.0, 1.0]], "common_variance": [1.0, 1.0]}
    given = {"num_clusters": 1, "selection": "sparse", "progress": False, "feature_names": names}
    fit = sb.fit("feature_saliency", x, **given, engine=at_one(params))
    assert f"Cluster 0 has two modes in feature {shown}, whose" in fit.status.message


def test_two_modes_of_like_width_are_named_from_a_smaller_distance_on():
    """Two equal normals 3.2 deviations apart have a valley between them."""
    values = {
        "saliency": [0.6],
        "location": [[0.0]],
        "spread": [[1.0]],
        "common_location": [3.2],
        "common_spread": [1.0],
        "mixing_weights": [1.0],
    }
    values = {name: np.array(value, float)[None, None] for name, value in values.items()}
    assert two_modes_remark(values, range(1)).startswith("Cluster 0 has two modes in feature 0")
    near = values | {"common_location": np.full((1, 1, 1), 2.8)}
    assert two_modes_remark(near, range(1)) is None


def test_all_clusters_that_are_allowed_are_said():
    assert all_used(5, 6, all_normal=True) is None
    said = all_used(6, 6, all_normal=True)
    assert said.startswith("All 6 clusters allowed are used: raise num_clusters")
    assert "fit('gmm', x, num_clusters=...)" in said
    assert "gmm" not in all_used(6, 6, all_normal=False)


def test_a_correlated_cluster_takes_all_that_are_allowed():
    """Unless classes name all clusters, which allows for no others."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(3), 0.9 + 0.1 * np.eye(3), 150)
    engine = sb.ComponentwiseEM(num_restarts=1)
    options = {"num_clusters": 2, "engine": engine, "progress": False}
    known = np.where(np.arange(150) % 3 == 0, x[:, 0] > 0, -1)
    one_class = np.where(known == 0, 0, -1)
    fit = sb.fit("feature_saliency", x, known=one_class, **options)
    assert "All 2 clusters allowed are used" in fit.tree["fit_info"].attrs["remarks"]
    told = sb.fit("feature_saliency", x, known=known, **options)
    assert "clusters allowed" not in told.tree["fit_info"].attrs.get("remarks", "")
