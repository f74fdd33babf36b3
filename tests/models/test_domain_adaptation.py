"""A classifier moved to another domain: Raghuram (2014), chapter 4; dossier checks 13, 16, 24-27, 29."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.initialization import init_to_value
from scipy.special import logsumexp
from scipy.stats import dirichlet, invgamma, invwishart, multivariate_normal, norm
from sidebayes.diagnostics.sites import is_ordered
from sidebayes.guides.domain_adaptation import ComponentMaps, mixture_by_bic, transformed_accuracy
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import log_joint, trace_model
from sidebayes.guides.engines.steps.surrogate import tightened
from sidebayes.models.blocks.classes.stated import noise_of_strength
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.domain_adaptation import domain_adaptation
from sidebayes.models.moe import moe
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

import sidebayes as sb
from sidebayes import EM, MAP, ShiftPrior, SourceMixture
from tests.support.draws import at_one
from tests.support.partitions import basis_of, matched_discriminants

RNG = np.random.default_rng(1)
OWNER = np.array([0, 0, 1, 1, 2])
CENTRES = np.array([(0.0, 0.0), (3.5, 0.0), (0.0, 3.5), (3.5, 3.5), (-3.0, 2.0)])
ROOTS = 0.2 * RNG.normal(size=(5, 2, 2)) + np.eye(2)
SOURCE = SourceMixture(
    np.array([0.3, 0.1, 0.2, 0.25, 0.15]), CENTRES, ROOTS @ ROOTS.transpose(0, 2, 1), OWNER
)
OWN = RNG.integers(0, 5, 60)
X = CENTRES[OWN] + np.array([0.6, -0.4]) + RNG.normal(size=(60, 2))
TRUTH = OWNER[OWN]
KNOWN = np.where(np.arange(60) % 9 == 0, TRUTH, -1)
SHIFT = ShiftPrior(mean=8.0, covariance=12.0, weights=20.0)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def problem_of(known=KNOWN, **options):
    labels = None if known is None else PartialLabels(known)
    return Problem(domain_adaptation, (jnp.asarray(X), labels), {"source": SOURCE} | options)


def params_of(seed=0, rule=False):
    """Parameters near the source, and discriminants of no special form."""
    rng = np.random.default_rng(seed)
    found = {
        "weights": rng.dirichlet(np.full(5, 4.0)),
        "mean": CENTRES + 0.3 * rng.normal(size=(5, 2)),
        "covariance": SOURCE.covariance * rng.uniform(0.7, 1.4, (5, 1, 1)),
    }
    return found | ({"discriminants": 0.5 * rng.normal(size=(5, 6))} if rule else {})


def log_joints(params, x=X):
    """log w_k N(x | mu_k, Sigma_k), by SciPy."""
    parts = zip(params["mean"], params["covariance"], strict=True)
    dens = np.stack([multivariate_normal(m, s).logpdf(x) for m, s in parts], axis=1)
    return np.log(params["weights"]) + dens


def errors(known=KNOWN):
    """One where a component's class is not the known one."""
    return ((known[:, None] >= 0) & np.not_equal(OWNER, known[:, None])).astype(float)


def mixture_of(problem, params):
    ((fn, value),) = collapsed_sites(trace_model(problem, params)).values()
    return fn, value


@pytest.mark.parametrize("strength", [0.0, 0.7, 30.0])
def test_exact_objective_is_the_likelihood_under_label_noise(strength):
    """R29: -F_min - N_l log(1 + (C - 1) e^-beta), with F_min of eqs. 4.15-4.16 written out."""
    params = params_of()
    problem = problem_of(strength=strength, shift="flat")
    free = logsumexp(log_joints(params) - strength * errors(), axis=1).sum()
    coins = np.log1p(2 * np.exp(-strength)) * (KNOWN >= 0).sum() if strength else 0.0
    found = jax.jit(lambda p: log_joint(problem, p))(params)
    flat = dirichlet(np.ones(5)).logpdf(params["weights"])
    np.testing.assert_allclose(found - flat, free - coins, rtol=1e-12)


