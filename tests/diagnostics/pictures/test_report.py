import io
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.diagnostics.pictures import plots, run_plots
from sidebayes.diagnostics.pictures.colours import cluster_colours
from sidebayes.diagnostics.pictures.report import _subtitle, render_report, write_report
from sidebayes.diagnostics.trust.verdict import verdict

from tests.diagnostics.fakes import TRUTH, FakeFit, make_tree, soft_labels


@pytest.fixture(scope="module")
def fits():
    return {
        "point": FakeFit(make_tree()[0]),
        "sampler": FakeFit(make_tree(2, 120, 60, switch=True)[0]),
    }


def test_one_row_a_fit(fits):
    frame = compare_fits(fits).frame
    assert list(frame.index) == ["point", "sampler"]
    assert frame.loc["point", "ari"] == 1.0
    assert frame["violated"].tolist() == [1, 1]
    assert frame["links"].tolist() == [5, 5]
    rates = [fit.tree["posterior"]["flip_rate"].to_numpy().mean() for fit in fits.values()]
    np.testing.assert_allclose(frame["flip"], rates)
    assert np.isnan(frame.loc["point", "rhat"])
    assert frame.loc["sampler", "rhat"] < 1.1
    assert frame.loc["sampler", "ess_per_s"] == pytest.approx(frame.loc["sampler", "ess"] / 2.0)
    # 36 units of normal log density -3 with standard deviation 0.3
    assert frame.loc["sampler", "elpd_loo"] == pytest.approx(-36 * (3 + 0.045), abs=0.6)
    assert frame.loc["sampler", "trust"] == "no reference"  # 240 draws of two chains
    assert "log_evidence" not in frame  # no fit has one


def test_text_terminal_and_html_say_the_same(fits):
    from rich.console import Console

    table = compare_fits({"a <b>": fits["sampler"]})
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    rhat = f"{table.frame['rhat'].iloc[0]:.3f}"
    for text in (str(table), console.export_text(), table.html()):
        assert rhat in text
    assert "a &lt;b&gt;" in table.html()
    assert "a <b>" not in table.html()


def test_the_best_is_marked_within_a_data_set():
    other = make_tree()[0]
    other["observed_data"]["x"] = other["observed_data"]["x"] + 1.0
    fits = [FakeFit(make_tree(seed=seed)[0]) for seed in (0, 1)] + [FakeFit(other)]
    for fit, wrong in zip(fits, (2, 5, 0), strict=True):
        labels = fit.tree["responsibilities"]["labels"]
        labels[:wrong] = 2
    table = compare_fits({"good": fits[0], "less": fits[1], "other data": fits[2]})
    assert table.data == (0, 0, 1)
    assert table.frame["ari"].idxmax() == "other data"
    # a score without a rival is the best of nothing
    marks = {row.split("<")[0]: row.count('"best"') for row in table.html().split("<tr><th>")[1:]}
    assert marks["good"] == 0  # the second table
    first = table.html().split("</table>")[0].split("<tr><th>")
    assert {row.split("<")[0]: row.count('"best"') for row in first[2:]} == {
        "good": 3,
        "less": 0,
        "other data": 0,
    }


@pytest.fixture(scope="module")
def page(fits, tmp_path_factory):
    """Text of a report that was written."""
    path = tmp_path_factory.mktemp("report") / "r.html"
    notes = {"hard": "cannot-link (0, 2) <contradicts>"}
    return write_report(fits, path, title="a & b", notes=notes).read_text(encoding="utf-8")


def test_a_narrow_page_shows_each_row_as_a_list(page):
    """Headings stand in every cell, and the style puts cells below each other at 400 pixels."""
    narrow = page.split("@media (max-width: 600px)")[1].split("@media")[0]
    for rule in ("table.comparison thead { display: none; }", "content: attr(data-heading)"):
        assert rule in narrow
    cells = re.findall(r"<td class=[^>]*>", page)
    assert cells
    assert all("data-heading=" in cell for cell in cells)
    assert 'data-heading="ARI"' in page


