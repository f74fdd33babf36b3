"""Every primitive and handler of NumPyro is honoured, or refused by name, as docs/primitives.md says."""

import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jaxtyping import Array, Float
from numpyro import handlers, primitives
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from scipy.stats import gamma, multivariate_normal, norm, poisson
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites, log_joint
from sidebayes.guides.engines.steps import starts
from sidebayes.guides.engines.steps.updates import plan_updates
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.gmm import gmm
from sidebayes.models.mixed_effects_mixture import mixed_effects_mixture

import sidebayes as sb
from tests.support.draws import at_one

PAGE = (Path(__file__).parents[3] / "docs" / "primitives.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \|", PAGE, re.M)
MACHINERY = {"CondIndepStackFrame", "Messenger", "apply_stack", "default_process_message"}
Y = np.random.default_rng(0).normal(2.0, 0.5, 20)
AT = {"mean": 1.5, "spread": 0.7}
QUICK = sb.MAP(num_restarts=1)


def normal(y: Float[Array, " rows"]):
    """Normal rows: most handlers are tried around this model."""
    mean, spread = parameters()
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)


def parameters():
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    return mean, numpyro.sample("spread", dist.HalfNormal(2.0))


def prior(at=AT):
    return norm(0, 5).logpdf(at["mean"]) + norm(0, 2).logpdf(at["spread"]) + np.log(2)


def terms(at=AT):
    return norm(at["mean"], at["spread"]).logpdf(Y)


def inside(body):
    """A model with the parameters of `normal`, and `body` in place of its rows."""

    def model(y: Float[Array, " rows"]):
        body(y, *parameters())

    return model


def crossed(y, mean, spread):
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y[:, None])


def subsampled(y, mean, spread):
    with numpyro.plate("rows", len(y), subsample_size=5) as rows:
        numpyro.sample("y", dist.Normal(mean, spread), obs=y[rows])


def subsampled_by_name(y, mean, spread):
    with numpyro.plate("rows", len(y), subsample_size=5):
        numpyro.sample("y", dist.Normal(mean, spread), obs=numpyro.subsample(y, event_dim=0))


def stacked(y, mean, spread):
    with numpyro.plate_stack("axis", [4, 5]):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y.reshape(4, 5))


def unless_masked(y, mean, spread):
    numpyro.sample("y", dist.Normal(mean, spread), obs=y)
    if numpyro.get_mask() is not None:
        numpyro.factor("never", -1e6)


def stepped(y, mean, spread):
    def step(carry, now):
        numpyro.sample("y", dist.Normal(mean, spread), obs=now)
        return carry, None

    scan(step, 0.0, y)


def noted(y, mean, spread):
    numpyro.sample("y", dist.Normal(numpyro.deterministic("centre", mean), spread), obs=y)


def by_factor(y, mean, spread):
    numpyro.factor("y", dist.Normal(mean, spread).log_prob(y))


def with_param(y: Float[Array, " rows"]):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    numpyro.sample("y", dist.Normal(mean, numpyro.param("spread", 1.0)), obs=y)


def centred(y: Float[Array, " rows"]):
    mean, spread = parameters()
    with numpyro.plate("rows", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
        numpyro.sample("y", dist.Normal(effect, 0.5), obs=y)


def hidden_draw(y, mean, spread):
    shift = jax.random.normal(numpyro.prng_key())
    numpyro.sample("y", dist.Normal(mean + shift, spread), obs=y)


def hidden_mask(y, mean, spread):
    numpyro.sample("y", dist.Normal(mean, spread), obs=y, obs_mask=jnp.arange(len(y)) > 3)


def kept(y, mean, spread):
    numpyro.sample("y", dist.Normal(mean, spread), obs=numpyro.primitives.mutable("kept", y))


def network(y, mean, spread):
    net = numpyro.module("net", (lambda key, shape: (shape, jnp.ones(1)), lambda w, x: w * x), (1,))
    numpyro.sample("y", dist.Normal(net(mean), spread), obs=y)


def with_gaps(y, mean, spread):
    with numpyro.plate("rows", len(y)), handlers.mask(mask=jnp.arange(len(y)) > 3):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y.at[:4].set(jnp.nan))


