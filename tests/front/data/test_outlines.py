"""Outlines of the digits: closed, at equal distances, from the top on, clockwise."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sidebayes import digit_outlines


def test_outlines():
    marks = digit_outlines([8, 0], num_points=200, num_each=40)
    digits = load_digits()
    assert (digits.target[marks.names] == marks.covariates["digit"]).all()
    assert marks.covariates["digit"].value_counts().to_dict() == {0: 40, 8: 40}
    x = marks.to_array()
    assert (x[:, 0, 1] >= x[:, :, 1].max(axis=1) - 1e-12).all()
    steps = np.linalg.norm(np.diff(x, axis=1, append=x[:, :1]), axis=2)
    # chords are shorter than the line where it bends
    assert (steps <= steps.max(axis=1, keepdims=True)).all()
    assert np.median(steps / steps.max(axis=1, keepdims=True)) > 0.99
    turned = np.roll(x, -1, axis=1)
    area = (x[..., 0] * turned[..., 1] - turned[..., 0] * x[..., 1]).sum(axis=1) / 2
    assert (area < 0).all()
    # the darker a picture is, the larger the area within its outline
    dark = np.array([(digits.images[row] > 6).sum() for row in marks.names])
    assert np.corrcoef(dark, -area)[0, 1] > 0.5


def test_outlines_lie_where_the_picture_is_dark():
    marks = digit_outlines([1], num_points=64, num_each=5)
    images = load_digits().images
    for row, outline in zip(marks.names, marks.to_array(), strict=True):
        place = np.rint(outline).astype(int)
        framed = np.pad(images[row][::-1], 1)
        near = [framed[y - 1 : y + 2, x - 1 : x + 2] for x, y in place.clip(1, 8)]
        assert all(one.max() >= 6 >= one.min() for one in near)


def test_all_of_a_digit():
    assert len(digit_outlines([3])) == 183
    marks = digit_outlines([3, 5], num_each=2)
    assert marks.num_landmarks == 32
    assert marks.units == "pixels"


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"digits": 3}, TypeError, "digits = 3; expected a list"),
        ({"digits": [0.5]}, TypeError, "whole numbers"),
        ({"digits": [10]}, ValueError, "some of 0 to 9"),
        ({"digits": [1, 1]}, ValueError, "each once"),
        ({"num_points": 2}, ValueError, "num_points = 2"),
        ({"num_each": 0}, ValueError, "num_each = 0"),
    ],
)
def test_refusals(given, error, match):
    with pytest.raises(error, match=match):
        digit_outlines(**given)
