"""What the flags of `sidebayes fit` say, and which of them go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidebayes.models.blocks.classes.source_mixture import SourceMixture

from .given import Arguments
from .side import check_link_flags

__all__ = ["Asked", "check_asked"]


@dataclass(frozen=True)
class Asked:
    """What the flags of `sidebayes fit` say; see its help."""

    method: str
    data: str
    label: str | None
    drop: Sequence[str]
    columns: Sequence[str]
    group: str | None
    formula: Sequence[str]
    survival: str | None
    subjects: Path | None
    standardize: bool
    links: Path | None
    num_links: int | None
    flip_rate: float | None
    weight: float | None
    learn_reliability: bool
    known: str | None
    num_known: int | None
    source: str | None
    num_clusters: int | None
    engine: str | None
    option: Sequence[str]
    setting: Sequence[str]
    seed: int
    checkpoint: Path | None


def check_asked(
    asked: Asked, to: Arguments, options: Mapping[str, Any], settings: Sequence[str]
) -> None:
    """Refuse flags that contradict each other, or for which card or engine have no use."""
    if asked.checkpoint is not None and to.card.routine_path:
        raise ValueError(
            f"{to.card.name} is fitted in several runs, which share no checkpoint; leave --checkpoint out"
        )
    check_link_flags(asked.links, asked.num_links, asked.flip_rate, asked.weight)
    has_links = asked.links is not None or asked.num_links is not None
    if has_links:
        to.role("links", "--links" if asked.links is not None else "--num-links")
    if asked.learn_reliability and not has_links:
        raise ValueError(
            "--learn-reliability needs links; give --links or --num-links, or leave it out"
        )
    if asked.known is not None and asked.num_known is not None:
        raise ValueError("both --known and --num-known are given; choose one")
    if asked.known is not None or asked.num_known is not None:
        to.role("labels", "--known" if asked.known is not None else "--num-known")
    if asked.source is not None and to.option_of(SourceMixture) is None:
        raise ValueError(f"{to.card.name} has no use for --source; leave it out")
    by_formula = (("--survival", asked.survival), ("--subjects", asked.subjects))
    for flag, value in by_formula:
        if value is not None and not asked.formula:
            raise ValueError(f"{flag} needs --formula beside it")
    if asked.subjects is not None and asked.survival is None:
        raise ValueError("--subjects is the table of --survival; give that too, or leave it out")
    if asked.formula:
        others: dict[str, Any] = {
            "--group": asked.group,
            "--columns": asked.columns,
            "--standardize": asked.standardize,
        }
        for flag, given in others.items():
            if given:
                raise ValueError(
                    f"{flag} beside --formula: the formula names the columns; leave out {flag}"
                )
    if asked.num_clusters is not None and "num_clusters" not in to.signature.options:
        raise ValueError(f"{to.card.name} has no use for --num-clusters; leave it out")
    for name in options:
        if name == "num_clusters" and asked.num_clusters is not None:
            raise ValueError("--num-clusters and --option num_clusters=... are one; give it once")
        if name in settings and name not in to.signature.options:
            raise ValueError(
                f"--option {name}=...: {name} is a setting of the engine; give --setting {name}=..."
            )
        if name in to.signature:
            raise ValueError(
                f"--option {name}=...: {name} is data of {to.card.name}; see `sidebayes fit --help` "
                "under Data and Side information"
            )
