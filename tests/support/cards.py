"""Cards of the zoo by what they are about."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.roles import signature_of

from sidebayes import CARDS

LONGITUDINAL = {
    name: card for name, card in CARDS.items() if signature_of(card.model).unit == "subjects"
}
"""Cards of long tables of subjects; each has tests of its own over all engines."""

CLASSIFYING = {
    name: card
    for name, card in CARDS.items()
    if {"num_classes", "source"} & {*signature_of(card.model).options}
}
"""Cards that learn classes from some labelled rows; they have tests of their own over all engines."""


def rows_for(name: str, x: NDArray) -> NDArray:
    """Rows that a method takes: about zero for latent functions, of length one about one for the sphere."""
    if name == "pairwise_gp":
        return x - x.mean(axis=0)
    if name != "sphere_mixture":
        return x
    centred = (x - x.mean(axis=0)) / x.std(axis=0) / 4 + 1
    return centred / np.linalg.norm(centred, axis=1, keepdims=True)


EMBEDDING = {name: card for name, card in CARDS.items() if "embedding" in card.tags}
"""Cards that place points; they have tests of their own over all engines."""

CLUSTERING = {
    n: card for n, card in CARDS.items() if n not in {**LONGITUDINAL, **CLASSIFYING, **EMBEDDING}
}
"""Cards that label points: a table of points by features, with or without links."""
