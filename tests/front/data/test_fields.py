"""Every field of an engine or an inference object is checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import NoneType
from typing import get_args, get_type_hints

import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.base import Engine
from sidebayes.models.blocks.classes.stated import noise_of_strength, stated_classes
from sidebayes.models.blocks.components.gaussian_block import GaussianComponents
from sidebayes.models.blocks.embedding.positions import point_scale
from sidebayes.models.blocks.kernels.curve_checks import check_inducing

import sidebayes as sb
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown
from sidebayes.results.base.intervals import check_probability
from sidebayes.runs import record
from sidebayes.runs.zoo import ENGINES

KINDS = {
    kind.__name__: kind
    for kind in (
        *(getattr(sb, path.partition(":")[2]) for path in ENGINES.values()),
        sb.Exact,
        sb.MeanField,
        sb.BeliefPropagation,
        sb.GibbsLabels,
    )
}
WRONG = {
    int: (0.5, 2.0, "3", True, np.nan, -1, [1], np.ones(2), 10**400),
    float: ("0.5", True, np.nan, np.inf, -1.0, [0.5], 1j, 10**400),
    bool: (1, 0.0, "yes", None),
    str: ("no such name", 3, b"hmc", ["hmc"]),
    tuple: (1.0, {"a": 1}, [object()], None),
}
"""Values that no field of a type takes."""


def types_of(kind: type, name: str) -> set[type]:
    hint = get_type_hints(kind)[name]
    return {getattr(one, "__origin__", one) for one in get_args(hint) or (hint,) if one is not ...}


CASES = [
    (kind, field.name)
    for kind in KINDS.values()
    for field in fields(kind)
    if field.name not in ("sampled", "temperatures", "schedule", "scheduled")
]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{k.__name__}.{n}" for k, n in CASES])
def test_wrong_values_are_refused(kind, name):
    types = types_of(kind, name)
    wrong = next(WRONG[one] for one in WRONG if one in types)
    for value in (*wrong, *(() if NoneType in types else (None,))):
        with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}=.*expected"):
            kind(**{name: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: sb.EM(max_steps=2.5),
            r"EM\(max_steps=2.5\): expected a number >= 1 and < 2\^31 \(an integer\)",
        ),
        (lambda: sb.SVI(guide="normal"), r"expected one of \['mean_field', 'full_rank'"),
        (lambda: sb.NUTS(max_tree_depth=40), r"expected a number in \[1, 30\] \(an integer\)"),
        (lambda: sb.NUTS(dense_mass="no"), "expected True or False"),
        (lambda: sb.NUTS(chain_method="sequential"), r"'parallel'\] or None"),
        (lambda: sb.BeliefPropagation(damping=1.0), ">= 0 and < 1"),
        (
            lambda: sb.Continuation(temperatures=(4.0, "1")),
            r"\(4.0, '1'\).*expected finite numbers > 0",
        ),
        (lambda: sb.MonteCarloEM(sampled=("b", 3)), "expected names"),
        (lambda: sb.MonteCarloEM(schedule=(1.0, -2.0)), "expected finite numbers > 0"),
        (lambda: sb.MonteCarloEM(scheduled=3), "expected"),
        (lambda: sb.MonteCarloEM(num_final=1), "two batches at least"),
    ],
)
def test_messages(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_numbers_of_other_types_become_those_declared():
    engine = sb.EM(tol=0, max_steps=np.int64(7))
    assert engine == sb.EM(tol=0.0, max_steps=7)
    assert [type(getattr(engine, name)) for name in ("tol", "max_steps")] == [float, int]
    assert sb.Continuation(temperatures=[2, 1]).temperatures == (2.0, 1.0)
    assert sb.NUTS(dense_mass=np.True_).dense_mass is True
    assert sb.MeanField(max_table=0, tol=0).tol == 0.0


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_records_give_them_back(kind):
    assert record.parse(record.dump({"engine": kind()}))[0]["engine"] == kind()


def test_integers_in_a_record_stand_for_floats():
    text = '{"engine": {"class": "EM", "fields": {"tol": 0, "max_steps": 3}}}'
    assert record.parse(text)[0]["engine"] == sb.EM(tol=0.0, max_steps=3)
    with pytest.raises(ValueError, match=r"EM\(max_steps=2.5\)"):
        record.parse(text.replace("3", "2.5"))


def test_an_engine_of_a_users_own():
    class Unknown:
        """Known here only, so that annotations that name it cannot be looked up."""

    @dataclass(frozen=True)
    class Own(Engine):
        size: int = 3
        rule: Unknown | None = None

    assert Own(size="any").size == "any"


PRIOR = {"mean": [0.0], "scale": [1.0], "deviation": [1.0], "noise": 1.0}
WEAK = {"y": [0.0, 1.0], "fixed": np.ones((2, 1)), "random": np.ones((2, 1))}


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (sb.EffectsPrior, {"mean": "x"}, "EffectsPrior: mean = 'x'; expected real numbers"),
        (sb.EffectsPrior, {"noise": 10**400}, "EffectsPrior: noise = 1.*; expected real numbers"),
        (sb.EffectsPrior, {"scale": [-1.0]}, r"EffectsPrior\(scale=.*expected .* positive"),
        (sb.EffectsPrior, {"deviation": 1.0}, "has shape .*; give one number per column"),
        (sb.EffectsPrior, {"mean": [0.0, 1.0]}, "2 means and 1 scales"),
        (sb.EffectsPrior, {"concentration": "x"}, r"EffectsPrior\(concentration='x'\): expected"),
        (sb.EffectsPrior, {"concentration": np.inf}, "expected a finite number > 0"),
        (sb.EffectsPrior, {"concentration": [1, 2]}, "expected a finite number > 0"),
        (sb.EffectsPrior.weak, {"y": "x"}, "y = 'x'; expected real numbers"),
        (sb.EffectsPrior.weak, {"y": [0.0, np.nan]}, r"y\[1\] = nan, the first of 1"),
        (sb.EffectsPrior.weak, {"y": [[0.0, 1.0]]}, "y has shape"),
        (sb.EffectsPrior.weak, {"fixed": 3}, "fixed has shape"),
        (sb.EffectsPrior.weak, {"random": np.ones((3, 1))}, "random has 3 rows and y has 2"),
        (sb.EffectsPrior.weak, {"outputs": [0, 1]}, "outputs has shape"),
        (sb.EffectsPrior.weak, {"width": "3"}, "width = '3'; expected a finite number > 0"),
    ],
)
def test_priors_of_mixed_effects(make, given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(**(PRIOR if make is sb.EffectsPrior else WEAK) | given)


@pytest.mark.parametrize("probability", ["x", None, 0, 1, np.nan, [0.5], 1j])
def test_probability_of_an_interval(probability):
    with pytest.raises(ValueError, match="probability = .*expected a finite number between 0 and"):
        check_probability(probability)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_arrays_without_axes_stand_for_their_values(array):
    prior = sb.HazardPrior([], array(-2.0), array(3))
    effects = sb.EffectsPrior([0.0], [1.0], [1.0], array(1.0), concentration=array(2.0))
    found = (
        prior.level,
        prior.level_scale,
        effects.concentration,
        sb.EM(max_steps=array(7)).max_steps,
    )
    assert found == (-2.0, 3.0, 2.0, 7)
    assert [type(one) for one in found] == [float, float, float, int]
    for wrong in (array(np.nan), array(True), array([-2.0])):
        with pytest.raises(ValueError, match="level="):
            sb.HazardPrior([], wrong)
    with pytest.raises(ValueError, match=r"max_steps="):
        sb.EM(max_steps=array(7.0))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32, np.float64])
def test_arguments_of_models_may_be_numbers_of_numpy(kind):
    one = kind(1)
    assert noise_of_strength(one, 3) == pytest.approx(noise_of_strength(1, 3))
    assert stated_classes(None, 3, kind(0)) is None
    assert point_scale(None, 2, one) == 1.0
    assert len(sb.simulate_decline("seconds", 1, 1, df=kind(3), seed=0)) > 2
    if kind(1.5) == 1:  # whole numbers
        assert GaussianComponents(one, 2, "full", None).shape == (1,)
        assert check_inducing(one) == 1
    else:
        assert stated_classes(None, 3, kind(0.1)) is None
        assert len(sb.simulate_decline("seconds", 1, 1, df=kind(np.inf), seed=0)) > 2


def test_integers_of_numpy_that_are_huge_are_told_their_bound():
    with pytest.raises(ValueError, match=r"expected an integer >= 1 and < 2\^31"):
        check_integer("size", np.int64(2**40))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a" * 80, f"'{'a' * 59}..."),
        (iter(()), "<tuple_iterator>"),
        (len, "<builtin"),
        (np.float64(0.5), "0.5"),
        (np.array([1.0, -2.0]), "[1.0, -2.0]"),
    ],
)
def test_values_are_shown_whole_or_cut_visibly(value, text):
    assert shown(value).startswith(text)
