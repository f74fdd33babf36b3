"""Designs of mixed effects that leave parameters undetermined, and arguments of these models."""

import jax
import numpy as np
import pytest
from numpyro.handlers import substitute, trace
from scipy.stats import multivariate_normal
from sidebayes.models.blocks.effects.densities.conditional import sample_effects
from sidebayes.models.blocks.effects.densities.structure import Structure
from sidebayes.models.blocks.effects.identified import (
    ONE_SUBJECT,
    _inner_products,
    covariance_is_determined,
    exact_fit,
    independent_columns,
)
from sidebayes.models.blocks.effects.parameters import mixed_parameters
from sidebayes.models.blocks.effects.priors import EffectsPrior
from sidebayes.models.blocks.side_information.groups import Groups

from sidebayes.common.columns import by_name
from sidebayes.common.copies import remark_on_copied_rows, remark_on_copies
from sidebayes.common.warnings import SideBayesWarning

RNG = np.random.default_rng(0)
CODES = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 4, 4, 3, 3, 0])
SIZE = len(CODES)
TIMES = np.column_stack([np.ones(SIZE), RNG.uniform(size=SIZE)])
Y = RNG.normal(size=SIZE)


@pytest.mark.parametrize("sizes", [(3,), (2, 1), (1, 1, 1)], ids=str)
def test_inner_products_are_those_of_the_derivatives(sizes):
    random, structure = RNG.normal(size=(SIZE, 3)), Structure(sizes)
    fixed = np.linalg.qr(RNG.normal(size=(SIZE, 2)))[0]
    kinds = np.eye(2)[RNG.integers(2, size=SIZE)]
    slopes = [np.diag(kind) for kind in kinds.T]
    for number, (i, j) in enumerate(zip(*structure.entries, strict=True)):
        moved = np.zeros((3, 3))
        moved[i, j] = moved[j, i] = 1.0
        together = np.where(CODES[:, None] == CODES, random @ moved @ random.T, 0.0)
        slopes.insert(number, together)
    left = np.eye(SIZE) - fixed @ fixed.T
    dense = [[np.trace(left @ a @ left @ b) for a in slopes] for b in slopes]
    inner, plain = _inner_products(fixed, random, CODES, kinds, structure)
    np.testing.assert_allclose(inner, dense, atol=1e-12)
    np.testing.assert_allclose(plain, [np.linalg.norm(slope) for slope in slopes])


@pytest.mark.parametrize(
    ("random", "codes", "sizes", "fixed"),
    [
        (np.ones((SIZE, 1)), np.arange(SIZE), (1,), TIMES),
        (np.ones((SIZE, 1)), np.zeros(SIZE, int), (1,), TIMES),
        (np.ones((SIZE, 1)), CODES, (1,), np.eye(5)[CODES]),
        (np.tile(np.eye(2), (7, 1)), np.repeat(np.arange(7), 2), (2,), np.ones((SIZE, 1))),
        (np.ones((SIZE, 2)), CODES, (1, 1), TIMES),
    ],
    ids=["one row each", "one subject", "means of subjects", "two times", "twice the same"],
)
def test_designs_that_determine_no_covariance(random, codes, sizes, fixed):
    basis, _ = independent_columns(fixed)
    assert not covariance_is_determined(basis, random, codes, None, Structure(sizes))


@pytest.mark.parametrize("origin", [0.0, 2000.0])
@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
def test_units_and_origins_do_not_matter(unit, origin):
    columns = unit * (TIMES + np.array([0.0, origin]))
    basis, dependent = independent_columns(columns)
    assert not dependent
    assert covariance_is_determined(basis, columns, CODES, None, Structure((2,)))
    more = np.hstack([columns, 3 * columns[:, 1:]])
    assert len(independent_columns(more)[1]) == 1
    assert not covariance_is_determined(basis, more, CODES, None, Structure((3,)))


