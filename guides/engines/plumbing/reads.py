"""Reads by index in a traced program: which indices are out of range, and whether results depend on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Literal

__all__ = ["replayed"]

_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
)
"""Primitives that run a program once, as it is."""

_PLACING = (
    "broadcast_in_dim",
    "concatenate",
    "convert_element_type",
    "copy",
    "reshape",
    "slice",
    "squeeze",
    "transpose",
)
"""Primitives that change the shape or type of numbers alone."""


_NONE: Any = np.zeros((0, 4), int)
"""Ranges of no reads."""


class _Value(NamedTuple):
    """A value within a program.

    Attributes
    ----------
    now : Array
    given : Array or None
        The same before negative numbers were counted from the end, where it is an argument's own numbers.
    counted : Array or None
        The numbers that were counted from the end, where this is the result for negative ones.
    looked_at : bool
        Whether reads by this index are looked at.
    """

    now: Any
    given: Any = None
    counted: Any = None
    looked_at: bool = False

    @property
    def is_own(self) -> bool:
        """Whether these are an argument's own numbers, with nothing counted from the end."""
        return self.given is not None and self.given is self.now

    @property
    def index(self) -> Any:
        """The value as an index."""
        return self.now if self.given is None else self.given

    def at(self, inside: Any) -> _Value:
        """The value within a part of the program, where `inside` stands for it."""
        return _Value(inside, inside if self.is_own else None, looked_at=self.looked_at)


def replayed(
    program: Any, values: Sequence[Any], own: Collection[int], change: Any = None
) -> tuple[list[Any], Array]:
    """Run a traced program again, and note the range of the indices by which it reads single elements.

    JAX checks no index: beyond the end it reads the last element, and its gradient leaves the read out.
    Reads for which the program states what applies there (``mode="clip"``, or a ``fill_value``) are left out.

    Parameters
    ----------
    program : Jaxpr
    values : sequence of Array
        Of its constants, and of its inputs.
    own : collection of int
        Which of these are data. Only reads by indices that depend on them are looked at. As indices, their
        negative numbers are out of range; computed ones count from the end, as in NumPy.
    change : float, optional
        What to add to each element that is read out of range. Without it there are no results, and only what
        the indices need is computed.

    Returns
    -------
    results : list of Array
    ranges : Array, shape (num_reads, 4)
        For each of these reads along an axis, the lowest index (at most 0), the highest (at least -1), the
        number of elements, and whether the indices are numbers of the data (1) or computed (0).
    """
    known = [_Value(v, v, looked_at=True) if k in own else _Value(v) for k, v in enumerate(values)]
    wanted = [change is not None] * len(program.outvars)
    out, ranges = _replay(program, known, wanted, change)
    return [value.now for value, is_wanted in zip(out, wanted, strict=True) if is_wanted], ranges


def _replay(
    jaxpr: Any, values: Sequence[_Value], wanted: Sequence[bool], change: Any
) -> tuple[list[_Value], Array]:
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
    reading, needed = _needed(jaxpr, {v for v in known if known[v].looked_at}, wanted)
    ranges: list[Any] = []

    def look(variable: Any) -> _Value:
        if isinstance(variable, Literal):
            return _Value(variable.val)
        return known.get(variable, _Value(variable.aval))  # of which the shape alone is needed

    for number, equation in enumerate(jaxpr.eqns):
        kind, given = equation.primitive.name, list(map(look, equation.invars))
        wants = [variable in needed for variable in equation.outvars]
        if number not in reading and not any(wants):
            continue
        if kind in _CALLS:
            inner = _inner(equation.params)
            own = [*map(_Value, getattr(inner, "consts", ()))]
            out, found = _replay(getattr(inner, "jaxpr", inner), [*own, *given], wants, change)
            ranges.append(found)
        elif kind in _LOOPS:
            results, found = _LOOPS[kind](equation.params, given, change)
            out = [*map(_Value, results)]
            ranges.append(found)
        else:
            out = _applied(equation, given) if any(wants) else []
            if number in reading:
                found, outside = _READS[kind](equation.params, given)
                ranges.append(found)
                if change is not None and outside is not None and out:
                    changed = _changed(out[0].now, outside, change)
                    out = [_Value(changed, changed if out[0].given is not None else None)]
        follows = any(value.looked_at for value in given)
        known |= {
            variable: value._replace(looked_at=follows)
            for variable, value, is_wanted in zip(equation.outvars, out, wants, strict=bool(out))
            if is_wanted
        }
    all_ranges = jnp.concatenate([_NONE, *ranges]) if any(map(len, ranges)) else _NONE
    return list(map(look, jaxpr.outvars)), all_ranges


