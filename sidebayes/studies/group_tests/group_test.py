"""Test of whether groups have the same mean shape, by permutation of their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import factorial, prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.covariance import ledoit_wolf_shrinkage

from sidebayes.models.blocks.manifolds.alignment import align_landmarks
from sidebayes.models.blocks.side_information.cells import cell
from sidebayes.models.blocks.side_information.groups import Groups, refuse_other_order

from ...common.arrays import real_array, refuse_gaps
from ...common.fields import Range, check_integer, check_number, check_seed
from ...common.magnitudes import shown
from ...common.warnings import warn_user
from ...data.shapes.landmark_checks import covariate_column
from ...data.shapes.landmarks import Landmarks
from ...tasks import Task, run_tasks
from .group_statistics import (
    STATISTICS,
    GroupStatistics,
    all_labelings,
    needs_ridge,
    num_labelings,
    random_labelings,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GroupLabels", "GroupTest", "check_groups", "group_test", "usual_statistics"]

_MODES = ("pooled", "refit", "naive")
_WORDS = {
    "measured": "as measured",
    "pooled": "inferred under one group",
    "refit": "inferred under each labeling",
    "naive": "inferred under the labels that are tested",
}
_SAME = 1e-8
"""Relative difference within which two values of a statistic are equal."""
_ROUNDING = 1e-13
"""Share of the size of coordinates up to which differences of all individuals together are rounding."""
_MOST_SHRUNK = 0.99

Shapes = Landmarks | ArrayLike


@dataclass(frozen=True, eq=False)
class GroupTest:
    """Result of `group_test`.

    Attributes
    ----------
    table : DataFrame
        A row per statistic: its ``value``; ``p``, the share of labelings whose value is at least that; its
        Monte-Carlo standard ``error``, 0 where all labelings were tried; and the ``ridge``.
    distribution : DataFrame
        Values of the statistics under each labeling that was tried.
    sizes : Series
        Number of individuals per group.
    mode : str
        "measured", "pooled", "refit" or "naive".
    is_exact : bool
        Whether all labelings were tried, that of the data among them.
    floor : float
        The smallest p-value that these labelings can give.
    """

    table: pd.DataFrame
    distribution: pd.DataFrame
    sizes: pd.Series
    mode: str
    is_exact: bool
    floor: float

    def plot(self) -> Figure:
        """Histogram of each statistic under the labelings, with a line at its value."""
        from sidebayes.diagnostics.pictures.colours import INK, MUTED, WARN, new_figure

        figure, axes = new_figure(3.2 * len(self.table), 2.8, ncols=len(self.table))
        for axis, (name, row) in zip(np.ravel(axes), self.table.iterrows(), strict=True):
            axis.hist(self.distribution[name], bins=40, color=MUTED)
            axis.axvline(row["value"], color=WARN)
            axis.set_title(f"{name}, p = {row['p']:.3g}", color=INK)
        return figure

    def __repr__(self) -> str:
        """Groups, labelings and the table."""
        return f"GroupTest({self._summary})\n{self._shown.to_string()}"

    def _repr_html_(self) -> str:
        return cell(f"GroupTest({self._summary})", self._shown)

    @property
    def _summary(self) -> str:
        kind = "all" if self.is_exact else "random"
        groups = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        return (
            f"{groups}; {len(self.distribution)} labelings ({kind}), least p {self.floor:.2g}; shapes "
            f"{_WORDS[self.mode]}"
        )

    @property
    def _shown(self) -> pd.DataFrame:
        return self.table.map(lambda value: f"{value:.4g}")


def group_test(
    shapes: Shapes | Callable[[NDArray[np.int64]], Shapes],
    groups: str | Groups | ArrayLike,
    *,
    statistics: Sequence[str] | None = None,
    mode: Literal["pooled", "refit", "naive"] | None = None,
    num_permutations: int | None = None,
    ridge: float | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = True,
) -> GroupTest:
    r"""Test whether two or more groups have the same mean shape, by permutation of their labels.

    All individuals are aligned with their common mean, which does not depend on labels, and are
    compared in the tangent space there. If labels do not matter, every labeling is as probable as
    that of the data, and the p-value :math:`(1 + \#\{b: T_b \ge T\}) / (1 + B)` is exact for any
    number of individuals. If there are no more labelings than `num_permutations`, all are tried.

    - "goodall": F, the ratio of the scatter between groups to that within; for variation that is
      the same at all landmarks and in all directions.
    - "hotelling": T², in units of the pooled covariance; for equal covariances.
    - "james": Hotelling's statistic with the groups' own covariances, and the same for two groups of one
      size. If the means are equal and the covariances are not, it approximately keeps its level in large
      groups only, of ten individuals or more per coordinate; the others do not in groups of any size,
      but for two of one size.

    Shapes that a model infers are shrunk towards the mean of the group to which the model assigns
    them, so they depend on the labels. Permuting the labels of such shapes ("naive") rejects too
    often. They are therefore inferred with one group for all individuals ("pooled"), or again for
    each labeling ("refit").

    Parameters
    ----------
    shapes : Landmarks, array_like or callable
        Measured landmarks; as an array, of shape (individuals, landmarks, coordinates), with NaN
        where one is missing. An array of shape (individuals, coordinates) is taken as it is: each
        row has the coordinates of a shape. A function infers shapes, as either array, given the
        group of each individual as numbers from 0 on.
    groups : str, Groups or array_like, shape (individuals,)
        Names or numbers; or the name of a covariate of the landmarks.
    statistics : sequence of {"goodall", "hotelling", "james"}, optional
        By default all, without "james" if a group has only one individual.
    mode : {"pooled", "refit", "naive"}, optional
        For a function, by default "pooled".
    num_permutations : int, optional
        By default 9,999, and 199 for "refit", which infers shapes that many times.
    ridge : float, optional
        Added to the variances of "hotelling" and "james", in units of the coordinates squared (radians,
        for landmarks). By default 0 where covariances have full rank; else that of Ledoit and Wolf (2004) for
        the covariance of all individuals.
    seed : int
    n_jobs : int, optional
        For "refit", number of labelings to fit in parallel; by default one, or as
        ``joblib.parallel_config`` sets it. The result is the same.
    progress : bool
        Show the progress of "refit".

    Raises
    ------
    TypeError, ValueError
        For bad input; fewer than two groups, or no group with two individuals; a covariance without full rank
        and a ridge of 0. See also `Landmarks.aligned`.

    Warns
    -----
    SideBayesWarning
        If landmarks are missing, which are then put where the mean has them; if "james" is left
        out; if covariances differ between groups, which "goodall" and "hotelling" do not allow for, or
        groups are too small for "james".

    References
    ----------
    Goodall (1991); James (1954); Dryden and Mardia (2016), Statistical Shape Analysis, chapter 9, whose R
    package shapes gives the same values for two groups by `testmeanshapes` (with T² as F); Phipson and
    Smyth (2010); Yu (2016), section 3.7.3.2, where shapes are "naive".

    Examples
    --------
    >>> import numpy as np, sidebayes
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(6, 2)) + 0.1 * rng.normal(size=(20, 6, 2))
    >>> x[:10, 0] += 0.3
    >>> found = sidebayes.group_test(x, ["a"] * 10 + ["b"] * 10)
    >>> bool(found.table.loc["hotelling", "p"] < 0.01)
    True
    """
    how = _check_mode(mode, callable(shapes))
    if num_permutations is None:
        num_permutations = 199 if how == "refit" else 9999
    number = check_integer("num_permutations", num_permutations)
    rng = np.random.default_rng(check_seed(seed))
    ridge = None if ridge is None else check_number("ridge", ridge, Range(least=0))
    labels = check_groups(groups, shapes)
    asked = _check_statistics(statistics, labels)

    asked_of = _Asked(shapes, labels, asked, ridge)
    first = asked_of.compared(np.zeros_like(labels.codes) if how == "pooled" else labels.codes)
    if doubt := first.doubt(labels.codes, labels.names):
        warn_user(doubt)
    value = first(labels.codes[None])[0]
    is_exact = num_labelings(labels.sizes.tolist()) <= number + 1
    parts: Iterable[NDArray[np.integer]]
    if is_exact:
        parts = [all_labelings(labels.sizes.tolist())]
    else:
        parts = random_labelings(labels.codes, number, first.part, rng)
    if how == "refit":
        tried = np.concatenate(list(parts))
        values = run_tasks(
            _value,
            (Task(f"labeling {number}", one) for number, one in enumerate(tried)),
            asked_of,
            n_jobs=n_jobs,
            title="labelings",
            total=len(tried),
            progress=progress,
        )
        distribution = np.concatenate(list(values))
    else:
        distribution = np.concatenate([first(part) for part in parts])
    return _result(value, distribution, labels, first.ridges, how, is_exact)


class GroupLabels(NamedTuple):
    """Groups of the individuals: their numbers, the names and sizes of the groups."""

    codes: NDArray[np.int64]
    names: NDArray
    sizes: NDArray[np.int64]

    @property
    def alone(self) -> list[str]:
        """Names of the groups of one individual."""
        return [str(name) for name in self.names[self.sizes == 1]]


def usual_statistics(labels: GroupLabels) -> tuple[str, ...]:
    """All statistics that groups of these sizes have."""
    return STATISTICS[: 2 if labels.alone else 3]


class _Asked(NamedTuple):
    """What is compared, the same for all labelings."""

    shapes: Shapes | Callable[[NDArray[np.int64]], Shapes]
    labels: GroupLabels
    statistics: tuple[str, ...]
    ridge: float | None

    def compared(self, under: NDArray[np.integer], warn: bool = True) -> GroupStatistics:
        """Statistics of the shapes, inferred under a labeling if a function infers them."""
        given = self.shapes(under.astype(np.int64)) if callable(self.shapes) else self.shapes
        x, unit = _coordinates(given, warn)
        return _prepared(x, unit, self.labels.sizes, self.statistics, self.ridge)


def _value(asked: _Asked, labeling: NDArray[np.integer]) -> NDArray[np.float64]:
    return asked.compared(labeling, warn=False)(labeling[None])


def _result(
    value: NDArray,
    distribution: NDArray,
    labels: GroupLabels,
    ridges: dict[str, float],
    mode: str,
    is_exact: bool,
) -> GroupTest:
    reached = (distribution >= value * (1 - _SAME)).sum(axis=0)
    count = len(distribution)
    if is_exact:
        equal = np.unique(labels.sizes, return_counts=True)[
            1
        ]  # groups of one size may change names
        p, error = reached / count, np.zeros(len(value))
        floor = prod(map(factorial, equal.tolist())) / count
    else:
        p, floor = (1 + reached) / (1 + count), 1 / (1 + count)
        error = np.sqrt(p * (1 - p) / (1 + count))
    table = pd.DataFrame(
        {"value": value, "p": p, "error": error, "ridge": list(ridges.values())},
        pd.Index(list(ridges), name="statistic"),
    )
    sizes = pd.Series(labels.sizes, pd.Index(labels.names, name="group"), name="individuals")
    values = pd.DataFrame(distribution, columns=list(ridges))
    return GroupTest(table, values, sizes, mode, is_exact, floor)


def _check_mode(mode: Any, is_inferred: bool) -> str:
    if mode is not None and (not isinstance(mode, str) or mode not in _MODES):
        raise ValueError(f"mode = {shown(mode)}; expected one of {list(_MODES)}")
    if is_inferred:
        return mode or "pooled"
    if mode is not None:
        raise ValueError(
            f"mode = {mode!r} is for shapes that a function infers, and these are given; leave it out "
            "if they were measured, or pass the function that infers them from labels"
        )
    return "measured"


def check_groups(groups: Any, shapes: Any) -> GroupLabels:
    """Group of each individual; refuse what leaves nothing to compare."""
    names = shapes.names if isinstance(shapes, Landmarks) else None
    if isinstance(groups, str):
        groups = covariate_column("groups", groups, getattr(shapes, "covariates", None)).to_numpy()
    refuse_other_order("groups", groups, names)
    found = groups if isinstance(groups, Groups) else Groups(groups)
    if found.names is None:
        raise ValueError("groups passed through compiled code, which keeps no names")
    if not callable(shapes):
        size = len(np.atleast_1d(real_array("shapes", shapes)) if names is None else shapes)
        if size != len(found):
            said = f"shapes has {size} individuals and groups has {len(found)}"
            raise ValueError(f"{said}; give one group to each")
    if (found.codes < 0).any():
        row = int(np.argmax(found.codes < 0))
        raise ValueError(
            f"individual {row} has no group; name one, or leave the individual out (Landmarks.take)"
        )
    sizes = np.bincount(found.codes, minlength=found.num_groups)
    if len(sizes) < 2 or sizes.min() < 1:
        raise ValueError(
            f"groups has {int((sizes > 0).sum())} groups with individuals; at least two are compared"
        )
    if sizes.max() < 2:
        raise ValueError(
            "every group has one individual, so that nothing shows how shapes vary within; give more"
        )
    return GroupLabels(found.codes, np.asarray(found.names), sizes)


def _check_statistics(statistics: Any, labels: GroupLabels) -> tuple[str, ...]:
    alone = labels.alone
    if statistics is None:
        if alone:
            warn_user(
                f"groups {alone} have one individual each, and no covariance of their own: 'james' is left "
                "out"
            )
        return usual_statistics(labels)
    asked = (statistics,) if isinstance(statistics, str) else statistics
    known = np.ndim(asked) == 1 and all(isinstance(one, str) and one in STATISTICS for one in asked)
    if not known or not len(asked) or len(set(asked)) < len(asked):
        raise ValueError(f"statistics = {shown(statistics)}; expected some of {list(STATISTICS)}")
    if alone and "james" in asked:
        raise ValueError(
            "statistics has 'james', which takes the covariance of each group, and groups "
            f"{alone} have one individual each; leave 'james' or these groups out"
        )
    return tuple(asked)


def _coordinates(shapes: Any, warn: bool) -> tuple[NDArray[np.float64], float]:
    """Shapes as points of one flat space, and the size of what these were computed from."""
    x = shapes.to_array() if isinstance(shapes, Landmarks) else real_array("shapes", shapes)
    if x.ndim not in (2, 3) or 0 in x.shape:
        raise ValueError(
            f"shapes has shape {x.shape}; expected (individuals, landmarks, coordinates), or (individuals, "
            "coordinates)"
        )
    if x.ndim == 2:
        refuse_gaps("shapes", x, "drop such individuals")
        return x, float(np.abs(x).max())
    marks = shapes if isinstance(shapes, Landmarks) else Landmarks.from_array(x)
    missing = int((~marks.present).sum())
    if missing and warn:
        warn_user(
            f"{missing} landmarks are missing, and are put where the mean of all individuals has them: the "
            "p-values hold, and differences at these landmarks count less"
        )
    aligned = align_landmarks(x, marks.names, marks.landmark_names, warn=warn)
    return aligned.coordinates, 1.0


def _prepared(
    x: NDArray[np.float64],
    unit: float,
    sizes: NDArray[np.int64],
    asked: tuple[str, ...],
    ridge: float | None,
) -> GroupStatistics:
    """Statistics of coordinates, of which those that do not vary by more than rounding are left out."""
    centred = x - x.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    rank = int((values > max(1e-10 * values[0], _ROUNDING * unit)).sum())
    if not rank:
        raise ValueError("all shapes are the same; look whether individuals were copied")
    singular = [name for name in asked if needs_ridge(name, sizes, rank)]
    if singular and ridge == 0:
        raise ValueError(
            f"ridge = 0, and the covariance of {' and '.join(singular)} is singular: {len(x)} individuals of "
            f"{len(sizes)} groups have {rank} coordinates; give a ridge above 0, or None"
        )
    chosen = dict.fromkeys(asked, ridge or 0.0) | {"goodall": 0.0}
    if singular and ridge is None:
        share = min(ledoit_wolf_shrinkage(centred, assume_centered=True), _MOST_SHRUNK)
        mean = np.square(centred).sum() / centred.size
        chosen |= dict.fromkeys(singular, share / (1 - share) * mean)
    reduced = left[:, :rank] * values[:rank]
    return GroupStatistics(reduced, sizes, {name: chosen[name] for name in asked})
