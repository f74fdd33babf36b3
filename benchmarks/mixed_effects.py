"""Linear mixed effects by REML and ML, against statsmodels and lme4 in the same run.

Run: python benchmarks/mixed_effects.py [--repeats 5] [--skip-peer]
Random intercepts and slopes, unbalanced times. The first set has 2,000 subjects with 8 visits, fitted
by REML by both; the second 10,000 groups of 10 rows, fitted by ML by us, where statsmodels takes a
minute (--peer-on-large). R's lme4 joins where Rscript finds it (Debian's r-cran-lme4). Times are of
whole fits, with all that a `Fit` holds, after a first one has compiled; wall and CPU
seconds. The criteria are shown beside them.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.api as sm

import sidebayes as sb

AIM_RATIO, AIM_SECONDS = 20, 0.3


def simulate(num_subjects, num_rows, seed=0):
    """Growth curves at random times."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(num_subjects), num_rows)
    time_of = rng.uniform(0, num_rows, len(subject))
    x = np.column_stack([np.ones(len(subject)), time_of])
    effects = rng.normal(size=(num_subjects, 2)) @ np.array([[1.0, 0.1], [0.0, 0.2]])
    y = x @ [10.0, 0.5] + (x * effects[subject]).sum(axis=1) + rng.normal(size=len(x))
    return y, x, subject


def ours(y, x, subject, form, repeats):
    """Least wall and CPU seconds of a fit that is compiled, and its criterion."""
    times = []
    for _ in range(repeats + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        fit = sb.fit("mixed_effects", y, x, x, subject, form=form, progress=False)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    assert fit.status.converged, fit.status
    first, *rest = np.array(times)
    value = fit.tree["sample_stats"]["lp"].item()
    return first, np.min(rest, axis=0), value, fit


def theirs(y, x, subject, reml):
    """Seconds of statsmodels' fit, and its criterion."""
    wall, cpu = time.perf_counter(), time.process_time()
    fit = sm.MixedLM(y, x, subject, exog_re=x).fit(reml=reml)
    return (time.perf_counter() - wall, time.process_time() - cpu), fit.llf


LME4 = """
suppressMessages(library(lme4))
table <- read.csv(commandArgs(TRUE)[1])
used <- system.time(fit <- lmer(y ~ t + (t | s), table, REML = commandArgs(TRUE)[2] == "restricted"))
cat(sprintf("%.3f %.3f %.6f", used[3], used[1] + used[2], logLik(fit)))
"""


def lme4(y, x, subject, form):
    """Seconds of lme4's fit, and its criterion; None without R or the package."""
    if shutil.which("Rscript") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        table, script = Path(folder) / "table.csv", Path(folder) / "fit.R"
        pd.DataFrame({"y": y, "t": x[:, 1], "s": subject}).to_csv(table, index=False)
        script.write_text(LME4)
        command = ["Rscript", "--vanilla", str(script), str(table), form]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode else tuple(map(float, done.stdout.split()))


def report(title, data, form, options, with_peer):
    print(title)
    first, (wall, cpu), value, fit = ours(*data, form, options.repeats)
    print(
        f"  sidebayes   {wall:7.3f} s, {cpu:6.3f} CPU s, criterion {value:.6f}; the first {first[0]:.1f} s"
    )
    print(f"              of the fit alone {fit.seconds['run']:.3f} s; {fit.status}")
    if (other := lme4(*data, form)) is not None:
        peer_wall, peer_cpu, peer = other
        print(f"  lme4        {peer_wall:7.3f} s, {peer_cpu:6.3f} CPU s, criterion {peer:.6f}")
        print(f"  {peer_cpu / cpu:.0f} times faster than lme4 by CPU")
    if not with_peer:
        return wall, cpu
    (peer_wall, peer_cpu), peer = theirs(*data, form == "restricted")
    print(f"  statsmodels {peer_wall:7.3f} s, {peer_cpu:6.3f} CPU s, criterion {peer:.6f}")
    gap = (value - peer) / abs(peer)
    print(
        f"  {peer_wall / wall:.0f} times faster (aim {AIM_RATIO}), criterion higher by {gap:.1e} relative"
    )
    return wall, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-peer", action="store_true")
    parser.add_argument("--peer-on-large", action="store_true")
    options = parser.parse_args()
    small, large = simulate(2_000, 8), simulate(10_000, 10)
    report("2,000 subjects x 8 visits, REML", small, "restricted", options, not options.skip_peer)
    _, cpu = report(
        "10,000 groups x 10 rows, ML", large, "marginal", options, options.peer_on_large
    )
    print(f"  {cpu:.3f} CPU s per fit (aim {AIM_SECONDS})")


if __name__ == "__main__":
    main()
