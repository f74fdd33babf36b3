"""Covariates of shapes: slopes, formulas, shares of variance, new individuals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sidebayes.models.blocks.manifolds import preshape

import sidebayes as sb
from sidebayes import PartialLabels
from sidebayes.results.base.new_data import check_new
from sidebayes.runs.arguments import read_run
from tests.support.two_groups import (
    AXES,
    LABELS,
    MARKS,
    SHAPES,
    SIZE,
    WHOLE,
    coordinates_of,
    fitted,
    posed,
    rows,
)

pytestmark = pytest.mark.usefixtures("double")


def test_slopes_are_those_of_least_squares_and_covariates_explain_what_they_added(known_groups):
    rng = np.random.default_rng(3)
    age = rng.normal(size=SIZE) * 4 + 30
    along = rng.normal(scale=0.03, size=(MARKS, AXES))
    shapes = SHAPES + (age[:, None, None] - 30) * along
    table = pd.DataFrame({"age": age, "noise": rng.normal(size=SIZE)})
    fit = fitted(shapes=shapes, known=PartialLabels(LABELS), prior="flat", covariates=table)
    rows_of = coordinates_of(shapes, fit.run.data["chart"])
    columns = np.column_stack([np.eye(2)[LABELS], table])
    slopes = np.linalg.lstsq(columns, rows_of, rcond=None)[0][2:]
    # shrunken towards zero by a prior of 2.5 standard deviations of a coordinate
    np.testing.assert_allclose(fit.params["slopes"], slopes, atol=0.05 * np.abs(slopes).max())
    found = fit.shape_effects()
    assert list(found["term"].to_numpy()) == ["age", "noise"]
    assert found["share"][0] > 3 * found["share"][1]
    one = fit.shape_at(fit.params["weights"] @ fit.params["mean"] + fit.params["slopes"][0])
    np.testing.assert_allclose(found["change"][0] + fit.shapes()["population"], one, atol=1e-12)
    own, other = (
        fit.log_prob(**rows(shapes), covariates=one).sum()
        for one in (table, table[::-1].to_numpy())
    )
    assert own > other + 10
    predicted = [
        fit.predictive(subjects=[0] * MARKS, landmarks=np.arange(MARKS), covariates=[[value, 0.0]])[
            "predictions"
        ]["coordinates"].to_numpy()
        for value in (30.0, 40.0)
    ]
    moved = np.broadcast_to(10 * fit.params["slopes"][0], predicted[0].shape[-2:])
    np.testing.assert_allclose((predicted[1] - predicted[0])[0, 0], moved, atol=1e-9)
    observed = fit.predictive()["observed_data"]["coordinates"]
    np.testing.assert_allclose(observed, rows_of, atol=1e-9)
    with pytest.raises(ValueError, match="no covariates of shapes"):
        known_groups.shape_effects()


@pytest.mark.slow
def test_a_size_is_no_part_of_what_covariates_explain():
    rng = np.random.default_rng(5)
    age = rng.normal(size=SIZE)
    whole = np.asarray(preshape.to_preshape(SHAPES).shape)
    given = {"num_modes": 3, "known": PartialLabels(LABELS), "covariates": age[:, None]}
    alone = fitted(shapes=whole * np.exp(rng.normal(size=(SIZE, 1, 1))), **given)
    sized = fitted(shapes=whole * np.exp(3 * age)[:, None, None], size=True, **given)
    found = [fit.shape_effects()["share"].item() for fit in (alone, sized)]
    assert found[1] < 1
    slopes = sized.params["slopes"][0, :3]
    table = coordinates_of(SHAPES, sized.run.data["chart"])
    np.testing.assert_allclose(
        found[1], age.var() * (slopes**2).sum() / table.var(axis=0).sum(), rtol=1e-6
    )


SPECIES = np.repeat(["a", "b", "c"], SIZE // 3)
SEX = np.tile(["f", "m"], SIZE // 2)


def with_covariates():
    """Landmarks of three species and two sexes, whose names are out of order."""
    rng = np.random.default_rng(6)
    x = SHAPES.copy()
    x[SPECIES == "b"] += rng.normal(scale=0.1, size=(MARKS, AXES))
    x[SEX == "m"] += rng.normal(scale=0.1, size=(MARKS, AXES))
    names = [f"s{number}" for number in range(SIZE)]  # s10 comes before s2
    table = {"species": SPECIES, "sex": SEX, "age": rng.normal(size=SIZE)}
    return sb.Landmarks.from_array(posed(x), subjects=names, covariates=table)


def test_shares_are_those_of_an_analysis_of_variance_with_sequential_sums_of_squares():
    marks = with_covariates()
    design = sb.shape_design("~ age + species * sex", marks)
    fit = sb.fit("hierarchical_shape", **design, num_modes=WHOLE, prior="flat", progress=False)
    found = fit.shape_effects()
    terms = ["age", "species", "sex", "species:sex"]
    assert found["term"].to_numpy().tolist() == terms
    assert found["column"].to_numpy()[-2:].tolist() == ["species[b]:sex[m]", "species[c]:sex[m]"]
    # nested fits of statsmodels' kind: residual sums of squares of more and more columns
    table = coordinates_of(marks.to_array(), fit.run.data["chart"])
    ends = np.cumsum([0, 1, 2, 1, 2])
    columns = np.column_stack([np.ones(SIZE), design["covariates"]])
    left = [
        ((table - columns[:, : 1 + end] @ np.linalg.pinv(columns[:, : 1 + end]) @ table) ** 2).sum()
        for end in ends
    ]
    shares = -np.diff(left) / left[0]
    # slopes are shrunken towards zero by their prior
    np.testing.assert_allclose(found["share"], shares, rtol=0.15, atol=0.005)
    effects = columns[:, 1:] @ fit.params["slopes"]
    whole = ((effects - effects.mean(axis=0)) ** 2).sum() / left[0]
    np.testing.assert_allclose(found["share"].sum(), whole, rtol=1e-9)


def test_new_individuals_have_the_columns_of_those_that_were_fitted():
    marks = with_covariates()
    design = sb.shape_design("~ species + log_size", marks)
    known = PartialLabels(LABELS)
    fit = sb.fit(
        "hierarchical_shape", **design, known=known, num_clusters=2, num_modes=3, progress=False
    )
    few = marks.take([20, 3])  # of some species only
    assert list(design.at(few)["covariates"]) == ["species[b]", "species[c]", "log_size"]
    np.testing.assert_allclose(
        fit.log_prob(**design.at(few)), fit.log_prob(**design)[[3, 20]], rtol=1e-6
    )


def test_new_individuals_without_covariates_are_refused():
    marks = with_covariates()
    design = sb.shape_design("~ age", marks)
    run = read_run("hierarchical_shape", (), {**design, "num_modes": 2}, None)
    few = marks.take([20, 3])  # the covariates have no columns yet
    for data, named in (((few,), {}), ((), few.by_role())):
        with pytest.raises(TypeError, match=r"covariates; pass .* by \*\*design\.at\(marks\)"):
            check_new(run, data, named)
    assert check_new(run, (), design.at(few))["covariates"].shape == (2, 1)


def test_landmarks_are_data_by_themselves_and_name_their_groups():
    marks = with_covariates()
    fit = sb.fit(
        "hierarchical_shape", marks, known="species", num_clusters=3, num_modes=3, progress=False
    )
    by_name = sb.fit(
        "hierarchical_shape",
        marks.x,
        marks.subjects,
        marks.landmarks,
        known=marks.covariates["species"],
        num_clusters=3,
        num_modes=3,
        progress=False,
    )
    np.testing.assert_array_equal(fit.params["mean"], by_name.params["mean"])
    found = fit.shapes()
    assert found["group"].to_numpy().tolist() == ["a", "b", "c"]
    assert found["subject"].to_numpy().tolist() == marks.names.tolist()
    few = marks.take(range(3))
    np.testing.assert_array_equal(
        fit.predict_proba(few, known="species").argmax(axis=1),
        np.searchsorted(["a", "b", "c"], few.covariates["species"]),
    )


@pytest.mark.parametrize(
    ("method", "data", "named", "error", "message"),
    [
        (
            "hierarchical_shape",
            (),
            {"landmarks": LABELS},
            TypeError,
            "by name and in the landmarks",
        ),
        (
            "hierarchical_shape",
            (LABELS,),
            {},
            TypeError,
            r"beside landmarks; pass these by name \(.*known",
        ),
        ("gmm", (), {"num_clusters": 2}, TypeError, "gmm takes no .'landmarks', 'subjects'."),
        ("hierarchical_shape", (), {"known": "race"}, ValueError, "known = 'race' is no covariate"),
    ],
)
def test_data_beside_landmarks_are_refused(method, data, named, error, message):
    marks = with_covariates()
    with pytest.raises(error, match=message):
        sb.fit(method, marks, *data, **named)


@pytest.mark.parametrize(
    ("formula", "known", "message"),
    [
        ("~ species", SPECIES, r"columns \[0, 1\] are constant within each"),
        ("~ age + species", SPECIES, r"columns \[1, 2\] are constant within each"),
        ("~ sex", np.where(np.arange(SIZE) % 4 < 2, SEX, None), r"columns \[0\] are constant"),
        ("~ twice + rest", SPECIES, "some of their columns together do not vary within each"),
    ],
)
def test_covariates_that_repeat_the_known_groups_are_said(formula, known, message):
    marks = with_covariates()
    code = np.searchsorted(["a", "b", "c"], SPECIES)
    age = np.random.default_rng(0).normal(size=SIZE)
    extra = pd.DataFrame({"twice": age, "rest": code - age, "known": known})
    table = pd.concat([marks.covariates, extra.set_axis([f"s{k}" for k in range(SIZE)])], axis=1)
    marks = sb.Landmarks(marks.x, marks.subjects, marks.landmarks, covariates=table)
    data = sb.shape_design(formula, marks)
    with pytest.warns(sb.SideBayesWarning, match=message):
        sb.fit(
            "hierarchical_shape",
            **data,
            known=table["known"],
            num_clusters=3,
            num_modes=2,
            progress=False,
        )


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("species", "expected terms without a response"),
        ("shape ~ species", "expected terms without a response"),
        ("~ (1 | species)", "expected terms without a response"),
        (3, "expected terms without a response"),
        ("~ race", "formula = '~ race' cannot be evaluated"),
        ("~ odd", r"a category of odd makes the column 'odd\[x\[1\]\]'"),
    ],
)
def test_formulas_that_cannot_be_read_are_refused(formula, message):
    marks = with_covariates()
    odd = marks.covariates.assign(odd=np.where(SEX == "m", "x[1]", "a"))
    marks = sb.Landmarks(marks.x, marks.subjects, marks.landmarks, covariates=odd)
    with pytest.raises(ValueError, match=message):
        sb.shape_design(formula, marks)


def test_a_size_needs_all_landmarks_and_a_category_must_be_known():
    marks = with_covariates()
    x = marks.to_array()
    x[2, 1] = np.nan
    with pytest.raises(
        ValueError, match="log_size needs all landmarks, and individual 2 lacks one"
    ):
        sb.shape_design("~ log_size", sb.Landmarks.from_array(x))
    design = sb.shape_design("~ species", marks)
    other = sb.Landmarks.from_array(x[:2], covariates={"species": ["a", "z"]})
    with pytest.raises(ValueError, match="z"):
        design.at(other)
    with pytest.raises(TypeError, match="landmarks is a DataFrame"):
        design.at(marks.covariates)
    assert repr(design) == f"ShapeDesign(~ species: {SIZE} individuals, 2 columns)"
