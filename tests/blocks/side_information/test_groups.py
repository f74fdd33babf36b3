"""Groups of rows: codes, parts of a table, compiled code."""

from datetime import date

import jax
import numpy as np
import pandas as pd
import pytest
from sidebayes.models.blocks.side_information.groups import Groups

from tests.support.effects import CODES, SUBJECT


def test_groups():
    groups = Groups(SUBJECT)
    np.testing.assert_array_equal(groups.codes, CODES)
    assert len(groups) == 11
    assert groups.num_groups == 4
    np.testing.assert_array_equal(groups.codes_of(["c", "x", "a"]), [2, -1, 0])
    assert Groups([30, 10, -1, 30]).codes_of([10, 20, -1]).tolist() == [0, -1, -1]
    for rows in [[0, 2, 4], np.isin(np.arange(11), [0, 2, 4]), slice(0, 5, 2)]:
        part = groups.subset(rows)
        assert part.names.tolist() == ["b", "d"]
        assert part.codes.tolist() == [1, 0, 1]
    assert Groups([3, -1, 7, 3]).subset([1, 2]).codes.tolist() == [-1, 0]


def test_groups_as_pytree():
    groups = Groups(SUBJECT)
    leaves, structure = jax.tree.flatten(groups)
    assert len(leaves) == 1
    assert structure == jax.tree.structure(Groups(np.arange(4)))
    assert structure != jax.tree.structure(Groups(np.arange(5)))
    again = jax.jit(lambda g: g)(groups)
    np.testing.assert_array_equal(again.codes, CODES)
    assert again.num_groups == 4
    assert again.names is None
    assert again.values is None
    part = again.subset([0, 2, 4])
    assert part.codes.tolist() == [1, 0, 1]
    assert part.num_groups == 2
    with pytest.raises(ValueError, match="keeps no names"):
        again.codes_of(["a"])
    jax.tree.map(lambda _: None, groups)  # placeholders are not validated


BIG = 2**53


@pytest.mark.parametrize(
    ("values", "codes", "names"),
    [
        ([BIG + 1, BIG], [1, 0], [BIG, BIG + 1]),
        (np.array([BIG + 1, -1, BIG]), [1, -1, 0], [BIG, BIG + 1]),
        ([BIG, None, BIG + 1], [0, -1, 1], [BIG, BIG + 1]),
        (pd.Series([BIG, None, BIG + 1, -1], dtype="Int64"), [0, -1, 1, -1], [BIG, BIG + 1]),
        (pd.array([2**64 - 1, 2**64 - 2], "UInt64"), [1, 0], [2**64 - 2, 2**64 - 1]),
        (np.array([2**64 - 1, 2**64 - 2], np.uint64), [1, 0], [2**64 - 2, 2**64 - 1]),
        ([1.5, np.nan, -1.0, 0.5], [1, -1, -1, 0], [0.5, 1.5]),
    ],
    ids=str,
)
def test_large_numbers_stay_groups_of_their_own(values, codes, names):
    groups = Groups(values)
    assert groups.codes.tolist() == codes
    assert groups.names.tolist() == names
    assert groups.names.dtype.kind in ("f" if 0.5 in names else "iu")
    assert groups.codes_of(values).tolist() == codes
    assert groups.codes_of(np.array(names[1:])).tolist() == [1]
    assert groups.codes_of([7]).tolist() == [-1]
    assert groups.subset([0, 1]).codes.tolist() == Groups(list(values[:2])).codes.tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([BIG + 1, np.nan], r"groups\[0\] = 9007199254740992.0: as float64 it is not dist"),
        ([1.0, np.inf], r"groups\[1\] = inf: as float64"),
        (np.array([1, 2**24 + 1], np.float32), r"groups\[1\] = 16777216.0: as float32"),
        ([0.5, BIG + 1, None], r"groups\[1\] = 9007199254740993: as float64"),
        ([2**70, 1], "integers of more than 64 bits; give them as text"),
        ([1j, None], "complex numbers"),
        (["a\0b", "c"], "groups holds 'a.*, with a character that files cannot hold"),
        (["\ud800", "c"], "with a character that files cannot hold"),
        ([date(2020, 1, 1), None], "groups holds date objects; give numbers or text"),
        (np.array([1, "a", 2], object), "mixes names that have no order"),
    ],
    ids=str,
)
def test_numbers_that_merge_are_refused(values, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Groups(values)


@pytest.mark.parametrize("rows", [[4], [-4], "x", [[0]], [0.5], None, 3, [True], ["a"]], ids=repr)
def test_rows_that_there_are_not(rows):
    groups = Groups(["a", "b", "a"])
    for choose in (groups.take, groups.subset):
        with pytest.raises(
            ValueError, match="row numbers from 0 on and below 3, or a mask over all 3"
        ):
            choose(rows)
    assert groups.take([]).codes.tolist() == groups.subset([]).codes.tolist() == []
