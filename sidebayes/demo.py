"""The main job: links decide which of two groupings of the same crabs a mixture finds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from sidebayes.results.fit import Fit

__all__ = ["Job", "demo", "jobs"]

NUM_LINKS = {"sex": 200, "species": 60}
"""Links about each question."""

FLIP_RATE = 0.1
"""Share of the links that are stated wrongly."""

_SWEEPS = 2
"""Sweeps of Gibbs sampling per draw."""

_CLEAR = 0.5
"""Adjusted Rand index from which on clusters are said to be a known grouping."""


@dataclass(frozen=True)
class Job:
    """One fit of the demonstration.

    Attributes
    ----------
    question : {"sex", "species"}
        Classes that the links are about, and that the fit is scored by.
    links : {"no", "hard", "soft", "learned"}
        How links are taken.
    engine : str
    """

    question: str
    links: str
    engine: str = "em"

    @property
    def name(self) -> str:
        """Name in tables and of the file."""
        what = f"{self.question}, {self.links} links" if self.links != "no" else "no links"
        return what if self.engine == "em" else f"{what}, {self.engine}"

    @property
    def file(self) -> str:
        """File in the output folder."""
        return self.name.replace(",", "").replace(" ", "-") + ".nc"


PLAIN, HARD, SOFT, LEARNED = (Job("sex", links) for links in ("no", "hard", "soft", "learned"))
OTHER, FORCED = (Job("species", links) for links in ("soft", "hard"))
GIBBS, NUTS = (replace(LEARNED, engine=engine) for engine in ("gibbs", "nuts"))


def jobs() -> list[Job]:
    """Every fit, in the order of the story."""
    return [PLAIN, SOFT, LEARNED, HARD, OTHER, FORCED, GIBBS, NUTS]


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
        Draws of each of four chains by Gibbs sampling; NUTS makes a quarter more.

    Returns
    -------
    Path
        The report.
    """
    console = console or Console()
    folder = Path(folder)
    if file := next((one for one in (folder, *folder.parents) if one.is_file()), None):
        raise ValueError(f"{file} is a file; name a folder for the fits and the report")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    told = " or ".join(f"{number} on {question}" for question, number in NUM_LINKS.items())
    console.print(
        "[bold]sidebayes demo[/]: which groups do the measurements of 200 crabs fall into? Links between "
        f"pairs of them say which, {told}; one in {1 / FLIP_RATE:.0f} is wrong."
    )
    refused: dict[str, str] = {}
    fits: dict[str, Fit] = {}
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
    """Run jobs in worker processes: first what others start from, then what takes longest."""
    pending = sorted(todo, key=[SOFT, LEARNED, NUTS, GIBBS, OTHER, FORCED, HARD, PLAIN].index)
    outcome: dict[Job, str | None] = {}
    running: dict[Future, Job] = {}
    while pending or running:
        ready = [job for job in pending if {_start(job)} - {job} <= outcome.keys()]
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
    """Fit whose parameters this one starts from; EM finds starts by itself."""
    return job if job.engine == "em" else SOFT


def run_job(job: Job, folder: Path, num_draws: int) -> str | None:
    """Fit, save; return the reason where the fit is refused."""
    import sidebayes

    data = sidebayes.load_dataset("crabs", label=job.question)
    assert data.labels is not None
    weight = float(sidebayes.flip_rate_weight(FLIP_RATE))
    links = sidebayes.simulate_links(
        data.labels, NUM_LINKS[job.question], flip_rate=FLIP_RATE, weight=weight
    )
    stated: dict[str, Any] = {"links": links, "reading": "relation"}
    method, given = {
        "no": ("gmm", {}),
        "hard": ("ppc", stated | {"links": links.with_strength(np.inf)}),
        "soft": ("ppc", stated),
        "learned": ("ppc", stated | {"flip_rate": "learned"}),
    }[job.links]
    engine: Any = {
        "em": sidebayes.EM(num_restarts=10),
        "nuts": sidebayes.NUTS(
            num_warmup=num_draws * 3 // 4,
            num_samples=num_draws * 5 // 4,
            num_chains=4,
            dense_mass=True,
        ),
        "gibbs": sidebayes.BlockedGibbs(
            num_warmup=20, num_samples=num_draws, num_chains=4, thinning=_SWEEPS
        ),
    }[job.engine]
    try:
        found = sidebayes.fit(
            method,
            data.x,
            num_clusters=2,
            covariance="tied",
            engine=engine,
            init=_init(job, folder),
            truth=data.labels,
            feature_names=data.feature_names,
            progress=False,
            **given,
        )
    except (ValueError, sidebayes.FitError) as error:
        return str(error)
    found.save(folder / job.file)
    return None


def _init(job: Job, folder: Path) -> dict[str, Any] | None:
    """Parameters to start from, None where EM finds starts by itself."""
    if _start(job) == job:
        return None
    return _load(folder / _start(job).file).params | {"flip_rate": FLIP_RATE}


