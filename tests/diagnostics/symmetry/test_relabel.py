import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.symmetry.relabelling import relabel

from tests.diagnostics.fakes import CENTRES, TRUTH, make_tree, soft_labels


@pytest.mark.parametrize("stored", [40, 9])
def test_switched_labels_are_matched_jointly(stored):
    tree, order = make_tree(2, 40, stored, switch=True)
    before = tree["posterior"]["mean"].to_numpy().copy()
    out, score = relabel(tree)
    assert score == 1.0
    mean = out["posterior"]["mean"].to_numpy()
    assert mean.std(axis=(0, 1)).max() < 0.1  # 5 % jitter is all that is left
    # every site follows: means, weights and covariances tell the same clusters
    which = np.abs(mean.mean(axis=(0, 1))[:, None] - CENTRES).sum(-1).argmin(axis=1)
    np.testing.assert_allclose(
        out["posterior"]["weights"].mean(("chain", "draw")),
        np.array([0.5, 0.35, 0.15])[which],
        atol=0.02,
    )
    np.testing.assert_array_equal(
        out["posterior"]["covariance"].to_numpy()[..., 0, 0] - 1.0,
        np.broadcast_to(which, (2, 40, 3)),
    )
    np.testing.assert_array_equal(
        out["responsibilities"]["prob"].to_numpy().mean(axis=(0, 1)).argmax(axis=1),
        np.argsort(which)[TRUTH],
    )
    # the stored permutation undoes the switching, up to one numbering for all
    undone = np.take_along_axis(order, out["relabelling"]["permutation"].to_numpy(), axis=2)
    assert (undone == which).all()
    # sites without a cluster axis, and the tree given, are left alone
    xr.testing.assert_equal(out["posterior"]["flip_rate"], tree["posterior"]["flip_rate"])
    np.testing.assert_array_equal(tree["posterior"]["mean"], before)


def test_sorting_one_site_would_not_do():
    """Weights that overlap are matched by responsibilities, not by size."""
    tree, _ = make_tree(1, 60, switch=True)
    posterior = tree["posterior"].to_dataset()
    rng = np.random.default_rng(3)
    noise = rng.permuted(np.tile([0.2, 0.3, 0.5], (1, 60, 1)), axis=2)
    tree["posterior"] = xr.DataTree(posterior.assign(weights=posterior["weights"].copy(data=noise)))
    out, score = relabel(tree)
    assert score == 1.0
    assert out["posterior"]["mean"].to_numpy().std(axis=(0, 1)).max() < 0.1
    assert (np.diff(out["posterior"]["weights"].to_numpy(), axis=-1) < 0).any()


def test_chains_that_disagree_score_badly():
    agree = soft_labels()
    other = soft_labels(np.roll(TRUTH, 13))
    prob = np.stack([np.tile(agree, (20, 1, 1)), np.tile(other, (20, 1, 1))])
    _, score = relabel(make_tree(2, 20, prob=prob)[0])
    assert score < 0.1


def test_clusters_that_cannot_be_told_apart_score_badly():
    prob = np.full((2, 20, len(TRUTH), 3), 1 / 3)
    out, score = relabel(make_tree(2, 20, prob=prob)[0])
    assert score == 0.0
    assert out["relabelling"].attrs["clear"] == 0.0
    assert out["relabelling"].attrs["residual_kl"] == pytest.approx(0.0, abs=1e-12)


def test_a_point_estimate_is_left_alone():
    tree, _ = make_tree()
    out, score = relabel(tree)
    assert score == 1.0
    xr.testing.assert_equal(out["posterior"].to_dataset(), tree["posterior"].to_dataset())


def test_label_sites_can_be_named():
    tree, _ = make_tree(1, 20, switch=True)
    out, _ = relabel(tree, {"mean": 0})
    assert out["posterior"]["mean"].to_numpy().std(axis=(0, 1)).max() < 0.1
    xr.testing.assert_equal(out["posterior"]["weights"], tree["posterior"]["weights"])
    with pytest.raises(ValueError, match=r"names \['means'\]"):
        relabel(tree, {"means": 0})
