"""Contrasted saliencies, and what a loaded fit says of features: in the precision of the fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.models.blocks.saliency.passes import Salient, salient_densities

import sidebayes as sb
from tests.support.draws import Pruned, at_one


@pytest.fixture(scope="module")
def normal():
    """Fit that knows its parameters, and whose saliencies are all one."""
    rng = np.random.default_rng(2)
    z = rng.integers(3, size=150)
    means = np.stack([3 * (z == 1), 2 * (z == 2), z, 2 * z], axis=1)
    x = rng.normal(means)
    each = [x[z == k] for k in range(3)]
    params = {
        "weights": np.bincount(z) / 150,
        "saliency": np.ones(4),
        "mean": [rows.mean(axis=0) for rows in each],
        "variance": [rows.var(axis=0) for rows in each],
        "common_mean": x.mean(axis=0),
        "common_variance": x.var(axis=0),
    }
    given = {"num_clusters": 3, "selection": "sparse", "progress": False}
    return sb.fit("feature_saliency", x, engine=at_one(params), **given)


@pytest.fixture(scope="module")
def far():
    """Known parameters of a normal feature a hundred million from zero, and of counts, with gaps."""
    rng = np.random.default_rng(0)
    z = rng.integers(2, size=100)
    x = np.stack([1e8 + rng.normal(4 * z), rng.poisson(2 + 5 * z)], axis=1)
    x[:5, 0], x[5:10, 1] = np.nan, np.nan
    params = {
        "weights": [0.5, 0.5, 0.0],
        "saliency": [1.0, 0.8],
        "mean": [[1e8], [1e8 + 4], [1e8]],
        "variance": np.ones((3, 1)),
        "common_mean": [1e8 + 2],
        "common_variance": [5.0],
        "rate": [[2.0], [7.0], [4.0]],
        "common_rate": [4.5],
    }
    options = {"kinds": ("normal", "count"), "num_clusters": 3, "progress": False}
    return sb.fit("feature_saliency", x, engine=Pruned(at_one(params).draws), **options)


def test_no_single_saliency_gives_more_contrast(normal):
    contrast = normal.contrast_saliencies().to_numpy()
    p, labels = normal.params, normal.labels()

    def value(rho):
        own = Salient(p["mean"], p["variance"], p["common_mean"], p["common_variance"], rho)
        joint = salient_densities(normal.run.data["x"], own) + np.log(p["weights"])[:, None]
        return jax.nn.log_softmax(joint, axis=0)[labels, np.arange(150)].sum()

    with jax.enable_x64(True):
        own = jax.jit(value)
        best = own(jnp.asarray(contrast))
        for feature in range(4):
            for to in (1e-6, 0.1, 0.5, 0.9, 1 - 1e-6):
                moved = np.where(np.arange(4) == feature, to, contrast)
                assert own(jnp.asarray(moved)) <= best + 1e-3


def test_features_without_densities_stay_out(normal):
    tree = normal.tree.copy()
    tree["posterior/saliency"] = tree["posterior/saliency"].copy(
        data=np.array([[[1.0, 0.0, 1.0, 0.0]]])
    )
    fit = sb.Fit(tree, normal.run)
    np.testing.assert_array_equal(fit.contrast_saliencies().to_numpy()[[1, 3]], 0.0)


def test_a_loaded_fit_says_the_same(far, tmp_path):
    far.save(tmp_path / "fit.nc")
    loaded = sb.load(tmp_path / "fit.nc", engine=far.run.engine)
    assert loaded.run.problem.args[0].dtype == np.float64
    contrast = loaded.contrast()
    with counted_compilations() as names:  # data are arguments of the programs
        expected = far.contrast()
    assert names == []
    np.testing.assert_allclose(contrast.saliency, expected.saliency)
    np.testing.assert_allclose(contrast.responsibilities, expected.responsibilities, atol=1e-9)
    found = loaded.imputed()
    assert abs(found["mean"][:5] - 1e8).max() < 10
    assert found["sd"][:5].between(0.5, 5).all()
