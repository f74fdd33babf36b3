"""Options and engines in files: read from a closed registry, and never lost in silence."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints, transforms
from sidebayes.guides.engines.base import Engine
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc

import sidebayes
from sidebayes import EM, GaussianPrior, Links
from sidebayes.runs.record import _CLASSES, dump, parse
from sidebayes.runs.zoo import ENGINES
from tests.support.draws import at_one, told

X = np.random.default_rng(0).normal(size=(12, 2)) + 6 * np.repeat([[0], [1]], 6, axis=0)
MUST = Links.must_link([(0, 1)])
QUICK = EM(num_restarts=1, max_steps=3)
HALF = np.full(2, 0.5)
PARAMS = {"weights": HALF, "mean": X[[0, 11]], "covariance": np.stack([np.eye(2)] * 2)}
MASK = np.array([True, False, True])
SCALE = 2.0 * np.eye(2)

DISTRIBUTIONS = {
    "normal": dist.Normal(0.0, np.ones(3)),
    "Laplace, of which there is an engine too": dist.Laplace(0.0, 2.0),
    "to_event": dist.Gamma(jnp.full(3, 2.0), 0.5).to_event(1),
    "expand": dist.HalfNormal(2.0).expand([3]),
    "expand, to_event": dist.Beta(1.0, 4.0).expand([3, 2]).to_event(1),
    "mask": dist.Normal(0.0, 1.0).expand([3]).mask(MASK),
    "mask off": dist.Normal(0.0, 1.0).mask(False),
    "truncated on the left": dist.TruncatedNormal(0.0, 1.0, low=0.5),
    "truncated on the right": dist.TruncatedNormal(0.0, 1.0, high=jnp.ones(3)),
    "truncated on two sides": dist.TruncatedNormal(np.zeros(3), 1.0, low=-1.0, high=2.0).to_event(
        1
    ),
    "truncated Cauchy": dist.TruncatedCauchy(0.0, 1.0, low=1.0),
    "log-normal": dist.LogNormal(0.0, 1.0),
    "inverse gamma": dist.InverseGamma(2.0, 1.0).expand([2]),
    "mixture": dist.MixtureSameFamily(dist.Categorical(HALF), dist.Normal(jnp.arange(2.0), 1.0)),
    "mixture of families": dist.MixtureGeneral(
        dist.Categorical(HALF), [dist.Normal(0.0, 1.0), dist.Cauchy(0.0, 1.0)]
    ),
    "transformed": dist.TransformedDistribution(
        dist.Normal(jnp.zeros(2), 1.0),
        [transforms.AffineTransform(1.0, 2.0), transforms.ExpTransform()],
    ),
    "inverse of a transform": dist.TransformedDistribution(
        dist.LogNormal(0.0, 1.0), transforms.ExpTransform().inv
    ),
    "multivariate, by its covariance": dist.MultivariateNormal(jnp.zeros(2), SCALE),
    "multivariate, by its precision": dist.MultivariateNormal(0.0, precision_matrix=SCALE),
    "Wishart": dist.Wishart(4.0, scale_matrix=jnp.asarray(SCALE)),
    "inverse Wishart": dist.InverseWishart(4.0, rate_matrix=jnp.asarray(SCALE)),
    "correlations": dist.LKJCholesky(3, 2.0),
    "sum of zero": dist.ZeroSumNormal(1.0, event_shape=(3,)),
    "point": dist.Delta(HALF, event_dim=1),
    "checked": dist.Normal(0.0, 1.0, validate_args=True),
}


def draws_and_density(distribution):
    """As one program."""

    @jax.jit
    def found():
        draws = distribution.sample(jax.random.key(0), (5,))
        return draws, distribution.log_prob(draws)

    return found()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_come_back(name):
    prior = DISTRIBUTIONS[name]
    options, lost = parse(dump({"prior": prior}))
    assert not lost
    back = options["prior"]
    assert type(back) is type(prior)
    assert (back.batch_shape, back.event_shape) == (prior.batch_shape, prior.event_shape)
    for one, other in zip(*map(draws_and_density, (back, prior)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert dump({"prior": back}) == dump({"prior": prior})


@pytest.mark.parametrize(
    "support",
    [
        constraints.positive,
        constraints.simplex,
        constraints.interval(0.0, 2.0),
        constraints.independent(constraints.real, 1),
    ],
)
def test_improper_priors_come_back(support):
    prior = dist.ImproperUniform(support, (), (3,))
    options, lost = parse(dump({"prior": prior}))
    assert not lost
    assert options["prior"].support == prior.support
    assert options["prior"].event_shape == (3,)


def test_a_distribution_that_was_looked_at_comes_back():
    prior = dist.MultivariateNormal(jnp.zeros(2), SCALE)
    prior.precision_matrix  # noqa: B018  (NumPyro keeps it)
    assert not parse(dump({"prior": prior}))[1]


def test_plain_options_come_back():
    options = {
        "covariance": "tied",
        "strength": None,
        "groups": [np.array([0, 1]), np.array([], int)],
        "shape": (2, (3.0, True)),
        "single": np.float32(0.5),
        "narrow": np.ones((0, 2), np.float32),
        "nested": {"scale": 1.0, "priors": [dist.Normal(0.0, 1.0)]},
        "inference": sidebayes.MeanField(num_sweeps=7),
        "prior": GaussianPrior(np.zeros(2), 0.1, 4.0, np.eye(2)),
        "links": MUST,
    }
    back, lost = parse(dump(options))
    assert not lost
    assert back["shape"] == options["shape"]
    assert back["single"] == 0.5
    assert back["groups"][1].dtype == int
    assert (back["narrow"].shape, back["narrow"].dtype) == ((0, 2), np.float32)
    assert back["inference"] == options["inference"]
    np.testing.assert_array_equal(back["prior"].scale, np.eye(2))
    np.testing.assert_array_equal(back["links"].pairs, MUST.pairs)
    assert dump(back) == dump(options)


@pytest.mark.parametrize("path", ENGINES.values())
def test_engines_come_back(path):
    engine = getattr(sidebayes, path.partition(":")[2])()
    assert parse(dump({"engine": engine})) == ({"engine": engine}, {})


@pytest.mark.parametrize("dense_mass", [False, True, "low_rank"])
def test_a_choice_between_types_comes_back(dense_mass):
    engine = sidebayes.NUTS(dense_mass=dense_mass)
    assert parse(dump({"engine": engine})) == ({"engine": engine}, {})


def test_no_file_says_where_a_run_writes(tmp_path):
    run = {"num_clusters": 2, "engine": EM(num_restarts=1), "progress": False}
    fit = sidebayes.fit("gmm", X, checkpoint=tmp_path / "run.state", **run)
    assert "run.state" not in str(fit.tree.attrs)
    with pytest.raises(ValueError, match=r"the fields \['checkpoint'\]"):
        parse(_text("class", "EM", checkpoint="state"))


def _text(kind, name, **fields):
    return json.dumps({"engine": {kind: name, "fields": fields}})


@dataclass(frozen=True)
class Own(Engine):
    """An engine that is no part of the library."""

    num_restarts: int = 1
    name: ClassVar[str] = "own"

    def run(self, problem, *, seed=0, init=None, progress=True):
        return QUICK.run(problem, seed=seed, init=init, progress=progress)


class Normal(dist.Normal):
    """A distribution that only goes by the name of NumPyro's."""


