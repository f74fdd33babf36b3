"""The command line."""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from .commands.complete import data_sets, engines, methods

__all__ = ["app"]

_DATA, _SIDE = "Data", "Side information"
"""Panels of the help of `fit`."""


class _Group(TyperGroup):
    """Commands whose expected errors are one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        from sidebayes import FitError, SideBayesWarning

        def show(message: Any, category: type, *_: Any, **__: Any) -> None:
            kind = "note" if issubclass(category, SideBayesWarning) else category.__name__
            print(f"sidebayes: {kind}: {message}", file=sys.stderr)

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                return super().invoke(ctx)
            except (ValueError, TypeError, OSError, ImportError, FitError) as error:
                if os.environ.get("SIDEBAYES_DEBUG"):
                    raise
                line = " ".join(str(error).split())
                print(f"sidebayes: {line or type(error).__name__}", file=sys.stderr)
                raise typer.Exit(2) from error
            except KeyboardInterrupt:  # what still runs in threads is not waited for
                running = sys.modules.get("sidebayes.guides.engines.machine.background")
                if running is not None:
                    running.leave_at_once(130)
                raise


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learning from side information: fit, compare and report.",
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"sidebayes {version('sidebayes')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Learning from side information: fit, compare and report."""


def _console(*, markup: bool = False) -> Console:
    """Console without markup, which would take entries of sites, such as `mean[0]`, for styles."""
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, soft_wrap=False, markup=markup)


