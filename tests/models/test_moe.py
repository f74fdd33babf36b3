"""Components with classes: EM, limits, engines, what a fit says of classes, bad input."""

from dataclasses import replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import abstract_trace, log_joint
from sidebayes.guides.engines.steps.updates import plan_updates
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.moe import moe
from sidebayes.models.pfgl import pfgl
from sklearn.mixture import GaussianMixture

import sidebayes as sb
from sidebayes.runs.problems import remarks
from sidebayes.studies import prototypes
from tests.support.classes import some_known, split2d
from tests.support.draws import Asked, AtStart, at_one

RNG = np.random.default_rng(0)
X, CLASSES = split2d(RNG, 40)
KNOWN = some_known(RNG, CLASSES, 16)
SIZES = {"num_clusters": 2, "num_classes": 2}
PRIOR = sb.GaussianPrior(np.zeros(2), 0.1, 5.0, np.eye(2))
FAST = sb.EM(num_restarts=2, max_steps=60)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def fit():
    return sb.fit("moe", X, KNOWN, engine=FAST, prior="flat", progress=False, **SIZES)


def reference(x, known, means, steps):
    """EM of the thesis in NumPy: weights, means, covariances and class table."""
    number, size = len(means), x.shape[1]
    weights, table = np.full(number, 1 / number), np.full((number, 2), 0.5)
    spread = np.tile(np.eye(size), (number, 1, 1))
    path = []
    for _ in range(steps):
        joint = np.empty((len(x), number))
        for k in range(number):
            apart = x - means[k]
            quadratic = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(spread[k]), apart)
            log_det = np.linalg.slogdet(2 * np.pi * spread[k])[1]
            joint[:, k] = np.log(weights[k]) - (quadratic + log_det) / 2
            told = known >= 0
            joint[told, k] += np.log(np.maximum(table[k, known[told]], 1e-300))
        top = joint.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
        path.append(total.sum())
        member = np.exp(joint - total[:, None])
        size_of = member.sum(axis=0)
        weights, means = size_of / len(x), member.T @ x / size_of[:, None]
        for k in range(number):
            apart = x - means[k]
            spread[k] = (member[:, k, None] * apart).T @ apart / size_of[k]
        counts = np.stack([member[known == c].sum(axis=0) for c in (0, 1)], axis=1)
        table = counts / counts.sum(axis=1, keepdims=True)
    return {"weights": weights, "mean": means, "covariance": spread, "class_table": table}, path


def test_em_is_that_of_the_thesis():
    """Raghuram (2014), checks R1: each step as written out in NumPy, and none that falls."""
    start = {
        "weights": np.full(2, 0.5),
        "mean": X[[0, 1]],
        "covariance": np.tile(np.eye(2), (2, 1, 1)),
        "class_table": np.full((2, 2), 0.5),
    }
    expected, path = reference(X, KNOWN, X[[0, 1]], 6)
    problem = Problem(moe, (jnp.asarray(X), PartialLabels(KNOWN)), {"prior": "flat", **SIZES})
    assert plan_updates(problem).rest == ()
    result = sb.EM(max_steps=6, tol=0.0).run(problem, init=start, progress=False)
    np.testing.assert_allclose(result.objective[0, :6], path, rtol=1e-10)
    assert np.diff(result.objective[0]).min() >= -1e-8 * abs(path[-1])
    for name, value in expected.items():
        np.testing.assert_allclose(result.params[name], value, atol=1e-6, err_msg=name)


