"""What a fit says of latent shapes of individuals."""

import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats
from sidebayes.models.blocks.manifolds.shape_chart import ShapeChart

import sidebayes as sb

RNG = np.random.default_rng(3)
SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
FRAME = sb.register_points(
    sb.Landmarks.from_array(SQUARE + 0.1 * RNG.normal(size=(8, 4, 2))), num_modes=2
)
GIVEN = {"subjects": FRAME.subjects, "landmarks": FRAME.landmarks, "chart": FRAME.chart}
FEW = sb.MonteCarloEM(num_samples=32, max_samples=32, max_steps=4, num_warmup=20)
pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def drawn():
    """Noise as large as the variation of shapes, so that draws are not the landmarks themselves."""
    return sb.fit("latent_shape", FRAME.x, **GIVEN, rank=1, width=0.1, engine=FEW, progress=False)


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


def test_files_and_pictures_have_the_bands(drawn, tmp_path):
    drawn.save(tmp_path / "fit.nc")
    found = sb.load(tmp_path / "fit.nc")
    assert found.shapes().identical(drawn.shapes())
    titles = [axis.get_title() for axis in found.plot().axes]
    (own,) = [title for title in titles if "known least" in title]
    assert "90 % bands" in own
    assert "given the estimated parameters" in own


def test_a_likelihood_given_the_shapes_has_no_scores(drawn):
    with pytest.raises(ValueError, match="integrates no likelihood over the coordinates of indiv"):
        _ = drawn.bic
    with pytest.raises(
        ValueError, match="individuals given their coordinates.*group_log_likelihood"
    ):
        drawn.loo()


def test_draws_of_all_parameters_give_posterior_bands():
    engine = sb.SVI(guide="mean_field", num_draws=100, num_restarts=1, tol=1e-2)
    fit = sb.fit("latent_shape", FRAME.x, **GIVEN, rank=1, engine=engine, progress=False)
    found = fit.shapes()
    assert found.attrs["individuals"] == "posterior"
    assert (found["individuals_lower"] < found["individuals"]).all()


def test_shapes_that_are_seen_or_a_mode_have_no_bands(known_groups):
    assert "individuals_sd" not in known_groups.shapes()
    engine = sb.MAP(num_restarts=1, max_steps=3)
    mode = sb.fit(
        "latent_shape", FRAME.x, **GIVEN, rank=1, width=0.1, engine=engine, progress=False
    )
    assert "individuals_sd" not in mode.shapes()
