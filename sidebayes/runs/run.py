"""One run: a model, its data and options, and the engine; everything that a fit can be repeated from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpy.typing import NDArray

from sidebayes.guides.engines.base import Engine, Problem
from sidebayes.guides.engines.expectation_maximisation.streamed_data import StreamedTable, streamed
from sidebayes.guides.engines.plumbing.identity import freeze
from sidebayes.guides.engines.plumbing.programs import refuse_fork
from sidebayes.guides.engines.problem import posterior
from sidebayes.guides.engines.problem.causes import check_indices
from sidebayes.guides.engines.problem.units import Named, dimensions
from sidebayes.models.blocks.classes.anchors import Anchors
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.roles import Role, Signature, signature_of
from sidebayes.models.blocks.side_information.links import Links

from ..common.arrays import plain_array
from ..common.columns import by_name
from . import checks, problems, record
from .rows import Rows, look_at_rows
from .zoo import CARDS, Card, inference_used, links_taken

__all__ = ["Run", "same", "stated_options"]


@dataclass(frozen=True, eq=False)
class Run:
    """A fit to be made: model, data, options and engine; `dataclasses.replace` makes variants of it.

    Attributes
    ----------
    method : str
        Name of the card, or of the user's model.
    model : callable or None
        None if a loaded fit is of a user's own model that was not passed again.
    data : mapping of str to object
        Data by name of the argument: arrays, `Links`, `Groups`, `PartialLabels`, sets of rows.
    options : mapping of str to object
        Options of the model.
    engine : Engine
    seed : int
    dtype : {"float64", "float32"}
    truth : ndarray of int, or None
        Known classes, for scoring.
    feature_names : tuple of str
        Names of the columns of the first table that has columns.
    columns : mapping of str to tuple of str
        Names of the columns of tables that were given with names.
    lost : mapping of str to str
        Options that a loaded file could not hold, and what they were.
    is_own : bool
        Whether a loaded fit is of a user's own model.
    unseen : bool
        Whether the data differ from those of the fit.
    checkpoint : str or None
        File that keeps the state of the engine; a saved fit does not name it.
    checkpoint_every : float
        Minimum number of seconds between two writes.
    sample_of : int
        Number of rows of the table on disk that was fitted, where `data` are a sample of them; else 0.
    sample_rows : ndarray of int, or None
        Numbers of the rows of that sample in the table, in their order.
    stream : StreamedTable or None
        That table; a saved fit does not name it, and other data are without.
    """

    method: str
    model: Callable[..., None] | None
    data: Mapping[str, Any]
    options: Mapping[str, Any]
    engine: Engine
    seed: int = 0
    dtype: str = "float64"
    truth: NDArray[np.int64] | None = None
    feature_names: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    is_own: bool = False
    unseen: bool = False
    checkpoint: str | None = None
    checkpoint_every: float = 60.0
    sample_of: int = 0
    sample_rows: NDArray[np.int64] | None = None
    stream: StreamedTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Fields only: what is kept beside them is found again, and traces cannot be pickled."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def signature(self) -> Signature:
        """Roles of the model's arguments."""
        assert self.model is not None  # refused by `problem`
        return signature_of(self.model)

    @property
    def stated(self) -> dict[str, Any]:
        """Options that are not at the model's defaults; see `stated_options`."""
        assert self.model is not None  # refused by `problem`
        return stated_options(self.model, self.options)

    @property
    def card(self) -> Card | None:
        """The card of the model, unless it is another one that goes by the same name."""
        card = CARDS.get(self.method)
        return card if card is not None and card.is_of(self.model) else None

    @property
    def links(self) -> dict[str, Links]:
        """Links among the data, by name of the argument; those that tie labels come first."""
        found = {n: value for n, value in self.data.items() if isinstance(value, Links)}
        if len(found) > 1 and self.model is not None:
            with self.precision:
                tying = problems.tying_argument(self.problem)
            found = dict(sorted(found.items(), key=lambda item: item[0] != tying))
        return found

    @property
    def precision(self) -> Any:
        """Context in which arrays have the precision asked for."""
        refuse_fork()  # before anything is put on the device
        return jax.enable_x64(self.dtype == "float64")

    @property
    def named_features(self) -> AbstractContextManager[None]:
        """Context in which messages name the features, if they have names; see `column_name`."""
        return by_name({"x": self.feature_names} if self.columns else {}, "x")

    @cached_property
    def problem(self) -> Problem:
        """The model with its data on the device, in the precision asked for; trace it under `precision`."""
        if self.model is None:
            raise ValueError(record.remedy(self.method, self.lost, own_model=self.is_own))
        with self.precision:
            return self._on_arguments(self.model)

    def _on_arguments(self, model: Callable[..., None]) -> Problem:
        names, args, static = [], [], {}
        host = {n: v for n, v in self.data.items() if not isinstance(v, Links)}
        sizes = dimensions(self.signature, host)
        for role in self.signature.data:
            value = self.data.get(role.name)
            if role.kind == "links" and (value is not None or role.runs_over(host) in sizes):
                value = self.graph(role, sizes.get(role.runs_over(host)))
            if value is None:
                continue
            if role.kind == "sets":
                static[role.name] = value
                continue
            names.append(role.name)
            args.append(self._on_device(value))
        held = {n: _arrays(n, self.options.get(n)) for n in self.signature.held}
        held = {n: self._on_device(value) for n, value in held.items() if value is not None}
        names += held
        args += held.values()
        traced = [r.name for r in self.signature.data if r.kind != "sets"]
        first = list(inspect.signature(model).parameters)[: self.signature.positional]
        in_order = names == traced[: len(names)] == first[: len(names)]
        problem = Problem(
            model if in_order else Named(model, tuple(names)),
            tuple(args),
            {**{n: v for n, v in self.options.items() if n not in held}, **static},
            unseen=self.unseen,
            row_numbers=self.sample_rows,
        )
        return problems.suit_links(problem)

    def _on_device(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            floats = value.dtype.kind == "f"
            return jax.device_put(value.astype(self.dtype) if floats else value)
        if isinstance(value, LabelGraph):
            return value
        return jax.tree.map(jax.device_put, value)

    def graph(self, role: Role, size: int | None) -> LabelGraph | None:
        """Links of an argument compiled, between `size` elements."""
        assert self.model is not None  # refused by `problem`
        kind = links_taken(self.card, self.model)
        links = self.data.get(role.name)
        if size is None:
            raise ValueError(
                f"{role.name} joins {role.dims[0]}, and no other data say how many there are; annotate "
                f"a table by {role.dims[0]!r}, or Groups of that name"
            )
        inference = inference_used(self.card, self.model, self.options)
        clusters = self.options.get("num_clusters")
        return checks.check_links(links, size, clusters, kind, self.method, inference)

    def subset(self, keep: Mapping[str, NDArray[np.bool_]]) -> Run:
        """The run on a part of the data.

        Parameters
        ----------
        keep : mapping of str to ndarray of bool
            Elements to keep along dimensions. Rows of groups that are left out are left out; other groups
            keep their numbers, which sites with a value for each go by.
        """
        masks, data = self.masks(keep), {}
        for role in self.signature.data:
            value = self.data.get(role.name)
            if value is not None:
                data[role.name] = _cut(role, value, masks, self.data)
        return replace(self, data=data, truth=None, sample_rows=None, stream=None)

    def masks(self, keep: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[np.bool_]]:
        """The elements to keep along dimensions, rows of groups among them."""
        masks = dict(keep)
        groups = [role for role in self.signature.of_kind("groups") if self.data.get(role.name)]
        for role in groups:
            if role.name in masks:
                codes = np.asarray(self.data[role.name].codes)
                masks.setdefault(role.dims[0], masks[role.name][codes])
        return masks

    def with_data(self, data: Mapping[str, Any], known: Collection[str] = ()) -> Run:
        """The run on other data, with the prior that these data gave; what is left out is without.

        Raises
        ------
        ValueError
            If sites belong to single units of the data, or to elements of another dimension that these
            data give otherwise, so that other data have none, unless their values there are `known`; or if
            the model takes no other rows.
        """
        own, fixed = [name for name in self.unit_sites if name not in known], self.rows.fixed
        if own:
            raise ValueError(
                f"{self.method}: sites {own} belong to single units of the data that were fitted, so "
                f"that other data have no density given the fit{f' ({fixed})' if fixed else ''}"
            )
        self._refuse_others_beside(data, known)
        sizes = (dimensions(self.signature, some) for some in (self.data, data))
        self.rows.refuse_others(self.method, same_number=next(sizes) == next(sizes))
        bare = replace(self.settled(), truth=None, sample_rows=None, stream=None)
        new = replace(bare, data=data, unseen=True)
        if self.card is None:
            with self.precision:
                check_indices(new.problem)
        return new

    def _refuse_others_beside(self, data: Mapping[str, Any], known: Collection[str]) -> None:
        """Refuse data that may be of other schools, say, than those that sites have values for."""
        for dim, sites in self.rows.beside.items():
            own = [name for name in sites if name not in known]
            for role in self.signature.data if own else ():
                old, new = self.data.get(role.name), data.get(role.name)
                if role.name == dim:  # groups
                    old, new = (getattr(some, "names", None) for some in (old, new))
                elif role.dims[:1] != (dim,):
                    continue
                if not same(old, new):
                    raise ValueError(
                        f"{self.method}: sites {own} have a value for each of the {dim} that were fitted, "
                        f"and {role.name} is not as in the fit, so that these may be other {dim}, of which "
                        f"nothing is known; pass {role.name} as it was fitted, or fit again"
                    )

    @property
    def fitted_problem(self) -> Problem:
        """The problem for the engine, which reads a table on disk by itself."""
        if self.stream is None:
            return self.problem
        (table,) = (r.name for r in self.signature.of_kind("table") if r.name in self.data)
        return streamed(self.problem, table, self.stream)

    def computed(
        self, names: Collection[str], draws: Mapping[str, NDArray]
    ) -> dict[str, NDArray] | None:
        """Deterministic sites at draws of the latent ones, shape (num_draws, ...); None without the model."""
        if self.model is None:
            return None
        with self.precision:
            return posterior.computed_sites(self.problem, tuple(names), draws)

    @property
    def unit_sites(self) -> list[str]:
        """Latent sites whose shape depends on how many units there are."""
        with self.precision:
            latent = posterior.latent_shapes(self.problem)
        return [name for name in self.sized_by_units if name in latent]

    @property
    def sized_by_units(self) -> tuple[str, ...]:
        """Latent and deterministic sites whose shape depends on how many units there are."""
        return self.rows.sized

    @cached_property
    def rows(self) -> Rows:
        """What the number of rows means to the model."""
        with self.precision:
            return look_at_rows(
                self.problem,
                self.signature,
                self.data,
                lambda keep: replace(self.subset(keep), unseen=True).problem,
            )

    def settled(self) -> Run:
        """The run with its prior fixed, where that was read off the data."""
        assert self.model is not None  # refused by `problem`
        default = inspect.signature(self.model).parameters.get("prior")
        prior = self.options.get("prior", getattr(default, "default", None))
        if not (isinstance(prior, str) and prior == "empirical"):
            return self
        with self.precision:
            found = problems.empirical_prior(self.problem)
        if found is None:
            return self
        return replace(self, options={**self.options, "prior": found})


def same(one: Any, other: Any) -> bool:
    """Whether two values of data are equal."""
    return freeze(one) == freeze(other)


def stated_options(model: Callable[..., None], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are not at the defaults of a model, by name in order: equal for equal posteriors.

    Numbers are of the kind of the default, so that 1 and 1.0 are the same where the default is 1.0, and
    sequences of numbers are arrays. The number of clusters is always among them, since every fit states it.
    """
    parameters, found = inspect.signature(model).parameters, {}
    for name, given in sorted(options.items()):
        default = _plain(getattr(parameters.get(name), "default", inspect.Parameter.empty))
        value = _plain(given)
        if isinstance(default, int | float) and isinstance(value, int | float):
            value = default if value == default else value
            value = float(value) if type(default) is float else value
        if name == "num_clusters" or not same(value, default):
            found[name] = value
    return found


def _plain(value: Any) -> Any:
    """Numbers as those of Python, sequences and distributions of numbers with arrays of one kind."""
    try:
        if isinstance(value, dist.Distribution):
            return jax.tree.map(lambda leaf: np.asarray(leaf, float), value)
        if not isinstance(value, list | tuple | np.generic | np.ndarray | jax.Array):
            return value
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of several lengths, or no numbers
        return value
    if array.dtype.kind not in "biuf":
        return value
    return array.astype(float) if array.ndim else array.item()


def _arrays(name: str, value: Any) -> Any:
    """Value of an option as a pytree of numbers, None if it is none."""
    value = plain_array(name, value) if isinstance(value, list | tuple) else value
    value = value.padded() if isinstance(value, Anchors) else value
    leaves = jax.tree.leaves(value)
    numbers = (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" for leaf in leaves)
    return value if leaves and all(numbers) else None


def _cut(
    role: Role, value: Any, masks: Mapping[str, NDArray[np.bool_]], data: Mapping[str, Any]
) -> Any:
    if role.kind == "table":
        for axis, dim in enumerate(role.dims[: value.ndim]):
            if dim in masks:
                value = value[(slice(None),) * axis + (masks[dim],)]
        return value
    mask = masks.get(role.runs_over(data))
    if mask is None:
        return value
    if role.kind == "links":
        some = value.subset(mask)
        return some if len(some) else None
    if role.kind == "groups":
        some = value.subset(np.flatnonzero(mask))
        renumbered = role.name not in masks and some.num_groups < value.num_groups
        return value.take(mask) if renumbered else some
    if role.kind == "labels":
        return value.subset(mask)
    place = np.cumsum(mask) - 1
    inside = [np.asarray(one)[mask[np.asarray(one)]] for one in value]
    return tuple(place[one] for one in inside if len(one) > 1)
