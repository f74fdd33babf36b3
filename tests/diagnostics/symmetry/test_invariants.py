import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.symmetry.invariants import convergence, invariants, same_cluster

from tests.diagnostics.fakes import PAIRS, TRUTH, make_tree, soft_labels


def test_renumbering_changes_nothing():
    plain, _ = make_tree(2, 30, 10)
    switched, order = make_tree(2, 30, 10)
    order = np.random.default_rng(5).permuted(order, axis=2)
    posterior = switched["posterior"].to_dataset()
    weights = np.take_along_axis(posterior["weights"].to_numpy(), order, axis=2)
    switched["posterior"] = xr.DataTree(
        posterior.assign(weights=posterior["weights"].copy(data=weights))
    )
    prob = switched["responsibilities"]["prob"]
    keep = np.linspace(0, 29, 10).astype(int)
    moved = np.take_along_axis(prob.to_numpy(), order[:, keep][:, :, None], axis=3)
    switched["responsibilities"] = xr.DataTree(xr.Dataset({"prob": prob.copy(data=moved)}))
    assert not np.allclose(moved, prob)
    xr.testing.assert_allclose(invariants(plain), invariants(switched))
    assert convergence(plain) == pytest.approx(convergence(switched))


def test_values_by_hand():
    tree, _ = make_tree()
    data = invariants(tree)
    p = soft_labels(sure=0.98)
    np.testing.assert_allclose(
        data["same_linked"][0, 0], (p[PAIRS[:, 0]] * p[PAIRS[:, 1]]).sum(axis=1), rtol=1e-10
    )
    np.testing.assert_allclose(data["entropy"][0, 0], -(p * np.log(p)).sum(), rtol=1e-10)
    np.testing.assert_allclose(data["sorted_weights"][0, 0], [0.5, 0.35, 0.15])
    assert float(data["occupied"][0, 0]) == 3
    pairs = np.array([[0, 1], [0, 39]])
    np.testing.assert_allclose(
        same_cluster(tree, pairs)[0, 0], [0.98**2 + 2 * 0.01**2, 2 * 0.98 * 0.01 + 0.01**2]
    )


def test_weights_are_known_by_their_role_whatever_their_name():
    tree, _ = make_tree(2, 6)
    posterior = tree["posterior"].to_dataset().rename(weights="shares")
    tree["posterior"] = xr.DataTree(posterior)
    np.testing.assert_allclose(
        invariants(tree)["sorted_weights"], -np.sort(-posterior["shares"], axis=-1)
    )
    del tree["posterior"]["shares"].attrs["role"]
    assert "sorted_weights" not in invariants(tree)


def test_one_draw_has_no_rhat():
    found = convergence(make_tree()[0])
    assert np.isnan(found["rhat"])
    assert np.isnan(found["ess"])


def test_switching_alone_is_no_trouble():
    found = convergence(make_tree(4, 250, switch=True)[0])
    assert found["rhat"] < 1.03
    assert found["ess"] > 400


def test_chains_stuck_apart_are_seen():
    other = np.tile(soft_labels(np.roll(TRUTH, 13)), (30, 1, 1))
    prob = np.stack([np.tile(soft_labels(), (30, 1, 1)), other])
    assert convergence(make_tree(2, 30, prob=prob)[0])["rhat"] == np.inf


def test_thinning_does_not_pass_for_autocorrelation():
    full = convergence(make_tree(2, 400)[0])["ess"]
    thinned = convergence(make_tree(2, 400, 100)[0])["ess"]
    assert full > 300
    assert thinned > 300


def test_labels_that_are_certain_do_not_count():
    sure = np.broadcast_to(soft_labels(sure=1.0), (2, 40, len(TRUTH), 3))
    tree, _ = make_tree(2, 40, 20, prob=sure)
    found = convergence(tree)
    assert np.isfinite(found["rhat"])
    assert 4 < found["ess"] <= 80


def test_chance_of_few_stored_draws_is_no_disagreement():
    """Labels that are stored at few of many draws: R-hat counts beyond what agreeing chains give."""
    found = [convergence(make_tree(4, 1000, 60, seed=seed)[0])["rhat"] for seed in range(3)]
    assert max(found) < 1.01
    tree = make_tree(4, 1000, 60, seed=0)[0]
    prob = tree["responsibilities"]["prob"].to_numpy()
    prob[0, :, :20] = soft_labels()[:20] * [0.5, 1.5, 1.0]  # a chain that disagrees all along
    assert convergence(tree)["rhat"] > 1.1