def _needed(jaxpr: Any, data: set[Any], wanted: Sequence[bool]) -> tuple[set[int], set[Any]]:
    """Return the equations that read by `data`, or may do so inside, and which variables must be known."""
    reading = set()
    for number, equation in enumerate(jaxpr.eqns):
        is_read = equation.primitive.name in _READS
        if not data.isdisjoint(_variables(equation.invars[1:] if is_read else equation.invars)):
            reading |= {number} if is_read or _reads_inside(equation) else set()
        if not data.isdisjoint(_variables(equation.invars)):
            data.update(equation.outvars)
    needed = _variables([v for v, flag in zip(jaxpr.outvars, wanted, strict=True) if flag])
    for number, equation in reversed([*enumerate(jaxpr.eqns)]):
        is_wanted = not needed.isdisjoint(equation.outvars)
        if is_wanted or number in reading:
            of_index = equation.primitive.name in _READS and not is_wanted
            needed.update(_variables(equation.invars[1:] if of_index else equation.invars))
    return reading, needed


def _variables(values: Sequence[Any]) -> set[Any]:
    return {value for value in values if not isinstance(value, Literal)}


def _reads_inside(equation: Any) -> bool:
    """Return whether a call or a loop contains reads by index."""
    kind, params = equation.primitive.name, equation.params
    inner: Sequence[Any] = ()
    if kind in _CALLS:
        inner = [_inner(params)]
    elif kind in _LOOPS:
        inner = params.get("branches") or [params.get("body_jaxpr") or params["jaxpr"]]
    return any(
        one.primitive.name in _READS or _reads_inside(one)
        for program in inner
        for one in getattr(program, "jaxpr", program).eqns
    )


def _inner(params: dict[str, Any]) -> Any:
    """Return the program that a primitive calls."""
    return next(params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in params)


def _applied(equation: Any, given: list[_Value]) -> list[_Value]:
    """Apply one primitive, and follow an argument's own numbers on their way to an index."""
    found = equation.primitive.get_bind_params(equation.params)
    functions, params = found if isinstance(found, tuple) else ((), found)  # before JAX 0.12

    def bind(values: list[Any]) -> list[Any]:
        found = equation.primitive.bind(*functions, *values, **params)
        return found if equation.primitive.multiple_results else [found]

    kind, out = equation.primitive.name, bind([value.now for value in given])
    if kind in _PLACING and any(value.given is not None for value in given):
        if all(value.is_own or value.given is None for value in given):
            return [_Value(out[0], out[0])]
        return [_Value(out[0], bind([value.index for value in given])[0])]
    if kind in _READS and given[0].is_own:  # an index may be looked up in a table
        return [_Value(out[0], out[0])]
    if kind == "add" and given[0].given is not None:
        return [_Value(out[0], counted=given[0].given)]
    counts = kind == "select_n" and len(given) == 3 and given[1].given is not None
    if counts and given[2].counted is given[1].given:
        return [_Value(out[0], given[1].given)]
    return list(map(_Value, out))


def _changed(value: Any, outside: Array, change: Any) -> Any:
    """Return what was read, with other numbers where the index is out of range."""
    if value.dtype == bool:
        other = ~value
    elif jnp.issubdtype(value.dtype, jnp.number):
        other = (jnp.nan_to_num(value) + change).astype(value.dtype)
    else:
        return value
    return jnp.where(outside & (change != 0), other, value)


