"""Defaults of domain adaptation do no harm: halves of one set, other units, moves that nothing supports."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpyro import handlers
from sidebayes.diagnostics.sites import is_ordered
from sidebayes.guides.domain_adaptation import ComponentMaps, mixture_by_bic
from sidebayes.guides.engines.base import FitError
from sidebayes.models.blocks.classes.source_worth import source_worth
from sidebayes.models.domain_adaptation import domain_adaptation
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import train_test_split

import sidebayes as sb
from sidebayes import EM, ShiftPrior, SourceMixture
from sidebayes.studies import adaptation
from tests.support.draws import Asked, Asking, at_one

ONE = EM(num_restarts=1, tol=1e-6, max_steps=200)
UNITS = 10.0 ** np.linspace(-6, 6, 13)


def halves(load=load_wine, seed=0):
    """Two random halves of one set, and its classes."""
    x, y = load(return_X_y=True)
    return train_test_split(x, y, test_size=0.5, stratify=y, random_state=seed)


def moved(x, known, source, **options):
    return sb.fit(
        "domain_adaptation", x, known, source=source, engine=ONE, progress=False, **options
    )


def accuracy(source, x, y):
    return (source.predict(x) == y).mean()


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_source_does_not_depend_on_units(covariance):
    first, second, y, _ = halves()
    given = {"covariance": covariance, "num_components": 2}
    one = sb.fit_source(first, y, **given)
    other = sb.fit_source(first * UNITS, y, **given)
    np.testing.assert_allclose(other.mean / UNITS, one.mean, rtol=1e-6)
    prob = other.predict_proba(second * UNITS)
    np.testing.assert_allclose(prob, one.predict_proba(second), atol=1e-6)


def test_maps_between_domains_do_not_depend_on_units():
    first, second, *_ = halves()
    pairs = [
        ComponentMaps(mixture_by_bic(first * u, 3), mixture_by_bic(second * u, 3)).matched
        for u in (1.0, UNITS)
    ]
    np.testing.assert_array_equal(*pairs)


def test_constant_features_leave_a_source_regular():
    """One feature is constant, another one is within one class only."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 30)
    x = rng.normal(size=(60, 3))
    x[:, 0], x[y == 0, 1] = 0.1, 0.3
    unit = np.array([1e-3, 1e3, 1.0])
    one, other = sb.fit_source(x, y), sb.fit_source(x * unit, y)
    np.testing.assert_allclose(other.predict_proba(x * unit), one.predict_proba(x), atol=1e-8)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_bic_does_not_choose_components_with_fewer_rows_than_parameters(load):
    """Wine: .56 where it did, .98 with one component per class."""
    first, second, y, truth = halves(load)
    source = sb.fit_source(first, y)
    number = first.shape[1] * (first.shape[1] + 3) / 2
    held = source.weights[np.bincount(source.component_class)[source.component_class] > 1]
    assert (held * len(first) >= number / 2).all()
    plain = sb.fit_source(first, y, num_components=1)
    assert accuracy(source, second, truth) >= accuracy(plain, second, truth)
    rng = np.random.default_rng(0)  # where there are two components and enough rows, both are found
    corner = np.arange(400) % 4
    x = rng.normal(size=(400, 2)) + 6.0 * np.stack([corner // 2, corner % 2], axis=1)
    assert sb.fit_source(x, (corner // 2) ^ (corner % 2)).num_components == 4


def test_several_components_are_taken_where_they_predict_classes_better():
    """Balance scale: BIC finds components in a grid, by which fewer classes are right than by none."""
    arms = np.stack(np.meshgrid(*[np.arange(1.0, 6.0)] * 4), axis=-1).reshape(-1, 4)
    tilt = np.sign(arms[:, 0] * arms[:, 1] - arms[:, 2] * arms[:, 3]).astype(int)
    kept = tilt != 0
    first, second, y, truth = train_test_split(
        arms[kept], (tilt[kept] + 1) // 2, test_size=0.5, random_state=0
    )
    assert sb.fit_source(first, y, num_components=1).num_components == 2
    by_bic = [mixture_by_bic(first[y == c], None, num_restarts=1).n_components for c in (0, 1)]
    split = sb.fit_source(first, y, num_components=by_bic)
    source = sb.fit_source(first, y, num_restarts=1)
    assert max(by_bic) > 1
    assert source.num_components == 2
    assert accuracy(source, second, truth) > accuracy(split, second, truth)


def test_a_source_is_worth_more_the_less_the_target_has_moved():
    rng = np.random.default_rng(0)
    eye = np.eye(2)
    source = SourceMixture(
        np.full(2, 0.5), np.array([(0.0, 0.0), (4.0, 0.0)]), np.stack([eye, eye]), np.arange(2)
    )
    rows = source.mean[np.arange(400) % 2] + rng.normal(size=(400, 2))
    still, near, far = (source_worth(source, rows + shift).means[0] for shift in (0.0, 0.7, 3.0))
    assert still == pytest.approx(100 * 400)
    assert 0.1 < near < 10  # means have moved by .7 deviations
    assert far < 0.2 * near
    scaled = SourceMixture(source.weights, source.mean * 1e6, source.covariance * 1e12, [0, 1])
    assert source_worth(scaled, (rows + 0.7) * 1e6).means[0] == pytest.approx(near)


def test_the_default_is_the_ported_source_where_nothing_has_moved():
    """Halves of one set; a prior that is worth a point learns shapes of its own."""
    first, second, y, truth = halves(load_breast_cancer)
    source = sb.fit_source(first, y)
    known = np.where(np.arange(len(truth)) % 10 == 0, truth, -1)
    fit = moved(second, known, source)
    guess = fit.class_probabilities(second).argmax(axis=1)
    assert (guess != source.predict(second)).mean() < 0.01
    assert (guess == truth).mean() >= accuracy(source, second, truth) - 0.005
    assert fit.run.data["worth"].shape == (source.num_components,)


def test_a_source_of_one_class_is_refused():
    with pytest.raises(ValueError, match="labels name one class alone"):
        sb.fit_source(np.eye(3), np.zeros(3, int))


def test_a_worth_is_refused_where_nothing_is_made_of_it():
    first, second, y, _ = halves()
    source = sb.fit_source(first[:, :2], y, num_components=1)
    worth = np.ones(source.num_components)
    for bad, said in (
        ({"shift": "flat", "worth": worth}, "worth is for shift='source' alone"),
        ({"shift": ShiftPrior(), "worth": worth}, "worth is for shift='source' alone"),
        ({"worth": worth[:2]}, r"worth has shape \(2,\) for a source of 3 components"),
        ({"worth": worth - 1}, "expected positive numbers of points"),
        (
            {"worth": -1},
            r"worth = -1.* expected \(components,\); one entry for each of the components",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            moved(second[:, :2], None, source, **bad)


def test_a_move_that_known_classes_contradict_is_said():
    """Components exchange their places: the move to them is wrong at rows whose class is known."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 60)
    x = np.where(y == 0, -1.0, 1.0)[:, None] * [1.0, 0.0] + 0.4 * rng.normal(size=(120, 2))
    source = sb.fit_source(x, y, num_components=1)
    known = np.where(np.arange(120) % 10 == 0, y, -1)
    swapped = {
        "weights": np.full(2, 0.5),
        "mean": source.mean[::-1],
        "covariance": source.covariance[::-1],
    }
    given = {"shift": ShiftPrior(), "strength": 1.0}
    bad = moved(x, known, source, init=swapped, **given)
    assert bad.verdict[0] == "bad"  # known classes are told no better than by their shares
    assert "100% of the rows another class" in bad.verdict[1]
    assert "wrong at 12 of 12 rows of known class, the source as it is at 0" in bad.verdict[1]
    without = moved(x, np.full(120, -1), source, init=swapped, **given)
    assert "no class is known that could decide which is right" in without.verdict[1]
    assert "another class" not in moved(x, known, source, **given).verdict[1]


@pytest.mark.slow
def test_a_choice_is_not_clearly_worse_than_porting_and_stronger_priors():
    first, second, y, truth = halves()
    known = np.where(np.arange(len(truth)) % 8 == 0, truth, -1)
    choice = sb.select_adaptation(
        second, known, source_x=first, source_labels=y, num_starts=2, strengths=(10.0,)
    )
    table = choice.candidates
    assert table["prior"].unique().tolist() == [
        "default", "ported", "10 points", "100 points", "asked",
    ]  # fmt: skip
    held = table["prior"] != "asked"
    rows = (known >= 0).sum()
    more = table["error"][table["chosen"]].item() - table["error"][held].min()
    assert rows * more <= 2 * np.sqrt(1 + rows)
    assert table["changed"][table["prior"] == "ported"].item() == 0


NAMES = np.array(["cat", "ant", "bee"])  # not in sorted order


@pytest.fixture(scope="module")
def domains():
    """Rows of a source and of a target a little off it, and their classes."""
    rng, z = np.random.default_rng(3), np.repeat([0, 1, 2], 12)
    centre = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    return *(centre[z] + a + rng.normal(size=(36, 2)) for a in (0.0, 0.1)), z


@pytest.mark.parametrize("stated", [False, True])
def test_classes_are_those_of_the_source_by_name(domains, stated, tmp_path):
    first, second, z = domains
    labels = sb.PartialLabels(z, NAMES) if stated else NAMES[z]
    source = sb.fit_source(first, labels, num_components=1)
    assert source.class_names == (tuple(NAMES) if stated else ("ant", "bee", "cat"))
    np.testing.assert_array_equal(source.predict(first[::12]), NAMES)
    params = {name: getattr(source, name) for name in ("weights", "mean", "covariance")}
    one = {"source": source, "engine": at_one(params), "progress": False}
    for known in (np.where(np.arange(36) % 12, None, NAMES[z]), None):  # all, and none
        fit = sb.fit("domain_adaptation", second, known, **one)
        assert fit.class_names == source.class_names
        assert (fit.classes()["class"] == NAMES[z]).mean() > 0.9
        assert "another class" not in fit.verdict[1]
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", engine=one["engine"])
    assert again.options["source"].class_names == source.class_names
    assert is_ordered(again.tree)
    rows, told = second.copy(), np.full(36, None)
    rows[:3], told[1] = second[::12], "ant"
    np.testing.assert_array_equal(again.classes(rows, told)["class"][:3], NAMES)
    masks = pd.DataFrame(np.eye(3, dtype=bool)[z], columns=NAMES)
    with pytest.raises(Asked) as asked:
        sb.fit("domain_adaptation", second, masks, source=source, engine=Asking(), progress=False)
    read = asked.value.problem.args[1].classes
    np.testing.assert_array_equal(np.array(source.class_names)[read], NAMES[z])
    for call in (
        lambda: sb.fit("domain_adaptation", second, np.where(z, "dog", "cat"), **one),
        lambda: again.classes(rows[:3], ["dog", None, None]),
    ):
        with pytest.raises(ValueError, match=r"known name the classes \['dog'\], and the source"):
            call()


def test_names_and_numbers_of_classes_are_not_matched(domains):
    first, second, z = domains
    by_number = sb.fit_source(first, z, num_components=1)
    by_name = sb.fit_source(first, NAMES[z], num_components=1)
    for source, known, said in (
        (by_number, np.where(z, "", "dog"), "'dog'.*source has 3 classes by number"),
        (by_number, NAMES[z], "'ant', 'bee', 'cat'.*source has 3 classes by number"),
        (by_name, z, "classes by number, and source has the names .*'bee'"),
    ):
        with pytest.raises(ValueError, match=said):
            sb.fit("domain_adaptation", second, known, source=source, progress=False)
        given = {"source_x": first, "source_labels": z if source is by_number else NAMES[z]}
        with pytest.raises(ValueError, match=said):
            sb.select_adaptation(second, known, source=source, **given)
    with pytest.raises(ValueError, match="class_names has 1 name for 3 classes"):
        replace(by_number, class_names=["cat"])
    with pytest.raises(ValueError, match="labels name class 'bee' in 1 row; every class of"):
        sb.fit_source(first[:25], NAMES[z[:25]])


def test_a_choice_takes_names_of_classes(domains, monkeypatch):
    monkeypatch.setattr(adaptation, "_anchors", lambda *_: {})  # candidates of more programs
    first, second, z = domains
    known = np.where(np.arange(36) % 12, None, NAMES[z])
    given = {"source_x": first, "source_labels": NAMES[z], "num_starts": 1, "strengths": (10.0,)}
    given["source"] = source = sb.fit_source(first, NAMES[z], num_components=1)
    params = {name: getattr(source, name) for name in ("weights", "mean", "covariance")}
    at_source = lambda *data, engine, init, **options: sb.fit(  # noqa: E731
        *data, engine=at_one(params), **options
    )
    monkeypatch.setattr(adaptation, "fit", at_source)
    choice = sb.select_adaptation(second, known, progress=False, **given)
    assert choice.fit.class_names == ("ant", "bee", "cat")
    assert (choice.fit.classes()["class"] == NAMES[z]).mean() > 0.9
    assert choice.candidates["source_accuracy"].max() > 0.9


@pytest.mark.parametrize(("init", "starts"), [(None, 7), ({}, 1)])
def test_what_is_always_tried_has_the_starts_of_the_engine(init, starts, monkeypatch):
    def fit(*data, engine, **options):
        assert engine == EM(num_restarts=starts, tol=1e-3)
        raise FitError("seen")

    monkeypatch.setattr(adaptation, "fit", fit)
    setting = adaptation._Setting(*[None] * 6, EM(num_restarts=7, tol=1e-3), 0)
    found = adaptation._candidate(setting, adaptation._Trial("default", 0, init, {}))
    assert str(found) == "seen"


def test_a_choice_counts_the_starts_that_led_to_its_mode():
    """The verdict of a fit from given values counts one start, and advises to leave init out."""
    heights = [-1.0, -5.0, -5.001, -9.0]
    rows = pd.DataFrame(
        {"prior": ["default", *["asked"] * 3], "start": [0, 0, 1, 2], "density": heights}
    )
    fits = [
        SimpleNamespace(objective=np.array([[-99.0, one]]), tree={"fit_info": xr.Dataset()})
        for one in heights
    ]
    errors = list(np.repeat([1.0, 0.0, 0.0, 0.0], 10).reshape(4, 10))
    choice = adaptation._Trials(None, None, {}, fits, rows.to_dict("records"), errors).chosen()
    assert choice.fit is fits[1]
    assert choice.fit.tree["fit_info"].attrs == {
        "starts_at_best": 2, "begun_by": "select_adaptation", "more_starts": "num_starts",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"known": [[0], [1, 2]]}, "known: .*rows of one length"),
        ({"source_labels": [[0], [1, 2]]}, "source_labels: .*rows of one length"),
        ({"source_labels": np.repeat([0, 2], 12)}, "source_labels has class 2; expected 0 to 1"),
        ({"source_labels": np.repeat([0, 1], 6)}, "source_labels has shape .12,.; expected 24"),
        ({"source_x": None}, "source_x is missing: candidates are compared at rows of the source"),
        ({"source_labels": None, "source": None}, "source_labels is missing: .*pass source_x and"),
        ({"strength": 3.0}, "takes no strength; .* pass them as strengths"),
        ({"strengths": 10.0}, r"strengths = 10.0; pass several numbers, such as \(1.0, 10.0\)"),
        ({"strengths": np.array(10.0)}, "strengths = 10.0; pass several numbers"),
        ({"strengths": ()}, "strengths is empty; give one at least"),
        ({"truth": [0, 1], "source": None}, r"takes no truth; score choice.fit.classes\(\)"),
        ({"shiftt": "flat", "source": None}, r"no option 'shiftt' \(did you mean 'shift'\?\)"),
    ],
)
def test_arguments_of_a_choice_are_checked_before_the_source_is_fitted(given, said, monkeypatch):
    monkeypatch.setattr(adaptation, "fit_source", lambda *a, **k: pytest.fail("source fitted"))
    x, labels = np.random.default_rng(0).normal(size=(24, 2)), np.repeat([0, 1], 12)
    source = sb.fit_source(x, labels, num_components=1)
    good = {"x": x, "known": labels, "source_x": x, "source_labels": labels, "source": source}
    with pytest.raises((TypeError, ValueError), match=said):
        sb.select_adaptation(**good | given)


def test_weights_may_be_given():
    first, second, y, _ = halves()
    source = sb.fit_source(first[:, :2], y, num_components=1)
    given = {"weights": jnp.asarray(source.weights)}
    model = handlers.condition(domain_adaptation, data=given)
    fit = sb.fit(model, second[:, :2], None, source=source, engine=ONE, progress=False)
    assert fit.status.converged
