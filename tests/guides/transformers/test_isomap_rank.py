"""Maps with more coordinates than the rows have dimensions."""

import numpy as np
import pytest

import sidebayes as sb


def test_coordinates_beyond_those_of_a_line_are_zero_as_the_warning_says():
    with pytest.warns(UserWarning, match="the other coordinates are zero"):
        found = sb.IncrementalIsomap(2, n_neighbors=3).fit(np.arange(30.0)[:, None])
    assert not found.embedding_[:, 1].any()
    np.testing.assert_allclose(np.abs(found.embedding_[0, 0]), 14.5)