def test_without_labels_it_is_the_mixture():
    """Check R3: scikit-learn's maximum from the same start."""
    theirs = GaussianMixture(2, random_state=0, tol=1e-12, max_iter=1000, reg_covar=0).fit(X)
    start = {
        "weights": theirs.weights_,
        "mean": theirs.means_,
        "covariance": theirs.covariances_,
        "class_table": np.full((2, 2), 0.5),
    }
    for known in (None, np.full(len(X), -1)):
        fit = sb.fit(
            "moe", X, known, prior="flat", engine=FAST, init=start, progress=False, **SIZES
        )
        for name, value in start.items():
            np.testing.assert_allclose(fit.params[name], value, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(fit.objective.max(), theirs.score(X) * len(X), rtol=1e-8)


def test_classes_of_rows_fitted_and_new(fit, tmp_path):
    """Known ones keep their class, new ones follow the table, and a saved fit says the same."""
    table = fit.classes()
    told = KNOWN >= 0
    np.testing.assert_array_equal(table["class"][told], KNOWN[told])
    np.testing.assert_allclose(table["probability"][told], 1.0)
    new, _ = split2d(np.random.default_rng(1), 50)
    prob = fit.class_probabilities(new)
    np.testing.assert_allclose(prob, fit.predict_proba(new) @ fit.params["class_table"], atol=1e-12)
    pure = fit.params["mean"][:, 0].argmax()
    np.testing.assert_allclose(fit.params["class_table"][pure], [0.0, 1.0], atol=1e-8)
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_allclose(again.class_probabilities(new), prob, rtol=1e-10)
    assert fit.tree["posterior"]["class_table"].dims[2:] == ("clusters", "classes")


def test_models_without_classes_say_so():
    params = {"weights": [0.5, 0.5], "mean": X[:2], "variance": [1.0, 1.0]}
    plain = {"covariance": "spherical", "engine": at_one(params), "progress": False}
    other = sb.fit("gmm", X, num_clusters=2, **plain)
    with pytest.raises(ValueError, match="gmm has no classes"):
        other.classes()


def test_noise_lets_a_known_class_be_doubted():
    """A wrong class deep in a component of the other is believed without noise, doubted with it."""
    known = np.where(np.arange(len(X)) % 3 == 0, (X[:, 0] > 3.5) * 1, -1)
    wrong = int(np.flatnonzero((known == 1) & (X[:, 0] > 6))[0])
    known[wrong] = 0
    given = {"engine": FAST, "progress": False, **SIZES}
    sure = sb.fit("moe", X, known, **given)
    noisy = sb.fit("moe", X, known, label_noise=0.1, **given)
    for fit in (sure, noisy):  # check R12: the prior of the covariances is in the objective
        assert np.nanmin(np.diff(fit.objective)) >= -1e-8 * np.nanmax(np.abs(fit.objective))
    assert sure.classes()["class"][wrong] == 0
    assert noisy.classes()["class"][wrong] == 1
    assert noisy.class_probabilities()[wrong, 1] > 0.9


@pytest.mark.slow
def test_classes_unseen_and_masks():
    """A class that no row has gets its prior's share; a mask of two excludes the third."""
    masks = np.ones((len(X), 3), bool)
    masks[KNOWN == 0] = [True, False, False]
    masks[KNOWN == 1] = [False, True, True]
    sizes = {"num_clusters": 2, "num_classes": 3, "class_concentration": 2.0}
    fit = sb.fit("moe", X, masks, engine=FAST, progress=False, **sizes)
    assert (fit.class_probabilities()[KNOWN == 1, 0] < 1e-12).all()
    one = sb.fit("moe", X, KNOWN, engine=FAST, progress=False, **sizes)
    share = one.params["class_table"]
    assert (share[:, 2] > 0).all()
    assert (share[:, 2] < share[:, 1]).all()


@pytest.mark.slow
def test_rows_and_classes_are_simulated():
    """Without data, bare NumPyro draws rows and their classes; a mask says which rows are told."""
    told = PartialLabels(np.where(np.arange(4000) < 3000, 0, -1))
    given = {"num_points": 4000, "prior": PRIOR, "label_noise": 0.2, **SIZES}
    fixed = {
        "weights": jnp.asarray([0.3, 0.7]),
        "mean": jnp.asarray([[-9.0, 0.0], [9.0, 0.0]]),
        "covariance": jnp.tile(jnp.eye(2), (2, 1, 1)),
        "class_table": jnp.asarray([[1.0, 0.0], [0.25, 0.75]]),
    }

    @jax.jit
    def simulated():
        model = handlers.seed(handlers.substitute(moe, fixed), 3)
        sites = handlers.trace(model).get_trace(None, told, **given)
        return sites["x"]["value"], sites["known"]["value"]

    x, known = map(np.asarray, simulated())
    assert (known[3000:] == -1).all()
    left = x[:3000, 0] < 0
    for rows, share in ((left, 0.2), (~left, 0.2 + 0.6 * 0.75)):
        error = 5 * 0.5 / np.sqrt(rows.sum())
        assert abs((known[:3000][rows] == 1).mean() - share) < error
    drawn = handlers.trace(handlers.seed(moe, 0)).get_trace(None, None, **given)
    assert np.isfinite(drawn["class_table"]["value"]).all()


def test_statements_are_of_as_many_rows_as_are_simulated():
    given = {"num_points": 7, "prior": PRIOR, **SIZES}
    with pytest.raises(ValueError, match=r"stated has shape \(5, 2\); expected \(7, 2\)"):
        handlers.trace(handlers.seed(moe, 0)).get_trace(None, PartialLabels([0] * 5), **given)


@pytest.mark.slow
def test_bare_numpyro_samples_it():
    kernel = NUTS(moe, init_strategy=numpyro.infer.init_to_median(num_samples=3))
    mcmc = MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.asarray(X), PartialLabels(KNOWN), prior=PRIOR, **SIZES)
    assert mcmc.get_samples()["class_table"].shape == (5, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        sb.StochasticEM(batch_size=20, max_epochs=1),
        sb.CoordinateAscent(num_restarts=1, max_steps=5, num_draws=20),
        sb.BlockedGibbs(num_warmup=5, num_samples=10, num_chains=1, max_tree_depth=3),
        sb.MAP(num_restarts=1, max_steps=30),
        sb.Laplace(num_restarts=2, num_draws=100),
        sb.SVI(guide="mean_field", num_restarts=1, num_steps=200, num_draws=100),
        sb.NUTS(num_warmup=10, num_samples=10, num_chains=1, max_tree_depth=3),
    ],
    ids=lambda engine: engine.name,
)
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")
def test_engines(engine):
    fit = sb.fit("moe", X, KNOWN, engine=engine, prior=PRIOR, progress=False, **SIZES)
    assert np.isfinite(fit.tree["sample_stats"]["lp"]).all()
    prob = fit.class_probabilities(X[:5])
    np.testing.assert_allclose(prob.sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.slow
def test_a_prior_by_evidence_lets_samplers_mix():
    """Three components of iris, where the default prior has chains disagree (R-hat 1.6 on this run)."""
    iris = sb.load_dataset("iris")
    known = np.where(np.arange(150) % 10 == 0, iris.labels, -1)
    engine = sb.BlockedGibbs(num_warmup=300, num_samples=700, num_chains=4)
    prior = sb.GaussianPrior.by_evidence(iris.x, 3)
    sizes = {"num_clusters": 3, "num_classes": 3, "progress": False}
    fit = sb.fit("moe", iris.x, known, prior=prior, engine=engine, **sizes)
    assert fit.convergence["rhat"] < 1.02
    assert fit.convergence["ess"] > 400
    assert (fit.classes()["class"] == iris.labels).mean() > 0.95


def test_a_model_may_sample_the_rate_of_wrong_labels():
    given = {"prior": PRIOR, "covariance": "spherical", **SIZES}

    def noisy(
        x: Annotated[ArrayLike, "points features"],
        known: Annotated[PartialLabels, "points classes"],
    ):
        moe(x, known, **given, label_noise=numpyro.sample("rate", dist.Beta(2.0, 9.0)))

    engine = sb.MAP(num_restarts=1, max_steps=50)
    fit = sb.fit(noisy, X, KNOWN, engine=engine, progress=False)
    assert 0 < fit.params["rate"] < 0.5
    fixed = given | {"label_noise": float(fit.params["rate"])}
    plain = Problem(moe, (jnp.asarray(X), PartialLabels(KNOWN)), fixed)
    rest = {name: value for name, value in fit.params.items() if name in fit.tree["posterior"]}
    of_rate = dist.Beta(2.0, 9.0).log_prob(fixed["label_noise"])

    @jax.jit
    def both(params, rest):
        return log_joint(fit.run.problem, params), log_joint(plain, rest)

    own, other = both(fit.params, rest)
    np.testing.assert_allclose(own, other + of_rate, rtol=1e-10)


def test_terms_by_unit_are_rows(fit):
    """Terms add up to the log likelihood: rows with a class hold that of the class as well."""
    terms = fit.tree["log_likelihood"]["x"].to_numpy()
    assert terms.shape[-1] == len(X)
    total = float(jax.jit(lambda at: log_joint(fit.run.problem, at))(fit.params))
    np.testing.assert_allclose(terms.sum(), total, rtol=1e-10)


@pytest.mark.parametrize(
    ("known", "options", "message"),
    [
        (np.full(len(X), 2), {}, "labels name class 2"),
        (np.full(len(X), -2), {}, "use -1"),
        (KNOWN[:5], {}, "known"),
        (KNOWN + 0.5, {}, "labels must be integers"),
        (KNOWN, {"label_noise": 0.7}, "label_noise = 0.7"),
        (KNOWN, {"class_concentration": -1.0}, "class_concentration = -1.0"),
        (KNOWN, {"num_classes": 0}, "num_classes"),
    ],
)
def test_bad_input_is_refused(known, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sb.fit("moe", X, known, progress=False, engine=FAST, **(SIZES | options))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (None, True),
        (np.full(len(X), -1), True),
        (np.ones((len(X), 2), bool), True),
        (np.arange(len(X)) - len(X) + 1, False),
    ],
    ids=["left out", "unknown", "all admitted", "one row"],
)
def test_no_known_class_is_said(known, said):
    if known is not None:
        known = PartialLabels(np.maximum(known, -1) if known.ndim == 1 else known)
    for model, more in ((moe, {}), (pfgl, {"prototypes": [(0, 0), (1, 1)]})):
        problem = Problem(model, (X, known), {"num_clusters": 2, "num_classes": 2, **more})
        remark = collapsed_sites(abstract_trace(problem))["x"][0].remark()
        assert (remark is not None and remark.startswith("No class is known")) == said


