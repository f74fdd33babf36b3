"""The length of a message with feature saliencies, evaluated again without the library's code."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from numpyro import handlers
from scipy import integrate, stats
from scipy.special import gammaln
from sidebayes.guides.engines.steps.climbs import rounding_of
from sidebayes.models.blocks.mixtures.weights import mixing_weights
from sidebayes.models.blocks.saliency.feature_block import SalientFeatures
from sidebayes.models.blocks.saliency.kinds import Columns
from sidebayes.models.blocks.saliency.message_length import structure_length
from sidebayes.models.feature_saliency import feature_saliency

import sidebayes as sb

KINDS = ("normal", "normal", "count", "category:3", "ordered:4")
RNG = np.random.default_rng(0)
X = np.column_stack(
    [
        RNG.normal(size=(40, 2)),
        RNG.poisson(2.0, 40),
        np.arange(40) % 3,
        RNG.binomial(3, 0.4, 40),
    ]
)
X[:25, 1] = np.nan
VALUES = {
    "weights": np.array([0.6, 0.0, 0.4]),
    "saliency": np.array([1.0, 0.4, 0.0, 0.7, 1.0]),
    "mean": RNG.normal(size=(3, 2)),
    "variance": RNG.gamma(2.0, 0.3, (3, 2)),
    "common_mean": RNG.normal(size=2),
    "common_variance": RNG.gamma(2.0, 0.5, 2),
    "rate": RNG.gamma(3.0, 0.5, (3, 1)),
    "common_rate": np.array([1.8]),
    "category_3": RNG.dirichlet(np.ones(3), (3, 1)),
    "common_category_3": np.array([[0.3, 0.3, 0.4]]),
    "ordered_4": RNG.uniform(0.2, 0.8, (3, 1)),
    "common_ordered_4": np.array([0.45]),
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def normal_length(column):
    """Means and variances in use, with the scale of the variances of the clusters that costs least."""
    x, used = X[:, column], VALUES["weights"] > 0
    rho = VALUES["saliency"][column]
    middle, wide, nu, kappa = np.nanmean(x), np.nanvar(x), 3.0, 0.01

    def one(mean, variance, scale):
        """Minus the log prior, half the logarithm of the information, and the lattice of two parameters."""
        prior = stats.norm(middle, np.sqrt(variance / kappa)).logpdf(mean)
        prior = prior + stats.invgamma(nu / 2, scale=scale / 2).logpdf(variance)
        return -prior + 0.5 * np.log(0.5 / variance**3) + 1 - np.log(12)

    total = 0.0
    if rho > 0:
        mean, variance = VALUES["mean"][used, column], VALUES["variance"][used, column]
        scale = nu * (len(mean) + 1) / ((1 / variance).sum() + 1 / wide)
        prior = stats.gamma(nu / 2, scale=2 * wide).logpdf(scale) + np.log(scale)
        total += -prior + 0.5 * np.log(nu / 2 * len(mean)) + 0.5 * (1 - np.log(12))
        total += one(mean, variance, scale).sum()
    if rho < 1:
        total += one(VALUES["common_mean"][column], VALUES["common_variance"][column], wide)
    return total


def least(kind, params, number, mean):
    """Log likelihood of counts at their shares, less its logarithm averaged over the prior."""
    if kind == "count":
        events = number * params
        inside = integrate.quad(
            lambda r: np.exp(events * np.log(r) - number * r - r / mean) / mean, 0, np.inf
        )
        return events * np.log(params) - events - np.log(inside[0])
    if kind == "ordered:4":
        yes, no = 3 * number * params, 3 * number * (1 - params)
        inside = integrate.quad(lambda p: np.exp(yes * np.log(p) + no * np.log1p(-p)), 0, 1)
        return yes * np.log(params) + no * np.log(1 - params) - np.log(inside[0])
    events = number * params
    log_beta = gammaln(1 + events).sum() - gammaln(3 + number)
    return (events * np.log(params)).sum() - log_beta - np.log(2.0)  # Dirichlet(1, 1, 1) is 2


def kind_length(kind, params, number, mean):
    """Price with its precision: that of Wallace and Freeman, but not less than others."""
    free = 2 if kind == "category:3" else 1
    if kind == "count":
        prior, information = stats.expon(scale=mean).logpdf(params), -np.log(params)
    elif kind == "ordered:4":
        prior, information = 0.0, np.log(3 / params / (1 - params))
    else:
        prior, information = np.log(2.0), -np.log(params).sum()
    precision = free / 2 * np.log(max(number, 1.0))
    stated = precision - prior + information / 2 + free / 2 * (1 - np.log(12))
    return max(stated, precision, least(kind, params, number, mean))


def test_the_whole_length_is_that_of_wallace_and_freeman():
    known, weights, rho = (~np.isnan(X)).sum(axis=0), VALUES["weights"], VALUES["saliency"]
    used = np.flatnonzero(weights)
    expected = 0.5 * len(used) * np.log(40)
    expected += 0.5 * np.log(known[(rho > 0) & (rho < 1)]).sum()
    for column in (0, 1):
        expected += normal_length(column)
        if rho[column] > 0:
            expected += np.log(known[column] * weights[used] * rho[column]).sum()
        if rho[column] < 1:
            expected += np.log(known[column] * (1 - rho[column]))
    for column, site in ((2, "rate"), (3, "category_3"), (4, "ordered_4")):
        mean = np.nanmean(X[:, column])
        for cluster in used if rho[column] > 0 else ():
            number = 40 * weights[cluster] * rho[column]
            expected += kind_length(KINDS[column], VALUES[site][cluster, 0], number, mean)
        if rho[column] < 1:
            common = VALUES[f"common_{site}"][0]
            expected += kind_length(KINDS[column], common, 40 * (1 - rho[column]), mean)
    model = handlers.substitute(handlers.seed(feature_saliency, 0), data=VALUES)

    @jax.jit
    def factor():
        trace = handlers.trace(model).get_trace(X, num_clusters=3, kinds=KINDS)
        return trace["structure"]["fn"].log_factor

    assert float(factor()) == pytest.approx(-expected, rel=1e-9)


def test_known_values_alone_state_parameters():
    weights, saliency = np.array([0.5, 0.5]), np.array([0.4, 1.0])
    whole = structure_length(weights, saliency, 100)
    some = structure_length(weights, saliency, 100, num_known=np.array([10, 100]))
    spared = 0.5 + 2 * (0.5 * 2) + 0.5 * 2  # halves of logarithms: saliency, two clusters, common
    assert float(whole - some) == pytest.approx(spared * np.log(10))


def test_no_density_is_free():
    """The expansion alone is negative for many levels, and for rare counts."""
    for name, params in (
        ("category:25", np.full((1, 25), 1 / 25)),
        ("count", np.full(1, 0.01)),
    ):
        (kind,) = Columns.of((name,), 1).kinds
        mean = np.array([0.01])
        number = np.array([5.0])
        precision = 0.5 * kind.num_parameters * np.log(number)
        stated = precision + kind.length(params, mean)
        assert float(stated[0]) < 0
        assert float((stated + kind.shortfall(params, mean, number))[0]) >= float(precision[0])


def test_noise_of_many_levels_and_rare_counts_have_one_cluster():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(25, size=(100, 2)), rng.poisson(0.03, (100, 3))]) + 0.0
    x[0, :2] = 24
    kinds = ("category:25",) * 2 + ("count",) * 3
    engine = sb.ComponentwiseEM(num_restarts=2)
    fit = sb.fit("feature_saliency", x, num_clusters=4, kinds=kinds, engine=engine, progress=False)
    assert (fit.params["weights"] > 0).sum() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_in_another_order_differ_by_no_more_than_rounding(dtype):
    """By which a search knows that it has settled, in either precision."""
    terms = np.random.default_rng(0).normal(-4.0, 3.0, 100).astype(dtype)
    one, other = terms.sum(), terms[::-1].sum()
    assert 0 < abs(one - other) < rounding_of(one) < 10 * np.finfo(dtype).eps * abs(one)


def test_a_search_in_single_precision_settles():
    """Rounding is no fall, nor a gain that is left."""
    x = np.random.default_rng(0).normal(size=(60, 2)) + 5.0 * (np.arange(60) % 2)[:, None]
    engine = sb.ComponentwiseEM(num_restarts=2)
    given = {"num_clusters": 4, "engine": engine, "dtype": "float32", "progress": False}
    fit = sb.fit("feature_saliency", x, **given)
    assert fit.status.converged
    assert (fit.params["weights"] > 0).sum() == 2


def test_no_rounded_value_is_surer_than_one():
    """Clusters would collapse on single values of whole numbers."""
    x = np.round(RNG.normal(0.0, 3.0, (60, 2)))
    least = np.asarray(SalientFeatures(x, 2).least)
    np.testing.assert_allclose(
        1 / np.sqrt(2 * np.pi * least), 1.0
    )  # density at a mean, by steps of one
    fine = SalientFeatures(RNG.normal(size=(60, 2)), 2)
    assert (np.asarray(fine.least / fine.unit**2) < 1e-3).all()


def test_one_value_that_is_far_more_frequent_is_pointed_out():
    x = RNG.normal(size=(60, 2))
    x[:20, 1] = 0.0
    with pytest.warns(sb.SideBayesWarning, match="0 in 20 rows of column 1, far more often"):
        SalientFeatures(x, 2).check("x", x)


@pytest.mark.parametrize(
    "option",
    [{"concentration": -1.0}, {"saliency_prior": (5.0, 1.0)}],
    ids=lambda one: next(iter(one)),
)
def test_priors_of_the_other_selection_are_refused(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"{name} = .* is a prior of selection='sparse'"):
        sb.fit("feature_saliency", X[:, :1], num_clusters=2, **option)


@pytest.mark.parametrize("given", [(), 0, np.ones(3)], ids=str)
def test_what_is_no_prior_of_saliencies_is_refused(given):
    options = {"num_clusters": 2, "selection": "sparse", "saliency_prior": given}
    with pytest.raises(TypeError, match="saliency_prior = .* pass the two positive numbers"):
        sb.fit("feature_saliency", X[:, :1], **options)


def test_a_mode_where_the_prior_is_infinite_is_said_to_be_none():
    on_bound, inside = np.array([[[1e-12, 1.0]]]), np.array([[[0.4, 0.6]]])
    features = SalientFeatures(X[:, :2], 2)
    sizes = {"location": (2, 2), "spread": (2, 2), "common_location": (2,), "common_spread": (2,)}
    rest = {role: np.ones((1, 1, *size)) for role, size in sizes.items()}
    few, even = (
        handlers.trace(handlers.seed(mixing_weights, 0)).get_trace(2, concentration)["weights"]
        for concentration in (0.1, 1.0)
    )
    weights, role = few["infer"]["block"], even["infer"]["block"].roles[0]
    assert "1 of 2 weights is at zero" in weights.remark({role: on_bound})
    assert "2 of 2 saliencies are at zero or one" in features.remark(rest | {"saliency": on_bound})
    for values in (inside, np.repeat(on_bound, 2, axis=1)):  # draws are no modes
        assert weights.remark({role: values}) is None
        assert features.remark(rest | {"saliency": values}) is None
    assert even["infer"]["block"].remark({role: on_bound}) is None
