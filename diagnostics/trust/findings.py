"""Findings of fits, in one sentence each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..fitted import AskedFit, Fitted
from ..names import in_a_row
from .estimates import interval, number
from .modes import same_data
from .scores import scores_of

__all__ = ["agreement", "finding", "lead_of", "wrong_links"]

_MOST_NAMED = 3
"""Maximum number of coefficients or parameters that a sentence names."""

_MOST_SIZES = 6
"""Maximum number of clusters whose sizes a sentence gives."""

_SAME = 0.0005
"""Difference between adjusted Rand indices that three decimals do not show."""


def finding(fit: AskedFit, wrong: pd.DataFrame | None, tables: Mapping[str, pd.DataFrame]) -> str:
    """Say what a fit found: its clusters and doubtful links, its coefficients, or its first parameters.

    Parameters
    ----------
    fit : Fit
    wrong : DataFrame or None
        Its `wrong_links`.
    tables : mapping of str to DataFrame
        Its `estimate_tables`.
    """
    parts = [_clusters(fit, wrong)]
    if not fit.has_labels or "Coefficients" in tables:
        parts.append(_estimates(tables))
    text = "; ".join(part for part in parts if part) or _size(fit)
    return f"{text[0].upper()}{text[1:]}."


def lead_of(fits: Mapping[str, AskedFit], findings: Mapping[str, str]) -> str:
    """Return one sentence about several fits, or the finding of a single one.

    Where known classes allow it, the sentence names the best and the worst fit, otherwise the first fit that
    can be trusted.

    Parameters
    ----------
    fits : mapping of str to Fit
    findings : mapping of str to str
        Result of `finding` for each.
    """
    if len(fits) == 1:
        return next(iter(findings.values()))
    scores = {name: score for name, fit in fits.items() if (score := agreement(fit)) is not None}
    if len(scores) > 1:
        best, worst = (pick(scores, key=scores.__getitem__) for pick in (max, min))
        is_one = len({same_data(fits[name]) for name in scores}) == 1
        if scores[best] - scores[worst] < _SAME:
            who = "All" if len(scores) == len(fits) else in_a_row(f"“{name}”" for name in scores)
            whose = "the" if is_one else "their"
            return f"{who} agree with {whose} known classes to the same degree, {_index(scores[best])}."
        whose = "the" if is_one else "its"
        return (
            f"“{best}” agrees best with {whose} known classes ({_index(scores[best])}), “{worst}” least "
            f"({_three(scores[worst])})."
        )
    trusted = (name for name, fit in fits.items() if fit.verdict[0] == "good")
    name = next(trusted, next(iter(fits)))
    return f"“{name}”: {findings[name]}"


def agreement(fit: AskedFit) -> float | None:
    """Return the adjusted Rand index with the known classes; see `scores_of`. None where there are none.

    Parameters
    ----------
    fit : Fit
    """
    return scores_of(fit).get("ari")


def wrong_links(fit: AskedFit) -> pd.DataFrame | None:
    """Return links that are probably wrong, the most suspect first; None where that cannot be judged.

    Parameters
    ----------
    fit : Fit
    """
    try:
        links = fit.suspect_links()
    except ValueError:  # no labels, no links, no saved model, or too wide a connected set
        return None
    return links[links["probability"] > 0.5]


def _clusters(fit: AskedFit, wrong: pd.DataFrame | None) -> str:
    if not fit.has_labels:
        return ""
    sizes = np.unique(_labels(fit), return_counts=True)[1]
    text = f"{len(sizes)} clusters" if len(sizes) > 1 else "all in one cluster"
    if 1 < len(sizes) <= _MOST_SIZES:
        text += f", of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
    score = agreement(fit)
    if score is not None:
        text += f"; {_index(score)} against the known classes"
    if wrong is not None:
        number = fit.tree["constant_data"].sizes["link"]
        many = "none" if wrong.empty else str(len(wrong))
        text += f"; {many} of {number} links {'is' if len(wrong) == 1 else 'are'} probably wrong"
    return text


def _estimates(tables: Mapping[str, pd.DataFrame]) -> str:
    """Describe the first numbers of the first table, with their intervals where these are known."""
    if not tables:
        return ""
    table = next(iter(tables.values()))
    texts = []
    for name, row in table.head(_MOST_NAMED).iterrows():
        ends = interval(row)
        value = number(row["estimate"], row.get("standard_error", np.nan))
        texts.append(f"{name} {value}" + (f" ({ends})" if ends else ""))
    rest = len(table) - len(texts)
    if rest > 0:
        texts.append(f"{rest} more below")
    how = " and 95 % intervals" if "lower" in table else ""
    return f"estimates{how}: {', '.join(texts)}"


def _size(fit: Fitted) -> str:
    """Say how many numbers were estimated, where no sentence can name them."""
    sites = fit.tree["posterior"].data_vars.values()
    return f"{sum(site[0, 0].size for site in sites)} numbers were estimated"


def _index(score: float) -> str:
    return f"adjusted Rand index {_three(score)}"


def _three(score: float) -> str:
    return f"{score:.3f}".replace("-", "−")


def _labels(fit: Fitted) -> np.ndarray:
    """Return all labels, over any number of sites."""
    return fit.tree["responsibilities"]["labels"].to_numpy()