@app.command("list")
def list_methods(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the methods and transformers, or with --json all that their cards say."""
    from sidebayes.runs.transformers import TRANSFORMERS
    from sidebayes.runs.zoo import CARDS

    if as_json:
        rows: list[dict[str, object]] = [
            {
                "name": card.name,
                "kind": "method",
                "title": card.title,
                "engines": list(card.engines),
                "links": card.links,
                "options": list(card.options),
                "reference": card.reference,
                "doi": card.doi,
                "data": [
                    {"name": r.name, "kind": r.kind, "dims": r.dims, "required": r.required}
                    for r in card.signature.data
                ],
                "tags": list(card.tags),
            }
            for card in CARDS.values()
        ]
        rows += [
            {"name": c.name, "kind": "transformer", "title": c.title, "reference": c.reference}
            for c in TRANSFORMERS.values()
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table("method", "what it assumes", "links", "engines", "reference")
    for card in CARDS.values():
        engines = ", ".join(card.engines)
        table.add_row(card.name, card.title, card.links, engines, card.reference)
    others = Table("transformer", "what its features are", "reference")
    for one in TRANSFORMERS.values():
        others.add_row(one.name, one.title, one.reference)
    _console().print(table, others)


@app.command("fit")
def fit_method(
    method: Annotated[
        str, typer.Argument(help="A method; see `sidebayes list`.", autocompletion=methods)
    ],
    data: Annotated[
        str,
        typer.Argument(
            help="Name of a data set, or a CSV or Parquet table.", autocompletion=data_sets
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(
            help="Column of the classes that the fit is scored by; by default 'label', if it is there.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Column to leave out; may be repeated.", rich_help_panel=_DATA),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns that are one of the method's data, e.g. y=height or inputs=age,time; may be "
            "repeated. The features are all columns that no flag names.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Column with the subject of each row.", rich_help_panel=_DATA),
    ] = None,
    formula: Annotated[
        list[str] | None,
        typer.Option(
            help="Formula of a mixed model, 'y ~ time + (time | subject)'; repeated for several outputs.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    survival: Annotated[
        str | None,
        typer.Option(
            help="Survival part of a joint model, 'Surv(time, event) ~ age', beside --formula.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    subjects: Annotated[
        Path | None,
        typer.Option(
            help="Table of --survival with one row per subject; by default the first row of each.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    standardize: Annotated[
        bool,
        typer.Option(
            "--standardize",
            help="Give every feature mean 0 and variance 1.",
            rich_help_panel=_DATA,
        ),
    ] = False,
    links: Annotated[
        Path | None,
        typer.Option(
            help="Table with columns i, j (rows from 0 on, or subjects in sorted order) and weight, or same "
            "(true/false, yes/no, must/cannot, 1/0 or 1/-1)[, confidence].",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    num_links: Annotated[
        int | None,
        typer.Option(
            help="Number of links to simulate from the known classes.", rich_help_panel=_SIDE
        ),
    ] = None,
    flip_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of simulated links that are wrong; 0 by default.", rich_help_panel=_SIDE
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            help="Strength of simulated links; by default it matches --flip-rate.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    learn_reliability: Annotated[
        bool,
        typer.Option(
            "--learn-reliability",
            help="Learn how often links are wrong.",
            rich_help_panel=_SIDE,
        ),
    ] = False,
    known: Annotated[
        str | None,
        typer.Option(
            help="Column with the classes of some rows, blank or -1 elsewhere, to learn from.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    num_known: Annotated[
        int | None,
        typer.Option(
            help="Number of rows, drawn at random, whose class in --label is learned from.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="Data set of another domain, with its classes in the column of --label, or else of --known; "
            "DATA need not have the column of --label then.",
            autocompletion=data_sets,
            rich_help_panel=_SIDE,
        ),
    ] = None,
    num_clusters: Annotated[
        int | None, typer.Option(help="By default the number of known classes.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="em, map, laplace, nuts, ... (see 'list').", autocompletion=engines),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the method, e.g. covariance=tied, or shared=covariance,noise for several values."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="Setting of the engine, e.g. num_samples=500.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of links, starts and draws.")] = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Keep the state of the run here; the same command goes on from there."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Save the fit here (.nc).")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Write clusters, classes and their probabilities here (.csv, .parquet)."),
    ] = None,
) -> None:
    """Fit METHOD to DATA."""
    asked = {name: value for name, value in locals().items() if name not in ("out", "labels")}
    import sidebayes

    from .commands.fitting import (
        Asked,
        fit_asked,
        need_labels,
        refuse_overwriting,
        write_labels,
    )
    from .commands.words import compared, in_flags
    from .common.files import FIT, check_replaceable, check_writable

    read = {"DATA": data, "--source": source, "--subjects": subjects, "--links": links}
    written = {"--checkpoint": checkpoint, "--out": out, "--labels": labels}
    refuse_overwriting(read, written)
    if out is not None:
        check_writable(out, FIT)
    if labels is not None:
        need_labels(labels, method)
        check_replaceable(labels, ["cluster", "cluster_0"])
    for name in ("drop", "columns", "formula", "option", "setting"):
        asked[name] = asked[name] or ()
    outcome = fit_asked(Asked(**asked))
    console = _console()
    console.print(in_flags(repr(outcome.fit), outcome.flags), highlight=False)
    console.print(compared(sidebayes.compare({data: outcome.fit}), outcome.flags))
    if "fixed" in outcome.fit.run.signature:
        console.print(outcome.fit.coefficients().to_string(), highlight=False)
    if "event" in outcome.fit.run.signature:
        of_survival = r"^(association|log_hazard_ratios)\b"
        table = outcome.fit.summary().filter(regex=of_survival, axis=0)
        console.print(f"\n{table.to_string()}", highlight=False)
    if out is not None:
        outcome.fit.save(out)
        console.print(f"saved {out}")
    if labels is not None:
        write_labels(labels, outcome)
        console.print(f"wrote {labels}")


@app.command("compare")
def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Files that `sidebayes fit --out` wrote.")],
    csv: Annotated[Path | None, typer.Option(help="Also write the table here.")] = None,
) -> None:
    """Compare saved fits in one table."""
    import sidebayes

    from .commands.fitting import refuse_overwriting
    from .commands.words import compared
    from .common.files import check_replaceable, write_table

    if csv is not None:
        refuse_overwriting(dict(zip(map(str, runs), runs, strict=True)), {"--csv": csv})
        check_replaceable(csv, ["fit"])
    table = sidebayes.compare(_load_all(runs))
    _console().print(compared(table, {}))
    if csv is not None:
        write_table(csv, table.frame, index_label="fit")


@app.command("report")
def report_runs(
    runs: Annotated[list[Path], typer.Argument(help="Files that `sidebayes fit --out` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one self-contained page about saved fits."""
    from sidebayes.diagnostics.pictures.report import write_report

    from .commands.fitting import refuse_overwriting
    from .common.files import PAGE, check_writable

    refuse_overwriting(dict(zip(map(str, runs), runs, strict=True)), {"--out": out})
    check_writable(out, PAGE)
    _console().print(f"wrote {write_report(_load_all(runs), out)}")


@app.command("doctor")
def run_doctor() -> None:
    """Show versions, devices, the cache and optional extras, and run a small fit."""
    from .commands.doctor import examine

    console, is_well = _console(markup=True), True
    for finding in examine():
        mark = "[green]ok[/]" if finding.is_well else "[red]bad[/]"
        said = f"{mark:>14} {finding.subject}: {escape(finding.found)}"
        console.print(said, highlight=False)
        is_well &= finding.is_well
    if not is_well:
        raise typer.Exit(1)


@app.command("demo")
def run_demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for fits and report.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Fit crabs without links and with links on sex or species, a tenth of them wrong, and report."""
    from .demo import demo

    demo(out, console=_console(markup=True))


def _load_all(runs: list[Path]) -> dict[str, Any]:
    import sidebayes

    names = [run.stem for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    return {name: sidebayes.load(run) for name, run in zip(names, runs, strict=True)}
