"""Small synthetic results and fits, whose answers are known."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pandas as pd
import xarray as xr
from sidebayes.diagnostics.pictures.plots import plot_clusters
from sidebayes.diagnostics.symmetry.invariants import convergence
from sidebayes.diagnostics.symmetry.relabelling import relabel
from sidebayes.diagnostics.tree import to_datatree
from sidebayes.diagnostics.trust.verdict import verdict
from sidebayes.guides.engines.base import Engine, EngineResult, Status

from sidebayes.results.scores import leave_one_out, validation

TRUTH = np.repeat([0, 1, 2], [20, 14, 6])
CENTRES = np.array([[0.0, 0.0, 1.0], [6.0, 0.0, 2.0], [0.0, 7.0, 3.0]])
PAIRS = np.array([[0, 1], [2, 25], [3, 39], [21, 22], [5, 30]])
ROLES = {
    "weights": "mixing_weights",
    "mean": "location",
    "covariance": "spread",
    "flip_rate": "reliability",
}
WEIGHTS = np.array([2.0, -2.0, -np.inf, np.inf, 2.0])  # the last one is wrong


@dataclass
class FakeFit:
    tree: xr.DataTree
    method: str = "ppc"
    config: Engine = field(default_factory=Engine)
    run: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(  # as of a file without its model
            sample_of=0,
            model=None,
            card=None,
            data={},
            options={},
            precision=nullcontext(),
            sized_by_units=[],
        )
    )
    has_labels = True
    has_classes = False
    picture = "clusters"
    loo = leave_one_out.loo
    unit_terms = property(validation.unit_terms)

    @property
    def bic(self):
        raise ValueError("its model is not known")

    def plot(self):
        return plot_clusters(self)

    @property
    def engine(self):
        return self.tree["fit_info"].attrs["engine"]

    @cached_property
    def convergence(self):
        return convergence(self.tree)

    @property
    def verdict(self):
        return verdict(self)

    @property
    def seconds(self):
        return json.loads(self.tree["fit_info"].attrs["seconds"])

    @property
    def objective(self):
        return self.tree["fit_info"]["objective"].to_numpy()

    @property
    def approximate(self):
        return self.tree["fit_info"].attrs["approximate"] or None

    @cached_property
    def relabelled(self):
        return relabel(self.tree)

    @property
    def params(self):
        sites = self.relabelled[0]["posterior"].data_vars.items()
        return {name: value.to_numpy().mean(axis=(0, 1)) for name, value in sites}

    def coefficients(self):
        raise ValueError("no fixed effects")

    def suspect_links(self):
        """The last link is probably wrong."""
        odds = np.array([0.1, 0.2, 0.01, 0.02, 0.9])
        weights = self.tree["constant_data"]["link_weights"].to_numpy()
        table = pd.DataFrame(PAIRS, columns=["i", "j"]).assign(
            sign=np.sign(weights), weight=abs(weights), probability=odds
        )
        return table.sort_values("probability", ascending=False)

    def responsibilities(self):
        return self.relabelled[0]["responsibilities"]["prob"].to_numpy().mean(axis=(0, 1))

    def labels(self):
        return self.tree["responsibilities"]["labels"].to_numpy()


def soft_labels(truth=TRUTH, sure=0.98, num_clusters=3):
    rest = (1 - sure) / (num_clusters - 1)
    return rest + (sure - rest) * np.eye(num_clusters)[truth]


def make_tree(
    chains=1, draws=1, stored=None, *, switch=False, seed=0, engine=None, prob=None, converged=True
):
    """Tree of known truth; with `switch` the clusters of every draw are renumbered at random.

    Returns the tree and the renumbering (chain, draw, cluster): own ``k`` is true ``order[k]``.
    """
    rng = np.random.default_rng(seed)
    stored = draws if stored is None else stored
    shape = (chains, draws)
    order = np.tile(np.arange(3), (*shape, 1))
    if switch:
        order = rng.permuted(order, axis=2)
    jitter = 0.05 if draws > 1 else 0.0
    weights = np.array([0.5, 0.35, 0.15]) * np.exp(jitter * rng.normal(size=(*shape, 3)))
    weights /= weights.sum(axis=-1, keepdims=True)
    mean = CENTRES + jitter * rng.normal(size=(*shape, 3, 3))
    covariance = np.broadcast_to(np.eye(3) * [[[1.0]], [[2.0]], [[3.0]]], (*shape, 3, 3, 3))
    if prob is None:
        prob = np.broadcast_to(soft_labels(), (*shape, len(TRUTH), 3))
        prob = prob * np.exp(jitter * rng.normal(size=prob.shape))
        prob /= prob.sum(axis=-1, keepdims=True)
    keep = np.linspace(0, draws - 1, stored).astype(int)
    take = order[..., None]
    sampled = draws > 1
    result = EngineResult(
        engine=engine or ("nuts" if sampled else "em"),
        draws={
            "weights": np.take_along_axis(weights, order, axis=2),
            "mean": np.take_along_axis(mean, take, axis=2),
            "covariance": np.take_along_axis(covariance, take[..., None], axis=2),
            "flip_rate": rng.beta(2, 18, size=shape),
        },
        sample_stats={"lp": rng.normal(-200.0, 1.0, size=shape)}
        | ({"diverging": rng.random(shape) < 0.02} if sampled else {}),
        objective=np.empty((0, 0))
        if sampled
        else np.array([[-260.0, -210.0, -200.0], [-250.0, -200.0, np.nan], [-240.0, -230.0, -220]]),
        status=Status(converged, f"{'NUTS' if sampled else 'EM'} did what it could"),
        seconds={"compile": 1.5, "run": 2.0, "search": 0.3, "other": 0.2, "total": 4.0},
    )
    units = np.random.default_rng(1).normal(-3.0, 0.3, size=(chains, stored, 36))
    x = CENTRES[TRUTH] + np.random.default_rng(2).normal(size=(len(TRUTH), 3))
    tree = to_datatree(
        result,
        observed={"x": (("points", "features"), x), "truth": ("points", TRUTH)},
        constant={
            "links": (("link", "end"), PAIRS),
            "link_weights": ("link", WEIGHTS),
            "feature_names": ("features", np.array(["length", "width", "<mass>"], dtype=object)),
        },
        responsibilities=np.take_along_axis(prob, order[:, :, None], axis=3)[:, keep],
        log_likelihood={"x": units},
        unit_dims={"x": "unit"},
        dims={
            "weights": ("clusters",),
            "mean": ("clusters", "features"),
            "covariance": ("clusters", "features", "features_1"),
        },
        roles=dict(ROLES),
        attrs={"sidebayes_seed": 3, "sidebayes_version": "0.1.0"},
    )
    matched, _ = relabel(tree)
    labels = matched["responsibilities"]["prob"].to_numpy().mean(axis=(0, 1)).argmax(axis=1)
    group = tree["responsibilities"].to_dataset().assign(labels=("points", labels))
    group.attrs["label_sites"] = json.dumps({"x": [0, len(TRUTH)]})
    tree["responsibilities"] = xr.DataTree(group)
    return tree, order