def test_exact_objective_is_that_of_moe_with_known_classes_of_components():
    """The same law as `moe`, whose table of classes is held, and whose statements are as noisy."""
    params = params_of()
    noise = noise_of_strength(2.0, 3)
    assert noise_of_strength(10**400, 3) == noise_of_strength(np.inf, 3) == 0.0
    assert np.log((1 - noise) / (noise / 2)) == pytest.approx(2.0)
    table = {"class_table": np.maximum(SOURCE.table, 1e-300)}
    options = {"num_clusters": 5, "num_classes": 3, "prior": "flat", "label_noise": noise}
    noisy = Problem(moe, (jnp.asarray(X), PartialLabels(KNOWN)), options)

    @jax.jit
    def described(params):
        both = (
            mixture_of(problem_of(strength=2.0, shift="flat"), params),
            mixture_of(noisy, params | table),
        )
        return [(fn.log_prob(value), fn.class_probabilities(value)) for fn, value in both]

    own, other = described(params)
    np.testing.assert_allclose(own[0], other[0], rtol=1e-12)
    np.testing.assert_allclose(own[1], other[1], atol=1e-12)


def test_bound_is_the_lagrangian_written_out():
    """Eqs. 4.11, 4.17 and 4.20, never above the exact objective; its slope in the rule by hand."""
    params, strength = params_of(rule=True), 1.7
    problem = problem_of(strength=strength, shift="flat", posterior="partition")
    basis = basis_of(X)
    scores = basis @ params["discriminants"].T
    log_q = scores - logsumexp(scores, axis=1, keepdims=True)
    q = np.exp(log_q)
    lagrangian = (q * (log_q - log_joints(params) + strength * errors())).sum()
    coins = np.log1p(2 * np.exp(-strength)) * (KNOWN >= 0).sum()
    whole = problem_of(strength=strength, shift="flat")

    @jax.jit
    def described(params):
        fn, value = mixture_of(problem, params)
        exact, _ = mixture_of(whole, {name: params[name] for name in params_of()})
        slope = jax.grad(lambda phi: log_joint(problem, params | {"discriminants": phi}))
        slope = slope(params["discriminants"])
        return fn.log_prob(value), fn.class_probabilities(value), exact.log_prob(value), slope

    bound, classes, exact, found = described(params)
    np.testing.assert_allclose(bound, -lagrangian - coins, rtol=1e-12)
    np.testing.assert_allclose(classes, q @ SOURCE.table, atol=1e-12)
    assert bound < exact - 1
    e = log_q + 1 - log_joints(params) + strength * errors()
    slope = (q * (e - (q * e).sum(axis=1, keepdims=True))).T @ basis
    np.testing.assert_allclose(-found, slope, rtol=1e-9, atol=1e-9)


def test_without_price_both_posteriors_are_the_mixtures_own():
    """R13: at beta = 0 the bound touches the likelihood, and its slope in the rule vanishes."""
    params, unit = params_of(), X.std(axis=0)
    mean, spread = (params["mean"] - X.mean(axis=0)) / unit, params["covariance"]
    log_weights = np.log(params["weights"])
    phi = matched_discriminants(log_weights, mean, spread / np.outer(unit, unit), "full")
    problem = problem_of(strength=0.0, shift="flat", posterior="partition")

    def bound(phi):
        fn, value = mixture_of(problem, params | {"discriminants": phi})
        return fn.log_prob(value)

    value, slope = jax.jit(jax.value_and_grad(bound))(phi)
    np.testing.assert_allclose(value, logsumexp(log_joints(params), axis=1).sum(), atol=1e-9)
    assert np.abs(slope).max() < 1e-10