def scanned_states(y, mean, spread):
    def step(carry, now):
        state = numpyro.sample("state", dist.Normal(carry, spread))
        numpyro.sample("y", dist.Normal(state, 0.5), obs=now)
        return state, None

    scan(step, mean, y)


DRAWN = handlers.trace(handlers.seed(normal, 0)).get_trace(Y)
LIFTED = {"prior": {"spread": dist.HalfNormal(2.0)}}
REPARAM = {"config": {"effect": LocScaleReparam(0.0)}}
ALL = prior() + terms().sum()
HONOURED = {
    "sample": (normal, ALL),
    "plate": (normal, ALL),
    "plate(subsample_size=)": (inside(subsampled), ALL),
    "plate_stack": (inside(stacked), ALL),
    "subsample": (inside(subsampled_by_name), ALL),
    "deterministic": (inside(noted), ALL),
    "factor": (inside(by_factor), ALL),
    "get_mask": (inside(unless_masked), ALL),
    "contrib.control_flow.scan": (inside(stepped), ALL),
    "condition": (handlers.condition(normal, data={"spread": 0.7}), ALL),
    "do": (handlers.do(normal, data={"spread": 0.9}), prior() + terms(AT | {"spread": 0.9}).sum()),
    "infer_config": (handlers.infer_config(normal, lambda site: {"block": None}), ALL),
    "lift": (handlers.lift(with_param, **LIFTED), ALL),
    "mask": (inside(with_gaps), prior() + terms()[4:].sum()),
    "scale": (handlers.scale(normal, scale=2.0), 2 * ALL),
    "scope": (handlers.scope(normal, prefix="own", divider="_"), ALL),
    "seed": (handlers.seed(normal, rng_seed=1), ALL),
    "substitute": (
        handlers.substitute(with_param, data={"spread": 0.7}),
        norm(0, 5).logpdf(1.5) + terms().sum(),
    ),
    "trace": (handlers.trace(normal), ALL),
    "reparam": (
        handlers.reparam(centred, **REPARAM),
        prior() + 20 * norm.logpdf(0) + norm(1.5, 0.5).logpdf(Y).sum(),
    ),
}
"""What runs, and the log joint density at `AT`."""

REFUSED = {
    "sample": (inside(crossed), "400 terms of 20 values; observe one column as a vector"),
    "sample(obs_mask=)": (inside(hidden_mask), "observe the known rows of 'y' only"),
    "param": (with_param, "'spread' is a numpyro.param, and would stay at its first value"),
    "module": (inside(network), r"'net\$params' is a numpyro.param"),
    "mutable": (inside(kept), "'kept' is a numpyro.mutable"),
    "prng_key": (inside(hidden_draw), "random numbers that the model draws for itself"),
    "contrib.control_flow.scan": (
        inside(scanned_states),
        "'state' is sampled inside numpyro's scan",
    ),
    "block": (handlers.block(normal, hide=["spread"]), "a site that handlers.block hides"),
    "collapse": (handlers.collapse(normal), "handlers.collapse integrates"),
    "mask": (
        handlers.mask(centred, mask=jnp.arange(20) > 3),
        "handlers.mask around the whole model",
    ),
    "replay": (handlers.replay(normal, trace=DRAWN), r"condition\(model, data=\{'mean'"),
    "scope": (handlers.scope(normal, prefix="own"), "have a slash in their names"),
    "substitute": (handlers.substitute(normal, data=AT), "site 'mean' is given a value by"),
    "uncondition": (handlers.uncondition(normal), "observes nothing"),
}
"""What is refused, and what is said."""


