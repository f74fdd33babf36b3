"""Models as a user writes them run under every engine, and everything that is asked of a fit works."""

import warnings
from functools import cache

import arviz_plots
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pytest
from jax import random
from numpyro.infer import MCMC, NUTS
from sidebayes.diagnostics.sites import is_ordered
from sidebayes.models.blocks.roles import signature_of

import sidebayes as sb
from sidebayes import EM, MAP, SVI, BlockedGibbs, CoordinateAscent, FitError, Laplace
from sidebayes.runs import checks
from sidebayes.runs.arguments import sort_arguments
from sidebayes.runs.run import Run
from tests.probes import data, models
from tests.support.draws import at_one

X, KNOWN = data.partly_labelled()
LINKS = sb.simulate_links(data.SPECIES, 12, seed=1)
DESIGN = np.column_stack([np.ones(40), np.random.default_rng(0).normal(size=(40, 2))])
COUNTS = np.random.default_rng(1).poisson(np.exp(DESIGN @ [0.3, 0.5, -0.4]))

PROBES = {
    "growth": (models.growth, data.long_table(), {}),
    "lines": (models.lines, data.two_lines(), {"num_clusters": 2}),
    "labelled": (models.labelled, (X, KNOWN), {"num_clusters": 4, "num_classes": 3}),
    "ported": (models.ported, (X, KNOWN), {}),
    "shifted": (models.shifted, (X[::3], X[1::5] + 0.3), {"num_clusters": 2}),
    "survival": (models.joint_survival, data.survival(), {}),
    "hierarchical": (models.hierarchical, (X[::2], None), {"num_clusters": 2}),
    "robust": (models.robust, (data.heavy_tails(),), {"num_clusters": 2}),
    "counts": (models.counts, (COUNTS, DESIGN), {}),
}
QUICK = {
    "em": EM(num_restarts=2, max_steps=60),
    "map": MAP(num_restarts=2, max_steps=200),
    "laplace": Laplace(num_restarts=2, num_draws=100),
    "svi": SVI(num_restarts=2, num_steps=200, num_draws=100),
    "nuts": sb.NUTS(num_warmup=60, num_samples=60, num_chains=2),
}
EVERY = [(probe, engine) for probe in PROBES for engine in QUICK]
SADDLES: set[tuple[str, str]] = set()
"""Where Laplace refuses the mode that it finds."""
SOME = {("lines", "map"), ("survival", "svi"), ("counts", "laplace"), ("labelled", "nuts")}


def fit(probe, engine):
    """Fit of a probe by an engine."""
    model, given, options = PROBES[probe]
    return sb.fit(model, *given, engine=engine, progress=False, **options)


@cache
def quick(probe, engine):
    """The same, by one of the quick engines: tests share it and leave it as it is."""
    return fit(probe, QUICK[engine])


@pytest.fixture(scope="module", params=PROBES)
def by_em(request):
    """Every probe, fitted by EM."""
    return request.param, quick(request.param, "em")


def test_em_rises_and_answers(by_em, tmp_path):
    probe, found = by_em
    model, given, options = PROBES[probe]
    rises = np.diff(found.objective, axis=1)
    assert np.nanmin(rises, initial=0.0) > -1e-8
    assert len(found.summary()) >= 3
    assert np.isfinite(found.unit_terms).all()
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", model=model)
    assert again.params.keys() == found.params.keys()
    if not found.run.unit_sites:
        np.testing.assert_allclose(again.log_prob(*given), found.log_prob(*given))
    table = sb.compare({"one": found, "two": again}).frame
    assert list(table.index) == ["one", "two"]
    assert sb.debug(model, *given, **options).ok


def test_labels_are_asked_for_where_there_are_some(by_em):
    probe, found = by_em
    if probe in ("growth", "survival", "counts"):
        assert not found.has_labels
        with pytest.raises(ValueError, match="has no labels"):
            found.labels()
        return
    if probe == "shifted":
        with pytest.raises(ValueError, match="expected one of"):
            found.labels()
        assert found.labels("source").shape == (50,)
        assert found.labels("target").shape == (30,)
        return
    prob = found.responsibilities()
    np.testing.assert_allclose(prob.sum(axis=1), 1.0)
    assert found.labels().max() < prob.shape[1]


