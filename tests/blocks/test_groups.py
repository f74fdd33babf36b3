"""Groups of rows: codes, parts of a table, compiled code."""

import jax
import numpy as np
import pytest
from sidebayes.models.blocks.side_information.partial_labels import Groups

from tests.support_effects import CODES, SUBJECT


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
