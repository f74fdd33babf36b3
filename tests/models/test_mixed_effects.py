"""The card `mixed_effects` against statsmodels, in its limits, and with several outputs."""

from types import SimpleNamespace

import numpy as np
import pytest
import statsmodels.api as sm

import sidebayes as sb
from tests.support.draws import at_one
from tests.support.effects import simulate

TIGHT = sb.MAP(tol=1e-10)


@pytest.fixture(scope="module")
def data():
    return simulate()


def fit(data, engine=TIGHT, **options):
    given = data.y, data.x, data.x, data.subject
    return sb.fit("mixed_effects", *given, engine=engine, progress=False, **options)


@pytest.fixture(scope="module")
def reml(data):
    return fit(data)


@pytest.fixture(scope="module")
def ml(data):
    return fit(data, form="marginal")


@pytest.fixture(scope="module", params=["reml", "ml"])
def both(request, data):
    """Ours and that of statsmodels, by REML and by ML."""
    model = sm.MixedLM(data.y, data.x, data.subject, exog_re=data.x)
    theirs = model.fit(reml=request.param == "reml", gtol=1e-8, maxiter=1000)
    return request.getfixturevalue(request.param), theirs, request.param


def test_estimates_are_those_of_statsmodels(both):
    ours, theirs, method = both
    assert ours.status.converged
    assert ours.verdict[0] == "good"
    value = ours.tree["sample_stats"]["lp"].item()
    np.testing.assert_allclose(value, theirs.llf, rtol=1e-8)
    assert value >= theirs.llf - 1e-9
    np.testing.assert_allclose(ours.params["covariance"], theirs.cov_re, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.params["noise"] ** 2, theirs.scale, rtol=1e-5)
    table = ours.coefficients()
    np.testing.assert_allclose(table["estimate"], theirs.fe_params, atol=1e-6)
    # statsmodels counts the uncertainty of the variances in under REML, we do as lme4
    tolerance = 1e-4 if method == "ml" else 2e-3
    np.testing.assert_allclose(table["standard_error"], theirs.bse_fe, rtol=tolerance)
    np.testing.assert_allclose(table[["lower", "upper"]], theirs.conf_int()[:2], atol=tolerance)


def test_predicted_effects_are_those_of_statsmodels(both):
    ours, theirs, _ = both
    found = ours.effects()
    expected = np.stack([theirs.random_effects[name] for name in found["group"].to_numpy()])
    np.testing.assert_allclose(found["mean"], expected, atol=1e-5)
    assert (found["lower"] < found["mean"]).all()
    wide = ours.effects(probability=0.99)
    assert (wide["upper"] > found["upper"]).all()
    with pytest.raises(ValueError, match="between 0 and 1"):
        ours.effects(probability=95)


def test_standard_errors_of_variances_are_the_observed_information(both, data):
    """Against second differences of the likelihood in D and the noise variance."""
    ours, theirs, method = both
    start = np.concatenate([np.asarray(theirs.cov_re)[np.tril_indices(2)], [theirs.scale]])

    def likelihood(point):
        """Log-likelihood, fixed effects profiled or integrated out, subject by subject."""
        lower = np.zeros((2, 2))
        lower[np.tril_indices(2)] = point[:3]
        cov, total, information, linear = lower + np.tril(lower, -1).T, 0.0, 0.0, 0.0
        for name in np.unique(data.subject):
            x, y = data.x[data.subject == name], data.y[data.subject == name]
            sigma = x @ cov @ x.T + point[3] * np.eye(len(y))
            inverse = np.linalg.inv(sigma)
            total -= (np.linalg.slogdet(sigma)[1] + y @ inverse @ y) / 2
            information, linear = information + x.T @ inverse @ x, linear + x.T @ inverse @ y
        total += linear @ np.linalg.solve(information, linear) / 2
        return total - (method == "reml") * np.linalg.slogdet(information)[1] / 2

    steps = 1e-3 * np.eye(4)
    hessian = np.array(
        [
            [
                sum(
                    one * two * likelihood(start + one * a + two * b)
                    for one in (-1, 1)
                    for two in (-1, 1)
                )
                / 4e-6
                for a in steps
            ]
            for b in steps
        ]
    )
    expected = np.sqrt(np.diag(np.linalg.inv(-hessian)))
    errors = np.sqrt(np.diag(ours.covariance))
    found = dict(zip(ours.covariance.index, errors, strict=True))
    names = ["covariance[0, 0]", "covariance[1, 0]", "covariance[1, 1]"]
    np.testing.assert_allclose([found[name] for name in names], expected[:3], rtol=2e-4)
    noise = 2 * ours.params["noise"] * found["noise"]  # of the variance
    np.testing.assert_allclose(noise, expected[3], rtol=2e-4)