def plain_em(steps, shift=None):
    """EM of eqs. 4.15 and section 4.2.3 in NumPy, known classes kept; MAP under a shift prior."""
    w, mu, sigma = SOURCE.weights, SOURCE.mean, SOURCE.covariance
    kappa, weight, extra = (8.0, 12.0, 20.0 * SOURCE.weights) if shift else (0.0, 0.0, np.zeros(5))
    for _ in range(steps):
        joint = log_joints({"weights": w, "mean": mu, "covariance": sigma})
        joint = np.where(errors() > 0, -np.inf, joint)
        r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        n = r.sum(axis=0)
        w = (n + extra) / (n + extra).sum()
        centre = r.T @ X / n[:, None]
        mu = (n[:, None] * centre + kappa * SOURCE.mean) / (n + kappa)[:, None]
        new = []
        for k in range(5):
            scatter = (r[:, k, None] * (X - centre[k])).T @ (X - centre[k])
            off = centre[k] - SOURCE.mean[k]
            scatter += n[k] * kappa / (n[k] + kappa) * np.outer(off, off)
            total = n[k] + weight + (1.0 if shift else 0.0)
            new.append((scatter + weight * SOURCE.covariance[k]) / total)
        sigma = np.stack(new)
    return {"weights": w, "mean": mu, "covariance": sigma}


@pytest.mark.parametrize("shift", ["flat", SHIFT], ids=["flat", "prior"])
def test_steps_are_those_of_method_two_at_a_large_price(shift):
    """R24, and the normal-inverse-Wishart M-step of the thesis' section 4.2.3."""
    given = {"source": SOURCE, "strength": 700.0, "shift": shift, "progress": False}
    engine = EM(num_restarts=1, max_steps=5, tol=0.0)
    fit = sb.fit("domain_adaptation", X, KNOWN, engine=engine, **given)
    found = fit.params
    expected = plain_em(5, None if shift == "flat" else shift)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-8, atol=1e-8)
    assert np.nanmin(np.diff(fit.objective, axis=1)) > 0


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_density_of_the_shift_prior(covariance):
    """Each component's prior is its own, against SciPy's densities."""
    params = params_of()
    kappa, weight = 8.0, 12.0
    expected = dirichlet(1 + 20 * SOURCE.weights).logpdf(params["weights"])
    for k in range(5):
        sigma, own = params["covariance"][k], weight * SOURCE.covariance[k]
        if covariance == "full":
            expected += invwishart(weight - 3, own).logpdf(sigma)
            expected += multivariate_normal(CENTRES[k], sigma / kappa).logpdf(params["mean"][k])
        else:
            variance = np.diagonal(sigma)
            law = invgamma((weight - 2) / 2, scale=np.diagonal(own) / 2)
            expected += law.logpdf(variance).sum()
            deviation = np.sqrt(variance / kappa)
            expected += norm(CENTRES[k], deviation).logpdf(params["mean"][k]).sum()
    if covariance == "diagonal":
        variance = np.diagonal(params.pop("covariance"), axis1=1, axis2=2)
        params["variance"] = variance
        each = [
            norm(m, np.sqrt(v)).logpdf(X).sum(axis=1)
            for m, v in zip(params["mean"], variance, strict=True)
        ]
        joint = np.log(params["weights"]) + np.stack(each, axis=1)
    else:
        joint = log_joints(params)
    expected += logsumexp(joint - 1.5 * errors(), axis=1).sum()
    expected -= np.log1p(2 * np.exp(-1.5)) * (KNOWN >= 0).sum()
    problem = problem_of(shift=SHIFT, covariance=covariance, strength=1.5)
    np.testing.assert_allclose(
        jax.jit(lambda p: log_joint(problem, p))(params), expected, rtol=1e-11
    )


