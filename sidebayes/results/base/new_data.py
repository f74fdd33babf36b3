"""New data beside those of a fit: checked, and told which of their groups were fitted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidebayes.guides.engines.problem.declared import declared_blocks, site_dims
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.guides.engines.problem.honoured import is_outcome
from sidebayes.guides.engines.problem.units import given_data
from sidebayes.guides.engines.steps.updates import block_of, plan_updates
from sidebayes.models.blocks.block_facts import CheckingRows
from sidebayes.models.blocks.mixtures.reliability import FlipRate
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links

from ...common.magnitudes import listed, warn_of_far_rows, warn_of_other_units
from ...common.warnings import warn_user
from ...data.tables import in_order_of
from ...runs import checks
from ...runs.arguments import sort_arguments
from ...runs.problems import idle_links
from ...runs.run import Run

__all__ = [
    "check_new",
    "known_groups",
    "refuse_links_to_known",
    "sites_of_groups",
    "stated_links",
    "warn_of_idle_links",
]


def check_new(
    run: Run, data: tuple, named: Mapping[str, Any], optional: Collection[str] = ("links",)
) -> dict[str, Any]:
    """New data by name of the argument, checked by role and against those that were fitted."""
    run.problem  # noqa: B018  a model that is not known refuses
    signature = run.signature
    given, surplus = sort_arguments(signature, data, named, run.method, optional)
    if surplus:
        raise TypeError(f"{sorted(surplus)} are options; new data are all that can be given")
    for role in signature.of_kind("table"):
        if role.name in given:
            columns = run.columns.get(role.name)
            given[role.name] = in_order_of(given[role.name], role.name, columns)
    if "table" not in optional:
        _refuse_lacking(run, given)
    checked = checks.check_given(signature, given, run.method)
    for role in signature.data:  # as the fit has it
        kept = role.chosen is not None and role.name in run.data
        if kept and role.name not in checked:
            checked[role.name] = run.data[role.name]
    checked |= checks.classes_as_learned(signature, checked, run.options)
    for role in signature.of_kind("labels"):
        old, new = run.data.get(role.name), checked.get(role.name)
        if old is not None and new is not None:
            checked[role.name] = new.under(old.names)
    checked |= _links_by_groups_of(run, checked)
    _refuse_links_beyond(run, checked, checks.check_dims(signature, checked))
    for role in signature.of_kind("table"):
        if role.name in run.data and role.name in checked:
            checked[role.name] = _alike(role.name, checked[role.name], run.data[role.name])
        old, new = run.data.get(role.name), checked.get(role.name)
        if old is not None and new is not None and old.shape[1:] != new.shape[1:]:
            what = f"{new.shape[1:]} columns, the fit has {old.shape[1:]}"
            if old.ndim == 2:
                what = f"{new.shape[1]} features, the fit has {old.shape[1]}"
            raise ValueError(f"{role.name}_new has {what}; pass the same columns in the same order")
        if old is not None and new is not None:
            names = run.columns.get(role.name)
            own, before = (
                getattr(some.get(role.own_frame), "codes", None) for some in (checked, run.data)
            )
            frames = {"frames": own, "reference_frames": before}
            warn_of_far_rows(
                role.name, new, old, **frames, by_length=role.of_kernel, names=names, are_new=True
            )
            if old.ndim == 2 and own is None and before is None and not role.of_kernel:
                warn_of_other_units(role.name, new, old, names)
    for role in signature.data:
        role.check({**run.options, **checked}, run.columns)
    _check_rows(run, checked)
    for option, note in signature.chosen:
        if note.suit is not None:
            with run.named_features:
                note.suit(run.options.get(option), checked)
    return checked


def _links_by_groups_of(run: Run, given: Mapping[str, Any]) -> dict[str, Links]:
    """New links with the numbers that their groups have in the fit, if it learned how reliable these are."""
    with run.precision:
        blocks = [block for block, _ in declared_blocks(abstract_trace(run.problem))]
    found = {}
    for role in run.signature.of_kind("links") if _has_rate(blocks) else ():
        old, new = run.data.get(role.name), given.get(role.name)
        if old is None or new is None:
            continue
        group = None if old.group is None else _as_numbered(role.name, new, old.group)
        found[role.name] = replace(new, group=group)
    return found


def _has_rate(blocks: Collection[Any]) -> bool:
    return any(isinstance(block, FlipRate) for block in blocks)


def _as_numbered(name: str, links: Links, fitted: Groups) -> Groups:
    """Groups of links by the numbers of those that were fitted, which each have a flip rate."""
    names = fitted.names.tolist()
    rates = f"flip rates were learned for the groups {listed(names)} alone"
    if links.group is None:
        if len(links) and len(names) > 1:
            raise ValueError(
                f"{name} do not say who stated them, and {rates}; pass Links(..., group=) with one of "
                "these for each link"
            )
        codes = np.zeros(len(links), np.int64)
    else:
        codes = fitted.codes_of(links.group.names)[links.group.codes]
    unknown = np.flatnonzero(codes < 0)
    if len(unknown):
        stated = links.table()["group"].tolist()[unknown[0]]
        raise ValueError(
            f"{name}[{unknown[0]}] is of the group {stated!r}, and {rates}; leave links of other groups "
            "out, or fit again with links of theirs"
        )
    return Groups(fitted.names).take(codes)


def _refuse_links_beyond(run: Run, given: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuse links to what is not among the new data, such as a row of the fit."""
    for role in run.signature.of_kind("links"):
        dim = role.runs_over(given)
        links, size = given.get(role.name), sizes.get(dim)
        if not isinstance(links, Links) or size is None:
            continue
        beyond = np.flatnonzero(links.pairs.max(axis=1, initial=-1) >= size)
        if len(beyond):
            pair = tuple(links.pairs[beyond[0]].tolist())
            raise ValueError(
                f"{role.name}[{beyond[0]}] = {pair}, and there are {size} new {dim}: links of new data join "
                "these alone, numbered from 0; to use links between them and those of the fit, fit all again"
            )


