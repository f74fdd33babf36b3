"""A model seen as a density: sites, Jacobians, starting values, messages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer.util import log_density, potential_energy
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.causes import (
    check_repeatable,
    explain_nonfinite,
    out_of_range,
)
from sidebayes.guides.engines.problem.declared import site_dims, site_roles
from sidebayes.guides.engines.problem.density import (
    latent_supports,
    log_joint,
    place,
    sum_log_prob,
    trace_model,
    unconstrained_start,
)
from sidebayes.guides.engines.problem.importance import in_batches
from sidebayes.guides.engines.problem.values import check_values
from sidebayes.guides.engines.steps.starts import initial_values, starting_point
from sidebayes.models.gmm import gmm


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def ladder(x):
    """One site bounds another, one stands in a plate, the data are scaled."""
    top = numpyro.sample("top", dist.LogNormal(0.0, 1.0))
    low = numpyro.sample("low", dist.Uniform(0.0, top))
    with numpyro.plate("groups", 3):
        share = numpyro.sample(
            "share", dist.Dirichlet(jnp.ones(2)), infer={"event_dims": ["halves"]}
        )
    numpyro.deterministic("gap", top - low)
    with numpyro.handlers.scale(scale=2.5):
        numpyro.sample("x", dist.Normal(low + share[:, 0].sum(), 1.0).to_event(0), obs=x)


def mixture(x, num_clusters=3):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(num_clusters, 2.0)))
    with numpyro.plate("clusters", num_clusters):
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        variance = numpyro.sample("variance", dist.InverseGamma(2.0, 1.0))
    parts = dist.Normal(mean, jnp.sqrt(variance)[:, None]).to_event(1)
    numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)


PARAMS = {"top": 1.7, "low": 0.4, "share": np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])}


def ladder_problem():
    return Problem(ladder, (jnp.array([0.3, 1.0, 2.2]),))


def blobs():
    rng = np.random.default_rng(0)
    centres = np.array([[-8.0, 0.0], [0.0, 8.0], [8.0, 0.0]])
    return centres[np.arange(60) % 3] + 0.05 * rng.normal(size=(60, 2))


def test_log_joint_is_that_of_numpyro():
    problem = ladder_problem()
    params = {name: jnp.asarray(value) for name, value in PARAMS.items()}

    @jax.jit
    def both(params):
        return log_joint(problem, params), log_density(ladder, problem.args, {}, params)[0]

    np.testing.assert_allclose(*both(params), rtol=1e-12)


def test_unconstrained_density_is_that_of_numpyro():
    problem = ladder_problem()
    free = {
        "top": jnp.asarray(0.3),
        "low": jnp.asarray(-0.7),
        "share": jnp.array([[0.1], [-1.0], [2.0]]),
    }

    @jax.jit
    def described(free):
        trace, log_det = place(problem, free)
        theirs = -potential_energy(ladder, problem.args, {}, free)
        return sum_log_prob(trace) + log_det, theirs, trace["low"]["value"], trace["top"]["value"]

    found, expected, low, top = described(free)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert 0 < low < top


def test_unconstrained_start_inverts_place():
    problem = ladder_problem()

    @jax.jit
    def there_and_back(params):
        trace, _ = place(problem, unconstrained_start(problem, params))
        return {name: trace[name]["value"] for name in params}

    found = there_and_back({name: jnp.asarray(value) for name, value in PARAMS.items()})
    for name, value in PARAMS.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10)


def test_dims_come_from_plates_and_event_dims():
    assert site_dims(ladder_problem()) == {
        "top": (),
        "low": (),
        "share": ("groups", "halves"),
        "gap": (),
    }
    x = jnp.asarray(blobs())
    assert site_dims(Problem(gmm, (x,), {"num_clusters": 3})) == {
        "weights": ("clusters",),
        "covariance": ("clusters", "features", "features_1"),
        "mean": ("clusters", "features"),
    }
    # of one's own mixture only the weights are known for what they are
    assert site_dims(Problem(mixture, (x,))) == {
        "weights": ("clusters",),
        "mean": ("clusters", "mean_dim_1"),
        "variance": ("clusters",),
    }


def test_roles_come_from_blocks_and_from_what_is_mixed():
    x = jnp.asarray(blobs())
    gaussians = {"covariance": "spread", "mean": "location"}
    assert site_roles(Problem(gmm, (x,), {"num_clusters": 3})) == gaussians | {
        "weights": "mixing_weights"
    }
    assert site_roles(Problem(mixture, (x,))) == {"weights": "mixing_weights"}
    assert site_roles(ladder_problem()) == {}


def test_wrong_number_of_event_dims_is_refused():
    def model():
        numpyro.sample("w", dist.Dirichlet(jnp.ones(2)), infer={"event_dims": ["a", "b"]})

    with pytest.raises(ValueError, match=r"site 'w'.*names 2 axes; the site has 1"):
        site_dims(Problem(model, ()))


@pytest.mark.parametrize(
    ("law", "is_row", "said"),
    [
        (dist.Bernoulli(0.5), True, "sum it out. Labels of a mixture: LinkedMixture"),
        (dist.Categorical(jnp.ones(2) / 2), False, "sum it out: add the log probability of each"),
        (dist.Poisson(2.0), False, "its counts have no upper bound: sum it out in closed form"),
        (dist.Poisson(2.0), True, "its counts have no upper bound: sum it out in closed form"),
    ],
)
def test_discrete_latent_is_named(law, is_row, said):
    """Labels of rows are not the only discrete sites."""

    def model(x):
        if is_row:
            with numpyro.plate("rows", len(x)):
                z = numpyro.sample("z", law)
        else:
            z = numpyro.sample("z", law)
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)

    with pytest.raises(TypeError, match=f"'z' is a discrete latent; {said}"):
        latent_supports(Problem(model, (jnp.ones(3),)))


def outcome(scale=jnp.exp, law=dist.Normal):
    """A model of ten numbers whose scale is a function of a normal site."""

    def model(x):
        m = numpyro.sample("m", dist.Normal())
        s = numpyro.sample("s", dist.Normal())
        numpyro.sample("x", law(m, scale(s)), obs=x)

    return Problem(model, (jnp.ones(10),))


@pytest.mark.parametrize(
    ("scale", "law", "said"),
    [
        (lambda s: s, dist.Normal, "the scale of site 'x' must lie above 0, and does not"),
        (jnp.exp, dist.Normal, ""),
        (lambda s: 1 / s, lambda m, s: dist.Beta(jnp.exp(m), s), "the concentration0 of"),
        (
            lambda s: s,
            lambda m, s: dist.ZeroInflatedDistribution(dist.Poisson(jnp.exp(m)), gate=s),
            "the gate of site 'x' must lie above 0 and below 1",
        ),
        (
            lambda s: s,
            lambda m, s: dist.LogNormal(m, s).expand([10]).to_event(1),
            "the scale of site 'x' must lie above 0",
        ),
    ],
)
def test_parameters_that_leave_their_range_are_named(scale, law, said):
    found = out_of_range(outcome(scale=scale, law=law))
    assert found.startswith(said)
    assert bool(found) == bool(said)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "mean",
    [
        lambda u: u[0] + RNG.normal(size=10),
        lambda u: u[0] + np.random.normal(),  # noqa: NPY002
        lambda u: RNG.normal(size=(10, 3)) @ u,
        lambda u: u[RNG.permutation(10) % 3],
    ],
)
def test_model_that_changes_between_runs_is_refused(mean):
    def model(x):
        u = numpyro.sample("u", dist.Normal().expand([3]).to_event(1))
        numpyro.sample("x", dist.Normal(mean(u), 1.0), obs=x)

    with pytest.raises(ValueError, match="site 'x' is -.* and then -"):
        check_repeatable(Problem(model, (jnp.ones(10),)))
    check_repeatable(outcome())


def test_arrays_made_anew_in_each_run_are_compared_without_evaluation(monkeypatch):
    def model(x):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("x", dist.Normal(np.arange(3.0) @ u + np.linspace(0, 1, 10), 1.0), obs=x)

    monkeypatch.setattr(f"{check_repeatable.__module__}.evaluated", None)  # takes seconds
    check_repeatable(Problem(model, (jnp.ones(10),)))


def test_array_kept_from_another_run_is_named():
    kept = []

    def model(x):
        kept.append(kept[0] if kept else jnp.asarray(np.ones(10)))
        numpyro.sample("x", dist.Normal(numpyro.sample("m", dist.Normal()) * kept[0]), obs=x)

    problem = Problem(model, (jnp.ones(10),))
    latent_supports(problem)
    with pytest.raises(TypeError, match="made in another run of it, and kept in a cache"):
        check_values(problem)


class Unsupported(dist.Distribution):
    """A law of one's own whose support was forgotten."""

    def sample(self, key, sample_shape=()):
        return jnp.zeros(sample_shape)


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (dist.ProjectedNormal(jnp.zeros(3)), r"sidebayes.sample_direction\('z', 3\)"),
        (
            dist.ImproperUniform(constraints.positive_definite_circulant_vector, (), (3,)),
            r"support \(PositiveDefiniteCirculantVector\); build it from",
        ),
        (Unsupported(), "distribution Unsupported states no support; set one"),
    ],
)
def test_latent_that_no_coordinates_reach_is_named(law, said):
    with pytest.raises(TypeError, match=f"site 'z' is latent, and .*{said}"):
        latent_supports(Problem(lambda: numpyro.sample("z", law), ()))


