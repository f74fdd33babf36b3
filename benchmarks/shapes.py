"""Shapes: seconds of the two-group test, beside morphomatics and R's shapes in the same run, and its level.

Run: python -m benchmarks.shapes [--only test|level|data] [--permutations 10000]
Gorilla skulls of both sexes (shape_apes.csv in the folder that SIDEBAYES_DATA names), else simulated shapes
of the same size. Morphomatics runs where it is installed, or in the interpreter that SIDEBAYES_MORPHOMATICS
names, see `shapes_peer`; R's shapes where Rscript finds it (Debian's r-cran-shapes), with 200 permutations.
Cold is with everything that is compiled, warm is when the test runs again; imports are not counted. "data" is
a table of pairs of groups in the folder, with the values of R's `testmeanshapes`.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

import sidebayes as sb
from tests.support.shapes import level_p_values

AIM_SECONDS = 0.5
R_PERMUTATIONS = 200
R_SCRIPT = """
suppressMessages(library(shapes))
table <- as.matrix(read.csv(commandArgs(TRUE)[1]))
x <- array(t(table[, -1]), c(2, ncol(table) %/% 2, nrow(table)))
x <- aperm(x, c(2, 1, 3))
began <- proc.time()
invisible(capture.output(found <- resampletest(x[, , table[, 1] == 0], x[, , table[, 1] == 1],
    resamples = RESAMPLES, replace = FALSE)))
spent <- proc.time() - began
cat(spent[["elapsed"]], spent[["user.self"]] + spent[["sys.self"]], found$G, found$H, found$J, found$H.pvalue)
"""
PAIRS = (
    ("apes", "gorf", "gorm"),
    ("apes", "panf", "panm"),
    ("apes", "pongof", "pongom"),
    ("apes", "gorf", "panf"),
    ("mice_t2", "l", "s"),
    ("mice_t2", "c", "l"),
    ("mice_t2", "c", "s"),
    ("schizophrenia", "control", "schizophrenia"),
    ("brains3d", "f", "m"),
    ("hands3d", "expand", "grab"),
)
R_VALUES = """
suppressMessages(library(shapes))
table <- as.matrix(read.csv(commandArgs(TRUE)[1]))
axes <- as.integer(commandArgs(TRUE)[2])
x <- aperm(array(t(table[, -1]), c(axes, (ncol(table) - 1) / axes, nrow(table))), c(2, 1, 3))
capture.output(found <- testmeanshapes(x[, , table[, 1] == 0], x[, , table[, 1] == 1], resamples = 0),
    file = nullfile())
