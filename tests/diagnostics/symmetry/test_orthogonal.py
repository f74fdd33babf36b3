"""Draws that are known up to an orthogonal transform: what it leaves alone, and their alignment."""

import numpy as np
import pytest
import xarray as xr
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group
from sidebayes.diagnostics.symmetry.distance import comparable
from sidebayes.diagnostics.symmetry.invariants import convergence, invariants
from sidebayes.diagnostics.symmetry.orthogonal import align
from sidebayes.diagnostics.tree import to_datatree
from sidebayes.guides.engines.base import EngineResult, Status

CHAINS, DRAWS = 2, 60
DIMS = {
    "loadings": ("features", "dimensions"),
    "scores": ("dimensions", "points"),
    "centres": ("clusters", "dimensions"),
}


def make_tree(size=2, noise=0.05, seed=0, turned=True, truth=None):
    """Draws around one truth, each turned by a matrix of its own; a tree, and the matrices."""
    rng = np.random.default_rng(seed)
    shape = (CHAINS, DRAWS)
    if truth is None:
        truth = rng.normal(size=(CHAINS, 5, size))[[0, 0]]
    loadings = truth[:, None] + noise * rng.normal(size=(*shape, 5, size))
    scores = rng.normal(size=(30, size)) + noise * rng.normal(size=(*shape, 30, size))
    centres = rng.normal(size=(3, size)) + noise * rng.normal(size=(*shape, 3, size))
    turn = np.broadcast_to(np.eye(size), (*shape, size, size))
    if turned:
        turn = ortho_group(size, seed=seed).rvs(CHAINS * DRAWS).reshape(*shape, size, size)
    result = EngineResult(
        engine="nuts",
        draws={
            "loadings": 10 * loadings @ turn,
            "scores": np.swapaxes(scores @ turn, -1, -2),
            "centres": centres @ turn,
            "noise": rng.gamma(2.0, size=shape),
        },
        sample_stats={"lp": rng.normal(size=shape)},
        objective=np.zeros((0, 0)),
        status=Status(True, "drawn"),
        seconds={"compile": 0.0, "run": 0.0},
    )
    tree = to_datatree(
        result,
        observed={},
        constant={},
        responsibilities=None,
        log_likelihood={},
        unit_dims={},
        dims=DIMS,
        attrs={},
        symmetries=dict.fromkeys(DIMS, "dimensions"),
    )
    return tree, turn


def test_sites_are_turned_together():
    tree, turn = make_tree()
    before = tree["posterior"]["loadings"].to_numpy().copy()
    out, score = align(tree)
    assert score == 1.0 == out["alignment"].attrs["score"]
    posterior = out["posterior"]
    for name in DIMS:
        raw, now = (t["posterior"][name].to_numpy() for t in (tree, out))
        assert now.std(axis=(0, 1)).max() < 0.2 * raw.std(axis=(0, 1)).mean()
        assert out["posterior"][name].dims == tree["posterior"][name].dims
    # one matrix undoes what each draw was turned by, up to one that is the same for all
    found = out["alignment"]["turn_dimensions"].to_numpy()
    np.testing.assert_allclose(found @ np.swapaxes(found, -1, -2) - np.eye(2), 0.0, atol=1e-12)
    whole = turn @ found
    np.testing.assert_allclose(whole - whole[0, 0], 0.0, atol=0.1)
    # the draw of highest density stays, and so do other sites and the tree itself
    best = np.unravel_index(tree["sample_stats"]["lp"].to_numpy().argmax(), (CHAINS, DRAWS))
    np.testing.assert_allclose(found[best], np.eye(2), atol=1e-12)
    xr.testing.assert_equal(posterior["noise"], tree["posterior"]["noise"])
    np.testing.assert_array_equal(tree["posterior"]["loadings"], before)


def test_each_draw_is_as_near_to_the_consensus_as_it_gets():
    """By SciPy's orthogonal Procrustes, sites in units of their size."""
    out, _ = align(make_tree(noise=0.3, size=3)[0])
    sites = [out["posterior"]["loadings"].to_numpy()]
    sites += [np.swapaxes(out["posterior"]["scores"].to_numpy(), -1, -2)]
    rows = np.concatenate([s / np.sqrt((s**2).mean()) for s in sites], axis=2).reshape(-1, 35, 3)
    for one in rows:
        turn, _ = orthogonal_procrustes(one, rows.mean(axis=0))
        np.testing.assert_allclose(turn, np.eye(3), atol=1e-4)


def test_what_transforms_leave_alone_does_not_see_them():
    straight, _ = make_tree(turned=False)
    tree, _ = make_tree()
    assert not np.allclose(tree["posterior"]["scores"], straight["posterior"]["scores"])
    xr.testing.assert_allclose(invariants(tree), invariants(straight))
    # by ranks, of which some are ties
    assert convergence(tree) == pytest.approx(convergence(straight), rel=1e-2)
    ours, theirs = comparable(tree), comparable(straight)
    assert ours.keys() == theirs.keys()
    assert {key.split("[")[0] for key in ours} == {"gram_dimensions", "noise"}
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, atol=1e-9)
    loadings = straight["posterior"]["loadings"].to_numpy()
    products = invariants(tree)["gram_dimensions"].to_numpy()
    np.testing.assert_allclose(products[..., 0], (loadings[..., 0, :] ** 2).sum(axis=-1))


def test_a_dimension_of_noise_scores_badly():
    """Its direction in one draw says nothing of that in another."""
    truth = np.random.default_rng(1).normal(size=(1, 5, 2))[[0, 0]] * [1.0, 0.0]
    tree, _ = make_tree(truth=truth)
    posterior = tree["posterior"].to_dataset()
    tree["posterior"] = xr.DataTree(posterior.drop_vars(["scores", "centres"]))
    _, score = align(tree)
    assert score < 0.5


def test_chains_that_differ_by_more_are_seen_by_the_invariants():
    truth = np.random.default_rng(1).normal(size=(2, 5, 2))
    assert convergence(make_tree(truth=truth)[0])["rhat"] > 1.5
    assert convergence(make_tree()[0])["rhat"] < 1.1


def test_one_draw_is_left_alone():
    tree, _ = make_tree()
    for name in ("posterior", "sample_stats"):
        tree[name] = xr.DataTree(tree[name].to_dataset().isel(chain=[0], draw=[0]))
    out, score = align(tree)
    assert out is tree
    assert score == 1.0
