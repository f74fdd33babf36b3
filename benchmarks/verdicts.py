"""What the library says of a fit, against what is true: engines on posteriors with known moments.

Run: python -m benchmarks.verdicts [--posteriors NAME,...] [--engines NAME,...] [--seeds 3]
         [--keep FILE] [--n-jobs 2] [--references FOLDER]
     python -m benchmarks.verdicts --table FILE
An answer is right where means of all functionals lie within .1 posterior standard deviations of the
truth and standard deviations within 10 %, wrong beyond .3 or 30 %, and close between the two. Engines
run with their defaults, all of them on one posterior and seed, and are compared as a user compares
them. `--keep` adds one line of JSON per fit to a file, and goes on where an earlier run stopped.
Posteriors of posteriordb need SIDEBAYES_DATA. `--references` adds those of the zoo whose truth is a long
run by `sidebayes.reference`, which the folder keeps; the first time they take long.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import pandas as pd

import sidebayes as sb
from benchmarks.evidence import evidence_of
from sidebayes.tasks import Task, run_tasks
from tests.reference.posteriors import ASKED, EXACT, PUBLISHED, long_run

ENGINES = {
    "Laplace": sb.Laplace(),
    "SVI full rank": sb.SVI(),
    "SVI mean field": sb.SVI(guide="mean_field"),
    "Pathfinder": sb.Pathfinder(),
    "HMC": sb.HMC(),
    "NUTS": sb.NUTS(),
    "NUTS low rank": sb.NUTS(dense_mass="low_rank"),
    "MCLMC": sb.MCLMC(),
    "SMC": sb.SMC(),
    "NestedSlice": sb.NestedSlice(),
    "BlockedGibbs": sb.BlockedGibbs(),
    "CoordinateAscent": sb.CoordinateAscent(),
}
RIGHT, WRONG = (0.1, 0.1), (0.3, 0.3)
"""Limits of the errors of means, in standard deviations, and of standard deviations, as a share."""
TRUST_WORDS = ("reference", "agrees")
COVERED = 2.0
"""Standard errors within which a stated evidence should lie in 95 % of runs."""


def truth_of(mean_error, sd_error):
    """Whether an answer is right, close or wrong."""
    if mean_error <= RIGHT[0] and sd_error <= RIGHT[1]:
        return "right"
    return "close" if mean_error <= WRONG[0] and sd_error <= WRONG[1] else "wrong"


def fits_of(known, engines, seed):
    """Fits by engine, and why others do not apply."""
    fits, refused = {}, {}
    for name in engines:
        try:
            fits[name] = sb.fit(
                known.model,
                *known.data,
                engine=ENGINES[name],
                seed=seed,
                progress=False,
                **known.options,
            )
        except (ValueError, sb.FitError) as error:
            refused[name] = f"{type(error).__name__}: {error}"
    return fits, refused


def records_of(name, known, engines, seed):
    """One record per engine: what was said, what is true, and the seconds."""
    fits, refused = fits_of(known, engines, seed)
    frame = sb.compare(fits).frame if fits else pd.DataFrame()
    for engine, reason in refused.items():
        yield {"posterior": name, "engine": engine, "seed": seed, "refused": reason}
    for engine, fit in fits.items():
        draws = {key: value.to_numpy() for key, value in fit.tree["posterior"].items()}
        mean_error, sd_error, worst = known.errors(draws)
        record = {
            "posterior": name,
            "engine": engine,
            "seed": seed,
            "said": fit.verdict[0],
            "why": fit.verdict[1],
            "trust": frame["trust"].get(engine, "") if "trust" in frame else "",
            "truth": truth_of(mean_error, sd_error),
            "mean_error": round(float(mean_error), 4),
            "sd_error": round(float(sd_error), 4),
            "worst": worst,
            "seconds": round(fit.seconds["total"], 2),
        }
        evidence = evidence_of(fit)
        if evidence is not None and known.log_evidence is not None:
            record |= {
                "evidence_kind": evidence.kind,
                "evidence_error": float(evidence.value - known.log_evidence),
                "stated_error": float(evidence.standard_error or 0.0),
            }
        yield record


def run(posteriors, engines, seeds, keep, n_jobs, folder):
    """All records, those of an earlier run first."""
    records = read(keep) if keep and keep.exists() else []
    done = {(one["posterior"], one["seed"]) for one in records}
    asked = [(name, seed) for name in posteriors for seed in seeds if (name, seed) not in done]
    tasks = (Task(f"{name}, seed {seed}", (name, seed)) for name, seed in asked)
    fixed = engines, folder
    found = run_tasks(one_posterior, tasks, fixed, n_jobs=n_jobs, title="verdicts")
    for (name, seed), (new, seconds) in zip(asked, found, strict=True):
        records += new
        if keep:
            with keep.open("a") as file:
                file.writelines(json.dumps(one) + "\n" for one in new)
        print(f"{name}, seed {seed}: {seconds:.0f} s", flush=True)
    return records


def one_posterior(fixed, given):
    """Records of one posterior and seed, and the seconds that all engines took."""
    (engines, folder), (name, seed) = fixed, given
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = long_run(name, folder) if name in ASKED else (EXACT | PUBLISHED)[name]()
        found = list(records_of(name, known, engines, seed))
    return found, time.perf_counter() - start


def read(path):
    """Records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def report(records):
    """Tables of what was said against what is true, shares, and every disagreement."""
    frame = pd.DataFrame(records)
    ran = frame[frame["truth"].notna()] if "refused" in frame else frame
    truths = ["right", "close", "wrong"]
    for column, title in (("said", "verdict of the fit"), ("trust", "comparison")):
        print(f"\n{title}, fits by engine")
        table = ran.pivot_table(
            index=["engine", column], columns="truth", values="seed", aggfunc="count", fill_value=0
        )
        print(table.reindex(columns=truths, fill_value=0).to_string())
    trusted = ran["said"].eq("good") | ran["trust"].isin(TRUST_WORDS)
    condemned = ran["said"].eq("bad") | ran["trust"].eq("differs")
    wrong, right = ran["truth"].eq("wrong"), ran["truth"].eq("right")
    shares = {
        "trusted (good, reference, agrees) and wrong": (trusted & wrong, 0.02),
        "    of these, said good": (ran["said"].eq("good") & wrong, 0.02),
        "    of these, reference or agrees": (ran["trust"].isin(TRUST_WORDS) & wrong, 0.02),
        "condemned (bad, differs) and right": (condemned & right, 0.05),
        "too noisy to say": (ran["trust"].eq("too noisy to say"), 0.10),
    }
    print(f"\n{len(ran)} fits of {ran['posterior'].nunique()} posteriors")
    for title, (cases, goal) in shares.items():
        print(f"{title:<48}{cases.sum():>5} {cases.mean():>7.1%}   goal {goal:.0%}")
    evidence(ran)
    columns = ["posterior", "engine", "seed", "said", "trust", "truth"]
    columns += ["mean_error", "sd_error", "worst"]
    print("\nEvery disagreement")
    print(ran.loc[(trusted & wrong) | (condemned & right), columns].to_string(index=False))
    if "refused" in frame:
        print("\nDoes not apply")
        apart = frame[frame["refused"].notna()]
        print(apart.groupby(["posterior", "engine"])["refused"].first().str[:90].to_string())


def evidence(ran):
    """How often stated errors of the evidence cover the truth."""
    if "evidence_kind" not in ran:
        return
    known = ran[ran["evidence_kind"].eq("estimate") & (ran["stated_error"] > 0)]
    covered = known["evidence_error"].abs() <= COVERED * known["stated_error"]
    print("\nlog evidence within two stated errors of the truth, by engine (goal 95 %)")
    print(covered.groupby(known["engine"]).agg(["mean", "count"]).to_string())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posteriors", default="", help="names, or beginnings, comma-separated")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--n-jobs", type=int, help="posteriors side by side")
    parser.add_argument("--table", type=Path, help="print the tables of an earlier run")
    parser.add_argument("--references", type=Path, help="folder of long runs")
    given = parser.parse_args()
    if given.table:
        return report(read(given.table))
    names = [*EXACT, *(PUBLISHED if "SIDEBAYES_DATA" in os.environ else ())]
    names += ASKED if given.references else ()
    wanted = tuple(given.posteriors.split(","))
    chosen = [name for name in names if name.startswith(wanted)]
    seeds, engines = range(given.seeds), given.engines.split(",")
    report(run(chosen, engines, seeds, given.keep, given.n_jobs, given.references))


if __name__ == "__main__":
    main()
