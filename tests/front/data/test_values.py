"""Numbers that cannot be: data and starting values out of support, rows that are not there."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.pairwise_gp import pairwise_gp
from sidebayes.models.scp import scp

import sidebayes as sb
from sidebayes import GaussianPrior, Links
from sidebayes.results.base.new_data import check_new
from sidebayes.runs.arguments import read_run
from tests.support.draws import Told, at_one

X = sb.load_dataset("iris").x[:60]
QUICK = sb.EM(num_restarts=1, max_steps=50)
LINKS = Links.must_link([(0, 1), (2, 5)], 1.0, num_points=6)


def fit(method="gmm", x=X, **given):
    settings = {"num_clusters": 2, "engine": QUICK, "progress": False} | given
    return sb.fit(method, x, **settings)


def counts(x: Annotated[ArrayLike, "rows"]):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("x", dist.Poisson(rate), obs=x)


def count_rows(x: Annotated[ArrayLike, "rows"]):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("x", dist.Poisson(rate).expand([len(x)]).to_event(1), obs=x)


def test_entries_outside_the_support_are_counted_one_by_one():
    with pytest.raises(ValueError, match=r"1 of 3 values of 'x' are .* the first at \(0,\): 1.5"):
        sb.fit(count_rows, np.array([1.5, 2.0, 3.0]), engine="map", progress=False)


def test_data_outside_the_support_are_named():
    engine = sb.MAP(num_restarts=1)
    values = np.array([1.0, 2.0, -1.5, 3.0])
    with pytest.raises(ValueError, match=r"1 of 4 values of 'x'.*nonnegative.*\(2,\): -1.5"):
        sb.fit(counts, values, engine=engine, progress=False)
    assert sb.fit(counts, np.abs(values).round(), engine=engine, progress=False).status.converged
    assert "the first at (2,): -1.5" in sb.debug(counts, values)["support"].finding


START = {
    "weights": np.array([0.4, 0.6]),
    "mean": X[[0, 55]],
    "covariance": np.stack([np.cov(X.T)] * 2),
}
STARTS = {
    "negative weight": (
        {"weights": [1.5, -0.5]},
        ValueError,
        r"'weights'\] lies outside .*simplex",
    ),
    "not a simplex": ({"weights": [0.5, 0.6]}, ValueError, "simplex"),
    "indefinite": ({"covariance": -START["covariance"]}, ValueError, "positive_?definite"),
    "unknown": ({"wieghts": [0.5, 0.5]}, ValueError, r"init has \['wieghts'\], which are no sites"),
    "text": ({"mean": "zero"}, TypeError, r"init\['mean'\] = 'zero'; expected numbers of shape"),
    "infinite": ({"mean": np.full((2, 4), np.inf)}, ValueError, "is not finite"),
    "shape": ({"mean": [0.0]}, ValueError, r"shape \(1,\), expected \(2, 4\)"),
}


@pytest.mark.parametrize("case", STARTS)
def test_starting_values_that_cannot_be(case):
    change, error, message = STARTS[case]
    with pytest.raises(error, match=message):
        fit(init=START | change)


def test_starting_values_may_be_rounded():
    rounded = {name: value.astype(np.float32) for name, value in START.items()}
    assert fit(init=rounded).status.converged
    draws = {name: value[None, None] for name, value in rounded.items()}
    single = fit(engine=Told(draws), dtype="float32")
    assert single.params["mean"].dtype == np.float32
    assert fit(init=single, dtype="float64").objective.shape[0] == 1


@pytest.mark.parametrize(
    "prior",
    [
        dist.Normal(0.2, 0.1),
        dist.Gamma(1.0, 1.0),
        dist.Uniform(0.0, 2.0),
        dist.Beta(jnp.ones(2), jnp.ones(2)),
        0.1,
    ],
)
def test_priors_of_a_flip_rate_lie_between_0_and_1(prior):
    links = Links.must_link([(0, 1)], 1.0, num_points=60)
    with pytest.raises(ValueError, match="expected 'learned' or a NumPyro distribution on"):
        fit("ppc", links=links, reading="relation", flip_rate=prior)


@pytest.mark.parametrize(
    "prior",
    [
        dist.Uniform(0.0, 0.5),
        dist.TransformedDistribution(dist.Normal(0, 1), dist.transforms.SigmoidTransform()),
    ],
)
def test_other_priors_of_a_flip_rate_are_taken(prior):
    links = Links.must_link([(0, 1)], 1.0, num_points=60)
    found = fit("ppc", links=links, reading="relation", flip_rate=prior)
    assert 0 < found.params["flip_rate"] < 1


PRIORS = {
    "not symmetric": (
        np.array([[1.0, 0.5], [0.0, 1.0]]),
        r"scale\[0, 1\] = 0.5 and scale\[1, 0\] = 0",
    ),
    "indefinite": (np.array([[1.0, 2.0], [2.0, 1.0]]), "least eigenvalue is -1"),
    "of JAX": (jnp.array([[1.0, 2.0], [2.0, 1.0]]), "least eigenvalue is -1"),
    "NaN": (np.full((2, 2), np.nan), "scale has entries that are not finite"),
}


@pytest.mark.parametrize("case", PRIORS)
def test_scales_of_priors(case):
    scale, message = PRIORS[case]
    with pytest.raises(ValueError, match=f"GaussianPrior: .*{message}"):
        GaussianPrior(np.zeros(2), 1.0, 5.0, scale)


@pytest.mark.parametrize("method", ["gmm", "pair_mixture"])
def test_a_prior_for_other_features(method):
    prior = GaussianPrior(np.zeros(2), 1.0, 5.0, np.eye(2))
    with pytest.raises(ValueError, match="prior is for 2 features, x has 4"):
        fit(method, prior=prior)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([0, 1, 6], ValueError, r"rows\[2\] = 6 is not among the 6 points"),
        ([0, -1], ValueError, r"rows\[1\] = -1 is not among"),
        ([0, 0], ValueError, "more than once"),
        ([0.5, 1.0], TypeError, "rows holds float64"),
        (np.ones(3, bool), ValueError, "mask over 3 points, the links are over 6"),
        ([[0]], ValueError, "of one axis"),
    ],
)
def test_rows_of_a_subset(rows, error, message):
    with pytest.raises(error, match=message):
        LINKS.subset(rows)


def test_a_mask_covers_all_that_is_linked():
    loose = Links.must_link([(0, 1), (2, 5)])
    with pytest.raises(ValueError, match="mask over 3 points, the links are over at least 6"):
        loose.subset(np.ones(3, bool))
    assert len(LINKS.subset(np.arange(6) != 5)) == 1
    assert len(loose.subset([5, 2])) == 1
    assert LINKS.subset([]).num_points == 0


@pytest.fixture(scope="module")
def flowers():
    return fit(engine=at_one(START))


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([(0, 60)], ValueError, r"pairs\[0\] = \(0, 60\) is out of range for 60 points"),
        ([(0, 1), (-1, 2)], ValueError, r"pairs\[1\] = \(-1, 2\) has a negative index"),
        ([0, 1], ValueError, r"pairs must have shape \(pairs, 2\)"),
        ([(0.0, 1.0)], TypeError, "pairs must hold integer row numbers"),
    ],
)
def test_pairs_that_are_asked_about(flowers, pairs, error, message):
    with pytest.raises(error, match=message):
        flowers.same_cluster(pairs)


def test_links_of_new_data_join_new_rows():
    run = read_run("ppc", (X,), {"num_clusters": 2}, None)
    beyond = Links.must_link([(0, 1), (59, 0)])
    said = r"links\[1\] = \(59, 0\), and there are 6 new points: links of new data .* from 0"
    with pytest.raises(ValueError, match=said):
        check_new(run, (X[:6], beyond), {})


@pytest.mark.parametrize("index", [2**31, 2**32 + 5, 2**62])
def test_row_numbers_that_would_overflow(index):
    with pytest.raises(ValueError, match="out of range for 2147483648 points"):
        Links.must_link([(0, index)])


def mixture(weights_for_logs: bool):
    def model(x: Annotated[ArrayLike, "points features"], *, num_clusters: int = 2):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(num_clusters)))
        with numpyro.plate("clusters", num_clusters):
            mean = numpyro.sample("mean", dist.Normal(5.0, 2.0).expand([4]).to_event(1))
        graph = as_label_graph(None, len(x))
        labels = sb.LinkedCategorical(share if weights_for_logs else jnp.log(share), graph)
        density = dist.Normal(mean, 1.0).to_event(1)
        numpyro.sample("flowers", sb.LinkedMixture(labels, density), obs=jnp.asarray(x))

    return model


def test_weights_passed_for_log_weights_are_refused():
    engine = at_one({"share": [0.5, 0.5], "mean": X[[0, 55]]})
    with pytest.raises(
        ValueError, match=r"log_weights = \[0.5 0.5\] of 'flowers'.*sum to 3.29.*jnp.log"
    ):
        sb.fit(mixture(True), X, engine=engine, progress=False)
    assert "pass jnp.log(weights)" in sb.debug(mixture(True), X)["support"].remedy
    assert sb.fit(mixture(False), X, engine=engine, progress=False).labels().shape == (60,)
    assert sb.debug(mixture(False), X)["support"].verdict == "ok"


def test_clusters_that_share_components_have_the_weights_of_these():
    """Those of the clusters of `scp` are all one, also in a copy of it."""

    def own(x, links=None, *, num_clusters=2):
        scp(x, links, num_clusters=num_clusters)

    links = Links.must_link([(0, 1)], 1.0, num_points=60)
    found = sb.fit(own, X, links, engine=sb.EM(num_restarts=1, max_steps=2), progress=False)
    assert found.labels().shape == (60,)


def test_a_classifier_has_no_mixing_weights():
    """The latent functions of `pairwise_gp` stand beside equal weights of one, also in a copy of it."""

    def own(x, links=None, *, num_clusters=2):
        pairwise_gp(x, links, num_clusters=num_clusters)

    links = Links.must_link([(0, 1)], 1.0, num_points=60)
    found = sb.fit(own, X, links, engine=sb.MAP(num_restarts=1, max_steps=3), progress=False)
    assert found.labels().shape == (60,)


def test_options_that_no_distribution_takes_are_named_with_their_sites():
    def model(y, sd=1.0):
        m = numpyro.sample("m", dist.Normal(0, sd * 2))
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    y = np.arange(4.0)
    with pytest.raises(TypeError, match="sd = '1' is text"):
        sb.fit(model, y, sd="1", engine="map", progress=False)
    for sd in (np.nan, -1.0):
        with pytest.raises(ValueError, match="site 'm': Normal distribution got invalid scale"):
            sb.fit(model, y, sd=sd, engine="map", progress=False)


def test_complex_columns_of_a_frame_are_named():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [1j, 2.0]})
    with pytest.raises(TypeError, match="column 'b' holds complex128, expected real numbers"):
        sb.mixed_table(frame)
