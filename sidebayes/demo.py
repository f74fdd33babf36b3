"""The main job: four methods, four engines, two real data sets, sixty unreliable links."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Job", "demo", "jobs"]

NUM_PAIRS = 60
FLIP_RATE = 0.1
_SEED = 0


@dataclass(frozen=True)
class Job:
    """One fit of the demonstration."""

    data: str
    variant: str
    engine: str

    @property
    def name(self) -> str:
        """Name in tables and of the file."""
        return f"{self.data} {self.variant} {self.engine}"

    @property
    def file(self) -> str:
        """File in the output folder."""
        return self.name.replace(" ", "-") + ".nc"


VARIANTS = ("gmm", "hard ppc", "soft ppc", "learned ppc")

_SWEEPS = 5
"""Sweeps of Gibbs a draw."""

_SAMPLERS = ("nuts", "gibbs")


def jobs() -> list[Job]:
    """Every fit; those that others start from come first, then those that take longest."""
    # NUTS beside Gibbs on one model, each to be judged by the other
    variants = {("iris", "nuts"): ("gmm",)}
    runs = ("iris", "em"), ("iris", "gibbs"), ("iris", "nuts"), ("iris", "map"), ("wine", "em")
    return [
        Job(data, variant, engine)
        for data, engine in runs
        for variant in variants.get((data, engine), VARIANTS)
    ]


def demo(
    folder: str | Path = "demo",
    *,
    console: Console | None = None,
    num_workers: int | None = None,
    num_draws: int = 400,
) -> Path:
    """Fit everything, print the comparison and write the report.

    Parameters
    ----------
    folder : path
        Receives one NetCDF file per fit, and ``report.html``.
    console : rich.console.Console, optional
    num_workers : int, optional
        Processes; by default one per core, four at most.
    num_draws : int
        Draws of each of four chains by Gibbs sampling, half as many as by NUTS.

    Returns
    -------
    Path
        The report.
    """
    console = console or Console()
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder for the fits and the report")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    console.print(
        f"[bold]sidebayes demo[/]: iris and standardised wine, {NUM_PAIRS} random pairs each, "
        f"{round(FLIP_RATE * NUM_PAIRS)} of them stated wrongly"
    )
    refused: dict[str, str] = {}
    fits: dict[str, Any] = {}
    workers = num_workers or min(os.cpu_count() or 1, 4)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        with _progress(console) as progress:
            task = progress.add_task("starting", total=len(jobs()))
            for job, error in _run_all(jobs(), folder, pool, workers, num_draws):
                if error is None:
                    fits[job.name] = _load(folder / job.file)
                else:
                    refused[job.name] = error
                progress.update(task, advance=1, description=job.name)
        fits = {job.name: fits[job.name] for job in jobs() if job.name in fits}
        report = _tell(fits, folder / "report.html", refused, console, pool)
    console.print(
        f"wrote {report} and {len(jobs()) - len(refused)} fits in "
        f"{time.perf_counter() - began:.0f} s; read one with sidebayes.load(path)"
    )
    return report


def _load(path: Path) -> Any:
    import sidebayes  # not before the workers have started: it takes a second or two

    return sidebayes.load(path)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _run_all(
    todo: list[Job], folder: Path, pool: Executor, workers: int, num_draws: int
) -> Iterator[tuple[Job, str | None]]:
    """Run jobs in worker processes, each after those that it waits for."""
    pending = list(todo)
    outcome: dict[Job, str | None] = {}
    running: dict[Future, Job] = {}
    while pending or running:
        ready = [job for job in pending if _awaited(job) <= outcome.keys()]
        for job in ready[: workers - len(running)]:
            pending.remove(job)
            running[pool.submit(run_job, job, folder, num_draws)] = job
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            job = running.pop(future)
            outcome[job] = future.result()
            yield job, outcome[job]
        for job in [j for j in pending if outcome.get(_start(j))]:
            pending.remove(job)  # what it would start from was refused
            yield job, outcome[_start(job)]


def _start(job: Job) -> Job:
    """Fit whose parameters this one starts from; EM starts by itself."""
    return replace(job, engine="em") if job.engine in _SAMPLERS else job


def _awaited(job: Job) -> set[Job]:
    """Fits that must be over before this one starts."""
    # soft links run the programs that were compiled for hard ones
    same = {replace(job, variant="hard ppc")} if job.variant == "soft ppc" else set()
    return ({_start(job)} | same) - {job}


def run_job(job: Job, folder: Path, num_draws: int) -> str | None:
    """Fit, save; return the reason where the fit is refused."""
    import sidebayes

    data = sidebayes.load_dataset(job.data)
    data = data.standardized() if job.data == "wine" else data
    assert data.labels is not None
    links = sidebayes.simulate_links(data.labels, NUM_PAIRS, flip_rate=FLIP_RATE, seed=_SEED)
    soft = links.with_strength(sidebayes.flip_rate_weight(FLIP_RATE))
    variants: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "gmm": ("gmm", None, {}),
        "hard ppc": ("ppc", links, {}),
        "soft ppc": ("ppc", soft, {}),
        "learned ppc": ("ppc", soft, {"reading": "relation", "flip_rate": "learned"}),
    }
    method, given, options = variants[job.variant]
    # under the default prior three clusters are one too many for iris without links
    prior = sidebayes.GaussianPrior.by_evidence(data.x, data.num_classes)
    engine: Any = {
        "em": sidebayes.EM(num_restarts=10),
        "map": sidebayes.MAP(num_restarts=4),
        "nuts": sidebayes.NUTS(
            num_warmup=num_draws * 5 // 4, num_samples=2 * num_draws, num_chains=4
        ),
        "gibbs": sidebayes.BlockedGibbs(
            num_warmup=20, num_samples=num_draws, num_chains=4, thinning=_SWEEPS
        ),
    }[job.engine]
    try:
        init = None
        if job.engine in _SAMPLERS:
            init = sidebayes.load(folder / _start(job).file)
        found = sidebayes.fit(
            method,
            data.x,
            given,
            num_clusters=data.num_classes,
            prior=prior,
            engine=engine,
            init=init,
            truth=data.labels,
            feature_names=data.feature_names,
            progress=False,
            **options,
        )
    except (ValueError, sidebayes.FitError) as error:
        return str(error)
    found.save(folder / job.file)
    return None


def _tell(
    fits: dict[str, Any],
    path: Path,
    refused: dict[str, str],
    console: Console,
    pool: Executor,
) -> Path:
    """Print the comparison, what the numbers say, and write the report."""
    import sidebayes
    from sidebayes.diagnostics.doubts import doubts
    from sidebayes.diagnostics.report import write_report

    # pictures are drawn in other processes while this one compares
    report = write_report(
        fits, path, title="sidebayes demo: iris and wine", notes=refused, executor=pool
    )
    console.print(sidebayes.compare(fits))
    for name, why in refused.items():
        console.print(f"[red]{name} was refused[/]: {why}")
    for name, why in doubts(fits).items():
        console.print(f"[yellow]{name}[/]: {why}")
    for name in ("iris", "wine"):
        learned = fits.get(f"{name} learned ppc em")
        if learned is None:
            continue
        truth = sidebayes.load_dataset(name).labels
        assert truth is not None
        links = learned.links
        agree = truth[links.pairs[:, 0]] == truth[links.pairs[:, 1]]
        console.print(
            f"{name}: {np.sum(links.same != agree)} of {len(links)} links are wrong; learned flip "
            f"rate {float(learned.params['flip_rate']):.3f} (truth {FLIP_RATE:.3f})"
        )
    return report
