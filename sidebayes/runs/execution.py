"""A run in three steps: check it, run its engine, describe what came out as a DataTree."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sidebayes.diagnostics.features import write_features
from sidebayes.diagnostics.fitted import Fitted, suits
from sidebayes.diagnostics.links.against import said_against_links
from sidebayes.diagnostics.symmetry.invariants import is_still
from sidebayes.diagnostics.symmetry.matched import MatchedDraws, mean_responsibilities
from sidebayes.diagnostics.tree import to_datatree
from sidebayes.diagnostics.trust.verdict import num_starts_at_best
from sidebayes.guides.engines.base import Engine, EngineResult, FitError, KeptEngine, Status
from sidebayes.guides.engines.given import GivenDraws, given_result
from sidebayes.guides.engines.modes import MISSED_MODE, Modes, modes_missed
from sidebayes.guides.engines.optimisers.edges_of_support import rising_at_edge
from sidebayes.guides.engines.optimisers.elsewhere import mass_elsewhere
from sidebayes.guides.engines.plumbing.checkpoint import keeping
from sidebayes.guides.engines.plumbing.identity import content, digest, is_known
from sidebayes.guides.engines.plumbing.programs import nothing_left_ahead
from sidebayes.guides.engines.problem import posterior
from sidebayes.guides.engines.problem.causes import check_indices, check_repeatable
from sidebayes.guides.engines.problem.declared import (
    observed_values,
    site_roles,
    unit_row_sites,
    values_beside,
)
from sidebayes.guides.engines.problem.density import (
    abstract_trace,
    circular_sites,
    latent_supports,
    shapes_at,
)
from sidebayes.guides.engines.problem.importance import evidence_below
from sidebayes.guides.engines.problem.units import lay_out_units
from sidebayes.guides.engines.problem.values import check_start, check_values
from sidebayes.guides.engines.steps.updates import is_ours
from sidebayes.guides.engines.symmetries.declared import (
    check_symmetries,
    site_symmetries,
    sites_up_to_signs,
)
from sidebayes.guides.engines.symmetries.exchangeable import ClusterAxes, cluster_axes
from sidebayes.guides.engines.symmetries.signs import with_one_sign
from sidebayes.models.blocks.roles import Chosen

from . import problems, stored
from .run import Run
from .zoo import make_engine

__all__ = ["describe_given", "execute", "starting_values"]


class _Found(NamedTuple):
    """What an engine returned, and what the model says of some of its draws."""

    result: EngineResult
    derived: posterior.Derived
    kept: NDArray[np.int64]


def execute(
    run: Run, init: Mapping[str, Any] | Fitted | None = None, *, progress: bool = True
) -> MatchedDraws:
    """Check a run, run its engine, and describe what came out as a DataTree.

    Parameters
    ----------
    run : Run
    init : mapping of str to array_like, or fit, optional
        Where to start.
    progress : bool

    Returns
    -------
    MatchedDraws
        The tree, and what was computed of its draws to describe them.
    """
    began = time.perf_counter()
    values = init if init is None or isinstance(init, Mapping) else init.params
    with run.precision:
        _check(run)
        return _describe(run, _found(run, values, progress), init, began)


def describe_given(
    run: Run, draws: Mapping[str, NDArray], diverging: NDArray | None
) -> MatchedDraws:
    """Describe draws of the latent sites that were made elsewhere, as those of an engine.

    Parameters
    ----------
    run : Run
        Its engine is a `GivenDraws`.
    draws : mapping of str to ndarray, shape (chain, draw, ...)
    diverging : ndarray of bool, shape (chain, draw), or None
    """
    began = time.perf_counter()
    assert isinstance(run.engine, GivenDraws)  # whose draws these are
    with run.precision:
        _check(run)
        result = given_result(run.problem, draws, diverging, run.engine.by)
        found = _derived(run, with_one_sign(run.problem, result))
        return _describe(run, found, None, began)


def starting_values(run: Run, init: Mapping[str, Any] | None) -> dict[str, NDArray] | None:
    """Check starting values; a sampler without any starts near a mode, if the default engine finds one."""
    return _start(run, init)[0]


def _start(
    run: Run, init: Mapping[str, Any] | None
) -> tuple[dict[str, NDArray] | None, Modes | None]:
    """Starting values, and the modes that the search for them found."""
    problem = run.problem
    shapes = posterior.latent_shapes(problem)
    if init is not None:
        return check_start(problem, init), None
    if not run.engine.starts_at_mode:
        return None, None
    finder = make_engine(None, run.card).roughly()
    try:
        mode = finder.run(problem, seed=run.seed, progress=False)
    except FitError:
        return None, None
    if not mode.is_mode:  # far from the bulk of the draws, where no step is small enough
        return None, None
    return {name: mode.params[name] for name in shapes}, mode.modes


def _remarks(run: Run, found: _Found) -> tuple[str, ...]:
    """What the engine and the model say of the draws, and whether the draws missed a mode."""
    result, links = found.result, _doubted(run, found)
    with run.named_features:
        own = problems.remarks(run.problem, result.draws)
    said = *result.remarks, *own, *links
    if run.engine.gives_point and result.is_mode:
        said = *said, *filter(None, [rising_at_edge(run.problem, result)])
    turns = site_symmetries(run.problem)  # along these, other places are the same mode
    below = None
    if result.modes is not None and not run.engine.gives_point and not turns:
        below = modes_missed(result.modes, result.draws)
    if below is None:
        return said
    return (
        *said,
        f"{MISSED_MODE}, {below:.1f} below the highest in log density, so that its share of the posterior is "
        "missing" + "; run an engine that starts from the prior, such as SMC" * suits(run, "smc"),
    )


def _doubted(run: Run, found: _Found) -> list[str]:
    """What labels and points say against the links."""
    links = next(iter(run.links.values()), None)
    if not links:
        return []
    how = {"hard_labels": run.engine.hard_labels, "is_own": run.card is None}
    return said_against_links(run.problem, links, found.derived, found.result.params, **how)


def _searched(run: Run, result: EngineResult, axes: ClusterAxes) -> EngineResult:
    """A result that ended well, or draws from elsewhere, with what a search for mass elsewhere says of it.

    Models of the library declare where runs begin, and places that a symmetry makes of one another are one
    mode.
    """
    problem = run.problem
    symmetric = axes.are_exchangeable or bool(
        site_symmetries(problem) or sites_up_to_signs(problem)
    )
    apart = run.engine.gives_point or run.stream is not None or is_ours(problem)
    judged = result.status.converged or isinstance(run.engine, GivenDraws)
    if apart or symmetric or not judged:
        return result
    found = mass_elsewhere(problem, result.draws, run.seed, result.modes)
    if found is None:
        return result
    message, evidence = f"{result.status.message}; {found}", result.log_evidence
    # a bound holds whatever the draws missed
    if evidence and evidence.kind == "estimate" and evidence.standard_error is not None:
        evidence = evidence_below(evidence.value)  # whose error does not know of this mode
        message += f"; the estimate is no more than a lower bound, {evidence}"
    return replace(result, status=Status(False, message), log_evidence=evidence)


def _check(run: Run) -> None:
    """Refuse what the model with these data cannot be fitted to, before anything is compiled."""
    if run.checkpoint is not None and not isinstance(run.engine, KeptEngine):
        raise ValueError(
            f"engine {run.engine.name!r} keeps no state on its way, so that an interrupted run cannot go "
            "on; leave checkpoint out"
        )
    if run.sample_of and run.stream is None:
        raise ValueError(
            f"the fit keeps a sample of the {run.sample_of} rows of a table on disk, and cannot read the "
            "table again; call sidebayes.fit with the table, and init=fit"
        )
    problem = run.problem
    problems.check_names(problem)
    problems.check_observed(problem, run.method)
    problems.check_bounded(problem, run.engine)
    problems.check_blocks(problem, run.columns)
    check_symmetries(problem, run.seed)
    if run.card is None:
        check_values(problem)
        problems.warn_of_idle_data(problem, run.method)
    problems.warn_of_untold(problem, run.method)
    latent_supports(problem)
    if run.card is None:
        check_repeatable(problem)
        check_indices(problem)
        problems.warn_of_idle_sites(problem, run.method)


def _found(run: Run, init: Mapping[str, Any] | None, progress: bool) -> _Found:
    """Compile ahead, run the engine, and derive labels and densities at some draws."""
    problem, engine = run.problem, run.engine
    hard = engine.hard_labels
    with nothing_left_ahead():
        if is_known(type(engine)):  # the user's may run NumPyro in this thread
            if run.stream is None:
                engine.prepare(problem)
            posterior.derive_ahead(problem, single=engine.gives_point, hard=hard)
        return _derived(run, with_one_sign(problem, _result(run, init, progress)))


def _derived(run: Run, result: EngineResult) -> _Found:
    """A result with labels and densities at some draws, and its status with what options were chosen."""
    said = [
        sentence
        for name, note in run.signature.chosen
        if note.say
        and _is_chosen(run, name, note)
        and (sentence := note.say(run.options.get(name), run.feature_names))
    ]
    status = replace(result.status, message="; ".join([result.status.message, *said]))
    result = replace(result, status=status)
    chains, draws = result.sample_stats["lp"].shape
    kept = posterior.thin(draws, posterior.num_derived(run.problem, chains))
    flat = {n: np.concatenate(v[:, kept]) for n, v in result.draws.items()}
    return _Found(result, posterior.derive(run.problem, flat, hard=run.engine.hard_labels), kept)


def _is_chosen(run: Run, name: str, note: Chosen) -> bool:
    """Whether an option has the value that is chosen where it is left out."""
    others = {key: value for key, value in run.options.items() if key != name}
    value: Any = run.options.get(name)
    return np.array_equal(note.choose(run.data, others), value)


def _result(run: Run, init: Mapping[str, Any] | None, progress: bool) -> EngineResult:
    """Run the engine; a sampler that cannot start at the mode starts without one."""
    began = time.perf_counter()
    start, modes = _start(run, init)
    search = time.perf_counter() - began
    try:
        result = _engine_result(run, start, progress)
    except FitError:
        # a density that rises without bound, as of centred effects, is no place to start from
        if start is None or init is not None:
            raise
        search = time.perf_counter() - began
        modes = None
        result = _engine_result(run, None, progress)
    seconds = {**result.seconds, "search": search}
    return replace(result, seconds=seconds, modes=result.modes or modes)


def _engine_result(run: Run, start: Mapping[str, Any] | None, progress: bool) -> EngineResult:
    """Run the engine, its state kept in a file if the run has a checkpoint."""
    problem, engine = run.fitted_problem, run.engine
    given: dict[str, Any] = {"seed": run.seed, "init": start, "progress": progress}
    if run.checkpoint is None:
        return engine.run(problem, **given)
    assert isinstance(engine, KeptEngine)  # others are refused by _check
    where = run.checkpoint, run.checkpoint_every
    with keeping(*where, engine, run.problem, run.seed, start) as keep:
        return engine.run(problem, **given, keep=keep)


def _describe(
    run: Run, found: _Found, init: Mapping[str, Any] | Fitted | None, began: float
) -> MatchedDraws:
    """Write the DataTree of a run; labels are those at the estimate, so that draws are matched."""
    draws = MatchedDraws(_tree_without_labels(run, found), run.computed)
    if found.derived.mode is not None:
        group = draws.tree["responsibilities"]
        group.attrs["label_sites"] = problems.label_slices(run.problem)
        group.dataset = group.to_dataset().assign(labels=("points", _labels(run, found, draws)))
    if "log_likelihood" in draws.tree:
        sites, about = found.derived.log_likelihood, draws.tree["log_likelihood"].attrs
        about["scored"] = digest(*map(content, observed_values(run.problem, sites)))
        beside = values_beside(run.problem, sites)
        about["beside"] = json.dumps({kind: content(value) for kind, value in beside.items()})
    write_features(draws.tree)
    info = draws.tree["fit_info"].attrs
    if init is not None:
        info["starts_at_best"] = 1 if isinstance(init, Mapping) else num_starts_at_best(init)
        info["began_at"] = "" if isinstance(init, Mapping) else init.method
    elif _is_single(run.engine) and problems.has_one_start(run.problem, run.seed):
        info["one_start"] = 1
    info["seconds"] = json.dumps(_with_total(found.result.seconds, began))
    return draws


def _is_single(engine: Engine) -> bool:
    """Whether an engine climbs from one start, where others have several."""
    return engine.climbs and getattr(engine, "num_restarts", 0) == 1


def _labels(run: Run, found: _Found, draws: MatchedDraws) -> NDArray[np.int64]:
    """Most probable joint labeling at the estimate; by point where labels are not summed out exactly."""
    if found.result.sample_stats["lp"].size == 1 and found.derived.mode is not None:
        return found.derived.mode
    if found.result.approximate is None and not run.engine.hard_labels:
        return posterior.joint_mode(run.problem, draws.params)
    return mean_responsibilities(*draws.relabelled).argmax(axis=1)


def _with_total(parts: Mapping[str, float], began: float) -> dict[str, float]:
    """Parts, what they leave of the total, and the total."""
    total = time.perf_counter() - began
    return {**parts, "other": total - sum(parts.values()), "total": total}


def _frozen(run: Run, result: EngineResult) -> list[str]:
    """Latent sites that a sampler left where they were in all draws, though not for want of room."""
    draws = {name: result.draws[name] for name in posterior.latent_shapes(run.problem)}
    moved = run.engine.length == "num_samples" and result.sample_stats["lp"].size > 1
    still = [n for n, v in draws.items() if moved and n not in result.points and is_still(v)]
    shapes = shapes_at(run.problem, draws) if still else {}
    return [name for name in still if shapes[name].size]


def _tree_without_labels(run: Run, found: _Found) -> xr.DataTree:
    problem, (result, derived, kept) = run.problem, found
    chains = len(result.sample_stats["lp"])
    layout = lay_out_units(problem)
    axes = cluster_axes(problem, result.draws)
    result = _searched(run, result, axes)

    def by_chain(values: NDArray) -> NDArray:
        return values.reshape(chains, len(kept), *values.shape[1:])

    prob = derived.responsibilities
    tree = to_datatree(
        result,
        observed=stored.observed_data(run),
        constant=stored.constant_data(run, layout),
        responsibilities=None if prob is None else by_chain(prob),
        log_likelihood={n: by_chain(v) for n, v in derived.log_likelihood.items()},
        unit_dims={
            n: f"unit_{dim or n}" if len(layout.dims) > (dim is not None) else "unit"
            for n, dim in layout.site_dims.items()
        },
        latents={n: (dims, by_chain(v)) for n, (dims, v) in derived.latents.items()},
        log_prior={n: by_chain(v) for n, v in derived.log_prior.items()},
        dims=axes.dims,
        names=stored.coordinates(run),
        roles=site_roles(problem),
        symmetries=site_symmetries(problem),
        circular=circular_sites(abstract_trace(problem)),
        unit_rows=unit_row_sites(problem),
        computed=axes.dims.keys() - posterior.latent_shapes(problem).keys(),
        numbered=axes.numbered,
        ordered=axes.ordered,
        remarks=(*_remarks(run, found._replace(result=result)), *filter(None, [axes.doubt])),
        attrs=stored.attributes(run),
    )
    tree["fit_info"].attrs["frozen"] = json.dumps(_frozen(run, result))
    return tree