@pytest.mark.parametrize(
    "value",
    [
        Own(),
        lambda: None,
        EM,
        object(),
        Normal(0.0, 1.0),
        dist.Normal,
        [dist.Normal(0.0, 1.0), np.sum],
        {1: 2},
        1j,
        np.array([object()]),
        jax.random.key(0),
    ],
)
def test_what_text_cannot_hold_is_said_to_be_lost(value):
    options, lost = parse(dump({"kept": 1, "value": value}))
    assert options == {"kept": 1}
    assert lost.keys() == {"value"}


HOSTILE = ("os:system", "sidebayes.cli:main", "sidebayes.cache:use_compilation_cache")


@pytest.mark.parametrize(
    "kind", ["type", "class", "distribution", "transform", "constraint", "module"]
)
@pytest.mark.parametrize(
    "name",
    [
        *HOSTILE,
        "trap:Trap",
        "trap",
        "eval",
        "Fit",
        "load",
        "__class__",
        "np",
        "Distribution.mask",
        "",
    ],
)
def test_only_the_registry_is_read(kind, name, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("class Trap:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for path in HOSTILE:
        module, _, function = path.partition(":")
        if module in sys.modules:
            monkeypatch.setattr(
                f"{module}.{function}", lambda *_, **__: pytest.fail("called"), raising=False
            )
    before = set(sys.modules)
    with pytest.raises(ValueError, match=f"(?s){name or kind}.*load a file that Fit.save wrote"):
        parse(_text(kind, name))
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_text("class", "EM", restarts=3), r"gives EM the fields \['restarts'\]"),
        (_text("distribution", "Normal", mean=3), r"gives Normal the fields \['mean'\]"),
        (_text("class", "EM", max_steps="3"), "the max_steps '3', of another type"),
        (_text("class", "HMC", dense_mass=[]), r"the dense_mass \[\], of another type"),
        (_text("class", "HMC", dense_mass="full"), "the dense_mass 'full', of another type"),
        (_text("class", "Continuation", temperatures={"tuple": ["1"]}), "of another type"),
        (_text("class", "EM", max_steps=-3), r"cannot be built \(EM\(max_steps=-3\)"),
        (_text("distribution", "Normal", loc="os"), "the loc 'os', of another type"),
        (_text("distribution", "Normal", scale={"lost": "f"}), "Fit.save does not write"),
        (_text("distribution", "Independent", base_dist=3), "cannot be built"),
        ('{"a": {"array": ["os"], "shape": [1], "dtype": "O"}}', "no array of shape"),
        ('{"a": {"array": [1], "shape": [2], "dtype": "<f8"}}', "no array of shape"),
        ('{"a": {"tuple": [], "dict": {}}}', "Fit.save does not write"),
        ("[1]", "names no options"),
    ],
)
def test_fields_are_checked(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_class_that_keeps_nothing_is_lost_and_no_fit_with_it():
    prior = dist.CirculantNormal(jnp.zeros(4), covariance_row=jnp.array([2.0, 0.1, 0.0, 0.1]))
    assert parse(dump({"prior": prior})) == ({}, {"prior": "CirculantNormal"})


def test_every_registered_class_is_public():
    assert set(_CLASSES) <= set(sidebayes.__all__)


def laplace():
    loc = numpyro.sample("loc", dist.Normal(0, 5).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2).expand([2]).to_event(1))
    return dist.Laplace(loc, scale).to_event(1)


