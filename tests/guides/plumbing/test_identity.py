"""What a value is, in memory and in text: equal for what means the same, different for the rest."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import types
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import transforms
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing import references
from sidebayes.guides.engines.plumbing.checkpoint import keeping
from sidebayes.guides.engines.plumbing.identity import NamelessError, freeze, written

from sidebayes import EM, Links, MeanField


def text(value, **options):
    return written(freeze(value), **options)


def made(rate, power=2):
    def grown(x):
        return rate * x**power

    return grown


def other(rate, power=2):
    def grown(x):
        return rate * x * power

    return grown


PAIRS = {
    "number": (1, 2),
    "type": (1, 1.0),
    "truth": (True, 1),
    "text": ("a", "b"),
    "order": ((1, 2), (2, 1)),
    "list": ([1], (1,)),
    "array": (np.arange(40.0), np.arange(40.0)[::-1]),
    "precision": (np.zeros(3, np.float32), np.zeros(3, np.float64)),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "key": ({"a": 1}, {"b": 1}),
    "distribution": (dist.Normal(0.0, 1.0), dist.Normal(0.0, 2.0)),
    "truncated": (dist.TruncatedNormal(0.0, 1.0, low=0.0), dist.TruncatedNormal(0.0, 1.0, low=1.0)),
    "family": (dist.Gamma(2.0, 1.0), dist.InverseGamma(2.0, 1.0)),
    "data class": (MeanField(max_table=4), MeanField(max_table=8)),
    "links": (Links.must_link([(0, 1)]), Links.cannot_link([(0, 1)])),
    "partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "function": (np.exp, np.log),
    "sign of zero": (0.0, -0.0),
    "names and numbers": ({"1": 0}, {1: 0}),
    "order of names": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "type in a set": (frozenset({1}), frozenset({True})),
    "names of fields": (np.zeros(2, [("a", float)]), np.zeros(2, [("b", float)])),
    "weak type": (jnp.asarray(1.0), jnp.asarray(np.float32(1.0))),
    "random key": (jax.random.key(0), jax.random.key(1)),
    "generator": (jax.random.key(0), jax.random.key(0, impl="rbg")),
    "bfloat16": (jnp.zeros(2, jnp.bfloat16), np.zeros(2, "V2")),
    "array of objects": (np.array([1, "a"], object), np.array([1, "b"], object)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_different_values_differ(pair):
    one, two = pair
    assert freeze(one) != freeze(two) or type(one) is not type(two)
    assert text(one) != text(two)
    assert text(one) == text(one)


class Power(dist.Normal):
    """A distribution with an attribute that NumPyro does not know of."""

    def __init__(self, power):
        super().__init__(0.0, 1.0)
        self.power = power


class Shifted(transforms.Transform):
    """A transform that leaves its shift out of what it tells."""

    def __init__(self, shift):
        self.shift = shift

    def tree_flatten(self):
        return (), ((), {})


@dataclass(frozen=True)
class Rule:
    """A data class with an attribute that is no field."""

    rate: float

    def with_power(self, power):
        object.__setattr__(self, "power", power)
        return self


class Scored(tuple):
    """A tuple with an attribute."""

    def __new__(cls, score):
        made = super().__new__(cls, (1, 2))
        made.score = score
        return made


@pytest.mark.parametrize(
    ("make", "one", "two"),
    [
        (Power, 2, 3),
        (Shifted, 2, 3),
        (Rule(0.5).with_power, 2, 3),
        (Scored, 2, 3),
        (lambda mask: np.ma.array([1.0, 2.0], mask=mask), [0, 1], [1, 0]),
        (np.zeros(2).view, np.recarray, np.ndarray),
    ],
)
def test_what_a_class_of_the_user_holds_counts(make, one, two):
    value = make(one)
    assert freeze(value) == freeze(value) != freeze(make(two))


class Setting:
    """An object that may be changed in place."""

    def __init__(self):
        self.power = 2


class Slotted:
    """One that keeps its values elsewhere."""

    __slots__ = ("power",)

    def __init__(self):
        self.power = 2


class Unhashable(Setting):
    """One that equals others, and so has no hash."""

    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.mark.parametrize("make", [Setting, Slotted, Unhashable])
def test_an_object_changed_in_place_is_another_value(make):
    value = make()
    option = {"setting": [value]}
    before = freeze(option)
    assert freeze(option) == before
    value.power = 3
    assert freeze(option) != before


def test_a_table_changed_in_place_is_another_value():
    table = pd.DataFrame({"a": [1.0, 2.0]})
    before = freeze(table)
    assert freeze(table) == before
    table.loc[0, "a"] = 5.0
    assert freeze(table) != before


def test_objects_that_hold_each_other_can_be_told():
    one, two = Setting(), Setting()
    one.power, two.power = two, one
    before = freeze(one)
    assert freeze(one) == before
    two.more = 1
    assert freeze(one) != before


RATE = 2.0


def helper(x):
    return RATE * x


def calling(x):
    return [helper(each) for each in x]


class Caller:
    """A model that is a method."""

    def model(self, x):
        return helper(x)


@pytest.mark.parametrize(
    "model", [calling, functools.partial(calling, 1), Caller().model, jax.jit(calling), Caller]
)
@pytest.mark.parametrize("change", [("RATE", 3.0), ("helper", made(2))])
def test_a_function_is_another_where_what_it_refers_to_has_changed(model, change, monkeypatch):
    """As in a notebook, where a helper or a constant is given another value in another cell."""
    before = freeze(model)
    assert freeze(model) == before
    monkeypatch.setitem(globals(), *change)
    assert freeze(model) != before


@pytest.mark.parametrize("model", [calling, jax.jit(calling), Caller])
def test_its_text_is_another_as_well(model, monkeypatch):
    """By which a checkpoint knows a run."""
    before = text(model, own_code=True)
    assert text(model, own_code=True) == before
    monkeypatch.setitem(globals(), "RATE", 3.0)
    assert text(model, own_code=True) != before


def by_module(x):
    return tools.inner.scale(x)  # noqa: F821


def test_a_function_is_another_where_a_module_of_the_user_has_changed(monkeypatch):
    outer, inner = types.ModuleType("outer"), types.ModuleType("inner")
    outer.inner, inner.outer, inner.scale = inner, outer, made(2)
    monkeypatch.setitem(globals(), "tools", outer)
    before = freeze(by_module)
    assert freeze(by_module) == before
    inner.scale = made(3)
    assert freeze(by_module) != before


def test_a_file_of_the_user_may_have_the_name_of_a_module_of_python(tmp_path, monkeypatch):
    """Such as ``profile.py`` beside a script; its code may change, so that its name tells nothing."""
    path = tmp_path / "profile.py"
    path.write_text("RATE = 2.0\n\n\ndef model(x):\n    return RATE * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "profile", raising=False)
    module = importlib.import_module("profile")
    assert module.__file__ == str(path)
    with pytest.raises(NamelessError):
        text(module.model)
    before = freeze(module.model)
    module.RATE = 3.0
    assert freeze(module.model) != before


def test_code_has_one_digest_in_all_processes():
    """Sets of text, as constants of code, are in another order in each."""
    told = (
        "import runpy, sys; digest = runpy.run_path(sys.argv[1])['code_digest']; "
        'print(digest(compile(\'x in {"a", "b", "c", "d"}\', \'\', \'eval\')).hex())'
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", told, references.__file__],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_a_variable_without_a_value_yet_is_none():
    def outer():
        def inner():
            return late

        found = freeze(inner)
        late = 1
        return found, freeze(inner)

    before, after = outer()
    assert before != after


def test_arrays_of_jax_and_numpy_mean_the_same():
    assert freeze(np.arange(3, dtype=np.int32)) == freeze(jnp.arange(3))


@pytest.mark.parametrize("pair", [(made(1), made(2)), (made(1), other(1)), (made(1), made(1, 3))])
def test_functions_of_the_user_go_by_their_code(pair):
    one, two = pair
    with pytest.raises(NamelessError):
        text(one)
    assert text(one, own_code=True) != text(two, own_code=True)
    assert text(made(1), own_code=True) == text(made(1), own_code=True)


class Loose:
    """An object whose name says nothing about what it holds."""


@pytest.mark.parametrize(
    "value", [Loose(), made(Loose()), functools.partial(made(1), Loose()), {Loose()}]
)
def test_what_has_no_name_is_refused(value):
    with pytest.raises(NamelessError):
        text(value, own_code=True)


def test_a_run_that_cannot_be_told_from_others_keeps_no_checkpoint(tmp_path):
    problem = Problem(made(1), (np.zeros(3),), {"option": Loose()})
    with (
        pytest.raises(ValueError, match=r"checkpoint = .*another process.*leave checkpoint out"),
        keeping(str(tmp_path / "run.state"), 0.0, EM(), problem, 0, None),
    ):
        pass