def test_the_tables_name_every_primitive_and_handler():
    """A new version of NumPyro may bring new ones."""
    own = {
        name
        for name, value in vars(primitives).items()
        if getattr(value, "__module__", "") == primitives.__name__ and not name.startswith("_")
    }
    assert {re.sub(r"\(.*", "", row) for row in ROWS} - {"contrib.control_flow.scan"} == (
        own - MACHINERY | set(handlers.__all__)
    )
    assert set(ROWS) == HONOURED.keys() | REFUSED.keys()
    assert len(ROWS) == len(set(ROWS))


def values(model):
    """Values of the latent sites of a model, those of `AT` among them."""
    found = abstract_trace(Problem(model, (jnp.asarray(Y),)))
    return {
        name: jnp.full(jnp.shape(site["value"]), AT.get(name.removeprefix("own_"), 0.0))
        for name, site in latent_sites(found).items()
    }


@pytest.mark.parametrize("row", HONOURED)
def test_what_is_honoured_has_the_density_that_it_says(row):
    model, expected = HONOURED[row]
    with jax.enable_x64(True):
        density = log_joint(Problem(model, (jnp.asarray(Y),)), values(model))
    np.testing.assert_allclose(density, expected, rtol=1e-12)


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_refused_is_refused_by_name(row):
    model, message = REFUSED[row]
    with pytest.raises(ValueError, match=message):
        sb.fit(model, Y, engine=QUICK, progress=False)


def fitted(model, *data, engine=QUICK):
    return sb.fit(model, *data, engine=engine, progress=False)


def told(model, *data, at=AT, **more):
    """A fit whose parameters are given."""
    return fitted(model, *data, engine=at_one(at | more))


def test_factors_alone_have_no_units_and_draw_no_data():
    found = told(inside(by_factor), Y)
    for ask in (found.loo, found.kfold, found.predictive, lambda: found.log_prob(Y)):
        with pytest.raises(ValueError, match="only factors"):
            ask()


def test_powers_of_densities_are_no_densities():
    found = told(handlers.scale(normal, scale=2.0), Y)
    for ask in (found.loo, found.kfold, lambda: found.log_prob(Y)):
        with pytest.raises(ValueError, match="raises those of .'own_y'|raises those of .'y'"):
            ask()


def test_weights_count_rows_as_often():
    """One weight for each term, as if rows stood in the data so many times."""
    often = np.arange(20) % 3 + 1

    def weighted(y: Float[Array, " rows"], weights: Float[Array, " rows"]):
        mean, spread = parameters()
        with numpyro.plate("rows", len(y)), handlers.scale(scale=weights):
            numpyro.sample("y", dist.Normal(mean, spread), obs=y)

    found, repeated = fitted(weighted, Y, often), fitted(normal, np.repeat(Y, often))
    np.testing.assert_allclose(found.params["mean"], repeated.params["mean"], rtol=1e-6)
    assert found.unit_terms.sum() == pytest.approx(repeated.unit_terms.sum(), rel=1e-6)


def test_parameters_that_are_held_are_no_data():
    found = told(handlers.condition(normal, data={"spread": 0.7}), Y, at={"mean": 1.5})
    assert found.unit_terms.shape == (1, 1, 20)
    assert list(found.predictive()["posterior_predictive"].data_vars) == ["y"]


def test_steps_of_a_scan_are_not_predicted():
    found = told(inside(stepped), Y)
    with pytest.raises(ValueError, match="joint density of all its rows"):
        found.log_prob(Y[:3])
    with pytest.raises(ValueError, match="step by step inside numpyro's scan"):
        found.predictive()


def test_masked_rows_stay_units_of_density_one():
    found = told(inside(with_gaps), Y)
    assert (found.unit_terms[0, 0, :4] == 0).all()
    assert (found.unit_terms[0, 0, 4:] != 0).all()