NEW = {
    "growth": {"times": np.array([0.5, 2.0, 1.0]), "subjects": [3, 99, 3]},
    "lines": {
        "times": np.array([0.5, 2.0, 1.0]),
        "subjects": [3, 98, 99],
        "links": sb.Links([(1, 2)], [np.inf], 3),
    },
    "labelled": {"known": np.array([0, -1, 2])},
    "ported": {"known": np.array([0, -1, 2])},
    "survival": {"times": np.array([0.5, 2.0, 1.0]), "subjects": [3, 7, 3]},
    "counts": {"design": DESIGN[:3]},
}


@pytest.mark.parametrize("probe", PROBES)
def test_data_are_drawn_like_those_that_were_seen(probe):
    tree = quick(probe, "map" if probe == "lines" else "em").predictive()
    for site, seen in tree["observed_data"].data_vars.items():
        drawn = tree["posterior_predictive"][site]
        assert drawn.dims == ("chain", "draw", *seen.dims)
        assert np.isfinite(drawn).all()
        if site != "until":  # some are censored
            above = (drawn.mean(seen.dims) > seen.mean()).mean().item()
            assert 0.02 < above < 0.98
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Variables .* look discrete")  # counts
        warnings.filterwarnings("ignore", "Deleting a single level")  # ArviZ's own, two tables
        picture = arviz_plots.plot_ppc_dist(tree, num_samples=5)
    assert len(picture.viz["predictive_dist"].data_vars) == len(tree["observed_data"].data_vars)
    plt.close("all")


PORTED = {"weights": np.ones(3) / 3, "shift": np.array([0.3, -0.3]), "spread": 0.4}


@pytest.mark.parametrize("probe", NEW)
def test_new_data_are_drawn(probe):
    found = fit(probe, at_one(PORTED)) if probe == "ported" else quick(probe, "em")
    tree = found.predictive(**NEW[probe])
    assert all(np.isfinite(drawn).all() for drawn in tree["predictions"].data_vars.values())
    rows = next(iter(tree["predictions_constant_data"].data_vars.values()))
    assert rows.shape[0] == 3


@pytest.mark.parametrize("probe", ["growth", "lines", "survival", "counts"])
def test_priors_are_drawn_from(probe):
    model, given, options = PROBES[probe]
    tree = sb.prior_predictive(model, *given, num_draws=50, **options)
    assert all(np.isfinite(drawn).all() for drawn in tree["prior_predictive"].data_vars.values())
    assert tree["observed_data"].sizes == tree["prior_predictive"].isel(chain=0, draw=0).sizes


@pytest.mark.parametrize(
    ("probe", "engine"),
    [
        pytest.param(*pair, marks=() if pair in SOME else pytest.mark.slow)
        for pair in EVERY
        if pair[1] != "em"
    ],
)
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")  # few draws
def test_every_engine_runs(probe, engine):
    if (probe, engine) in SADDLES:
        with pytest.raises(FitError, match="flattest direction"):
            fit(probe, QUICK[engine])
        return
    found = quick(probe, engine)
    if probe == "robust" and engine in ("laplace", "svi"):
        assert found.log_evidence is None  # flat priors have none
    assert np.isfinite(found.tree["sample_stats"]["lp"]).all()
    assert np.isfinite(found.unit_terms).all()
    if engine == "nuts":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sb.SideBayesWarning)  # few draws, wide weights
            assert np.isfinite(found.loo().elpd)


@pytest.mark.parametrize("probe", ["labelled", "growth", "survival"])
def test_bare_numpyro_runs(probe):
    model, given, options = PROBES[probe]
    run = Run(probe, model, given_by_name(model, given), options, EM())
    with run.precision:
        problem = run.problem
        sampler = MCMC(NUTS(problem.model), num_warmup=5, num_samples=5, progress_bar=False)
        sampler.run(random.key(0), *problem.args, **problem.kwargs)
    assert all(np.isfinite(value).all() for value in sampler.get_samples().values())


def given_by_name(model, given):
    """Data of a probe as the door passes them on."""
    signature = signature_of(model)
    sorted_out, _ = sort_arguments(signature, given, {}, "probe")
    return checks.check_given(signature, sorted_out, "probe")


