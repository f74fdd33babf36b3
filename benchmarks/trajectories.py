"""Time and memory of `trajectories`: ``python benchmarks/trajectories.py [--large]``.

Each size runs in a process of its own, which prints seconds after compiling, CPU seconds of the whole
process, and peak memory. SIDEBAYES_MOGP names a Python that has MoGP, see `trajectories_peer`: it is given
the first data in the same run.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

STEPS = 50

SIZES = ("sinusoids", "middle")
LARGE = ("large", "large-svi")
"""Hundred thousand rows, all of them in every step of coordinate ascent, and SVI by a thousand."""


def curves(number: int, outputs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points on five smooth curves: outcomes, times and labels."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 5, number)
    times = rng.uniform(0, 50, number)
    phase = rng.uniform(0, 6, (5, outputs))
    level = 0.4 * rng.normal(size=(5, outputs))
    angle = 0.13 * times[:, None] + phase[label]
    return np.sin(angle) + level[label] + 0.14 * rng.normal(size=(number, outputs)), times, label


def run(name: str) -> None:
    """Fit one size and print what it took."""
    import sidebayes as sb

    scales = {"length_scale": 0.005**-0.5, "amplitude": 1.0, "noise": 0.02**0.5}
    if name == "sinusoids":
        table = sb.simulate_sinusoids(seed=0)
        y, times = table["y"].to_numpy(), table["x"].to_numpy()
    else:
        y, times, _ = curves(2000 if name == "middle" else 100_000, 2)
    options = {"num_clusters": 20, "progress": False} | scales
    options |= {"inducing": 50} if name in LARGE else {}
    ascent = sb.CoordinateAscent(num_restarts=1, max_steps=STEPS, tol=0.0, num_draws=1)
    batches = sb.SVI(guide="mean_field", batch_sets=1000, num_restarts=1, num_draws=100)
    engine = batches if name == "large-svi" else ascent
    began = time.perf_counter()
    fit = sb.fit("trajectories", y, times, engine=engine, **options)
    total = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{name:10} N={len(y):6d} D={y.ndim if y.ndim == 1 else y.shape[1]} K=20 "
        f"anchors={len(fit.run.data['anchors']):3d}: "
        f"run {fit.seconds['run']:.2f} s, compile {fit.seconds['compile']:.1f} s, "
        f"all {total:.1f} s, CPU {used.ru_utime + used.ru_stime:.1f} s, {used.ru_maxrss / 2**20:.2f} GiB, "
        f"bound per row {fit.log_evidence.value / len(y):.4f}",
        flush=True,
    )
    if name == "large-svi":
        on = sb.fit("trajectories", y, times, engine=ascent, init=fit, **options)
        bound = on.log_evidence.value / len(y)
        print(f"{'':10} coordinate ascent from there: bound per row {bound:.4f}")


def peer(python: str) -> None:
    """Thirty iterations of MoGP, and of coordinate ascent with the true scales, on a hundred points."""
    from sklearn.metrics import normalized_mutual_info_score

    import sidebayes as sb

    table = sb.simulate_sinusoids(seed=0)
    scales = {"length_scale": 0.005**-0.5, "amplitude": 1.0, "noise": 0.02**0.5}
    engine = sb.CoordinateAscent(num_restarts=1, max_steps=30, tol=0.0, num_draws=1)
    options = {"num_clusters": 20, "engine": engine, "progress": False} | scales
    for _ in range(2):  # the second time nothing is compiled
        cpu = time.process_time()
        fit = sb.fit("trajectories", table["y"], table["x"], **options)
        cpu = time.process_time() - cpu
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "points.npz"
        np.savez(file, x=table["x"], y=table["y"])
        script = Path(__file__).with_name("trajectories_peer.py")
        said = subprocess.run(
            [python, script, file, "30"], check=True, capture_output=True, text=True
        )
    theirs = json.loads(said.stdout)
    for name, seconds, used, labels in (
        ("sidebayes", fit.seconds["run"], cpu, fit.labels()),
        ("MoGP", theirs["seconds"], theirs["cpu"], theirs["labels"]),
    ):
        score = normalized_mutual_info_score(table["curve"], labels, average_method="geometric")
        print(
            f"{name:10} 30 iterations {seconds:.2f} s, CPU {used:.1f} s, NMI {score:.3f}, "
            f"{len(set(labels))} clusters",
            flush=True,
        )
    print(f"{'ratio':10} of CPU {theirs['cpu'] / cpu:.0f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["peer"]:
        peer(os.environ["SIDEBAYES_MOGP"])
    elif len(sys.argv) > 1 and not sys.argv[1].startswith("--"):
        run(sys.argv[1])
    else:
        others = ("peer",) if "SIDEBAYES_MOGP" in os.environ else ()
        for size in SIZES + others + (LARGE if "--large" in sys.argv else ()):
            environment = os.environ | {"SIDEBAYES_CACHE": "off"}
            subprocess.run([sys.executable, __file__, size], check=True, env=environment)