def test_new_data_have_deterministic_sites_of_their_own():
    def by_middle(x: Float[Array, " rows"], y: Float[Array, " rows"] = None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
        middle = numpyro.deterministic("middle", slope * jnp.mean(x))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(middle, 0.1), obs=y)

    found = told(by_middle, np.ones(20), Y, at={"slope": 2.0, "middle": 2.0})
    new = found.predictive(np.full(3, 10.0))["predictions"]["y"]
    np.testing.assert_allclose(new.mean(), 10 * 2.0, rtol=0.02)


def test_new_rows_of_a_joint_density_are_refused():
    def process(x: Float[Array, " rows"], y: Float[Array, " rows"] = None):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        near = jnp.exp(-0.5 * ((x[:, None] - x) / scale) ** 2) + 0.1 * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(0.0, near), obs=y)

    found = told(process, np.linspace(0, 3, 20), Y, at={"scale": 1.0})
    assert found.predictive()["posterior_predictive"]["y"].shape == (1, 200, 20)
    with pytest.raises(ValueError, match="condition on the fitted rows yourself"):
        found.predictive(np.linspace(0, 3, 5))
    with pytest.raises(ValueError, match="condition on the fitted rows yourself"):
        found.log_prob(np.linspace(0, 3, 20), Y)


def test_rows_that_are_declared_an_event_are_still_independent():
    def line(x: Float[Array, " rows"], y: Float[Array, " rows"] = None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
        numpyro.sample("y", dist.Normal(slope * x, 0.1).to_event(1), obs=y)

    assert told(line, Y, Y, at={"slope": 1.0}).predictive(Y[:3])["predictions"]["y"].shape == (
        1,
        200,
        3,
    )


def test_the_plate_of_a_fixed_size_is_named():
    def schools(y: Float[Array, " rows"]):
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
        with numpyro.plate("schools", 20):
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    found = told(schools, Y, at={"mean": 1.5})
    assert found.predictive()["posterior_predictive"]["y"].shape == (1, 200, 20)
    assert found.log_prob(Y + 1).shape == (20,)
    for ask in (lambda: found.log_prob(Y[:3]), lambda: found.log_prob(Y[:1]), found.kfold):
        with pytest.raises(ValueError, match="plate 'schools' has size 20 whatever the data"):
            ask()


def test_effects_in_a_plate_of_a_fixed_size_belong_to_its_rows():
    def schools(y: Float[Array, " rows"], error: Float[Array, " rows"]):
        mean, spread = parameters()
        with numpyro.plate("schools", 20):
            effect = numpyro.sample("effect", dist.Normal(mean, spread))
            numpyro.sample("y", dist.Normal(effect, error), obs=y)

    found = told(schools, Y, np.ones(20), effect=np.zeros(20))
    assert found.predictive()["posterior_predictive"]["y"].shape == (1, 200, 20)
    with pytest.raises(ValueError, match=r"\['effect'\] belong to single units.*plate 'schools'"):
        found.log_prob(Y[:3], np.ones(3))


def test_without_a_plate_data_are_drawn_in_the_shape_observed():
    """A distribution of one number, observed at twenty; new rows have as many as they are."""

    def plain(y: Float[Array, " rows"], x: Float[Array, " rows"]):
        mean, spread = parameters()
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)
        numpyro.sample("x", dist.Normal(mean, spread), obs=x)

    found = told(plain, Y, Y)
    drawn = found.predictive()["posterior_predictive"]["y"]
    assert drawn.shape == (1, 200, 20)
    assert (drawn.std("rows") > 0).all()


def test_data_that_no_site_observes_are_named():
    def forgotten(y: Float[Array, " rows"], z: Float[Array, " rows"]):
        mean, spread = parameters()
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, spread), obs=y)
            numpyro.sample("z", dist.Normal(mean, spread))

    with pytest.warns(
        sb.SideBayesWarning, match="does not depend on z, and site 'z'.* write obs=z"
    ):
        told(forgotten, Y, Y, z=Y)