def test_flat_priors_ask_more_of_the_data_than_others():
    subjects, lone = Groups(CODES), Groups(np.arange(SIZE))
    prior = EffectsPrior.weak(Y, TIMES, TIMES[:, :1])
    mixed_parameters(Y, TIMES, TIMES, subjects=subjects).check("y", Y)
    mixed_parameters(Y, TIMES, TIMES[:, :1], prior=prior, subjects=lone).check("y", Y)
    for random, groups in ((TIMES[:, :1], lone), (TIMES[:, [0, 0]], subjects)):
        with pytest.warns(SideBayesWarning, match="random effects and the noise undetermined"):
            mixed_parameters(Y, TIMES, random, subjects=groups).check("y", Y)
        said = mixed_parameters(Y, TIMES, random, subjects=groups).remark({})  # of any draws
        assert said is not None
        assert "undetermined" in said
    block = mixed_parameters(Y, TIMES, TIMES, subjects=subjects)
    noise = np.ones((1, 1))
    for factor, singular in (([1.0, 0.5, 0.0], True), ([1.0, 0.5, 0.5], False)):
        said = block.remark({"factor": np.reshape(factor, (1, 1, 3)), "noise": noise})
        assert (said is not None and "singular fit" in said) == singular
    for y, message in (
        (TIMES @ [1.0, 2.0], "y is a linear function of the columns of fixed"),
        (np.zeros(SIZE), "no noise is left"),
    ):
        with pytest.raises(ValueError, match=message):
            mixed_parameters(y, TIMES, TIMES, subjects=subjects).check("y", y)


@pytest.mark.parametrize("origin", [0.0, 1e6])
@pytest.mark.parametrize("level", [0.0, 1e9])
def test_outcomes_that_leave_no_noise_are_refused_under_any_prior(level, origin):
    """Of each subject the same, or lines of its own; noise of size 1 is left, whatever the origins."""
    columns = TIMES + np.array([0.0, origin])
    own = np.random.default_rng(1).normal(size=(5, 2))[CODES]
    same, lines = level + own[:, 0], level + (own * columns).sum(axis=1)
    for y, random, said in (
        (same, columns[:, :1], "y does not vary within any subject: no noise .* Keep one row"),
        (same, columns, "y does not vary within any subject"),  # slopes have no variance
        (same + columns[:, 1], columns[:, :1], "each subject's own .* any prior. Check how"),
        (lines, columns, "each subject's own columns of random: .* Give fewer columns of random"),
    ):
        for prior in ("flat", EffectsPrior.weak(y, columns, random)):
            block = mixed_parameters(y, columns, random, prior=prior, subjects=Groups(CODES))
            with pytest.raises(ValueError, match=said):
                block.check("y", y)
    for y, random in ((level + Y, columns), (lines, columns[:, :1])):
        assert exact_fit("y", y, columns, random, CODES, None) is None


def test_one_output_alone_may_leave_no_noise():
    kinds = np.eye(2)[np.arange(SIZE) % 2]
    y = np.where(kinds[:, 0] > 0, CODES, Y)
    said = exact_fit("y", y, kinds, kinds, CODES, kinds)
    assert said is not None
    assert said.startswith("y in the rows of output 0 does not vary within any subject")
    assert exact_fit("y", Y, kinds, kinds, CODES, kinds) is None


def test_as_many_columns_as_rows_leave_what_they_leave():
    """One visit each, or two with lines of their own: the likelihood has a bound."""
    visits, pairs = np.tile([0.0, 1.0], 7), np.repeat(np.arange(7), 2)
    line = np.column_stack([np.ones(SIZE), visits])
    assert exact_fit("y", Y, TIMES, TIMES[:, :1], np.arange(SIZE), None) is None
    assert exact_fit("y", Y, line, line, pairs, None) is None
    assert "any subject" in (exact_fit("y", Y[pairs], line, line, pairs, None) or "")
    with pytest.raises(ValueError, match="as many columns as rows, 2: no noise is left"):
        mixed_parameters(Y[:2], TIMES[:2], TIMES[:2]).check("y", Y[:2])


def test_one_subject_is_said_to_be_one():
    """Whether the mean of its effects is among the fixed ones or not."""
    lone = Groups(np.zeros(SIZE, int))
    for random in (TIMES[:, :1], RNG.normal(size=(SIZE, 1))):
        with pytest.warns(SideBayesWarning, match="There is one subject, .* give more subjects"):
            mixed_parameters(Y, TIMES, random, subjects=lone).check("y", Y)
        prior = EffectsPrior.weak(Y, TIMES, random)
        block = mixed_parameters(Y, TIMES, random, prior=prior, subjects=lone)
        assert block.remark({"noise": np.ones((1, 1))}) == ONE_SUBJECT
        assert block.remark({"noise": np.ones((2, 50))}) is None  # draws show what the prior leaves


def test_dependent_columns_go_by_name():
    block = mixed_parameters(Y, np.hstack([TIMES, np.ones((SIZE, 1))]), TIMES)
    for columns, named in (({"fixed": ["Intercept", "years", "c"]}, "'c'"), ({}, "2")):
        with pytest.raises(ValueError, match=f"such as {named}; drop"), by_name(columns, "y"):
            block.check("y", Y)


