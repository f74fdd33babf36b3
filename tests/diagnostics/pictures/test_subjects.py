"""Pictures of long tables: measurements with bands."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from sidebayes.diagnostics.pictures.report import render_report
from sidebayes.diagnostics.pictures.subjects import plot_subjects
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph

import sidebayes as sb
from sidebayes import Groups, LinkedCategorical, LinkedMixture
from tests.support.draws import Told, at_one
from tests.support.effects import simulate, simulate_joint

DATA = simulate()


@dataclass(frozen=True)
class Climbed(Told):
    """Returns what it is told, as if three steps had led there."""

    def run(self, problem, **given):
        return replace(super().run(problem, **given), objective=np.zeros((1, 3)))


def fitted(deviation=1.0, subjects=DATA.subject):
    """A fit in which intercepts have a given standard deviation."""
    design = {"fixed": DATA.x, "random": DATA.x[:, :1], "subjects": subjects}
    known = {"factor": [deviation], "covariance": [[deviation**2]], "noise": 0.5}
    engine = Climbed({name: np.asarray(value)[None, None] for name, value in known.items()})
    return sb.fit("mixed_effects", DATA.y, **design, engine=engine, progress=False)


@pytest.fixture(scope="module")
def fit():
    return fitted()


def lines_of(axis):
    """Lines with more than one point, and points that were measured."""
    drawn = [line.get_xydata() for line in axis.lines]
    return np.concatenate(drawn) if drawn else np.zeros((0, 2))


def test_all_measurements_and_some_bands(fit):
    figure = plot_subjects(fit, most=3)
    left, right = figure.axes
    measured = np.column_stack([DATA.x[:, 1], DATA.y])
    drawn = lines_of(left)
    assert all((np.abs(drawn - row).sum(axis=1) < 1e-12).any() for row in measured)
    assert left.get_xlabel() == "fixed[1]"
    assert left.get_ylabel() == "y"
    assert len(right.get_legend().get_texts()) == 3
    for text in right.get_legend().get_texts():
        rows = int(text.get_text()) == DATA.subject
        assert all(
            (np.abs(lines_of(right) - row).sum(axis=1) < 1e-12).any() for row in measured[rows]
        )
    assert len(figure.axes) == 2


def test_bands_hold_what_is_measured(fit):
    """Bands of single subjects are narrower than those of subjects of whom nothing is known."""
    left, right = plot_subjects(fit, most=12).axes

    def width(band):
        corners = band.get_paths()[0].vertices
        return np.ptp(corners[:, 1])

    anew = width(left.collections[0])
    assert np.median([width(band) for band in right.collections]) < 0.8 * anew


@pytest.mark.parametrize("names", [DATA.subject, DATA.subject.astype(str)], ids=["int", "str"])
def test_the_band_of_new_subjects_is_as_wide_as_the_model_says(names):
    """Data of the fitted subjects, whose own band cannot show a misfit, do not narrow it."""
    left, _ = plot_subjects(fitted(deviation=10.0, subjects=names), most=1).axes
    corners = left.collections[0].get_paths()[0].vertices
    width = pd.Series(corners[:, 1]).groupby(corners[:, 0]).agg(np.ptp).median()
    assert width == pytest.approx(2 * 1.645 * np.hypot(10.0, 0.5), rel=0.15)


def test_horizontal_axis(fit):
    days = pd.Series(10 * DATA.x[:, 1], name="days")
    left, _ = plot_subjects(fit, days).axes
    assert left.get_xlabel() == "days"
    assert np.ptp(lines_of(left)[:, 0]) == pytest.approx(np.ptp(days))
    with pytest.raises(ValueError, match=r"along has shape \(3,\); expected"):
        plot_subjects(fit, [1, 2, 3])
    with pytest.raises(ValueError, match="a finite number per row"):
        plot_subjects(fit, np.full(len(DATA.y), np.nan))
    with pytest.raises(TypeError, match="along = .*expected real numbers"):
        plot_subjects(fit, ["a"] * len(DATA.y))


def test_constant_designs_need_an_axis():
    ones = np.ones((len(DATA.y), 1))
    level = sb.fit(
        "mixed_effects", DATA.y, fixed=ones, random=ones, subjects=DATA.subject, progress=False
    )
    with pytest.raises(ValueError, match="pass along="):
        level.plot()
    assert len(plot_subjects(level, DATA.x[:, 1]).axes) == 2


def test_other_fits_are_refused():
    points = SimpleNamespace(method="gmm", tree={}, run=SimpleNamespace(data={}))
    with pytest.raises(ValueError, match="gmm was not fitted to rows of subjects"):
        plot_subjects(points)


def test_report(fit):
    page = render_report({"lines": fit})
    assert "Measurements, with bands of what the model predicts" in page
    assert "Objective by start" in page


@pytest.mark.slow
def test_classes_have_colours():
    design = {"fixed": DATA.x, "random": DATA.x, "subjects": DATA.subject}
    fit = sb.fit("mixed_effects_mixture", DATA.y, **design, num_clusters=2, progress=False)
    left, _ = fit.plot().axes
    colours = {line.get_color() if isinstance(line.get_color(), str) else tuple(line.get_color())
               for line in left.lines[:12]}  # fmt: skip
    assert len(colours) == len(set(fit.labels()))
    page = render_report({"classes": fit})
    assert "Who shares a cluster" in page


@pytest.mark.slow
def test_outputs_have_panels_and_times_a_third():
    rows, persons = simulate_joint()
    design = sb.design("y ~ year + (year | who)", rows)
    data = design.survival("Surv(years, died) ~ drug", persons, num_intervals=1)
    fit = sb.fit("joint_survival", **data, engine=sb.Laplace(), progress=False)
    left, right, curves = fit.plot().axes
    assert left.get_xlabel() == right.get_xlabel() == "year"
    assert len(curves.lines) == 6
    assert all(line.get_ydata()[0] == 1 for line in curves.lines)
    assert fit.event_times == "time"
    outputs = np.tile(np.eye(2), (len(DATA.y) // 2 + 1, 1))[: len(DATA.y)]
    wide = np.einsum("ro,rk->rok", outputs, DATA.x).reshape(len(DATA.y), 4)
    both = sb.fit(
        "mixed_effects", DATA.y, wide, wide, DATA.subject, outputs, form="marginal",
        covariance="diagonal", engine="map", progress=False,
    )  # fmt: skip
    assert len(plot_subjects(both, DATA.x[:, 1]).axes) == 4


def levels(y: Annotated[ArrayLike, "rows"], subjects: Annotated[Groups, "rows"]):
    with numpyro.plate("clusters", 2):
        level = numpyro.sample("level", dist.Normal(0.0, 3.0))
    labels = LinkedCategorical(jnp.log(jnp.full(2, 0.5)), as_label_graph(None, subjects.num_groups))
    numpyro.sample("y", LinkedMixture(labels, dist.Normal(level, 1.0), groups=subjects), obs=y)


def one_number(y: Annotated[ArrayLike, "points"]):
    with numpyro.plate("clusters", 2):
        level = numpyro.sample("level", dist.Normal(0.0, 3.0))
    labels = LinkedCategorical(jnp.log(jnp.full(2, 0.5)), as_label_graph(None, len(y)))
    numpyro.sample("y", LinkedMixture(labels, dist.Normal(level, 1.0)), obs=y)


def test_points_of_one_number_lie_along_a_line():
    y = np.tile([0.0, 4.0], 6) + np.linspace(0, 1, 12)
    fit = sb.fit(one_number, y, engine=at_one({"level": [0.5, 4.5]}), progress=False)
    assert fit.picture == "clusters"
    (axis,) = fit.plot().axes
    assert any(np.array_equal(c.get_offsets()[:, 0], y) for c in axis.collections)
    assert not axis.get_yticks().size


def test_labels_of_groups_of_rows_have_no_picture_and_a_page(tmp_path):
    y = np.tile([0.0, 4.0], 6) + np.linspace(0, 1, 12)
    engine = at_one({"level": [0.5, 4.5]})
    fit = sb.fit(levels, y, np.tile([0, 1, 2, 3], 3), engine=engine, progress=False)
    assert fit.picture is None
    with pytest.raises(ValueError, match="levels has no table with a row for every point"):
        fit.plot()
    fit.save(tmp_path / "fit.nc")
    page = render_report({"own": fit, "read": sb.load(tmp_path / "fit.nc", engine=engine)})
    assert "Who shares a cluster" in page