def cauchy():
    loc = numpyro.sample("loc", dist.Normal(0, 5).expand([2]).to_event(1))
    return dist.Cauchy(loc, 1.0).to_event(1)


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    fit = sidebayes.fit("ppc", X, MUST, num_clusters=2, engine=QUICK, component=laplace)
    path = tmp_path_factory.mktemp("fits") / "heavy.nc"
    fit.save(path)
    return fit, path


def test_a_lost_option_is_asked_for(heavy):
    fit, path = heavy
    bare = sidebayes.load(path)
    np.testing.assert_array_equal(bare.labels(), fit.labels())
    needs = r"component \(it was laplace\).*sidebayes.load\(path, component=...\)"
    for ask in (
        lambda: bare.predict(X),
        lambda: bare.log_prob(X),
        lambda: bare.resume(3),
        lambda: bare.kfold(2),
        bare.suspect_links,
        lambda: sidebayes.load(path, model=ppc),
    ):
        with pytest.raises(ValueError, match=needs):
            ask()


def test_a_lost_option_is_given_again(heavy):
    fit, path = heavy
    again = sidebayes.load(path, component=laplace)
    np.testing.assert_allclose(again.log_prob(X), fit.log_prob(X))
    with pytest.raises(ValueError, match="the model has the sites"):
        sidebayes.load(path, component=cauchy)
    with pytest.raises(ValueError, match="does not run on the data"):
        sidebayes.load(path, component=lambda: 3)
    with pytest.raises(ValueError, match=r"given \['covariance'\]; .* here \['component'\]"):
        sidebayes.load(path, component=laplace, covariance="tied")