def test_other_engines_find_the_same(data, reml, ml):
    for form, best in (("restricted", reml), ("marginal", ml)):
        found = fit(data, sb.EM(tol=1e-13, max_steps=3000), form=form)
        assert np.nanmin(np.diff(found.objective, axis=1)) > -1e-9
        np.testing.assert_allclose(found.params["covariance"], best.params["covariance"], atol=1e-4)
        np.testing.assert_allclose(found.params["noise"], best.params["noise"], atol=1e-5)
    found = fit(data, sb.Newton())
    assert found.verdict[0] == "good"  # blocks know one start, as they do for MAP
    np.testing.assert_allclose(found.params["covariance"], reml.params["covariance"], atol=1e-6)


def test_a_variance_of_zero_is_an_answer():
    """Subjects that do not differ: ordinary least squares, and no standard error of the variance."""
    data = simulate(deviations=(0.0, 0.0), seed=3)
    table = sm.OLS(data.y, data.x).fit()
    found = fit(data, form="marginal", covariance="diagonal")
    zero = np.diag(found.params["covariance"]) < 1e-9
    assert found.status.converged
    assert zero.any()
    if zero.all():
        np.testing.assert_allclose(found.params["coefficients"], table.params, atol=1e-6)
        np.testing.assert_allclose(
            found.params["noise"] ** 2, table.mse_resid * table.df_resid / len(data.y)
        )
    names = np.array(["covariance[0, 0]", "covariance[1, 1]"])[zero]
    assert found.covariance.loc[names, names].isna().all(axis=None)
    assert np.isfinite(found.coefficients()).all(axis=None)
    np.testing.assert_allclose(found.effects()["mean"].to_numpy()[:, zero], 0.0, atol=1e-5)
    assert found.verdict[0] == "caution"


def test_a_correlation_of_one_is_singular(data, tmp_path):
    y = data.x @ [1.0, 0.5] + 0.5 * np.random.default_rng(6).normal(size=len(data.y))
    found = fit(SimpleNamespace(x=data.x, y=y, subject=data.subject))
    root = np.sqrt(np.diag(found.params["covariance"]))
    assert (root > 1e-3).all()
    assert abs(found.params["covariance"][1, 0]) > 0.999 * root.prod()
    assert found.verdict[0] == "caution"
    assert "singular fit" in found.verdict[1]
    names = [name for name in found.covariance.index if name.startswith("covariance[")]
    assert found.covariance.loc[names].isna().all(axis=None)
    assert np.isfinite(found.coefficients()).all(axis=None)
    found.save(tmp_path / "singular.nc")
    assert sb.load(tmp_path / "singular.nc").verdict == found.verdict