def test_starts_lie_inside_supports_that_depend_on_sites():
    starts = initial_values(ladder_problem(), 0, 5)
    assert starts["share"].shape == (5, 3, 2)
    assert np.all((starts["low"] > 0) & (starts["low"] < starts["top"]))
    assert len(np.unique(starts["top"])) == 5


def test_mixture_means_start_at_the_moments_of_partitions():
    x = blobs()
    options = {"num_clusters": 3, "covariance": "spherical"}
    starts = initial_values(Problem(gmm, (jnp.asarray(x),), options), 1, 4)
    assert_at_centres(starts["mean"][:1], 0.1)  # two standard deviations of a point
    assert_differ(starts["mean"])
    np.testing.assert_allclose(starts["variance"][0], x.var(axis=0).mean() / 3, rtol=1e-4)


def assert_at_centres(starts, within):
    """Every start has one mean at each centre of `blobs`."""
    assert starts.shape[1:] == (3, 2)
    for means in np.asarray(starts):
        apart = np.linalg.norm(means[:, None] - [[-8, 0], [0, 8], [8, 0]], axis=-1)
        assert sorted(apart.argmin(axis=1)) == [0, 1, 2]
        assert apart.min(axis=1).max() < within


def assert_differ(starts):
    """K-means finds the same partition of blobs again and again: it is replaced."""
    rounded = np.round(np.sort(starts, axis=1), 6)
    assert len(np.unique(rounded, axis=0)) == len(starts) == 4


