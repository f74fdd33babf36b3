"""The command line, from a fit to a report."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sidebayes.diagnostics.comparison.compare import Comparison
from sidebayes.guides.engines.plumbing import checkpoint
from sidebayes.models.blocks.side_information.groups import check_order_of_groups
from typer.testing import CliRunner

import sidebayes
from sidebayes.cli import app
from sidebayes.commands import doctor
from sidebayes.commands.columns import NamedTable, by_group, number_classes
from sidebayes.commands.fitting import Outcome
from sidebayes.commands.given import Arguments, from_columns
from sidebayes.commands.words import in_flags
from sidebayes.runs.arguments import read_arguments
from sidebayes.runs.cards import Card
from sidebayes.runs.transformers import TRANSFORMERS
from sidebayes.runs.zoo import CARDS, make_engine
from tests.support.draws import at_one

QUICK = ("--setting", "num_restarts=1", "--setting", "max_steps=5")
MIXED = ("--formula", "y ~ t + (1 | who)")
LINKED = ("table.csv", "--label", "kind", "--drop", "told", "--num-links", "8")
TOLD = ("table.csv", "--label", "kind", "--known", "told")
HOW = {
    "gmm": ("table.csv", "--label", "kind", "--drop", "told"),
    "moe": TOLD,
    "pfgl": TOLD,
    "nfgl": TOLD,
    "domain_adaptation": (*TOLD, "--source", "other.csv"),
    "sphere_mixture": ("sphere.csv", "--label", "kind", "--num-links", "8"),
    "mixed_effects": ("long.csv", *MIXED),
    "mixed_effects_mixture": ("long.csv", *MIXED, "--label", "kind", "--num-known", "4"),
    "hierarchical_shape": (
        *("shapes.csv", "--group", "who", "--columns", "x=x,y", "--columns", "landmarks=mark"),
        *("--label", "kind", "--known", "kind"),
    ),
    "latent_shape": (
        *("frame.csv", "--group", "who", "--columns", "x=x,y", "--columns", "landmarks=mark"),
        *("--label", "kind", "--known", "kind"),
    ),
    "trajectories": ("long.csv", "--group", "who", "--columns", "y=y", "--columns", "inputs=t"),
    "joint_survival": ("long.csv", *MIXED, "--survival", "Surv(time, event) ~ 1"),
    "geodesic_embedding": (
        *("table.csv", "--label", "kind", "--drop", "told"),
        *("--option", "num_neighbors=30", "--option", "num_dimensions=1"),
    ),
}
"""How a card is fitted from the command line, where it is not to points with links."""
WITHOUT_LABELS = {"mixed_effects", "joint_survival", "geodesic_embedding"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folder of points, a source domain of the same features, repeated measures, and landmarks."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    kind = np.arange(40) % 2
    x = pd.DataFrame(rng.normal(size=(40, 2)) + 4 * kind[:, None], columns=["a", "b"])
    x = x.assign(kind=np.where(kind, "yes", "no"))
    x.assign(told=x["kind"].where(np.arange(40) < 8)).to_csv(folder / "table.csv", index=False)
    x.assign(a=x["a"] + 1).to_csv(folder / "other.csv", index=False)
    length = np.hypot(x["a"], x["b"])
    x.assign(a=x["a"] / length, b=x["b"] / length).to_csv(folder / "sphere.csv", index=False)
    subject, t = np.repeat(np.arange(10), 4), np.tile(np.arange(4.0), 10)
    slope = np.where(subject < 5, 1.0, -1.0)
    y = slope * t + rng.normal(size=10)[subject] + 0.3 * rng.normal(size=40)
    long = {
        "who": np.array(list("jihgfedcba"))[subject],
        "t": t,
        "y": y,
        "kind": np.where(slope > 0, "up", "down"),
        "time": 4 + subject + 0.5,
        "event": subject % 2,
    }
    pd.DataFrame(long).to_csv(folder / "long.csv", index=False)
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])[:, None] + 0.1 * rng.normal(
        size=(4, 10, 2)
    )
    shapes = pd.DataFrame(np.swapaxes(square, 0, 1).reshape(40, 2), columns=["x", "y"])
    shapes = shapes.assign(who=long["who"], mark=np.tile(np.arange(4), 10), kind=long["kind"])
    shapes.to_csv(folder / "shapes.csv", index=False)
    landmarks = sidebayes.Landmarks(shapes[["x", "y"]], shapes["who"], shapes["mark"])
    shapes[["x", "y"]] = sidebayes.register_points(landmarks).x
    shapes.to_csv(folder / "frame.csv", index=False)
    return folder


@pytest.fixture
def tables(written, tmp_path, monkeypatch):
    """A copy of these files in the folder at hand."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def refused(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    return result.stderr


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list():
    text = run("list")
    assert all(name in text for name in (*CARDS, *TRANSFORMERS))
    found = json.loads(run("list", "--json"))
    assert [row["name"] for row in found if row["kind"] == "transformer"] == list(TRANSFORMERS)
    rows = [row for row in found if row["kind"] == "method"]
    assert [row["name"] for row in rows] == list(CARDS)
    assert "covariance" in rows[0]["options"]
    assert all(row["reference"] and row["engines"] for row in rows)


