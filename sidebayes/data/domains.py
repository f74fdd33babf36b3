"""Simulate pairs of domains: a source whose classes are known, and a target that has shifted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..common.fields import Range, check_integer, check_number, check_seed
from ..common.magnitudes import shown
from .datasets import Dataset

__all__ = ["simulate_domains"]

_Rows = tuple[NDArray, NDArray]

_FLOWS = (
    (0, 0.6, (0.0, 1.0, 0.5), (0.35, 0.5, 0.4)),
    (0, 0.4, (0.3, -0.3, 0.9), (0.3, 0.4, 0.3)),
    (1, 0.7, (-0.2, -1.0, -0.4), (0.3, 0.35, 0.35)),
    (1, 0.3, (0.4, -1.4, 0.6), (0.3, 0.3, 0.3)),
    (2, 1.0, (1.2, -0.6, -0.9), (0.25, 0.4, 0.3)),
    (3, 0.5, (-1.2, 0.2, -1.2), (0.3, 0.5, 0.4)),
    (3, 0.5, (1.6, 1.2, -0.6), (0.3, 0.4, 0.3)),
)
"""Packet flows: class (web, mail, bulk, peer to peer), share within it, mean and deviations."""

_FLOW_PRIORS = (0.874, 0.016, 0.021, 0.089), (0.872, 0.045, 0.010, 0.073)
"""Shares of the classes in source and target, as Raghuram's tables 4.1 and 4.2 imply them."""

_FLOW_SHIFTS = np.array([(0, -0.3, 0.2), (0.2, 0.2, 0), (-0.3, 0.5, 0.2), (0.8, 0.3, 0.7)])
"""How the classes have moved in the target."""

_CORNERS = np.array([(0.0, 0.0), (3.5, 0.0), (0.0, 3.5), (3.5, 3.5)])


def _traffic(rng: np.random.Generator, size: int, is_target: bool, strength: float) -> _Rows:
    labels = rng.choice(4, size, p=_FLOW_PRIORS[int(is_target)])
    owner, share, mean, deviation = map(np.array, zip(*_FLOWS, strict=True))
    # a component of the row's class, by its shares
    place = np.array([rng.choice(np.flatnonzero(owner == c), p=share[owner == c]) for c in labels])
    x = mean[place] + deviation[place] * rng.normal(size=(size, 3))
    return x + is_target * strength * _FLOW_SHIFTS[labels], labels


def _concept(rng: np.random.Generator, size: int, is_target: bool, strength: float) -> _Rows:
    corner = np.arange(size) % 4
    x = _CORNERS[corner] + 0.8 * rng.normal(size=(size, 2))
    turned = np.array([0, 1, 1, 0]) if is_target else np.array([0, 0, 1, 1])
    if strength < 1:  # only so many rows of the corners that differ have changed
        old = np.array([0, 0, 1, 1])[corner]
        return x, np.where(rng.uniform(size=size) < strength, turned[corner], old)
    return x, turned[corner]


def _covariate(rng: np.random.Generator, size: int, is_target: bool, strength: float) -> _Rows:
    x = rng.normal(size=(size, 2)) + is_target * np.array([1.5 * strength, 0.0])
    chance = 1 / (1 + np.exp(-4 * (x[:, 1] - 0.6 * (x[:, 0] ** 2 - 1))))
    return x, (rng.uniform(size=size) < chance).astype(int)


_KINDS: dict[str, Callable[[np.random.Generator, int, bool, float], _Rows]] = {
    "concept": _concept,
    "covariate": _covariate,
    "traffic": _traffic,
}


def simulate_domains(
    kind: str,
    num_source: int,
    num_target: int,
    *,
    strength: float = 1.0,
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Draw rows of a source and of a target domain.

    Parameters
    ----------
    kind : {"traffic", "concept", "covariate"}
        "traffic" are four classes of packet flows with three features, whose shares and places both
        differ: a stand-in for the traces of Raghuram (2014), section 4.4, which are not public; the
        shares are those that the thesis' tables imply; everything else is our own. "concept" are
        four corners of a square, two of which exchange their classes while the rows stay where they
        are: the classes given the features change and nothing else (figure 4.1). "covariate" has
        one curved boundary, and rows of the target lie elsewhere along it: the features change, the
        classes given them do not.
    num_source, num_target : int
    strength : float
        Strength of the shift: 1 is the shift above and 0 is none. For "concept" it is the share of rows
        in the two corners whose class has changed, at most 1.
    seed : int

    Returns
    -------
    source, target : Dataset
        All classes known.

    Raises
    ------
    ValueError
        For an unknown kind, or numbers out of range.

    Examples
    --------
    >>> import sidebayes
    >>> source, target = sidebayes.simulate_domains("traffic", 500, 300)
    >>> source, target
    (Dataset('traffic source', 500 points x 3 features, 4 classes), \
Dataset('traffic target', 300 points x 3 features, 4 classes))
    """
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind = {shown(kind)}; expected one of {sorted(_KINDS)}")
    most = 1.0 if kind == "concept" else np.inf
    strength = check_number("strength", strength, Range(least=0, most=most))
    sizes = check_integer("num_source", num_source), check_integer("num_target", num_target)
    rng = np.random.default_rng(check_seed(seed))
    found = []
    for is_target, (size, place) in enumerate(zip(sizes, ("source", "target"), strict=True)):
        x, labels = _KINDS[kind](rng, size, bool(is_target), strength)
        names = [f"x{j + 1}" for j in range(x.shape[1])]
        found.append(Dataset(f"{kind} {place}", x, labels, names))
    return found[0], found[1]