def test_weak_priors_hold_at_the_means_of_columns():
    """Whatever the origin, slopes and the effects at the means of time have one prior."""
    away = np.array(
        [[1.0, 2010.0], [0.0, 1.0]]
    )  # the effects at the origin of TIMES, of those far away
    near, far = (EffectsPrior.weak(Y, x, x) for x in (TIMES, TIMES @ away))
    (mean, lower), (far_mean, far_lower) = (p.of_coefficients(np.arange(2)) for p in (near, far))
    np.testing.assert_allclose(away @ far_mean, mean, atol=1e-9)
    np.testing.assert_allclose(away @ far_lower @ far_lower.T @ away.T, lower @ lower.T, atol=1e-6)
    np.testing.assert_allclose(far.deviation, near.deviation)
    np.testing.assert_allclose(far.random_map, near.random_map @ away, atol=1e-9)
    kinds = np.eye(2)[np.arange(SIZE) % 2]
    columns = np.hstack([kinds, kinds * TIMES[:, 1:]])
    several = EffectsPrior.weak(Y, columns, columns, kinds).fixed_map
    own = [TIMES[:, 1] @ kind / kind.sum() for kind in kinds.T]
    np.testing.assert_allclose(several, np.eye(4) + np.diag(own, 2))
    alone = EffectsPrior.weak(
        Y, TIMES, TIMES[:, 1:]
    )  # slopes without an intercept keep their origin
    np.testing.assert_array_equal(alone.random_map, [[1.0]])
    block = mixed_parameters(Y, TIMES, TIMES, covariance="diagonal", prior=near)
    np.testing.assert_array_equal(block.random_map, np.eye(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance": 2}, "covariance = 2; expected 'full', 'diagonal'"),
        ({"covariance": None}, "covariance = None; expected"),
        ({"covariance": (True, 1)}, "covariance = .*; expected"),
        ({"prior": np.ones(2)}, r"prior = \[.*; expected 'flat' or an EffectsPrior"),
        (
            {"outputs": np.eye(2)[np.zeros(SIZE, int)]},
            r"outputs\[:, 1\] is of an output that no row",
        ),
    ],
    ids=str,
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        mixed_parameters(Y, TIMES, TIMES, **options)


def test_signs_of_a_factor_do_not_matter_to_effects():
    """Under a flat prior any numbers stand on its diagonal."""
    factor, effects = np.array([[-1.3, 0.0], [0.4, 0.7]]), RNG.normal(size=(3, 2))

    @jax.jit
    def density():
        with trace() as found, substitute(data={"random_effects": effects}):
            sample_effects(3, factor, centred=True)
        return found["random_effects"]["fn"].log_prob(effects)

    expected = multivariate_normal(np.zeros(2), factor @ factor.T).logpdf(effects)
    np.testing.assert_allclose(density(), expected, rtol=1e-5)


def test_copies_of_rows_are_said():
    def remark(y, columns, codes):
        return remark_on_copies("y", y, columns, None, codes)

    twice = [np.concatenate([one, one]) for one in (Y, TIMES, CODES)]
    said = remark(*twice)
    assert said.startswith("28 of 28 rows of y equal another one in all columns, and copies count")
    one_more = [np.concatenate([one, one[:1]]) for one in (Y, TIMES, CODES)]
    for own in ([Y, TIMES, CODES], one_more, [twice[0], twice[1], np.arange(28)]):
        assert remark(*own) is None
    visits = np.tile([0.0, 1.0], 14)  # scores that are equal by chance
    assert remark(np.tile([1.0, 2.0, 1.0, 2.0], 7), visits, np.zeros(28)) is None


def test_copies_of_rows_of_several_columns_are_said():
    rows = np.random.default_rng(1).normal(size=(30, 2))
    said = remark_on_copied_rows("x", np.concatenate([rows, rows]))
    assert said.startswith("60 of 60 rows of x equal another one in all columns")
    again = rows[np.random.default_rng(2).integers(30, size=30)]  # a bootstrap sample
    scores = np.random.default_rng(3).integers(5, size=(60, 2))  # equal by chance
    rounded = np.random.default_rng(4).normal(size=(200, 2)).round(1)
    for own in (rows, again, scores, rounded, np.concatenate([rows, rows])[:, :1]):
        assert remark_on_copied_rows("x", own) is None


def test_a_fit_to_copies_is_a_caution():
    columns = np.column_stack([np.ones(2 * SIZE), np.concatenate([TIMES[:, 1]] * 2)])
    block = mixed_parameters(np.concatenate([Y, Y]), columns, columns[:, :1], prior="flat")
    assert "rows of y equal another one" in block.remark_on_data("y", np.concatenate([Y, Y]), {})
