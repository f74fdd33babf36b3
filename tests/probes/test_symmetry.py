"""Symmetries that a user declares at a site: alignment, invariants, and false declarations."""

import warnings

import arviz as az
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy import stats
from sidebayes.diagnostics.sites import symmetries_of
from sidebayes.diagnostics.symmetry.invariants import convergence, invariants

import sidebayes as sb
from tests.probes import models
from tests.probes.data import IRIS

LOADINGS = np.array([[2, 0], [1.5, 0.5], [0, 1.5], [-1, 1], [0.3, -1.2]])
NOISE = 0.3


def exact_sample():
    """Data whose covariance is that of the model: beyond two dimensions there is nothing to see."""
    raw = np.random.default_rng(0).normal(size=(150, 7))
    white = np.linalg.qr(raw - raw.mean(axis=0))[0] * np.sqrt(150)
    return white[:, :2] @ LOADINGS.T + NOISE * white[:, 2:]


X = exact_sample()
# short trajectories do not get far along the circle on which the loadings lie
ENGINE = sb.NUTS(num_warmup=300, num_samples=1000, num_chains=4, jitter=1.0, max_tree_depth=4)


@pytest.fixture(scope="module")
def found():
    return sb.fit(models.factors, X, num_dimensions=2, engine=ENGINE, progress=False)


def worst(tree):
    return float(az.rhat(tree["posterior"].to_dataset()[["loadings"]])["loadings"].max())


def test_chains_agree_once_aligned(found):
    tree, score = found.aligned
    assert score == 1.0
    assert worst(found.tree) > 1.5
    assert worst(tree) < 1.05
    assert found.convergence["rhat"] < 1.05
    table = found.summary()
    rows = [row for row in table.index if row.startswith("loadings")]
    raw = found.tree["posterior"]["loadings"].to_numpy().std(axis=(0, 1))
    assert table.loc[rows, "sd"].astype(float).mean() < 0.2 * raw.mean()


def test_estimate_describes_the_data(found):
    """Means of turned draws would cancel out."""
    params = found.params
    cover = params["loadings"] @ params["loadings"].T + params["noise"] ** 2 * np.eye(5)
    np.testing.assert_allclose(cover, np.cov(X.T), atol=0.25)
    raw = found.tree["posterior"]["loadings"].to_numpy().mean(axis=(0, 1))
    assert np.abs(raw @ raw.T - LOADINGS @ LOADINGS.T).max() > 1.0


def test_invariants_are_those_of_the_raw_draws(found):
    aligned = found.aligned[0]
    xr.testing.assert_allclose(invariants(aligned), invariants(found.tree))
    assert convergence(aligned) == pytest.approx(found.convergence)
    assert "loadings" not in invariants(found.tree)


def test_declaration_is_saved(found, tmp_path):
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", model=models.factors)
    assert symmetries_of(again.tree) == {"loadings": "dimensions"}
    np.testing.assert_allclose(again.params["loadings"], found.params["loadings"])


def test_a_superfluous_dimension_warns():
    """Loadings of a third dimension have no direction; estimates are those of one draw."""
    fit = sb.fit(models.factors, X, num_dimensions=3, engine=ENGINE, progress=False)
    with pytest.warns(sb.SideBayesWarning, match="draws cannot be turned to agree"):
        params = fit.params
    best = fit.tree["sample_stats"]["lp"].to_numpy()
    chain, draw = np.unravel_index(best.argmax(), best.shape)
    np.testing.assert_allclose(params["loadings"], fit.tree["posterior"]["loadings"][chain, draw])


def test_nothing_changes_for_other_models():
    quick = sb.NUTS(num_warmup=10, num_samples=10, num_chains=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)  # few draws
        fit = sb.fit("gmm", IRIS, num_clusters=2, engine=quick, progress=False)
        assert fit.aligned[0] is fit.relabelled[0]
    assert symmetries_of(fit.tree) == {}
    assert "alignment" not in fit.aligned[0]