def test_verdicts():
    assert verdict(FakeFit(make_tree(4, 200)[0]))[0] in ("good", "caution")
    assert verdict(FakeFit(make_tree(converged=False)[0]))[0] == "bad"
    other = np.tile(soft_labels(np.roll(TRUTH, 13)), (30, 1, 1))
    apart = make_tree(2, 30, prob=np.stack([np.tile(soft_labels(), (30, 1, 1)), other]))[0]
    level, sentence = verdict(FakeFit(apart))
    assert level == "bad"
    assert "chains disagree" in sentence
    lonely = make_tree()[0]
    lonely["fit_info"]["objective"][1] = -230.0
    assert verdict(FakeFit(make_tree()[0]))[0] == "good"
    level, sentence = verdict(FakeFit(lonely))
    assert level == "caution"
    assert "num_restarts" in sentence


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.sources, self.anchors, self.targets = [], [], set(), set()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "img":
            self.sources.append(attrs["src"])
        if attrs.get("id"):
            self.anchors.add(attrs["id"])
        if tag == "a":
            self.targets.add(attrs["href"].removeprefix("#"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone(page):
    read = _Page()
    read.feed(page)
    assert read.open == []
    assert read.targets <= read.anchors
    assert len(read.sources) == 8
    assert all(source.startswith("data:image/svg+xml;base64,") for source in read.sources)
    assert not re.search(r"https?://|<script|@import|url\(", page)
    assert "a &amp; b" in page
    assert "&lt;contradicts&gt;" in page
    assert "$" not in re.sub(r"base64,[^']*", "", page)


def test_axes_without_a_name_of_their_own_are_told_by_their_size():
    tree = make_tree()[0]
    tree["observed_data"] = xr.DataTree(xr.Dataset({"x": (("rows", "x_dim_1"), np.zeros((40, 3)))}))
    assert _subtitle({"a": FakeFit(tree)}).startswith("1 fit · 40 rows × 3")
    assert "x_dim_1" not in _subtitle({"a": FakeFit(tree)})


def test_a_report_needs_fits_and_a_folder(fits, tmp_path):
    with pytest.raises(ValueError, match="fits is empty"):
        render_report({})
    with pytest.raises(ValueError, match="there is no folder"):
        write_report(fits, tmp_path / "no" / "r.html")


@pytest.mark.parametrize("story", ["one sentence", 3, ["a sentence", 3]])
def test_a_story_is_a_list_of_sentences(fits, story):
    with pytest.raises(TypeError, match="story = .*; expected sentences in a list"):
        render_report({"point": fits["point"]}, story=story)


@pytest.mark.parametrize("names", [(1, "1"), (" ",)])
def test_fits_of_a_report_have_names_of_their_own(fits, names):
    with pytest.raises(ValueError, match="fits has the names"):
        render_report(dict.fromkeys(names, fits["point"]))


def test_links_are_drawn_by_kind(fits):
    axis = plots.plot_clusters(fits["point"]).axes[0]
    sizes = [len(lines.get_segments()) for lines in axis.collections[:4]]
    assert sizes == [2, 1, 2, 0]  # must kept, must violated, cannot kept, cannot violated
    assert "1" in axis.get_legend().get_texts()[2].get_text()


def test_classes_and_their_prototypes_are_drawn():
    tree, _ = make_tree()
    number = tree["observed_data"].sizes["points"]
    tree["constant_data"] = tree["constant_data"].isel(link=slice(0))
    where = xr.DataArray(
        np.full((1, 1, 2, 3), 0.5), dims=("chain", "draw", "prototypes", "features")
    )
    tree["posterior"]["prototype"] = where.assign_attrs(role="prototype")
    fit = FakeFit(tree)
    fit.has_classes, fit.class_names = True, ("b$", "c", 2)
    fit.class_probabilities = lambda: np.eye(3)[np.arange(number) % 3]
    (axis,) = plots.plot_clusters(fit).axes
    points = next(drawn for drawn in axis.collections if len(drawn.get_offsets()) == number)
    colours = points.get_facecolor()[:, :3]
    np.testing.assert_allclose(colours, cluster_colours(3)[np.arange(number) % 3])
    said = [text.get_text() for text in axis.get_legend().get_texts()]
    assert said == [r"class b\$", "class c", "class 2", "prototype"]


@pytest.mark.parametrize("features", [1, 2, 3])
def test_any_number_of_features(features):
    tree, _ = make_tree()
    small = tree.isel(features=slice(features), features_1=slice(features), missing_dims="ignore")
    for draw in (plots.plot_clusters, plots.plot_parameters, plots.plot_coclustering):
        draw(FakeFit(small)).canvas.draw()


def test_wrong_picture_for_the_engine(fits):
    with pytest.raises(ValueError, match="plot_traces instead"):
        run_plots.plot_objective(fits["sampler"])
    with pytest.raises(ValueError, match="plot_objective instead"):
        run_plots.plot_traces(fits["point"])


def test_colours_stay_apart():
    colours = cluster_colours(20)
    gaps = np.abs(colours[:, None] - colours).sum(axis=-1) + 9 * np.eye(20)
    assert gaps.min() > 0.1
    assert (colours >= 0).all()
    assert (colours <= 1).all()


def test_importing_draws_nothing_in():
    code = (
        "import sys; from sidebayes.diagnostics.pictures import report, run_plots;"
        "print([m for m in ('matplotlib', 'arviz_plots', 'sklearn') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
