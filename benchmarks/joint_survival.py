"""Joint models of a measure and a censored time: primary biliary cirrhosis, and seconds by size.

Run: SIDEBAYES_DATA=... python benchmarks/joint_survival.py [--draws]
The first part needs the folder SIDEBAYES_DATA. It fits the log serum bilirubin of the Mayo follow-up
(long_pbcseq.csv, 312 patients) together with the time to death, transplantation counted as censoring,
and with --draws compares NUTS of the same. The second part simulates subjects and prints the seconds
of the fit, first and again.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

import sidebayes as sb

DEATH = 2
DAYS = 365.25


def cirrhosis():
    """Data by role of the joint model."""
    table = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / "long_pbcseq.csv")
    table["year"], table["log_bili"] = table["day"] / DAYS, np.log(table["bili"])
    persons = table.drop_duplicates("id").copy()
    persons["years"], persons["died"] = persons["futime"] / DAYS, persons["label"] == DEATH
    design = sb.design("log_bili ~ year + (year | id)", table)
    return design.survival("Surv(years, died) ~ trt + age", persons)


def simulate(num_subjects, num_rows=8, seed=0):
    """Data by role of subjects whose hazard depends on their lines."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(num_subjects), num_rows)
    own = rng.normal(size=(num_subjects, 2)) @ np.array([[1.0, 0.1], [0.0, 0.3]])
    died = rng.exponential(5 * np.exp(-own @ [0.5, 1.0]))
    until = np.minimum(died, rng.uniform(2, 10, num_subjects))
    x = np.column_stack([np.ones(len(who)), rng.uniform(0, 1, len(who)) * until[who]])
    y = x @ [1.0, 0.2] + (x * own[who]).sum(axis=1) + 0.5 * rng.normal(size=len(who))
    event = until == died
    return {
        "y": y,
        "fixed": x,
        "random": x,
        "subjects": who,
        "time": until,
        "event": event,
        "prior": sb.EffectsPrior.weak(y, x, x),
        "hazard": sb.HazardPrior.weak(until, event),
    }


def timed(data, engine):
    wall, cpu = time.perf_counter(), time.process_time()
    fit = sb.fit("joint_survival", **data, engine=engine, progress=False)
    return fit, time.perf_counter() - wall, time.process_time() - cpu


def show(data, engine):
    fit, wall, cpu = timed(data, engine)
    print(f"{fit.status}\n  {wall:.0f} s, {cpu:.0f} CPU s")
    sites = fit.tree["posterior"]
    for name in ("association", "log_hazard_ratios", "deviation", "noise"):
        draws = sites[name]
        mean, sd = draws.mean(("chain", "draw")).to_numpy(), draws.std(("chain", "draw")).to_numpy()
        print(f"  {name:18s} {np.round(mean, 3)} sd {np.round(sd, 3)}")
    return fit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", action="store_true")
    options = parser.parse_args()
    if "SIDEBAYES_DATA" in os.environ:
        data = cirrhosis()
        print(f"cirrhosis: {len(data['time'])} patients, {int(data['event'].sum())} deaths")
        fit = show(data, sb.Laplace())
        print(f"  errors of the mode {np.sqrt(np.diag(fit.covariance))[:2].round(3)}")
        if options.draws:
            fit = show(data, sb.NUTS(target_accept=0.9))
            print(fit.loo())
    else:
        print("cirrhosis left out: SIDEBAYES_DATA is not set")
    for size in (500, 2_000, 10_000):
        data = simulate(size)
        _, first, _ = timed(data, sb.MAP(num_restarts=1))
        fit, wall, cpu = timed(data, sb.MAP(num_restarts=1))
        found = fit.params["association"].round(2)
        print(
            f"{size:6d} subjects x 8 rows: first {first:.1f} s, again {wall:.2f} s, {cpu:.2f} CPU s; "
            f"association {found}, simulated [0.5 1.0]"
        )


if __name__ == "__main__":
    main()
