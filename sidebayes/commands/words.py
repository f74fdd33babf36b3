"""Errors and notes in the words of the command line."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidebayes.diagnostics.comparison.compare import Comparison

__all__ = ["compared", "in_flags", "spoken"]

_OF_PYTHON = {
    r"drop these rows, table\.dropna\(.*?\]\)": "delete them in the file",
    r"drop rows with missing values, table\.dropna\(.*?\]\)": "delete rows with missing values",
    r", by pandas\.to_datetime\(.*?\]\)": "",
    r", such as by pandas\.read_csv\(.*?\)": "",
    r", for instance by pandas\.read_csv\(.*?\)\.to_csv\(.*?\)": "",
    r", (?:such as )?table\.drop_duplicates\(.*?\)": "",
    r", such as by pandas\.to_numeric\(.*?\]\), or into text, table.*?\.astype\(str\)": ", or into text",
    r"(keep one of each)[,:] \w+\[np\..*?\)\[1\]\)\]": r"\1",
    r"\binit=(?!\w)": "init= in Python",
    r'\bflip_rate="learned"': "--learn-reliability",
    r"\bflip_rate is learned": "--learn-reliability learns",
    r"\bpass links\.with_strength\(1\.0\)": "give them a column weight or confidence in the file",
    r"Subtract an offset, \w+ - .*?\), before": "Subtract an offset, such as the mean, before",
}
"""What to say instead of remedies that are code."""
_OF_FIT = r"(?<![\w.)\]])(?:fit)?(\.[a-z_]+\([^()]*\))"
"""A method of a fit, which the command line does not have: ``fit.suspect_links()``, ``.loo(unit='row')``."""
_OBJECT = r"[A-Z]\w*(?:\.\w+)?\([^()]*\)"
"""What no value of a flag can be: ``GaussianPrior.by_evidence(x, num_clusters)``."""


def in_flags(text: str, flags: Mapping[str, str]) -> str:
    """Spell arguments of functions as the command line does.

    Parameters
    ----------
    text : str
    flags : mapping
        Flag by name of the argument: ``"--seed"``, or ``"--option covariance="``. A name that is an English
        word is replaced only where a value follows, and one in quotes nowhere. Of
        ``drop=['a'] (--drop a on the command line)`` the latter is kept. Remedies that are code of
        Python are replaced by what helps in the file. Methods of the fit are those of the saved fit,
        and values that are objects remain for Python.

    Examples
    --------
    >>> in_flags("num_clusters = 9 for 5 points; give num_clusters=3", {"num_clusters": "--num-clusters"})
    '--num-clusters 9 for 5 points; give --num-clusters 3'
    """
    text = re.sub(r"\w+=(\[[^\]]*\])? \((--.*?) on the command line\)", r"\2", text)
    text = re.sub(r"drop them, \w+\.drop\(columns=(\[.*?\])\)", _left_out, text)
    text = re.sub(r"links\.with_strength\(flip_rate_weight\(([\d.]+)\)\)", _confident, text)
    for code, words in _OF_PYTHON.items():
        text = re.sub(code, words, text)
    text = re.sub(_OF_FIT, r"sidebayes.load('fit.nc')\1 in Python", text)
    given = "|".join(name for name in flags if name != "engine")
    parts = re.split(rf"((?<![\w.-])(?:{given})={_OBJECT})", text) if given else [text]
    return "".join(f"{p} in Python" if k % 2 else _spelt(p, flags) for k, p in enumerate(parts))


def _spelt(text: str, flags: Mapping[str, str]) -> str:
    """Spell names of arguments; see `in_flags`."""
    for name, flag in flags.items():
        text = re.sub(rf"\b[A-Z]\w+\(({name}=[^(),]*)\)", r"\1", text)  # EM(num_restarts=20)
        ending = flag if flag.endswith("=") else f"{flag} "
        text = re.sub(rf"(?<![\w.-]){name} ?=(?!=) ?(?=[^\s=])", ending, text)
        if "_" in name:
            text = re.sub(rf"(?<![\w./'-]){name}(?![\w./=('-])", flag.rstrip("="), text)
    return text


@contextmanager
def spoken(flags: Mapping[str, str]) -> Iterator[None]:
    """Have errors and warnings speak of flags; see `in_flags`."""
    from sidebayes import FitError

    show = warnings.showwarning

    def translated(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        show(category(in_flags(str(message), flags)), category, *rest, **named)

    warnings.showwarning = translated
    try:
        yield
    except (ValueError, TypeError, FitError) as error:
        raise ValueError(in_flags(str(error), flags)) from error
    finally:
        warnings.showwarning = show


def compared(comparison: Comparison, flags: Mapping[str, str]) -> Comparison:
    """A comparison whose sentences speak of flags; see `in_flags`."""
    notes = tuple(in_flags(note, flags) for note in comparison.notes)
    return replace(comparison, notes=notes, headline=in_flags(comparison.headline, flags))


def _confident(found: re.Match[str]) -> str:
    return f"links of confidence {1 - float(found[1]):g}"


def _left_out(found: re.Match[str]) -> str:
    names = ast.literal_eval(found[1])
    return f"leave them out by {' '.join(f'--drop {quote(name)}' for name in names)}"
