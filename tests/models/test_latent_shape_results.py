"""What a fit says of latent shapes of individuals."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart

import sidebayes as sb
from tests.support.draws import Told, at_one

RNG = np.random.default_rng(3)
SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
FRAME = sb.register_points(
    sb.Landmarks.from_array(SQUARE + 0.1 * RNG.normal(size=(8, 4, 2))), num_modes=2
)
GIVEN = {"subjects": FRAME.subjects, "landmarks": FRAME.landmarks, "chart": FRAME.chart}
AT = {
    "weights": [1.0],
    "mean": [[0.0, 0.0]],
    "loadings": [[[0.1], [0.0]]],
    "variance": [0.01],
    "coordinates": np.zeros((8, 2)),
}
FEW = sb.MonteCarloEM(num_samples=32, max_samples=32, max_steps=4, num_warmup=20)
pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def drawn():
    """Noise as large as the variation of shapes, so that draws are not the landmarks themselves."""
    return sb.fit("latent_shape", FRAME.x, **GIVEN, rank=1, width=0.1, engine=FEW, progress=False)


@dataclass(frozen=True)
class Given(Told):
    """Knows the parameters, and draws of the coordinates given them."""

    name = "given"

    def run(self, problem, *, seed=0, init=None, progress=True):
        found = super().run(problem)
        draws = {"coordinates": 0.1 * np.random.default_rng(0).normal(size=(2, 50, 8, 2))}
        return replace(found, conditional_draws=draws)


@pytest.fixture(scope="module")
def told():
    """Fit as `drawn`, at known parameters."""
    engine = Given(at_one(AT).draws)
    return sb.fit("latent_shape", FRAME.x, **GIVEN, rank=1, width=0.1, engine=engine)


def conditional(fit):
    """Posterior of the coordinates of each individual at the estimated parameters, on a grid."""
    axis = np.linspace(-0.8, 0.8, 161)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    shapes = np.asarray(ShapeChart.of(FRAME.chart).shapes(jnp.asarray(grid)))
    loadings = fit.params["loadings"][0]
    covariance = loadings @ loadings.T + fit.params["variance"][0] * np.eye(2)
    prior = stats.multivariate_normal(fit.params["mean"][0], covariance).logpdf(grid)
    rows = FRAME.x.reshape(8, 1, 4, 2)
    weight = prior + stats.norm(0, 0.1).logpdf(rows - shapes).sum(axis=(2, 3))
    weight = np.exp(weight - weight.max(axis=1, keepdims=True))
    return shapes, weight / weight.sum(axis=1, keepdims=True)


def test_bands_of_individuals_are_those_at_the_estimated_parameters(drawn):
    shapes, weight = conditional(drawn)
    mean = np.einsum("ig,gta->ita", weight, shapes)
    sd = np.sqrt(np.einsum("ig,gta->ita", weight, shapes**2) - mean**2)
    draws = drawn.tree["conditional_posterior"]["coordinates"]
    assert draws.dims == ("chain", "draw", "subjects", "features")
    ess = array_stats.ess(draws.to_numpy(), chain_axis=0, draw_axis=1).min()
    found = drawn.shapes(probability=0.8)
    assert found.attrs["individuals"] == "given the estimated parameters"
    apart = abs(found["individuals"].to_numpy() - mean)
    np.testing.assert_array_less(apart, 4.5 * sd / np.sqrt(ess) + 0.01 * sd)
    np.testing.assert_allclose(found["individuals_sd"], sd, rtol=4.5 / np.sqrt(2 * ess))
    inside = np.einsum(
        "ig,igta->ita",
        weight,
        (shapes > found["individuals_lower"].to_numpy()[:, None])
        & (shapes < found["individuals_upper"].to_numpy()[:, None]),
    )
    # each end is off by the error of a quantile
    np.testing.assert_allclose(inside, 0.8, atol=4.5 * np.sqrt(2 * 0.1 * 0.9 / ess))


def test_files_and_pictures_have_the_bands(told, tmp_path):
    told.save(tmp_path / "fit.nc")
    found = sb.load(tmp_path / "fit.nc", engine=told.run.engine)
    assert found.shapes().identical(told.shapes())
    titles = [axis.get_title() for axis in found.plot().axes]
    (own,) = [title for title in titles if "known least" in title]
    assert "90 % bands" in own
    assert "given the estimated parameters" in own


def test_a_likelihood_given_the_shapes_has_no_scores(told):
    with pytest.raises(ValueError, match="integrates no likelihood over the coordinates of indiv"):
        _ = told.bic
    with pytest.raises(
        ValueError, match="individuals given their coordinates.*group_log_likelihood"
    ):
        told.loo()


def test_draws_of_all_parameters_give_posterior_bands():
    engine = sb.SVI(guide="mean_field", num_draws=100, num_restarts=1, tol=1e-2)
    fit = sb.fit("latent_shape", FRAME.x, **GIVEN, rank=1, engine=engine, progress=False)
    found = fit.shapes()
    assert found.attrs["individuals"] == "posterior"
    assert (found["individuals_lower"] < found["individuals"]).all()


def test_shapes_that_are_seen_or_a_mode_have_no_bands(known_groups):
    assert "individuals_sd" not in known_groups.shapes()
    mode = sb.fit("latent_shape", FRAME.x, **GIVEN, rank=1, width=0.1, engine=at_one(AT))
    assert "individuals_sd" not in mode.shapes()