def declared(x, *, symmetry, scale=1.0, event_dims=("features", "dimensions")):
    """Loadings whose dimensions may be of different sizes."""
    normal = dist.Normal(0.0, scale).expand([x.shape[1], 2]).to_event(2)
    infer = {"event_dims": list(event_dims), "symmetry": symmetry}
    loadings = numpyro.sample("loadings", normal, infer=infer)
    with numpyro.plate("points", len(x)):
        fn = dist.LowRankMultivariateNormal(np.zeros(x.shape[1]), loadings, np.ones(x.shape[1]))
        numpyro.sample("x", fn, obs=x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"symmetry": {"dimensions": "orthogonal"}, "scale": np.array([1.0, 3.0])},
            "axis 'dimensions' of the sites \\['loadings'\\] changes the log density by",
        ),
        ({"symmetry": {"features": "orthogonal"}}, "axis 'features' .* changes the log density"),
        ({"symmetry": {"places": "orthogonal"}}, r"symmetry names axes \['places'\]"),
        ({"symmetry": {"dimensions": "rotation"}}, "symmetry={'dimensions': 'rotation'}; expected"),
        ({"symmetry": "orthogonal"}, "symmetry='orthogonal'; expected a mapping"),
        (
            {"symmetry": {"dimensions": "orthogonal", "features": "orthogonal"}},
            "has the axes .*; one is possible",
        ),
    ],
)
def test_false_declarations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sb.fit(declared, X, engine="map", progress=False, **options)


def crossed(y, *, num_dimensions):
    """Inner products of vectors, in noise."""
    shape = [len(y), num_dimensions]
    infer = {"event_dims": ["rows", "dimensions"], "symmetry": {"dimensions": "orthogonal"}}
    z = numpyro.sample("z", dist.Normal().expand(shape).to_event(2), infer=infer)
    numpyro.sample("y", dist.Normal(z @ z.T, 0.1).to_event(2), obs=y)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("surplus", [0, 1])
def test_laplace_has_the_volume_of_the_orbits(size, surplus):
    """Inner products of normal vectors are Wishart, so that the evidence is an integral over these."""
    rng = np.random.default_rng(size)
    z = 2 * np.eye(size) + 0.5 * rng.normal(size=(size, size))
    y, degrees = z @ z.T, size + surplus
    off = np.where(np.eye(size), 1.0, np.sqrt(0.5))
    noise = np.triu(0.1 * off * rng.normal(size=(100_000, size, size)))
    near = y + noise + np.triu(noise, 1).mT
    weights = stats.wishart(degrees, np.eye(size)).pdf(np.moveaxis(near, 0, -1))
    exact = np.log(weights.mean()) - size * (size - 1) / 2 * np.log(2 * np.sqrt(np.pi) * 0.1)
    error = weights.std() / weights.mean() / np.sqrt(len(weights))
    given = {"num_dimensions": degrees, "progress": False}
    close = sb.fit(crossed, y, engine=sb.Laplace(importance=True), **given).log_evidence
    assert abs(close.value - exact) < 4 * np.hypot(close.standard_error, error)
    found = sb.fit(crossed, y, engine=sb.Laplace(), **given)
    assert abs(found.log_evidence.value - exact) < 0.1
    spread = found.tree["posterior"]["z"].to_numpy().std(axis=(0, 1))
    assert spread.max() < 0.2


def test_laplace_refuses_orbits_of_too_few_dimensions():
    with pytest.raises(sb.FitError, match="span 1 of 3 dimensions"):
        sb.fit(crossed, np.eye(1), num_dimensions=3, engine="laplace", progress=False)


def test_laplace_is_near_draws(found):
    """Covariances that loadings make are as those of a sampler."""
    given = {"num_dimensions": 2, "progress": False}
    gaussian = sb.fit(models.factors, X, engine="laplace", **given)
    covers = [
        np.einsum("cdik,cdjk->cdij", one, one).reshape(-1, 25)
        for one in (fit.tree["posterior"]["loadings"].to_numpy() for fit in (gaussian, found))
    ]
    sizes = covers[1].std(axis=0)
    np.testing.assert_array_less(np.abs(covers[0].mean(axis=0) - covers[1].mean(axis=0)), sizes)
    np.testing.assert_allclose(covers[0].std(axis=0), sizes, rtol=0.25)
