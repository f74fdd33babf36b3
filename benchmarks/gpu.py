"""Steps of EM, NUTS and coordinate ascent on the machine's default device, and the memory they take there.

Run: python -m benchmarks.gpu [--small] [--only BEGINNING] [--limit SECONDS] [--keep FILE]
Every row is a process of its own. A step of EM is the difference between a long and a short fit, divided by
the steps between. On a processor the same command gives the figures to compare with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np

from . import label_engine, trajectories

ROOT = Path(__file__).resolve().parents[1]
NUM_FEATURES, NUM_CLUSTERS = 16, 10


def peak_gib() -> float | None:
    """Most memory of the device that this process has held; None where it is not told."""
    told = jax.devices()[0].memory_stats()
    return told["peak_bytes_in_use"] / 2**30 if told else None


def per_step(
    seconds: Callable[[int], float], repeats: int, short: int = 5, long: int = 25
) -> dict[str, float]:
    """Milliseconds of a step, given the seconds of some steps; both lengths are compiled before."""
    seconds(short), seconds(long)
    taken = [(seconds(long) - seconds(short)) / (long - short) for _ in range(repeats)]
    return {"ms": 1000 * min(taken)}


def trees(num_points: int, size: int) -> np.ndarray:
    """Pairs that link points in trees, each point to one of those before it: size - 1 links per tree."""
    rng = np.random.default_rng(0)
    order = rng.permutation(num_points)[: num_points // size * size].reshape(-1, size)
    slot = np.arange(1, size)
    earlier = np.take_along_axis(order, rng.integers(0, slot, (len(order), size - 1)), axis=1)
    return np.stack([earlier.ravel(), order[:, 1:].ravel()], axis=1)


def em(num_points: int, dtype: str, links: str = "", inference: str = "exact") -> dict[str, float]:
    """Milliseconds of a step."""
    import sidebayes as sb

    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_points, NUM_FEATURES)).astype(dtype)  # slow to converge
    start = {
        "weights": np.full(NUM_CLUSTERS, 1 / NUM_CLUSTERS),
        "mean": rng.normal(size=(NUM_CLUSTERS, NUM_FEATURES)),
        "covariance": np.stack([np.eye(NUM_FEATURES)] * NUM_CLUSTERS),
    }
    given: dict = {"prior": "flat"}
    if links.startswith("trees"):
        pairs = trees(num_points, int(links.split()[1]))
        strength = 2 * np.random.default_rng(1).normal(size=len(pairs))
        given["links"] = sb.Links(pairs, strength, num_points)
    elif links:
        given["links"] = label_engine.random_links(int(links), num_points=num_points)
    if links:
        given |= {"reading": "relation", "inference": inference}

    def seconds(steps: int) -> float:
        fit = sb.fit(
            "ppc" if links else "gmm", x, num_clusters=NUM_CLUSTERS, dtype=dtype, progress=False,
            init=start, engine=sb.EM(max_steps=steps, tol=1e-15), **given,
        )  # fmt: skip
        if len(fit.objective[0]) != steps + 1:
            raise RuntimeError(f"{len(fit.objective[0]) - 1} steps in place of {steps}")
        return fit.seconds["run"]

    if inference == "exact":
        return per_step(seconds, 3)
    return per_step(seconds, 1, 2, 6)  # up to 50 sweeps per step


def nuts(num_chains: int, num_samples: int) -> dict[str, float]:
    """Effective draws per second of `ppc` on iris with 60 links, and the seconds of compiling."""
    import arviz as az

    import sidebayes as sb

    data = sb.load_dataset("iris")
    links = sb.simulate_links(data.labels, 60, seed=0)
    engine = sb.NUTS(num_chains=num_chains, num_warmup=300, num_samples=num_samples)
    fit = sb.fit("ppc", data.x, links, num_clusters=3, engine=engine, progress=False, seed=0)
    weakest = float(min(found.min() for found in az.ess(fit.tree["posterior"]).values()))
    ran = fit.seconds["run"]
    return {"per_second": weakest / ran, "seconds": ran, "compiling": fit.seconds["compile"]}


def smc() -> dict[str, float]:
    """Seconds of particles for `ppc` on iris with 60 links, and of compiling them."""
    import arviz as az

    import sidebayes as sb

    data = sb.load_dataset("iris")
    links = sb.simulate_links(data.labels, 60, seed=0)
    fit = sb.fit("ppc", data.x, links, num_clusters=3, engine=sb.SMC(), progress=False, seed=0)
    weakest = float(min(found.min() for found in az.ess(fit.tree["posterior"]).values()))
    ran, compiling = fit.seconds["run"], fit.seconds["compile"]
    return {
        "per_second": weakest / ran,
        "seconds": ran,
        "compiling": compiling,
        "log_evidence": fit.log_evidence.value,
    }


def ascent(num_points: int) -> dict[str, float]:
    """Milliseconds of a sweep over trajectories of two outcomes and twenty clusters."""
    import sidebayes as sb

    y, times, _ = trajectories.curves(num_points, 2)
    given = {"length_scale": 0.005**-0.5, "amplitude": 1.0, "noise": 0.02**0.5, "inducing": 50}

    def seconds(steps: int) -> float:
        engine = sb.CoordinateAscent(num_restarts=1, max_steps=steps, tol=0.0, num_draws=1)
        fit = sb.fit(
            "trajectories", y, times, num_clusters=20, engine=engine, progress=False, **given
        )
        return fit.seconds["run"]

    return per_step(seconds, 1)


def rows(small: bool) -> dict[str, Callable[[], dict[str, float]]]:
    """What is measured."""
    number = 100_000 if small else 1_000_000
    return {
        "EM": partial(em, number, "float64"),
        "EM, float32": partial(em, number, "float32"),
        "EM, .3 links a point": partial(em, number, "float64", str(3 * number // 10)),
        "EM, .875 links a point, in trees": partial(em, number, "float64", "trees 8"),
        "EM, .875 links a point, in trees, float32": partial(em, number, "float32", "trees 8"),
        "EM, .999 links a point, in trees": partial(em, number, "float64", "trees 1000"),
        "EM, a link a point, mean field": partial(em, number, "float64", str(number), "mean_field"),
        "EM, a link a point, belief propagation": partial(
            em, number, "float64", str(number), "belief_propagation"
        ),
        "NUTS, 4 chains": partial(nuts, 4, 500),
        "NUTS, 64 chains": partial(nuts, 64, 100 if small else 200),
        "SMC": smc,
        "coordinate ascent": partial(ascent, number // 10),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the points")
    parser.add_argument("--keep", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--only", default="", help="beginning of the rows that are measured")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a row, at most")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        figures = rows(options.small)[options.row]() | {"gib": peak_gib()}
        print(json.dumps(figures | {"device": jax.devices()[0].device_kind}))
        return
    found = {}
    chosen = [name for name in rows(options.small) if name.startswith(options.only)]
    if not chosen:
        parser.error(f"--only {options.only}: no row begins so; there are {', '.join(rows(False))}")
    for name in chosen:
        command = [sys.executable, "-m", "benchmarks.gpu", "--row", name]
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, *["--small"] * options.small],
                cwd=ROOT, capture_output=True, text=True, check=False, timeout=options.limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"{name}: not done after {options.limit:.0f} s", flush=True)
            continue
        if done.returncode:
            print(f"{name}: failed\n{done.stderr[-2000:]}", flush=True)
            continue
        found[name] = json.loads(done.stdout.splitlines()[-1])
        figures = {
            key: round(v, 3) if isinstance(v, float) else v for key, v in found[name].items()
        }
        print(f"{name}: {figures} ({time.perf_counter() - began:.0f} s in all)", flush=True)
        if options.keep:
            options.keep.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
