"""Methods without a density: what the library offers in the interface of scikit-learn's transformers."""

from __future__ import annotations

from typing import Any, NamedTuple

from .cards import resolve

__all__ = ["TRANSFORMERS", "TransformerCard"]


class TransformerCard(NamedTuple):
    """What is known about a transformer.

    Attributes
    ----------
    name : str
        Name of the class, which ``sidebayes`` exports.
    title : str
        What its features are, in one line.
    path : str
        Location of the class, as "module:class".
    reference : str
    """

    name: str
    title: str
    path: str
    reference: str

    @property
    def transformer(self) -> Any:
        """The class."""
        return resolve(self.path)


_PLACE = "sidebayes.guides.transformers"

TRANSFORMERS = {
    card.name: card
    for card in (
        TransformerCard(
            "KernelPGA",
            "Principal geodesics of points that a kernel maps to a sphere",
            f"{_PLACE}.kernel_pga:KernelPGA",
            "Yu (2016), chapter 2",
        ),
        TransformerCard(
            "IncrementalIsomap",
            "Coordinates along a manifold that follow rows as they come and go",
            f"{_PLACE}.isomap.incremental:IncrementalIsomap",
            "Law (2006), chapter 3",
        ),
        TransformerCard(
            "FisherFeatures",
            "Features of series whose inner products are a Fisher kernel",
            f"{_PLACE}.detection.fisher_kernels:FisherFeatures",
            "Lu (2008), chapter 10",
        ),
        TransformerCard(
            "LeastSquaresFeatures",
            "Scaled coefficients of each subject's own least-squares curve",
            f"{_PLACE}.detection.series_kernels:LeastSquaresFeatures",
            "Lu (2008), chapter 10",
        ),
    )
}
"""Every transformer, by name."""
