"""Cards of the zoo by what they are about."""

from __future__ import annotations

from sidebayes.models.blocks.roles import signature_of

from sidebayes import CARDS

LONGITUDINAL = {
    name: card for name, card in CARDS.items() if signature_of(card.model).unit == "subjects"
}
"""Cards of long tables of subjects; each has tests of its own over all engines."""

CLUSTERING = {name: card for name, card in CARDS.items() if name not in LONGITUDINAL}
"""Cards that label points: a table of points by features, with or without links."""