def test_a_run_is_kept_in_a_checkpoint(tables, monkeypatch):
    wrote = []
    monkeypatch.setattr(checkpoint, "write_state", lambda path, *_: wrote.append(path.name))
    how = ("table.csv", "--label", "kind", "--drop", "told", *QUICK)
    run("fit", "gmm", *how, "--checkpoint", "run.state")
    assert set(wrote) == {"run.state"}
    assert "leave --checkpoint out" in refused("fit", "pfgl", *TOLD, "--checkpoint", "run.state")
    assert "--checkpoint 'no/folder" in refused("fit", "gmm", *how, "--checkpoint", "no/folder/a")


def test_fit_compare_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ("--setting", "num_restarts=1", "--setting", "max_steps=5")
    quick = (*short, "--option", "covariance=spherical")
    links = sidebayes.simulate_links(sidebayes.load_dataset("iris").labels, 4, weight=3.0)
    links.write("links.csv")
    text = run("fit", "ppc", "iris", "--links", "links.csv", *quick, "-o", "b.nc")
    assert "saved b.nc" in text
    assert sidebayes.load("b.nc").links.num_links == 4
    shutil.copy("b.nc", "a.nc")
    text = run("compare", "a.nc", "b.nc", "--csv", "table.csv")
    assert "ppc" in text
    assert (tmp_path / "table.csv").read_text().count("\n") == 3
    for command in (("compare", "a.nc", "--csv", "a.nc"), ("report", "a.nc", "-o", "./a.nc")):
        result = CliRunner().invoke(app, list(command))
        assert "is the file of a.nc as well" in " ".join(result.output.split()) + str(
            result.exception
        )
    run("report", "a.nc", "b.nc", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "data:image/svg+xml;base64" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_bug_shows_its_traceback(monkeypatch):
    monkeypatch.setenv("SIDEBAYES_DEBUG", "1")
    result = CliRunner().invoke(app, ["compare", "nowhere.nc"])
    assert isinstance(result.exception, ValueError)


@pytest.mark.parametrize("name", CARDS)
def test_every_card_gets_its_data(name, tables, monkeypatch):
    """What the command line passes is what the card takes; it is fitted in a slow test."""
    passed = {}

    class Reached(ValueError):
        pass

    def routine(card):
        def record(**named):
            passed.update(named)
            raise Reached("here")

        return record

    monkeypatch.setattr(Card, "routine", property(routine))
    assert "here" in refused("fit", name, *HOW.get(name, LINKED))
    card = CARDS[name]
    needed = {p.name for p in inspect.signature(card.fitted_by).parameters.values()}
    assert {r.name for r in card.signature.data if r.required} <= passed.keys()
    front = {"engine", "seed", "truth"}
    own = {key: value for key, value in passed.items() if key not in front}
    assert own.keys() <= needed
    if "known" in passed and "num_clusters" in needed:
        assert passed["num_clusters"] == 2
    if not card.routine_path:
        assert read_arguments(card.model, name, (), own).data
        assert passed["truth"] is None or len(passed["truth"]) in (40, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
def test_every_card_is_fitted(name, tables):
    fields = make_engine(None, CARDS[name]).__dataclass_fields__
    small = {"num_restarts": 1, "max_steps": 5, "num_draws": 20}
    settings = [f"--setting={key}={value}" for key, value in small.items() if key in fields]
    out = () if name in WITHOUT_LABELS else ("--labels", "labels.csv")
    text = run("fit", name, *HOW.get(name, LINKED), *settings, "-o", "fit.nc", *out)
    assert "saved fit.nc" in text
    assert ("standard_error" in text) == ("--formula" in HOW.get(name, LINKED))
    assert sidebayes.load("fit.nc").method == name
    if out:
        assert len(pd.read_csv("labels.csv")) == (
            40
            if name
            not in ("trajectories", "mixed_effects_mixture", "hierarchical_shape", "latent_shape")
            else 10
        )


def test_coefficients_are_shown(tables, monkeypatch):
    found = pd.DataFrame({"standard_error": [0.5, 0.1]}, index=["Intercept", "t"])
    parts = ["association[t]", "log_hazard_ratios[age]", "noise"]
    summary = pd.DataFrame({"estimate": [0.3, 0.7, 1.5]}, index=parts)
    fit = SimpleNamespace(
        run=SimpleNamespace(signature={"fixed", "event"}),
        coefficients=lambda: found,
        summary=lambda: summary,
        method="joint_survival",
    )
    outcome = Outcome(fit, [], pd.Series(range(10)))
    monkeypatch.setattr("sidebayes.commands.fitting.fit_asked", lambda asked: outcome)
    table = Comparison(pd.DataFrame({"links": [""]}), ("see fit.effects()",))
    monkeypatch.setattr(sidebayes, "compare", lambda fits: table)
    text = run("fit", "joint_survival", "long.csv", *MIXED, "--survival", "Surv(time, event) ~ 1")
    shown = text[text.index("standard_error") :].splitlines()[1:3]
    assert [line.split() for line in shown] == [["Intercept", "0.5"], ["t", "0.1"]]
    of_survival = text[text.index("estimate") :].splitlines()[1:]
    assert [line.split()[0] for line in of_survival if line] == parts[:2]
    assert "see sidebayes.load('fit.nc').effects() in Python" in text


def test_fixed_effects_are_shown(tables, monkeypatch):
    known = at_one({"factor": [1.0], "covariance": [[1.0]], "noise": 0.5})
    monkeypatch.setattr("sidebayes.commands.fitting.make_engine", lambda *_: known)
    text = run("fit", "mixed_effects", "long.csv", *MIXED)
    shown = text[text.index("standard_error") :].splitlines()[1:3]
    assert [line.split()[0] for line in shown] == ["Intercept", "t"]


def test_labels_are_written(tables):
    run("fit", "moe", *TOLD, *QUICK, "-o", "moe.nc", "--labels", "labels.csv")
    table, found = pd.read_csv("labels.csv"), sidebayes.load("moe.nc")
    assert table["row"].tolist() == list(range(40))
    assert table["cluster"].tolist() == found.labels().tolist()
    np.testing.assert_allclose(table[["cluster_0", "cluster_1"]], found.responsibilities())
    np.testing.assert_allclose(table[["class_no", "class_yes"]], found.class_probabilities())
    kinds = pd.read_csv("table.csv")["kind"]
    assert (table["class"] == kinds).mean() > 0.9
    assert (found.classes()["class"] == kinds).mean() > 0.9
    run("fit", "domain_adaptation", *HOW["domain_adaptation"], *QUICK, "-o", "moved.nc")
    moved = sidebayes.load("moved.nc")
    assert (moved.classes()["class"] == kinds).mean() > 0.9
    assert moved.options["source"].class_names == moved.class_names == ("no", "yes")


def test_classes_are_numbered_alike():
    source, known = pd.Series(["b", "c", "b"]), pd.Series([None, "c", "b"])
    truth = pd.Series(["a", "b", "c"])
    codes, names = number_classes(source, known, truth)
    assert names == ["b", "c", "a"]
    assert [code.tolist() for code in codes] == [[0, 1, 0], [-1, 1, 0], [2, 0, 1]]
    assert number_classes(None, pd.Series([1.0, np.nan, 0.0]))[1] == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "fit gmm table.csv --num-clusters 2",
            "columns ['kind', 'told'] are not numbers ('kind' holds 'no' in line 2, 'told' holds 'no' in "
            "line 2). If one holds the classes, name it by --label;",
        ),
        ("fit gmm iris --option covariance=tied --option covariance=full", "is given twice"),
        ("fit gmm iris --setting tol=1 --setting tol=2", "--setting tol=... is given twice"),
        ("fit gmm iris --num-clusters 500", "--num-clusters 500 for 150 points"),
        ("fit gmm iris --num-clusters 2 --option num_clusters=3", "give it once"),
        ("fit gmm table.csv --drop kind --drop told", "gmm needs --num-clusters"),
        ("fit gmm iris --seed -1", "--seed -1; expected an integer >= 0"),
        ("fit gmm iris --option covariance=odd", "--option covariance='odd'"),
        ("fit gmm iris --setting num_restarts=0", "--setting num_restarts=0"),
        ("fit gmm iris --option num_restarts=3", "give --setting num_restarts=..."),
        ("fit gmm iris --setting nothing=0", "--setting nothing=...: engine 'em' has no such"),
        ("fit pfgl iris", "pfgl learns from rows whose class is known"),
        ("fit moe iris --num-links 5", "moe has no use for --num-links; leave it out"),
        ("fit gmm iris --num-known 5", "gmm has no use for --num-known"),
        ("fit moe iris --num-known 151", "--num-known 151: 150 classes are known"),
        ("fit moe iris --num-known 5 --known label", "both --known and --num-known"),
        ("fit moe iris --known tool", "--known tool: iris has no such column"),
        ("fit moe iris --option known=[1]", "known is data of moe"),
        ("fit trajectories long.csv", "--columns y=COLUMN --columns inputs=COLUMN"),
        ("fit mixed_effects long.csv", "--group COLUMN, or a formula, such as --formula"),
        (
            "fit hierarchical_shape shapes.csv --group who --columns x=x,y --columns landmarks=kind",
            "shapes.csv: columns ['kind'] are not numbers",
        ),
        ("fit mixed_effects long.csv --columns z=y", "--columns z=...: mixed_effects has no such"),
        ("fit mixed_effects long.csv --columns y=y,t", "--columns y=...: expected one column"),
        ("fit gmm iris --formula y~t+(1|who)", "gmm has no use for --formula"),
        ("fit gmm iris --group label", "gmm has no use for --group"),
        ("fit gmm iris --source iris", "gmm has no use for --source"),
        ("fit gmm iris --learn-reliability", "--learn-reliability needs links"),
        ("fit pair_mixture iris --num-links 9 --learn-reliability", "has no use for --learn-rel"),
        ("fit domain_adaptation iris", "domain_adaptation needs --source"),
        ("fit domain_adaptation iris --num-clusters 3", "has no use for --num-clusters"),
        ("fit joint_survival long.csv --formula y~t+(1|who)", "joint_survival needs --survival"),
        ("fit joint_survival long.csv --survival Surv(a,b)~1", "--survival needs --formula"),
        (
            "fit joint_survival long.csv --formula y~t+(1|who) --survival Surv(time,event)~sex",
            "--survival 'Surv(time,event)~sex' cannot be evaluated",
        ),
        ("fit mixed_effects long.csv --formula y~t+(1|who) --group who", "leave out --group"),
        (
            "fit mixed_effects_mixture long.csv --formula y~1+(1|who) --label t --num-known 2",
            "column 't' has several values within who 'j'",
        ),
        ("fit ppc iris --num-links 11176", "--num-links 11176; 150 points"),
        ("fit gmm iris --labels nowhere/l.csv", "there is no folder nowhere"),
        ("fit gmm table.csv --out ./table.csv", "--out table.csv is the file of DATA as well"),
        ("fit gmm iris --links l.csv --labels l.csv", "--labels l.csv is the file of --links"),
        ("fit gmm iris --out f.nc --labels f.nc", "--labels f.nc is the file of --out"),
        ("fit gmm iris --checkpoint f.nc --out f.nc", "--out f.nc is the file of --checkpoint"),
    ],
)
def test_refusals_speak_of_flags(arguments, message, tables):
    text = refused(*arguments.split(" "))
    assert message in text
    for word in (" num_clusters", "num_restarts =", "EM(", "label=", "drop=", "num_pairs"):
        assert word not in text.replace("--option num_clusters", "")


