"""What notebooks show: pictures, progress, and HTML in which no text of the user is markup."""

import sys
import time
import types

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.diagnostics.pictures.colours import new_figure
from sidebayes.guides.engines.plumbing import progress

import sidebayes

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def fit():
    def model(x):
        middle = numpyro.sample("middle", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(middle, 1.0), obs=x)

    model.__name__ = EVIL
    return sidebayes.fit(model, np.ones((4, 1)), engine="map")


def test_a_figure_shows_itself_once_and_pyplot_keeps_none():
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    figure, _ = new_figure(2.0, 1.0)
    shown, how = formatter.format(figure)
    assert set(shown) == {"text/plain", "image/png"}
    assert shown["image/png"].startswith(b"\x89PNG")
    assert how["image/png"] == {"width": 192}
    assert pyplot.get_fignums() == before


@pytest.fixture
def cell(monkeypatch):
    """Outputs of a cell, as if this were a notebook: a list for each of them, with all its versions."""
    outputs = []

    class Handle:
        def __init__(self, first):
            self.versions = [first]
            outputs.append(self.versions)

        def update(self, new):
            self.versions.append(new)

    display = types.SimpleNamespace(
        HTML=lambda text: text, display=lambda what, display_id: Handle(what)
    )
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "_REFRESH", 0.01)
    plain = progress.Console
    monkeypatch.setattr(
        progress, "Console", lambda **kinds: plain(**kinds, force_jupyter=True, width=80)
    )
    return outputs


def test_a_notebook_has_one_bar_that_moves_and_goes(cell):
    with progress.progress_bar("EM", 10) as advance:
        advance(4, EVIL)
        until = time.monotonic() + 60
        while not (cell and len(cell[0]) > 2) and time.monotonic() < until:
            time.sleep(0.01)
        page = cell[0][-1]._repr_mimebundle_([], [])["text/html"]
    assert len(cell) == 1
    assert cell[0][-1] == ""  # nothing is left of it
    assert "4/10" in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_short_runs_and_quiet_ones_show_no_bar(cell, monkeypatch):
    with progress.progress_bar("EM", shown=False) as advance:
        advance(1, "quiet")
        time.sleep(0.05)
    monkeypatch.setattr(progress, "_REFRESH", 60.0)
    with progress.progress_bar("EM") as advance:
        advance(1, "short")
    assert cell == []


def test_html_escapes_what_users_call_things(fit):
    links = sidebayes.Links(
        [(0, 1), (1, 2)], [1.0, -1.0], group=[EVIL, "b"], columns={"<b>who": [EVIL, ""]}
    )
    compared = sidebayes.compare({EVIL: fit})
    known = sidebayes.Groups([EVIL, "b", EVIL])
    for one in (fit, compared, links, known):
        page = one._repr_html_()
        assert "&lt;script&gt;" in page
        assert EVIL not in page
        assert "<b>who" not in page


def test_html_of_a_fit_has_its_verdict_and_of_a_comparison_its_table(fit):
    level, sentence = fit.verdict
    page = fit._repr_html_()
    assert f"class='badge {level}'" in page
    assert sentence.split(";")[0] in page
    assert "<table" in sidebayes.compare({"one": fit})._repr_html_()
    assert repr(sidebayes.compare({"one": fit})) == str(sidebayes.compare({"one": fit}))


def test_html_of_links_has_no_more_than_some_rows():
    links = sidebayes.Links.from_groups(np.zeros(200, int))
    assert links._repr_html_().count("<tr") < 20


_CELLS = (
    """import time, numpy as np, sidebayes
x = np.random.default_rng(0).normal(size=(30, 2)) + 6 * (np.arange(30) % 2)[:, None]
links = sidebayes.Links.from_pairs([(0, 2), (0, 1)], [True, False])
fit = sidebayes.fit("ppc", x, links, num_clusters=2, covariance="spherical", progress=False)
fit""",
    "fit.plot()",
    "sidebayes.compare({'<i>one': fit})",
    "links",
    """from sidebayes.guides.engines.plumbing.progress import progress_bar
with progress_bar("NUTS", 100) as advance:
    for _ in range(4):
        advance(25, "sampling")
        time.sleep(0.4)""",
)


@pytest.mark.slow
def test_a_notebook_run_by_nbclient_shows_pictures_progress_and_tables(tmp_path):
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat

    seen = []

    class Client(client.NotebookClient):
        def process_message(self, msg, cell, cell_index):
            seen.append((cell_index, msg["msg_type"], msg["content"].get("data", {})))
            return super().process_message(msg, cell, cell_index)

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in _CELLS])
    Client(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [cell.outputs for cell in book.cells]
    assert [len(one) for one in outputs] == [1] * len(_CELLS)  # no warnings either
    shown = [one[0].data for one in outputs]
    assert "converged" in shown[0]["text/html"]
    assert "image/png" in shown[1]
    assert "&lt;i&gt;one" in shown[2]["text/html"]
    assert "1 must-link " in shown[3]["text/html"]
    bars = [data["text/html"] for number, kind, data in seen if number == 4 and "display" in kind]
    assert len(bars) > 1
    assert "NUTS: sampling" in bars[0]
    assert shown[4]["text/html"] == bars[-1] == ""
