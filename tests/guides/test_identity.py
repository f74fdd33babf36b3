"""What a value is, in memory and in text: equal for what means the same, different for the rest."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
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
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_different_values_differ(pair):
    one, two = pair
    assert freeze(one) != freeze(two) or type(one) is not type(two)
    assert text(one) != text(two)
    assert text(one) == text(one)


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
    "value", [Loose(), made(Loose()), functools.partial(made(1), Loose()), {1, 2}]
)
def test_what_has_no_name_is_refused(value):
    with pytest.raises(NamelessError):
        text(value, own_code=True)


def test_a_run_that_cannot_be_told_from_others_keeps_no_checkpoint(tmp_path):
    problem = Problem(made(1), (np.zeros(3),), {"option": Loose()})
    engine = EM(checkpoint=str(tmp_path / "run.state"))
    with (
        pytest.raises(ValueError, match=r"checkpoint=.*another process.*leave checkpoint out"),
        keeping(engine, problem, 0, None),
    ):
        pass