def test_missing_values_are_told_in_terms_of_the_file(tables):
    table = pd.read_csv("table.csv")
    table.loc[[3, 5], "a"] = np.nan
    table.to_csv("table.csv", index=False)
    text = refused("fit", "gmm", "table.csv", "--label", "kind", "--drop", "told")
    assert "columns ['a'] have missing or infinite values in 2 rows, the first is row 3" in text


@pytest.mark.parametrize(
    ("method", "columns"),
    [("feature_saliency", {}), ("geodesic_embedding", {"distances": ["a", "b"]})],
)
def test_missing_values_reach_the_methods_that_take_them(method, columns):
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0], "b": [2.0, 1.0, np.nan]})
    to = Arguments(CARDS[method])
    data = from_columns(to, NamedTable("t", frame, None, ()), columns, None, ()).data
    np.testing.assert_array_equal(next(iter(data.values())), frame)
    table = NamedTable("t", frame.replace(1.0, np.inf), None, ())
    with pytest.raises(ValueError, match=r"\['a', 'b'\] have infinite values in 2 rows"):
        from_columns(to, table, columns, None, ())


@pytest.mark.filterwarnings("always::sidebayes.SideBayesWarning")
def test_index_like_columns_are_pointed_out(tables):
    pd.read_csv("table.csv").drop(columns="told").rename_axis("id").to_csv("id.csv")
    arguments = ["fit", "gmm", "id.csv", "--label", "kind", "--option", "covariance=odd"]
    text = refused(*arguments)
    assert "column 'id' is called like a row number" in text
    assert "leave it out by --drop id\n" in text
    assert "row number" not in refused(*arguments, "--drop", "id")


