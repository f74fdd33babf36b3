"""Names that collide, models whose data did not reach them, options and words that mean something else."""

from __future__ import annotations

import re
import warnings
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from jax.typing import ArrayLike

import sidebayes as sb
from sidebayes import Groups, Links, PartialLabels, SideBayesWarning
from sidebayes.data.tables import check_truth
from sidebayes.runs.arguments import read_run
from tests.support.draws import at_one

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(4.0 * k, 1.0, (8, 2)) for k in range(2)])
Y = X[:, 0]
QUICK = {"engine": sb.EM(num_restarts=1, max_steps=3), "progress": False}


def called(name, plate="rows of y", again=None):
    """A model of a mean that goes by a name."""

    def model(y: Annotated[ArrayLike, "rows"]):
        mean = numpyro.sample(name, dist.Normal(0.0, 5.0))
        if again:
            again(name, mean)
        with numpyro.plate(plate, len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (called("chain"), "'chain'.*axes of the posterior"),
        (called("draw"), "'draw'.*axes of the posterior"),
        (called(""), "empty name"),
        (called("a\0b"), "character that files cannot hold"),
        (called("a/b"), "slash"),
        (called("rows", plate="rows"), "a sampled site and a plate are both called 'rows'"),
        (called("y"), "two sampled sites are called 'y'"),
        (called("a", again=numpyro.deterministic), "sampled site and a deterministic site"),
    ],
)
def test_names_of_sites_that_collide(model, said):
    with pytest.raises(ValueError, match=said):
        sb.fit(model, Y, **QUICK)


def test_a_site_like_an_axis_of_another():
    def model(x: Annotated[ArrayLike, "rows ..."]):
        side = {"event_dims": ["width"]}
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1), infer=side)
        width = numpyro.sample("width", dist.HalfNormal(1.0))
        with numpyro.plate("all", len(x)):
            numpyro.sample("x", dist.Normal(mean, width).to_event(1), obs=x)

    with pytest.raises(ValueError, match="'width'.*axes of the posterior"):
        sb.fit(model, X, **QUICK)


def test_plates_and_names_may_be_used_again_by_another_run():
    def model(y: Annotated[ArrayLike, "rows"]):
        for part in "ab":
            with numpyro.plate("rows", len(y)):
                numpyro.sample(part, dist.Normal(0.0, 1.0), obs=y)
        numpyro.sample("unused", dist.Normal(0.0, 1.0))

    with pytest.warns(sb.SideBayesWarning, match="no other site depends on 'unused'"):
        assert sb.fit(model, Y, **QUICK).status.converged


@pytest.mark.parametrize("names", [(1, "1"), (" ",), ("a\0",)])
def test_names_of_fits_that_collide(names):
    fit = sb.fit("gmm", X, num_clusters=2, **QUICK)
    with pytest.raises(ValueError, match="names"):
        sb.compare(dict.fromkeys(names, fit))


@pytest.mark.parametrize("missing", [np.nan, None, pd.NA])
def test_a_missing_value_is_no_name(missing):
    listed = ["a", missing, "b"]
    assert Groups(listed).names.tolist() == ["a", "b"]
    assert PartialLabels(listed).names == ("a", "b")
    assert PartialLabels(listed).classes.tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match="says no group for row 1"):
        sb.fit("mixed_effects", Y, X, X, ["a", missing] * 8, **QUICK)


@pytest.mark.parametrize("values", [["1", 1, "1"], [True, "True", "a"], [1, "a", 1]])
def test_names_of_several_kinds_are_refused(values):
    with pytest.raises(TypeError, match="mixes names"):
        Groups(values)


@pytest.mark.parametrize(
    "values",
    [
        np.array([-1, "b", "a", -1], object),
        [-1, "b", "a", -1],
        np.array([-1, "b", "a", -1]),  # NumPy makes text of all
        pd.Series(["b", "a"]).reindex([5, 0, 1, 6]),
    ],
)
def test_minus_one_beside_names_is_not_known(values):
    found = PartialLabels(values)
    assert found.classes.tolist() == [-1, 1, 0, -1]
    assert found.names == ("a", "b")
    y = np.repeat(np.asarray(values, object), 4)
    known = {"weights": [0.5, 0.5], "mean": [[0.0] * 2, [4.0] * 2], "covariance": [np.eye(2)] * 2}
    engine = at_one(known | {"class_table": [[0.1, 0.9], [0.9, 0.1]]})
    assert set(sb.MixtureClassifier(engine=engine).fit(X, y).classes_) == {"a", "b"}


def test_minus_one_among_numbers_as_text_is_a_class():
    assert PartialLabels(["-1", "1", "1"]).names == ("-1", "1")


def naive(x, g, y=None):
    """Signature of the tutorials."""
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(effect[g] * x, 1.0), obs=y)


