"""Mixture of linear mixed effects: a large table, and the published model of the paquid cohort.

Run: python benchmarks/mixed_effects_mixture.py [--subjects 350000] [--rows 14] [--seed 0] [--coverage 100]
350,000 subjects with 14 rows each in two classes, random intercepts and slopes, by EM in a fresh process
that starts with no program compiled: wall and CPU seconds, and the peak of its memory. With
SIDEBAYES_DATA, the two-class model of paquid, whose log-likelihood by lcmm 1.8.1.1 is -5414.573. R's lcmm
is not run here; an issue of it (258) asks for a table of the large size. No library of Python that we
know fits this model. With --coverage, only so many small sets of data are simulated for each distance of
the classes, and the share of 90 % intervals by EM that hold the true coefficients is printed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

import sidebayes as sb

AIM_SECONDS, AIM_GIB, AIM_LIKELIHOOD = 60, 4, -5414.573


def simulate(num_subjects, num_rows, seed):
    """Curves of two classes that differ in level and slope."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(num_subjects), num_rows)
    time_of = rng.uniform(0, 1, len(subject))
    x = np.column_stack([np.ones(len(subject)), time_of])
    label = rng.random(num_subjects) < 0.35
    own = np.where(label[:, None], [9.0, -3.0], [10.0, 0.5])
    own = own + rng.normal(size=(num_subjects, 2)) @ np.array([[1.0, 0.1], [0.0, 0.8]])
    y = (x * own[subject]).sum(axis=1) + rng.normal(size=len(subject))
    return y, x, subject, label


def fit_large(num_subjects, num_rows, seed):
    """Simulate, fit, and print what it took as JSON."""
    y, x, subject, label = simulate(num_subjects, num_rows, seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    wall, cpu = time.perf_counter(), time.process_time()
    fit = sb.fit(
        "mixed_effects_mixture", y, x, x, subject, num_clusters=2,
        engine=sb.EM(num_restarts=1), progress=False,
    )  # fmt: skip
    found = {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "seconds": fit.seconds,
        "steps": int(np.isfinite(fit.objective).sum()) - 1,
        "converged": fit.status.converged,
        "likelihood": fit.tree["sample_stats"]["lp"].item(),
        "agreement": float(max((fit.labels() == label).mean(), (fit.labels() != label).mean())),
        "before": before,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(found))


def report_large(options):
    """Run the large fit in a process of its own, whose cache of programs is off."""
    command = [sys.executable, __file__, "--child"]
    for name in ("subjects", "rows", "seed"):
        command += [f"--{name}", str(getattr(options, name))]
    load = os.getloadavg()[0]
    environment = os.environ | {"SIDEBAYES_CACHE": "off"}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(out.stdout.splitlines()[-1])
    print(f"{options.subjects:,} subjects x {options.rows} rows, two classes, EM from one start")
    print(f"  {found['wall']:.1f} s wall (aim {AIM_SECONDS}), {found['cpu']:.1f} CPU s")
    print(f"  of these { ({name: round(s, 1) for name, s in found['seconds'].items()}) }")
    print(
        f"  {found['steps']} steps, converged {found['converged']}, log joint {found['likelihood']:.2f}"
    )
    print(f"  {found['agreement']:.1%} of the subjects in their class")
    print(f"  peak {found['peak']:.2f} GiB (aim {AIM_GIB}), {found['before']:.2f} before the fit")
    print(f"  load of the machine before: {load:.1f} on {os.cpu_count()} processors")


def report_paquid(folder):
    """Two classes of the cohort, covariance and noise shared, as lcmm fits it."""
    table = pd.read_csv(Path(folder) / "long_paquid.csv").dropna(subset=["MMSE"])
    age = (table["age"].to_numpy() - 65) / 10
    x = np.column_stack([np.ones(len(age)), age, age**2])
    for engine in (sb.EM(tol=1e-11, max_steps=3000), sb.MAP()):
        wall, cpu = time.perf_counter(), time.process_time()
        fit = sb.fit(
            "mixed_effects_mixture", table["MMSE"].to_numpy(float), x, x[:, :2], table["ID"],
            num_clusters=2, shared=("covariance", "noise"), engine=engine, progress=False,
        )  # fmt: skip
        value = fit.tree["sample_stats"]["lp"].item()
        bic = 11 * np.log(500) - 2 * value
        print(
            f"paquid by {engine.name}: log-likelihood {value:.6f} (lcmm {AIM_LIKELIHOOD}), BIC {bic:.1f}, "
            f"{time.perf_counter() - wall:.1f} s, {time.process_time() - cpu:.1f} CPU s"
        )


def report_coverage(number, seed):
    """Intervals of 40 subjects with six rows, in two classes that are some standard deviations apart."""
    rng = np.random.default_rng(seed)
    subject, when = np.repeat(np.arange(40), 6), np.tile(np.linspace(-1, 1, 6), 40)
    x = np.column_stack([np.ones(len(subject)), when])
    for apart in (1.0, 2.0, 4.0):
        means, hits = np.array([[0.0, 0.0], [apart, apart]]), []
        for _ in range(number):
            label = (rng.random(40) < 0.5).astype(int)
            own = means[label] + rng.normal(size=(40, 2))
            y = (x * own[subject]).sum(axis=1) + rng.normal(size=len(subject))
            fit = sb.fit(
                "mixed_effects_mixture", y, x, x, subject, num_clusters=2,
                shared=("covariance", "noise"), progress=False,
            )  # fmt: skip
            table = fit.coefficients(probability=0.9)
            low, high = (table[name].to_numpy().reshape(2, 2) for name in table.columns[-2:])
            order = np.argsort(fit.params["coefficients"].sum(axis=1))
            hits.append((low[order] <= means) & (means <= high[order]))
        print(f"classes {apart:g} sd apart: {np.mean(hits):.0%} of 90 % intervals hold the truth")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subjects", type=int, default=350_000)
    parser.add_argument("--rows", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coverage", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        fit_large(options.subjects, options.rows, options.seed)
        return
    if options.coverage:
        report_coverage(options.coverage, options.seed)
        return
    report_large(options)
    if os.environ.get("SIDEBAYES_DATA"):
        report_paquid(os.environ["SIDEBAYES_DATA"])


if __name__ == "__main__":
    main()
