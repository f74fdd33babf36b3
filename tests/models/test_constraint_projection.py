"""Feature extraction with constraints: Law (2006), section 5.5; dossier checks 30 and 31."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.diagnostics.trust.scores import accuracy, violated_links
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constraint_projection import constraint_projection
from sklearn.decomposition import KernelPCA
from sklearn.mixture import GaussianMixture

from sidebayes import Continuation, fit
from tests.support.basics import slope_in_simplex


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def white():
    """Rows of mean 0 and covariance I, and parameters of three clusters in two features."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(20, 4)) @ rng.normal(size=(4, 4))
    raw = raw - raw.mean(axis=0)
    root = np.linalg.cholesky(raw.T @ raw / 20)
    params = {
        "weights": rng.dirichlet(np.full(3, 4.0)),
        "projection": rng.normal(size=(4, 2)),
        "mean": rng.normal(size=(3, 2)),
    }
    return raw @ np.linalg.inv(root).T, params


def log_density(x, params):
    """Log-likelihood of the mixture in the model, as a function of F and u."""
    problem = Problem(constraint_projection, (x,), {"num_clusters": 3, "num_extracted": 2})
    site = trace_model(problem, params)["x"]
    return site["fn"].log_prob(site["value"])


compiled_density = jax.jit(log_density)


def of_features(x, params):
    """Eq. 5.31: log-likelihood of the extracted features alone."""
    inner = params["projection"].T @ params["projection"]
    off = (x @ params["projection"])[:, None] - params["mean"]
    log_p = -np.log(2 * np.pi) + 0.5 * jnp.linalg.slogdet(inner)[1] - 0.5 * (off**2).sum(axis=-1)
    return jax.nn.logsumexp(jnp.log(params["weights"]) + log_p, axis=1).sum()


def test_on_white_data_it_is_the_thesis_plus_a_constant(white):
    """Check 30: the density off the features adds the same for every projection."""
    x, params = white
    constant = -0.5 * 20 * (4 - 2) * (1 + np.log(2 * np.pi))
    (found, own), (expected, other) = (
        jax.jit(jax.value_and_grad(lambda p, f=f: f(jnp.asarray(x), p)))(params)
        for f in (log_density, of_features)
    )
    np.testing.assert_allclose(found, expected + constant, rtol=1e-12)
    slopes = own, other
    for slope in slopes:  # the model normalises mixing weights: compare along the simplex
        slope["weights"] = slope_in_simplex(slope["weights"], params["weights"])
    for name in params:
        np.testing.assert_allclose(slopes[0][name], slopes[1][name], atol=1e-10)


def test_gradients_are_the_closed_forms(white):
    """Eqs. 5.32 and 5.33, with u = F'mu."""
    x, params = white
    centre = np.linalg.lstsq(params["projection"].T, params["mean"].T, rcond=None)[0].T
    f = params["projection"]
    off = x[:, None] - centre
    log_q = np.log(params["weights"]) - 0.5 * ((off @ f) ** 2).sum(axis=-1)
    resp = np.exp(log_q - np.logaddexp.reduce(log_q, axis=1, keepdims=True))
    by_centre = np.einsum("ab,nk,nkb->ka", f @ f.T, resp, off)
    scatter = np.einsum("nk,nka,nkb->ab", resp, off, off)
    by_f = 20 * f @ np.linalg.inv(f.T @ f) - scatter @ f

    def value(f, centre):
        return log_density(jnp.asarray(x), params | {"projection": f, "mean": centre @ f})

    found = jax.jit(jax.grad(value, argnums=(0, 1)))(jnp.asarray(f), jnp.asarray(centre))
    np.testing.assert_allclose(found[0], by_f, atol=1e-9)
    np.testing.assert_allclose(found[1], by_centre, atol=1e-9)


