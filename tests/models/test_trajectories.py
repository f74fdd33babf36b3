"""The card `trajectories`: exact on small problems, its limits, links, subjects, and what a fit tells."""

import warnings
from typing import Annotated

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from scipy.special import betaln, logsumexp
from scipy.stats import beta, multivariate_normal, norm
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.models.blocks.kernels.curve_setting import curve_anchors, curve_setting
from sidebayes.models.blocks.kernels.curves import Curves
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.roles import Chosen
from sidebayes.models.trajectories import trajectories
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import sidebayes as sb
from tests.reference import trajectory_mixture as reference
from tests.reference.brute_force import enumerate_labelings
from tests.support.basics import climbed_bound
from tests.support.draws import Told, at_one
from tests.support.trajectories import (
    LABEL,
    LINKS,
    SCALES,
    SUBJECT,
    TIGHT,
    T,
    Y,
    curves_problem,
    fit,
)

MANY = sb.CoordinateAscent(num_restarts=2, tol=1e-13, max_steps=400, num_draws=2000)
ROW_LINKS = sb.Links.from_pairs([(0, 1), (3, 4), (2, 5), (4, 6)], [True, True, False, True], 1.5, 8)


@pytest.fixture(scope="module")
def rows():
    """Eight rows of their own, with links between them."""
    return fit(Y[:8], T[:8], links=ROW_LINKS, engine=MANY)


@pytest.fixture(scope="module")
def evidence():
    """Log evidence of these rows, exactly."""
    gram = reference.rbf(T[:8], T[:8], 3.0, 1.0)
    return reference.log_evidence(
        gram, 0.2, Y[:8, None], 3, ROW_LINKS.pairs, ROW_LINKS.weights, 1.0
    )[0]


@pytest.fixture(scope="module")
def people():
    return fit(Y, T, SUBJECT, LINKS, engine=MANY)


# -- the density ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["unnormalised", pytest.param("field", marks=pytest.mark.slow)])
def test_density_is_a_sum_over_labels(reading):
    rng = np.random.default_rng(0)
    sticks, curves = np.array([0.3, 0.6]), rng.normal(size=(3, 6))
    with jax.enable_x64(True):
        graph = LabelGraph.build(ROW_LINKS, 8)
        options = SCALES | {"num_clusters": 3, "reading": reading, "concentration": 0.7}
        problem = Problem(
            lambda y, t, g, a, **k: trajectories(y, t, None, g, a, **k),
            (jnp.asarray(Y[:8]), jnp.asarray(T[:8]), graph, jnp.asarray(T[:6])),
            options,
        )
        found = jax.jit(lambda p: log_joint(problem, p))({"sticks": sticks, "curves": curves})
    root = np.linalg.cholesky(reference.rbf(T[:6], T[:6], 3.0, 1.0) + 1e-12 * np.eye(6))
    phi = np.linalg.solve(root, reference.rbf(T[:6], T[:8], 3.0, 1.0)).T
    spread = np.sqrt(0.2**2 + np.maximum(1 - (phi**2).sum(axis=1), 0))
    unary = norm(phi @ curves.T, spread[:, None]).logpdf(Y[:8, None])
    weights = np.log(np.array([0.3, 0.7 * 0.6, 0.7 * 0.4]))
    given = ROW_LINKS.pairs, ROW_LINKS.weights
    due = logsumexp(enumerate_labelings(unary + weights, *given)[1])
    if reading == "field":
        due -= logsumexp(enumerate_labelings(np.tile(weights, (8, 1)), *given)[1])
    prior = beta.logpdf(sticks, 1.0, 0.7).sum() + norm.logpdf(curves).sum()
    np.testing.assert_allclose(found, due + prior, rtol=1e-7)


