"""Priors of hazards, formulas of survival and covariates: what is refused, said, and independent of units."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sidebayes.models.blocks.event_times import HazardPrior
from sidebayes.models.blocks.hazard_parameters import HazardParameters

import sidebayes as sb
from tests.support.effects import simulate_joint


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cuts": [2.0, 1.0], "level": 0.0}, "increasing"),
        ({"cuts": [-1.0], "level": 0.0}, "positive"),
        ({"cuts": [], "level": np.nan}, "level"),
        ({"cuts": [], "level": 0.0, "step": 0.0}, "step"),
        ({"cuts": [], "level": 0.0, "association": [1.0, -1.0]}, "association"),
    ],
)
def test_priors_refuse(fields, message):
    with pytest.raises(ValueError, match=message):
        HazardPrior(**fields)


def test_formulas_of_survival_are_checked():
    table, persons = simulate_joint(12)
    design = sb.design("y ~ year + (year | who)", table)
    with pytest.raises(ValueError, match="expected such as"):
        design.survival("years ~ drug", persons)
    with pytest.raises(ValueError, match="no column 'drugs'|drugs"):
        design.survival("Surv(years, died) ~ drugs", persons)
    with pytest.raises(ValueError, match=r"who \d+ has several rows"):
        design.survival("Surv(years, died) ~ drug", pd.concat([persons, persons]))
    with pytest.raises(ValueError, match="who 3 has measures, but no row here"):
        design.survival("Surv(years, died) ~ drug", persons[persons.who != 3])
    with pytest.raises(ValueError, match="event is 0 for all subjects"):
        design.survival("Surv(years, died) ~ drug", persons.assign(died=0))
    shuffled = design.survival("Surv(years, died) ~ drug", persons.sample(frac=1, random_state=0))
    np.testing.assert_array_equal(shuffled["time"], persons["years"])
    assert design.survival("Surv(years, died) ~ 1", persons)["covariates"] is None
    more = pd.concat([persons, persons.iloc[:1].assign(who=77)])
    with pytest.warns(sb.SideBayesWarning, match="1 of 13 subjects have no measures .*: who 77"):
        assert len(design.survival("Surv(years, died) ~ drug", more)["time"]) == 12


def test_starts_lie_within_the_priors():
    """Hazard ratios of effects on a measure in millions start at millionths."""
    prior = HazardPrior([], -3.0, association=2.5e-6, covariates=1e-3, origin=2000.0)
    block = HazardParameters(prior, np.array([[1990.0], [2005.0]]), np.eye(2))
    shapes = {"level": (), "association": (2,), "log_hazard_ratios": (1,)}
    found = block.starts(None, shapes, seed=0, num_starts=5)
    assert {role: value[0].tolist() for role, value in found.items()} == {
        "level": -3.0,
        "association": [0.0, 0.0],
        "log_hazard_ratios": [0.0],
    }
    assert np.abs(found["association"]).max() < 1e-6
    assert np.abs(found["log_hazard_ratios"]).max() < 1e-3


def test_an_origin_far_from_the_covariates_is_pointed_out():
    born, prior = np.array([[1940.0], [1960.0]]), HazardPrior([], -3.0)
    with pytest.warns(sb.SideBayesWarning, match=r"between 1940 and 1960, far from .*origin=0\)"):
        HazardParameters(prior, born, np.eye(2)).check("time", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HazardParameters(replace(prior, origin=1950.0), born, np.eye(2)).check("time", None)
        HazardParameters(prior, born > 1950, np.eye(2)).check("time", None)


def test_covariates_that_tell_nothing_are_pointed_out():
    age = 60.0 + np.arange(6.0)
    for columns, found in (
        ([age, np.sqrt(age)], None),
        ([age, np.full(6, 1e9 / 3)], "[1]"),
        ([age, np.sqrt(age), 2 * age - 5], "[2]"),
    ):
        said = HazardParameters(HazardPrior([], -3.0), np.c_[tuple(columns)], np.eye(2)).remark({})
        assert (
            said is None
            if found is None
            else said.startswith(f"Columns {found} of covariates are constant")
        )


@pytest.mark.parametrize("name", ["origin", "covariates", "association"])
def test_a_prior_has_a_number_for_each_column(name):
    prior = HazardPrior([], -3.0, **{name: [1.0, 2.0, 3.0]})
    with pytest.raises(
        ValueError, match=rf"HazardPrior\({name}=...\) has shape \(3,\), and there are"
    ):
        HazardParameters(prior, np.ones((4, 1)), np.eye(2))


def test_remedies_name_no_engine_that_is_refused():
    """EM has no update of hazards."""
    table, persons = simulate_joint(40)
    design = sb.design("y ~ year + (year | who)", table)
    data = design.survival("Surv(years, died) ~ drug", persons, num_intervals=1)
    cut = sb.fit(
        "joint_survival", **data, engine=sb.MAP(num_restarts=1, max_steps=3), progress=False
    )
    assert cut.verdict[0] == "bad"
    assert "EM" not in cut.verdict[1]


def test_weak_priors_go_with_the_units():
    """A measure in thousands and a covariate in hundreds mean the same."""
    table, persons = simulate_joint(12)
    formula = "Surv(years, died) ~ drug"
    usual = sb.design("y ~ year + (year | who)", table).survival(formula, persons)["hazard"]
    other = sb.design("y ~ year + (year | who)", table.assign(y=table.y / 1000))
    other = other.survival(formula, persons.assign(drug=persons.drug / 100))["hazard"]
    np.testing.assert_allclose(other.association, 1000 * usual.association)
    np.testing.assert_allclose(other.covariates, 100 * usual.covariates)


@pytest.mark.parametrize(
    ("died", "message"),
    [
        (
            ["yes", "no"] * 6,
            r"column 'died', holds 'yes'; expected 1 or True where the event was seen",
        ),
        (pd.array([True, None] * 6, dtype="boolean"), r"column 'died', is missing in row 1; drop"),
    ],
)
def test_events_that_are_no_indicators_name_their_column(died, message):
    table, persons = simulate_joint(12)
    design = sb.design("y ~ year + (year | who)", table)
    with pytest.raises((TypeError, ValueError), match=message):
        design.survival("Surv(years, died) ~ drug", persons.assign(died=died))