cat(found$G, found$H, found$J)
"""


def skulls():
    """Landmarks of two groups, and whose they are."""
    folder = os.environ.get("SIDEBAYES_DATA")
    if folder and (Path(folder) / "shape_apes.csv").is_file():
        marks = sb.read_landmarks(Path(folder) / "shape_apes.csv")
        kind = marks.covariates["label"].to_numpy()
        return "gorilla skulls", [marks.to_array()[kind == one] for one in ("gorf", "gorm")]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 2)) + 0.05 * rng.normal(size=(59, 8, 2))
    return "simulated shapes", [x[:30], x[30:]]


def ours(groups, number):
    """Wall and CPU seconds of the first test and of the best of the next, and the test."""
    x = np.concatenate(groups)
    labels = np.repeat([0, 1], [len(group) for group in groups])
    times = []
    for _ in range(6):
        wall, cpu = time.perf_counter(), time.process_time()
        found = sb.group_test(x, labels, num_permutations=number)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return times[0], min(times[1:]), found


def show_morphomatics(groups, number):
    """Print a row, or why there is none; returns the wall seconds of the first run."""
    python = os.environ.get("SIDEBAYES_MORPHOMATICS")
    if python is None and importlib.util.find_spec("morphomatics") is None:
        print(
            "\nmorphomatics is not installed, and SIDEBAYES_MORPHOMATICS names no Python that has it"
        )
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "groups.npz"
        np.savez(file, first=groups[0], second=groups[1])
        script = Path(__file__).with_name("shapes_peer.py")
        said = subprocess.run(
            [python or sys.executable, script, file, str(number)],
            check=True,
            capture_output=True,
            text=True,
        )
    found = json.loads(said.stdout.splitlines()[-1])
    show_row("morphomatics, distance", number, found["cold"], found["warm"], found["p"])
    return found["cold"][0]


def run_r(code, groups):
    """Numbers that a script of R prints of two groups, None where it cannot run."""
    if shutil.which("Rscript") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        table = pd.DataFrame(np.concatenate(groups).reshape(sum(map(len, groups)), -1))
        table.insert(0, "group", np.repeat([0, 1], [len(group) for group in groups]))
        file, script = Path(folder) / "groups.csv", Path(folder) / "test.R"
        table.to_csv(file, index=False)
        script.write_text(code)
        axes = str(groups[0].shape[2])
        said = subprocess.run(["Rscript", script, file, axes], capture_output=True, text=True)
    return None if said.returncode else [float(one) for one in said.stdout.split()]


def show_r(groups):
    """Print a row of R, if there is one."""
    said = run_r(R_SCRIPT.replace("RESAMPLES", str(R_PERMUTATIONS)), groups)
    if said is None:
        print("\nthere is no Rscript with the package shapes")
        return
    wall, cpu, goodall, hotelling, james, p = said
    show_row("shapes in R, three and another", R_PERMUTATIONS, (wall, cpu), (wall, cpu), p)
    print(f"\nR: F {goodall:.2f}, Hotelling's as F {hotelling:.2f}, James {james:.1f}")


def show_row(name, number, cold, warm, p):
    cells = f"{cold[0]:.2f} | {cold[1]:.2f} | {warm[0]:.3f} | {warm[1]:.3f}"
    print(f"| {name} | {number:,} | {cells} | {p:.4g} |", flush=True)


def show_group_test(number):
    """Print the rows of all, and whether ours is as fast as it should be."""
    what, groups = skulls()
    print(f"{what}, {len(groups[0])} and {len(groups[1])}\n")
    print("| test | permutations | cold s | CPU | warm s | CPU | p |\n|" + " --- |" * 7)
    cold, warm, found = ours(groups, number)
    show_row("sidebayes, three statistics", number, cold, warm, found.table["p"].max())
    theirs = show_morphomatics(groups, number)
    show_r(groups)
    value = found.table["value"]
    size, axes = groups[0].shape[1:]
    count, free = sum(map(len, groups)), size * axes - axes - 1 - axes * (axes - 1) // 2
    as_f = value["hotelling"] * (count - free - 1) / ((count - 2) * free)
    print(
        f"\nours: F {value['goodall']:.2f}, Hotelling's as F {as_f:.2f}, James {value['james']:.1f}"
    )
    print(f"warm {warm[0]:.3f} s, at most {AIM_SECONDS} s: {warm[0] <= AIM_SECONDS}")
    if theirs is not None:
        print(f"cold {cold[0]:.2f} s, at most {theirs:.2f} s: {cold[0] <= theirs}")


def values_of_r(found, groups):
    """The three statistics of a test as R has them: Hotelling's as F."""
    value = found.table["value"]
    size, axes = groups[0].shape[1:]
    count, free = sum(map(len, groups)), size * axes - axes - 1 - axes * (axes - 1) // 2
    as_f = value["hotelling"] * (count - free - 1) / ((count - 2) * free)
    return value["goodall"], as_f, value["james"]


def show_data(number):
    """Print values and p-values of pairs of groups, with the values of R; needs SIDEBAYES_DATA.

    Where covariances have no full rank both regularise, each in its own way, and R's values are left out.
    """
    print("\n| data | groups | F | R | T² as F | R | James | R | p |\n|" + " --- |" * 9)
    for name, *kinds in PAIRS:
        marks = sb.read_landmarks(Path(os.environ["SIDEBAYES_DATA"]) / f"shape_{name}.csv")
        marks = marks.take(marks.covariates["label"].isin(kinds).to_numpy())
        label = marks.covariates["label"].to_numpy()
        groups = [marks.to_array()[label == kind] for kind in kinds]
        found = sb.group_test(marks, "label", num_permutations=number)
        ours, theirs = values_of_r(found, groups), run_r(R_VALUES, groups) or [np.nan] * 3
        cells = []
        for one, other, ridge in zip(ours, theirs, found.table["ridge"], strict=True):
            cells += [f"{one:.4g}", f"{other:.4g}"] if ridge == 0 else ["ridge", "–"]
        cells.append(", ".join(f"{p:.4f}" for p in found.table["p"]))
        sizes = " and ".join(f"{kind} {len(g)}" for kind, g in zip(kinds, groups, strict=True))
        print(f"| {name} | {sizes} | {' | '.join(cells)} |", flush=True)


def show_level(replicates=2000):
    """Print how often the test rejects at 5 % where groups do not differ, by mode."""
    print("\n| rejections at .05 | 2 coordinates | 5 | 10 |\n| --- | --- | --- | --- |")
    rows = {
        "the data themselves": (None, {}),
        "pooled": ("pooled", {}),
        "refit": ("refit", {}),
        "naive": ("naive", {}),
        "naive, means of groups free": ("naive", {"hierarchical": False}),
    }
    for name, (mode, given) in rows.items():
        number = replicates // 4 if mode == "refit" else replicates
        cells = []
        for axes in (2, 5, 10):
            share = (level_p_values(mode, number, axes=axes, **given) <= 0.05).mean()
            cells.append(f"{share:.3f} ± {np.sqrt(share * (1 - share) / number):.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["test", "level", "data"])
    parser.add_argument("--permutations", type=int, default=10_000)
    given = parser.parse_args()
    if given.only in (None, "test"):
        show_group_test(given.permutations)
    if given.only in (None, "level"):
        show_level()
    if given.only in (None, "data") and "SIDEBAYES_DATA" in os.environ:
        show_data(given.permutations)