def test_one_row_a_subject():
    """Intercept and noise cannot be told apart, and their sum is the residual variance."""
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(50), rng.normal(size=50)])
    y, subject = x @ [1.0, 2.0] + rng.normal(size=50), rng.permutation(50)
    with pytest.warns(sb.SideBayesWarning, match="the noise undetermined"):
        found = sb.fit("mixed_effects", y, x, x[:, :1], subject, form="marginal", progress=False)
    assert found.verdict[0] == "caution"
    assert "the noise undetermined" in found.verdict[1]
    table = sm.OLS(y, x).fit()
    total = found.params["covariance"][0, 0] + found.params["noise"] ** 2
    np.testing.assert_allclose(total, table.ssr / 50, rtol=1e-6)
    np.testing.assert_allclose(found.params["coefficients"], table.params, atol=1e-6)
    by_row = -0.5 * (np.log(2 * np.pi * total) + table.resid**2 / total)
    np.testing.assert_allclose(found.unit_terms[0, 0], by_row[np.argsort(subject)], atol=1e-5)
    with pytest.raises(ValueError, match="no peak where the fit ended"):
        found.covariance  # noqa: B018


def test_units_of_the_columns_do_not_matter(data, ml):
    """Time in other units from another origin: the same likelihood, coefficients transformed."""
    turn = np.array([[1.0, 80.0], [0.0, 10.0]])
    moved = SimpleNamespace(x=data.x @ turn, y=data.y, subject=data.subject)
    found = fit(moved, form="marginal")
    lp = [one.tree["sample_stats"]["lp"].item() for one in (found, ml)]
    np.testing.assert_allclose(*lp, rtol=1e-10)
    np.testing.assert_allclose(
        turn @ found.params["coefficients"], ml.params["coefficients"], atol=1e-6
    )
    covariance = turn @ found.params["covariance"] @ turn.T
    np.testing.assert_allclose(covariance, ml.params["covariance"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("origin", [2010.0, 1e8])
@pytest.mark.parametrize(
    "engine", [sb.MAP(), sb.Newton(), sb.EM(tol=1e-13, max_steps=3000)], ids=str
)
def test_calendar_years_do_not_matter(data, reml, engine, origin):
    moved = SimpleNamespace(x=data.x + np.array([0.0, origin]), y=data.y, subject=data.subject)
    found = fit(moved, engine)
    assert found.verdict[0] == "good"
    if isinstance(engine, sb.Newton):  # steps that only move rounding errors are not taken
        assert found.objective.shape[1] < 50
    variances = [one.params["covariance"][1, 1] for one in (found, reml)]
    np.testing.assert_allclose(*variances, rtol=1e-3)
    for one in ("estimate", "standard_error"):
        slopes = [fitted.coefficients()[one].iloc[1] for fitted in (found, reml)]
        np.testing.assert_allclose(*slopes, rtol=1e-4)
    np.testing.assert_allclose(
        found.effects()["mean"][:, 1], reml.effects()["mean"][:, 1], atol=1e-3
    )


def test_independent_outputs_are_fitted_as_if_alone(data, ml):
    """Two outputs, each with columns of its own, blocks of effects and a noise."""
    other = simulate(seed=9)
    wide = [np.hstack([data.x, 0 * data.x]), np.hstack([0 * other.x, other.x])]
    x, y = np.vstack(wide), np.concatenate([data.y, 3 * other.y])
    subject = np.concatenate([data.subject, other.subject])
    outputs = np.repeat(np.eye(2), [len(data.y), len(other.y)], axis=0)
    alone = fit(SimpleNamespace(x=other.x, y=3 * other.y, subject=other.subject), form="marginal")
    for engine in (TIGHT, sb.EM(tol=1e-12, max_steps=2000)):
        found = sb.fit(
            "mixed_effects", y, x, x, subject, outputs,
            form="marginal", covariance=(2, 2), engine=engine, progress=False,
        )  # fmt: skip
        assert np.nanmin(np.diff(found.objective, axis=1)) > -1e-9 or engine is TIGHT
        lp = [one.tree["sample_stats"]["lp"].item() for one in (found, ml, alone)]
        np.testing.assert_allclose(lp[0], lp[1] + lp[2], rtol=1e-8)
        noise = [ml.params["noise"], alone.params["noise"]]
        np.testing.assert_allclose(found.params["noise"], noise, rtol=1e-3)


@pytest.mark.slow
def test_correlated_outputs_by_reml(data):
    """EM and gradients agree where outputs share correlated effects and differ in noise."""
    rng = np.random.default_rng(2)
    size = len(data.y)
    x = np.kron(np.eye(2), data.x)
    own = rng.normal(size=(40, 2)) @ np.array([[1.0, 0.0], [0.8, 0.5]])
    subject = np.tile(data.subject, 2)
    outputs = np.repeat(np.eye(2), size, axis=0)
    y = (outputs * own[subject - 100]).sum(axis=1) + x @ [1.0, 0.5, -1.0, 2.0]
    y = y + outputs @ [0.3, 0.9] * rng.normal(size=2 * size)
    found = [
        sb.fit("mixed_effects", y, x, outputs, subject, outputs, engine=engine, progress=False)
        for engine in (TIGHT, sb.EM(tol=1e-13, max_steps=5000))
    ]
    assert np.nanmin(np.diff(found[1].objective, axis=1)) > -1e-9
    for name in ("covariance", "noise"):
        np.testing.assert_allclose(found[1].params[name], found[0].params[name], atol=1e-4)
    np.testing.assert_allclose(found[0].params["noise"], [0.3, 0.9], rtol=0.2)


def test_new_subjects_and_refusals(data, reml, tmp_path):
    params = {"coefficients": [2.0, -1.0], "factor": [1.0, 0.3, 0.8], "noise": 0.5}
    engine = at_one(params | {"covariance": [[1.0, 0.3], [0.3, 0.73]]})
    ml = fit(data, engine, form="marginal")
    ml.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", engine=engine)
    some = np.isin(data.subject, [100, 101, 102])
    given = data.y[some], data.x[some], data.x[some], data.subject[some] + 1000
    np.testing.assert_allclose(again.log_prob(*given), ml.unit_terms[0, 0, :3], atol=1e-9)
    with pytest.raises(ValueError, match="form='marginal'"):
        reml.log_prob(*given)
    with pytest.raises(ValueError, match="form='marginal'"):
        reml.kfold(2)
    with pytest.raises(
        ValueError, match=r"use form='marginal' and kfold\(\), or an engine that draws"
    ):
        reml.loo()
    with pytest.raises(ValueError, match="depend linearly on the others"):
        fit(SimpleNamespace(x=np.hstack([data.x, data.x[:, :1]]), y=data.y, subject=data.subject))
    for options, message in (
        ({"form": "laplace"}, "expected one of"),
        ({"prior": "wide"}, "expected 'flat' or an EffectsPrior"),
        ({"covariance": "block"}, "expected 'full', 'diagonal'"),
        ({"covariance": (3,)}, "add up to the 2 columns"),
        ({"outputs": np.ones((len(data.y), 2))}, r"outputs\[0\] = "),
        (
            {"prior": sb.EffectsPrior([0.0], [1.0], [1.0, 1.0], 1.0)},
            "1 numbers for 2 columns of fixed",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fit(data, **options)


def test_forecast_of_a_fitted_subject_narrows(data, reml):
    """Draws at new times: of a fitted subject around its own curve, of a new one around the mean."""
    x = np.column_stack([np.ones(2), np.full(2, 0.5)])
    drawn = reml.predictive(fixed=x, random=x, subjects=[100, 9999])["predictions"]["y"]
    spread = drawn.std(("chain", "draw")).to_numpy()
    assert spread[0] < spread[1]
    effects = reml.effects()["mean"].sel(group=100).to_numpy()
    own = x[0] @ (reml.coefficients()["estimate"].to_numpy() + effects)
    assert abs(drawn.mean(("chain", "draw"))[0] - own) < 5 * spread[0] / np.sqrt(drawn.size / 2)
