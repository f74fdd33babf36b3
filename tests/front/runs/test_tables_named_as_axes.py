"""Data and sites that have the name of one of their axes, in trees and files."""

from typing import Annotated

import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from sidebayes.diagnostics.trust.modes import same_data, same_question

import sidebayes as sb

RNG = np.random.default_rng(0)
DATA = {"y": RNG.normal(size=5), "rows": np.arange(5.0), "covariates": RNG.normal(size=(5, 2))}


def line(
    y: Annotated[ArrayLike, "rows"],
    rows: Annotated[ArrayLike, "rows"],
    covariates: Annotated[ArrayLike, "rows covariates"],
):
    """Regression on covariates, about a known trend."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(rows + covariates @ slope, 1.0).to_event(1), obs=y)


def fitted(**data):
    return sb.fit(line, **data, engine=sb.MAP(max_steps=2, num_restarts=1), progress=False)


def test_files_hold_them(tmp_path):
    fit = fitted(**DATA)
    fit.save(tmp_path / "fit.nc")
    loaded = sb.load(tmp_path / "fit.nc", model=line)
    for name, values in DATA.items():
        np.testing.assert_array_equal(loaded.run.data[name], values)
    assert repr(loaded) == repr(fit)
    assert same_data(loaded) == same_data(fit)
    assert same_question(loaded) == same_question(fit)


def test_other_values_of_them_are_another_question():
    fit = fitted(**DATA)
    assert same_question(fit) == same_question(fitted(**DATA))
    for name in ("rows", "covariates"):
        other = fitted(**DATA | {name: DATA[name][::-1]})
        assert same_question(fit) != same_question(other)
        assert same_data(fit) != same_data(other)