def test_own_mixtures_are_fitted_to_partitions():
    x = blobs()
    starts = initial_values(Problem(mixture, (jnp.asarray(x),)), 1, 4, seeded=True)
    # a tenth of the points is dealt to all clusters alike, so that none shrinks onto few
    assert_at_centres(starts["mean"][:1], 1.0)
    assert_differ(starts["mean"])


def test_sites_of_other_meaning_are_left_alone():
    def model(x):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ weights, 1.0), obs=jnp.zeros(len(x)))

    starts = initial_values(Problem(model, (jnp.asarray(blobs()),)), 0, 2)
    assert len(np.unique(starts["weights"])) == 4


def test_starting_point_checks_names_and_shapes():
    problem = ladder_problem()
    found = starting_point(problem, PARAMS)
    assert found["top"].dtype == jnp.float64
    with pytest.raises(ValueError, match="no value for site 'low'"):
        starting_point(problem, {"top": 1.0})
    with pytest.raises(ValueError, match=r"init\['share'\] has shape \(2,\); expected \(3, 2\)"):
        starting_point(problem, PARAMS | {"share": np.array([0.5, 0.5])})


def test_known_numbers_out_of_range_are_refused():
    def model(x):
        means = numpyro.sample("means", dist.Normal(0.0, 5.0).expand([2]))
        pieces = dist.Normal(means, -1.0)
        numpyro.sample(
            "x", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), pieces), obs=x
        )

    def prior(x):
        numpyro.sample("rate", dist.Beta(1.0, -4.0))

    for wrong, name in ((model, "Normal"), (prior, "Beta")):
        with pytest.raises(ValueError, match=f"{name} distribution got invalid"):
            latent_supports(Problem(wrong, (np.zeros(3),)))


def test_explain_nonfinite_names_the_site():
    problem = Problem(ladder, (jnp.array([0.3, jnp.nan, 2.2]),))
    params = {name: jnp.asarray(value) for name, value in PARAMS.items()}
    assert explain_nonfinite(problem, params) == (
        "site 'x' has log density -inf, as 1 of its 3 values have none, the first at (1,): nan"
    )
    assert explain_nonfinite(ladder_problem(), params) == ""


def test_trace_model_keeps_the_given_values():
    trace = trace_model(ladder_problem(), PARAMS)
    np.testing.assert_allclose(trace["gap"]["value"], 1.3)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rows_in_batches_are_rows_one_by_one(size):
    """Whether or not the last batch is full, and with values that have no entries."""
    rows = jnp.arange(6.0).reshape(3, 2)
    found = jax.jit(lambda rows: in_batches(lambda row: (row.sum(), row[:0]), rows, size))(rows)
    np.testing.assert_array_equal(found[0], [1.0, 5.0, 9.0])
    assert found[1].shape == (3, 0)