def _tell(
    fits: dict[str, Fit],
    path: Path,
    refused: dict[str, str],
    console: Console,
    pool: Executor,
) -> Path:
    """Print the comparison, what the numbers say, and write the report."""
    import sidebayes
    from sidebayes.diagnostics.comparison.doubts import doubts
    from sidebayes.diagnostics.pictures.report import write_report

    story = list(_story(fits, refused))
    # pictures are drawn in other processes while this one compares
    report = write_report(
        fits,
        path,
        title="sidebayes demo: 200 crabs, by sex or by species",
        story=story,
        notes=refused,
        executor=pool,
    )
    comparison = sidebayes.compare(fits)
    console.print(comparison, markup=False)
    for name, why in doubts(fits, comparison).items():
        console.print(f"[yellow]{name}[/]: {escape(why)}")
    for name in refused.keys() - {HARD.name, FORCED.name}:
        console.print(f"[red]{name} was refused[/]: {escape(refused[name])}")
    for sentence in story:
        console.print(f"• {sentence}", highlight=False, markup=False)
    return report


def _story(fits: dict[str, Fit], refused: dict[str, str]) -> Iterator[str]:
    """What the fits show, as far as there are any."""
    if {PLAIN.name, LEARNED.name} <= fits.keys():
        number = NUM_LINKS["sex"]
        yield (
            f"Without links the clusters are {_groups(fits[PLAIN.name])}; with {number} links on sex, "
            f"{_wrong(fits[LEARNED.name]).sum()} of them wrong, they are {_groups(fits[LEARNED.name])}: the "
            "same measurements, the same model, adjusted Rand indices in brackets."
        )
    yield from _forced(fits, refused)
    if LEARNED.name in fits:
        yield from _doubtful(fits[LEARNED.name])
    if GIBBS.name in fits:
        yield _pairs(fits[GIBBS.name])


def _forced(fits: dict[str, Fit], refused: dict[str, str]) -> Iterator[str]:
    """What hard links do where some are wrong."""
    for job, soft in ((HARD, SOFT), (FORCED, OTHER)):
        links = f"{NUM_LINKS[job.question]} hard links on {job.question}"
        if job.name in refused:
            yield f"{links} are refused: {refused[job.name]}."
        elif {job.name, soft.name} <= fits.keys():
            yield (
                f"{links} are all kept, the wrong ones too: the clusters are {_groups(fits[job.name])}; "
                f"where the same links are soft, they are {_groups(fits[soft.name])}."
            )


def _groups(fit: Fit) -> str:
    """What the clusters are, with their adjusted Rand indices."""
    import sidebayes
    from sidebayes.diagnostics.trust.scores import score_labels

    index = {}
    for question, name in (("sex", "the sexes"), ("species", "the species")):
        truth = sidebayes.load_dataset("crabs", label=question).labels
        assert truth is not None
        score = score_labels(truth, fit.labels())["ari"]
        index[name] = (score, f"{name} ({score:.3f})".replace("-", "−"))
    best, text = max(index.values())
    return text if best > _CLEAR else "neither " + " nor ".join(text for _, text in index.values())


def _wrong(fit: Fit) -> np.ndarray:
    """Which links the known classes contradict."""
    links, truth = fit.links, fit.tree["observed_data"]["truth"].to_numpy()
    return links.same != (truth[links.pairs[:, 0]] == truth[links.pairs[:, 1]])


def _doubtful(fit: Fit) -> Iterator[str]:
    """What is learned of the links, beside what is wrong with them."""
    from sidebayes.diagnostics.trust.findings import wrong_links

    false = _wrong(fit)
    yield (
        f"The flip rate learned is {float(fit.params['flip_rate']):.3f}; {false.sum()} of "
        f"{len(false)} links are wrong ({false.mean():.3f})."
    )
    wrong = wrong_links(fit)
    if wrong is not None:
        yield (
            f"suspect_links marks {len(wrong)} links as probably wrong; "
            f"{false[wrong.index].sum()} of them are."
        )


def _pairs(fit: Fit) -> str:
    """How certain the draws are about pairs of crabs that no chain of links joins."""
    from sidebayes.models.blocks.side_information.hard_links import connected_sets

    number = len(fit.labels())
    pairs = np.column_stack(np.triu_indices(number, 1))
    pairs = pairs[np.not_equal(*connected_sets(fit.links.pairs, number)[1][pairs.T])]
    same = fit.same_cluster(pairs)
    least = np.abs(same - 0.5).argmin()
    one, other = pairs[least]
    return (
        "Pairs of crabs that links do not join are more or less sure: "
        f"{np.mean(np.abs(same - 0.5) > 0.45):.0%} of them share a cluster with a probability "
        "(same_cluster) below .05 or above .95; least sure are crabs "
        f"{one} and {other}, with {same[least]:.2f}."
    )