def test_bound_is_that_of_the_paper_corrected(rows, evidence):
    """An independent implementation, N by N with labels enumerated, climbs to the same bound."""
    gram = reference.rbf(T[:8], T[:8], 3.0, 1.0)
    share = np.random.default_rng(0).dirichlet(np.ones(3), 8)
    given = gram, 0.2, Y[:8, None], ROW_LINKS.pairs, ROW_LINKS.weights, 1.0
    bounds = []
    for _ in range(300):
        share, bound = reference.sweep(share, *given)
        bounds.append(bound)
    assert np.diff(bounds).min() > -1e-10
    assert np.nanmin(np.diff(rows.objective, axis=1)) > -1e-9
    anchors = rows.run.data["anchors"][:, 0]
    means = [reference.stable_factor(gram, column, 0.2, Y[:8, None])[0][:, 0] for column in share.T]
    values = np.stack(means)[:, [np.flatnonzero(T[:8] == one)[0] for one in anchors]]
    root = np.linalg.cholesky(
        reference.rbf(anchors, anchors, 3.0, 1.0) + 1e-12 * np.eye(len(anchors))
    )
    count = share.sum(axis=0)
    beyond = count.sum() - np.cumsum(count)
    sticks = ((1 + count) / (2 + count + beyond))[:2]
    init = {"sticks": sticks, "curves": np.linalg.solve(root, values.T).T}
    again = fit(Y[:8], T[:8], links=ROW_LINKS, init=init)
    np.testing.assert_allclose(again.log_evidence.value, bounds[-1], atol=1e-7)
    assert evidence - 4 < rows.log_evidence.value < evidence


def test_bound_rises_where_labels_are_summed_out(people):
    """Acceptance check A16: by Jensen's inequality, for the factors of curves and sticks found."""
    log_weight = people.tree["sample_stats"]["log_weight"].to_numpy().ravel()
    error = log_weight.std(ddof=1) / np.sqrt(len(log_weight))
    assert len(log_weight) == 2000
    given = reference.rbf(T, T, 3.0, 1.0), 0.2, Y[:, None], 3, LINKS.pairs, LINKS.weights, 1.0
    evidence = reference.log_evidence(*given, SUBJECT)[0]
    assert log_weight.mean() >= people.log_evidence.value - 3 * error
    assert log_weight.mean() <= evidence + 3 * error
    assert evidence - 4 < people.log_evidence.value < evidence


