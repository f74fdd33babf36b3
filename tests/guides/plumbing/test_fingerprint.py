"""What a program is: told apart from others, and the same in every process."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing import fingerprint
from sidebayes.guides.engines.plumbing.identity import freeze
from sidebayes.guides.engines.plumbing.programs import compiled, counted_compilations
from sidebayes.models.gmm import gmm

import sidebayes
from tests.support.programs import entries, forget, run, twice


def test_what_the_library_names_is_not_traced(folder):
    problem = Problem(gmm, (), {"covariance": "full", "prior": dist.Beta(1.0, 4.0)})
    x = jnp.arange(3.0)
    program, _ = compiled("toy", problem, (1, "a"), lambda bare: jnp.cumsum, x)
    forget()
    with counted_compilations() as names:
        again, _ = compiled("toy", problem, (1, "a"), lambda bare: pytest.fail("traced"), x)
    assert names == []
    np.testing.assert_array_equal(program(x), again(x))


@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_constants_are_told_apart(folder, size):
    def weighted(constant):
        return lambda a: (a * constant).sum()

    one = np.ones(size)
    other = np.where(np.arange(size) == size // 2, np.nextafter(np.float32(1), np.float32(2)), one)
    with jax.enable_x64(True):  # the difference survives the sum
        for constant, compiles in [(one, True), (other, True), (one, False), (other, False)]:
            forget()
            value, was_compiled = run(weighted(constant), 1.0)
            assert value == pytest.approx(float(constant.sum()), rel=1e-15)
            assert was_compiled is compiles


def test_numbers_in_closures_are_told_apart(folder):
    def scaled(by):
        return lambda a: by * a

    assert [run(scaled(by), 1.0) for by in (2.0, 3.0, 2.0)] == [
        (2.0, True),
        (3.0, True),
        (2.0, False),
    ]


def test_unused_arguments_are_told_apart(folder):
    assert run(lambda a, b: a + 1, 1.0, 5.0) == (2.0, True)
    assert run(lambda a, b: b + 1, 1.0, 5.0) == (6.0, True)


def test_what_comes_out_is_told_apart(folder):
    class Pair(NamedTuple):
        x: Any
        y: Any

    class Other(NamedTuple):
        x: Any
        y: Any

    one = jnp.ones(())
    with counted_compilations() as names:
        for kind in (Pair, Other):
            build = functools.partial(lambda kind, a: kind(a, a), kind)
            program, _ = compiled("toy", Problem(build, ()), None, lambda bare: bare.model, one)
            assert type(program(one)) is kind
    assert names == ["toy"]  # one program serves both


def test_calls_back_to_python_are_not_kept(folder):
    def asks(function):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return lambda a: jax.pure_callback(function, shape, a)

    assert run(asks(lambda a: a + np.float32(1)), 1.0) == (2.0, True)
    assert run(asks(lambda a: a + np.float32(2)), 1.0) == (3.0, True)
    assert not entries(folder)
    lowered = jax.jit(asks(np.sin)).lower(jnp.float32(1))
    assert fingerprint.by_trace(lowered, 1) is None
    assert not fingerprint.is_portable(lowered)


class Named:
    def method(self):
        return self


@pytest.mark.parametrize(
    "part",
    [
        twice,
        lambda a: a,
        functools.partial(twice),
        object(),
        Named(),
        Named().method,
        jax.jit(gmm),
    ],
)
def test_what_has_no_name_elsewhere_is_not_known_by_name(part):
    assert fingerprint.by_name(freeze((1, "a", gmm, sidebayes.EM().run))) is not None
    assert fingerprint.by_name(freeze((1, part))) is None


def test_settings_of_jax_are_told_apart(folder):
    model = functools.partial(jnp.multiply, np.float32(2))
    assert run(model, 1.0)[1]
    with jax.default_matmul_precision("float32"):
        assert run(model, 1.0)[1]
    assert not run(model, 1.0)[1]


def test_a_library_that_changed_under_the_process_is_traced(monkeypatch):
    assert fingerprint.by_name((gmm,)) is not None
    monkeypatch.setattr(fingerprint, "_BEGAN", 0.0)
    monkeypatch.setattr(fingerprint, "_sources", fingerprint._sources.__wrapped__)
    assert fingerprint.by_name((gmm,)) is None


def test_programs_that_are_optimised_otherwise_are_others(folder):
    def local(a):  # has no name in other processes, and is known by what it traces
        return a.sum()

    for often in (False, True):
        build = functools.partial(lambda bare: bare.model)
        program, _ = compiled("toy", Problem(local, ()), None, build, jnp.ones(4), often=often)
        assert float(program(jnp.ones(4))) == 4.0
    assert len(entries(folder)) == 2
