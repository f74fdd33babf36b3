"""The command line."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

__all__ = ["app"]


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


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learning from side information: fit, compare and report.",
)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False)


@app.command("list")
def list_methods(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the methods, or with --json all that their cards say."""
    from sidebayes.zoo import CARDS

    if as_json:
        rows = [
            {
                "name": card.name,
                "title": card.title,
                "engines": list(card.engines),
                "links": card.links,
                "options": list(card.options),
                "reference": card.reference,
                "doi": card.doi,
                "tags": list(card.tags),
            }
            for card in CARDS.values()
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table("method", "what it believes", "links", "engines", "reference")
    for card in CARDS.values():
        engines = ", ".join(card.engines)
        table.add_row(card.name, card.title, card.links, engines, card.reference)
    _console().print(table)


@app.command("fit")
def fit_method(
    method: Annotated[str, typer.Argument(help="A method; see `sidebayes list`.")],
    data: Annotated[str, typer.Argument(help="Name of a data set, or a CSV or Parquet table.")],
    links: Annotated[
        Path | None,
        typer.Option(
            help="Table with columns i, j and weight, or same (true/false, yes/no, must/cannot, 1/0 "
            "or 1/-1)[, confidence]."
        ),
    ] = None,
    num_links: Annotated[
        int | None, typer.Option(help="Simulate so many links from the known classes.")
    ] = None,
    flip_rate: Annotated[
        float | None, typer.Option(help="Share of simulated links that is wrong; by default none.")
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(help="Strength of simulated links; by default it matches --flip-rate."),
    ] = None,
    learn_reliability: Annotated[
        bool, typer.Option("--learn-reliability", help="Learn how often links are wrong (ppc).")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="em, map, laplace, nuts, ... (see 'list').")
    ] = None,
    num_clusters: Annotated[
        int | None, typer.Option(help="By default the number of known classes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of links, starts and draws.")] = 0,
    label: Annotated[
        str | None,
        typer.Option(
            help="Column of the table with the classes; by default 'label', if it is there."
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column of the table to leave out; may be repeated.")
    ] = None,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Give every feature mean 0 and variance 1.")
    ] = False,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the model, e.g. covariance=tied.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="Setting of the engine, e.g. num_samples=500.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Save the fit here (.nc).")
    ] = None,
) -> None:
    """Fit METHOD to DATA."""
    import sidebayes
    from sidebayes.models.blocks.files import check_writable

    from .zoo import find_card, make_engine

    if out is not None:
        check_writable(out)
    _check_flags(links, num_links, flip_rate, weight, learn_reliability)
    card = find_card(method)
    runner = _configured(make_engine(engine, card), _pairs("setting", setting))
    dataset = sidebayes.load_dataset(data, label=label, drop=drop or ())
    dataset = dataset.standardized() if standardize else dataset
    given = _links(dataset, links, num_links, flip_rate or 0.0, weight, seed)
    if given is not None and card.links == "hard" and weight is None and links is None:
        given = given.hardened()
    options = _pairs("option", option)
    if learn_reliability:
        options |= {"reading": "relation", "flip_rate": "learned"}
    found = sidebayes.fit(
        method,
        dataset.x,
        given,
        num_clusters=dataset.num_classes if num_clusters is None else num_clusters,
        engine=runner,
        seed=seed,
        truth=dataset.labels,
        feature_names=dataset.feature_names,
        **options,
    )
    console = _console()
    console.print(repr(found), highlight=False)
    console.print(sidebayes.compare({data: found}))
    if out is not None:
        found.save(out)
        console.print(f"saved {out}")


@app.command("compare")
def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Files that `sidebayes fit --out` wrote.")],
    csv: Annotated[Path | None, typer.Option(help="Also write the table here.")] = None,
) -> None:
    """Compare saved fits in one table."""
    import sidebayes
    from sidebayes.models.blocks.files import check_writable, write_table

    if csv is not None:
        check_writable(csv)
    table = sidebayes.compare(_load_all(runs))
    _console().print(table)
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
    from sidebayes.diagnostics.report import write_report
    from sidebayes.models.blocks.files import check_writable

    check_writable(out)
    _console().print(f"wrote {write_report(_load_all(runs), out)}")


@app.command("demo")
def run_demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for fits and report.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Run four methods on iris and wine with sixty unreliable links, and report."""
    from .demo import demo

    demo(out, console=_console())


def _load_all(runs: list[Path]) -> dict[str, Any]:
    import sidebayes

    names = [run.stem for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    return {name: sidebayes.load(run) for name, run in zip(names, runs, strict=True)}


def _check_flags(
    links: Path | None,
    num_links: int | None,
    flip_rate: float | None,
    weight: float | None,
    learn_reliability: bool,
) -> None:
    """Refuse flags that would do nothing."""
    if links is not None and num_links is not None:
        raise ValueError("both --links and --num-links are given; choose one")
    if num_links is None:
        for flag, value in (("--flip-rate", flip_rate), ("--weight", weight)):
            if value is not None:
                raise ValueError(
                    f"{flag} {value} is of simulated links; give --num-links too, or leave it out (a "
                    "file of links has weights of its own)"
                )
    if learn_reliability and links is None and num_links is None:
        raise ValueError(
            "--learn-reliability needs links; give --links or --num-links, or leave it out"
        )


def _links(
    dataset: Any,
    path: Path | None,
    num_links: int | None,
    flip_rate: float,
    weight: float | None,
    seed: int,
) -> Any:
    import sidebayes

    if path is not None:
        if not path.is_file():
            raise ValueError(f"there is no file {path}; check --links")
        return sidebayes.Links.read(path, len(dataset.x))
    if num_links is None:
        return None
    if dataset.labels is None:
        raise ValueError(
            f"{dataset.name} has no known classes to simulate links from; name their column by --label, "
            "or pass --links FILE"
        )
    if weight is None:
        strength = float(sidebayes.flip_rate_weight(flip_rate)) if flip_rate else float("inf")
        weight = abs(strength)
    return sidebayes.simulate_links(
        dataset.labels, num_links, flip_rate=flip_rate, weight=weight, seed=seed
    )


def _pairs(flag: str, texts: list[str] | None) -> dict[str, Any]:
    """Read name=value; values are JSON where they can be, else text."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"--{flag} {text!r}; expected name=value")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _configured(engine: Any, settings: dict[str, Any]) -> Any:
    known = [field.name for field in fields(engine)]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(f"engine {engine.name!r} has no setting {unknown[0]!r}; it has {known}")
    return replace(engine, **settings)