def test_a_class_without_a_known_row_is_said(monkeypatch):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 1, (30, 2)), rng.normal(6, 1, (30, 2))])
    known = np.where(np.arange(60) % 5 == 0, np.repeat([0, 1], 30), -1)
    sizes = {"num_clusters": 2, "covariance": "spherical", "progress": False}
    at = {"weights": [0.5, 0.5], "mean": [[0.0, 0.0], [6.0, 6.0]], "variance": [1.0, 1.0]}

    def base(num_classes):
        engine = at_one(at | {"class_table": np.eye(2, num_classes)})
        return sb.fit("moe", x, known, num_classes=num_classes, engine=engine, **sizes)

    found = base(3)
    level, said = found.verdict
    assert level == "caution"
    assert "No component has class 2 (numbered from 0), which is predicted nowhere" in said
    two = replace(found.run, options=found.run.options | {"num_classes": 2})
    assert not remarks(two.problem, at_one(at | {"class_table": np.eye(2)}).draws)
    hard = at_one(at | {"class_table": np.eye(3)[[0, 2]]})  # as a component for each class has it
    (said,) = (one for one in remarks(found.run.problem, hard.draws) if "class 2" in one)
    assert "no row is known to have class 2 (numbered from 0), so that it is arbitrary" in said
    given, said = {"num_classes": 3, "base": found, **sizes}, "known names no row of class 2 "
    with pytest.warns(sb.SideBayesWarning, match=said):
        grown = sb.grow_prototypes(x, known, engine=AtStart(), **given)
    assert grown.class_probabilities()[:, 2].max() < 1e-6

    def asked_to_place(x, rows, anchors, *_, **__):
        raise Asked(anchors)

    monkeypatch.setattr(prototypes, "place_anchors", asked_to_place)
    with pytest.warns(sb.SideBayesWarning, match=said), pytest.raises(Asked) as asked:
        sb.fit_nfgl(x, known, **given)
    anchors = asked.value.problem  # no row votes for class 2, nor does a component
    assert set(np.asarray(anchors.classes)) == {0, 1}
    assert (anchors.table[:, 2] == 0).all()
