"""Every engine runs on `mixed_effects`, sampled and integrated forms agree, posteriors are calibrated."""

import warnings
from dataclasses import replace

import arviz_stats
import jax
import numpy as np
import pytest
from jax import random
from numpyro.infer import MCMC, NUTS
from sidebayes.models.mixed_effects import mixed_effects

import sidebayes as sb
from tests.support.effects import simulate

ENGINES = {
    "laplace": sb.Laplace(num_restarts=2, num_draws=100),
    "svi": sb.SVI(num_restarts=2, num_steps=1000, num_draws=100),
    "nuts": sb.NUTS(num_warmup=200, num_samples=200, num_chains=2),
    "hmc": sb.HMC(num_warmup=10, num_samples=10, num_chains=2, trajectory_length=0.5),
}
DATA = simulate(num_subjects=12)
PRIOR = sb.EffectsPrior.weak(DATA.y, DATA.x, DATA.x)


def fit(engine, **options):
    given = DATA.y, DATA.x, DATA.x, DATA.subject
    options = {"prior": PRIOR} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        return sb.fit("mixed_effects", *given, engine=engine, progress=False, seed=1, **options)


@pytest.fixture(scope="module")
def by_nuts():
    return fit(ENGINES["nuts"])


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("laplace", "restricted"),
        pytest.param("laplace", "marginal", marks=pytest.mark.slow),
        pytest.param("svi", "restricted", marks=pytest.mark.slow),
        pytest.param("hmc", "marginal", marks=pytest.mark.slow),
        pytest.param("hmc", "centred", marks=pytest.mark.slow),
    ],
)
def test_every_engine_runs(name, form, tmp_path):
    found = fit(ENGINES[name], form=form)
    assert np.isfinite(found.tree["sample_stats"]["lp"]).all()
    assert np.isfinite(found.unit_terms).all()
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    assert again.options["prior"].concentration == 2.0
    assert "mixed_effects" in str(sb.compare({"one": again}))
    assert again.coefficients()["standard_error"].gt(0).all()
    assert again.covariance.shape[0] == again.covariance.shape[1] > 4


def gaps(one, other, names):
    """Differences of posterior means in Monte Carlo standard errors."""
    found = []
    for name in names:
        sites = [fit.tree["posterior"][name] for fit in (one, other)]
        errors = [arviz_stats.mcse(site.to_dataset(name="x"))["x"].to_numpy() for site in sites]
        means = [site.mean(("chain", "draw")).to_numpy() for site in sites]
        found.append(np.ravel((means[0] - means[1]) / np.hypot(*errors)))
    return np.concatenate(found)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["marginal", "non_centred", "centred"])
def test_integrated_and_sampled_forms_have_one_posterior(by_nuts, form):
    found = fit(ENGINES["nuts"], form=form)
    assert np.abs(gaps(by_nuts, found, ["covariance", "noise", "deviation"])).max() < 4.5
    table = found.coefficients()
    error = table["standard_error"] / np.sqrt(50)
    assert (np.abs(by_nuts.coefficients()["estimate"] - table["estimate"]) < 5 * error).all()


def test_leaving_subjects_out_needs_no_independence(by_nuts):
    """With fixed effects integrated out, weights are densities given all other subjects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        found = by_nuts.loo()
    assert found.n_data_points == 12
    assert np.isfinite(found.elpd_i).all()


def test_data_and_parameters_are_simulated():
    drawn = sb.prior_predictive(
        "mixed_effects", None, DATA.x, DATA.x, DATA.subject, prior=PRIOR, num_draws=20
    )
    assert drawn["prior_predictive"]["y"].sizes["rows"] == len(DATA.y)
    with pytest.raises(ValueError, match="flat|improper"):
        sb.prior_predictive("mixed_effects", DATA.y, DATA.x, DATA.x, DATA.subject)


def test_bare_numpyro_runs():
    with jax.enable_x64(True):
        sampler = MCMC(NUTS(mixed_effects), num_warmup=5, num_samples=5, progress_bar=False)
        groups = sb.Groups(DATA.subject)
        sampler.run(random.key(0), DATA.y, DATA.x, DATA.x, groups, prior=PRIOR, form="marginal")
    assert all(np.isfinite(value).all() for value in sampler.get_samples().values())


@pytest.mark.slow
def test_folds_of_subjects():
    found = fit("map", form="marginal", prior="flat")
    folds = found.kfold(3, progress=False)
    assert folds.n_data_points == 12
    assert float(folds.elpd) < float(found.unit_terms.sum())
    some = np.isin(DATA.subject, np.unique(DATA.subject)[:3])
    rest = sb.fit(
        "mixed_effects", *(v[~some] for v in (DATA.y, DATA.x, DATA.x, DATA.subject)),
        form="marginal", progress=False,
    )  # fmt: skip
    density = rest.log_prob(*(v[some] for v in (DATA.y, DATA.x, DATA.x, DATA.subject)))
    assert density.shape == (3,)
    assert np.isfinite(density).all()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["restricted", "non_centred"])
def test_posteriors_are_calibrated(form):
    result = sb.calibrate(
        "mixed_effects",
        sb.NUTS(num_warmup=200, num_samples=200, num_chains=2),
        fixed=DATA.x,
        random=DATA.x,
        subjects=DATA.subject,
        prior=sb.EffectsPrior([0.0, 0.0], [2.0, 2.0], [1.0, 1.0], 0.5),
        form=form,
        num_simulations=60,
        seed=3,
        progress=False,
    )
    result = replace(result, level=1e-3)
    assert result.calibrated, result