def test_an_own_engine_is_given_again(tmp_path):
    fit = sidebayes.fit("gmm", X, num_clusters=2, engine=Own())
    fit.save(tmp_path / "own.nc")
    with pytest.raises(ValueError, match=r"engine \(it was Own\)"):
        sidebayes.load(tmp_path / "own.nc")
    again = sidebayes.load(tmp_path / "own.nc", engine=Own(3))
    assert again.config == Own(3)
    np.testing.assert_allclose(again.log_prob(X), fit.log_prob(X))


def test_a_file_of_another_version_is_refused(heavy, tmp_path):
    tree = heavy[0].tree.copy()
    old = '{"engine": {"type": "sidebayes.guides.engines.expectation_maximisation.em:EM", "fields": {}}}'
    tree.attrs = {n: v for n, v in tree.attrs.items() if n != "sidebayes_own_model"}
    tree.attrs["sidebayes_engine"] = old
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match="which is not among.*wrote in this version"):
        sidebayes.load(tmp_path / "fit.nc")


def test_a_hostile_file_is_refused(owned, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    for key in ("sidebayes_options", "sidebayes_engine"):
        tree = owned.tree.copy()
        tree.attrs = {**tree.attrs, key: '{"engine": {"class": "trap:run", "fields": {}}}'}
        tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
        with pytest.raises(ValueError, match="the class 'trap:run', which is not among"):
            sidebayes.load(tmp_path / "fit.nc", model=own)
    assert "trap" not in sys.modules


def own(x, links, *, num_clusters):
    ppc(x, links, num_clusters=num_clusters)


def unlinked(x, *, num_clusters):
    gmm(x, num_clusters=num_clusters)


def tied(x, links, *, num_clusters):
    ppc(x, links, num_clusters=num_clusters, covariance="tied")


def more(x, links, *, num_clusters):
    ppc(x, links, num_clusters=num_clusters)
    numpyro.deterministic("one", jnp.ones(()))


@pytest.fixture(scope="module")
def owned():
    return sidebayes.fit(own, X, MUST, num_clusters=2, engine=at_one(PARAMS))


def test_another_model_is_refused(owned, tmp_path):
    path, fit = tmp_path / "own.nc", owned
    fit.save(path)
    again = sidebayes.load(path, model=own, engine=fit.config)
    np.testing.assert_allclose(again.log_prob(X), fit.log_prob(X))
    for other, message in (
        (tied, "the model has the sites"),
        (more, "the model has the sites"),
        (unlinked, "the model takes no links"),
        (lambda x: None, "does not run on the data and options"),
    ):
        with pytest.raises(ValueError, match=message):
            sidebayes.load(path, model=other, engine=fit.config)


def test_a_card_keeps_its_model(tmp_path):
    path = tmp_path / "card.nc"
    sidebayes.fit("ppc", X, MUST, num_clusters=2, engine=QUICK).save(path)
    assert sidebayes.load(path, model=ppc).model is ppc
    with pytest.raises(ValueError, match="leave model out"):
        sidebayes.load(path, model=own)


def test_an_own_model_is_not_taken_for_a_card_of_its_name(tmp_path):
    def ppc(x, links, *, num_clusters):
        own(x, links, num_clusters=num_clusters)

    fit = told(ppc, (X, MUST), PARAMS, num_clusters=2)
    fit.save(tmp_path / "fit.nc")
    assert sidebayes.load(tmp_path / "fit.nc", engine=fit.config).model is None
    assert sidebayes.load(tmp_path / "fit.nc", model=ppc, engine=fit.config).model is ppc
