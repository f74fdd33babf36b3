r"""Kernels on the neighbourhood graph of points, smooth along clusters (Lu 2008, section 4.5.2).

Affinities :math:`S_{ij} = e^{-\|x_i - x_j\|^2 / s^2}` with degrees :math:`d_i = \sum_j S_{ij}` give
the normalised Laplacian :math:`I - D^{-1/2} S D^{-1/2} = \sum_k \mu_k \phi_k \phi_k^T`, and each
kernel is :math:`K = \sum_k g(\mu_k) \phi_k \phi_k^T` with gains g that decrease with the frequency
:math:`\mu`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import getfullargspec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import point_table, real_array
from sidebayes.common.columns import refuse_unknown_options
from sidebayes.common.fields import Range, check_integer, check_number

from ..side_information.link_weights import check_pairs
from ..side_information.links import Links
from .neighbor_graph import NeighborGraph

__all__ = ["GraphKernel", "candidate_kernels", "choose_graph_kernel", "expected_agreement"]

GAINS: dict[str, Callable[[NDArray, float], NDArray]] = {
    "diffusion": lambda frequency, time: np.exp(-time * frequency),
    "random_walk": lambda frequency, variance: 1.0 / (frequency + variance),
    "step": lambda frequency, cut: (frequency <= cut).astype(float),
}
"""Gain of each kernel at a frequency, given its parameter."""

GRIDS: dict[str, tuple[float, ...]] = {
    "diffusion": (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
    "random_walk": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "step": (0.01, 0.03, 0.1, 0.2, 0.3, 0.5),
}
BANDWIDTHS = (0.3, 0.5, 0.7, 1.0, 1.5)
"""Bandwidths in units of the median distance to the tenth neighbour. Under the first two, large sparse
graphs fall apart, and would have more frequencies near zero than eigenpairs."""

_NEGLIGIBLE = 1e-10
"""Gains below this share of the largest do not give a feature."""

_MOST_WEIGHT = 12.0
"""Finite weight that replaces that of a hard link."""

_DAMPED = 0.2
"""Least divisor of the extension to new points. With smaller divisors, new points have little
information about an eigenvector, and the division would turn that into noise of any size
(`benchmarks/graph_extension.py`)."""

_ROWS = 1000
"""Number of new points whose distances are computed at a time."""


@dataclass(frozen=True, eq=False)
class GraphKernel:
    r"""Kernel :math:`\sum_k g(\mu_k) \phi_k \phi_k^T` on a neighbourhood graph, at unit mean diagonal.

    Build it with `GraphKernel.build`, or with `choose_graph_kernel` to select the kernel that agrees
    best with links.

    Attributes
    ----------
    kind : {"diffusion", "random_walk", "step"}
        Heat diffusion :math:`e^{-t\mu}`, lazy random walk :math:`1/(\mu + \sigma^2)`, step
        :math:`[\mu \le \mu_{cut}]` (Lu 2008, section 4.5.2).
    parameter : float
        Time t, variance :math:`\sigma^2` or cut.
    bandwidth : float
        Distance over which affinities fall to 1/e.
    frequencies : ndarray, shape (num_eigenpairs,)
        Eigenvalues of the normalised Laplacian, ascending.
    vectors : ndarray, shape (num_points, num_eigenpairs)
    """

    kind: str
    parameter: float
    bandwidth: float
    frequencies: NDArray[np.float64] = field(repr=False)
    vectors: NDArray[np.float64] = field(repr=False)
    degree: NDArray[np.float64] = field(repr=False)
    graph: NeighborGraph = field(repr=False)

    @classmethod
    def build(
        cls,
        x: ArrayLike,
        kind: str = "diffusion",
        parameter: float = 30.0,
        *,
        bandwidth: float | None = None,
        num_neighbors: int | str | None = "default",
        num_eigenpairs: int = 200,
        whiten: bool = False,
        constant: bool = False,
    ) -> GraphKernel:
        r"""Kernel of a given kind.

        Parameters
        ----------
        x : array_like, shape (num_points, num_features)
        kind, parameter
            See the attributes.
        bandwidth : float, optional
            Distance over which affinities fall to 1/e. By default the median distance to the tenth
            neighbour.
        num_neighbors : int or None
            Number of neighbours in the graph, the point itself included; by default 20, or all
            points if there are fewer. None joins all pairs, as in the thesis, and needs memory
            quadratic in the number of points.
        num_eigenpairs : int
            Number of lowest frequencies that are kept.
        whiten : bool
            Measure distances after whitening, as is necessary for data with strongly correlated
            features.
        constant : bool
            Keep the eigenvector :math:`\sqrt{d}` of frequency zero, which moves all points to one
            class. The thesis keeps it; accuracies are higher without it.

        Raises
        ------
        ValueError
            For an unknown kind, or a number out of range.
        """
        _check_kind(kind)
        parameter = check_number("parameter", parameter, Range(above=0))
        graph = NeighborGraph.build(x, num_neighbors, whiten)
        width = graph.typical_distance() if bandwidth is None else bandwidth
        width = check_number("bandwidth", width, Range(above=0))
        return cls(kind, parameter, width, *graph.spectrum(width, num_eigenpairs, constant), graph)

    @property
    def gains(self) -> NDArray[np.float64]:
        """Gain of each eigenvector, scaled such that the kernel has a mean diagonal of one."""
        gains = GAINS[self.kind](self.frequencies, self.parameter)
        if not gains.sum() > 0:
            raise ValueError(
                f"{self.kind} kernel of parameter {self.parameter} has no frequency left; the lowest is "
                f"{self.frequencies[0]:.3g}: raise the parameter of a step, lower that of a diffusion"
            )
        return gains * len(self.vectors) / gains.sum()

    def features(self, x_new: ArrayLike | None = None) -> NDArray[np.float64]:
        r"""Features whose inner products are the kernel, shape (rows, num_features).

        Parameters
        ----------
        x_new : array_like, shape (num_new, num_features), optional
            Points outside the graph, by Nystroem's extension :math:`\phi_k(x) = (1 - \mu_k)^{-1}
            \sum_i S(x, x_i) \phi_k(i) / \sqrt{d(x) d_i}`. By default the points of the graph.

        Notes
        -----
        For points of the graph, the extension reproduces their own features. Where :math:`1 -
        \mu_k` is near zero the sum is mostly noise, and :math:`(1 - \mu_k) / c^2` replaces the
        factor :math:`(1 - \mu_k)^{-1}` wherever :math:`|1 - \mu_k| < c = 0.2`. Such features are
        damped, also for points of the graph if these are passed as new points.
        """
        used = self.gains > _NEGLIGIBLE * self.gains.max()
        scale = np.sqrt(self.gains[used])
        if x_new is None:
            return self.vectors[:, used] * scale
        x_new = real_array("x_new", x_new)
        if x_new.ndim != 2 or x_new.shape[1] != len(self.graph.whitening):
            raise ValueError(
                f"x_new has shape {x_new.shape}; expected (points, {len(self.graph.whitening)})"
            )
        eigenvalue = 1 - self.frequencies[used]
        inverse = eigenvalue / np.maximum(np.abs(eigenvalue), _DAMPED) ** 2
        rows = self.vectors[:, used] / np.sqrt(self.degree)[:, None] * inverse
        found = np.empty((len(x_new), used.sum()))
        for first in range(0, len(x_new), _ROWS):
            part = slice(first, first + _ROWS)
            affinity = self.graph.affinities_to(x_new[part], self.bandwidth)
            degree = affinity.sum(axis=1, keepdims=True)
            found[part] = affinity @ rows / np.sqrt(np.where(degree > 0, degree, 1.0))
        return found * scale

    def alignment(self, links: Links, num_clusters: int = 2) -> float:
        """Expected alignment with labels that agree with the links (Lu 2008, eqs. 4.33-4.35)."""
        pairs, agreement = expected_agreement(links, num_clusters)
        first, second = self.vectors[pairs[:, 0]], self.vectors[pairs[:, 1]]
        inner = 2 * np.einsum("pk,pk,k,p", first, second, self.gains, agreement, optimize=True)
        return float(inner / (len(self.vectors) * np.linalg.norm(self.gains)))


def candidate_kernels(
    x: ArrayLike,
    *,
    kinds: Sequence[str] = ("diffusion",),
    num_neighbors: int | str | None = "default",
    num_eigenpairs: int = 200,
    whiten: bool = False,
    constant: bool = False,
) -> Iterator[GraphKernel]:
    """Candidate kernels: a grid of bandwidths, and of each kind's parameter.

    There are five bandwidths around the median distance to the tenth neighbour; sparse graphs of
    more than 2000 points use the three largest. Parameters are those of `GraphKernel.build`.
    """
    for kind in kinds:
        _check_kind(kind)
    graph = NeighborGraph.build(x, num_neighbors, whiten)
    for bandwidth in graph.typical_distance() * np.array(BANDWIDTHS[2 if graph.large else 0 :]):
        spectrum = graph.spectrum(bandwidth, num_eigenpairs, constant)
        for kind in kinds:
            for parameter in GRIDS[kind]:
                if GAINS[kind](spectrum[0], parameter).any():
                    yield GraphKernel(kind, parameter, float(bandwidth), *spectrum, graph)


def choose_graph_kernel(
    x: ArrayLike, links: Links, *, num_clusters: int = 2, **options: Any
) -> GraphKernel:
    """Graph kernel with the highest expected alignment with the links, among `candidate_kernels`.

    Kernels are compared by their off-diagonal entries: the diagonal would favour kernels near the
    identity.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    links : Links
    num_clusters : int
    **options
        See `candidate_kernels`.

    Raises
    ------
    TypeError, ValueError
        If there are no links, they refer to other points, options are not those of `candidate_kernels`,
        or no kernel is left.
    """
    if not isinstance(links, Links):
        raise TypeError(f"links is a {type(links).__name__}; pass sidebayes.Links")
    if not len(links):
        raise ValueError("there are no links to choose a kernel by; use GraphKernel.build")
    check_integer("num_clusters", num_clusters, 2)
    refuse_unknown_options(
        "choose_graph_kernel", options, getfullargspec(candidate_kernels).kwonlyargs
    )
    x = point_table("x", x)
    check_pairs(links.pairs, len(x))
    found = max(
        candidate_kernels(x, **options),
        key=lambda kernel: kernel.alignment(links, num_clusters),
        default=None,
    )
    if found is None:
        raise ValueError("no kernel of these kinds has a gain; add 'diffusion' to kinds")
    return found


def expected_agreement(
    links: Links, num_clusters: int = 2
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    r"""Correlation of labels tied by a link, or by a path of two links.

    For labels that are uniform a priori, it is :math:`(K P(z_i = z_j) - 1) / (K - 1)`, which is
    :math:`E[y_i y_j]` for two classes, given the link between i and j and the paths i-k-j only: a
    corrected form of Lu (2008), eq. 4.35. Correlations multiply along a path; parallel paths add
    their log-odds weights.

    Returns
    -------
    pairs : ndarray of int, shape (num_pairs, 2)
    agreement : ndarray, shape (num_pairs,)
    """
    others = num_clusters - 1
    weights = np.clip(links.weights, -_MOST_WEIGHT, _MOST_WEIGHT)
    ends = np.concatenate([links.pairs, links.pairs[:, ::-1]])
    strength = np.tile(np.expm1(weights) / (np.exp(weights) + others), 2)
    order = np.argsort(ends[:, 0], kind="stable")
    ends, strength = ends[order], strength[order]
    # joins each directed link to later ones that leave the same point
    last = np.searchsorted(ends[:, 0], ends[:, 0], side="right")
    count = last - np.arange(len(ends)) - 1
    one = np.repeat(np.arange(len(ends)), count)
    two = one + 1 + np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    along = strength[one] * strength[two]
    paths = np.sort(np.stack([ends[one, 1], ends[two, 1]], axis=1), axis=1)
    side = np.log1p(others * along) - np.log1p(-along)
    pairs, owner = np.unique(np.concatenate([links.pairs, paths]), axis=0, return_inverse=True)
    total = np.bincount(owner.ravel(), np.concatenate([weights, side]))
    total = np.clip(total, -_MOST_WEIGHT, _MOST_WEIGHT)
    return pairs, np.expm1(total) / (np.exp(total) + others)


def _check_kind(kind: str) -> None:
    if not isinstance(kind, str) or kind not in GAINS:
        raise ValueError(f"kind = {kind!r}; expected one of {sorted(GAINS)}")