@pytest.mark.parametrize(
    "arguments",
    [(Y, np.arange(16) % 4, X[:, 1]), (pd.Series(Y), (np.arange(16) % 4).tolist())],
)
def test_data_of_a_model_without_annotations(arguments):
    with pytest.raises(TypeError, match='annotate the data: x: Annotated.*, g: Annotated.*"rows"'):
        sb.fit(naive, *arguments, **QUICK)


def test_an_outcome_that_was_left_out_is_pointed_out():
    def model(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    with pytest.raises(ValueError, match="observes nothing.*\\['y'\\] are options.*y: Annotated"):
        sb.fit(model, Y, **QUICK)


@pytest.mark.parametrize("data", [Y, X, X.reshape(16, 2, 1)])
def test_one_table_of_any_dimension_without_annotations(data):
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(10.0))
        fn = dist.Normal(0.0, scale).expand(y.shape[1:]).to_event(y.ndim - 1)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", fn, obs=y)

    fit = sb.fit(model, data, engine="map", progress=False)
    # the mode under a weak prior is close to the root mean square
    np.testing.assert_allclose(fit.params["scale"], np.sqrt(np.mean(data**2)), rtol=0.02)
    assert fit.log_prob(data[:3]).shape == (3,)


def test_dimensions_that_look_misspelt():
    def model(y: Annotated[ArrayLike, "row"], g: Annotated[Groups, "rows"]):
        numpyro.sample("a", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="dimension 'rows' and another argument 'row'"):
        sb.fit(model, Y, np.arange(16) % 2, **QUICK)


def test_a_posterior_of_nan_is_not_loaded(tmp_path):
    sb.fit("gmm", X, num_clusters=2, **QUICK).save(tmp_path / "a.nc")
    tree = xr.open_datatree(tmp_path / "a.nc").load()
    tree["posterior"] = tree["posterior"].to_dataset() * np.nan
    tree.to_netcdf(tmp_path / "b.nc")
    with pytest.raises(ValueError, match="NaN for \\['covariance', 'mean', 'weights'\\]"):
        sb.load(tmp_path / "b.nc")


@pytest.mark.parametrize("links", [None, Links.empty(16)])
def test_a_flip_rate_needs_statements(links):
    options = {"flip_rate": "learned", "reading": "relation", "num_clusters": 2}
    with pytest.raises(ValueError, match="flip_rate is learned from links, and there are none"):
        sb.fit("ppc", X, links, **options, **QUICK)


@pytest.mark.parametrize("value", ["no", -1, 0, [1, 2, 3], np.nan, None, np.inf, {"a": 1}, True])
@pytest.mark.parametrize(
    ("method", "option", "links"),
    [("gmm", "concentration", "none"), ("soft_kmeans", "scale", "any")],
)
def test_an_option_that_is_no_positive_number(method, option, links, value):
    given = {} if links == "none" else {"links": Links.must_link([(0, 1)], 1.0)}
    with pytest.raises(ValueError, match=f"{option} = .*expected a finite number > 0"):
        sb.fit(method, X, num_clusters=2, **{option: value}, **given, progress=False)


def chain(y: Annotated[ArrayLike, "rows"]):
    state = numpyro.sample("state 0", dist.Bernoulli(0.5))
    numpyro.sample("state 1", dist.Bernoulli(jnp.where(state == 1, 0.9, 0.1)))
    numpyro.sample("y", dist.Normal(state, 1.0).expand([len(y)]).to_event(1), obs=y)