def test_mode_of_the_prior_is_near_the_source():
    """Without target points in reach the covariance is the source's, less one point of the mode's."""
    prior = ShiftPrior().around(SOURCE.mean, SOURCE.covariance, form="full")
    mode = prior.scale / (prior.df + 2 + 1)[:, None, None]
    np.testing.assert_allclose(mode, SOURCE.covariance, rtol=1e-12)
    assert (prior.df > 1).all()
    with pytest.raises(ValueError, match="improper for 2 features"):
        ShiftPrior(covariance=4.0).around(SOURCE.mean, SOURCE.covariance, form="full")
    ShiftPrior(covariance=4.0).around(SOURCE.mean, SOURCE.covariance, form="diagonal")


def test_partition_rises_and_moves_the_space_around_a_known_class():
    """R16: the bound never falls; a known class tells its neighbours, which exact sums do not."""
    options = {"source": SOURCE, "posterior": "partition", "strength": 50.0, "progress": False}
    fit = sb.fit("domain_adaptation", X, KNOWN, engine=EM(num_restarts=2), **options)
    assert np.nanmin(np.diff(fit.objective, axis=1)) > -1e-6
    assert (fit.classes()["class"] == TRUTH).mean() > 0.8
    own, new = fit.class_probabilities(), fit.class_probabilities(X[::-1].copy())
    np.testing.assert_allclose(own[::-1], new, atol=1e-10)  # the rule sees no label
    problem = problem_of(posterior="partition", strength=50.0)
    start = {k: np.asarray(v) for k, v in fit.params.items() if k not in ("centre", "unit")}
    rough = start | {"discriminants": np.zeros((5, 6))}
    better = jax.jit(lambda p: tightened(problem, p, problem.args, 60))(rough)
    told = KNOWN >= 0
    fn, value = mixture_of(problem, better)
    assert (fn.mode(value)[told] >= 0).all()
    right = SOURCE.table[np.asarray(fn.mode(value))][told, KNOWN[told]]
    assert right.mean() > 0.85


def test_the_mode_is_that_of_map():
    given = {"source": SOURCE, "strength": 5.0, "progress": False}
    em = sb.fit("domain_adaptation", X, KNOWN, engine=EM(num_restarts=1, tol=1e-13), **given)
    climbed = sb.fit(
        "domain_adaptation", X, KNOWN, engine=MAP(num_restarts=1), init=em.params, **given
    )
    best = [f.tree["sample_stats"]["lp"].item() for f in (em, climbed)]
    assert best[0] == pytest.approx(best[1], abs=1e-6)
    np.testing.assert_allclose(em.params["mean"], climbed.params["mean"], atol=1e-3)


def test_a_saved_fit_predicts_the_same(tmp_path):
    given = {"source": SOURCE, "shift": SHIFT, "engine": at_one(params_of()), "progress": False}
    fit = sb.fit("domain_adaptation", X, KNOWN, **given)
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", engine=given["engine"])
    np.testing.assert_array_equal(fit.class_probabilities(X[:7]), again.class_probabilities(X[:7]))
    np.testing.assert_array_equal(again.run.options["source"].mean, CENTRES)
    assert fit.labels().shape == (60,)
    assert set(fit.params["weights"].shape) == {5}
    assert is_ordered(again.tree)


def test_the_model_simulates_under_numpyro():
    @jax.jit
    def simulated():
        drawn = handlers.trace(handlers.seed(domain_adaptation, 0)).get_trace(
            None, source=SOURCE, shift=SHIFT, num_points=4000, strength=3.0
        )
        names = "weights", "mean", "covariance", "x", "known"
        return {name: drawn[name]["value"] for name in names}

    params = {name: np.asarray(value) for name, value in simulated().items()}
    rows, known = params.pop("x"), params.pop("known")
    joint = log_joints(params, rows)
    prob = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) @ SOURCE.table
    noise = noise_of_strength(3.0, 3)
    stated = noise / 2 + (1 - 1.5 * noise) * prob
    share = np.eye(3)[known].mean(axis=0)
    np.testing.assert_allclose(share, stated.mean(axis=0), atol=4 * 0.5 / np.sqrt(4000))
    mean = params["weights"] @ params["mean"]
    np.testing.assert_allclose(rows.mean(axis=0), mean, atol=4 * rows.std() / np.sqrt(4000))


