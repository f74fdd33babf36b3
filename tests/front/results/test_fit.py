"""One result for every card and engine; it survives a file."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from sidebayes.diagnostics.symmetry import matched
from sidebayes.diagnostics.symmetry.relabelling import relabel
from sidebayes.diagnostics.trust.verdict import num_starts_at_best
from sidebayes.models.ppc import ppc

import sidebayes
from sidebayes import (
    EM,
    HMC,
    MAP,
    MCLMC,
    NUTS,
    SMC,
    SVI,
    BlockedGibbs,
    ComponentwiseEM,
    Continuation,
    CoordinateAscent,
    GeodesicHMC,
    Laplace,
    LinkedCategorical,
    LinkedMixture,
    Links,
    NestedSlice,
    Pathfinder,
    StochasticEM,
)
from sidebayes.common.magnitudes import counted
from sidebayes.results.fit import Fit
from sidebayes.runs.execution import execute
from sidebayes.runs.zoo import CARDS, make_engine
from tests.support.cards import CLUSTERING, rows_for
from tests.support.draws import Told

DATA = sidebayes.load_dataset("iris")
X, LABELS = DATA.x[::5], DATA.labels[::5]
SOFT = sidebayes.simulate_links(LABELS, 12, flip_rate=0.1, weight=2.0, seed=1)
HARD = sidebayes.simulate_links(LABELS, 8, seed=1)
TINY = {
    "continuation": Continuation(num_restarts=1, max_steps=10),
    "em": EM(num_restarts=2, max_steps=30),
    "map": MAP(num_restarts=1, max_steps=30),
    "laplace": Laplace(num_restarts=2, num_draws=100),
    "pathfinder": Pathfinder(num_paths=2, num_draws=100, max_steps=20),
    "svi": SVI(guide="mean_field", num_restarts=2, num_steps=1000, num_draws=100),
    "nuts": NUTS(num_warmup=10, num_samples=10, num_chains=2, max_tree_depth=3),
    "hmc": HMC(num_warmup=10, num_samples=10, num_chains=2, trajectory_length=0.5),
    "mclmc": MCLMC(num_warmup=10, num_samples=10, num_chains=2, trajectory_length=0.5),
    "geodesic": GeodesicHMC(num_warmup=10, num_samples=10, num_chains=2),
    "smc": SMC(num_particles=20, num_runs=2, num_mutations=1, num_leapfrog=2, max_steps=3),
    "nested": NestedSlice(num_live=20, num_delete=10, num_slices=2, num_samples=10, max_steps=3),
    "stochastic_em": StochasticEM(batch_size=15, max_epochs=1),
    "gibbs": BlockedGibbs(num_warmup=10, num_samples=10, num_chains=2, max_tree_depth=3),
    "cavi": CoordinateAscent(num_restarts=2, max_steps=30, num_draws=20),
    "componentwise_em": ComponentwiseEM(num_restarts=1, max_steps=300),
    "kmeans": make_engine("kmeans", CARDS["soft_kmeans"]),
}
MUST = Links(HARD.pairs[HARD.same], HARD.weights[HARD.same], len(X))
CONJUGATE = {"ppc": (SOFT, {"reading": "relation"}), "constrained_em": (MUST, {})}
"""Links and options under which every site of a card is conjugate."""
PROPER = {"feature_saliency": {"selection": "sparse"}}
"""Options under which a card has a posterior, for engines other than its first."""
LABEL_SITES = {
    "constrained_kmeans": {"mean"},
    "soft_kmeans": {"mean"},
    "feature_saliency": {"weights", "mean", "variance"},
    "constraint_fit": {"weights", "mean"},
    "constraint_projection": {"weights", "mean"},
    "pairwise_gp": {"coefficients"},
    "sphere_mixture": {
        "weights",
        "direction",
        "direction_vector",
        "tangent_covariance",
        "covariance",
        "missing_mass",
    },
    "mcp": set(),  # clusters are columns of its table of components
    "scp": {"weights", "mean", "covariance", "discriminants"},
}
"""Sites that permute with the labels; those of a mixture are its weights, means and covariances."""


ONE_START = EM(num_restarts=1, max_steps=30)
LEARNED = {"num_clusters": 3, "reading": "relation", "flip_rate": "learned"}


@pytest.fixture(scope="module")
def learned():
    return sidebayes.fit(
        "ppc",
        X,
        SOFT,
        engine=ONE_START,
        truth=LABELS,
        **LEARNED,
        feature_names=DATA.feature_names,
    )


def test_a_run_writes_its_whole_tree_and_matches_draws_once(learned, monkeypatch):
    """A fit only reads what describing wrote: labels, the starts of its init, seconds in all."""
    asked, names = [], learned.params.keys()  # whose own draws are matched by now
    monkeypatch.setattr(matched, "relabel", lambda tree: asked.append(tree) or relabel(tree))
    gibbs = replace(learned.run, engine=TINY["gibbs"])
    tree = execute(gibbs, learned, progress=False).tree
    assert set(tree["responsibilities"].data_vars) == {"prob", "labels"}
    info = tree["fit_info"].attrs
    assert info["starts_at_best"] == num_starts_at_best(learned)
    seconds = json.loads(info["seconds"])
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))
    fit = Fit.of(gibbs, learned, progress=False)
    before = fit.tree.copy(deep=True)
    assert fit.params.keys() == names
    assert fit.relabelled[1] <= 1.0
    assert len(asked) == 2  # once by each run
    assert fit.tree.identical(before)


def test_import_leaves_precision_alone(learned):
    assert learned.params["mean"].dtype == np.float64
    assert jnp.zeros(1).dtype == jnp.float32


def test_tree(learned):
    groups = set(learned.tree.children)
    assert {
        "posterior",
        "sample_stats",
        "log_likelihood",
        "responsibilities",
        "observed_data",
        "constant_data",
        "fit_info",
    } <= groups
    posterior = learned.tree["posterior"]
    assert posterior["mean"].dims == ("chain", "draw", "clusters", "features")
    assert posterior["weights"].dims == ("chain", "draw", "clusters")
    assert posterior["covariance"].sizes["chain"] == posterior["covariance"].sizes["draw"] == 1
    permuted = {name for name, site in posterior.items() if site.dims[2:3] == ("clusters",)}
    assert permuted == {"weights", "mean", "covariance"}
    np.testing.assert_allclose(learned.responsibilities().sum(axis=1), 1.0)
    assert learned.tree["log_likelihood"]["x"].dims == ("chain", "draw", "unit")


def test_units_sum_to_the_log_density(learned):
    terms = float(learned.tree["log_likelihood"]["x"].sum())
    with jax.enable_x64(True):
        problem = learned.run.problem
        from sidebayes.guides.engines.problem.posterior import mixture_site

        fn, value = mixture_site(problem, learned.params)
        assert terms == pytest.approx(float(fn.log_prob(value)), rel=1e-10)


def test_units_sum_to_the_log_density_of_a_field():
    links = SOFT + Links.must_link([(0, 29), (29, 3)]) + Links.cannot_link([(3, 20)])
    fit = sidebayes.fit("ppc", X, links, num_clusters=3, engine=EM(num_restarts=1, max_steps=3))
    from sidebayes.guides.engines.problem.posterior import mixture_site

    with jax.enable_x64(True):
        fn, value = mixture_site(fit.run.problem, fit.params)
        total = float(fn.log_prob(value))
    assert float(fit.tree["log_likelihood"]["x"].sum()) == pytest.approx(total, rel=1e-10)


def test_round_trip(learned, tmp_path):
    learned.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc")
    assert again.method == "ppc"
    assert again.config == ONE_START
    assert again.status == learned.status
    assert again.seconds == learned.seconds
    np.testing.assert_array_equal(again.labels(), learned.labels())
    np.testing.assert_array_equal(again.links.weights, learned.links.weights)
    np.testing.assert_allclose(again.predict_proba(X), learned.predict_proba(X))
    np.testing.assert_allclose(again.log_prob(X[:1]), learned.log_prob(X)[:1])
    assert again.summary().equals(learned.summary())


def test_summary_of_an_array_that_is_constant_in_part():
    def model(x):
        level = numpyro.sample("level", dist.Normal(0, 1))
        numpyro.deterministic("pair", jnp.stack([jnp.ones(()), level]))
        numpyro.sample("x", dist.Normal(level, 1).expand([len(x)]).to_event(1), obs=x)

    level = np.random.default_rng(0).normal(2.0, 0.4, (2, 50))
    engine = Told({"level": level, "pair": np.stack([np.ones((2, 50)), level], axis=-1)})
    table = sidebayes.fit(model, np.arange(5.0), engine=engine, progress=False).summary()
    assert type(table) is pd.DataFrame
    assert set(table.dtypes) == {np.dtype(float)}
    assert table.loc["pair[0]", ["mean", "sd"]].astype(float).tolist() == [1.0, 0.0]
    assert table.loc["pair[1]", "mean"] == table.loc["level", "mean"]
    shown = table[["mean", "eti89_lb", "eti89_ub"]].to_string()  # ArviZ would round the bounds
    assert f"{table.loc['level', 'eti89_lb']:.6f}" in shown


def test_single_things_are_no_plurals():
    """Of links, here; fits and messages count by the same words."""
    assert repr(Links.must_link([(0, 1)])).startswith(
        "Links(1 must-link (1 hard), 0 cannot-links (0 hard)"
    )
    assert [counted(number, "draw") for number in (0, 1, 2)] == ["0 draws", "1 draw", "2 draws"]


@pytest.mark.parametrize("copied", [lambda fit: pickle.loads(pickle.dumps(fit)), copy.deepcopy])
def test_fits_go_to_other_processes(learned, copied):
    learned.predict(X)  # whatever was found out by now
    again = copied(learned)
    np.testing.assert_array_equal(again.labels(), learned.labels())
    np.testing.assert_array_equal(again.predict_proba(X), learned.predict_proba(X))


def test_predict_agrees_with_the_mixture_formula(learned):
    p = learned.params
    parts = [
        np.log(p["weights"][k]) + _log_normal(X, p["mean"][k], p["covariance"][k]) for k in range(3)
    ]
    joint = np.stack(parts, axis=1)
    total = np.logaddexp.reduce(joint, axis=1)
    np.testing.assert_allclose(learned.log_prob(X), total)
    np.testing.assert_allclose(learned.predict_proba(X), np.exp(joint - total[:, None]), atol=1e-12)
    np.testing.assert_array_equal(learned.predict(X), joint.argmax(axis=1))


def _log_normal(x, mean, covariance):
    from scipy.stats import multivariate_normal

    return multivariate_normal(mean, covariance).logpdf(x)


def test_predict_with_links_keeps_them(learned):
    pairs = [(0, 15)]  # different flowers
    tied = learned.predict_proba(X, Links.must_link(pairs))
    np.testing.assert_allclose(tied[0], tied[15])
    assert np.abs(learned.predict_proba(X)[0] - learned.predict_proba(X)[15]).max() > 0.5


def test_hard_links_hold_in_labels():
    fit = sidebayes.fit("ppc", X, HARD, num_clusters=3, engine=TINY["em"])
    z = fit.labels()
    same = z[HARD.pairs[:, 0]] == z[HARD.pairs[:, 1]]
    np.testing.assert_array_equal(same, HARD.same)


QUICK = ("em", "map", "kmeans")
"""Engines that are tried on every card each time, the others on `ppc`."""


# what stops after three steps cannot be matched, and says so
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(c.name, e, marks=[pytest.mark.slow] * (e not in QUICK and c.name != "ppc"))
        for c in CLUSTERING.values()
        for e in c.engines
    ],
)
def test_every_card_with_every_engine(name, engine, tmp_path):
    card = CARDS[name]
    if engine in ("nested", "pathfinder", "mclmc"):
        pytest.importorskip("blackjax")
    links, options = {"none": None, "hard": HARD}.get(card.links, SOFT), {}
    if engine == "cavi":
        links, options = CONJUGATE.get(name, (links, options))
    if engine != card.default_engine:
        options = options | PROPER.get(name, {})
    given = {"engine": TINY[engine], "truth": LABELS, "seed": 2, **options}
    rows = rows_for(name, X)
    fit = sidebayes.fit(name, rows, links, num_clusters=3, **given)
    assert fit.engine == engine
    assert fit.labels().shape == (len(X),)
    assert np.isfinite(fit.tree["sample_stats"]["lp"]).all()
    fit.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc", model=card.model)  # its sites are those of the file
    assert again.predict(rows[:2]).shape == (2,)
    assert name in str(sidebayes.compare({"one": fit}))
    permuted = {str(n) for n, v in fit.tree["posterior"].items() if v.dims[2:3] == ("clusters",)}
    assert permuted == LABEL_SITES.get(name, {"weights", "mean", "covariance"})


@pytest.mark.parametrize(
    "engine",
    [pytest.param(e, marks=[pytest.mark.slow] * (e != "map")) for e in CARDS["gmm"].engines],
)
def test_one_cluster_is_a_gaussian(engine):
    """The weights of one cluster have no free coordinate."""
    if engine in ("nested", "pathfinder", "mclmc"):
        pytest.importorskip("blackjax")
    fit = sidebayes.fit("gmm", X, num_clusters=1, engine=TINY[engine])
    np.testing.assert_array_equal(fit.labels(), 0)
    np.testing.assert_allclose(fit.params["weights"], [1.0])


def test_own_model_may_have_the_name_of_a_card():
    def gmm(x, links=None, *, num_clusters):
        ppc(x, links, num_clusters=num_clusters)

    fit = sidebayes.fit(gmm, X, SOFT, num_clusters=3, engine=TINY["em"])
    assert fit.method == "gmm"
    assert len(fit.suspect_links()) == len(SOFT)
    assert fit.predict(X[:2]).shape == (2,)


def test_same_seed_same_result():
    one, two = (
        sidebayes.fit("gmm", X, num_clusters=3, engine=TINY["em"], seed=5).params["mean"]
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, two)


def test_evidence_reaches_fit_and_table(tmp_path):
    fit = sidebayes.fit("gmm", X, num_clusters=3, engine=TINY["laplace"], seed=2)
    fit.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc")
    assert again.log_evidence == fit.log_evidence
    assert str(fit.log_evidence).startswith("log evidence -")
    row = sidebayes.compare({"one": fit}).frame.loc["one"]
    assert row["log_evidence"] == float(fit.log_evidence)
    assert row["evidence"] == "estimate"


def test_resume_climbs_on():
    short = sidebayes.fit("ppc", X, SOFT, engine=replace(ONE_START, max_steps=1), **LEARNED)
    assert not short.status.converged
    longer = short.resume(1)  # by the same program
    assert longer.tree["sample_stats"]["lp"].item() > short.tree["sample_stats"]["lp"].item()


def test_float32():
    fit = sidebayes.fit("gmm", X, num_clusters=2, engine=TINY["em"], dtype="float32")
    assert fit.params["mean"].dtype == np.float32
    assert fit.predict(X).shape == (len(X),)


def counts(x, links, *, num_clusters):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_clusters)))
    with numpyro.plate("clusters", num_clusters):
        rate = numpyro.sample("rate", dist.Gamma(jnp.full(x.shape[1], 2.0), 0.5).to_event(1))
    labels = LinkedCategorical(jnp.log(weights), links)
    numpyro.sample("x", LinkedMixture(labels, dist.Poisson(rate).to_event(1)), obs=x)


def test_own_model(tmp_path):
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], 20)
    x = rng.poisson(np.where(truth == 0, 2.0, 12.0)[:, None], (40, 2))
    links = Links.must_link([(0, 1)]) + Links.cannot_link([(0, 39)])
    fit = sidebayes.fit(counts, x, links, num_clusters=2, engine=EM(num_restarts=4), truth=truth)
    assert sidebayes.compare({"own": fit}).frame["accuracy"].item() > 0.95
    fit.save(tmp_path / "own.nc")
    unknown = sidebayes.load(tmp_path / "own.nc")
    np.testing.assert_array_equal(unknown.labels(), fit.labels())
    with pytest.raises(ValueError, match="model=your_model"):
        unknown.predict(x)
    known = sidebayes.load(tmp_path / "own.nc", model=counts)
    np.testing.assert_array_equal(known.predict(x), fit.predict(x))


def test_own_model_without_links():
    def normals(x):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("clusters", 2):
            centre = numpyro.sample("centre", dist.Normal(0, 10))
        parts = dist.Normal(centre[:, None], 1.0).to_event(1)
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)

    x = np.concatenate([np.full(10, -3.0), np.full(10, 3.0)])[:, None]
    x = x + np.random.default_rng(0).normal(size=x.shape)
    fit = sidebayes.fit(normals, x, engine=EM(num_restarts=4))
    assert len(set(fit.labels()[:10])) == len(set(fit.labels()[10:])) == 1


def test_repr_says_what_ran(learned):
    assert "ppc by em, 30 points, 3 clusters, 12 links" in repr(learned)


_COUNT = """
import arviz
import sidebayes
from jax import monitoring

programs = []

def hear(event, seconds, fun_name="", **rest):
    if event.endswith("backend_compile_duration"):
        programs.append(fun_name)

monitoring.register_event_duration_secs_listener(hear)
data = sidebayes.load_dataset("iris")
links = sidebayes.simulate_links(data.labels, 20, weight=2.0)
options = {"reading": "relation", "flip_rate": "learned"}
sidebayes.fit("ppc", data.x, links, num_clusters=3, progress=False, **options)
assert len(programs) == 2, programs
"""


def test_a_first_fit_compiles_two_programs():
    """Each small program that JAX compiles unseen, for an operation on the host, costs 20 ms.

    ArviZ comes first: it leaves `numpyro.distributions` behind without its submodules as attributes.
    """
    clean = os.environ | {"SIDEBAYES_CACHE": "off"}
    subprocess.run([sys.executable, "-c", _COUNT], check=True, env=clean)