def test_density_of_raw_data_is_that_of_white_data_with_its_jacobian(white):
    x, params = white
    rng = np.random.default_rng(3)
    stretch = np.tril(rng.normal(size=(4, 4))) + 3 * np.eye(4)  # keeps the Cholesky whitening
    raw = x @ stretch.T + rng.normal(size=4)
    jacobian = -20 * np.linalg.slogdet(stretch)[1]
    np.testing.assert_allclose(
        compiled_density(raw, params),
        compiled_density(x, params) + jacobian,
        rtol=1e-10,
    )


def test_a_direction_of_little_variance_is_no_feature():
    """Check 30, G-3: two clusters on one axis, mere noise of deviation 0.1 on the other."""
    rng = np.random.default_rng(1)
    z = np.repeat([0, 1], 40)
    x = np.stack([6.0 * z + rng.normal(size=80), 0.1 * rng.normal(size=80)], axis=1)
    engine = Continuation(num_restarts=4, tol=1e-6, max_steps=200)
    found = fit("constraint_projection", x, num_clusters=2, engine=engine)
    assert accuracy(z, found.labels()) > 0.98
    alone = [GaussianMixture(2).fit(x[:, [axis]]).score(x[:, [axis]]) for axis in (0, 1)]
    assert alone[1] > alone[0]  # eq. 5.31 without whitening prefers the noise
    np.testing.assert_allclose(found.predict_proba(x), found.responsibilities(), atol=1e-9)
    np.testing.assert_array_equal(found.predict(x[:7]), found.labels()[:7])
    np.testing.assert_allclose(found.predict_proba(x[:7]), found.responsibilities()[:7], atol=1e-9)


@pytest.mark.parametrize(("strength", "kept"), [(500.0, True), (5.0, False)])
def test_links_choose_the_feature(strength, kept):
    """Check 30: four clouds in one feature, by side where links are dear, else by height."""
    rng = np.random.default_rng(0)
    side, height = np.repeat([0, 1, 0, 1], 50), np.repeat([0, 0, 1, 1], 50)
    x = np.stack([4.0 * side - 2, 16.0 * height - 8], axis=1) + rng.normal(size=(200, 2))
    links = Links.must_link([(10, 110), (60, 160)], strength, 200)
    engine = Continuation(num_restarts=8, tol=1e-6, max_steps=300)
    found = fit("constraint_projection", x, links, num_clusters=2, engine=engine)
    assert accuracy(side if kept else height, found.labels()) > 0.95
    assert violated_links(found.labels(), links.pairs, links.weights) == (0 if kept else 2)
    direction = (found.params["whitening"] @ found.params["projection"])[:, 0] * x.std(axis=0)
    assert np.abs(direction[0 if kept else 1]) > 0.95 * np.linalg.norm(direction)


def test_kernel_version_with_a_linear_kernel_is_the_linear_version(white):
    """Principal components are a rotation: of the data, of the features, of nothing else."""
    x, params = white
    raw = x @ np.diag([1.0, 2.0, 3.0, 4.0])
    kernel = KernelPCA(4, kernel="linear").fit_transform(raw)
    rotation = np.linalg.lstsq(raw, kernel, rcond=None)[0]
    whitening = [np.linalg.inv(np.linalg.cholesky(z.T @ z / 20)).T for z in (raw, kernel)]
    turned = np.linalg.inv(whitening[1]) @ rotation.T @ whitening[0] @ params["projection"]
    np.testing.assert_allclose(
        compiled_density(kernel, params | {"projection": turned}),
        compiled_density(raw, params),
        rtol=1e-10,
    )
    np.testing.assert_allclose((turned**2).sum(), (params["projection"] ** 2).sum())  # same prior


def test_bad_input_is_named():
    x = np.random.default_rng(0).normal(size=(30, 3))
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"num_extracted = {wrong}; expected 1 to 2"):
            fit("constraint_projection", x, num_clusters=2, num_extracted=wrong)
    copied = np.concatenate([x, x[:, :1] - x[:, 1:2]], axis=1)
    with pytest.raises(ValueError, match="column 3 of x is a linear function of columns 0, 1"):
        fit("constraint_projection", copied, num_clusters=2)
    with pytest.raises(ValueError, match="3 rows for 3 features"):
        fit("constraint_projection", x[:3], num_clusters=2)