def test_words_of_arguments_become_flags():
    flags = {"num_clusters": "--num-clusters", "seed": "--seed", "tol": "--setting tol="}
    assert (
        in_flags("pass EM(tol=1e-3), or seed = 3", flags) == "pass --setting tol=1e-3, or --seed 3"
    )
    assert in_flags("num_clusters is missing", flags) == "--num-clusters is missing"
    assert in_flags("the seed of xseed=3, seed == 4", flags) == "the seed of xseed=3, seed == 4"


def test_what_only_python_does_is_said_of_the_saved_fit():
    flags = {"num_clusters": "--num-clusters", "prior": "--option prior="}
    said = {
        "see fit.suspect_links(), or .loo(unit='row')": "see sidebayes.load('fit.nc').suspect_links() in "
        "Python, or sidebayes.load('fit.nc').loo(unit='row') in Python",
        "take prior=GaussianPrior.by_evidence(x, num_clusters), or prior='flat'": "take prior="
        "GaussianPrior.by_evidence(x, num_clusters) in Python, or --option prior='flat'",
        'learn (flip_rate="learned"), or fit links.with_strength(flip_rate_weight(0.15))': "learn "
        "(--learn-reliability), or fit links of confidence 0.85",
        "flip_rate is learned from soft links; pass links.with_strength(1.0)": "--learn-reliability learns "
        "from soft links; give them a column weight or confidence in the file",
        "keep one of each, table.drop_duplicates()": "keep one of each",
        "start it there (init=), by sidebayes.fit(init=fit)": "start it there (init= in Python), by "
        "sidebayes.fit(init=fit)",
    }
    for text, words in said.items():
        assert in_flags(text, flags) == words
    assert in_flags("see fit.loo()", {}) == "see sidebayes.load('fit.nc').loo() in Python"


