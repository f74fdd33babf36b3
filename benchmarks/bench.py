"""Every figure of speed that has a limit, each measured in a process of its own.

Run: make bench, or python -m benchmarks.bench [--only BEGINNING,...]
Prints a table, and writes docs/bench.json with the machine and the versions. From that file
`python -m benchmarks.bench --write` makes the table of docs/benchmarks.md and the picture of growth. Tasks
that `--only` leaves out keep their figures, if these are of the same machine and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax

from . import em_speed, growth, isomap, label_engine, latency

ROOT = Path(__file__).resolve().parents[1]
FILE, PAGE, PICTURE = (
    ROOT / "docs/bench.json",
    ROOT / "docs/benchmarks.md",
    ROOT / "docs/growth.png",
)
LIBRARIES = "sidebayes", "jax", "numpyro", "arviz", "scikit-learn", "numpy"
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
TABLE = re.compile(r"(<!-- bench -->\n).*?(<!-- end of bench -->)", re.DOTALL)


@dataclass(frozen=True)
class Limit:
    """A figure of a task, and what it is to be."""

    title: str
    task: str
    figure: str
    value: float
    sense: str = "at most"
    unit: str = "times"

    def met(self, figure: float) -> bool:
        """Whether a figure keeps the limit."""
        return figure <= self.value if self.sense == "at most" else figure >= self.value


def first_fit(**given: object) -> dict[str, float]:
    """Seconds of a fit beyond imports, without and with the programs that it left on disk."""
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (latency.elsewhere("one_fit", folder, **given) for _ in range(2))
    return {"cold": cold["wall"], "warm": warm["wall"]}


def in_double(function: Callable[[], dict]) -> dict[str, float]:
    """Figures that a function finds in double precision."""
    with jax.enable_x64(True):
        return function()


TASKS: dict[str, Callable[[], dict]] = {
    "EM float64": partial(em_speed.measured, "float64"),
    "EM float32": partial(em_speed.measured, "float32"),
    "links exact": partial(in_double, label_engine.exact_e_step),
    "links approximate": partial(in_double, label_engine.approximate_e_step),
    "links on the host": lambda: label_engine.host_compilation(1_000_000, 2)[1],
    "isomap": isomap.show_insertion,
    "import": latency.importing,
    "first gmm": partial(first_fit, method="gmm"),
    "first ppc": partial(first_fit, links=60),
    "first nuts": partial(first_fit, method="gmm", engine="nuts"),
    "answers": latency.first_answers,
} | {f"growth {name}": partial(growth.measured, name) for name in growth.ROWS}
EM = "scikit-learn's time of an EM iteration (500,000 × 16, 10 full covariances, {}) in ours"
LIMITS = (
    Limit(EM.format("float64"), "EM float64", "fit", 20, "at least"),
    Limit(EM.format("float32"), "EM float32", "fit", 20, "at least"),
    Limit("the pass in time of the matrix product, float64", "EM float64", "product", 2.5),
    Limit("the pass in time of the matrix product, float32", "EM float32", "product", 2.5),
    Limit(
        "E-step of a million points, 300,000 links, against none", "links exact", "one_pass", 1.5
    ),
    Limit("a sweep of mean field, a million links", "links approximate", "mean_field", 3),
    Limit("a round of belief propagation", "links approximate", "belief_propagation", 3),
    Limit("compiling a million links", "links on the host", "seconds", 1, unit="s"),
    Limit("the same, memory", "links on the host", "gib", 1, unit="GiB"),
    Limit("a map of 2,000 rows from scratch in insertions", "isomap", "ratio", 20, "at least"),
    Limit("import", "import", "seconds", 0.1, unit="s"),
    Limit("first fit of gmm by EM", "first gmm", "cold", 1.2, unit="s"),
    Limit("the same with its programs on disk", "first gmm", "warm", 0.3, unit="s"),
    Limit("first fit of ppc by EM, 60 links", "first ppc", "cold", 2, unit="s"),
    Limit("the same with its programs on disk", "first ppc", "warm", 0.3, unit="s"),
    Limit("first fit of gmm by NUTS, 50 + 50 draws", "first nuts", "cold", 6, unit="s"),
    Limit("first `covariance` of ppc", "answers", "covariance", 1, unit="s"),
    Limit("first `predictive`", "answers", "predictive", 1, unit="s"),
    Limit("first `plot`", "answers", "plot", 1, unit="s"),
    *(
        Limit(f"growth of a step, {name}: exponent", f"growth {name}", "exponent", limit, unit="")
        for name, (*_, limit) in growth.ROWS.items()
    ),
)


def measure(name: str) -> dict:
    """Figures of a task by a new process, its peak memory and its seconds."""
    command = [sys.executable, "-m", "benchmarks.bench", "--task", name]
    surroundings = os.environ | {"SIDEBAYES_CACHE": "off", "MPLBACKEND": "Agg"} | HUGE_PAGES
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
    print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def task(name: str) -> None:
    """Run a task in this process, and print its figures as JSON."""
    figures = TASKS[name]()
    peak = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(json.dumps(figures | {"peak_gib": peak / 2**20, "date": str(date.today())}))


def machine() -> dict[str, str | int]:
    """Processor, cores, system and versions."""
    processor = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.is_file():
        processor = re.search(r"model name\s*: (.*)", described.read_text())[1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {name: version(name) for name in LIBRARIES}
    return {"processor": processor, "cores": cores, "system": platform.system()} | versions


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


def table(found: dict) -> str:
    """Every limit beside its figure, in Markdown."""
    where = found["machine"]
    versions = ", ".join(f"{name} {where[name]}" for name in LIBRARIES)
    lines = [f"{where['processor']}, {where['cores']} cores; {versions}.", ""]
    lines += [
        "| figure | measured | limit | | GiB at most | on |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for limit in LIMITS:
        figures = found["tasks"].get(limit.task)
        if figures is None:
            continue
        value = figures[limit.figure]
        cells = limit.title, f"{number(value)} {limit.unit}".strip()
        cells += f"{limit.sense} {number(limit.value)}", "met" if limit.met(value) else "**missed**"
        lines.append(f"| {' | '.join(cells)} | {figures['peak_gib']:.1f} | {figures['date']} |")
    return "\n".join(lines) + "\n"


def draw(found: dict) -> None:
    """Seconds of a step against sizes, on logarithmic axes."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for name in growth.ROWS:
        figures = found["tasks"].get(f"growth {name}")
        if figures:
            axis = right if name.startswith("gradient") else left
            sizes = figures["sizes"]
            label = f"{name.partition(' ')[2]}: {figures['exponent']:.2f}"
            axis.loglog([size / sizes[0] for size in sizes], figures["seconds"], "o-", label=label)
    for axis, title in ((left, "step of EM"), (right, "log density and its slope")):
        axis.set(title=title, xlabel="size, in units of the smallest")
        axis.set_xticks([1, 2, 4, 8], labels=["1", "2", "4", "8"])
        axis.minorticks_off()
        axis.legend(title="what grows: exponent", frameon=False)
    left.set_ylabel("seconds of processor")
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="beginnings of tasks, comma-separated")
    parser.add_argument("--write", action="store_true", help="write the docs from the file")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        task(options.task)
        return
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    if options.write:
        if not found:
            parser.error(f"there is no {FILE.name} to write from; measure first, without --write")
        page = PAGE.read_text()
        PAGE.write_text(TABLE.sub(lambda parts: parts[1] + table(found) + parts[2], page))
        draw(found)
        return
    if found.get("machine") != machine():
        found = {"machine": machine(), "tasks": {}}
    names = [name for name in TASKS if name.startswith(tuple(options.only.split(",")))]
    if not names:
        parser.error(f"--only {options.only}: no task begins so; there are {', '.join(TASKS)}")
    for name in names:
        found["tasks"][name] = measure(name)
        FILE.write_text(json.dumps(found, indent=1) + "\n")  # a task that fails later loses nothing
    print(table(found))


if __name__ == "__main__":
    main()
