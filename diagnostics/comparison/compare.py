"""Fits side by side in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from sidebayes.common.arrays import refuse_unwritable

from ..fitted import AskedFit
from ..names import quoted
from ..trust.modes import lower_modes, same_data
from .headline import headline
from .information import evidence_apart, information
from .left_out import leave_one_out
from .measure import measure
from .rows import row_of

__all__ = ["Comparison", "compare_fits", "named_fits"]

_HEADINGS = {
    "method": "method",
    "engine": "engine",
    "ari": "ARI",
    "nmi": "NMI",
    "accuracy": "acc.",
    "log_joint": "log joint",
    "log_evidence": "log evidence",
    "evidence": "evidence is",
    "bic": "BIC",
    "elpd_loo": "LOO elpd",
    "bad_k": "high k",
    "rhat": "R-hat",
    "ess": "ESS",
    "divergences": "divergent",
    "distance": "distance",
    "shift": "shift",
    "shift_of": "of",
    "trust": "trust",
    "links": "links",
    "kind": "taken as",
    "violated": "violated",
    "flip": "flip",
    "compile_s": "compile s",
    "run_s": "run s",
    "search_s": "search s",
    "other_s": "other s",
    "total_s": "total s",
    "ess_per_s": "ESS / s",
    "approximate": "approximate",
}
_WHOLE = ("divergences", "links", "violated", "ess")
_OUTCOME = ("method", "engine", "ari", "nmi", "accuracy", "links", "kind", "violated", "flip")
_ON_LINKS = ("links", "kind", "violated")
_COST = ("compile_s", "run_s", "search_s", "other_s", "total_s", "ess_per_s", "approximate")
_CAPTIONS = ("What came out", "How sure it is", "What it cost")
_WIDE = 110
"""Characters of a line from which on a table in text is folded into its parts."""
_BEST = {"ari": max, "nmi": max, "accuracy": max}
_SUSPECT = ("differs", "no", "lower mode")


@dataclass(frozen=True, eq=False)
class Comparison:
    """One row per fit; columns that are empty for every fit are left out.

    Attributes
    ----------
    frame : pandas.DataFrame
        Columns:

        - ``method`` and ``engine``;
        - ``ari``, ``nmi`` and ``accuracy`` where the truth is known: of the classes of methods that
          learn some, else of the clusters, over rows whose class the fit was not given;
        - ``log_joint`` of the best point found, with the change-of-variables term for engines that
          work in unconstrained space, so compare it within an engine only;
        - ``log_evidence``, and whether ``evidence`` is an estimate or a lower bound;
        - ``bic`` of modes, see `Fit.bic`;
        - ``elpd_loo``, leaving out one connected set at a time. It is NaN ("do not use") where
          ``bad_k``, the share of sets whose Pareto k is too high for the number of draws, is not
          zero (see `Fit.loo`);
        - worst ``rhat`` and least ``ess`` over label-invariant functionals, and ``divergences``;
        - ``links``, the ``kind`` as which they were used (hard, soft, learned), and those
          ``violated`` by the labels;
        - ``flip``, the posterior mean of a flip rate;
        - ``compile_s``, ``run_s``, ``search_s`` for the mode at which a sampler starts, ``other_s``, and
          ``total_s``, of which these are the parts (see `Fit.seconds`); ``ess_per_s``;
        - ``approximate``.

        Fits of one model to the same data are measured against one of them:

        - ``distance``, the mean absolute difference in the probability that two points share a
          cluster;
        - ``shift``, the largest distance of their posteriors over label-invariant functionals of
          the parameters, in standard deviations (see
          `sidebayes.diagnostics.symmetry.distance.wasserstein`), and ``shift_of``, the functional
          with that distance;
        - ``trust``.
    notes : tuple of str
        Sentences: which fits hold a lower mode than another one of the same posterior, which samplers are
        no reference, and which scores cannot be used or compared.
    data : tuple of int
        Number of the data set of each fit, by rows of `frame`. The best scores are marked within a
        data set only.
    headline : str
        Which run to use, and why, in one sentence.

    Notes
    -----
    The reference of ``trust`` is a sampler of several chains that deserves it; see
    `sidebayes.diagnostics.comparison.reference.choose_reference`. A sampler that started at draws
    of the prior, and so sees modes that others cannot reach, is preferred to one of lower R-hat.
    Other fits "differ" from the reference by a shift of more than a tenth and more than three Monte
    Carlo errors; otherwise they "agree". If the shift is above a tenth, and three Monte Carlo errors
    exceed both it and a quarter of a standard deviation, a fit is "too noisy to say". "no" means
    that the run itself reports that it failed (`Fit.verdict`), and "no reference" that no fit
    deserves to be one. If
    the reference started at a mode, and a sampler that started at the prior differs from it, both
    differ, since one of them may have missed a mode. A mode below that of another engine on the
    same posterior is a "lower mode", unless only a prior that was set from the data prefers the
    other. The reference is only the best available fit: if two samplers that start at the prior
    differ, give them more particles or live points.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    data: tuple[int, ...] = ()
    headline: str = ""

    def __str__(self) -> str:
        """Headline, table as text, folded where it is wide, and the notes below it."""
        texts = self._texts()
        table = texts.rename(columns=_HEADINGS).to_string()
        if len(table.split("\n", 1)[0]) > _WIDE:
            parts = zip(_CAPTIONS, self._parts(), strict=True)
            blocks = [
                f"{caption}\n{texts[columns].rename(columns=_HEADINGS).to_string()}"
                for caption, columns in parts
                if columns
            ]
            table = "\n\n".join(blocks)
        return "\n\n".join(filter(None, (self.headline, table, "\n".join(self.notes))))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from ..trust.notebook import comparison_cell

        return comparison_cell(self)

    def __rich__(self) -> Any:
        """Table for the terminal in three parts: what came out, how sure it is, what it cost."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        texts = self._texts()
        parts: list[Any] = []
        for columns in self._parts():
            table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
            table.add_column("fit", no_wrap=True)
            for name in columns:
                table.add_column(
                    _HEADINGS[name], justify="left" if _is_text(name) else "right", no_wrap=True
                )
            for name, row in zip(texts.index, texts[columns].to_numpy(), strict=True):
                table.add_row(str(name), *row)
            parts += [table, ""] if columns else []
        head: list[Any] = [Text(self.headline, style="bold"), ""] if self.headline else []
        return Group(*head, *parts, *map(Text, self.notes))

    def html(self) -> str:
        """HTML tables of class ``comparison``: results, their uncertainty, and their cost.

        The headline comes first, in a paragraph of class ``headline``, and the cost is folded. Every cell
        carries its heading as ``data-heading``, so that a narrow page can show a row as a list. The notes
        follow as paragraphs of class ``reading``.
        """
        captions = *_CAPTIONS[:-1], ""  # the last is the summary of what is folded
        *tables, cost = map(self._html, captions, self._parts())
        head = f'<p class="headline"><b>{escape(self.headline)}</b></p>' if self.headline else ""
        notes = "".join(f'<p class="reading">{escape(note)}</p>' for note in self.notes)
        folded = f"<details><summary>{_CAPTIONS[-1]}</summary>{cost}</details>" if cost else ""
        return head + "".join(tables) + notes + folded

    def _html(self, caption: str, columns: list[str]) -> str:
        if not columns:
            return ""
        texts = self._texts()
        head = "".join(
            f'<th class="{"text" if _is_text(c) else ""}">{escape(_HEADINGS[c])}</th>'
            for c in columns
        )
        rows = []
        for i, name in enumerate(texts.index):
            cells = "".join(
                f'<td class="{self._style(c, i)}" data-heading="{escape(_HEADINGS[c])}">'
                f"{escape(texts[c].iloc[i])}</td>"
                for c in columns
            )
            rows.append(f"<tr><th>{escape(str(name))}</th>{cells}</tr>")
        return (
            f'<table class="comparison">{caption and f"<caption>{caption}</caption>"}'
            f"<thead><tr><th>fit</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )

    def _parts(self) -> list[list[str]]:
        """Columns that say what came out, how sure it is, what it cost; none on links without any."""
        unlinked = _ON_LINKS if not self.frame["links"].any() else ()
        columns = [c for c in self.frame.columns if c not in unlinked]
        rest = [c for c in columns if c not in _OUTCOME]
        outcome = [c for c in columns if c in _OUTCOME]
        return [outcome, [c for c in rest if c not in _COST], [c for c in rest if c in _COST]]

    def _style(self, column: str, row: int) -> str:
        if column == "trust" and self.frame[column].iloc[row] in _SUSPECT:
            return "text suspect"
        if _is_text(column):
            return "text"
        values = self.frame[column]
        best = column in _BEST and self._is_best(_BEST[column], values, row)
        suspect = {"rhat": values.iloc[row] > 1.01, "divergences": values.iloc[row] > 0}
        return "best" if best else "suspect" if suspect.get(column) else ""

    def _is_best(self, best: Callable, values: pd.Series, row: int) -> bool:
        """Whether a score is the best of several to the same data."""
        rivals = values[np.equal(self.data, self.data[row])].dropna()
        return len(rivals) > 1 and values.iloc[row] == best(rivals)

    def _texts(self) -> pd.DataFrame:
        texts = pd.DataFrame(
            {c: [_text(c, v) for v in self.frame[c]] for c in self.frame.columns},
            index=self.frame.index,
        )
        if "bad_k" in texts:
            texts.loc[self.frame["bad_k"] > 0, "elpd_loo"] = "do not use"
        return texts


def named_fits[F](fits: Mapping[str, F]) -> dict[str, F]:
    """Fits by names that are text.

    Raises
    ------
    ValueError
        If a name is blank, or the same text as another.
    """
    names = [str(name) for name in fits]
    unclear = [name for name in names if not name.strip() or names.count(name) > 1]
    if unclear:
        raise ValueError(
            f"fits has the names {list(fits)}, of which {unclear[0]!r} is blank, or the same text as "
            "another; give each fit a name of its own, by which its row goes"
        )
    refuse_unwritable("names of fits", names)
    return dict(zip(names, fits.values(), strict=True))


def compare_fits(fits: Mapping[str, AskedFit], elsewhere: Sequence[Any] = ()) -> Comparison:
    """Compare fits; see `sidebayes.compare`.

    Parameters
    ----------
    fits : mapping of str to Fit
    elsewhere : sequence of str
        Those of them that are draws without a model.
    """
    fits = named_fits(fits)
    lower, preferred = lower_modes(fits)
    measured, passed_over = measure(fits)
    left_out, said_of_these, by_unit = leave_one_out(fits)
    bic, said_of_bic, bic_by_fit = information(fits)
    rows = {
        name: row_of(fit) | {"bic": bic[name]} | left_out[name] | measured[name]
        for name, fit in fits.items()
    }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    texts = [name for name in frame if _is_text(str(name))]
    frame = frame.fillna(dict.fromkeys(texts, ""))
    frame.loc[[name for name in lower if frame.loc[name, "trust"] != "no"], "trust"] = "lower mode"
    frame = frame[[name for name in _HEADINGS if name in frame]]
    empty = [c for c in frame if frame[c].isna().all() or (frame[c] == "").all()]
    if (frame["bad_k"] > 0).any():  # where it says that the scores are not to be used
        empty = [c for c in empty if c != "elpd_loo"]
    sets = [same_data(fit) for fit in fits.values()]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(sets))}
    notes = [*lower.values(), *preferred, *passed_over, *said_of_these, *said_of_bic]
    notes += evidence_apart(fits)
    notes += [
        f"{quoted(name)} was drawn elsewhere: labels, log densities and evidence need the model, and are "
        "blank; sidebayes.Fit.from_draws(model, data, draws) gives a full fit."
        for name in map(str, elsewhere)
    ]
    for name in map(str, elsewhere):
        if apart := fits[name].tree["fit_info"].attrs["not_compared"]:
            notes.append(f"{quoted(name)} has {apart}: these variables were not compared.")
        if assumed := fits[name].tree["fit_info"].attrs["without_names"]:
            notes.append(
                f"Entries of {quoted(name)} have no names, and were taken in the order {assumed}."
            )
    said = headline(fits, frame, by_unit, bic_by_fit)
    return Comparison(
        frame.drop(columns=empty), tuple(notes), tuple(numbers[key] for key in sets), said
    )


def _is_text(column: str) -> bool:
    return column in ("method", "engine", "kind", "evidence", "approximate", "shift_of", "trust")


def _text(column: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if np.isnan(value):
        return ""
    if column in _WHOLE:
        return f"{value:.0f}"
    if column in (
        "log_joint",
        "log_evidence",
        "bic",
        "elpd_loo",
    ) or column.endswith("_s"):
        return f"{value:.1f}"
    return f"{value:.0%}" if column == "bad_k" else f"{value:.3f}"