def test_folds_are_cut_between_units():
    found = quick("lines", "map")
    folds = found.kfold(2, progress=False)
    assert folds.n_data_points == 10  # fourteen subjects, four of them tied to others
    assert np.isfinite(folds.elpd_i).all()


def test_units_with_sites_of_their_own_are_not_held_out():
    found = quick("survival", "em")
    with pytest.raises(ValueError, match="effect"):
        found.kfold(3, progress=False)
    with pytest.raises(ValueError, match="effect"):
        found.log_prob(*data.survival(seed=9))


@pytest.mark.filterwarnings("ignore:clusters cannot be matched")  # in so few draws
def test_hierarchical_means_have_a_conditional():
    runner = BlockedGibbs(num_warmup=20, num_samples=20, num_chains=2)
    assert np.isfinite(fit("hierarchical", runner).tree["sample_stats"]["lp"]).all()


POINTS = {
    "labelled": {"class_probs"},
    "shifted": {"mean", "covariance", "moved", "shift"},
    "ported": {"shift", "spread"},
    "hierarchical": {"centre", "shrinkage"},
    "robust": {"centre", "scale"},
}
"""Sites that coordinate ascent gives a point; where no site has a factor, it refuses."""


@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(p, marks=[pytest.mark.slow] * (p in ("labelled", "robust", "ported")))
        for p in PROBES
    ],
)
def test_coordinate_ascent_has_points_beside_factors_or_refuses(probe):
    engine = CoordinateAscent(num_restarts=1, num_draws=100)
    if probe not in POINTS:
        with pytest.raises(ValueError, match=r"no site has a factor \(.* belongs? to no block"):
            fit(probe, engine)
        return
    found = fit(probe, engine)
    rises = np.diff(found.objective, axis=1)
    assert rises.size > 3
    assert np.nanmin(rises) > -1e-9
    table = found.summary()
    assert {row.split("[")[0] for row in table.index[table["point"]]} == POINTS[probe]
    assert all(name in str(found.status) for name in POINTS[probe])
    assert np.isfinite(found.unit_terms).all()


def test_classes_are_never_renumbered():
    """Probabilities of classes keep the order of the labels that were given."""
    found = quick("labelled", "em")
    probs = found.params["class_probs"]
    _, known = data.partly_labelled()
    guess = (found.responsibilities() @ probs).argmax(axis=1)
    assert (guess == data.SPECIES).mean() > 0.6
    assert (guess[known >= 0] == known[known >= 0]).mean() > 0.7


def test_components_of_known_classes_keep_their_names(tmp_path):
    """Draws are not renumbered, nor are those that a file has kept."""
    found = quick("ported", "laplace")
    found.save(tmp_path / "fit.nc")
    for one in (found, sb.load(tmp_path / "fit.nc", model=models.ported)):
        assert is_ordered(one.tree)
        tree, score = one.relabelled
        assert (tree["relabelling"]["permutation"].to_numpy() == np.arange(3)).all()
        assert score > 0.8
        assert (one.labels() == data.SPECIES).mean() > 0.7
        np.testing.assert_allclose(one.params["shift"], [0.3, -0.3], atol=0.15)


def test_engines_with_other_plans_follow_each_other():
    """Gibbs sampling has no use for an update that is no full conditional, and EM has."""
    fit("robust", EM(num_restarts=1, max_steps=2))
    chain = BlockedGibbs(num_warmup=10, num_samples=10, num_chains=1)
    assert np.isfinite(fit("robust", chain).tree["sample_stats"]["lp"]).all()


def test_own_ecme_and_numeric_steps_reach_one_mode():
    tight = EM(num_restarts=1, tol=1e-12, max_steps=2000)
    mine = fit("robust", tight)
    plain = numpyro.handlers.infer_config(models.robust, lambda site: {"block": None})
    theirs = sb.fit(plain, data.heavy_tails(), num_clusters=2, engine=tight, progress=False)
    order = np.argsort(theirs.params["centre"])
    np.testing.assert_allclose(
        np.sort(mine.params["centre"]), theirs.params["centre"][order], atol=1e-4
    )