def test_version():
    assert run("--version") == f"sidebayes {sidebayes.__version__}\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fit mixed_effects_", "mixed_effects_mixture"),
        ("fit gmm iri", "iris"),
        ("fit pairwise_gp iris --engine nu", "nuts"),
    ],
)
def test_shells_complete_names(words, found):
    number = str(len(words.split()))
    asked = {"COMP_WORDS": f"sidebayes {words}", "COMP_CWORD": number}
    result = CliRunner().invoke(
        app, [], prog_name="sidebayes", env={"_SIDEBAYES_COMPLETE": "complete_bash", **asked}
    )
    assert result.stdout.split() == [found]


def test_completion_does_not_wait_for_jax():
    code = "import sidebayes.cli, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_doctor(monkeypatch, tmp_path):
    monkeypatch.setenv("SIDEBAYES_CACHE", str(tmp_path))
    text = run("doctor")
    for word in ("sidebayes:", "jax:", "formulae (optional):", "cpu", str(tmp_path), "a small fit"):
        assert word in text
    monkeypatch.setattr(doctor, "_fit", lambda: doctor.Finding("a small fit", "[no]", False))
    monkeypatch.setattr(
        doctor,
        "requires",
        lambda name: ["jax>=99", "lost", 'absent>=1; extra == "few"', 'x; extra == "dev"'],
    )
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    for line in (
        "bad jax:",
        "and >=99 is needed",
        "bad lost: not installed",
        "ok absent (optional): not installed; pip install 'sidebayes[few]'",
        "bad a small fit: [no]",
    ):
        assert line in result.stdout
    assert "x (optional)" not in result.stdout