def _gathered(params: dict[str, Any], given: list[_Value]) -> tuple[Array, Array | None]:
    """Ranges of a read of many elements, and which of its results are out of range."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    mode, fill = params["mode"].name, params["fill_value"]
    # one element at a time under vmap is a read that clips, and drops no axis
    clips = mode == "CLIP" and numbers.collapsed_slice_dims
    fills = mode == "FILL_OR_DROP" and fill is not None and fill == fill
    axes = [k for k, axis in enumerate(numbers.start_index_map) if sizes[axis] == 1]
    if clips or fills or not axes:
        return _NONE, None
    index = given[1].index[..., jnp.array(axes)].astype(int)
    size = jnp.array([given[0].now.shape[numbers.start_index_map[k]] for k in axes], int)
    outside = ((index < 0) | (index >= size)).any(axis=-1)
    found = _ranges(index.reshape(-1, len(axes)), size, [given[1].given is not None] * len(axes))
    return found, jnp.expand_dims(outside, numbers.offset_dims)


def _sliced(params: dict[str, Any], given: list[_Value]) -> tuple[Array, Array | None]:
    """Ranges of a read of one element, and whether it is out of range."""
    operand, *starts = given
    axes = [k for k, size in enumerate(params["slice_sizes"]) if size == 1]
    if not axes:
        return _NONE, None
    index = jnp.stack([jnp.asarray(starts[k].index).astype(int) for k in axes])
    size = jnp.array([operand.now.shape[k] for k in axes], int)
    found = _ranges(index[None], size, [starts[k].given is not None for k in axes])
    return found, ((index < 0) | (index >= size)).any()


def _ranges(index: Array, size: Array, own: Sequence[bool]) -> Array:
    ends = index.min(axis=0, initial=0), index.max(axis=0, initial=-1)
    return jnp.stack([*ends, size, jnp.array(own, int)], axis=1)


def _together(ranges: Array) -> Array:
    """Ranges over all steps of a loop."""
    low, *rest = jnp.moveaxis(ranges, -1, 0)
    ends = (most.max(axis=0, initial=first) for most, first in zip(rest, (-1, 0, 0), strict=True))
    return jnp.stack([low.min(axis=0, initial=0), *ends], axis=1)


def _unread(count: int) -> Array:
    """Ranges of reads that do not take place."""
    return jnp.tile(jnp.array([0, -1, 0, 0]), (count, 1))


def _part(program: Any, outside: Sequence[_Value], change: Any) -> Any:
    """Return a part of a program as a function of its inputs, which stand for the values outside."""
    consts = [*map(_Value, getattr(program, "consts", ()))]

    def run(*inside: Any) -> tuple[list[Any], Array]:
        inputs = [value.at(one) for value, one in zip(outside, inside, strict=True)]
        inner = getattr(program, "jaxpr", program)
        wanted = [True] * len(inner.outvars)
        out, ranges = _replay(inner, [*consts, *inputs], wanted, change)
        return [value.now for value in out], ranges

    return run


def _carried(values: Sequence[_Value], given: Sequence[_Value]) -> list[_Value]:
    """What a loop carries on, which may come from any of the values that it is given."""
    follows = any(value.looked_at for value in given)
    return [_Value(value.now, looked_at=follows) for value in values]


def _scanned(params: dict[str, Any], given: list[_Value], change: Any) -> tuple[list[Any], Array]:
    if "ft_in" in params:
        consts, carry, rows = map(list, params["ft_in"].update(given).unpack())
    else:
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
        consts, carry, rows = given[:first], given[first:last], given[last:]
    unknown = _carried(carry, given)
    run = _part(params["jaxpr"], [*consts, *unknown, *rows], change)

    def step(state: list[Any], row: list[Any]) -> tuple[list[Any], tuple[list[Any], Array]]:
        out, ranges = run(*(value.now for value in consts), *state, *row)
        return out[: len(carry)], (out[len(carry) :], ranges)

    last_state, (out, ranges) = jax.lax.scan(
        step,
        [value.now for value in carry],
        [value.now for value in rows],
        length=params["length"],
        reverse=params["reverse"],
    )
    return [*last_state, *out], _together(ranges)


def _repeated(params: dict[str, Any], given: list[_Value], change: Any) -> tuple[list[Any], Array]:
    first = params["cond_nconsts"]
    consts = given[first : first + params["body_nconsts"]]
    state = _carried(given[first + params["body_nconsts"] :], given)
    carry = [value.now for value in state]
    condition = _part(params["cond_jaxpr"], [*map(_Value, [*given[:first], *carry])], None)
    run = _part(params["body_jaxpr"], [*consts, *state], change)
    values = [value.now for value in consts]
    (_, ranges) = jax.eval_shape(run, *values, *carry)

    def goes_on(state: tuple) -> Any:
        return condition(*(value.now for value in given[:first]), *state[0])[0][0]

    def step(state: tuple) -> tuple:
        out, found = run(*values, *state[0])
        return out, _together(jnp.stack([state[1], found]))

    return jax.lax.while_loop(goes_on, step, (carry, _unread(ranges.shape[0])))


def _chosen(params: dict[str, Any], given: list[_Value], change: Any) -> tuple[list[Any], Array]:
    number, *inputs = given
    values = [value.now for value in inputs]
    branches = [_part(branch, inputs, change) for branch in params["branches"]]
    counts = [jax.eval_shape(run, *values)[1].shape[0] for run in branches]

    def padded(k: int) -> Any:
        def run(*values: Any) -> tuple[list[Any], Array]:
            out, ranges = branches[k](*values)
            before, after = sum(counts[:k]), sum(counts[k + 1 :])
            return out, jnp.concatenate([_unread(before), ranges, _unread(after)])

        return run

    return jax.lax.switch(number.now, [padded(k) for k in range(len(branches))], *values)


_READS = {"gather": _gathered, "dynamic_slice": _sliced}
_LOOPS = {"scan": _scanned, "while": _repeated, "cond": _chosen}