@pytest.mark.slow
def test_numpyro_samples_the_posterior_of_the_shift(tmp_path):
    # a source that counts for much leaves one mode
    given = {"source": SOURCE, "shift": sb.ShiftPrior(mean=50.0, covariance=60.0)}
    kernel = NUTS(domain_adaptation, init_strategy=init_to_value(values=params_of()))
    mcmc = MCMC(kernel, num_warmup=300, num_samples=300, progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.asarray(X), PartialLabels(KNOWN), **given)
    draws = mcmc.get_samples()["mean"].mean(axis=0)
    fit = sb.fit("domain_adaptation", X, KNOWN, **given, engine="gibbs", progress=False)
    fit.save(tmp_path / "fit.nc")
    for one in (fit, sb.load(tmp_path / "fit.nc")):
        # components are told apart by their source: no draw is renumbered
        tree, score = one.relabelled
        assert (tree["relabelling"]["permutation"].to_numpy() == np.arange(5)).all()
        assert score > 0.8
    np.testing.assert_allclose(draws, fit.params["mean"], atol=0.15)


def test_source_by_one_component_is_quadratic_discriminant_analysis():
    labels = np.repeat(np.arange(3), 40)
    x = RNG.normal(size=(120, 2)) * [1.0, 2.0] + np.array([(0, 0), (2, 1), (-2, 2)])[labels]
    found = sb.fit_source(x, labels, num_components=1)
    qda = QuadraticDiscriminantAnalysis(store_covariance=True).fit(x, labels)
    np.testing.assert_allclose(found.mean, qda.means_, atol=1e-8)
    np.testing.assert_allclose(found.predict_proba(x), qda.predict_proba(x), atol=0.02)
    assert (found.predict(x) == qda.predict(x)).mean() > 0.98
    np.testing.assert_allclose(found.weights, 1 / 3)


def two_blobs(seed, shift=(0.0, 0.0), turn=None):
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(size=(80, 2)) + c for c in ((0, 0), (9, 0), (0, 9))])
    turn = np.eye(2) if turn is None else turn
    return x @ turn.T + shift, np.repeat([0, 1, 1], 80)


def test_features_are_those_of_the_source_by_name(tmp_path):
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], 20)
    old = pd.DataFrame(rng.normal(size=(40, 2)) + 4 * np.eye(2)[labels], columns=["a", "b"])
    turned = old[["b", "a"]]
    source = sb.fit_source(old, labels, num_components=1)
    assert source.feature_names == ("a", "b")
    np.testing.assert_array_equal(source.predict_proba(turned), source.predict_proba(old))
    params = {name: getattr(source, name) for name in ("weights", "mean", "covariance")}
    one = {"source": source, "engine": at_one(params), "progress": False}
    fits = [sb.fit("domain_adaptation", x, **one) for x in (old, turned, old.to_numpy())]
    for fit in fits:
        np.testing.assert_array_equal(fit.run.data["x"], old)
        np.testing.assert_array_equal(fit.predict(turned), fits[0].predict(old))
        assert fit.run.feature_names == ("a", "b")
    fits[1].save(tmp_path / "fit.nc")
    np.testing.assert_array_equal(
        sb.load(tmp_path / "fit.nc", engine=one["engine"]).predict(turned), fits[0].predict(old)
    )
    strange = old.rename(columns={"a": "c"})
    calls = (
        lambda: sb.fit("domain_adaptation", strange, **one),
        lambda: source.predict(strange),
        lambda: sb.select_adaptation(strange, labels, source_x=old, source_labels=labels),
    )
    for call in calls:
        with pytest.raises(
            ValueError, match=r"x lacks \['a'\] and has \['c'\] .* source has \['a', 'b'\]"
        ):
            call()
    with pytest.raises(ValueError, match="feature_names has 1 name for 2 features"):
        SourceMixture(*source.tree_flatten()[0], source.component_class, ["a"])


