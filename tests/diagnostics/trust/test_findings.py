"""What the report says first: sentences of findings, tables of estimates, pictures of both schemes."""

import base64
import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sidebayes.diagnostics.pictures.colours import INK, new_figure
from sidebayes.diagnostics.pictures.drawings import as_image
from sidebayes.diagnostics.pictures.plots import plot_clusters
from sidebayes.diagnostics.pictures.report import render_report
from sidebayes.diagnostics.pictures.run_plots import plot_traces
from sidebayes.diagnostics.sites import link_kind
from sidebayes.diagnostics.trust.estimates import estimate_tables, interval, number
from sidebayes.diagnostics.trust.findings import finding, lead_of, wrong_links

from tests.diagnostics.fakes import TRUTH, WEIGHTS, FakeFit, make_tree

TERMS = ["Intercept", "years"]


class Regression(FakeFit):
    """Draws of a mixed model: nothing has a label."""

    has_labels = False
    picture = None

    @property
    def relabelled(self):
        return self.tree, 1.0

    def suspect_links(self):
        raise ValueError("no links")

    def coefficients(self):
        low, high = np.array([1.0, -2.5]), np.array([3.0, np.nan])
        columns = {"estimate": [2.0, -1.25], "standard_error": [0.5, 0.1], "lower": low}
        return pd.DataFrame(columns | {"upper": high}, index=TERMS)


@pytest.fixture(scope="module")
def regression():
    tree = make_tree(2, 60)[0]
    cells = np.broadcast_to([[4.0, -1.0], [-1.0, 1.0]], (2, 60, 2, 2))
    coords = {"effects": TERMS, "effects_1": TERMS}
    posterior = xr.Dataset(
        {
            "tau": (("chain", "draw", "effects", "effects_1"), cells),
            "sigma": (("chain", "draw"), np.full((2, 60), 0.5), {"role": "noise"}),
            "skew": (("chain", "draw", "terms"), np.tile([1.0, 3.0], (2, 60, 1))),
            "per_row": (("chain", "draw", "rows"), np.zeros((2, 60, 40))),
        },
        {**coords, "terms": TERMS, "chain": [0, 1], "draw": range(60)},
        tree["posterior"].attrs,
    )
    tree["posterior"] = xr.DataTree(posterior)
    return Regression(tree.filter(lambda node: "responsibilities" not in node.path))


def test_tables_of_a_mixed_model(regression):
    tables = estimate_tables(regression)
    assert list(tables) == [
        "Coefficients",
        "Standard deviations and correlations",
        "Other parameters",
    ]
    spread = tables["Standard deviations and correlations"]["estimate"]
    assert spread.to_dict() == {
        "sd of Intercept": 2.0,
        "sd of years": 1.0,
        "correlation of Intercept and years": -0.5,
        "sigma": 0.5,
    }
    assert tables["Other parameters"].index.tolist() == ["skew[Intercept]", "skew[years]"]


def test_a_page_of_a_mixed_model(regression):
    page = render_report({"fit": regression})
    lead = page.split("<p class='lead'>")[1].split("</p>")[0]
    assert lead == "Estimates and 95 % intervals: Intercept 2 (1 to 3), years −1.25."
    assert "<th>correlation of Intercept and years</th><td>−0.5</td>" in page
    assert "nan" not in re.sub("base64,[^']*", "", page)


def test_numbers_have_the_digits_of_their_errors():
    row = pd.Series({"estimate": 2010.034, "standard_error": 0.0112})
    row["lower"], row["upper"] = row["estimate"] - 0.022, row["estimate"] + 0.022
    assert interval(row) == "2010.012 to 2010.056"
    assert number(row["estimate"], row["standard_error"]) == "2010.034"
    assert [number(-0.000123456, 1e-9), number(0.0, 0.1)] == ["−0.000123456", "0"]
    assert [number(123456.0, 1e3), number(np.inf, 1.0), number(np.nan)] == ["1.235e+05", "inf", ""]


def test_coefficients_of_clusters_are_named():
    fit = FakeFit(make_tree()[0])
    index = pd.MultiIndex.from_product([range(3), TERMS], names=["cluster", "term"])
    fit.coefficients = lambda: pd.DataFrame({"estimate": np.arange(6.0)}, index=index)
    text = finding(fit, None, estimate_tables(fit))
    assert text.startswith("3 clusters, of 20, 14 and 6; adjusted Rand index 1.000")
    assert text.endswith("years of cluster 0 1, Intercept of cluster 1 2, 3 more below.")


def test_what_no_sentence_can_name_is_counted(regression):
    assert finding(regression, None, {}) == "47 numbers were estimated."


def test_the_lead_is_about_the_fits():
    best, worst = FakeFit(make_tree()[0]), FakeFit(make_tree()[0])
    worst.tree["responsibilities"]["labels"][:8] = 2
    found = {"a": "A.", "b": "B."}
    assert lead_of({"a": best}, found) == "A."
    text = lead_of({"a": worst, "b": best}, found)
    assert text.startswith(
        "“b” agrees best with the known classes (adjusted Rand index 1.000), “a”"
    )
    alike = "with the known classes to the same degree, adjusted Rand index 1.000."
    assert lead_of({"a": best, "b": best}, found) == f"All agree {alike}"
    without = FakeFit(best.tree.copy())
    without.tree["observed_data"] = xr.DataTree(best.tree["observed_data"].to_dataset()[["x"]])
    fits = {"a": best, "b": best, "c": without}
    assert lead_of(fits, found) == f"“a” and “b” agree {alike}"
    other = FakeFit(best.tree.copy(deep=True))
    other.tree["observed_data"]["x"][:] += 1
    assert lead_of({"a": best, "b": other}, found).startswith("All agree with their known classes")
    other.tree["responsibilities"]["labels"][:8] = 2
    assert "“a” agrees best with its known classes" in lead_of({"a": best, "b": other}, found)
    unknown = [FakeFit(fit.tree.copy()) for fit in (best, worst)]
    for fit in unknown:
        fit.tree["observed_data"] = xr.DataTree(fit.tree["observed_data"].to_dataset()[["x"]])
    unknown[0].tree["fit_info"].attrs["converged"] = 0
    assert unknown[0].verdict[0] != "good"
    assert lead_of(dict(zip("ab", unknown, strict=True)), found) == "“b”: B."