def test_data_and_options_that_a_model_never_uses_are_named():
    def careless(y: Float[Array, " rows"], z: Float[Array, " rows"], size=2.0):
        z = parameters()
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(*z), obs=y)

    def counted(y: Float[Array, " rows"], z: Float[Array, " rows"]):
        at = parameters()
        with numpyro.plate("rows", len(z)):
            numpyro.sample("y", dist.Normal(*at), obs=y)

    with pytest.warns(sb.SideBayesWarning) as said:
        sb.fit(careless, Y, Y, size=3.0, engine=at_one(AT), progress=False)
    assert [str(one.message).split(";")[0] for one in said] == [
        "careless: nothing in the model depends on z",
        "careless: the model never uses its option 'size'",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told(counted, Y, Y)


def test_a_model_that_observes_nothing_is_refused():
    def idle(y: Float[Array, " rows"] = None):
        mean, spread = parameters()
        with numpyro.plate("rows", 20):
            numpyro.sample("y", dist.Normal(mean, spread), obs=y)

    with pytest.raises(ValueError, match="observes nothing.* pass y, or write"):
        fitted(idle)


def test_debug_says_the_same():
    report = sb.debug(inside(crossed), Y)
    assert report["trace"].verdict == "fail"
    assert "400 terms of 20 values" in report["trace"].finding


def test_means_of_a_mixture_may_be_known():
    """The variances maximise the likelihood: they are the moments about these means."""
    rng = np.random.default_rng(2)
    means = np.array([[0.0, 0.0], [6.0, 0.0]])
    x = means[np.arange(80) % 2] + rng.normal(size=(80, 2)) * [1.0, 2.0]
    known = handlers.condition(gmm, data={"mean": means})
    options = {"num_clusters": 2, "covariance": "spherical", "prior": "flat", "progress": False}
    fit = sb.fit(known, x, engine=sb.EM(num_restarts=1, tol=1e-9), **options)
    weights, variance = fit.params["weights"], fit.params["variance"]
    each = [multivariate_normal(m, v).pdf(x) for m, v in zip(means, variance, strict=True)]
    density = weights * np.stack(each, axis=1)
    share = density / density.sum(axis=1, keepdims=True)
    apart = ((x[:, None] - means) ** 2).mean(axis=2)
    moments = (share * apart).sum(axis=0) / share.sum(axis=0)
    np.testing.assert_allclose(variance, moments, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(weights, share.mean(axis=0), rtol=1e-4)
    # the means are no rows of data
    np.testing.assert_allclose(fit.log_prob(x[:2]), np.log(density.sum(axis=1))[:2], rtol=1e-6)
    with pytest.raises(ValueError, match="constant features"):
        sb.fit(known, x * [1.0, 0.0], engine="em", **options)


def test_covariances_of_a_mixture_may_be_known():
    rng = np.random.default_rng(3)
    x = np.array([0.0, 6.0])[np.arange(60) % 2, None] + rng.normal(size=(60, 1))
    spread = np.array([[[1.0]], [[1.5]]])
    known = handlers.condition(gmm, data={"covariance": spread})
    engine = sb.EM(num_restarts=1, tol=1e-9)
    fit = sb.fit(known, x, num_clusters=2, prior="flat", engine=engine, progress=False)
    share = fit.responsibilities()
    np.testing.assert_allclose(
        fit.params["mean"], share.T @ x / share.sum(axis=0)[:, None], atol=1e-3
    )
    density = fit.params["weights"] * norm.pdf(
        x, fit.params["mean"][:, 0], np.sqrt(spread[:, 0, 0])
    )
    np.testing.assert_allclose(share, density / density.sum(axis=1, keepdims=True), atol=1e-6)


def of_known_noise():
    """Rows of twelve subjects, a mixture of effects whose noise is known, and the problem that it is."""
    rng = np.random.default_rng(4)
    subjects, ones = np.repeat(np.arange(12), 3), np.ones((36, 1))
    y = 4.0 * (subjects % 2) + rng.normal(size=36)
    known = handlers.condition(mixed_effects_mixture, data={"noise": np.ones(2)})
    args = jnp.asarray(y), ones, ones, sb.Groups(subjects)
    return y, subjects, Problem(known, args, {"num_clusters": 2})


def test_starts_of_rows_say_nothing_of_groups(monkeypatch):
    """What is left of the parameters of effects has no update, and starts that know of groups."""

    def shapes(name, problem, config, build, *inputs, **how):
        program = build(problem)
        return lambda *given: jax.tree.map(zeros_of, jax.eval_shape(program, *given)), 0.0

    monkeypatch.setattr(starts, "compiled", shapes)
    problem = of_known_noise()[2]
    assert plan_updates(problem).rest == ("coefficients", "factor")
    found = starts.initial_values(problem, 0, 1, seeded=True)
    sizes = {name: value.shape for name, value in found.items()}
    assert sizes == {"weights": (1, 2), "coefficients": (1, 2, 1), "factor": (1, 2, 1)}


def zeros_of(value):
    return np.zeros(value.shape, value.dtype)


def test_a_part_of_the_parameters_of_effects_may_be_known():
    """Labels are of groups there, and starts of rows say nothing of them."""
    y, subjects, problem = of_known_noise()
    found = sb.EM(num_restarts=1, max_steps=50).run(problem)
    expected = [y[subjects % 2 == k].mean() for k in range(2)]
    np.testing.assert_allclose(np.sort(found.params["coefficients"].ravel()), expected, atol=0.1)


def test_a_mask_of_rows_of_a_linked_mixture_says_what_it_is():
    def masked(y: Float[Array, " rows"]):
        with numpyro.plate("clusters", 2):
            level = numpyro.sample("level", dist.Normal(0.0, 2.0))
        labels = sb.LinkedCategorical(jnp.log(jnp.full(2, 0.5)), as_label_graph(None, len(y)))
        with handlers.mask(mask=jnp.arange(len(y)) > 3):
            numpyro.sample("y", sb.LinkedMixture(labels, dist.Normal(level, 1.0)), obs=y)

    with pytest.raises(ValueError, match="one event of all rows, so that no mask.*links.subset"):
        fitted(masked, Y)


def two_outcomes(x: Float[Array, " points"], count: Float[Array, " points"], *, sites: str):
    """Outcomes of two kinds under one label: as one site, as two, or as two with labels of their own."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("clusters", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, len(x)))
    counts, side = dist.Poisson(rate), None
    if sites == "one":
        side = counts.log_prob(count[:, None])
    else:
        own = labels if sites == "two" else LinkedCategorical(labels.log_weights, labels.graph)
        numpyro.sample("count", LinkedMixture(own, counts), obs=count)
    numpyro.sample("x", LinkedMixture(labels, dist.Normal(mean, 1.0), log_side=side), obs=x)


TWO = {"weights": [0.4, 0.6], "mean": [1.0, 3.0], "rate": [1.0, 4.0]}


def test_labels_of_two_outcomes_are_summed_out_once():
    x, count = Y, np.floor(np.abs(Y))
    at = {name: np.array(v) for name, v in TWO.items()}
    factors = np.log(at["weights"]) + poisson(at["rate"]).logpmf(count[:, None])
    factors += norm(at["mean"], 1.0).logpdf(x[:, None])
    expected = np.logaddexp.reduce(factors, axis=-1).sum()
    expected += (
        norm(0.0, 3.0).logpdf(at["mean"]).sum() + gamma(2.0, scale=2.0).logpdf(at["rate"]).sum()
    )
    one = Problem(two_outcomes, (x, count), {"sites": "one"})
    with jax.enable_x64(True):
        assert jax.jit(lambda at: log_joint(one, at))(at) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="'count' and 'x' have the same labels.*log_side"):
        sb.fit(two_outcomes, x, count, sites="two", progress=False)
    abstract_trace(Problem(two_outcomes, (x, count), {"sites": "own labels"}))
