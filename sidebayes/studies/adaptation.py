"""Choice among moved classifiers, where few classes of the target are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.trust.verdict import num_starts_at_best
from sidebayes.guides.domain_adaptation import (
    ComponentMaps,
    fit_source,
    mixture_by_bic,
    transformed_accuracy,
)
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites, log_joint
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.models.blocks.classes.source_mixture import SourceMixture
from sidebayes.models.blocks.classes.source_worth import source_worth
from sidebayes.models.blocks.roles import signature_of
from sidebayes.models.blocks.side_information.groups import refuse_mixed_orders
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels, as_partial_labels
from sidebayes.models.domain_adaptation import domain_adaptation

from ..api import fit
from ..common.arrays import point_table
from ..common.columns import column_names
from ..common.fields import check_integer, check_seed
from ..data.tables import in_order_of
from ..results.fit import Fit
from ..runs.checks import check_options
from ..tasks import Task, run_tasks
from .choice import read_strengths

__all__ = ["AdaptationChoice", "select_adaptation"]

_FIXED = 1e6
"""Worth of a source that is ported as it is, in sizes of the target."""

_CLOSE = 0.01
"""Change of the expected error from which on a stronger price is not tried."""

_NOT_TAKEN = {
    "strength": "it tries several, pass them as strengths",
    "truth": "score choice.fit.classes() against it",
}
"""What is asked of a fit, and how it is asked of a choice."""

_ONE_MODE = 0.01
"""Difference of log densities up to which two candidates are at the same mode."""

_CLEAR = 2.0
"""Standard errors from which on a difference in expected errors is no chance."""

_LEANING = 1.0
"""Standard errors above the default from which on density alone does not decide against it."""


@dataclass(frozen=True, repr=False)
class AdaptationChoice:
    """Result of `select_adaptation`.

    Attributes
    ----------
    fit : Fit
        The chosen candidate, a fit of `domain_adaptation`.
    candidates : DataFrame
        A row for each: ``prior`` ("ported", the source as it is; "default"; "10 points" and "100
        points", what the source is worth per component; "asked", the given options), ``strength``,
        ``start``, ``error`` expected at the known rows, ``source_accuracy``, the share of the source's
        rows, moved to the target, that get their own class, ``changed``, the share of rows whose class
        differs from that by the source as it is, ``density`` (log joint density of rows and components
        under the default prior, without any price), ``kept``, whether the error is not clearly above the
        smallest one, and whether it is ``chosen``.
    reason : str
        Why it was chosen, and how much the known rows can decide.
    """

    fit: Fit
    candidates: pd.DataFrame
    reason: str

    def __repr__(self) -> str:
        """What was chosen and why, and the whole table."""
        chosen = self.candidates[self.candidates["chosen"]].iloc[0]
        head = f"{chosen['prior']!r} chosen of {len(self.candidates)} candidates: {self.reason}"
        return f"{head}\n{self.candidates.to_string(float_format='{:.4g}'.format)}"


def select_adaptation(
    x: ArrayLike,
    known: ArrayLike | PartialLabels,
    *,
    source_x: ArrayLike | None = None,
    source_labels: ArrayLike | PartialLabels | None = None,
    source: SourceMixture | None = None,
    strengths: Sequence[float] = (1.0, 10.0, 100.0),
    num_starts: int = 10,
    engine: EM | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = True,
    **options: Any,
) -> AdaptationChoice:
    r"""Fit `domain_adaptation` from several starts at rising strengths, and choose one fit.

    The source as it is (ported), the default, and sources that are worth 10 and 100 points per
    component are always among the candidates.

    The candidate of largest density is chosen among those whose expected error at the rows of known class is
    not clearly above the smallest one. Densities are of rows and components under the prior of the default,
    so that a fit which has moved further than the rows support is not preferred: where known rows decide
    nothing, the choice is the default, or a higher mode of it. Density alone does not decide against the
    default where that has fewer errors: it stands against candidates whose error is above its own by more
    than half of what counts as clear.

    An error is clearly above the smallest one if :math:`\sum_i d_i > 2 \sqrt{1 + \sum_i d_i^2}`, where
    :math:`d_i` is the difference of both fits in the probability of an error at row i. The one in the root
    stands for one further row, which could go either way. Fewer than five rows rule out no candidate.

    The table also has the ``source_accuracy``, at rows of the source that are moved into the target by maps
    between components of both (`transformed_accuracy`), whose classes are known. It does not decide, since
    the maps are wrong where components of both domains do not match one to one.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Rows of the target.
    known : array_like or PartialLabels, shape (num_points,)
        Classes of the rows by name or number, -1 where they are not known.
    source_x, source_labels : array_like
        Rows of the source and their classes, which are needed with a `source` as well, to compare the
        candidates. Those of the target are matched to them by name, if they have names.
    source : SourceMixture, optional
        By default ``fit_source(source_x, source_labels)``.
    strengths : sequence of float
        Strengths to try, in rising order, until the smallest error changes by less than 0.01.
    num_starts : int
        Number of starts at each strength: the source, and means moved by up to two deviations. Starts
        that fail are left out; a component may collapse under ``shift="flat"``.
    engine : EM, optional
        By default ``EM(tol=1e-6, max_steps=200, num_inner_steps=30)``. Its ``num_restarts`` is for the
        candidates that are always among them.
    seed : int
    n_jobs : int, optional
        Number of starts to run in parallel; by default one, or as ``joblib.parallel_config`` sets
        it. The result is the same.
    progress : bool
    **options
        Options of `domain_adaptation`, such as ``posterior="partition"`` or ``shift="flat"``.

    Returns
    -------
    AdaptationChoice

    Raises
    ------
    TypeError, ValueError
        If no row of the target has a known class, or an argument is out of range.
    FitError
        If every fit fails.

    References
    ----------
    Raghuram (2014), section 4.3.1. The thesis sets thresholds of the error and of the accuracy of
    moved rows by hand from histograms, and compares objectives that contain the price; the rule is
    our own.
    """
    if source_x is None or source_labels is None:
        lacking = "source_x" if source_x is None else "source_labels"
        raise TypeError(
            f"{lacking} is missing: candidates are compared at rows of the source; pass source_x and "
            "source_labels, or use sidebayes.fit('domain_adaptation', ..., source=...) without them"
        )
    signature = signature_of(domain_adaptation)
    for name, remedy in _NOT_TAKEN.items():
        if name in options:
            raise TypeError(f"select_adaptation takes no {name}; {remedy}")
    own = (name for name in (*signature.options, "worth") if name not in ("source", "strength"))
    check_options(replace(signature, options=tuple(own)), options, "domain_adaptation")
    refuse_mixed_orders(x=x, known=known)
    refuse_mixed_orders(source_x=source_x, source_labels=source_labels)
    names = source.feature_names if source is not None else column_names(source_x, "source_x")
    points, rows = (
        point_table(name, in_order_of(table, name, names, "the source"))
        for name, table in (("x", x), ("source_x", source_x))
    )
    told = _labels("known", known, len(points))
    owners = _labels("source_labels", source_labels, len(rows))
    if not (told.values >= 0).any():
        raise ValueError("known names no class; fit 'domain_adaptation' with strength=0 instead")
    tried = sorted(read_strengths(strengths))
    num_starts, seed = check_integer("num_starts", num_starts), check_seed(seed)
    given = EM(tol=1e-6, max_steps=200, num_inner_steps=30) if engine is None else engine
    if not isinstance(given, EM):
        raise TypeError(f"engine is a {type(given).__name__}; pass an EM")
    if source is None:
        source = replace(
            fit_source(rows, owners, seed=seed, progress=progress), feature_names=names
        )
    told = source.numbered(told, "known")
    labels = source.numbered(owners, "source_labels").values
    if (labels < 0).any():
        raise ValueError("source_labels lacks a class; every row of the source needs one")
    maps = ComponentMaps(mixture_by_bic(rows, None, 10), mixture_by_bic(points, None, 10))
    judge = _judge(points, told, options | {"source": source})
    setting = _Setting(points, told, rows, labels, source, maps, given, seed)
    trials = _Trials(setting, judge, {"n_jobs": n_jobs, "progress": progress})
    anchored = {
        "shift": "source",
        "posterior": "exact",
        "strength": tried[-1],
        "weights_worth": None,
    }
    trials.add(
        _Trial(prior, 0, None, options | anchored | {"worth": worth})
        for prior, worth in _anchors(source, len(points)).items()
    )
    starts = _starts(points, told, options | {"source": source}, seed, num_starts)
    least = np.inf
    for strength in tried:
        priced = options | {"strength": strength}
        best = trials.add(_Trial("asked", r, init, priced) for r, init in enumerate(starts))
        if abs(least - best) < _CLOSE:
            break
        least = best
    return trials.chosen()


def _labels(name: str, values: ArrayLike | PartialLabels, size: int) -> PartialLabels:
    """Classes, one per row."""
    try:
        found = as_partial_labels(values)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    if found.values.shape != (size,):
        raise TypeError(
            f"{name} has shape {found.values.shape}; expected {size} names or numbers of classes"
        )
    return found


class _Setting(NamedTuple):
    """What all candidates have in common."""

    points: NDArray
    known: PartialLabels
    rows: NDArray
    row_labels: NDArray
    source: SourceMixture
    maps: ComponentMaps
    engine: EM
    seed: int


class _Trial(NamedTuple):
    """What one candidate has for itself."""

    prior: str
    start: int
    init: Any
    options: dict[str, Any]


def _candidate(
    shared: _Setting, trial: _Trial
) -> tuple[Fit, dict[str, Any], NDArray[np.float64]] | FitError:
    """Fit one candidate, and describe it but for its density; its probabilities of errors at known rows."""
    engine = shared.engine if trial.init is None else replace(shared.engine, num_restarts=1)
    try:
        candidate = fit(
            "domain_adaptation",
            shared.points,
            shared.known,
            source=shared.source,
            init=trial.init,
            engine=engine,
            seed=shared.seed,
            progress=False,
            **trial.options,
        )
    except FitError as failure:
        return failure
    prob, classes = candidate.class_probabilities, shared.known.values
    own, told = prob(shared.points), classes >= 0
    before = shared.source.predict_proba(shared.points)
    guess = lambda z: prob(z).argmax(axis=1)  # noqa: E731
    errors = 1 - own[told, classes[told]]
    row = {
        "prior": trial.prior,
        "strength": trial.options["strength"],
        "start": trial.start,
        "error": float(errors.mean()),
        "source_accuracy": transformed_accuracy(
            shared.rows, shared.row_labels, shared.maps, guess, own.mean(axis=0)
        ),
        "changed": (own.argmax(axis=1) != before.argmax(axis=1)).mean(),
    }
    return candidate, row, errors


@dataclass
class _Trials:
    """Candidates of a choice, fitted and judged."""

    setting: _Setting
    judge: Callable[[dict[str, NDArray]], float]
    how: dict[str, Any]
    fits: list[Fit] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    errors: list[NDArray] = field(default_factory=list)
    failure: FitError | None = None

    def add(self, trials: Iterable[_Trial]) -> float:
        """Fit candidates; the smallest error at known rows, infinite if every fit fails."""
        named = [Task(f"{t.prior}, {t.options['strength']:g}, start {t.start}", t) for t in trials]
        least = np.inf
        for found in run_tasks(
            _candidate, named, self.setting, title="adaptation", total=len(named), **self.how
        ):
            if isinstance(found, FitError):
                self.failure = found
                continue
            candidate, row, errors = found
            self.errors.append(errors)
            self.table.append(row | {"density": self.judge(candidate.params)})
            self.fits.append(candidate)
            least = min(least, row["error"])
        return least

    def chosen(self) -> AdaptationChoice:
        """The best candidate."""
        if not self.fits:
            assert self.failure is not None  # the last of them
            raise FitError(
                f"every fit failed, the last one with: {self.failure}", self.failure.params
            )
        candidates, reason = _judged(pd.DataFrame(self.table), np.array(self.errors))
        best = int(candidates["chosen"].argmax())
        alike = (candidates["density"] - candidates["density"][best]).abs() <= _ONE_MODE
        # start 0 is the source for each prior
        others = int(candidates["start"][alike].nunique()) - 1
        self.fits[best].tree["fit_info"].attrs.update(
            starts_at_best=num_starts_at_best(self.fits[best]) + others,
            begun_by="select_adaptation",
            more_starts="num_starts",
        )
        return AdaptationChoice(self.fits[best], candidates, reason)


def _anchors(source: SourceMixture, num_points: int) -> dict[str, NDArray | None]:
    """What the source is worth in candidates that are always tried, None where it is chosen."""
    given = {"ported": _FIXED * num_points, "10 points": 10.0, "100 points": 100.0}
    size = source.num_components
    return {"default": None} | {name: np.full(size, worth) for name, worth in given.items()}


def _starts(
    x: NDArray, known: PartialLabels, options: dict[str, Any], seed: int, number: int
) -> list[dict[str, NDArray]]:
    """Values to start from, those of the source in front."""
    with jax.enable_x64(True):
        problem = Problem(domain_adaptation, (jnp.asarray(x), known), options)
        values = initial_values(problem, seed, number, seeded=True)
    size = len(next(iter(values.values())))
    return [{name: value[r] for name, value in values.items()} for r in range(size)]


def _judge(
    x: NDArray, known: PartialLabels, options: dict[str, Any]
) -> Callable[[dict[str, NDArray]], float]:
    """Log joint density of rows and components under the default, no price on errors in it."""
    worth = source_worth(options["source"], x, known)
    common = options | {"shift": "source", "worth": worth.means, "weights_worth": worth.weights}
    common |= {"posterior": "exact", "strength": 0.0}
    with jax.enable_x64(True):
        problem = Problem(domain_adaptation, (jnp.asarray(x),), common)
        names = latent_sites(abstract_trace(problem))
        density = jax.jit(lambda params: log_joint(problem, params))

    def judge(params: dict[str, NDArray]) -> float:
        with jax.enable_x64(True):
            return float(density({name: jnp.asarray(params[name]) for name in names}))

    return judge


def _standard_errors(errors: NDArray, least: NDArray) -> NDArray[np.float64]:
    """By how many standard errors candidates have more errors than others, one further row included."""
    more = errors - least
    return np.asarray(more.sum(axis=1) / np.sqrt(1 + (more**2).sum(axis=1)))


def _judged(table: pd.DataFrame, errors: NDArray) -> tuple[pd.DataFrame, str]:
    """Mark candidates whose errors may be the fewest, and the densest of them; why it was chosen.

    `errors` are probabilities of an error, by candidate and known row.
    """
    default = table["prior"] == "default"
    kept = _standard_errors(errors, errors[errors.sum(axis=1).argmin()]) <= _CLEAR
    near = kept
    if (kept & default).any():
        near = kept & (_standard_errors(errors, errors[default.argmax()]) <= _LEANING)
    density = table["density"].where(near)
    best = int((density >= density.max() - _ONE_MODE).argmax())  # the default is in front
    rows = errors.shape[1]
    where = f"the {rows} rows of known class" if rows > 1 else "the one row of known class"
    kin = f"the {int(kept.sum())} whose errors at {where} cannot be told from the fewest"
    denser = kept & (table["density"] > density.max())
    besides = "; those with more errors than the default are left out" if denser.any() else ""
    reason = [f"of {kin}, it has the largest density{besides}."]
    if default[best]:
        reason.append("It is what `fit` makes by itself.")
    elif (kept & default).any():
        gap = table["density"][best] - table["density"][default].max()
        reason.append(f"That of the default is lower by {gap:.2g} nats.")
    elif default.any():
        reason.append("The default has clearly more errors.")
    if rows <= _CLEAR * np.sqrt(1 + rows):
        reason.append("So few rows can rule out no candidate.")
    elif kept.all():
        reason.append("These rows rule out no candidate.")
    return table.assign(kept=kept, chosen=table.index == best), " ".join(reason)
