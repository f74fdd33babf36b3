"""The card `mixed_effects_mixture`: its limits, known classes, links of subjects, and what a fit tells."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sidebayes.diagnostics.trust.estimates import estimate_tables

import sidebayes as sb
from sidebayes.results.base import fit_base

TIGHT = sb.EM(tol=1e-12, max_steps=3000, num_restarts=4)


def simulate(num_subjects=50, seed=3):
    """Curves of two classes, with three to seven rows a subject, in no order."""
    rng = np.random.default_rng(seed)
    label = np.arange(num_subjects) % 2
    subject = np.repeat(np.arange(num_subjects), rng.integers(3, 8, num_subjects))
    rng.shuffle(subject)
    time = rng.uniform(-1, 1, len(subject))
    x = np.column_stack([np.ones(len(time)), time])
    own = np.array([[0.0, 1.2], [1.5, -1.2]])[label] + rng.normal(size=(num_subjects, 2)) * [
        0.8,
        0.6,
    ]
    y = (x * own[subject]).sum(axis=1) + np.array([0.5, 0.3])[label][subject] * rng.normal(
        size=len(x)
    )
    return SimpleNamespace(x=x, y=y, subject=subject, label=label)


DATA = simulate()


def fit(engine=TIGHT, num_clusters=2, data=DATA, **options):
    given = data.y, data.x, data.x, data.subject
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        return sb.fit(
            "mixed_effects_mixture", *given, num_clusters=num_clusters, engine=engine,
            progress=False, **options,
        )  # fmt: skip


def density(found):
    return found.tree["sample_stats"]["lp"].item()


@pytest.fixture(scope="module")
def plain():
    return fit()


def test_em_rises_to_a_mode(plain):
    assert plain.status.converged
    assert np.nanmin(np.diff(plain.objective, axis=1)) > -1e-9
    label = plain.labels()
    assert max((label == DATA.label).mean(), (label != DATA.label).mean()) > 0.9
    found = fit(sb.MAP(tol=1e-9), init=plain)
    np.testing.assert_allclose(density(found), density(plain), atol=1e-6)
    for name in ("coefficients", "covariance", "noise", "weights"):
        np.testing.assert_allclose(found.params[name], plain.params[name], atol=2e-3)


def test_one_class_is_the_linear_mixed_model():
    found = fit(num_clusters=1)
    one = sb.fit(
        "mixed_effects", DATA.y, DATA.x, DATA.x, DATA.subject, form="marginal", engine="newton",
        progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(density(found), density(one), atol=1e-7)
    for name in ("coefficients", "covariance", "noise"):
        np.testing.assert_allclose(found.params[name][0], one.params[name].squeeze(), atol=1e-4)
    np.testing.assert_allclose(found.unit_terms, one.unit_terms, atol=1e-4)
    np.testing.assert_allclose(found.effects()["mean"], one.effects()["mean"], atol=1e-3)


@pytest.fixture(scope="module")
def known():
    """All classes known, the second one named 0."""
    return fit(known=1 - DATA.label)


def test_known_classes_are_fitted_apart(known):
    """As Lu trains them (section 7.4), each by maximum likelihood: against statsmodels."""
    likelihood, values = 0.0, []
    for label in (1, 0):
        own = DATA.label[DATA.subject] == label
        model = sm.MixedLM(DATA.y[own], DATA.x[own], DATA.subject[own], exog_re=DATA.x[own])
        values.append(model.fit(reml=False, gtol=1e-8, maxiter=1000))
        likelihood += values[-1].llf
    np.testing.assert_allclose(known.params["weights"], [0.5, 0.5], atol=1e-9)
    share = len(DATA.label) * np.log(0.5)
    np.testing.assert_allclose(density(known), likelihood + share, atol=1e-5)
    for label, theirs in enumerate(values):
        close = {"atol": 2e-3, "rtol": 2e-3}
        np.testing.assert_allclose(known.params["coefficients"][label], theirs.fe_params, **close)
        np.testing.assert_allclose(known.params["covariance"][label], theirs.cov_re, **close)
        np.testing.assert_allclose(known.params["noise"][label] ** 2, theirs.scale, **close)
    np.testing.assert_array_equal(known.labels(), 1 - DATA.label)


def test_links_of_subjects_move_labels(plain):
    """A doubtful subject is tied to one that is beyond doubt, and not to one of the other class."""
    share = plain.responsibilities()
    doubtful = int(np.abs(share[:, 0] - 0.5).argmin())
    sure = int(share[:, 0].argmax()), int(share[:, 1].argmax())
    strong = sb.Links([[doubtful, sure[0]], [doubtful, sure[1]]], [3.0, -3.0])
    linked = fit(links=strong, init=plain)
    assert np.nanmin(np.diff(linked.objective, axis=1)) > -1e-9
    assert linked.responsibilities()[doubtful, 0] > share[doubtful, 0] + 0.1
    assert linked.unit_terms.shape[-1] == len(DATA.label) - 2  # linked subjects are one unit
    free = fit(links=sb.Links.empty(len(DATA.label)), init=plain)
    np.testing.assert_allclose(density(free), density(plain), atol=1e-6)


def test_coefficients_without_standard_errors_say_why(plain, monkeypatch):
    def refused(*_):
        raise ValueError("mean_field gives no second derivatives")

    monkeypatch.setattr(fit_base, "covariance_of_sites", refused)
    found = replace(plain)  # which has not computed its covariance
    with pytest.warns(sb.SideBayesWarning, match="are NaN, since mean_field gives no second"):
        table = found.coefficients()
    np.testing.assert_allclose(table["estimate"], plain.params["coefficients"].ravel())
    assert table[["standard_error", "lower", "upper"]].isna().all(axis=None)
    assert list(estimate_tables(found)["Coefficients"]) == ["estimate"]


def test_what_a_fit_tells(plain):
    share, params = plain.responsibilities(), plain.params
    found = plain.effects()
    assert found["mean"].shape == (len(DATA.label), 2)
    table = plain.coefficients()
    np.testing.assert_allclose(table["estimate"], params["coefficients"].ravel())
    assert table.index.names == ["cluster", "term"]
    # curves that a subject is predicted on average over its classes (Lu 2008, eq. 8.16)
    one = int(np.abs(share[:, 0] - 0.5).argmin())
    own = share[one] @ params["coefficients"] + found["mean"][one].to_numpy()
    x = np.array([[1.0, 0.5], [1.0, 0.5]])
    drawn = plain.predictive(fixed=x, random=x, subjects=[one, 999])["predictions"]["y"]
    spread, centre = drawn.std(("chain", "draw")), drawn.mean(("chain", "draw"))
    error = 5 * spread / np.sqrt(drawn.sizes["draw"])
    assert abs(centre[0] - x[0] @ own) < error[0]
    assert abs(centre[1] - params["weights"] @ params["coefficients"] @ x[1]) < error[1]
    assert spread[0] < spread[1]
    some = DATA.subject < 4
    again = DATA.y[some], DATA.x[some], DATA.x[some], DATA.subject[some] + 1000
    np.testing.assert_allclose(plain.predict_proba(*again), share[:4], atol=1e-9)
    np.testing.assert_allclose(plain.log_prob(*again), plain.unit_terms[0, 0, :4], atol=1e-9)


def test_bad_options_are_refused():
    for options, message in (
        ({"shared": "slopes"}, "shared = 'slopes'"),
        ({"shared_terms": (2,)}, "shared_terms = "),
        ({"covariance": (3,)}, "add up to the 2 columns"),
        ({"prior": "wide"}, "expected 'flat' or an EffectsPrior"),
        ({"num_clusters": 51}, "num_clusters = 51 for 50 points"),
        ({"known": np.arange(50) % 3}, "labels name class 2"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(**({"num_clusters": 2} | options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"shared": ("covariance",)},
        {"shared": ("noise",), "shared_terms": (1,)},
        {"shared": ("covariance", "noise"), "shared_terms": (0,)},
        {"covariance": "diagonal"},
    ],
)
def test_em_with_shared_parameters_finds_a_mode(options):
    found = fit(**options)
    assert np.nanmin(np.diff(found.objective, axis=1)) > -1e-9
    other = fit(sb.MAP(tol=1e-9), init=found, **options)
    np.testing.assert_allclose(density(found), density(other), atol=1e-5)
    gap = np.abs(found.params["coefficients"] - other.params["coefficients"]).max()
    assert gap < 5e-3


@pytest.mark.slow
def test_independent_outputs_given_the_class():
    """Naive Bayes: with known classes, outputs in blocks are fitted as if alone."""
    other = simulate(seed=4)
    x = np.vstack([np.hstack([DATA.x, 0 * DATA.x]), np.hstack([0 * other.x, other.x])])
    y, subject = np.concatenate([DATA.y, other.y]), np.concatenate([DATA.subject, other.subject])
    outputs = np.repeat(np.eye(2), [len(DATA.y), len(other.y)], axis=0)
    by_name = pd.Series(DATA.label)
    found = sb.fit(
        "mixed_effects_mixture", y, x, x, subject, outputs, known=by_name, num_clusters=2,
        covariance=(2, 2), engine=TIGHT, progress=False,
    )  # fmt: skip
    alone = [density(fit(data=data, known=DATA.label)) for data in (DATA, other)]
    share = len(DATA.label) * np.log(0.5)
    np.testing.assert_allclose(density(found), sum(alone) - share, atol=1e-5)
    assert found.params["noise"].shape == (2, 2)
    free = sb.fit(
        "mixed_effects_mixture", y, x, x, subject, outputs, num_clusters=2, covariance=(2, 2),
        engine=TIGHT, progress=False,
    )  # fmt: skip
    assert np.nanmin(np.diff(free.objective, axis=1)) > -1e-9


@pytest.mark.slow
def test_partial_labels_number_the_classes():
    known = np.where(np.arange(50) < 10, 1 - DATA.label, -1)
    found = fit(known=known)
    assert ((found.labels() == 1 - DATA.label)[10:]).mean() > 0.9
    np.testing.assert_array_equal(found.labels()[:10], 1 - DATA.label[:10])


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        sb.Newton(num_restarts=3),
        sb.Laplace(num_restarts=2, num_draws=200),
        sb.SVI(num_restarts=2, num_steps=1500, num_draws=200),
        sb.SVI(num_restarts=2, num_steps=1500, num_draws=200, batch_sets=20),
        sb.NUTS(num_warmup=200, num_samples=200, num_chains=2),
        sb.HMC(num_warmup=20, num_samples=20, num_chains=2, trajectory_length=0.5),
    ],
    ids=lambda engine: engine.name,
)
def test_every_engine_runs(engine, plain, tmp_path):
    prior = "flat" if engine.name == "newton" else sb.EffectsPrior.weak(DATA.y, DATA.x, DATA.x)
    found = fit(engine, prior=prior)
    assert np.isfinite(found.tree["sample_stats"]["lp"]).all()
    assert np.isfinite(found.unit_terms).all()
    if engine.name != "hmc":
        label = found.labels()
        assert max((label == DATA.label).mean(), (label != DATA.label).mean()) > 0.85
    if engine.name == "newton":
        np.testing.assert_allclose(density(found), density(plain), atol=1e-6)
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again.labels(), found.labels())
    assert np.isfinite(again.effects()["sd"]).all()


@pytest.mark.slow
def test_number_of_classes_by_what_they_predict():
    """By BIC, by subjects left out in folds, and by leave-one-out of draws: two classes."""
    bic, folds, loo = {}, {}, {}
    prior = sb.EffectsPrior.weak(DATA.y, DATA.x, DATA.x)
    for number in (1, 2, 3):
        one = fit(num_clusters=number, shared=("covariance", "noise"))
        size = 2 * number + number - 1 + 4
        bic[number] = size * np.log(len(DATA.label)) - 2 * one.unit_terms.sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sb.SideBayesWarning)
            folds[number] = float(one.kfold(5, progress=False).elpd)
            if number < 3:
                engine = sb.NUTS(num_warmup=300, num_samples=300, num_chains=2)
                drawn = fit(
                    engine, num_clusters=number, shared=("covariance", "noise"), prior=prior
                )
                loo[number] = float(drawn.loo().elpd)
    assert min(bic, key=bic.get) == 2
    assert folds[2] > folds[1] + 2
    assert loo[2] > loo[1] + 2


def test_data_are_simulated():
    prior = sb.EffectsPrior.weak(DATA.y, DATA.x, DATA.x)
    given = None, DATA.x, DATA.x, DATA.subject
    drawn = sb.prior_predictive(
        "mixed_effects_mixture", *given, num_clusters=2, prior=prior, num_draws=3
    )
    assert drawn["prior_predictive"]["y"].sizes["rows"] == len(DATA.y)
