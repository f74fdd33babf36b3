"""Reads by index in a traced program: which indices are out of range, and whether results depend on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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


class _Value(NamedTuple):
    """A value within a program.

    Attributes
    ----------
    now : Array
    given : Array or None
        The same before negative numbers were counted from the end, where it is an argument's own numbers.
    counted : Array or None
        The numbers that were counted from the end, where this is the result for negative ones.
    """

    now: Any
    given: Any = None
    counted: Any = None

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
        return _Value(inside, inside if self.is_own else None)


def replayed(
    program: Any, values: Sequence[Any], own: Collection[int] = (), change: Any = None
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
        Which of these are data. As indices, their negative numbers are out of range; computed ones count from
        the end, as in NumPy.
    change : float, optional
        What to add to each element that is read out of range.

    Returns
    -------
    results : list of Array
    ranges : Array, shape (num_reads, 4)
        For each read along an axis, the lowest index (at most 0), the highest (at least -1), the number of
        elements, and whether the indices are numbers of the data (1) or computed (0).
    """
    known = [_Value(one, one if k in own else None) for k, one in enumerate(values)]
    out, ranges = _replay(program, known, change)
    return [value.now for value in out], ranges


def _replay(jaxpr: Any, values: Sequence[_Value], change: Any) -> tuple[list[_Value], Array]:
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
    ranges = [jnp.zeros((0, 4), int)]

    def look(variable: Any) -> _Value:
        return _Value(variable.val) if isinstance(variable, Literal) else known[variable]

    for equation in jaxpr.eqns:
        kind, given = equation.primitive.name, list(map(look, equation.invars))
        if kind in _CALLS:
            inner = _inner(equation.params)
            own = [*map(_Value, getattr(inner, "consts", ()))]
            out, found = _replay(getattr(inner, "jaxpr", inner), [*own, *given], change)
            ranges.append(found)
        elif kind in _LOOPS:
            results, found = _LOOPS[kind](equation.params, given, change)
            out = [*map(_Value, results)]
            ranges.append(found)
        else:
            out = _applied(equation, given)
            if kind in _READS:
                found, outside = _READS[kind](equation.params, given)
                ranges.append(found)
                read = out[0].now
                if change is not None and outside is not None:
                    read = _changed(read, outside, change)
                own = given[0].is_own  # an index may be looked up in a table
                out = [_Value(read, read if own else None)]
        known.update(zip(equation.outvars, out, strict=True))
    return list(map(look, jaxpr.outvars)), jnp.concatenate(ranges)


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
        return jnp.zeros((0, 4), int), None
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
        return jnp.zeros((0, 4), int), None
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
        out, ranges = _replay(getattr(program, "jaxpr", program), [*consts, *inputs], change)
        return [value.now for value in out], ranges

    return run


def _scanned(params: dict[str, Any], given: list[_Value], change: Any) -> tuple[list[Any], Array]:
    if "ft_in" in params:
        consts, carry, rows = map(list, params["ft_in"].update(given).unpack())
    else:
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
        consts, carry, rows = given[:first], given[first:last], given[last:]
    unknown = [_Value(value.now) for value in carry]
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
    carry = [value.now for value in given[first + params["body_nconsts"] :]]
    condition = _part(params["cond_jaxpr"], [*map(_Value, [*given[:first], *carry])], None)
    run = _part(params["body_jaxpr"], [*consts, *map(_Value, carry)], change)
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
