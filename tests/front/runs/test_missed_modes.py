"""Samplers that start at one mode say so where the search for it found another one."""

import numpy as np
import pytest

import sidebayes as sb
from tests.reference.posteriors import EXACT


@pytest.mark.parametrize(
    "engine",
    [sb.NUTS(num_warmup=200, num_samples=200), sb.SVI(), sb.Laplace()],
    ids=lambda e: e.name,
)
def test_a_fit_of_one_of_two_modes_is_not_called_good(engine):
    known = EXACT["two_signs"]()
    fit = sb.fit(known.model, *known.data, engine=engine, progress=False)
    assert np.abs(np.sign(fit.tree["posterior"]["theta"]).mean()) == 1  # one mode
    level, why = fit.verdict
    assert level != "good"
    assert "No draw came near a mode" in why
    assert "0.4 below" in why


def test_draws_of_both_modes_are_not_warned_of():
    known = EXACT["two_signs"]()
    fit = sb.fit(known.model, *known.data, engine=sb.SMC(num_particles=500), progress=False)
    assert "No draw came near" not in fit.verdict[1]