def _alike(name: str, new: NDArray, old: NDArray) -> NDArray:
    """New values as truth values, integers or floats, as those of the fit are.

    Floats stay where they are no integers.

    Raises
    ------
    TypeError
        If they are no truth values, and those of the fit are: a model may compute with these by ``~``.
    """
    if new.dtype.kind == old.dtype.kind:
        return new
    others = new[(new != 0) & (new != 1)] if old.dtype.kind == "b" else new[:0]
    if others.size:
        raise TypeError(
            f"{name} holds {others[0]}, and holds truth values in the fit; pass True or False, or 1 and 0"
        )
    return new.astype(old.dtype) if old.dtype.kind in "fb" or (new == np.round(new)).all() else new


def _refuse_lacking(run: Run, given: Mapping[str, Any]) -> None:
    """Refuse new data without a table of the fit that its model goes by, unless new rows may lack it."""
    _, fitted = given_data(run.problem)
    with run.precision:
        observed = [
            site["value"] for site in filter(is_outcome, abstract_trace(run.problem).values())
        ]
    lacking = [
        role.name
        for role in run.signature.of_kind("table")
        if role.name in run.data and role.name not in given
        if role.chosen is None and not role.omissible
        if not any(
            fitted.get(role.name) is value for value in observed
        )  # whose density is left out
    ]
    if lacking:
        names = {role.name for role in run.signature.data}
        by_design = {"landmarks", "covariates"} <= names and "covariates" in lacking
        raise TypeError(
            f"the fit has {', '.join(lacking)}; pass {lacking[0]} of the new data as well"
            + ", by name or by **design.at(marks), with the design of the fit" * by_design
        )


def _check_rows(run: Run, given: Mapping[str, Any]) -> None:
    """Have blocks look at new rows of what they describe."""
    with run.precision:
        trace = abstract_trace(run.problem)
        plan = plan_updates(run.problem)
        parts = (*plan.starting, *plan.partly_known)
        found = [(block_of(trace, part), part.sources) for part in parts]
    for block, sources in found:
        for name in sources:
            if isinstance(block, CheckingRows) and given.get(name) is not None:
                block.check_rows(name, given[name])


def known_groups(run: Run, given: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
    """Number of each new group among those that were fitted, -1 where there is none, by argument."""
    codes = {}
    for role in run.signature.of_kind("groups"):
        old, new = run.data.get(role.name), given.get(role.name)
        if old is None or new is None:
            continue
        if (old.names.dtype.kind in "fiu") != (new.names.dtype.kind in "fiu"):
            names = [one.names.tolist()[0] for one in (new, old)]
            raise TypeError(
                f"{role.name} are named by {type(names[0]).__name__}, such as {names[0]!r}, and those that "
                f"were fitted by {type(names[1]).__name__}, such as {names[1]!r}; name them as in the fit"
            )
        codes[role.name] = old.codes_of(new.names)
    return codes


def refuse_links_to_known(
    run: Run, given: Mapping[str, Any], codes: Mapping[str, NDArray[np.int64]]
) -> None:
    """Refuse links to groups that were fitted, whose labels no new data change."""
    for role in run.signature.of_kind("links"):
        links, numbers = given.get(role.name), codes.get(role.dims[0])
        if links is None or numbers is None:
            continue
        ends = np.unique(links.pairs)
        known = ends[numbers[ends] >= 0]
        if len(known):
            names = given[role.dims[0]].names
            raise ValueError(
                f"{role.name} join {names.tolist()[known[0]]!r}, of the {role.dims[0]} that "
                "were fitted: labels of these are drawn given the data of the fit. Link new ones only, "
                "or fit again with these links"
            )


def sites_of_groups(
    run: Run, given: Mapping[str, Any], codes: Mapping[str, NDArray[np.int64]]
) -> dict[str, tuple[int, str]]:
    """Sites with a value for each group that was fitted: their axis of groups, and the argument.

    Raises
    ------
    ValueError
        If there are new groups, which have none.
    """
    found: dict[str, tuple[int, str]] = {}
    dims = site_dims(run.problem)
    for site in (*run.unit_sites, *(n for dim in run.rows.beside for n in run.rows.beside[dim])):
        axes = [(axis, dim) for axis, dim in enumerate(dims[site]) if dim in codes]
        if len(axes) != 1:
            continue  # refused with the others that have no value
        found[site] = axes[0]
        role = axes[0][1]
        new = np.flatnonzero(codes[role] < 0)
        if len(new):
            raise ValueError(
                f"{run.method}: site {site!r} has a value for each fitted group of {role!r}, and none for "
                f"{listed(given[role].names[new].tolist())}, which were not fitted; leave these out"
            )
    return found


def stated_links(run: Run) -> list[str]:
    """Arguments with links that state something."""
    return [n for n, v in run.data.items() if isinstance(v, Links) and (v.weights != 0).any()]


def warn_of_idle_links(run: Run) -> None:
    """Warn of links among new points that change nothing."""
    stated = stated_links(run)
    if not stated:
        return
    with run.precision:
        idle = idle_links(run.problem)
    for name in (one for one in stated if one in idle):
        warn_user(
            f"{run.method}: {name} among new points do not change their labels, each of which depends on "
            f"the row and the parameters alone; leave {name} out"
        )
