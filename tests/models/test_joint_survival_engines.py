"""The card `joint_survival` under engines that draw, and its calibration."""

import arviz_stats
import jax
import numpy as np
import pandas as pd
import pytest
from jax import random
from numpyro.infer import MCMC, NUTS
from sidebayes.diagnostics.calibration import Calibration
from sidebayes.models.joint_survival import joint_survival

import sidebayes as sb
from tests.support.effects import ranks_of_truth, simulate_joint

pytestmark = pytest.mark.optimised

PRIOR = sb.EffectsPrior([0.0, 0.0], [2.0, 2.0], [1.0, 1.0], 0.5)
HAZARD = sb.HazardPrior([1.0], -1.0, level_scale=1.0, step=0.5, association=1.0, covariates=1.0)
END = 3.0
SITES = ("noise", "covariance", "association", "level", "log_hazard_ratios")


def design(num_subjects=25, seed=1):
    """Lines of subjects with three rows each."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(num_subjects), 3)
    x = np.column_stack([np.ones(len(who)), rng.uniform(-1, 1, len(who))])
    return x, who, rng.integers(0, 2, (num_subjects, 1)).astype(float)


def simulate(num_draws, seed=3):
    """Parameters, outcomes and times drawn from the model."""
    x, who, drug = design()
    return sb.prior_predictive(
        "joint_survival", None, x, x, who, covariates=drug, prior=PRIOR, hazard=HAZARD,
        num_draws=num_draws, seed=seed,
    )  # fmt: skip


def fit(drawn, number, engine, **options):
    x, who, drug = design()
    y = drawn["prior_predictive"]["y"].to_numpy()[0, number]
    time = drawn["prior_predictive"]["time"].to_numpy()[0, number]
    return sb.fit(
        "joint_survival", y, x, x, who, np.minimum(time, END), time <= END, drug,
        prior=PRIOR, hazard=HAZARD, engine=engine, progress=False, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_bare_numpyro_runs():
    x, who, drug = design(5)
    y, time = np.zeros(15), np.ones(5)
    with jax.enable_x64(True):
        sampler = MCMC(NUTS(joint_survival), num_warmup=5, num_samples=5, progress_bar=False)
        given = y, x, x, sb.Groups(who), time, time, drug
        sampler.run(random.key(0), *given, prior=PRIOR, hazard=HAZARD)
    assert all(np.isfinite(value).all() for value in sampler.get_samples().values())


@pytest.mark.slow
def test_integrated_and_sampled_forms_have_one_posterior():
    table, persons = simulate_joint(40)
    data = sb.design("y ~ year + (year | who)", table)
    data = data.survival("Surv(years, died) ~ drug", persons, num_intervals=2)
    engine = sb.NUTS(num_warmup=500, num_samples=1000, target_accept=0.9)
    one, other = (
        sb.fit("joint_survival", **data, form=form, engine=engine, progress=False)
        for form in ("marginal", "non_centred")
    )
    for name in SITES:
        sites = [fit.tree["posterior"][name] for fit in (one, other)]
        error = np.hypot(*(arviz_stats.mcse(s.to_dataset(name="x"))["x"].to_numpy() for s in sites))
        mean, again = (site.mean(("chain", "draw")).to_numpy() for site in sites)
        assert (np.abs(mean - again) < 4.5 * error + 1e-12).all(), name


@pytest.mark.slow
def test_posteriors_are_calibrated():
    number = 60
    drawn = simulate(number)
    engine = sb.NUTS(num_warmup=200, num_samples=200, num_chains=2)
    ranks = []
    for simulation in range(number):
        found = fit(drawn, simulation, engine).tree["posterior"]
        truth = drawn["prior"].to_dataset().isel(chain=0, draw=simulation)
        ranks.append(ranks_of_truth(found, truth, SITES))
    result = Calibration("joint_survival by nuts", pd.DataFrame(ranks), 0, level=1e-3)
    assert result.calibrated, result
