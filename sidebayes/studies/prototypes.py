"""Fits of which a discrete part is found first: prototypes of classes, components of labelled rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from sidebayes.diagnostics.trust.verdict import num_starts_at_best
from sidebayes.guides.engines.base import Engine, Problem
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.plumbing.progress import progress_bar
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.nfgl import place_anchors
from sidebayes.guides.pfgl import grown_prototypes
from sidebayes.models.blocks.classes.anchors import Anchors
from sidebayes.models.blocks.classes.class_table import either
from sidebayes.models.blocks.classes.prototype_block import prototype_prior
from sidebayes.models.blocks.collapsed import unexpanded
from sidebayes.models.blocks.components.gaussian_prior import resolve_prior
from sidebayes.models.blocks.roles import signature_of
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels, as_partial_labels

from ..api import fit
from ..common.fields import Range, check_integer, check_number
from ..common.magnitudes import counted
from ..common.warnings import warn_user
from ..results.fit import Fit
from ..runs.checks import check_options
from ..runs.zoo import find_card

__all__ = ["fit_nfgl", "free_parameters", "grow_prototypes"]

_OF_FITS = ("dtype", "feature_names")
"""Arguments of `sidebayes.fit` that both steps take."""


def free_parameters(covariance: str, num_features: int, num_clusters: int) -> int:
    """Free parameters of the density of one Gaussian component; those of tied ones shared out.

    Parameters
    ----------
    covariance : {"full", "tied", "diagonal", "spherical"}
    num_features, num_clusters : int
    """
    full = num_features * (num_features + 1) / 2
    spread = {
        "full": full,
        "tied": full / num_clusters,
        "diagonal": num_features,
        "spherical": 1,
    }
    return num_features + spread[covariance]  # type: ignore[return-value]


def grow_prototypes(
    x: Annotated[ArrayLike, "points features"],
    known: Annotated[ArrayLike | PartialLabels, "points"],
    *,
    num_clusters: int,
    num_classes: int,
    engine: str | Engine | None = None,
    base: Fit | None = None,
    lookahead: int = 1,
    most_prototypes: int = 200,
    seed: int = 0,
    truth: ArrayLike | None = None,
    progress: bool = True,
    **options: Any,
) -> Fit:
    """Fit `pfgl`, adding prototypes as long as they shorten its code length.

    A `moe` is fitted first; prototypes are added to its components while the code length falls, and
    then everything is fitted together (Raghuram 2014, section 2.4.5).

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Features in one unit, since prototypes use Euclidean distances.
    known : array_like of int, or PartialLabels
        Class of each row, -1 where it is not known.
    num_clusters, num_classes : int
    engine : str or engine, optional
        Engine of the last step; EM by default.
    base : Fit, optional
        A fit of `moe` to the same data, which saves the first step.
    lookahead : int
        Number of insertions that may raise the code length before growth ends; see
        `sidebayes.guides.pfgl.grow`.
    most_prototypes : int
    seed : int
    truth : array_like, shape (num_points,), optional
        Known classes to score the fit by; see `sidebayes.fit`.
    progress : bool
    **options
        Options of the model: ``covariance``, ``prior``, ``concentration``, ``label_noise``.

    Returns
    -------
    Fit
        A fit of `pfgl`. Its tree holds ``tree["fit_info"].attrs["growth"]``: pairs of a number of
        prototypes and the code length in nats, in JSON.

    Raises
    ------
    TypeError, ValueError
        For bad input, a base of other numbers or classes, or if no class is known of any row.

    Examples
    --------
    >>> import numpy as np
    >>> import sidebayes
    >>> iris = sidebayes.load_dataset("iris")
    >>> known = np.where(np.arange(150) % 10 == 0, iris.labels, -1)
    >>> result = sidebayes.grow_prototypes(iris.x, known, num_clusters=3, num_classes=3)
    >>> result.classes()["class"].shape
    (150,)
    """
    check_integer("lookahead", lookahead)
    check_integer("most_prototypes", most_prototypes, num_clusters)
    _check_options("pfgl", options)
    sizes: dict[str, Any] = {"num_clusters": num_clusters, "num_classes": num_classes}
    if base is None:
        base = fit("moe", x, known, seed=seed, progress=progress, **sizes, **options)
    else:
        known = _known_to(base, known, sizes)
    _warn_of_absent(base, num_classes)
    log_joint, stated, data = _at_params(base)
    covariance = base.options.get("covariance", "full")
    with base.run.precision:
        prior = resolve_prior(options.get("prior", "empirical"), data, num_clusters)
        around = None if prior is None else prototype_prior(prior, num_clusters)
    with progress_bar("growth", shown=progress) as advance:
        grown = grown_prototypes(
            data,
            log_joint,
            stated,
            per_component=free_parameters(covariance, data.shape[1], num_clusters),
            lookahead=lookahead,
            most=most_prototypes,
            prior=around,
            progress=lambda number: advance(1, f"{number} prototypes"),
        )
    shared = {n: v for n, v in base.params.items() if n != "class_table"}
    found = fit(
        "pfgl",
        x,
        known,
        engine=engine,
        seed=seed,
        truth=truth,
        progress=progress,
        init=shared | {"prototype": grown.points, "log_scale": np.log(grown.scale)},
        prototypes=tuple(zip(map(int, grown.clusters), map(int, grown.classes), strict=True)),
        **sizes,
        **options,
    )
    found.tree["fit_info"].attrs.update(_starts_of(base), growth=json.dumps(grown.path))
    return found


def fit_nfgl(
    x: Annotated[ArrayLike, "points features"],
    known: Annotated[ArrayLike | PartialLabels, "points"],
    *,
    num_clusters: int,
    num_classes: int,
    engine: str | Engine | None = None,
    base: Fit | None = None,
    smoothing: float = 1e-3,
    sweeps: int = 20,
    seed: int = 0,
    truth: ArrayLike | None = None,
    progress: bool = True,
    **options: Any,
) -> Fit:
    """Fit `nfgl`: a mixture, the component of each labelled row, and the reach of their votes.

    A `moe` is fitted first, for the class table; labelled rows begin in the component that their
    features make most probable (Raghuram 2014, section 2.3.4).

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Features in one unit, since votes use Euclidean distances.
    known : array_like of int, or PartialLabels
        Class of each row, -1 where it is not known. Rows with several admissible classes do not vote.
    num_clusters, num_classes : int
    engine : str or engine, optional
        Engine of the last step, given the components of labelled rows; EM by default.
    base : Fit, optional
        A fit of `moe` to the same data, which saves the first step.
    smoothing : float
        See `nfgl`.
    sweeps : int
        Number of sweeps over the components of labelled rows in each step of the search; 0 keeps the
        initial ones.
    seed : int
    truth : array_like, shape (num_points,), optional
        Known classes to score the fit by; see `sidebayes.fit`.
    progress : bool
    **options
        Options of the model: ``covariance``, ``prior``, ``concentration``.

    Returns
    -------
    Fit
        A fit of `nfgl`.

    Raises
    ------
    TypeError, ValueError
        For bad input, a base of other numbers or classes, or if fewer than two rows have a known class.
    """
    check_number("smoothing", smoothing, Range(above=0.0, most=1.0))
    check_integer("sweeps", sweeps, 0)
    _check_options("nfgl", options)
    sizes: dict[str, Any] = {"num_clusters": num_clusters, "num_classes": num_classes}
    if base is None:
        base = fit("moe", x, known, seed=seed, progress=progress, **sizes, **options)
    else:
        known = _known_to(base, known, sizes)
    told = base.run.data["known"]
    classes = told.classes
    rows = np.flatnonzero(np.asarray(classes) >= 0)
    if len(rows) < 2:
        raise ValueError(
            f"known names the class of {counted(len(rows), 'row')}, and nfgl needs two at least, since the "
            "labelled rows of a component vote on the class of one another; name the classes of more rows"
        )
    _warn_of_absent(base, num_classes)
    log_joint, _, data = _at_params(base)
    table = base.params["class_table"]
    begin = Anchors(data[rows], classes[rows], log_joint[rows].argmax(axis=1), table)
    shared = {n: v for n, v in base.params.items() if n != "class_table"}
    with base.run.precision:
        settings = {"num_clusters": num_clusters, **options}
        search: dict[str, Any] = {"seed": seed, "smoothing": smoothing, "sweeps": sweeps}
        placed = place_anchors(data, rows, begin, shared, settings, **search)
    assigned = np.full(len(data), -1)
    assigned[rows] = placed.clusters
    found = fit(
        "nfgl",
        x,
        assigned,
        anchors=Anchors(data[rows], classes[rows], placed.clusters, table, told.names),
        engine=engine,
        seed=seed,
        truth=truth,
        progress=progress,
        init=placed.params,
        smoothing=smoothing,
        **sizes,
        **options,
    )
    found.tree["fit_info"].attrs.update(_starts_of(base))
    return found


def _starts_of(base: Fit) -> dict[str, Any]:
    """What the tree of a fit says that began where another ended."""
    return {"starts_at_best": num_starts_at_best(base), "began_at": base.method}


def _check_options(method: str, options: Mapping[str, Any]) -> None:
    """Refuse what is no option of a method and of `moe`, which is fitted before it."""
    own, before = (signature_of(find_card(name).model) for name in (method, "moe"))
    both = tuple(name for name in own.options if name in before.options)
    given = {name: value for name, value in options.items() if name not in _OF_FITS}
    check_options(replace(own, options=both), given, method)


def _warn_of_absent(base: Fit, num_classes: int) -> None:
    """Warn of classes that no row is known to have, whose probability is zero at every row."""
    absent = np.setdiff1d(np.arange(num_classes), base.run.data["known"].classes)
    if 0 < absent.size < num_classes:  # without any known row there is no fit
        warn_user(
            f"known names no row of class {either(absent)} of num_classes = {num_classes}, which is "
            "predicted nowhere; name rows of it, or lower num_classes"
        )


def _known_to(
    base: Fit, known: ArrayLike | PartialLabels, sizes: Mapping[str, int]
) -> PartialLabels:
    """Known classes as a fit of `moe` numbers them.

    Raises
    ------
    ValueError
        If it is a fit of another method, or of other numbers, or was told other classes.
    """
    if base.method != "moe":
        raise ValueError(f"base is a fit of {base.method}; pass one of 'moe', or leave it out")
    for name, asked in sizes.items():
        if base.options[name] != asked:
            raise ValueError(
                f"base is a fit with {name} = {base.options[name]}, and {name} = {asked} here; pass "
                f"{name}={base.options[name]}, or leave base out"
            )
    told: PartialLabels | None = base.run.data.get("known")
    given = as_partial_labels(known)
    if told is not None:
        given = given.under(told.names, "known", "base")
    if told is None or not np.array_equal(given.values, told.values):
        raise ValueError("known are other classes than those that base was told; leave base out")
    return told


def _at_params(base: Fit) -> tuple[NDArray, NDArray, NDArray]:
    """Log joint densities of rows and components, statements, and the rows."""
    run = base.run

    def build(problem: Problem) -> Callable:
        def at(params: dict[str, Array], args: tuple) -> tuple[Array, Array | None, Array]:
            site = trace_model(problem, params, args)["x"]
            fn = unexpanded(site["fn"])
            factors = fn.log_factors(site["value"])
            return factors["unary"] + factors["log_weights"], fn.stated, site["value"]

        return at

    with run.precision:
        given = base.params, run.problem.args
        log_joint, stated, rows = Clock().run("rows-at-params", run.problem, None, build, *given)
    if stated is None:
        raise ValueError("known is missing; prototypes are placed by rows whose class is known")
    return np.asarray(log_joint), np.asarray(stated), np.asarray(rows)
