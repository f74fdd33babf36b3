"""Random effects: against statsmodels, at a variance of zero, and by Monte-Carlo EM."""

import warnings

import numpy as np
import pytest
from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

import sidebayes as sb
from tests.probes import data, models


def maximum_likelihood(y, times, subjects):
    """Estimates of statsmodels with independent intercepts and slopes."""
    design = np.column_stack([np.ones_like(times), times])
    components = {"a": [], "b": []}
    names = np.unique(subjects)
    for one in names:
        rows = subjects == one
        components["a"].append(np.ones((rows.sum(), 1)))
        components["b"].append(times[rows][:, None])
    spec = VCSpec(
        ["a", "b"], [[["a"]] * len(names), [["b"]] * len(names)], list(components.values())
    )
    model = MixedLM(y, design, groups=subjects, exog_vc=spec)
    return model.fit(reml=False, method="lbfgs")


def test_maximum_likelihood_is_that_of_statsmodels():
    y, times, subjects = data.long_table(num_subjects=30)
    theirs = maximum_likelihood(y, times, subjects)
    engine = sb.MAP(tol=1e-11, num_restarts=3)
    ours = sb.fit(models.growth, y, times, subjects, engine=engine, progress=False)
    # the priors are a thousand times wider than anything in the data
    prior = (
        -np.log(1e3) * 2 - np.log(2 * np.pi) + 3 * (np.log(2 / np.sqrt(2 * np.pi)) - np.log(1e3))
    )
    likelihood = float(ours.unit_terms.sum())
    assert likelihood == pytest.approx(theirs.llf, abs=1e-6 * abs(theirs.llf))
    assert float(ours.tree["sample_stats"]["lp"].item()) == pytest.approx(
        likelihood + prior, abs=1e-3
    )
    np.testing.assert_allclose(ours.params["beta"], theirs.fe_params, atol=2e-4)
    np.testing.assert_allclose(ours.params["noise"] ** 2, theirs.scale, rtol=2e-3)


def test_a_variance_of_zero_is_an_answer():
    y, times, subjects = data.long_table(spread=(1.0, 0.0), seed=5)
    found = sb.fit(models.growth, y, times, subjects, engine="map", progress=False)
    assert found.status.converged
    assert found.params["spread"][1] < 0.3
    assert np.isfinite(found.unit_terms).all()
    with pytest.warns(sb.SideBayesWarning, match="intervals of 12 groups .* are too narrow"):
        assert found.effects()["mean"].shape == (12, 2)


def test_leaving_one_subject_out_is_brute_force():
    """Importance weights of PSIS on exact draws agree with refits without each subject."""
    y, times, subjects = data.long_table(num_subjects=6)
    engine = sb.NUTS(num_warmup=300, num_samples=500, num_chains=2)
    found = sb.fit(models.growth, y, times, subjects, engine=engine, progress=False)
    folds = found.kfold(6, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)  # some weights are wide
        smoothed = found.loo()
    sound = smoothed.pareto_k.to_numpy() < 0.5
    assert sound.sum() >= 3
    gap = np.abs(smoothed.elpd_i - folds.elpd_i)[sound]
    assert gap.max() < 0.35


def test_monte_carlo_em_finds_the_mode_of_exact_em():
    y, times, subjects = data.long_table(num_subjects=30)
    tight = sb.EM(tol=1e-12, max_steps=5000, num_restarts=2)
    exact = sb.fit(models.growth, y, times, subjects, engine=tight, progress=False)
    engine = sb.MonteCarloEM(sampled=("white",))
    found = sb.fit(models.sampled_growth, y, times, subjects, engine=engine, progress=False)
    assert found.status.converged
    info = found.tree["fit_info"]
    gaps = []
    for name in ("beta", "noise", "spread"):
        error = info[f"monte_carlo_error_{name}"].to_numpy()
        gaps.append(np.ravel((found.params[name] - exact.params[name]) / error))
        assert (error < 0.05).all()
    assert np.sqrt(np.mean(np.concatenate(gaps) ** 2)) < 3


@pytest.mark.parametrize("sampled", [(), ("other",), ("beta", "spread", "noise", "white")])
def test_monte_carlo_em_says_what_can_be_sampled(sampled):
    y, times, subjects = data.long_table()
    with pytest.raises(ValueError, match="expected some, not all"):
        sb.fit(models.sampled_growth, y, times, subjects, engine=sb.MonteCarloEM(sampled=sampled))