def test_transformed_accuracy():
    """R25: identical domains give the plain accuracy; an affine copy the same within 0.01."""
    x, labels = two_blobs(0)
    source = mixture_by_bic(x, 3)
    same = ComponentMaps(source, source)
    np.testing.assert_allclose(same(x), np.broadcast_to(x, (3, *x.shape)), atol=1e-8)
    rule = lambda rows: (rows.sum(axis=1) > 4).astype(int)  # noqa: E731
    shares = np.bincount(labels) / len(labels)
    plain = (rule(x) == labels).mean()
    assert transformed_accuracy(x, labels, same, rule, shares) == pytest.approx(plain, abs=1e-12)
    turn, shift = np.array([[1.3, 0.2], [0.1, 0.8]]), np.array([0.5, -0.7])
    y, _ = two_blobs(0, shift, turn)
    back = np.linalg.inv(turn)
    moved = ComponentMaps(source, mixture_by_bic(y, 3))
    there = lambda rows: rule((rows - shift) @ back.T)  # noqa: E731
    for number, (i, j) in enumerate(moved.matched):  # one Gaussian becomes the other
        ends = source.means_[i] + np.linalg.cholesky(source.covariances_[i]).T
        root = np.linalg.cholesky(moved.target.covariances_[j])
        np.testing.assert_allclose(moved(ends)[number], moved.target.means_[j] + root.T, atol=1e-8)
    found = transformed_accuracy(x, labels, moved, there, shares)
    assert found == pytest.approx(plain, abs=0.01)
    lacking = ComponentMaps(source, mixture_by_bic(y, 2))
    assert 0 <= transformed_accuracy(x, labels, lacking, there, shares) < found - 0.1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "iris"}, "source is a str; pass a SourceMixture"),
        ({"shift": "far"}, "shift = 'far'; expected 'source', 'flat' or a ShiftPrior"),
        ({"strength": -1.0}, "strength = -1.0; expected a number >= 0"),
        ({"posterior": "best"}, "posterior = 'best'; expected 'exact' or 'partition'"),
        ({"covariance": "tied"}, "covariance = 'tied'; expected one of"),
    ],
)
def test_bad_options_are_named(options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        sb.fit("domain_adaptation", X, KNOWN, **({"source": SOURCE} | options))


@pytest.mark.parametrize("engine", ["nuts", "svi"])
def test_rules_are_not_drawn(engine):
    with pytest.raises(ValueError, match="discriminants describe a restricted posterior"):
        sb.fit("domain_adaptation", X, source=SOURCE, posterior="partition", engine=engine)


def test_bad_data_are_named():
    with pytest.raises(ValueError, match="x has 3 features and the source 2"):
        sb.fit("domain_adaptation", np.c_[X, X[:, 0] ** 2], source=SOURCE)
    with pytest.raises(ValueError, match="class 3; expected 0 to 2"):
        sb.fit("domain_adaptation", X, np.where(KNOWN == 2, 3, KNOWN), source=SOURCE)
    with pytest.raises(ValueError, match="every class from 0 on needs a component"):
        SourceMixture(SOURCE.weights, CENTRES, SOURCE.covariance, OWNER + 1)
    with pytest.raises(ValueError, match="sum to one"):
        SourceMixture(2 * SOURCE.weights, CENTRES, SOURCE.covariance, OWNER)
    with pytest.raises(ValueError, match=r"ShiftPrior\(mean=-1"):
        ShiftPrior(mean=-1.0)
    with pytest.raises(ValueError, match="class 1 in 1 row"):
        sb.fit_source(X[:3], [0, 0, 1])
    with pytest.raises(ValueError, match="is no class; every row"):
        sb.fit_source(X, KNOWN)
    with pytest.raises(ValueError, match="cannot be simulated from"):
        domain_adaptation(None, source=SOURCE, shift="flat", num_points=3)