def test_a_set_of_the_package_has_the_classes_that_are_named():
    sex = NamedTable.read("crabs", "sex", ())
    expected = sidebayes.load_dataset("crabs", label="sex")
    np.testing.assert_array_equal(sex.classes, expected.labels)
    assert list(sex.features([])) == expected.feature_names
    species = NamedTable.read("crabs", None, ()).classes
    np.testing.assert_array_equal(species, sidebayes.load_dataset("crabs").labels)


def test_groups_are_named_as_the_table_has_them():
    with pytest.raises(ValueError, match="several values within who 3, and is needed once"):
        by_group(pd.Series([1.0, 2.0], name="age"), pd.Series([3, 3], name="who"), [3])
    found = by_group(pd.Series(list("xxy"), name="kind"), pd.Series([3, 3, 2], name="who"), [2, 3])
    assert found.to_dict() == {2: "y", 3: "x"}


def test_classes_of_groups_have_the_names_of_the_groups(tables, monkeypatch):
    passed = {}
    monkeypatch.setattr(
        Card, "routine", property(lambda card: lambda **named: passed.update(named))
    )
    call = ["mixed_effects_mixture", "long.csv", *MIXED, "--label", "kind", "--num-clusters", "2"]
    CliRunner().invoke(app, ["fit", *call])  # nothing comes back to be shown
    check_order_of_groups("truth", passed["truth"], sidebayes.Groups(passed["subjects"]))
    assert passed["truth"].tolist() == ["down"] * 5 + ["up"] * 5
