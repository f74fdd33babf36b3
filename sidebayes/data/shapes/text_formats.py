"""Text files of landmarks: TPS, NTS and Morphologika, read line by line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...common.magnitudes import shown

__all__ = ["Specimen", "looks_like", "parse"]

_MISSING = ("na", "nan", "?")


class Specimen(NamedTuple):
    """An individual as its file has it.

    Attributes
    ----------
    name : str
        Empty if it has none.
    places : ndarray, shape (num_landmarks, num_coordinates)
        NaN where a coordinate is missing.
    line : int
        Where it begins, from 1 on.
    scale : float or None
        What coordinates are to be multiplied with.
    covariates : mapping of str to str
    left_out : tuple of str
        What the file has beside landmarks.
    """

    name: str
    places: NDArray[np.float64]
    line: int
    scale: float | None = None
    covariates: Mapping[str, str] = MappingProxyType({})
    left_out: tuple[str, ...] = ()


class _Text:
    """Lines with their numbers, and refusals that name them."""

    def __init__(self, text: str, file: str) -> None:
        found = enumerate(text.splitlines(), start=1)
        self.lines = [(number, line.strip()) for number, line in found if line.strip()]
        self.file = file

    def refuse(self, line: int, what: str) -> NoReturn:
        raise ValueError(f"{self.file}, line {line}: {what}")

    def numbers(self, line: int, words: Sequence[str]) -> list[float]:
        """Words as numbers, NaN for those that stand for a missing one."""
        found = []
        for word in words:
            try:
                value = np.nan if word.lower() in _MISSING else float(word)
            except ValueError:
                self.refuse(
                    line, f"{word!r} is no number; correct it, or write NA where it is missing"
                )
            found.append(value)
        return found

    def whole(self, line: int, word: str, what: str, least: int = 1) -> int:
        if not re.fullmatch(r"\d{1,9}", word) or int(word) < least:
            self.refuse(line, f"{what} is {word!r}; expected a whole number from {least} on")
        return int(word)

    def places(self, rows: Sequence[tuple[int, str]], count: int, axes: int, line: int) -> NDArray:
        """`count` rows of coordinates."""
        if len(rows) < count:
            self.refuse(
                line,
                f"{count} landmarks are announced, and {len(rows)} follow before the file ends",
            )
        found = []
        for number, row in rows[:count]:
            words = re.split(r"[\s,]+", row)
            if len(words) != axes:
                self.refuse(
                    number,
                    f"expected {axes} coordinates of a landmark, {count} of which are announced in "
                    f"line {line}; found {shown(row)}",
                )
            found.append(self.numbers(number, words))
        return np.array(found).reshape(count, axes)


def _read_tps(text: _Text) -> list[Specimen]:
    """`LM=` or `LM3=` with so many rows of coordinates, then `ID=`, `IMAGE=`, `SCALE=` and others."""
    found: list[Specimen] = []
    rows = text.lines
    at = 0
    while at < len(rows):
        line, content = rows[at]
        at += 1
        key, equals, value = (part.strip() for part in content.partition("="))
        key = key.upper()
        if not equals:
            text.refuse(line, f"expected KEY=value, such as LM=12, or ID=3; found {shown(content)}")
        if key in ("LM", "LM3"):
            count = text.whole(line, value, f"the number of landmarks, {key}=,", least=0)
            axes = 3 if key == "LM3" else 2
            found.append(
                Specimen("", text.places(rows[at:], count, axes, line), line, covariates={})
            )
            at += count
        elif not found:
            text.refuse(line, f"{key}= stands before the first LM= or LM3=; expected one of these")
        elif key in ("CURVES", "OUTLINES"):
            if text.whole(line, value, f"the number of {key.lower()}, {key}=,", least=0):
                left = (*found[-1].left_out, key.lower())
                found[-1] = found[-1]._replace(left_out=left)
        elif key == "POINTS":
            at += text.whole(line, value, "the number of points of a curve, POINTS=,", least=0)
        elif key == "SCALE":
            scale = text.numbers(line, [value])[0]
            if not 0 < scale < np.inf:
                text.refuse(line, f"SCALE={value}; expected a number above 0")
            found[-1] = found[-1]._replace(scale=scale)
        elif key == "ID" or (key == "IMAGE" and not found[-1].name):
            found[-1] = found[-1]._replace(
                name=value if key == "ID" else value.rpartition(".")[0] or value
            )
    return found


def _read_nts(text: _Text) -> list[Specimen]:
    """A header `1 rows columns 0 dim=2`, labels where it says L, B or E, and a table of numbers."""
    rows = [(line, row) for line, row in text.lines if not row.startswith(('"', "'"))]
    if not rows:
        text.refuse(1, "there is no header, such as '1 20 24 0 dim=2'")
    line, header = rows[0]
    found = re.fullmatch(
        r"1\s+(\d+)([lbe]?)\s+(\d+)([lbe]?)\s+([01])(?:\s+(\S+))??\s+dim\s*=\s*([23])",
        header,
        re.IGNORECASE,
    )
    if found is None:
        text.refuse(line, f"expected a header such as '1 20L 24 0 dim=2'; found {shown(header)}")
    count, width, axes = int(found[1]), int(found[3]), int(found[7])
    if width % axes or not count or not width:
        text.refuse(line, f"{width} columns are no whole number of landmarks in {axes} dimensions")
    missing = text.numbers(line, [found[6]])[0] if found[5] == "1" and found[6] else None
    words = [(number, word) for number, row in rows[1:] for word in row.split()]
    labels: list[str] = []
    kind = found[2].upper()
    step = width + (kind in ("B", "E"))
    if kind == "L" and len(words) > count * (1 + step) and found[4].upper() != "L":
        # names of several words have a line each
        labels, words = [row for _, row in rows[1 : count + 1]], words[-count * step :]
    elif kind == "L":
        labels, words = [word for _, word in words[:count]], words[count:]
    if found[4].upper() == "L":
        words = words[width:]
    if len(words) != count * step:
        text.refuse(
            rows[-1][0],
            f"the file ends after {len(words)} entries of the table; line {line} announces "
            f"{count} rows of {step}",
        )
    table, lines = [], []
    for row in range(count):
        part = words[row * step : (row + 1) * step]
        lines.append(part[0][0])
        if kind in ("B", "E"):
            labels.append(part.pop(0 if kind == "B" else -1)[1])
        table.append([text.numbers(number, [word])[0] for number, word in part])
    values = np.array(table)
    if missing is not None:
        values[values == missing] = np.nan
    if width == axes:  # the rows are the landmarks of a single individual
        return [Specimen("", values, lines[0])]
    return [
        Specimen(labels[row] if labels else "", values[row].reshape(-1, axes), lines[row])
        for row in range(count)
    ]


def _read_morphologika(text: _Text) -> list[Specimen]:
    """Sections in brackets: individuals, landmarks, dimensions, names, labels, groups, rawpoints."""
    sections: dict[str, list[tuple[int, str]]] = {}
    heads: dict[str, int] = {}
    name = ""
    for line, content in text.lines:
        if re.fullmatch(r"\[.*\]", content):
            name = content[1:-1].strip().lower().replace(" ", "")
            sections[name], heads[name] = [], line
        elif not name:
            text.refuse(line, f"expected a section, such as [individuals]; found {shown(content)}")
        else:
            sections[name].append((line, content))
    sizes = {}
    for one in ("individuals", "landmarks", "dimensions"):
        if not sections.get(one):
            text.refuse(
                heads.get(one, 1), f"section [{one}] is missing or empty; it holds their number"
            )
        sizes[one] = text.whole(*sections[one][0], f"[{one}]")
    count, landmarks, axes = sizes.values()
    if axes not in (2, 3):
        text.refuse(heads["dimensions"], f"[dimensions] is {axes}; expected 2 or 3")
    rows = [row for row in sections.get("rawpoints", []) if not row[1].startswith("'")]
    marks = [row for row in sections.get("rawpoints", []) if row[1].startswith("'")]
    begin = heads.get("rawpoints", 1)
    places = text.places(rows, count * landmarks, axes, begin).reshape(count, landmarks, axes)
    if len(rows) > count * landmarks:
        text.refuse(
            rows[count * landmarks][0],
            f"there are more rows than the {count * landmarks} of {count} individuals with {landmarks} "
            "landmarks each",
        )
    names = [content for _, content in sections.get("names", [])]
    names = names or [content.lstrip("'").strip() for _, content in marks]
    if names and len(names) != count:
        text.refuse(
            heads.get("names", begin), f"there are {len(names)} names for {count} individuals"
        )
    covariates = _morphologika_covariates(text, sections, heads, count)
    return [
        Specimen(
            names[one] if names else "",
            places[one],
            rows[one * landmarks][0],
            None,
            covariates[one],
        )
        for one in range(count)
    ]


def _morphologika_covariates(
    text: _Text, sections: dict[str, list[tuple[int, str]]], heads: dict[str, int], count: int
) -> list[dict[str, str]]:
    found: list[dict[str, str]] = [{} for _ in range(count)]
    labels = " ".join(content for _, content in sections.get("labels", [])).split()
    values = sections.get("labelvalues", [])
    if values and len(values) != count:
        text.refuse(heads["labelvalues"], f"there are {len(values)} rows for {count} individuals")
    for one, (line, content) in zip(found, values, strict=False):
        words = content.split()
        if len(words) != len(labels):
            text.refuse(
                line, f"there are {len(words)} values for the {len(labels)} labels {labels}"
            )
        one |= dict(zip(labels, words, strict=True))
    words = " ".join(content for _, content in sections.get("groups", [])).split()
    if words:
        sizes = [text.whole(heads["groups"], word, "a size in [groups]") for word in words[1::2]]
        if len(words) % 2 or sum(sizes) != count:
            text.refuse(
                heads["groups"],
                f"expected names of groups, each with its size, which sum to {count}; found "
                f"{shown(' '.join(words))}",
            )
        owners = np.repeat(words[::2], sizes).tolist()
        for one, group in zip(found, owners, strict=True):
            one["group"] = group
    return found


_PARSERS: dict[str, Callable[[_Text], list[Specimen]]] = {
    "tps": _read_tps,
    "nts": _read_nts,
    "morphologika": _read_morphologika,
}
"""What reads the lines of each format."""


def parse(text: str, file: str, kind: str) -> list[Specimen]:
    """Individuals of a file.

    Parameters
    ----------
    text : str
        Its content.
    file : str
        Its name, for messages.
    kind : {"tps", "nts", "morphologika"}

    Raises
    ------
    ValueError
        Naming the line.
    """
    lines = _Text(text, file)
    found = _PARSERS[kind](lines)
    if not found:
        lines.refuse(1, "there is no individual; is the file empty?")
    return found


def looks_like(text: str) -> str | None:
    """Format of a text, by its first line that is no comment; None for a table or anything else."""
    for row in text.splitlines():
        line = row.strip()
        if not line or line.startswith(('"', "'")):
            continue
        if re.match(r"lm3?\s*=", line, re.IGNORECASE):
            return "tps"
        if line.startswith("["):
            return "morphologika"
        return "nts" if re.search(r"\bdim\s*=", line, re.IGNORECASE) else None
    return None