@pytest.mark.slow
def test_gibbs_and_coordinate_ascent_find_pairs_in_one_cluster():
    """Acceptance check A21, of pairs, as two levels far apart never change numbers in one chain."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 9, 8)
    y = np.where(np.arange(8) % 2 == 0, -1.0, 1.0) + 0.2 * rng.normal(size=8)
    y[6] = -0.2  # nearer to one level, and its link says little
    links = sb.Links.from_pairs([(6, 7)], [False], 1.0, 8)
    gram = reference.rbf(t, t, 3.0, 1.0)
    exact = reference.log_evidence(gram, 0.2, y[:, None], 2, [(6, 7)], [-1.0], 1.0)[2]
    pairs = np.array([(i, j) for i in range(8) for j in range(i + 1, 8) if (i, j) != (6, 7)])
    due = exact[tuple(pairs.T)]
    assert np.any((due > 0.01) & (due < 0.99))
    gibbs = sb.BlockedGibbs(num_warmup=500, num_samples=4000, num_chains=4)
    found = fit(y, t, links=links, num_clusters=2, engine=gibbs)
    np.testing.assert_allclose(found.same_cluster(pairs), due, atol=0.03)
    factors = sb.CoordinateAscent(num_restarts=10, num_draws=2000)
    found = fit(y, t, links=links, num_clusters=2, engine=factors)
    np.testing.assert_allclose(found.same_cluster(pairs), due, atol=0.1)


@pytest.mark.slow
def test_gibbs_finds_the_exact_labels():
    engine = sb.BlockedGibbs(num_warmup=200, num_samples=1500, num_chains=2)
    found = fit(Y[:5], T[:5], links=sb.Links.from_pairs([(0, 1), (2, 3)], [True, False], 1.5, 5),
                engine=engine, num_clusters=2)  # fmt: skip
    _, exact, _ = reference.log_evidence(
        reference.rbf(T[:5], T[:5], 3.0, 1.0),
        0.2,
        Y[:5, None],
        2,
        [(0, 1), (2, 3)],
        [1.5, -1.5],
        1.0,
    )
    prob = found.tree["responsibilities"]["prob"].to_numpy()
    same = np.einsum("cdk,cdk->cd", prob[:, :, 0], prob[:, :, 4])
    mean = prob.mean(axis=(0, 1))
    np.testing.assert_allclose(mean, exact, atol=0.08)
    assert 0 < same.mean() < 1


# -- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncation", [pytest.param("closed", marks=pytest.mark.slow), "open"])
def test_one_cluster_is_gaussian_process_regression(truncation, tmp_path):
    """Acceptance checks A4, the evidence, and A5, predictions."""
    with jax.enable_x64(True):
        problem = curves_problem(Y, T, None, num_clusters=1, truncation=truncation, **SCALES)
        value = climbed_bound(TIGHT, problem)
    kernel = ConstantKernel(1.0, "fixed") * RBF(3.0, "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=0.04).fit(T[:, None], Y)
    due = theirs.log_marginal_likelihood_value_
    if truncation == "open":
        due += betaln(1 + len(Y), 1.0) - betaln(1, 1.0)
    np.testing.assert_allclose(value, due, atol=1e-8)
    if truncation == "closed":
        found = fit(Y, T, num_clusters=1)
        np.testing.assert_allclose(found.log_evidence.value, due, atol=1e-8)
        grid = np.r_[np.linspace(T.min(), T.max(), 7), -3.0, 14.0]
        mean, sd = theirs.predict(grid[:, None], return_std=True)
        exact = fit(Y, T, num_clusters=1, engine=sb.EM(num_restarts=1))
        table = exact.curves(inputs=grid)
        np.testing.assert_allclose(table["mean"][:7], mean[:7], atol=1e-8)
        np.testing.assert_allclose(table["mean"], mean, atol=1e-5)  # beyond the data
        drawn = fit(
            Y, T, num_clusters=1, engine=sb.CoordinateAscent(num_draws=4000, num_restarts=1)
        )
        table = drawn.curves(inputs=grid)  # the sd of 200 draws, the mean exactly
        np.testing.assert_allclose(table["mean"], mean, atol=1e-5)
        drawn.save(tmp_path / "curves.nc")
        again = sb.load(tmp_path / "curves.nc").curves(inputs=grid)
        np.testing.assert_allclose(again["mean"], table["mean"], atol=1e-12)
        np.testing.assert_allclose(table["sd"], sd, rtol=0.25)
        assert sd[-1] > 0.8  # the prior's, far from the data


def test_outputs_that_were_not_observed_say_nothing():
    """The evidence of one cluster is that of normals of what was observed, with noise by output."""
    rng = np.random.default_rng(0)
    y, noise = rng.normal(size=(12, 2)), np.array([0.2, 0.6])
    observed = rng.random((12, 2)) > 0.3
    names = ["east", "north $"]
    given = pd.DataFrame(np.where(observed, y, 1e6), columns=names), T[:12]
    found = fit(*given, observed=observed, num_clusters=1, noise=noise)
    gram = reference.rbf(T[:12], T[:12], 3.0, 1.0)
    due = sum(
        multivariate_normal(cov=gram[np.ix_(own, own)] + noise[d] ** 2 * np.eye(own.sum())).logpdf(
            y[own, d]
        )
        for d, own in enumerate(observed.T)
    )
    np.testing.assert_allclose(found.log_evidence.value, due, atol=1e-8)
    table = found.curves(inputs=[2.0, 8.0])
    assert np.isfinite(table.drop(columns="output").to_numpy(float)).all()
    assert table["output"].unique().tolist() == names
    assert (np.abs(table["mean"]) < 10).all()
    assert (table.groupby("output")["sd_outcome"].min() > noise).all()
    assert [axis.get_ylabel() for axis in found.plot().axes] == ["east", r"north \$"]
    for axis in found.plot().axes:
        assert np.abs(axis.get_ylim()).max() < 10  # what stands in their place is not drawn


@pytest.mark.slow
def test_noise_by_output_is_learned():
    rng = np.random.default_rng(0)
    y = np.stack([np.sin(T / 2), np.cos(T / 2)], axis=1) + rng.normal(size=(40, 2)) * [0.1, 0.4]
    prior = dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1)
    learned = {"noise": prior, "own": ["noise"]}
    for options, shape in (({"noise": prior}, (2,)), (learned, (2, 2))):
        engine = sb.CoordinateAscent(num_restarts=1, num_draws=20)
        found = fit(y, T, num_clusters=2, engine=engine, **options)
        assert found.params["noise"].shape == shape
        largest = found.params["weights"].argmax()
        by_output = found.params["noise"][largest] if len(shape) == 2 else found.params["noise"]
        np.testing.assert_allclose(by_output, [0.1, 0.4], rtol=0.4)


@pytest.mark.slow
def test_links_of_no_weight_say_nothing(rows):
    """Acceptance check A7."""
    found = fit(Y[:8], T[:8], links=ROW_LINKS.with_weights(np.full(4, 1e-300)))
    plain = fit(Y[:8], T[:8])
    np.testing.assert_allclose(found.log_evidence.value, plain.log_evidence.value, atol=1e-9)
    np.testing.assert_allclose(found.objective, plain.objective, atol=1e-9)
    assert abs(rows.log_evidence.value - plain.log_evidence.value) > 0.1


@pytest.mark.slow
def test_order_of_rows_and_units_of_outcomes_do_not_matter(rows):
    """Acceptance checks A17 and A18."""
    size = rows.run.data["anchors"].shape[0]
    init = {
        "sticks": np.array([0.4, 0.5]),
        "curves": np.random.default_rng(0).normal(size=(3, size)),
    }
    base = fit(Y[:8], T[:8], links=ROW_LINKS, init=init)
    order = np.random.default_rng(2).permutation(8)
    place = np.argsort(order)
    moved = sb.Links.from_pairs(place[ROW_LINKS.pairs], ROW_LINKS.weights > 0, 1.5, 8)
    again = fit(Y[:8][order], T[:8][order], links=moved, init=init)
    np.testing.assert_allclose(again.log_evidence.value, base.log_evidence.value, atol=1e-8)
    np.testing.assert_allclose(again.labels(), base.labels()[order])
    scaled = fit(10 * Y[:8], T[:8], links=ROW_LINKS, init=init, noise=2.0, amplitude=10.0)
    shift = 8 * np.log(10.0)
    np.testing.assert_allclose(
        scaled.log_evidence.value, base.log_evidence.value - shift, atol=1e-8
    )


@pytest.mark.slow
def test_subjects_are_chunklets_of_rows():
    """Rows of a subject share a label, which is drawn once."""
    hard = sb.Links.must_link([(i, i + 1) for i in range(8) if i % 4 < 3], num_points=8)
    anchors = np.sort(T[:8])[::2]
    init = {"sticks": np.array([0.4, 0.5]), "curves": np.random.default_rng(0).normal(size=(3, 4))}
    by_rows = fit(Y[:8], T[:8], links=hard, weight_per="chunklet", init=init, anchors=anchors)
    groups = fit(Y[:8], T[:8], np.repeat([3, 7], 4), init=init, anchors=anchors)
    np.testing.assert_allclose(by_rows.log_evidence.value, groups.log_evidence.value, atol=1e-9)
    assert groups.labels().shape == (2,)


# -- learned scales ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_learned_scales_are_those_of_gaussian_process_regression():
    engine = sb.CoordinateAscent(num_restarts=1, num_draws=20, tol=1e-12)
    priors = {name: dist.LogNormal(0.0, 3.0) for name in SCALES}
    found = fit(Y[:20], T[:20], num_clusters=1, engine=engine, **priors)
    assert np.nanmin(np.diff(found.objective, axis=1)) > -1e-8

    def density(scales):
        spread = reference.rbf(T[:20], T[:20], scales[0], scales[1]) + scales[2] ** 2 * np.eye(20)
        _, logdet = np.linalg.slogdet(spread)
        likelihood = -0.5 * (
            Y[:20] @ np.linalg.solve(spread, Y[:20]) + logdet + 20 * np.log(2 * np.pi)
        )
        return likelihood + sum(float(dist.LogNormal(0.0, 3.0).log_prob(s)) for s in scales)

    at = np.array([found.params[name] for name in ("length_scale", "amplitude", "noise")])
    best = density(at)
    for axis in range(3):
        for factor in (0.9, 1.1):
            moved = at.copy()
            moved[axis] *= factor
            assert density(moved) < best
    np.testing.assert_allclose(best, found.objective[np.isfinite(found.objective)][-1], atol=1e-4)


def test_curves_of_a_model_that_requires_groups():
    def required(
        y: Annotated[ArrayLike, "rows"],
        inputs: Annotated[ArrayLike, "rows"],
        subjects: Annotated[sb.Groups, "rows"],
        anchors: Annotated[ArrayLike | None, "anchor ...", Chosen(curve_anchors)] = None,
        *,
        num_clusters: int,
    ):
        assert subjects.num_groups
        given = {"length_scale": 3.0, "amplitude": 1.0, "noise": 0.2}
        trajectories(y, inputs, subjects, anchors=anchors, num_clusters=num_clusters, **given)

    params = {"sticks": [0.5], "weights": [0.5, 0.5], "curves": np.zeros((2, 40))}
    engine = at_one(params)
    found = sb.fit(required, Y, T, SUBJECT, num_clusters=2, engine=engine, progress=False)
    table = found.curves(inputs=[2.0, 8.0])
    named = found.curves(inputs=[2.0, 8.0], subjects=["a", "b"])
    np.testing.assert_allclose(table["mean"], named["mean"])
    assert len(found.plot().axes[0].lines) >= 2
    plt.close("all")
    # a new row of no subject is not that of the subject of its number
    assert not found.forecast(inputs=[2.0, 8.0])["known"].any()
    with pytest.raises(TypeError, match="no new rows are given; pass inputs by name"):
        found.curves()


# -- what a fit tells -------------------------------------------------------------------------------


def test_subjects_are_found_and_predicted(people, tmp_path):
    label = people.labels()
    assert max(np.mean(label == LABEL), np.mean(label != LABEL)) == 1.0 or len(set(label)) == 2
    proba = people.predict_proba(Y[:5], T[:5], SUBJECT[:5])
    assert proba.argmax() == label[0]
    curve = people.curves(inputs=[2.0, 8.0])
    own = curve[curve["cluster"] == label[1]]
    np.testing.assert_allclose(own["mean"], 1 - np.array([2.0, 8.0]) / 5, atol=0.35)
    assert (own["lower"] < own["mean"]).all()
    assert (own["sd_outcome"] > 0.2).all()
    known = people.forecast(inputs=[5.0, 5.0], subjects=[0, 99])
    assert known["known"].tolist() == [True, False]
    assert known["sd"][1] > 1.5 * known["sd"][0]
    seen = {"y": Y[:5], "inputs": T[:5], "subjects": [99] * 5}
    told = people.forecast(seen, inputs=[5.0, 5.0], subjects=[0, 99])
    np.testing.assert_allclose(told["mean"][1], told["mean"][0], atol=0.05)
    with pytest.raises(ValueError, match="seen has rows of 0, which was fitted"):
        people.forecast({**seen, "subjects": [0] * 5}, inputs=[5.0], subjects=[0])
    with pytest.raises(TypeError, match="outcomes, which are predicted"):
        people.curves(y=Y[:1], inputs=[1.0])
    drawn = people.predictive(inputs=np.array([5.0, 5.0]), subjects=[0, 99])["predictions"]["y"]
    np.testing.assert_allclose(drawn.std(("chain", "draw"))[0], known["sd"][0], rtol=0.7)
    people.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_allclose(again.predict_proba(Y[:5], T[:5], SUBJECT[:5]), proba, atol=1e-12)
    assert again.unit_terms.shape[-1] == 5  # eight subjects, three pairs of them linked


@pytest.fixture(scope="module")
def told():
    """Fit that is told twenty draws, with half of the mass in the last of three clusters."""
    sticks = np.random.default_rng(0).uniform(0.25, 0.35, (1, 20, 2))
    left = np.cumprod(1 - sticks, axis=2)
    weights = np.concatenate([sticks[..., :1], left[..., :1] - left[..., 1:], left[..., 1:]], 2)
    curves = np.random.default_rng(1).normal(size=(1, 20, 3, 14))
    engine = Told({"sticks": sticks, "weights": weights, "curves": curves})
    return fit(Y, T, SUBJECT, LINKS, engine=engine)


def test_clusters_keep_their_order(told):
    assert "mean" not in told.run.options  # scales are given
    tree, score = told.relabelled
    assert (tree["relabelling"]["permutation"].to_numpy() == np.arange(3)).all()
    assert 0 <= score <= 1
    weights = told.tree["posterior"]["weights"]
    assert weights.attrs["role"] == "mixing_weights"
    np.testing.assert_allclose(weights.sum("clusters"), 1.0)


@pytest.mark.slow
def test_a_prior_mean_far_from_all_rows_is_pointed_out():
    setting = curve_setting(Y, T, T, None, None, kernel="rbf", mean=0.0, **SCALES)
    block = Curves(2, len(T), None, setting)
    with pytest.warns(sb.SideBayesWarning, match="y lies 1e\\+03 amplitudes from the prior mean"):
        block.check("y", Y + 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        block.check("y", Y)


def test_a_truncation_that_matters_is_said(told):
    assert "truncation matters" in str(told.status)
    assert told.verdict[0] != "good"
    assert "truncation matters" in told.verdict[1]


def test_links_are_between_subjects_where_there_are_some():
    with pytest.raises(ValueError, match="num_points|points"):
        fit(Y, T, SUBJECT, ROW_LINKS.with_weights(np.ones(4)).subset(np.arange(8) < 7))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["em", "map"])
def test_modes_rise(engine):
    runner = {"em": sb.EM(num_restarts=2), "map": sb.MAP(num_restarts=2)}[engine]
    found = fit(Y, T, SUBJECT, LINKS, engine=runner)
    assert np.nanmin(np.diff(found.objective, axis=1)) > -1e-8
    assert found.status.converged