def branching(y: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = 1.0 if mean > 0 else 2.0
    numpyro.sample("y", dist.Normal(mean, scale).expand([len(y)]).to_event(1), obs=y)


def by_numpy(y: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(np.exp(mean), 1.0).expand([len(y)]).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: sb.fit("domain_adaptation", X),
            r"has no default \(SourceMixture; see sidebayes.fit_source\)$",
        ),
        (lambda: sb.fit("gmm", X, num_cluster=2), "did you mean 'num_clusters'"),
        (lambda: sb.fit("GMM", X, num_clusters=2), "did you mean 'gmm'"),
        (lambda: sb.fit("gmm", X, num_clusters=2, engine="NUTS"), "did you mean 'nuts'"),
        (lambda: sb.fit(chain, Y, **QUICK), "'state 0' is a discrete latent.*forward algorithm"),
        (
            lambda: sb.fit(branching, Y, **QUICK),
            "line \\d+ of test_names_and_words.py, 'scale = 1.0",
        ),
        (lambda: sb.fit(by_numpy, Y, **QUICK), "np.exp\\(mean\\).*jax.numpy instead of numpy"),
        (lambda: sb.fit(called("a"), Y, **QUICK).predict(Y), "fit.predictive"),
        (
            lambda: sb.FisherFeatures(num_draws=0).fit(None, None),
            "num_draws = 0; expected an integer >= 1",
        ),
        (lambda: sb.LikelihoodRatio(individual="no").fit(None, None), "expected True or False"),
        (
            lambda: sb.fit_nfgl(X, np.arange(16) % 2, num_clusters=2, num_classes=2, smoothing=2),
            "smoothing = 2; expected a finite number above 0.0 and at most 1.0",
        ),
        (
            lambda: sb.fit_nfgl(X, Y, num_clusters=2, num_classes=2, label_noise=0.1),
            "^nfgl has no option 'label_noise'",
        ),
        (
            lambda: sb.grow_prototypes(X, Y, num_clusters=2, num_classes=2, prototypes=3),
            "^pfgl has no option 'prototypes'",
        ),
        (
            lambda: sb.fit(lambda y: None, Y, engine="nuts", num_samples=100),
            "'num_samples', which is a setting of the engine; pass engine=NUTS\\(num_samples=100\\)",
        ),
        (
            lambda: sb.Fit.from_draws(called("a"), Y, {"a": np.zeros(9)}),
            "pass the MCMC itself, or get_samples\\(group_by_chain=True\\)",
        ),
        (
            lambda: sb.fit("trajectories", Y, X, num_clusters=1, observed=np.zeros(16)),
            "observed is zero everywhere",
        ),
    ],
)
def test_what_was_asked_is_named_with_a_remedy(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


def test_wide_links_are_told_what_their_reading_takes():
    every = Links.must_link([(i, j) for i in range(16) for j in range(i)], 0.1, num_points=16)
    options = {"num_clusters": 3, "inference": sb.Exact(max_table=100)}
    with pytest.raises(ValueError, match="use reading='relation'.*, or weights='uniform'"):
        sb.fit("ppc", X, every, **options, **QUICK)
    with pytest.raises(ValueError, match="name an approximation"):
        sb.fit("ppc", X, every, reading="relation", **options, **QUICK)


TABLE = pd.DataFrame(
    {
        "y": RNG.normal(size=24),
        "years": np.tile(np.arange(4.0), 6),
        "who": np.repeat(list("abcdef"), 4),
        "e": RNG.uniform(1, 2, 24),
    }
)


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("y ~ years + offset(e) + (1 | who)", "offset\\(\\) is not available here; subtract"),
        ("y ~ years^2 + (1 | who)", "write I\\(column\\*\\*2\\) for a power"),
        ("y ~ . + (1 | who)", "name the columns"),
        ("y ~ ns(years, 3) + (1 | who)", "write bs\\(column, df=4\\)"),
        ("cbind(y, e) ~ years + (1 | who)", "one formula per response"),
        ("y ~ log(e) + (1 | who)", "write np.log\\(column\\)"),
        ("y ~ strata(e) + (1 | who)", "write the column as a term"),
    ],
)
def test_words_of_other_formulas(formula, said):
    pytest.importorskip("formulae")
    with pytest.raises(ValueError, match=said):
        sb.design(formula, TABLE)


def test_measures_after_the_event_are_pointed_out():
    pytest.importorskip("formulae")
    found = sb.design("y ~ years + (years | who)", TABLE)
    subjects = pd.DataFrame({"who": list("abcdef"), "time": [1.5, 5, 5, 5, 5, 5], "event": 1})

    def read(design, subjects):
        """As a fit checks them."""
        data = design.survival("Surv(time, event) ~ 1", subjects)
        read_run("joint_survival", (), data, None)

    with pytest.warns(
        SideBayesWarning, match="1 of 6 subjects, the first \\['a'\\].*drop these rows"
    ):
        read(found, subjects)
    with pytest.warns(SideBayesWarning, match="6 of 6 .* see that both have the same unit"):
        read(found, subjects.assign(time=5 / 365))
    aged = sb.design("y ~ years + (years | who)", TABLE.assign(years=TABLE["years"] + 50))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an age is another clock
        read(aged, subjects.assign(time=5.0))
    data = found.survival("Surv(time, event) ~ 1", subjects.assign(time=5.0))
    with pytest.raises(TypeError, match="hazard = 'weak'; pass a HazardPrior"):
        sb.fit("joint_survival", **{**data, "hazard": "weak"}, progress=False)


@pytest.mark.parametrize("mark", ["?", " - ", "NaN", "Unknown", "None"])
def test_marks_of_missing_classes_are_named_as_classes(mark):
    listed = ["a", mark, "b", mark]
    said = rf"holds {re.escape(repr(mark))} in 2 of 4 rows, which is read as the name of a class"
    with pytest.warns(SideBayesWarning, match=f"the column of classes {said}"):
        assert PartialLabels(listed).names == tuple(sorted({*listed}))
    with pytest.warns(SideBayesWarning, match=f"truth, column 'kind', {said}"):
        check_truth(pd.Series(listed, name="kind"), 4)


def test_minus_beside_plus_is_a_class():
    assert PartialLabels(["+", "-", "+"]).names == ("+", "-")