def test_the_page_says_first_what_was_found():
    page = render_report(
        {"a": FakeFit(make_tree()[0]), "b": FakeFit(make_tree()[0], method="other")}
    )
    parts = "What was found", "Pictures", "Hard links", "How far to trust it", "id='fit0'"
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    for kind in ("kept at any cost", "weighed against the data", "estimated from the data"):
        assert kind in page
    assert "That does not make the model or the links right." in page
    assert "1 of 5 links is probably wrong" in page
    assert "<th>5 – 30</th><td>must-link</td><td>0.900</td>" in page


def test_the_story_can_be_told():
    fits = {"a": FakeFit(make_tree()[0])}
    page = render_report(fits, story=["Two < three.", "So & so."])
    said = "<p class='lead'>Two &lt; three.</p><ul class='story'><li>So &amp; so.</li></ul>"
    assert said in page
    assert "<ul class='story'>" not in render_report(fits, story=["One."])


@pytest.mark.parametrize(
    ("weights", "learned", "kind"),
    [
        (WEIGHTS, True, "hard and learned"),
        (WEIGHTS, False, "hard and soft"),
        (np.full(5, 2.0), True, "learned"),
        (np.full(5, -2.0), False, "soft"),
        (np.full(5, -np.inf), True, "hard"),
    ],
)
def test_how_links_were_taken(weights, learned, kind):
    tree = make_tree()[0]
    tree["constant_data"]["link_weights"] = xr.DataArray(weights, dims="link")
    if not learned:
        del tree["posterior"]["flip_rate"].attrs["role"]
    assert link_kind(tree) == kind


def test_links_that_cannot_be_judged():
    fit = Regression(make_tree()[0])
    assert wrong_links(fit) is None
    assert "links" not in finding(fit, None, estimate_tables(fit))


def test_a_page_for_dark_rooms_and_small_screens(regression):
    page = render_report({"fit": regression})
    narrow = page.split("@media (max-width: 600px)")[1]
    for rule in ("table.estimates tr { display: flex", "figure.wide img { min-width: 620px; }"):
        assert rule in narrow
    light, dark = (
        set(re.findall(r"--[\w-]+(?=:)", part.split("}")[0]))
        for part in page.split("color-scheme: light dark;")[1].split(
            "@media (prefers-color-scheme: dark)"
        )
    )
    assert dark <= light
    assert {"--ink", "--paper", "--ground", "--muted", "--good", "--caution", "--bad"} <= dark


def as_text(address):
    return base64.b64decode(address.removeprefix("data:image/svg+xml;base64,")).decode()


def test_ink_follows_the_page_and_names_stay():
    figure, axis = new_figure(4, 3)
    axis.set(xlabel=f"{INK} <script> & $x^2", ylabel="1.23456789")
    text = as_text(as_image(figure))
    dark = text.split("prefers-color-scheme:dark")[1].split("}")[0]
    assert f"--c{INK[1:]}:#e6eaee" in dark
    assert f"fill: var(--c{INK[1:]})" in text
    # names are text, and no part of the drawing
    assert f">{INK} &lt;script&gt; &amp; $x^2<" in text
    assert ">1.23456789<" in text
    assert "<script" not in text
    assert INK not in re.sub(">[^<]*<", "><", text)  # but in the style and in the name


def test_a_picture_of_many_points_stays_small():
    tree = make_tree()[0]
    few = len(as_image(plot_clusters(FakeFit(tree))))
    many = tree.isel(points=np.arange(5000) % len(TRUTH), missing_dims="ignore")
    rng = np.random.default_rng(0)
    many["observed_data"]["x"] = many["observed_data"]["x"] + rng.normal(size=(5000, 3))
    assert len(as_image(plot_clusters(FakeFit(many)))) < few + 400_000


def test_traces_of_what_has_no_labels(regression):
    names = [axis.get_ylabel() for axis in plot_traces(regression).axes]
    assert "sigma" in names
    single = Regression(regression.tree.copy())
    large = single.tree["posterior"].to_dataset()[["per_row"]].isel(rows=np.zeros(1000, int))
    single.tree["posterior"] = xr.DataTree(large)
    assert len(plot_traces(single).axes) == 2  # the log density alone


def test_a_picture_shows_what_tells_clusters_apart():
    rng = np.random.default_rng(0)
    size, shape = rng.normal(size=len(TRUTH)), 0.01 * rng.normal(size=len(TRUTH))
    tree = make_tree()[0]
    far = TRUTH * 0.1 + 0.01 * rng.normal(size=len(TRUTH))
    tree["observed_data"]["x"][:] = np.column_stack([size + shape, size - shape, size + far])
    axis = plot_clusters(FakeFit(tree)).axes[0]
    assert "principal axis 2" in (axis.get_xlabel(), axis.get_ylabel())
