"""Roles of a model's arguments as data or options, read from its signature."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Union, get_args, get_origin

import jax

from .label_inference.label_graph import LabelGraph
from .side_information.groups import Groups
from .side_information.links import Links
from .side_information.partial_labels import PartialLabels

__all__ = [
    "Checked",
    "Chosen",
    "Held",
    "KernelFeatures",
    "Like",
    "Missing",
    "Omissible",
    "OwnFrame",
    "Role",
    "Signature",
    "Truncation",
    "function_of",
    "signature_of",
]

_KINDS: dict[Any, str] = {
    Links: "links",
    LabelGraph: "links",
    Groups: "groups",
    PartialLabels: "labels",
}


@dataclass(frozen=True)
class Chosen:
    """In the annotation of a table or an option: how it is chosen if it is left out.

    A fit chooses it once. Data that are left out later are those of the fit, and its options are
    kept.

    Attributes
    ----------
    choose : callable
        ``choose(data, options)`` takes the other data and the options of the model. It returns an
        array for a table and a value for an option, or None if the model needs none. Options are
        chosen from the given data, without the chosen ones.
    check : callable or None
        ``check(data)`` refuses, or warns about, data that do not suit a table that was not chosen
        from them (a given table, or that of the fit).
    suit : callable or None
        ``suit(value, data)`` refuses, or warns about, new data that do not suit the value of an
        option.
    say : callable or None
        ``say(value, names)`` returns what the status of a fit reports about the value of an option,
        given the names of features, without a full stop; None if nothing.
    """

    choose: Callable[[typing.Mapping[str, Any], typing.Mapping[str, Any]], Any]
    check: Callable[[typing.Mapping[str, Any]], None] | None = None
    suit: Callable[[Any, typing.Mapping[str, Any]], None] | None = None
    say: Callable[[Any, Sequence[str]], str | None] | None = None


@dataclass(frozen=True)
class Checked:
    """In the annotation of data: a check of these and other data, before a fit or a prediction.

    Attributes
    ----------
    check : callable
        ``check(data)``, given all data and options by name, refuses or warns.
    with_columns : bool
        Whether the call is ``check(data, columns)``, with the names of columns by table.
    """

    check: Callable[..., None]
    with_columns: bool = False


@dataclass(frozen=True)
class Held:
    """In the annotation of an option: its arrays are arguments of programs, not constants in them.

    Fits that differ only in the numbers of such an option share their programs. Values are
    sequences of numbers, or pytrees of arrays; other values are constants. Inside a program the
    arrays are traced: a model cannot branch on them, nor pass them to code that needs concrete
    numbers, such as the maps of another `EffectsPrior`.
    """


@dataclass(frozen=True)
class Like:
    """In the annotation of a table or partial labels: an option was learned from the columns or classes.

    Attributes
    ----------
    option : str
        Name of this option. Its value has the names of the columns as ``feature_names``, None
        without names, and numbers known classes by ``numbered(labels, name)``.
    """

    option: str


@dataclass(frozen=True)
class Missing:
    """In the annotation of a table: values may be missing (NaN), and the model integrates them out."""


@dataclass(frozen=True)
class Omissible:
    """In the annotation of an optional table: new rows may lack it even if rows of the fit have it."""


@dataclass(frozen=True)
class OwnFrame:
    """In the annotation of a table: rows of each group have a frame with arbitrary location and unit.

    Attributes
    ----------
    groups : str
        Argument that holds the groups.
    """

    groups: str


@dataclass(frozen=True)
class KernelFeatures:
    """In the annotation of a table: columns are kernel features, which may vanish at nearly all rows.

    Rows, instead of single values, are then compared with one another by their length.
    """


@dataclass(frozen=True)
class Truncation:
    """In the annotation of a number of clusters: up to 100, it may exceed the points; some may be empty."""


@dataclass(frozen=True)
class Role:
    """Role of an argument of a model.

    Attributes
    ----------
    name : str
    kind : {"table", "links", "groups", "labels", "sets"}
    dims : tuple of str
        Named dimensions. A dimension named after an argument of kind "groups" runs over its groups;
        "..." means any further dimensions.
    required : bool
        Whether the argument has no default.
    declared : bool
        Whether it is annotated as data; otherwise it is data by the convention for plain models.
    otherwise : str
        Dimension of links if their own dimension runs over groups that are left out; empty for
        none.
    chosen : Chosen or None
    checked : Checked or None
    missing : bool
        Whether values of a table may be missing; see `Missing`.
    omissible : bool
        Whether new rows may lack a table that rows of the fit have; see `Omissible`.
    like : str
        Option that was learned from these columns or classes, empty for none; see `Like`.
    own_frame : str
        Argument whose groups of rows each have a frame, empty for none; see `OwnFrame`.
    of_kernel : bool
        Whether columns are features of a kernel; see `KernelFeatures`.
    whole : bool
        Whether truth values of a table stay such, and integers stay integers, because they may be categories
        or indices. This holds in the user's own models, unless jaxtyping says ``Float``.
    """

    name: str
    kind: str
    dims: tuple[str, ...]
    required: bool = True
    declared: bool = True
    otherwise: str = ""
    chosen: Chosen | None = None
    checked: Checked | None = None
    missing: bool = False
    omissible: bool = False
    like: str = ""
    own_frame: str = ""
    of_kernel: bool = False
    whole: bool = False

    def check(
        self,
        data: typing.Mapping[str, Any],
        columns: typing.Mapping[str, tuple[str, ...]],
    ) -> None:
        """Check data together with other data, options and column names; see `Checked`, `Chosen`."""
        if self.name not in data:
            return
        if self.chosen is not None and self.chosen.check is not None:
            self.chosen.check(data)
        if self.checked is not None:
            self.checked.check(data, *[columns] * self.checked.with_columns)

    def runs_over(self, data: typing.Mapping[str, Any]) -> str:
        """First dimension, given the present data; empty if there is none."""
        first = next(iter(self.dims), "")
        return self.otherwise if self.otherwise and data.get(first) is None else first


@dataclass(frozen=True)
class Signature:
    """Arguments of a model, separated into data and options.

    Attributes
    ----------
    data : tuple of Role
        Data in the order of the signature.
    options : tuple of str
    positional : int
        Number of data that may be passed by position.
    open : bool
        Whether the model takes any further options (``**kwargs``).
    truncates : bool
        Whether its number of clusters is a truncation level; see `Truncation`.
    held : tuple of str
        Options whose arrays are arguments of programs; see `Held`.
    chosen : tuple of (str, Chosen)
        Options that a fit chooses if they are left out; see `Chosen`.
    """

    data: tuple[Role, ...]
    options: tuple[str, ...]
    positional: int
    open: bool
    truncates: bool = False
    held: tuple[str, ...] = ()
    chosen: tuple[tuple[str, Chosen], ...] = ()

    def __contains__(self, name: str) -> bool:
        """Whether an argument is data."""
        return any(role.name == name for role in self.data)

    def of_kind(self, kind: str) -> tuple[Role, ...]:
        """Data of one kind."""
        return tuple(role for role in self.data if role.kind == kind)

    @property
    def unit(self) -> str | None:
        """Dimension of the exchangeable units.

        Units are the objects that links join, or else the first groups, or else the first table's
        rows.
        """
        return self.unit_of(None)

    def unit_of(self, data: typing.Mapping[str, Any] | None) -> str | None:
        """Dimension of the exchangeable units of some data; by default, of all possible data."""
        for kind in ("links", "groups", "table"):
            for role in self.of_kind(kind):
                if kind == "groups":
                    return role.name
                known = {role.dims[0]: True} if data is None and role.dims else data or {}
                return role.runs_over(known) or None
        return None


@functools.lru_cache(maxsize=256)
def signature_of(model: Callable[..., None]) -> Signature:
    """Read the roles of a model's arguments from its annotations.

    Data are annotated ``Annotated[type, "dimensions"]``, for instance

    - ``y: Annotated[ArrayLike, "rows outputs"]``, or ``Float[Array, "rows outputs"]`` of jaxtyping;
    - ``subjects: Annotated[Groups, "rows"]``, the subject that each row belongs to;
    - ``links: Annotated[Links | None, "subjects"] = None``, links between subjects;
      ``"subjects|rows"`` for links between rows if the subjects are left out;
    - ``anchors: Annotated[ArrayLike | None, "anchor ...", Chosen(choose)] = None``, a table that is chosen
      by a function of the other data and the options if it is left out;
    - ``known: Annotated[PartialLabels | None, "rows classes"] = None``, classes that may have names;
    - ``sets: Annotated[Sequence[ArrayLike], "rows"] = ()``, sets of row numbers.

    All other arguments are options; the arrays of those annotated ``Annotated[type, Held()]`` are arguments
    of compiled programs. In a model without such annotations the first argument is a table
    of points by features, one called ``links`` holds links between points, and the rest are options.

    Raises
    ------
    TypeError
        If an annotation cannot be evaluated, no argument for data has a name, or the model is compiled.
    ValueError
        If names of dimensions look misspelt.
    """
    called = getattr(function_of(model), "__name__", "the model")
    if isinstance(model, jax.stages.Wrapped):
        raise TypeError(
            f"{called} is compiled by jax.jit, so that its sites are out of sight; pass the function itself, "
            "which fits compile"
        )
    parameters = inspect.signature(model).parameters
    hints = _hints(model)
    data, options, positional = [], [], 0
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        role = _declared(name, hints.get(name), parameter.default is parameter.empty)
        if role is None:
            options.append(name)
            continue
        data.append(role)
        positional += parameter.kind is not parameter.KEYWORD_ONLY
    if not data:
        data = _by_convention(parameters)
        every = next((n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL), None)
        if every is not None and not data:
            raise TypeError(
                f"{called} takes data as *{every}, and data are told apart by name; give each an argument "
                f"of its own, def {called}(x, y, ...)"
            )
        options = [name for name in options if name not in {role.name for role in data}]
        positional = len(data)
    _refuse_misspelt(data)
    if not str(getattr(function_of(model), "__module__", "")).startswith("sidebayes.models"):
        floats = _floats(hints)
        data = [replace(r, whole=r.kind == "table" and r.name not in floats) for r in data]
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    truncates = _is_noted(hints.get("num_clusters"), Truncation)
    held = tuple(name for name in options if _is_noted(hints.get(name), Held))
    chosen = tuple(
        (name, note)
        for name in options
        for note in get_args(hints.get(name))
        if isinstance(note, Chosen)
    )
    return Signature(tuple(data), tuple(options), positional, is_open, truncates, held, chosen)


def _refuse_misspelt(data: Sequence[Role]) -> None:
    """Refuse dimensions whose names differ only in a plural or capitals: they would have two sizes."""
    written: dict[str, str] = {}
    for role in data:
        for dim in (*role.dims, *filter(None, [role.otherwise])):
            first = written.setdefault(dim.lower().removesuffix("s"), dim)
            if first != dim:
                raise ValueError(
                    f"{role.name} has the dimension {dim!r} and another argument {first!r}; write both the "
                    "same if they are one, or give them names that differ by more"
                )


def _is_noted(hint: Any, kind: type) -> bool:
    """Whether an annotation contains metadata of a given kind."""
    return any(isinstance(note, kind) for note in get_args(hint))


def _floats(hints: typing.Mapping[str, Any]) -> list[str]:
    """Arguments that jaxtyping declares as floats."""
    kinds = {name: [getattr(p, "dtypes", None) for p in _members(h)] for name, h in hints.items()}
    return [
        name
        for name, found in kinds.items()
        if any(isinstance(one, list) and all("float" in str(d) for d in one) for one in found)
    ]


def function_of(model: Callable[..., Any]) -> Any:
    """Return the underlying function of a model, without partial applications and decorators."""
    function: Any = model
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return function.__func__ if inspect.ismethod(function) else function


def _hints(model: Callable[..., None]) -> dict[str, Any]:
    function = function_of(model)
    if not inspect.isfunction(function):
        function = type(function).__call__ if not inspect.isclass(function) else function.__init__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        written = [str(hint) for hint in getattr(function, "__annotations__", {}).values()]
        if any("Annotated[" in hint for hint in written):
            raise TypeError(
                f"the annotations of {getattr(function, '__name__', 'the model')} cannot be evaluated "
                f"({error}); import that name where the model is defined, not only for type checking"
            ) from None
        return {}


def _declared(name: str, hint: Any, required: bool) -> Role | None:
    """Role of one annotated argument; None for an option."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        dims = next((note for note in notes if isinstance(note, str)), None)
        if dims is None:
            return None
        first, _, otherwise = dims.partition("|")
        chosen = next((note for note in notes if isinstance(note, Chosen)), None)
        checked = next((note for note in notes if isinstance(note, Checked)), None)
        like = next((note.option for note in notes if isinstance(note, Like)), "")
        frame = next((note.groups for note in notes if isinstance(note, OwnFrame)), "")
        own = tuple(first.split())
        return Role(
            name,
            _kind(kind),
            own,
            required,
            otherwise=otherwise,
            chosen=chosen,
            checked=checked,
            missing=_is_noted(hint, Missing),
            omissible=_is_noted(hint, Omissible),
            like=like,
            own_frame=frame,
            of_kernel=_is_noted(hint, KernelFeatures),
        )
    parts = [part for part in _members(hint) if part is not type(None)]
    shapes = [part.dim_str for part in parts if hasattr(part, "dim_str")]  # jaxtyping
    if shapes:
        return Role(name, "table", tuple(shapes[0].split()), required)
    return None


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _kind(hint: Any) -> str:
    for part in _members(hint):
        if part in _KINDS:
            return _KINDS[part]
        if get_origin(part) is Sequence:
            return "sets"
    return "table"


def _by_convention(parameters: typing.Mapping[str, inspect.Parameter]) -> list[Role]:
    """Data of a model without annotations: its first argument, and ``links``."""
    found = []
    for number, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        required = parameter.default is parameter.empty
        if number == 0 and parameter.kind is not parameter.KEYWORD_ONLY:
            found.append(Role(name, "table", ("points", "features"), required, declared=False))
        elif name == "links":
            found.append(Role(name, "links", ("points",), required, declared=False))
    return found
