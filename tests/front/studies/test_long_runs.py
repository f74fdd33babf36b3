"""Truths of the benchmark of verdicts that are long runs: drawn once, kept, free of numberings."""

import numpy as np
import pytest

import sidebayes as sb
from tests.reference.posteriors import long_runs

X = np.concatenate([np.linspace(-3.0, -2.0, 6), np.linspace(2.0, 3.0, 6)])[:, None]


def test_a_long_run_is_drawn_once_and_knows_no_numbering(tmp_path, monkeypatch):
    drawn = []

    def reference(method, **given):
        drawn.append(method)
        engine = sb.BlockedGibbs(num_warmup=20, num_samples=50, num_chains=2)
        return sb.fit(method, engine=engine, **given)

    monkeypatch.setattr(long_runs.sb, "reference", reference)
    monkeypatch.setitem(long_runs.ASKED, "two", lambda: ("gmm", {"x": X, "num_clusters": 2}))
    first, second = (long_runs.long_run("two", tmp_path) for _ in range(2))
    assert drawn == ["gmm"]
    assert {n: pytest.approx(v) for n, v in first.truth.items()} == second.truth
    assert first.source == "long run"
    draws = {n: v.to_numpy() for n, v in sb.load(tmp_path / "two.nc").tree["posterior"].items()}
    assert max(first.errors(draws)[:2]) < 1e-9
    turned = {n: v[:, :, ::-1] for n, v in draws.items()}  # the clusters, in all sites
    assert max(first.errors(turned)[:2]) < 1e-9
